"""Leases of GPUs between processes; the number of GPUs is made up, so none is needed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftis.cli import main as cli
from ftis.errors import UserError
from ftis.suite.gpus import VISIBLE, lease

ROOT = Path(__file__).parents[2]
HOLD = """
import os, sys
from pathlib import Path
from ftis.suite.gpus import lease
with lease(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])):
    print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def nobody_has_chosen(monkeypatch):
    for name in (VISIBLE, "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hold(tmp_path):
    """Start a process that leases `count` of `present` GPUs and keeps them until it is ended."""
    started = []

    def start(count, present):
        command = [sys.executable, "-c", HOLD, str(count), str(present), str(tmp_path)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()


def devices(process):
    return process.stdout.readline().strip().split(",")


def test_concurrent_jobs_get_different_gpus_and_the_next_waits(hold):
    jobs = [hold(count, 4) for count in (1, 2, 1)]
    assert sorted(d for job in jobs for d in devices(job)) == ["0", "1", "2", "3"]
    late = hold(2, 4)
    assert "waiting for 2 of the GPUs 0, 1, 2, 3" in late.stderr.readline()
    jobs[1].stdin.close()
    assert len(devices(late)) == 2


def test_a_killed_job_frees_its_gpus(hold):
    first = hold(2, 2)
    assert devices(first) == ["0", "1"]
    second = hold(1, 2)
    assert "waiting for 1" in second.stderr.readline()
    os.kill(first.pid, signal.SIGKILL)
    assert devices(second) == ["0"]


def test_what_the_user_chose_is_shared_out_and_nothing_else(hold, monkeypatch, tmp_path):
    monkeypatch.setenv(VISIBLE, "5,7")
    first, second = hold(1, 8), hold(1, 8)
    assert {*devices(first), *devices(second)} == {"5", "7"}
    # A list of one is no choice, but still somebody's.
    monkeypatch.setenv(VISIBLE, "5")
    third = hold(2, 8)
    assert "waiting for 1 of the GPUs 5" in third.stderr.readline()
    for job in (first, second):
        job.stdin.close()
    assert devices(third) == ["5"]
    for nothing in ("", "-1", "NoDevFiles"):
        monkeypatch.setenv(VISIBLE, nothing)
        with lease(1, 8, tmp_path) as taken:
            assert taken == () and os.environ[VISIBLE] == nothing
    monkeypatch.setenv(VISIBLE, "MIG-GPU-1/7/0")
    with lease(1, 8, tmp_path) as taken:
        assert taken == ("MIG-GPU-1/7/0",)


def test_slurm_jobs_keep_to_what_they_were_granted(hold, monkeypatch, tmp_path):
    # Two jobs of a cluster that numbers each job's GPUs from 0.
    monkeypatch.setenv(VISIBLE, "0,1")
    for job in ("11", "12"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        first, second = hold(1, 8), hold(1, 8)
        assert {*devices(first), *devices(second)} == {"0", "1"}
    monkeypatch.delenv(VISIBLE)
    with lease(1, 8, tmp_path) as taken:
        assert taken == () and VISIBLE not in os.environ, "a job that was granted no GPU takes none"


def test_the_setting_is_put_back(tmp_path):
    with lease(2, 4, tmp_path) as taken:
        assert taken == ("0", "1") and os.environ[VISIBLE] == "0,1"
    assert VISIBLE not in os.environ


@pytest.mark.parametrize("given", [None, "2,3"])
def test_a_job_that_asks_for_no_gpu_sees_none(tmp_path, monkeypatch, given):
    """Else it would work on a GPU that another job has leased."""
    if given:
        monkeypatch.setenv(VISIBLE, given)
    with lease(0, 4, tmp_path) as taken:
        assert taken == () and os.environ[VISIBLE] == ""
    assert os.environ.get(VISIBLE) == given


def test_only_jobs_of_a_tier_lease_or_hide_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv(VISIBLE, "2,3")
    call = ["train", "--tier", "smoke", "--run", "alone-base_small-s42"]
    for arguments, seen in ((call, ""), (["train", "run.yaml"], "2,3")):
        with cli._gpus(cli.parser().parse_args(arguments), "train"):
            assert os.environ[VISIBLE] == seen
    assert os.environ[VISIBLE] == "2,3"


def test_machines_without_gpus_and_with_too_few(tmp_path):
    with lease(1, 0, tmp_path) as taken:
        assert taken == () and VISIBLE not in os.environ
    with (
        pytest.raises(UserError, match="2 GPUs asked for, and this machine has 1; lower `gpus`"),
        lease(2, 1, tmp_path),
    ):
        pass
