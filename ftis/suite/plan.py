"""What a grid will run, before it runs: models, memory, GPU-hours, bytes exchanged and disk of each run.

Memory is `ftis.suite.memory`'s estimate, time that of `ftis.suite.cost`; lengths of prompts are the constants
below. `ftis.suite.plan_text` shows it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ftis.config import KEPT, NodeConfig, RunConfig
from ftis.errors import UserError
from ftis.suite import cost, memory
from ftis.suite.cost import Gpu, Seconds
from ftis.suite.grid import Run
from ftis.suite.memory import FULL, GIB, Batch, Memory, Shape
from ftis.suite.suite import Suite
from ftis.suite.tiers import source_of
from ftis.swarm.message import BYTES_A_COMPLETION, BYTES_A_MESSAGE, BYTES_A_TOKEN
from ftis.swarm.share import assignment
from ftis.tasks.problems import Dataset
from ftis.tasks.tiny.models import SIZES

PROMPT_TOKENS = {"gsm8k": (112, 275), "math500": (128, 965), "tiny": (22, 32)}
"""Mean and longest prompt by data: chat-v1 with SmolLM2's tokenizer on all problems, which `ftis plan
--check` counts again with the models' own; worked examples add about 330."""
PROBLEMS = {"gsm8k": 1319, "math500": 500, "tiny": 0}
"""Test problems where no limit is set."""
LIBRARIES, WITH_CUDA = 0.4e9, 4e9
"""Bytes of host memory for torch and the data: seen on a CPU, and assumed with CUDA."""
WHOLE_CARD = 0.92
"""Share of a card that vLLM takes where no trainer has the rest: its default (0.32.0)."""


@dataclass(frozen=True)
class EnginePlan:
    """An engine of vLLM."""

    share: str
    """Where its share of the card comes from."""
    given: float
    """Bytes of that share; 0 on a CPU."""
    weights: float
    """Bytes of its own weights, which it keeps in the machine's memory while it sleeps."""
    sequence: float
    """Bytes of the keys and values of one sequence of `tokens`: with less than that and the weights it
    doesn't start."""
    tokens: int
    """Of the longest prompt with its completion."""


@dataclass(frozen=True)
class NodePlan:
    """A node of a run."""

    role: str
    label: str
    model: str
    revision: str | None
    gpu: int | None
    """Its GPU's place among the job's; None: the CPU."""
    parameters: int
    trained: int
    completions: int
    """Sampled over the run."""
    sequences: int
    """Decoded together, at most."""
    memory: Memory
    generate_bytes: float
    """Peak of answering the tests with it, on the GPU of the job that does or, without one, on its
    machine."""
    engines: tuple[EnginePlan, ...]
    """In training and for the tests, where vLLM samples."""
    seconds: Seconds
    """Of training, by the cost model."""
    answer_seconds: float
    """Of answering the tests with it, reading it included."""


@dataclass(frozen=True)
class RunPlan:
    """A run with its nodes. Bytes, unless another unit is named."""

    slug: str
    config: RunConfig
    nodes: tuple[NodePlan, ...]
    gpus: int
    gpu_bytes: tuple[float, ...]
    """Peak of each GPU."""
    host_bytes: float
    """Peak of the machine's own memory: when a killed run is taken up, all nodes' states are read."""
    host_limit: float
    """What the tier's file asks for."""
    generate_limit: float
    """What a job that answers the tests has: a GPU's memory, or without one what the tier's file asks for."""
    saving_seconds: float
    """Of its checkpoints and of what it leaves."""
    train_hours: float
    """How long its training takes, on all of its GPUs."""
    gpu_hours: float
    """Of the job that trains it, which holds its GPUs all the time, and of the one that answers the tests."""
    wire_bytes: float
    """Sent by all nodes, at most."""
    disk_bytes: float
    """On disk at most while it runs."""
    kept_bytes: float
    """Left when it is finished."""


def completion_count(config: RunConfig, node: int) -> int:
    """Completions that a node samples in an iteration."""
    share = assignment(config.split, config.prompts, config.group_size, len(config.nodes), node)
    return sum(len(samples) for _, samples in share)


def most_bytes(config: RunConfig) -> int:
    """Upper bound on what the swarm sends over a whole run: every completion at its full length, to every
    other node."""
    peers = len(config.nodes) - 1
    completions = sum(completion_count(config, k) for k in range(len(config.nodes)))
    each = BYTES_A_COMPLETION + BYTES_A_TOKEN * config.rollout.max_new_tokens
    return config.iterations * peers * (completions * each + BYTES_A_MESSAGE * len(config.nodes))


def shape_of_role(tier: str, role: str) -> Shape:
    """A model's architecture: of its config.json where that is here or in the hub's cache, else what the tier
    says."""
    from huggingface_hub import try_to_load_from_cache

    table = Suite.load().tier(tier).models
    model = table[table[role].of or role]
    if model.tiny is not None:
        return Shape(**SIZES[model.tiny.size])
    where, revision = source_of(model)
    file = Path(where).expanduser() / "config.json"
    if not file.is_file() and where.count("/") == 1:
        cached = try_to_load_from_cache(where, "config.json", revision=revision)
        file = Path(cached) if isinstance(cached, str) else file
    if file.is_file():
        return memory.shape_of(json.loads(file.read_text()), str(file))
    if model.shape is None:
        raise UserError(
            f"models.{role}: {where}: no config.json here; give its `shape`, or a local copy of the model"
        )
    return model.shape


def place(config: RunConfig, gpus: int) -> list[int | None]:
    """The GPU of each node among the job's, as `ftis.model.loading.pick_device` deals them out; None: the
    CPU."""
    found: list[int | None] = []
    for k, node in enumerate(config.nodes):
        if node.device == "auto":
            found.append(k % gpus if gpus else None)
        elif node.device.startswith("cuda"):
            found.append(int(node.device.partition(":")[2] or 0))
        else:
            found.append(None)
    return found


def problem_count(data: Dataset | None) -> int:
    return 0 if data is None else data.limit or PROBLEMS[data.name]


def answer_batches(tier: str, config: RunConfig, longest: bool = True) -> list[Batch]:
    """What is decoded at a time for each test, with its longest prompt or with its mean one. Problems that
    aren't counted are taken to fill a batch."""
    found, most = [], Suite.load().answers_batch(tier, config)
    for test in Suite.load().benchmarks(tier).values():
        each = 1 + test.samples  # the greedy answer with the others
        prompts = min(max(1, most // each), problem_count(test.data) or most)
        tokens = PROMPT_TOKENS[test.data.name][longest]
        found.append(Batch(min(most, prompts * each), prompts, tokens, test.max_new_tokens))
    return found


def _engine(share: str, given: float, shape: Shape, node: NodeConfig, batches: Sequence[Batch]) -> EnginePlan:
    tokens = max(batch.prompt_tokens + batch.new_tokens for batch in batches)
    return EnginePlan(share, given, *memory.engine_parts(shape, node, tokens), tokens)


def plan_run(tier: str, run: Run, gpu: Gpu = cost.GPU) -> RunPlan:
    """What one run takes."""
    config = Suite.load().resolve(tier, run)
    gpus = Suite.load().resources(tier, "train", run).gpus
    counts = [completion_count(config, k) for k in range(len(config.nodes))]
    nodes = tuple(
        _node(tier, run, config, k, where, counts, gpu) for k, where in enumerate(place(config, gpus))
    )
    answering = Suite.load().resources(tier, "generate", run)
    states = [3 * FULL * node.trained for node in nodes]  # weights and two moments
    kept = sum(FULL * node.trained for node in nodes)
    on_gpu = [[n.memory for n in nodes if n.gpu == i] for i in range(gpus)]
    together = config.transport == "processes" and len(nodes) > 1
    # Nodes in one process take turns; processes of their own work at the same time, on a GPU of their own
    # each.
    seconds = [node.seconds.training for node in nodes]
    saving = cost.saving_seconds(sum(states), kept, config)
    training = (max if together and gpus >= len(nodes) else sum)(seconds) + cost.START_SECONDS + saving
    answers = cost.START_SECONDS + sum(node.answer_seconds for node in nodes)
    return RunPlan(
        slug=run.slug, config=config, nodes=nodes, gpus=gpus,
        gpu_bytes=tuple(
            sum(map(memory.gpu_memory, [[m] for m in ms] if together else [ms])) for ms in on_gpu
        ),
        host_bytes=_host_bytes(nodes, gpus, together),
        host_limit=Suite.load().resources(tier, "train", run).mem_mb * 1e6,
        generate_limit=gpu.gib * GIB if answering.gpus else answering.mem_mb * 1e6,
        saving_seconds=saving, train_hours=training / 3600,
        gpu_hours=(gpus * training + answering.gpus * answers) / 3600,
        wire_bytes=most_bytes(config),
        disk_bytes=_disk_bytes(config, sum(states), kept),
        kept_bytes=kept,
    )  # fmt: skip


def _node(
    tier: str, run: Run, config: RunConfig, k: int, where: int | None, counts: Sequence[int], gpu: Gpu
) -> NodePlan:
    """Node `k` of a run, on the GPU `where` of its job; counts: completions that each node samples an
    iteration."""
    node, card, backend = config.nodes[k], gpu.gib * GIB, config.backend(k)
    shape = shape_of_role(tier, node.name)
    mean, longest = PROMPT_TOKENS[config.train.name]
    validation = problem_count(config.validation.data)
    # Memory must do for the longest prompt; how long a run takes is decided by the mean one.
    batches, usual = (memory.batches_of(config, counts[k], validation, n) for n in (longest, mean))
    answering, tests = Suite.load().resources(tier, "generate", run).gpus, answer_batches(tier, config)
    engines, engine, answers = [], 0.0, memory.answer_memory(shape, node, tests)
    if backend == "vllm":
        engine = config.rollout.gpu_memory_utilization * card * (where is not None)
        engines.append(_engine("rollout.gpu_memory_utilization", engine, shape, node, batches))
    if config.rollout.backend == "vllm":
        whole = WHOLE_CARD * card * (answering > 0)
        engines.append(_engine("vLLM's share in a job of tests", whole, shape, node, tests))
        answers = memory.answer_memory(shape, node, tests, engine=whole)
    most = sum(counts) * (longest + batches[0].new_tokens)  # an iteration's tokens
    return NodePlan(
        role=node.name, label=node.label, model=node.model, revision=node.revision, gpu=where,
        parameters=shape.parameters, trained=memory.trainable(shape, node.lora),
        completions=counts[k] * config.iterations, sequences=max(b.sequences for b in batches),
        memory=memory.node_memory(
            shape, node, min(node.micro_batch_tokens or config.optim.micro_batch_tokens, most),
            config.group_size,
            batches, engine=engine,
        ),
        generate_bytes=memory.gpu_memory([answers]) if answering else LIBRARIES + answers.peak,
        engines=tuple(engines),
        seconds=cost.node_seconds(
            shape, node, config, backend, usual, counts[k], sum(counts), validation, gpu
        ),
        answer_seconds=_answer_seconds(tier, config, shape, node, gpu),
    )  # fmt: skip


def _answer_seconds(tier: str, config: RunConfig, shape: Shape, node: NodeConfig, gpu: Gpu) -> float:
    """Of answering a tier's tests with a node's model, reading it included."""
    backend = config.rollout.backend
    seconds = cost.load_seconds(shape, FULL, backend)
    for test, batch in zip(
        Suite.load().benchmarks(tier).values(), answer_batches(tier, config, longest=False), strict=True
    ):
        problems = problem_count(test.data)
        seconds += cost.answer_seconds(shape, node, problems, batch, 1 + test.samples, backend, gpu)
    return seconds


def _disk_bytes(config: RunConfig, states: float, kept: float) -> float:
    """Most of a run on disk: its last checkpoint being written beside those that it keeps, or all with what
    it leaves."""
    made = cost.checkpoint_count(config)
    return max((min(KEPT, made - 1) + 1) * states, min(KEPT, made) * states + kept)


def _host_bytes(nodes: Sequence[NodePlan], gpus: int, together: bool) -> float:
    """Peak of the machine's own memory for a training job; together: with a process a node."""
    processes = len(nodes) if together else 1
    states = sum(3 * FULL * node.trained for node in nodes)
    host = processes * (WITH_CUDA if gpus else LIBRARIES)
    host += max(states, *(FULL * node.parameters for node in nodes))
    # An engine is a process of its own, whose weights go to the machine's memory while it sleeps.
    host += sum(WITH_CUDA + n.engines[0].weights for n in nodes if n.memory.engine)
    if any(node.gpu is None for node in nodes):
        on_cpu = [n.memory for n in nodes if n.gpu is None]
        host += sum(m.standing for m in on_cpu) + max(max(m.update, m.sampling) for m in on_cpu)
    return host


def plan_runs(tier: str, runs: Sequence[Run], gpu: Gpu = cost.GPU) -> list[RunPlan]:
    return [plan_run(tier, run, gpu) for run in runs]
