"""Asking Slurm whether it would take a workflow's jobs, before any of them is queued."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from typing import Any

from ftis.errors import UserError

OPTIONS = {
    "slurm_partition": "partition",
    "slurm_account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "nodes": "nodes",
    "mem_mb": "mem",
    "runtime": "time",
}
"""sbatch's option for a job's resource, as Snakemake's Slurm plugin passes it."""


def sbatch_options(resources: Mapping[str, Any], threads: int) -> tuple[str, ...]:
    """What sbatch is asked for a job with these Snakemake resources, as the plugin does it."""
    options = [f"--{option}={resources[key]}" for key, option in OPTIONS.items() if resources.get(key)]
    if resources.get("gpu"):
        model = f"{resources['gpu_model']}:" if resources.get("gpu_model") else ""
        options.append(f"--gpus={model}{resources['gpu']}")
        tasks = resources.get("tasks_per_gpu")
        tasks = resources.get("tasks") if tasks is None else tasks
        options += [f"--ntasks-per-gpu={tasks}"] if tasks else []
    else:
        options.append(f"--ntasks={resources.get('tasks') or 1}")
    return (*options, f"--cpus-per-task={threads}", *shlex.split(resources.get("slurm_extra") or ""))


def require_accepted(requests: Mapping[tuple[str, ...], str]) -> None:
    """Raise UserError unless Slurm would take a job with each of the options; the values name who asks for them."""
    for options, name in requests.items():
        asked = _run("sbatch", "--test-only", *options, "--wrap=true")
        if asked.returncode:
            partitions = ", ".join(sorted(set(_run("sinfo", "--noheader", "--format=%R").stdout.split())))
            reason = "; ".join(line.strip() for line in asked.stderr.splitlines() if line.strip())
            raise UserError(
                f"Slurm would not take a {name} job ({' '.join(options)}): {reason}. The partitions here are "
                f"{partitions or 'unknown'}. Partition, account and further flags are in workflow/profiles/slurm/"
                "profile.yaml, a job's GPUs, memory, threads and time under `resources` in its tier's file"
            )


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        raise UserError(
            f"{command[0]}: {error.strerror}; run on a machine that submits to Slurm, or without --profile slurm"
        ) from None
