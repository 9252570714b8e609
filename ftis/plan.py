"""What a grid will run, before it runs: completions, upper bounds on tokens and on bytes exchanged."""

from __future__ import annotations

from collections.abc import Sequence

from ftis import grid
from ftis.config import RunConfig
from ftis.message import BYTES_A_COMPLETION, BYTES_A_MESSAGE, BYTES_A_TOKEN
from ftis.swarm import assignment


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


def plan(tier: str, runs: Sequence[grid.Run]) -> str:
    """A table of runs, and their sum, as text."""
    lines = [["run", "nodes", "iterations", "B x G", "completions a node", "sent at most"]]
    for run in runs:
        config = grid.resolve(tier, run)
        own = "/".join(str(completion_count(config, k) * config.iterations) for k in range(len(config.nodes)))
        lines.append([
            run.slug, " + ".join(n.label or n.name for n in config.nodes), str(config.iterations),
            f"{config.prompts} x {config.group_size}", own, _size(most_bytes(config)),
        ])  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    train = grid.resources(tier, "train")
    total = sum(most_bytes(grid.resolve(tier, run)) for run in runs)
    return "\n".join([
        *text, "",
        f"{len(runs)} runs of tier {tier}: {grid.load_tier(tier).about}",
        f"each training job: {train.threads} threads, {train.mem_mb} MB, {train.gpus} GPUs, at most {train.runtime} minutes",
        f"sent by all nodes of all runs: at most {_size(total)}",
    ])  # fmt: skip


def _size(count: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
