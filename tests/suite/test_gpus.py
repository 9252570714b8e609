"""Leases of GPUs between processes; the number of GPUs is made up, so none is needed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftis.cli import main as cli
from ftis.cli import options
from ftis.errors import UserError
from ftis.suite.gpus import VISIBLE, Machine, _driver, lease, require_gpu

ROOT = Path(__file__).parents[2]
HOLD = """
import os, sys
from pathlib import Path
from ftis import logs
from ftis.suite.gpus import Machine, lease
logs.show()
machine = Machine(int(sys.argv[2]), "2.13.0+cu130", "13.0", "580.65")
with lease(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), lambda: machine):
    print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.read()
"""


NEW = Machine(8, "2.13.0+cu130", "13.0", "580.65.06")


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
        refused = pytest.raises(
            UserError, match=f"CUDA_VISIBLE_DEVICES is '{nothing}' and hides them; unset it"
        )
        with refused, lease(1, 8, tmp_path, lambda: NEW):
            pass
    monkeypatch.setenv(VISIBLE, "MIG-GPU-1/7/0")
    with lease(1, 8, tmp_path, lambda: NEW) as taken:
        assert taken == ("MIG-GPU-1/7/0",)


def test_slurm_jobs_keep_to_what_they_were_granted(hold, monkeypatch, tmp_path):
    # Two jobs of a cluster that numbers each job's GPUs from 0.
    monkeypatch.setenv(VISIBLE, "0,1")
    for job in ("11", "12"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        first, second = hold(1, 8), hold(1, 8)
        assert {*devices(first), *devices(second)} == {"0", "1"}
    monkeypatch.delenv(VISIBLE)
    refused = pytest.raises(UserError, match=r"Slurm gave its job 12 none; ask for them \(gpu, or gres, in")
    with refused, lease(1, 8, tmp_path, lambda: NEW):  # a job that was granted no GPU takes none
        pass


def test_the_setting_is_put_back(tmp_path):
    with lease(2, 4, tmp_path, lambda: NEW) as taken:
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


def test_only_jobs_of_a_tier_lease_or_hide_gpus(monkeypatch):
    monkeypatch.setenv(VISIBLE, "2,3")
    call = ["train", "--tier", "smoke", "--run", "alone-base_small-s42"]
    for arguments, seen in ((call, ""), (["train", "run.yaml"], "2,3")):
        given = cli.parser().parse_args(arguments)
        with options.gpus(given, "train", options.grid_run(cli.parser().parse_args(call))):
            assert os.environ[VISIBLE] == seen
    assert os.environ[VISIBLE] == "2,3"


def test_machines_with_too_few(tmp_path):
    refused = pytest.raises(UserError, match="2 GPUs asked for, and this machine has 1; lower `gpus`")
    with refused, lease(2, 1, tmp_path, lambda: NEW):
        pass


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (
            ("2.13.0+cu130", "13.0", "550.54.15"),
            r"CUDA 13.0 needs driver 580 or newer; .* \(cu126 needs 525\), e.g. pip install torch==2.13.0 "
            r".*/cu126. "
            + r"Here: NVIDIA driver 550.54.15, torch 2.13.0\+cu130, built for CUDA 13.0.",
        ),
        (("2.13.0+cpu", None, "580.65"), "this torch is built without CUDA; install one that is, e.g. pip "
                                         "install"),
        (("2.13.0", "12.6", None), "no NVIDIA driver is loaded; .*Here: NVIDIA driver none, torch 2.13.0, "
                                   "built for CUDA 12.6"),
        (("2.13.0", "12.8", "550.54"), r"CUDA doesn't start \(no CUDA-capable device\); see what nvidia-smi "
                                       r"says"),
    ],
)  # fmt: skip
def test_why_torch_sees_no_gpu_and_what_to_do(facts, told, tmp_path):
    machine = Machine(0, *facts, "no CUDA-capable device")
    with pytest.raises(UserError, match=f"^1 GPU asked for .* torch sees none: {told}") as said:
        require_gpu(1, lambda: machine)
    assert str(said.value).endswith("say `device: cpu` under `node` in the tier's file")
    assert said.value.exit_code == 2
    # Seen by the driver's library, and leased, but of no use to this torch: the lease says so, too.
    with pytest.raises(UserError, match=told), lease(1, 2, tmp_path, lambda: machine):
        pass
    require_gpu(0, lambda: machine)
    require_gpu(1, lambda: NEW)
    assert VISIBLE not in os.environ


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC "
         "2024\n", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release "
         "Build\n", "570.124.06"),
        (None, None),
    ],
)  # fmt: skip
def test_the_driver_is_read_from_the_kernel(tmp_path, text, version):
    file = tmp_path / "version"
    if text:
        file.write_text(text)
    assert _driver(file) == version


def test_this_machine_is_what_torch_says():
    import torch

    here = Machine.here()
    assert (here.torch, here.cuda, here.usable) == (torch.__version__, torch.version.cuda, 0)
    assert here.error, "CUDA says why it doesn't start"


@pytest.mark.parametrize(
    "command",
    [
        ["train", "--run", "alone-base_small-s42"],
        ["train", "--run", "alone-base_small-s42", "--node", "0", "--transport", "processes"],
        ["job", "generate", "--run", "start-base_small-s42"],
        ["job", "warm-start", "--model", "base_small", "--seed", "42", "--out", "OUT"],
    ],
)
def test_a_job_of_a_gpu_tier_ends_at_once_without_one(command, tmp_path, monkeypatch, capsys):
    """On this machine as it is: the tests hide its GPUs. The tier `small` asks for one a job."""
    monkeypatch.setenv(VISIBLE, "")
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command, "--tier", "small"]) == 2
    assert re.match(
        "error: 1 GPU asked for .*, and torch sees none: .*`device: cpu`", capsys.readouterr().err
    )
    assert not list(tmp_path.rglob("*")), "nothing is left behind"


def test_a_gpu_tier_computes_on_the_cpu_where_it_says_so(monkeypatch):
    from dataclasses import replace

    arguments = cli.parser().parse_args(["train", "--tier", "small", "--run", "size_base-tis-vertical-s42"])
    config = options.grid_run(arguments)
    one, other = config.nodes
    on_cpu = replace(one, device="cpu"), replace(other, device="cpu")
    for nodes, count in ((config.nodes, 1), ((one, on_cpu[1]), 1), (on_cpu, 0)):
        assert options.gpu_count(arguments, "train", replace(config, nodes=nodes)) == count
