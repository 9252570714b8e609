"""What a grid will run, before it runs: models, memory, GPU-hours, bytes exchanged and disk of each run.

Memory is `ftis.suite.memory`'s estimate, time that of `ftis.suite.cost`; lengths of prompts are the constants below.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftis.config import KEPT, Node, RunConfig
from ftis.suite import cost, grid, memory
from ftis.suite.cost import Gpu
from ftis.suite.memory import FULL, GIB, Batch, Memory, Shape
from ftis.swarm.message import BYTES_A_COMPLETION, BYTES_A_MESSAGE, BYTES_A_TOKEN
from ftis.swarm.share import assignment
from ftis.tasks.problems import Dataset
from ftis.tasks.tiny.models import SIZES

PROMPT_TOKENS = {"gsm8k": (112, 275), "math500": (128, 965), "tiny": (22, 32)}
"""Mean and longest prompt by data: chat-v1 with SmolLM2's tokenizer on all problems, which `ftis plan --check` counts
again with the models' own; worked examples add about 330."""
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
    """Bytes of the keys and values of one sequence of `tokens`: with less than that and the weights it doesn't start."""
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
    """Peak of answering the tests with it, on the GPU of the job that does or, without one, on its machine."""
    engines: tuple[EnginePlan, ...]
    """In training and for the tests, where vLLM samples."""
    seconds: float
    """Of training and of the tests after it, by the cost model."""


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
    gpu_hours: float
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
    """A model's architecture: of its config.json where that is here or in the hub's cache, else what the tier says."""
    from huggingface_hub import try_to_load_from_cache

    table = grid.load_tier(tier).models
    model = table[table[role].of or role]
    if model.tiny is not None:
        return Shape(**SIZES[model.tiny.size])
    where, revision = grid.source_of(model)
    file = Path(where).expanduser() / "config.json"
    if not file.is_file() and where.count("/") == 1:
        cached = try_to_load_from_cache(where, "config.json", revision=revision)
        file = Path(cached) if isinstance(cached, str) else file
    if file.is_file():
        return memory.shape_of(json.loads(file.read_text()), str(file))
    if model.shape is None:
        raise grid.UserError(
            f"models.{role}: {where}: no config.json here; give its `shape`, or a local copy of the model"
        )
    return model.shape


def place(config: RunConfig, gpus: int) -> list[int | None]:
    """The GPU of each node among the job's, as `ftis.model.loading.pick_device` deals them out; None: the CPU."""
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


def answer_batches(tier: str, config: RunConfig) -> list[Batch]:
    """What is decoded at a time for the tests, with the longest prompt among it. Problems that aren't counted are taken
    to fill a batch."""
    found, most = [], config.rollout.max_batch
    for test in grid.benchmarks(tier).values():
        each = 1 + test.samples  # the greedy answer with the others
        prompts = min(max(1, most // each), problem_count(test.data) or most)
        longest = PROMPT_TOKENS[test.data.name][1]
        found.append(Batch(min(most, prompts * each), prompts, longest, test.max_new_tokens))
    return found


def _engine(share: str, given: float, shape: Shape, node: Node, batches: Sequence[Batch]) -> EnginePlan:
    tokens = max(batch.prompt_tokens + batch.new_tokens for batch in batches)
    return EnginePlan(share, given, *memory.engine_parts(shape, node, tokens), tokens)


def plan_run(tier: str, run: grid.Run, gpu: Gpu = cost.GPU) -> RunPlan:
    """What one run takes."""
    config = grid.resolve(tier, run)
    gpus = grid.resources(tier, "train", run).gpus
    mean, longest = PROMPT_TOKENS[config.train.name]
    validation = problem_count(config.validation.data)
    counts = [completion_count(config, k) for k in range(len(config.nodes))]
    answering, tests = grid.resources(tier, "generate", run), answer_batches(tier, config)
    card = gpu.gib * GIB
    nodes = []
    for k, (node, where) in enumerate(zip(config.nodes, place(config, gpus))):
        shape = shape_of_role(tier, node.name)
        batches = memory.batches_of(config, counts[k], validation, longest)
        most = sum(counts) * (longest + batches[0].new_tokens)  # an iteration's tokens
        seconds = cost.node_seconds(
            shape, node, config, batches, counts[k], sum(counts), validation, mean, gpu
        )
        for test in grid.benchmarks(tier).values():
            problems = problem_count(test.data)
            if problems:
                each = 1 + test.samples
                sequences = min(config.rollout.max_batch, problems * each)
                prompts = -(-sequences // each)
                batch = Batch(sequences, prompts, PROMPT_TOKENS[test.data.name][0], test.max_new_tokens)
                seconds += cost.in_batches(problems * each, batch) * cost.decode_seconds(
                    shape, node, batch, gpu
                )
        engines, engine, answers = [], 0.0, memory.answer_memory(shape, node, tests)
        if config.backend(k) == "vllm":
            engine = config.rollout.gpu_memory_utilization * card * (where is not None)
            engines.append(_engine("rollout.gpu_memory_utilization", engine, shape, node, batches))
        if config.rollout.backend == "vllm":
            whole = WHOLE_CARD * card * (answering.gpus > 0)
            engines.append(_engine("vLLM's share in a job of tests", whole, shape, node, tests))
            answers = memory.answer_memory(shape, node, tests, engine=whole)
        nodes.append(NodePlan(
            role=node.name, label=node.label, model=node.model, revision=node.revision, gpu=where,
            parameters=shape.parameters, trained=memory.trainable(shape, node.lora),
            completions=counts[k] * config.iterations, sequences=max(b.sequences for b in batches),
            memory=memory.node_memory(
                shape, node, min(node.micro_batch_tokens or config.optim.micro_batch_tokens, most), config.group_size,
                batches, engine=engine,
            ),
            generate_bytes=memory.gpu_memory([answers]) if answering.gpus else LIBRARIES + answers.peak,
            engines=tuple(engines), seconds=seconds,
        ))  # fmt: skip
    states = [3 * FULL * node.trained for node in nodes]  # weights and two moments
    kept = sum(FULL * node.trained for node in nodes)
    limit = grid.resources(tier, "train", run).mem_mb * 1e6
    host = (WITH_CUDA if gpus else LIBRARIES) + max(
        sum(states), max(FULL * node.parameters for node in nodes)
    )
    # An engine is a process of its own, whose weights go to the machine's memory while it sleeps.
    host += sum(WITH_CUDA + n.engines[0].weights for n in nodes if n.memory.engine)
    on_gpu = [[n.memory for n in nodes if n.gpu == i] for i in range(gpus)]
    together = config.transport == "processes"
    if any(node.gpu is None for node in nodes):
        on_cpu = [n.memory for n in nodes if n.gpu is None]
        host += sum(m.standing for m in on_cpu) + max(max(m.update, m.sampling) for m in on_cpu)
    return RunPlan(
        slug=run.slug, config=config, nodes=tuple(nodes), gpus=gpus,
        # Nodes in one process take turns; processes of their own work at the same time.
        gpu_bytes=tuple(sum(map(memory.gpu_memory, [[m] for m in ms] if together else [ms])) for ms in on_gpu),
        host_bytes=host, host_limit=limit, generate_limit=card if answering.gpus else answering.mem_mb * 1e6,
        # A job holds all of its GPUs all the time.
        gpu_hours=gpus * (max if together and gpus >= len(nodes) else sum)(n.seconds for n in nodes) / 3600,
        wire_bytes=most_bytes(config),
        disk_bytes=max((KEPT + 1) * sum(states), KEPT * sum(states) + kept),
        kept_bytes=kept,
    )  # fmt: skip


def plan_runs(tier: str, runs: Sequence[grid.Run], gpu: Gpu = cost.GPU) -> list[RunPlan]:
    return [plan_run(tier, run, gpu) for run in runs]


def plan(tier: str, runs: Sequence[grid.Run]) -> str:
    """A table of runs, and their sum, as text."""
    return as_text(tier, plan_runs(tier, runs))


PARTS = ("weights", "optimizer", "gradients", "casts", "activations", "head", "kv_cache", "sampler", "engine")


def as_text(tier: str, runs: Sequence[RunPlan], gpu: Gpu = cost.GPU) -> str:
    """Two aligned tables, of runs and of their different nodes, with the sums."""
    lines = [["run", "nodes", "B x G", "completions a node", "GPUs", "GPU peak", "host peak", "generate peak", "GPU-hours", "sent", "disk", "kept"]]  # fmt: skip
    nodes: dict[tuple, list[str]] = {}
    for run in runs:
        config = run.config
        lines.append([
            run.slug, " + ".join(n.label or n.role for n in run.nodes), f"{config.prompts} x {config.group_size}",
            "/".join(str(n.completions) for n in run.nodes), str(run.gpus),
            _memory_size(max(run.gpu_bytes)) if run.gpus else "-", _memory_size(run.host_bytes),
            _memory_size(max(n.generate_bytes for n in run.nodes)), f"{run.gpu_hours:.1f}" if run.gpus else "-",
            _size(run.wire_bytes), _size(run.disk_bytes), _size(run.kept_bytes),
        ])  # fmt: skip
        for n in run.nodes:
            parts = [_memory_size(getattr(n.memory, part)) for part in PARTS]
            row = [n.label or n.role, n.model, (n.revision or "-")[:12], f"{n.parameters / 1e6:,.1f}", f"{n.trained / 1e6:,.1f}",
                   str(n.sequences), *parts, _memory_size(n.memory.peak)]  # fmt: skip
            nodes.setdefault(tuple(row), row)
    head = ["node", "model", "revision", "parameters, M", "trained, M", "sequences", *(p.replace("_", " ") for p in PARTS), "peak"]  # fmt: skip
    train = grid.resources(tier, "train")
    return "\n".join([
        *_aligned(lines), "",
        *_aligned([head, *nodes.values()]),
        "peak of a node: weights + optimizer, and the larger of an update (gradients, casts, activations, head) and of",
        "sampling (casts, kv cache, sampler; or vLLM's engine)",
        "generate peak: of the job that answers the tests with the run's models, one after the other, on its GPU",
        "", f"{len(runs)} runs of tier {tier}: {grid.load_tier(tier).about}",
        f"each training job: {train.threads} threads, {train.mem_mb} MB, at most {train.runtime} minutes",
        f"GPU-hours on {gpu.name} ({gpu.gib:g} GiB): {sum(r.gpu_hours for r in runs):.1f}; estimated with {_assumptions(gpu)}",
        f"sent by all nodes of all runs: at most {_size(sum(r.wire_bytes for r in runs))}",
        f"on disk when all are finished: {_size(sum(r.kept_bytes for r in runs))}; while one runs: up to {_size(max(r.disk_bytes for r in runs))}",
    ])  # fmt: skip


def _assumptions(gpu: Gpu) -> str:
    return (
        f"{cost.EFFICIENCY:.0%} of {gpu.flops / 1e12:.0f} TFLOP/s ({gpu.single / 1e12:.0f} in float32) in updates, at least {cost.LAYER_SECONDS * 1e3:g} ms "
        f"a layer and decoding step, completions half as long as they may be; none of it was measured"
    )


def as_dict(tier: str, runs: Sequence[RunPlan], gpu: Gpu = cost.GPU) -> dict[str, Any]:
    """The same for programs: sizes in bytes."""

    def one(run: RunPlan) -> dict[str, Any]:
        plain = {k: v for k, v in asdict(run).items() if k != "config"}
        for node, planned in zip(plain["nodes"], run.nodes):
            node["memory"]["peak"] = planned.memory.peak
        return plain

    return {
        "tier": tier, "gpu": asdict(gpu), "assumptions": _assumptions(gpu), "runs": [one(run) for run in runs],
        "total": {k: sum(getattr(r, k) for r in runs) for k in ("gpu_hours", "wire_bytes", "kept_bytes")},
    }  # fmt: skip


def _aligned(lines: list[list[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines]


def _size(count: float) -> str:
    return _with_unit(count, 1000, ("B", "kB", "MB", "GB"), "TB")


def _memory_size(count: float) -> str:
    return _with_unit(count, 1024, ("B", "KiB", "MiB", "GiB"), "TiB")


def _with_unit(count: float, base: int, units: Sequence[str], last: str) -> str:
    for unit in units:
        if count < base:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= base
    return f"{count:.1f} {last}"
