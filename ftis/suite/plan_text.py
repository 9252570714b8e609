"""A plan as text for people and as a dict for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from ftis.suite import cost
from ftis.suite.cost import Gpu, Seconds
from ftis.suite.grid import Run
from ftis.suite.plan import RunPlan, plan_runs
from ftis.suite.suite import Suite


def plan(tier: str, runs: Sequence[Run]) -> str:
    """A table of runs, and their sum, as text."""
    return as_text(tier, plan_runs(tier, runs))


PARTS = ("weights", "optimizer", "gradients", "casts", "activations", "head", "kv_cache", "sampler", "engine")


def as_text(tier: str, runs: Sequence[RunPlan], gpu: Gpu = cost.GPU) -> str:
    """Two aligned tables, of runs and of their different nodes, with the sums."""
    lines = [["run", "nodes", "B x G", "completions a node", "GPUs", "GPU peak", "host peak", "generate peak",
    "hours", "GPU-hours", "sent", "disk", "kept"]]  # fmt: skip
    nodes: dict[tuple, list[str]] = {}
    for run in runs:
        config = run.config
        lines.append([
            run.slug, " + ".join(n.label or n.role for n in run.nodes),
            f"{config.prompts} x {config.group_size}",
            "/".join(str(n.completions) for n in run.nodes), str(run.gpus),
            _memory_size(max(run.gpu_bytes)) if run.gpus else "-", _memory_size(run.host_bytes),
            _memory_size(max(n.generate_bytes for n in run.nodes)),
            *((f"{run.train_hours:.1f}", f"{run.gpu_hours:.1f}") if run.gpus else "--"),
            _size(run.wire_bytes), _size(run.disk_bytes), _size(run.kept_bytes),
        ])  # fmt: skip
        for n in run.nodes:
            parts = [_memory_size(getattr(n.memory, part)) for part in PARTS]
            row = [n.label or n.role, n.model, (n.revision or "-")[:12], f"{n.parameters / 1e6:,.1f}",
            f"{n.trained / 1e6:,.1f}",
                   str(n.sequences), *parts, _memory_size(n.memory.peak)]  # fmt: skip
            nodes.setdefault(tuple(row), row)
    head = ["node", "model", "revision", "parameters, M", "trained, M", "sequences",
    *(p.replace("_", " ") for p in PARTS), "peak"]  # fmt: skip
    train = Suite.load().resources(tier, "train")
    memories = sorted(
        {Suite.load().resources(tier, "train", Suite.load().run(run.slug)).mem_mb for run in runs}
    )
    notes = [note for note in [Suite.load().backend_note(tier)] if note]
    return "\n".join([
        *_aligned(lines), "",
        *_aligned([head, *nodes.values()]),
        "peak of a node: weights + optimizer, and the larger of an update (gradients, casts, activations, "
        "head) and of",
        "sampling (casts, kv cache, sampler; or vLLM's engine)",
        "generate peak: of the job that answers the tests with the run's models, one after the other, on its "
        "GPU",
        "", f"{len(runs)} runs of tier {tier}: {Suite.load().tier(tier).about}",
        f"each training job: {train.threads} threads, "
        f"{' to '.join(map(str, memories[:: max(1, len(memories) - 1)]))} MB, "
        f"at most {train.runtime} minutes",
        *notes,
        f"GPU-hours on {gpu.name} ({gpu.gib:g} GiB): {sum(r.gpu_hours for r in runs):.1f}; estimated with "
        f"{_assumptions(runs, gpu)}",
        "the nodes' work in hours: "
        f"{', '.join(f'{part} {hours:.1f}' for part, hours in hours_by_part(runs).items())}",
        f"sent by all nodes of all runs: at most {_size(sum(r.wire_bytes for r in runs))}",
        f"on disk when all are finished: {_size(sum(r.kept_bytes for r in runs))}; while one runs: up to "
        f"{_size(max(r.disk_bytes for r in runs))}",
    ])  # fmt: skip


def hours_by_part(runs: Sequence[RunPlan]) -> dict[str, float]:
    """What the nodes of all runs do, by part. GPU-hours are more where a node waits for a slower one."""
    nodes = [node for run in runs for node in run.nodes]
    found = {field.name: sum(getattr(n.seconds, field.name) for n in nodes) for field in fields(Seconds)}
    found["answers"] = sum(n.answer_seconds for n in nodes)
    found["checkpoints"] = sum(run.saving_seconds for run in runs)
    return {part: seconds / 3600 for part, seconds in found.items()}


def _assumptions(runs: Sequence[RunPlan], gpu: Gpu) -> str:
    backends = {run.config.backend(k) for run in runs for k in range(len(run.nodes))}
    layers = {
        "transformers": f"at least {cost.LAYER_SECONDS * 1e3:g} ms",
        "vllm": f"{cost.VLLM_LAYER_SECONDS * 1e3:g} ms",
    }
    steps = " or ".join(f"{layers[b]} a layer and decoding step of {b}" for b in sorted(backends))
    return (
        f"{cost.EFFICIENCY:.0%} of {gpu.flops / 1e12:.0f} TFLOP/s ({gpu.single / 1e12:.0f} in float32) in "
        f"updates, {steps}, "
        f"completions half as long as they may be, {cost.DISK_RATE / 1e9:g} GB/s of disk; none of it was "
        "measured here"
    )


def as_dict(tier: str, runs: Sequence[RunPlan], gpu: Gpu = cost.GPU) -> dict[str, Any]:
    """The same for programs: sizes in bytes."""

    def one(run: RunPlan) -> dict[str, Any]:
        plain = {k: v for k, v in asdict(run).items() if k != "config"}
        for node, planned in zip(plain["nodes"], run.nodes):
            node["memory"]["peak"] = planned.memory.peak
        return plain

    return {
        "tier": tier, "gpu": asdict(gpu), "assumptions": _assumptions(runs, gpu),
        "runs": [one(run) for run in runs],
        "total": {k: sum(getattr(r, k) for r in runs) for k in ("gpu_hours", "wire_bytes", "kept_bytes")},
        "node_hours": hours_by_part(runs),
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
