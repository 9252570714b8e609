"""What Slurm is asked beforehand and how its answers are put, with commands that are made up; tests/slurm has
a real one."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from ftis.errors import UserError
from ftis.suite import slurm

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """Puts a command into PATH that prints a text and ends with a code."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def put(name, text="", code=0):
        to = ">&2" if code else ""
        (tmp_path / name).write_text(f"#!/bin/sh\ncat {to} <<'END'\n{text}\nEND\nexit {code}\n")
        (tmp_path / name).chmod(0o755)

    return put


@pytest.mark.parametrize(
    ("age", "first", "accounting", "told"),
    [
        (300, 60, False, None),  # Slurm's and the profile's
        (180, 60, False, None),
        (0, 60, True, None),  # 0: nothing is ever forgotten; the plugin asks sacct all the same
        (100, 60, True, None),  # the plugin asks sacct
        (100, 60, False, r"100 s after its end \(MinJobAge\), and sacct has nothing to say \(disabled\)"),
        (100, 10, False, "100 s after its end"),  # the plugin asks squeue, and comes late
        (300, 120, False, "nothing to say.*slurm-init-seconds-before-status-checks in .* to a third"),
    ],
)
def test_ends_of_jobs_must_be_seen(answer, age, first, accounting, told):
    answer("scontrol", f"MinJobAge               = {age} sec")
    answer("sacct", *([] if accounting else ["disabled", 1]))
    settings = SimpleNamespace(status_command="squeue", init_seconds_before_status_checks=first)
    if told is None:
        slurm.require_ends_seen(settings)
    else:
        with pytest.raises(UserError, match=told):
            slurm.require_ends_seen(settings)


def test_commands_that_are_not_there_are_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="^sbatch: not found; run on a machine that submits to Slurm"):
        slurm._run("sbatch --test-only")


@pytest.mark.parametrize("name", ["squeue", "sacct"])
def test_the_plugin_is_told_states_that_it_knows(answer, name):
    answer(name, "1|PREEMPTED\n2|RUNNING\n3|CANCELLED by 1000\n4|COMPLETED")
    slurm.translate(str(SCRIPTS / "slurm"))
    said = subprocess.run([name, "--states=all"], capture_output=True, text=True, check=True).stdout
    assert said == "1|CANCELLED\n2|RUNNING\n3|CANCELLED\n4|COMPLETED\n"
    answer(name, "down", 3)
    assert subprocess.run([name], capture_output=True, check=False).returncode == 3


def attempt(log, number, *command, **environment):
    return subprocess.run(
        [SCRIPTS / "job", log, str(number), *command], env=os.environ | environment, check=False
    ).returncode


def test_a_job_s_log_keeps_all_attempts_and_bad_input_is_not_tried_again(tmp_path):
    log = tmp_path / "run.log"
    assert attempt(log, 1, "sh", "-c", "echo killed; exit 137") == 137
    log.unlink()  # as Snakemake does before each attempt
    assert attempt(log, 2, "sh", "-c", "echo bad input >&2; exit 2", SLURM_JOB_ID="7") == 2
    assert attempt(log, 3, "sh", "-c", "echo never") == 2
    first, _, second, _, third, why = log.read_text().splitlines()
    assert first.startswith("=== ") and ": attempt 1 on " in first
    assert second.endswith(", Slurm job 7") and ": attempt 2 on " in second and ": attempt 3 on " in third
    assert "killed" in log.read_text() and "bad input" in log.read_text() and "never" not in log.read_text()
    assert why.startswith("not tried again: the error above is for you to mend")
    # The next call of Snakemake begins with 1 again.
    assert attempt(log, 1, "sh", "-c", "echo mended") == 0
    assert not (tmp_path / "run.refused").exists() and log.read_text().endswith("mended\n")
