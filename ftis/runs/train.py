"""The life of a run on disk: what is there, going on from it, each iteration kept, the models published."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ftis.config import RunConfig, recipe_hash
from ftis.provenance import sha256
from ftis.runs import state
from ftis.runs.evidence import save_evidence
from ftis.runs.folder import RunFolder
from ftis.runs.progress import Progress
from ftis.runs.trackers import Tracking
from ftis.swarm.loop import Swarm
from ftis.swarm.metrics import Line

log = logging.getLogger(__name__)


def train(config: RunConfig, out: str | Path, job: bool = False) -> RunFolder:
    """Run `config` in the folder `out`, going on from its newest checkpoint if there is one: all nodes in
    this process, or with `transport: processes` a process for each. The result is the same.

    Another process that trains it, or checkpoints of other settings, are a UserError. A `job` of the workflow
    waits for the one and starts over the others, since Snakemake asks for it where a recipe has changed.
    Writes config.yaml at the start, and at the end node{k}/, metrics.jsonl and, last of all, final.json.

    >>> quick = {"validation.data": None, "iterations": 1, "prompts": 2, "group_size": 2}
    >>> run = ftis.load_run("examples/pair.yaml", quick)
    >>> ftis.train(run, "results/pair").final["seed"]
    42
    """
    if config.transport == "processes" and len(config.nodes) > 1:
        from ftis.runs.processes.launch import launch

        return launch(config, out, job)
    return train_here(config, out, job)


def train_here(config: RunConfig, out: str | Path, job: bool = False) -> RunFolder:
    """`train` with all nodes in this process."""
    folder = RunFolder(out)
    fresh = not folder.path.exists()
    with folder.locked(wait=job):
        if not claimed(folder, config, folder.path, "local", job):
            return folder
        with contextlib.ExitStack() as undo:
            if fresh:  # nothing was trained: leave nothing behind
                undo.callback(folder.remove)
            tracking = Tracking(config, folder)
            swarm = Swarm(config)
            undo.pop_all()
        folder.write_config(config)
        checkpoint = next(state.sound_checkpoints(folder.state, recipe_hash(config)), None)
        done = begin(swarm, folder.state, checkpoint)
        with tracking, Progress(config.name, config.iterations, done) as progress:
            for line in kept_iterations(swarm, folder.state, done):
                tracking.log(line)
                progress.show(line.step, {n.label: n.reward for n in line.nodes})
        metrics = (folder.state / "metrics.jsonl").read_text()
        folder.publish(config, save(swarm, folder), metrics, {})
    return folder


def claimed(folder: RunFolder, config: RunConfig, kept: Path, transport: str, job: bool) -> bool:
    """Make the folder ready for training `config`; False where it is finished. The caller holds the lock of
    `kept`, in which only it writes."""
    if folder.is_done(config):
        return False
    folder.clear_for(config, transport, job)
    state.remove_partial(kept)
    if config.threads:
        torch.set_num_threads(config.threads)
    return True


def begin(swarm: Swarm, kept: Path, checkpoint: state.Checkpoint | None) -> int:
    """Take up a checkpoint, or start; the number of iterations that are done. `kept` holds the checkpoints
    and the metrics: what is newer than the checkpoint, or of other settings, is removed."""
    for node in swarm.nodes:
        node.explain = partial(save_evidence, kept / "nonfinite")
    metrics = kept / "metrics.jsonl"
    for path in state.checkpoints(kept):
        if checkpoint is None or path.name > checkpoint.path.name:
            shutil.rmtree(path)
    if checkpoint is None:
        state.truncate_metrics(metrics, -1)
        state.append_metrics(metrics, swarm.before().as_dict())
        return 0
    log.info("%s: going on after iteration %d", kept.parent, checkpoint.step)
    swarm.load_state(state.load_checkpoint(checkpoint))
    state.truncate_metrics(metrics, checkpoint.step)
    return checkpoint.step


def kept_iterations(swarm: Swarm, kept: Path, done: int) -> Iterator[Line]:
    """The iterations after the first `done`, each kept in `kept`."""
    config = swarm.config
    for line in swarm.iterations(done):
        state.append_metrics(kept / "metrics.jsonl", line.as_dict())
        if line.step % config.checkpoint_every == 0 and line.step < config.iterations:
            state.save_checkpoint(kept, recipe_hash(config), swarm.state(line.step))
        yield line


def save(swarm: Swarm, folder: RunFolder) -> list[dict[str, Any]]:
    """Write the nodes' models; what final.json says of each."""
    saved = []
    for node in swarm.nodes:
        path = folder.path / f"node{node.index}"
        shutil.rmtree(path, ignore_errors=True)
        node.policy.save(path)
        saved.append({
            "node": node.index, "name": node.settings.name, "label": node.label,
            "path": path.name, "sha256": sha256(path),
            "distrusted": [
                {"node": k, "name": swarm.config.nodes[k].name, "iteration": first}
                for k, first in sorted(node.inbox.distrusted.items())
            ],
        })  # fmt: skip
    return saved
