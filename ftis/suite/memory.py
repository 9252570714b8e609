"""How much memory a node takes, from its architecture and settings alone: pure functions, in bytes.

The parts follow what the trainer and the sampler really hold (`ftis.swarm.loop`, `ftis.model.policy`,
`ftis.model.sampler`): weights and Adam's moments in float32 all the time, and besides, either what an update
needs or what sampling needs, never both. `benchmarks/gpu_step.py` measures the same on a device; a test holds
the two together on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, TypeAdapter

from ftis.config import NodeConfig, RunConfig
from ftis.errors import UserError
from ftis.model.lora import Lora
from ftis.settings import parse, settings

FULL, HALF = 4, 2
"""Bytes of a float32 and of a bfloat16."""
GIB = 2**30
CONTEXT = 1.0 * GIB
"""What CUDA takes for itself in each process; an assumption."""
ASLEEP = 2.0 * GIB
"""What an engine of vLLM keeps of a card while it sleeps: its own context and the memory of its CUDA graphs;
an assumption."""
SLACK = 0.05
"""Share of the estimate that the allocator loses between blocks; an assumption."""
CHUNK_LOGITS, LONGEST_LOGITS = 2**25, 2**27
"""Logits that the log-prob head holds at a time, as in `ftis.model.logprobs`, which needs torch."""
DEFAULT_TARGETS = ("q_proj", "v_proj")
"""What PEFT adapts in Qwen2 and Llama where nothing is named."""


@settings
class Shape:
    """A decoder's architecture, under the names of its config.json."""

    hidden_size: int = Field(ge=1)
    num_hidden_layers: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    """Rows of the embedding, padding included."""
    head_dim: int | None = Field(default=None, ge=1)
    """None: hidden_size over num_attention_heads."""
    tie_word_embeddings: bool = True
    attention_bias: bool = True
    """Biases of the q, k and v projections: Qwen2 has them, Llama hasn't."""
    max_position_embeddings: int | None = Field(default=None, ge=1)
    """Tokens that it reads at most; None: unknown."""

    @property
    def queries(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * (self.head_dim or self.hidden_size // self.num_attention_heads)

    @property
    def keys(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_key_value_heads * (self.head_dim or self.hidden_size // self.num_attention_heads)

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """A layer's matrices: name -> (in, out)."""
        h, i = self.hidden_size, self.intermediate_size
        return {
            "q_proj": (h, self.queries), "k_proj": (h, self.keys), "v_proj": (h, self.keys),
            "o_proj": (self.queries, h),
            "gate_proj": (h, i), "up_proj": (h, i), "down_proj": (i, h),
        }  # fmt: skip

    @property
    def matrices(self) -> int:
        """Parameters of all layers' matrices."""
        return self.num_hidden_layers * sum(a * b for a, b in self.linears.values())

    @property
    def embedding(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        biases = (self.queries + 2 * self.keys) * self.attention_bias
        norms = 2 * self.hidden_size
        other = self.num_hidden_layers * (biases + norms) + self.hidden_size
        return self.matrices + other + self.embedding * (1 if self.tie_word_embeddings else 2)


def shape_of(config: Mapping[str, Any], where: str) -> Shape:
    """The shape that a config.json says; UserError where it isn't a decoder of the Qwen2 or Llama kind."""
    kind = config.get("model_type")
    known = {name: config[name] for name in Shape.__dataclass_fields__ if config.get(name) is not None}
    known = {"tie_word_embeddings": False, "attention_bias": kind == "qwen2"} | known
    if kind not in ("qwen2", "llama"):
        raise UserError(
            f"{where}: memory is known for models of type qwen2 and llama, this is {kind!r}; give the tier's "
            "model a shape"
        )
    return parse(TypeAdapter(Shape), known, where)


def adapted(shape: Shape, lora: Lora) -> tuple[str, ...]:
    """Names of the matrices that an adapter stands beside."""
    if lora.target_modules is None:
        return DEFAULT_TARGETS
    return tuple(shape.linears) if lora.target_modules == "all-linear" else lora.target_modules


def trainable(shape: Shape, lora: Lora | None) -> int:
    """Trained parameters: all, or the adapter's."""
    if lora is None:
        return shape.parameters
    widths = [sum(shape.linears[name]) for name in adapted(shape, lora) if name in shape.linears]
    return shape.num_hidden_layers * lora.r * sum(widths)


@dataclass(frozen=True)
class Memory:
    """Bytes of one node by part."""

    weights: float
    gradients: float
    optimizer: float
    """Adam's two moments."""
    casts: float
    """bfloat16 copies of weights that autocast keeps."""
    activations: float
    """Kept for backward, and one layer's work in it."""
    head: float
    """The log-prob head's chunk of logits, and what it needs with it."""
    kv_cache: float
    sampler: float
    """What reading the prompts takes, or the decoder's logits and copies."""
    engine: float = 0
    """An engine of vLLM with its own weights and cache, where that samples: there unless its own node
    learns."""

    @property
    def standing(self) -> float:
        """Held all the time."""
        return self.weights + self.optimizer

    @property
    def update(self) -> float:
        """Held during an update besides."""
        return self.gradients + self.casts + self.activations + self.head

    @property
    def sampling(self) -> float:
        """Held during sampling besides, an engine's own apart."""
        return 0 if self.engine else self.casts + self.kv_cache + self.sampler

    @property
    def peak(self) -> float:
        return self.standing + max(self.update, self.sampling + self.engine)


@dataclass(frozen=True)
class Batch:
    """What a node has in hand at a time."""

    sequences: int
    """Decoded together."""
    prompts: int
    """Different prompts among them."""
    prompt_tokens: int
    """Of the longest prompt."""
    new_tokens: int
    """Of the longest completion."""


def node_memory(
    shape: Shape, node: NodeConfig, micro_batch_tokens: int, group: int, batches: Sequence[Batch],
    vocabulary: int | None = None, engine: float = 0,
) -> Memory:  # fmt: skip
    """A node's parts. batches: what it samples in training, and then in validation; the larger counts.

    group: completions that it trains on for each prompt, which is read once for all of them. vocabulary: the
    tokenizer's ids, the width of the softmax; None: the embedding's rows. engine: bytes that vLLM is given,
    where it samples.
    """
    half = node.compute_dtype == "bfloat16"
    unit = HALF if half else FULL
    vocabulary = vocabulary or shape.vocab_size
    trained = trainable(shape, node.lora)
    checkpoints = node.gradient_checkpointing
    layer = _layer_activations(shape, node.lora, half)
    # Backward's own: the gradients of a layer's widest tensors.
    work = unit * 3 * shape.intermediate_size + FULL * 2 * shape.hidden_size
    kept = shape.num_hidden_layers * (FULL * shape.hidden_size if checkpoints else layer)
    ends = FULL * 4 * shape.hidden_size  # the last norm, and the rows that the loss looks at
    activations = micro_batch_tokens * (kept + (layer if checkpoints else 0) + work + ends)
    activations += _masks(
        shape, micro_batch_tokens, batches[0], unit, 1 if checkpoints else shape.num_hidden_layers
    )
    casts = 0
    if half and node.lora is None:
        casts = HALF * shape.matrices
    elif half:
        # Autocast keeps copies of trained weights only; frozen ones live as long as backward needs them.
        casts = HALF * (max(a * b for a, b in shape.linears.values()) if checkpoints else shape.matrices)
    completed = group * batches[0].new_tokens
    completed /= batches[0].prompt_tokens + completed
    kv_cache, sampler = _sampling(shape, batches, half, vocabulary)
    return Memory(
        weights=FULL * (shape.parameters + (trained if node.lora else 0)),
        gradients=FULL * trained,
        optimizer=2 * FULL * trained,
        casts=casts,
        activations=activations,
        head=_head(
            shape, node.lora is None, half, vocabulary, micro_batch_tokens * completed, batches[0].new_tokens
        ),
        kv_cache=0 if engine else kv_cache,
        sampler=0 if engine else sampler,
        engine=engine,
    )


def answer_memory(
    shape: Shape, node: NodeConfig, batches: Sequence[Batch], vocabulary: int | None = None, engine: float = 0
) -> Memory:
    """The parts of a trained node that answers tests and learns nothing; the largest of `batches` counts.

    vocabulary: as in `node_memory`. An `engine` of vLLM, in bytes, is all there is where it answers.
    """
    if engine:
        return Memory(0, 0, 0, 0, 0, 0, 0, 0, engine)
    half = node.compute_dtype == "bfloat16"
    adapter, copied = 0, shape.matrices
    if node.lora:  # loaded frozen, as its model: the copies live for a product only
        adapter, copied = trainable(shape, node.lora), max(a * b for a, b in shape.linears.values())
    kv_cache, sampler = _sampling(shape, batches, half, vocabulary or shape.vocab_size)
    return Memory(
        weights=FULL * (shape.parameters + adapter),
        gradients=0,
        optimizer=0,
        casts=HALF * copied * half,
        activations=0,
        head=0,
        kv_cache=kv_cache,
        sampler=sampler,
    )


def engine_parts(shape: Shape, node: NodeConfig, tokens: int) -> tuple[float, float]:
    """Bytes of the weights of a node's engine of vLLM, and of the keys and values of one sequence of
    `tokens`."""
    unit = HALF if node.compute_dtype == "bfloat16" else FULL
    return unit * shape.parameters, unit * 2 * shape.num_hidden_layers * shape.keys * tokens


def _layer_activations(shape: Shape, lora: Lora | None, half: bool) -> int:
    """Bytes a token that one layer keeps for its backward, nothing being recomputed."""
    h, i = shape.hidden_size, shape.intermediate_size
    unit = HALF if half else FULL
    attention = unit * (2 * shape.queries + 2 * shape.keys)
    if lora is None:
        # Each norm: its input and what is scaled (float32), and its output as the projections' input.
        return 2 * (2 * FULL + unit) * h + attention + unit * 4 * i
    # Frozen matrices need no input. Each norm's input, each adapter's input and inner product.
    names = adapted(shape, lora)
    inputs = h * (
        bool({"q_proj", "k_proj", "v_proj"} & set(names)) + bool({"gate_proj", "up_proj"} & set(names))
    )
    inputs += i * ("down_proj" in names)
    return 2 * FULL * h + unit * (inputs + lora.r * len(names) + 3 * i) + attention


def _masks(shape: Shape, tokens: int, batch: Batch, unit: int, kept: int) -> float:
    """Attention's dense masks of a micro-batch: as booleans once a completion token and once a query, since
    the query heads of a key head are queries of it, and as numbers in each layer that is `kept` for
    backward."""
    queries = shape.num_attention_heads // shape.num_key_value_heads
    return tokens * (batch.prompt_tokens + batch.new_tokens) * (1 + queries * (1 + unit * kept))


def _head(shape: Shape, full: bool, half: bool, vocabulary: int, tokens: float, longest: int) -> float:
    """Of the log-probs of `tokens` completion tokens, the longest completion having `longest`."""
    weight = FULL * vocabulary * shape.hidden_size
    again = longest * vocabulary > LONGEST_LOGITS  # one that is too long has its logits computed twice
    rows = min(tokens, max(CHUNK_LOGITS // vocabulary, 1 if again else longest))
    chunk = FULL * vocabulary * rows
    # In bfloat16 the products need copies; what is computed twice has a gradient of its own.
    extra = (chunk + weight) / 2 if half else 0
    extra += weight if again and full else 0
    return chunk + extra


def _sampling(shape: Shape, batches: Sequence[Batch], half: bool, vocabulary: int) -> tuple[float, float]:
    """Keys and values, and what else is there with them, at the worst moment of the worst batch."""
    unit = HALF if half else FULL
    # Rotary position embeddings leave keys in float32 under autocast.
    token = shape.num_hidden_layers * shape.keys * (FULL + unit)
    moments = []
    for batch in batches:
        read = batch.prompts * batch.prompt_tokens
        rows = batch.sequences * (batch.prompt_tokens + batch.new_tokens)
        # Reading the prompts: their keys and values, a layer's work on all of them, and attention's mask,
        # once as booleans and twice as numbers.
        work = read * (unit * 3 * shape.intermediate_size + FULL * 4 * shape.hidden_size)
        moments.append((token * read, work + read * batch.prompt_tokens * (1 + 2 * unit)))
        # Decoding: those of the rows, to which the prompts' pass layer by layer. Besides, logits and their
        # softmax, its double-precision sum and the cut-off, and the head's copy; or a layer that is copied,
        # from its prompts or to the rows that go on.
        logits = batch.sequences * vocabulary * (3 * FULL + 2 * 8 + (HALF if half else 0))
        logits += HALF * vocabulary * shape.hidden_size * half
        copied = token / shape.num_hidden_layers * max(read + batch.sequences * batch.prompt_tokens / 2, rows)
        moments.append((token * rows, max(logits, copied)))
    return max(moments, key=sum)


def gpu_memory(nodes: Sequence[Memory]) -> float:
    """Peak of one GPU on which these nodes live in one process: they take turns, so all stand there and one
    works.

    With CUDA's own memory and the allocator's slack. An engine takes what it is given, and sleeps only while
    its own node learns; some it keeps even then.
    """
    if not nodes:
        return 0.0
    engines = sum(node.engine for node in nodes)
    worst = max(
        max(
            (1 + SLACK) * node.update + engines - node.engine + (ASLEEP if node.engine else 0),
            (1 + SLACK) * node.sampling + engines,
        )
        for node in nodes
    )
    return CONTEXT + (1 + SLACK) * sum(node.standing for node in nodes) + worst


def batches_of(
    config: RunConfig, completions: int, validation_problems: int, prompt_tokens: int
) -> list[Batch]:
    """What a node decodes at a time: of its `completions` an iteration, and of its validation."""
    rollout, validation = config.rollout, config.validation
    new = rollout.max_new_tokens
    if rollout.max_total_tokens:
        new = max(1, min(new, rollout.max_total_tokens - prompt_tokens))
    found = []
    sequences = min(rollout.max_batch, completions)
    own = config.group_size if config.split == "vertical" else max(1, config.group_size // len(config.nodes))
    found.append(Batch(sequences, -(-sequences // own), prompt_tokens, new))
    if validation_problems:
        each = 1 + validation.samples
        sequences = min(rollout.max_batch, validation_problems * each)
        found.append(Batch(sequences, -(-sequences // each), prompt_tokens, validation.max_new_tokens))
    return found
