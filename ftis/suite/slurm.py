"""Asking Slurm whether it would take a workflow's jobs, and show their ends, before any of them is queued.

What a job is submitted with is Snakemake's Slurm plugin's own: its checks and its command are used.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

from ftis.errors import UserError

LONGEST_LOOK_S = 180
"""Seconds that the plugin lets pass between two looks at its jobs, at most."""
PROFILE = "workflow/profiles/slurm/profile.yaml"


def sbatch_command(job: Any, settings: Any) -> str:
    """The shell command that the plugin, with its `settings`, would submit a Snakemake job with, but for what
    is run.

    Raises UserError for resources that the plugin refuses.
    """
    from snakemake.exceptions import WorkflowError
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string
    from snakemake_executor_plugin_slurm.validation import validate_slurm_extra

    account, partition = (str(job.resources.get(f"slurm_{name}") or "") for name in ("account", "partition"))
    account = account.replace(",", " ").split()[:1]  # of several, the plugin takes the first
    names = {
        "run_uuid": "ftis",
        "slurm_logfile": "/dev/null",
        "comment_str": "",
        "account": f"-A {shlex.quote(account[0])}" if account else "",
        "partition": f"-p {shlex.quote(partition)}" if partition else "",
        "workdir": "",
    }
    try:
        validate_slurm_extra(job)
        return get_submit_command(job, names, settings=settings) + set_gres_string(job)
    except WorkflowError as error:
        raise UserError(
            f"a {job.rule.name} job can't be submitted: {error} Rows for partition, account, qos, "
            "constraint, gres and "
            f"gpu_model are in {PROFILE}; GPUs, memory, threads and time under `resources` in the tier's file"
        ) from None


def require_accepted(jobs: Iterable[Any], settings: Any) -> None:
    """Raise UserError unless Slurm would take each of these Snakemake jobs; jobs that ask for the same are
    one question."""
    commands: Mapping[str, str] = {sbatch_command(job, settings): job.rule.name for job in jobs}
    for command, rule in commands.items():
        asked = _run(f"{command} --test-only --wrap=true")
        if asked.returncode:
            partitions = ", ".join(sorted(set(_run("sinfo --noheader --format=%R").stdout.split())))
            reason = "; ".join(line.strip() for line in asked.stderr.splitlines() if line.strip())
            raise UserError(
                f"Slurm would not take a {rule} job ({command}): {reason}. The partitions here are "
                f"{partitions or 'unknown'}. Partition, account and further flags are in {PROFILE}, a job's "
                "GPUs, "
                "memory, threads and time under `resources` in its tier's file"
            )


def require_ends_seen(settings: Any) -> None:
    """Raise UserError where Slurm may forget a job before the plugin, with its `settings`, has seen that it
    ended: the plugin would wait for it for ever."""
    from snakemake_executor_plugin_slurm.job_status_query import get_min_job_age

    age, first_look = get_min_job_age(), settings.init_seconds_before_status_checks
    # What the plugin decides, too.
    asks_sacct = settings.status_command == "sacct" or age is None or age < 3 * first_look
    if asks_sacct and shutil.which("sacct"):
        asked = _run("sacct --noheader --allocations")
        if asked.returncode == 0:
            return
        without = f", and sacct has nothing to say ({asked.stderr.strip()})"
    elif age is None or age == 0 or age >= LONGEST_LOOK_S:  # 0: Slurm forgets none
        return
    else:
        without = ""
    raise UserError(
        f"Slurm forgets a job {age} s after its end (MinJobAge){without}; Snakemake looks every {first_look} "
        "to "
        f"{LONGEST_LOOK_S} s and would wait for ever for one that it missed. Ask for MinJobAge=300, Slurm's "
        "default, in "
        f"slurm.conf, or for accounting; with a MinJobAge of {LONGEST_LOOK_S} and more, set "
        f"slurm-init-seconds-before-status-checks in {PROFILE} to a third of it at most"
    )


def translate(folder: str) -> None:
    """Let this process and its children call the `squeue` and `sacct` of that folder, which call Slurm's."""
    path = os.environ["PATH"]
    os.environ.update(FTIS_SLURM_PATH=path, PATH=f"{os.path.abspath(folder)}{os.pathsep}{path}")


def _run(command: str) -> subprocess.CompletedProcess[str]:
    """A shell command, as the plugin runs it."""
    name = command.split(maxsplit=1)[0]
    if shutil.which(name) is None:
        raise UserError(
            f"{name}: not found; run on a machine that submits to Slurm, or without --profile slurm"
        )
    return subprocess.run(command, shell=True, check=False, capture_output=True, text=True)
