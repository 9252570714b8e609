"""GPUs for jobs that share a machine: no two of them are given the same one.

A lease is an flock on a file a GPU. The kernel ends it with its holder, however that dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ftis.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDDEN = ("", "-1", "NoDevFiles")
"""What stands there where the user or Slurm shows no GPU."""
LEASES = Path(tempfile.gettempdir()) / f"ftis-gpus-{os.getuid()}"


@contextlib.contextmanager
def lease(count: int, present: int | None = None, folder: Path = LEASES) -> Iterator[tuple[str, ...]]:
    """Show this process and its children `count` GPUs that no other lease holds, waiting for them if it must.

    Chosen from the `present` ones of this machine (None: as many as torch counts), or from those in
    CUDA_VISIBLE_DEVICES if the user or Slurm has set it: of a list that is too short, all. With a count of 0 none is
    shown. CUDA_VISIBLE_DEVICES is left alone where there is nothing to choose from: no GPU at all, or a Slurm job that
    was granted none. Raises UserError where the machine has GPUs, but not so many.
    """
    given, job = os.environ.get(VISIBLE), os.environ.get("SLURM_JOB_ID")
    if count == 0:
        with _shown(()):  # else it would work on a GPU that another job has leased
            yield ()
        return
    if given is None and job:
        yield ()
        return
    if given is None:
        present = _present() if present is None else present
        if 0 < present < count:
            raise UserError(
                f"{count} GPUs asked for, and this machine has {present}; lower `gpus` under `resources` in the tier's file"
            )
        candidates = [str(k) for k in range(present)]
    else:
        names = dict.fromkeys(name.strip() for name in given.split(","))
        candidates = [name for name in names if name not in HIDDEN]
        count = min(count, len(candidates))
    if not candidates:
        yield ()
        return
    # Slurm may number a job's GPUs from 0, whichever they are: each of its jobs has leases of its own.
    with contextlib.ExitStack() as held:
        devices = _take(count, candidates, folder / (f"slurm-{job}" if job else "machine"), held)
        with _shown(devices):
            yield devices


@contextlib.contextmanager
def _shown(devices: tuple[str, ...]) -> Iterator[None]:
    """CUDA_VISIBLE_DEVICES for the length of a `with` block."""
    given = os.environ.get(VISIBLE)
    os.environ[VISIBLE] = ",".join(devices)
    try:
        yield
    finally:
        if given is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = given


def _present() -> int:
    import torch

    return torch.cuda.device_count()  # asks the driver's library, and so doesn't fix what is visible


def _take(count: int, candidates: list[str], folder: Path, held: contextlib.ExitStack) -> tuple[str, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    waiting = False
    while True:
        # One process chooses at a time, so that two never hold half of what each needs.
        with open(folder / "choosing", "w") as choosing, contextlib.ExitStack() as attempt:
            fcntl.flock(choosing, fcntl.LOCK_EX)
            taken: list[str] = []
            for device in candidates:
                file = folder / device.replace("/", "-")  # a part of a GPU may be named MIG-GPU-.../7/0
                if len(taken) < count and _locked(attempt.enter_context(open(file, "a"))):
                    taken.append(device)
            if len(taken) == count:
                held.enter_context(attempt.pop_all())
                return tuple(taken)
        if not waiting:
            print(
                f"waiting for {count} of the GPUs {', '.join(candidates)}: other jobs hold them",
                file=sys.stderr,
            )
        waiting = True
        time.sleep(0.5)


def _locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
