"""A throw-away Slurm on this machine: two nodes, each with fake GPUs. Root, and Debian's slurm-wlm and munge.

    python -m tests.slurm.cluster COMMAND ...     runs a command inside one

It lives in a folder of its own, on ports of its own, and touches nothing outside: commands find it by
SLURM_CONF, and jobs by an `srun` that comes first in their PATH, since Snakemake drops SLURM_CONF before it
starts a step.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

NODES = ("n1", "n2")
GPUS = 2
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "scontrol", "sinfo", "scancel")

# Without accounting, as the profile asks squeue. A lost node is noticed within seconds, and a requeued job
# starts again as soon as its old credential has expired (cred_expire).
CONFIG = """\
ClusterName=ftis
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
MinJobAge=600
KillWait=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdTimeout={patience}
MessageTimeout=10
"""
NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=16000 Gres=gpu:{gpus}\n"
# The profile's partitions, two whose jobs are preempted, named after what becomes of them, and one whose jobs
# preempt.
PARTITIONS = """\
PartitionName=cpu Nodes=ALL State=UP PreemptMode=OFF Default=YES
PartitionName=gpu Nodes=ALL State=UP PreemptMode=OFF
PartitionName=requeue Nodes=ALL State=UP PreemptMode=REQUEUE
PartitionName=cancel Nodes=ALL State=UP PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL State=UP PreemptMode=OFF PriorityTier=10
"""


def missing() -> str | None:
    """Why no cluster can be started here, or None."""
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(absent)} not installed (Debian: slurm-wlm, munge)" if absent else None


@dataclass
class Cluster:
    """A running Slurm. `environment` is what commands need to reach it."""

    folder: Path
    patience: int = 10
    """Seconds until a node that doesn't answer counts as lost."""
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        programs = self.folder / "bin"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SNAKEMAKE", "CUDA"))},
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }

    def call(self, *command: str | Path, **options) -> str:
        """Run a command against the cluster; returns what it printed, raises where it fails."""
        done = subprocess.run(
            [*map(str, command)], env=self.environment, capture_output=True, text=True, check=False, **options
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self) -> None:
        self._write()
        self.call(
            "munged", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={self.folder}/munge.key",
            f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munge.seed", "--num-threads=1",
        )  # fmt: skip
        self.call("slurmctld")
        for name in NODES:
            self.start_node(name)
        wait_for(
            lambda: (
                self.call("sinfo", "-h", "-N", "-p", "cpu", "-t", "idle", "-o", "%N").split() == list(NODES)
            ),
            30,
        )

    @contextlib.contextmanager
    def configured(self, old: str, new: str) -> Iterator[None]:
        """With another line in slurm.conf for the length of a `with` block."""
        path = self.folder / "slurm.conf"
        text = path.read_text()
        assert text.count(f"{old}\n") == 1, f"{old} isn't a line of slurm.conf"
        try:
            path.write_text(text.replace(f"{old}\n", f"{new}\n"))
            self.call("scontrol", "reconfigure")
            yield
        finally:
            path.write_text(text)
            self.call("scontrol", "reconfigure")

    def start_node(self, name: str) -> None:
        self.call("slurmd", "-N", name)

    def lose_node(self, name: str) -> None:
        """Kill a node's daemon: nobody answers for it any more, while what runs on it goes on unseen."""
        os.kill(int((self.folder / f"slurmd.{name}.pid").read_text()), signal.SIGKILL)

    def stop(self) -> None:
        """End the jobs, then everything that was started with this cluster's environment."""
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            self.call("scancel", "--user=root", timeout=10)
            wait_for(lambda: not self.call("squeue", "-h", "-t", "R,CG", timeout=10), 10)
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _processes(self) -> list[int]:
        mark, found = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return found

    def _write(self) -> None:
        devices = self.folder / "gpu"
        for folder in (
            devices,
            self.folder / "bin",
            self.folder / "state",
            *(self.folder / f"spool.{n}" for n in NODES),
        ):
            folder.mkdir()
        for k in range(GPUS):
            # Slurm sets CUDA_VISIBLE_DEVICES for character devices only; this one is /dev/null.
            os.mknod(devices / f"fake{k}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        controller_port, *ports = _free_ports(1 + len(NODES))
        nodes = "".join(NODE.format(name=n, port=p, gpus=GPUS) for n, p in zip(NODES, ports))
        config = CONFIG.format(folder=self.folder, controller_port=controller_port, patience=self.patience)
        (self.folder / "slurm.conf").write_text(config + nodes + PARTITIONS)
        (self.folder / "gres.conf").write_text(f"Name=gpu File={devices}/fake[0-{GPUS - 1}]\n")
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        step = self.folder / "bin" / "srun"
        step.write_text(f'#!/bin/sh\nSLURM_CONF={self.folder}/slurm.conf exec {shutil.which("srun")} "$@"\n')
        step.chmod(0o755)


@contextlib.contextmanager
def cluster(**settings) -> Iterator[Cluster]:
    """A cluster for the length of a `with` block."""
    # Not under pytest's folder: a socket's path may have 107 characters only.
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        started = Cluster(Path(folder), **settings)
        try:
            started.start()
            yield started
        finally:
            started.stop()


def wait_for(condition, seconds: float, every: float = 0.1):
    """What `condition` returns once it is true; RuntimeError after `seconds`."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > until:
            raise RuntimeError(f"not within {seconds:.0f} s")
        time.sleep(every)
    return found


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def main(command: list[str]) -> int:
    if reason := missing():
        print(f"no Slurm here: {reason}", file=sys.stderr)
        return 2
    with cluster() as started:
        return subprocess.run(command, env=started.environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
