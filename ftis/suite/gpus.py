"""GPUs for jobs that share a machine: no two of them are given the same one, and none goes on without.

A lease is an flock on a file a GPU. The kernel ends it with its holder, however that dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ftis.errors import UserError
from ftis.locks import locked

log = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDDEN = ("", "-1", "NoDevFiles")
"""What stands there where the user or Slurm shows no GPU."""
LEASES = Path(tempfile.gettempdir()) / f"ftis-gpus-{os.getuid()}"
DRIVERS = {13: 580, 12: 525, 11: 450}
"""Oldest NVIDIA driver for each CUDA, by their first numbers (NVIDIA, CUDA Compatibility, minor version
compatibility)."""


@dataclass(frozen=True)
class Machine:
    """What decides whether torch can compute on a GPU here."""

    usable: int
    """GPUs that torch can use, of those that are shown to it."""
    torch: str
    """Its version."""
    cuda: str | None
    """The CUDA that it is built for; None for a build without."""
    driver: str | None
    """Version of the NVIDIA driver that is loaded; None where none is."""
    error: str | None = None
    """What CUDA says where it doesn't start."""

    @classmethod
    def here(cls) -> Machine:
        """Of this machine. Starts CUDA, so what is visible is fixed from then on."""
        import torch

        usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
        error = None
        if not usable:
            try:
                torch.cuda.init()
            except (AssertionError, RuntimeError) as said:  # AssertionError: a build without CUDA
                error = str(said).splitlines()[0]
        return cls(usable, torch.__version__, torch.version.cuda, _driver(), error)


def _driver(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", file.read_text())
    except OSError:
        return None
    return found[1] if found else None


def no_gpu(count: int, machine: Machine) -> UserError:
    """Why torch sees no GPU on that machine, in an environment like this one, where a job asks for
    `count`."""
    shown, job = os.environ.get(VISIBLE), os.environ.get("SLURM_JOB_ID")
    version = machine.torch.split("+")[0]
    cuda126 = f"pip install torch=={version} --index-url https://download.pytorch.org/whl/cu126"
    needed = DRIVERS.get(int(machine.cuda.split(".")[0]), 0) if machine.cuda else 0
    if job and (shown is None or shown in HIDDEN):
        why = (
            f"Slurm gave its job {job} none; ask for them (gpu, or gres, in "
            "workflow/profiles/slurm/profile.yaml; "
            "srun --gpus-per-task)"
        )
    elif shown in HIDDEN:
        why = f"{VISIBLE} is {shown!r} and hides them; unset it"
    elif machine.cuda is None:
        why = f"this torch is built without CUDA; install one that is, e.g. {cuda126}"
    elif machine.driver is None:
        why = (
            "no NVIDIA driver is loaded; run on a machine with a GPU, and a container with --nv or --gpus all"
        )
    elif int(machine.driver.split(".")[0]) < needed:
        why = (
            f"CUDA {machine.cuda} needs driver {needed} or newer; take a newer driver, or a torch for an "
            "older CUDA "
            f"(cu126 needs {DRIVERS[12]}), e.g. {cuda126}"
        )
    else:
        why = f"CUDA doesn't start ({machine.error}); see what nvidia-smi says"
    built = f"built for CUDA {machine.cuda}" if machine.cuda else "built without CUDA"
    return UserError(
        f"{count} GPU{'s' * (count > 1)} asked for (`gpus` under `resources` in the tier's file), and torch "
        f"sees none: {why}. "
        f"Here: NVIDIA driver {machine.driver or 'none'}, torch {machine.torch}, {built}. To compute on the "
        "CPU all the "
        "same, say `device: cpu` under `node` in the tier's file"
    )


def require_gpu(count: int, machine: Callable[[], Machine] = Machine.here) -> None:
    """Raise UserError where a job asks for GPUs and torch can use none of this machine's."""
    if count and not (facts := machine()).usable:
        raise no_gpu(count, facts)


@contextlib.contextmanager
def lease(
    count: int,
    present: int | None = None,
    folder: Path = LEASES,
    machine: Callable[[], Machine] = Machine.here,
) -> Iterator[tuple[str, ...]]:
    """Show this process and its children `count` GPUs that no other lease holds, waiting for them if it must.

    Chosen from the `present` ones of this machine (None: as many as torch counts), or from those in
    CUDA_VISIBLE_DEVICES if the user or Slurm has set it: of a list that is too short, all. With a count of 0
    none is shown. Raises UserError where the machine has not so many, where there is none to choose from (a
    Slurm job that was granted none, too), and where torch can't use those that were taken; `machine` says
    what there is then.
    """
    given, job = os.environ.get(VISIBLE), os.environ.get("SLURM_JOB_ID")
    if count == 0:
        with _shown(()):  # else it would work on a GPU that another job has leased
            yield ()
        return
    if given is None and job:
        raise no_gpu(count, machine())
    if given is None:
        present = _present() if present is None else present
        if 0 < present < count:
            raise UserError(
                f"{count} GPUs asked for, and this machine has {present}; lower `gpus` under `resources` in "
                "the tier's file"
            )
        candidates = [str(k) for k in range(present)]
    else:
        names = dict.fromkeys(name.strip() for name in given.split(","))
        candidates = [name for name in names if name not in HIDDEN]
    if not candidates:
        raise no_gpu(count, machine())
    count = min(count, len(candidates))
    # Slurm may number a job's GPUs from 0, whichever they are: each of its jobs has leases of its own.
    with contextlib.ExitStack() as held:
        devices = _take(count, candidates, folder / (f"slurm-{job}" if job else "machine"), held)
        with _shown(devices):
            require_gpu(count, machine)
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
                if len(taken) < count and locked(attempt.enter_context(open(file, "a"))):
                    taken.append(device)
            if len(taken) == count:
                held.enter_context(attempt.pop_all())
                return tuple(taken)
        if not waiting:
            log.info("waiting for %s of the GPUs %s: other jobs hold them", count, ", ".join(candidates))
        waiting = True
        time.sleep(0.5)
