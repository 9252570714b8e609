"""How long a node's work takes on a GPU, by a model of a few stated constants: pure functions, in seconds and FLOPs.

None of the constants was measured here, since no GPU was at hand: `benchmarks/gpu_step.py` measures what would
replace them. An update is bound by arithmetic, a decoding step by reading memory or by launching kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftis.config import NodeConfig, RunConfig
from ftis.errors import unknown
from ftis.suite.memory import FULL, HALF, Batch, Shape, trainable


@dataclass(frozen=True)
class Gpu:
    """What a data sheet says of a GPU."""

    name: str
    gib: float
    """Memory in GiB."""
    flops: float
    """A second, bfloat16 with float32 sums, dense."""
    single: float
    """The same in float32 without TF32."""
    bandwidth: float
    """Bytes a second."""
    devices: tuple[str, ...]
    """Names that torch gives it."""


# NVIDIA's data sheets of each; half of what they print where that is with sparsity, and GDDR6 less the sixteenth that
# its error correction takes. The T4 has no bfloat16: float16.
GPUS = {
    "t4": Gpu("T4, 16 GB", 15, 65e12, 8.1e12, 0.32e12, ("Tesla T4",)),
    "l4": Gpu("L4, 24 GB", 22.5, 121e12, 30.3e12, 0.3e12, ("NVIDIA L4",)),
    "a100": Gpu(
        "A100 SXM, 80 GB", 80, 312e12, 19.5e12, 2.039e12, ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe")
    ),
    "h100": Gpu("H100 SXM, 80 GB", 80, 989e12, 67e12, 3.35e12, ("NVIDIA H100 80GB HBM3",)),
    "h200": Gpu("H200 SXM, 141 GB", 141, 989e12, 67e12, 4.8e12, ("NVIDIA H200",)),
}
GPU = GPUS["h100"]
"""Where none is named."""
EFFICIENCY = 0.35
"""Share of `flops` that an update reaches; assumed."""
LAYER_SECONDS = 1e-3
"""Least time of a decoding step a layer: transformers launches some 30 small kernels for each; assumed."""
COMPLETION_SHARE = 0.5
"""Mean length of a completion as a share of its budget; assumed. A batch decodes as long as its longest does, which
is taken to be the whole budget."""


def gpu_named(name: str) -> Gpu:
    """A key of `GPUS`, in any case, or a name that torch gives a device. Raises UserError where it is neither."""
    found = GPUS.get(name.lower()) or next((gpu for gpu in GPUS.values() if name in gpu.devices), None)
    if found is None:
        raise unknown("GPU", name, GPUS)
    return found


def update_flops(
    shape: Shape, node: NodeConfig, tokens: float, completion_tokens: float, recomputed: bool = False
) -> float:
    """Floating-point operations of forward and backward on `tokens`, of which `completion_tokens` are in the loss.

    2 a parameter and token in forward, as much for the inputs' gradients, and as much for the weights' where they
    are trained. recomputed: count what is computed twice to save memory (MFU doesn't). Attention's products of
    queries and keys, 1 % at these lengths, are left out.
    """
    backward = 2 if node.lora is None else 1
    layers = 1 + backward + (recomputed and node.gradient_checkpointing)
    return 2 * (layers * shape.matrices * tokens + (1 + backward) * shape.embedding * completion_tokens)


def update_seconds(
    shape: Shape, node: NodeConfig, tokens: float, completion_tokens: float, gpu: Gpu = GPU
) -> float:
    """Of one update, optimizer step included."""
    flops = update_flops(shape, node, tokens, completion_tokens, recomputed=True)
    rate = gpu.flops if node.compute_dtype == "bfloat16" else gpu.single
    step = 7 * FULL * trainable(shape, node.lora) / gpu.bandwidth  # read p, g, m, v; write p, m, v
    return flops / (EFFICIENCY * rate) + step


def decode_seconds(shape: Shape, node: NodeConfig, batch: Batch, gpu: Gpu = GPU) -> float:
    """Of sampling one batch to its full length with the transformers sampler."""
    half = node.compute_dtype == "bfloat16"
    # Autocast keeps its copies of trained weights; frozen ones, and the head, are read and cast at each step.
    cast = FULL + 2 * HALF if half else FULL
    kept = (HALF if half else FULL) if node.lora is None else cast
    weights = kept * shape.matrices + cast * shape.embedding
    token = shape.num_hidden_layers * shape.keys * (FULL + (HALF if half else FULL))
    cache = batch.sequences * (batch.prompt_tokens + batch.new_tokens / 2) * token
    logits = batch.sequences * shape.vocab_size * 30
    step = max((weights + cache + logits) / gpu.bandwidth, LAYER_SECONDS * shape.num_hidden_layers)
    return batch.new_tokens * step


def in_batches(total: int, batch: Batch) -> int:
    """How many batches `total` sequences make; a last one that isn't full takes as long as the others."""
    return -(-total // batch.sequences) if total else 0


def node_seconds(
    shape: Shape, node: NodeConfig, config: RunConfig, batches: list[Batch], own: int, trained: int, validation: int,
    prompt_tokens: int, gpu: Gpu = GPU,
) -> float:  # fmt: skip
    """Of one node's whole run: `own` completions sampled and `trained` completions learned from an iteration, and
    `validation` problems answered each time."""
    sampling = in_batches(own, batches[0]) * decode_seconds(shape, node, batches[0], gpu)
    completion = COMPLETION_SHARE * batches[0].new_tokens
    prompts = trained / config.group_size  # each is read once for its group
    learned = trained * completion
    updating = update_seconds(shape, node, prompts * prompt_tokens + learned, learned, gpu)
    total = config.iterations * (sampling + updating)
    if validation:
        times = 1 + -(-config.iterations // config.validation.every)
        rounds = in_batches(validation * (1 + config.validation.samples), batches[1])
        total += times * rounds * decode_seconds(shape, node, batches[1], gpu)
    return total
