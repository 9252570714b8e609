"""What lets a killed run go on: a lock, checkpoints, and the metrics file that grows.

Everything lies in RUN/state/, which no workflow rule declares, since declared outputs are deleted before
a job starts. A checkpoint is a folder that appears by one rename and lists the sha256 of its files.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from safetensors.torch import load_file

from ftis.config import KEPT
from ftis.errors import Interrupted, UserError
from ftis.files import write_atomic, write_json
from ftis.locks import locked
from ftis.provenance import sha256
from ftis.runs.tensor_file import save_tensors
from ftis.swarm.state import State
from ftis.swarm.transport import Lost

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 3600.0
"""Seconds that a job waits for another process that trains its run."""
LOOK_S = 0.2
"""Seconds between two looks at whether it has ended."""


@dataclass(frozen=True)
class Checkpoint:
    """A sound checkpoint: its folder, the iteration after which it was made, and who was lost by then."""

    path: Path
    step: int
    lost: Lost
    memory: Mapping[int, dict[str, Any]]
    """What each node knows besides tensors and mail, as JSON."""


@contextlib.contextmanager
def run_lock(folder: Path, wait: bool = False, shared: bool = False) -> Iterator[int]:
    """Hold a folder of a run's state: a second trainer of the same run is told who has it, or with `wait`
    waits for its end, `LONGEST_WAIT_S` at most. Yields the lock's descriptor.

    The kernel frees the lock when its holder dies, however it dies, and all to whom it handed the descriptor.
    `shared`: with others who hold it shared, against those who want it alone.
    """
    busy = f"{folder.parent}: another process trains this run"
    with _lock_file(folder / "lock", busy, wait, fcntl.LOCK_SH if shared else fcntl.LOCK_EX) as handle:
        yield handle.fileno()


@contextlib.contextmanager
def only_writer(path: Path, wait: bool = False) -> Iterator[None]:
    """Write a file or folder alone: another process that does so is told, or with `wait` waits for its end.
    The lock is a file beside it, for as long."""
    lock = path.with_name(f".{path.name}.lock")
    with _lock_file(lock, f"{path}: another process is writing it", wait, fcntl.LOCK_EX):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _lock_file(path: Path, busy: str, wait: bool, kind: int) -> TextIO:
    """The lock's file, open, locked and signed."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = open(path, "a+")  # noqa: SIM115  the caller closes it
        except OSError as error:
            raise UserError(
                f"{path.parent}: can't be written ({error.strerror}); choose another --out"
            ) from None
        try:
            if not locked(handle, kind):
                handle.seek(0)
                since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(os.fstat(handle.fileno()).st_mtime))
                holder = f"{busy} ({handle.read().strip()} since {since})"
                if not wait:
                    raise UserError(f"{holder}; wait for it or stop it")
                _await(handle, kind, holder)
        except UserError:
            handle.close()
            raise
        # The holder may have removed the file at its end: this one would keep nobody out.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), os.stat(path)):
                handle.truncate(0)
                handle.write(f"pid {os.getpid()} on {os.uname().nodename}")
                handle.flush()
                return handle
        handle.close()


def _await(handle: TextIO, kind: int, holder: str) -> None:
    """Wait for a lock until its holder ends. The job keeps its GPU meanwhile, so not for ever."""
    log.info("%s; waiting for its end", holder)
    until = time.monotonic() + LONGEST_WAIT_S
    while not locked(handle, kind):
        if time.monotonic() > until:
            raise Interrupted(
                f"{holder}; it hasn't ended within {LONGEST_WAIT_S / 60:.0f} minutes, and this job would "
                "hold its GPU "
                "for nothing; stop that process, or wait for its end and start this again"
            )
        time.sleep(LOOK_S)


@contextlib.contextmanager
def in_training(folder: Path) -> Iterator[None]:
    """Let `is_training` see that the node whose state is in `folder` has met the others, until this process
    ends."""
    with open(folder / "training", "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # waits for those who look, and they don't stay
        yield


def is_training(folder: Path) -> bool:
    """Whether the node whose state is in `folder` trains, as `in_training` tells."""
    try:
        with open(folder / "training") as handle:
            # Shared: two who look at the same time don't take each other for it.
            return not locked(handle, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def remove_partial(out: Path) -> None:
    """Remove what a killed process was writing when it died. The caller holds the run's lock alone."""
    for path in out.rglob(".*.partial"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def append_metrics(path: Path, line: dict[str, Any]) -> None:
    """Add one JSON line and flush it to disk."""
    with open(path, "a") as handle:
        handle.write(json.dumps(line, allow_nan=False) + "\n")
        handle.flush()
        os.fsync(handle.fileno())


def truncate_metrics(path: Path, last_step: int) -> None:
    """Cut the metrics back to `last_step`, and any half-written line off.

    Raises UserError where an iteration up to it is missing: the run could not be published whole.
    """
    kept = []
    if path.exists():
        for line in path.read_text().splitlines(keepends=True):
            with contextlib.suppress(json.JSONDecodeError):
                if line.endswith("\n") and json.loads(line)["step"] <= last_step:
                    kept.append(line)
    if [json.loads(line)["step"] for line in kept] != list(range(last_step + 1)):
        raise UserError(
            f"{path}: iterations up to {last_step} are missing; remove {path.parent} to start over"
        )
    write_atomic(path, "".join(kept))


def save_checkpoint(folder: Path, recipe: str, state: State) -> None:
    """Write step-NNNNNN: one safetensors file a node, and the messages that wait to be used; each hashed on
    its way."""
    final = folder / f"step-{state.step:06d}"
    partial = folder / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        files = {
            f"node{k}.safetensors": save_tensors(partial / f"node{k}.safetensors", tensors)
            for k, tensors in state.tensors.items()
        }
        for (k, sent, sender), data in state.mail.items():
            name = f"mail-{k}-{sent}-{sender}"
            (partial / name).write_bytes(data)
            files[name] = hashlib.sha256(data).hexdigest()
        write_json(partial / "checkpoint.json", {
            "step": state.step, "recipe": recipe, "lost": dict(state.lost), "memory": dict(state.memory),
            "files": files,
        })  # fmt: skip
        for file in [*partial.iterdir(), partial]:
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
    except BaseException:
        # A disk that is full has then room for the log that says so.
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    for old in checkpoints(folder)[KEPT:]:
        shutil.rmtree(old)


def refuse_other_transport(folder: Path, recipe: str, transport: str) -> None:
    """Raise UserError where this run's state was left by the other transport, which can't be gone on from."""
    others = [*folder.glob("node*")] if transport == "local" else [folder]
    if any(next(sound_checkpoints(other, recipe), None) for other in others):
        other = "processes" if transport == "local" else "local"
        raise UserError(
            f"transport: this run was begun with {other!r}; go on with that, or remove {folder} to start over"
        )


def of_other_settings(folder: Path, recipe: str) -> list[Path]:
    """The checkpoints in `folder` that are of another recipe."""
    found = []
    for path in checkpoints(folder):
        with contextlib.suppress(OSError, ValueError, KeyError):  # damaged: nothing could go on from it
            if json.loads((path / "checkpoint.json").read_text())["recipe"] != recipe:
                found.append(path)
    return found


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, newest first."""
    return sorted(folder.glob("step-*"), reverse=True)


def sound_checkpoints(folder: Path, recipe: str) -> Iterator[Checkpoint]:
    """The checkpoints of this recipe that can be used, newest first.

    A damaged one is passed over with a warning; one of another recipe is ignored.
    """
    for path in checkpoints(folder):
        try:
            facts = json.loads((path / "checkpoint.json").read_text())
            if facts["recipe"] != recipe:
                continue
            for name, digest in facts["files"].items():
                if sha256(path / name) != digest:
                    raise ValueError(f"{name} has changed")
            lost = {int(node): int(step) for node, step in facts.get("lost", {}).items()}
            memory = {int(node): dict(known) for node, known in facts.get("memory", {}).items()}
        except (OSError, ValueError, KeyError) as error:
            log.warning("checkpoint %s is damaged (%s); trying the one before", path, error)
            continue
        yield Checkpoint(path, facts["step"], lost, memory)


def load_checkpoint(checkpoint: Checkpoint) -> State:
    """What a checkpoint keeps."""
    return State(
        checkpoint.step,
        {int(f.stem.removeprefix("node")): load_file(f) for f in checkpoint.path.glob("node*.safetensors")},
        {tuple(map(int, f.name.split("-")[1:])): f.read_bytes() for f in checkpoint.path.glob("mail-*")},
        dict(checkpoint.memory),
        checkpoint.lost,
    )
