"""How long a node's work takes on a GPU, by a model of a few stated constants: pure functions, in seconds and
FLOPs.

None of the constants was measured here, since no GPU was at hand: `benchmarks/gpu_step.py` measures what
would replace them. An update is bound by arithmetic, a decoding step of the trainer's own sampler by
launching kernels or by reading memory, one of vLLM by both, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftis.config import NodeConfig, RunConfig
from ftis.errors import unknown
from ftis.suite.memory import FULL, HALF, Batch, Shape, adapted, trainable


@dataclass(frozen=True)
class Gpu:
    """What a data sheet says of a GPU."""

    name: str
    gib: float
    """Memory in GiB, as torch counts it: half a gibibyte less than nvidia-smi says, and up to one less than
    the name."""
    flops: float
    """A second, bfloat16 with float32 sums, dense."""
    single: float
    """The same in float32 without TF32."""
    bandwidth: float
    """Bytes a second."""
    devices: tuple[str, ...]
    """Names that torch gives it."""


# NVIDIA's data sheets of each; half of what they print where that is with sparsity, and GDDR6 less the
# sixteenth that its error correction takes. The T4 has no bfloat16: float16. Memory is what torch's
# out-of-memory errors give as the card's total: T4 14.56 to 14.75, H100 79.11 (vllm#27508); of the others
# nvidia-smi's number less what such a card keeps for itself (23,034, 81,920 and 143,771 MiB less some 550).
GPUS = {
    "t4": Gpu("T4, 16 GB", 14.56, 65e12, 8.1e12, 0.32e12, ("Tesla T4",)),
    "l4": Gpu("L4, 24 GB", 22.0, 121e12, 30.3e12, 0.3e12, ("NVIDIA L4",)),
    "a100": Gpu(
        "A100 SXM, 80 GB", 79.1, 312e12, 19.5e12, 2.039e12, ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe")
    ),
    "h100": Gpu("H100 SXM, 80 GB", 79.1, 989e12, 67e12, 3.35e12, ("NVIDIA H100 80GB HBM3",)),
    "h200": Gpu("H200 SXM, 141 GB", 139.7, 989e12, 67e12, 4.8e12, ("NVIDIA H200",)),
}
GPU = GPUS["h100"]
"""Where none is named."""
EFFICIENCY = 0.2
"""Share of `flops` that an update reaches, what is computed twice included. Reckoned: at 3B the elementwise
work that isn't fused (norms and residuals in float32, casts, rotary, activations) moves some 0.5 MB a token
and layer, which takes as long as the products do; attention under dense masks, the log-prob head and small
last micro-batches come on top."""
LAYER_SECONDS = 1e-3
"""Least time of a decoding step of the trainer's own sampler a layer. Qwen's speed benchmark of Qwen2.5
(A100, batch 1, bfloat16; docs/source/benchmark of QwenLM/Qwen2.5) has 21.1, 25.2 and 32.5 ms a token with
transformers at 24, 28 and 36 layers, 0.9 a layer whatever the width: kernels being launched one by one.
Autocast launches more."""
VLLM_LAYER_SECONDS = 0.14e-3
"""Of a decoding step of vLLM a layer, besides reading memory. The same page has 3.2, 5.5 and 7.8 ms a token
with vLLM 0.6.3; less what reading the weights takes on an A100, that is 0.11, 0.14 and 0.13 ms a layer."""
VLLM_SEQUENCE_SECONDS = 20e-6
"""Of a decoding step of vLLM a running sequence: its scheduler's Python, and a draw with a seed of its own,
which is a kernel launch; assumed."""
START_SECONDS = 60
"""Of a job until its models are read: Python, torch and transformers from a file system that many share;
assumed."""
ENGINE_SECONDS = 90
"""Until an engine of vLLM runs: compiling, profiling and CUDA graphs; assumed, others see 60 to 120."""
DISK_RATE = 1e9
"""Bytes a second at which a job's models are read and its checkpoints are written and hashed; assumed, a
local NVMe disk is faster and a busy shared file system slower."""
PUSH_RATE = 1e9
"""Bytes a second from the trainer to an engine of vLLM, through the machine's memory; assumed."""
COMPLETION_SHARE = 0.5
"""Mean length of a completion as a share of its budget; assumed. A batch decodes as long as its longest does,
which is taken to be the whole budget."""


def gpu_of_device(device: str) -> Gpu | None:
    """The GPU that torch calls `device`; None where it isn't in the table."""
    return next((gpu for gpu in GPUS.values() if device in gpu.devices), None)


def gpu_named(name: str) -> Gpu:
    """A key of `GPUS`, in any case, or a name that torch gives a device. Raises UserError where it is
    neither."""
    found = GPUS.get(name.lower()) or gpu_of_device(name)
    if found is None:
        raise unknown("GPU", name, GPUS)
    return found


def update_flops(
    shape: Shape, node: NodeConfig, tokens: float, completion_tokens: float, recomputed: bool = False
) -> float:
    """Floating-point operations of forward and backward on `tokens`, of which `completion_tokens` are in the
    loss.

    2 a parameter and token in forward, as much for the inputs' gradients, and as much for the weights' where
    they are trained. recomputed: count what is computed twice to save memory (MFU doesn't). Attention's
    products of queries and keys, 1 % at these lengths, are left out.
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


def decode_seconds(shape: Shape, node: NodeConfig, batch: Batch, backend: str, gpu: Gpu = GPU) -> float:
    """Of sampling one batch to its full length. Reading its prompts, 1 % of that, is left out."""
    half = node.compute_dtype == "bfloat16"
    unit = HALF if half else FULL
    if backend == "vllm":  # all in one type; sequences that have ended make room, and no longer cost anything
        running = COMPLETION_SHARE * batch.sequences
        weights = unit * (shape.matrices + shape.embedding)
        token = 2 * shape.num_hidden_layers * shape.keys * unit
    else:
        running = batch.sequences
        # Autocast keeps its copies of trained weights; frozen ones, and the head, are read and cast at each
        # step.
        cast = FULL + 2 * HALF if half else FULL
        weights = (unit if node.lora is None else cast) * shape.matrices + cast * shape.embedding
        token = shape.num_hidden_layers * shape.keys * (FULL + unit)
    cache = running * (batch.prompt_tokens + batch.new_tokens / 2) * token
    logits = running * shape.vocab_size * 30
    reading = (weights + cache + logits) / gpu.bandwidth
    if backend == "vllm":
        step = reading + VLLM_LAYER_SECONDS * shape.num_hidden_layers + VLLM_SEQUENCE_SECONDS * running
    else:
        step = max(reading, LAYER_SECONDS * shape.num_hidden_layers)
    return batch.new_tokens * step


def in_batches(total: int, batch: Batch) -> int:
    """How many batches `total` sequences make; a last one that isn't full takes as long as the others."""
    return -(-total // batch.sequences) if total else 0


def answer_seconds(
    shape: Shape, node: NodeConfig, problems: int, batch: Batch, each: int, backend: str, gpu: Gpu
) -> float:
    """Of answering `problems`, each `each` times, in batches like `batch`."""
    return in_batches(problems * each, batch) * decode_seconds(shape, node, batch, backend, gpu)


def load_seconds(shape: Shape, unit: int, backend: str) -> float:
    """Until a model whose file has `unit` bytes a parameter can sample."""
    return unit * shape.parameters / DISK_RATE + ENGINE_SECONDS * (backend == "vllm")


@dataclass(frozen=True)
class Seconds:
    """Of one node's work in a whole run by part."""

    start: float
    """Reading the model, and starting an engine of vLLM."""
    sampling: float
    update: float
    push: float
    """Taking the weights to an engine of vLLM after each update."""
    validation: float

    @property
    def training(self) -> float:
        return self.start + self.sampling + self.update + self.push + self.validation


def node_seconds(
    shape: Shape, node: NodeConfig, config: RunConfig, backend: str, batches: list[Batch], own: int,
    trained: int,
    validation: int, gpu: Gpu = GPU,
) -> Seconds:  # fmt: skip
    """Of one node: `own` completions sampled and `trained` completions learned from an iteration, and
    `validation` problems answered each time.

    batches: what is decoded at a time in training and in validation, with the mean prompt and what it leaves
    of the budget.
    """
    training = batches[0]
    sampling = in_batches(own, training) * decode_seconds(shape, node, training, backend, gpu)
    completion = COMPLETION_SHARE * training.new_tokens
    prompts = trained / config.group_size  # each is read once for its group
    learned = trained * completion
    update = update_seconds(shape, node, prompts * training.prompt_tokens + learned, learned, gpu)
    push = pushed_bytes(shape, node) / PUSH_RATE if backend == "vllm" else 0
    validating = 0.0
    if validation:
        times = 1 + -(-config.iterations // config.validation.every)
        each = 1 + config.validation.samples
        validating = times * answer_seconds(shape, node, validation, batches[1], each, backend, gpu)
    return Seconds(
        start=load_seconds(shape, HALF, backend),
        sampling=config.iterations * sampling,
        update=config.iterations * update,
        push=config.iterations * push,
        validation=validating,
    )


def pushed_bytes(shape: Shape, node: NodeConfig) -> float:
    """What an engine takes up after an update: all weights, or the blocks (attention, MLP) that an adapter
    changes."""
    unit = HALF if node.compute_dtype == "bfloat16" else FULL
    if node.lora is None:
        return unit * shape.parameters
    names = adapted(shape, node.lora)
    blocks = [{"q_proj", "k_proj", "v_proj", "o_proj"}, {"gate_proj", "up_proj", "down_proj"}]
    changed = set().union(*(block for block in blocks if block & set(names)))
    return unit * shape.num_hidden_layers * sum(a * b for n, (a, b) in shape.linears.items() if n in changed)


def checkpoint_count(config: RunConfig) -> int:
    """Checkpoints that a run makes; after the last iteration it leaves its weights instead."""
    return (config.iterations - 1) // config.checkpoint_every


def saving_seconds(states: float, weights: float, config: RunConfig) -> float:
    """Of a run's checkpoints, each of `states` bytes, and of the `weights` bytes that it leaves."""
    return (checkpoint_count(config) * states + weights) / DISK_RATE
