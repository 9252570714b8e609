"""The workflow on a real Slurm: one machine that plays two nodes, with GPUs that are files.

The figure is of the smoke tier and made from nothing; the other tests go on from its warm start, with a longer run.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ftis.config import to_dict
from ftis.provenance import sha256
from ftis.train import train
from tests.slurm.cluster import NODES, cluster, missing, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(missing()), reason=f"no Slurm here: {missing()}")]

ROOT = Path(__file__).parents[2]
RUN = "alone-base_small-s42"
PATIENCE = 240
"""Seconds that anything here may take; on a quiet machine all takes less than a quarter of it."""


@pytest.fixture(scope="module")
def slurm():
    with cluster() as started:
        yield started


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of this checkout, without results."""
    folder = tmp_path_factory.mktemp("slurm") / "checkout"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\0"
    ):
        source = ROOT / name
        if name and not name.startswith("paper_figures/") and os.path.lexists(source):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="module")
def snakemake(slurm, checkout):
    """Start `snakemake --profile slurm` in the checkout; the process's output is in its file."""
    started = []

    def start(*arguments, **environment):
        output = checkout.parent / f"snakemake{len(started)}.txt"
        command = [sys.executable, "-m", "snakemake", "--profile", "slurm"]
        # Only how soon a job's end is noticed.
        command += ["--slurm-init-seconds-before-status-checks", "2", *arguments]
        with open(output, "w") as file:
            process = subprocess.Popen(
                command,
                cwd=checkout,
                env=slurm.environment | environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        process.output = output
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def finish(process):
    """What it printed, once it has ended well."""
    code = process.wait(PATIENCE)
    printed = process.output.read_text()
    assert code == 0, printed
    return printed


@pytest.fixture(scope="module")
def figure(snakemake, checkout):
    """A figure of the smoke tier: three runs of two models, which share a warm start."""
    target = "paper_figures/smoke/fig8.csv"
    printed = finish(snakemake("--config", "tier=smoke", "--", target))
    return checkout / target, printed


@pytest.fixture(scope="module")
def reference(figure, checkout):
    """A run of a tier whose jobs want both GPUs of a node, trained without Slurm and without a break."""
    tier = yaml.safe_load((checkout / "workflow/config/tiers/smoke.yaml").read_text())
    tier["models"] = {"base_small": {"label": "XS base", "model": "results/smoke/models/base_small-s42"}}
    tier["run"] |= {"iterations": 10, "checkpoint_every": 1, "validation": {}}
    tier["resources"]["train"] = {"mem_mb": 1500, "runtime": 10, "gpus": 2}
    (checkout / "workflow/config/tiers/long.yaml").write_text(yaml.safe_dump(tier))
    command = [
        sys.executable,
        "-m",
        "ftis.cli",
        "train",
        "--tier",
        "long",
        "--run",
        RUN,
        "--out",
        "reference",
    ]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True, timeout=PATIENCE)
    return checkout / "reference"


def outcome(run):
    """What a run came to: its metrics without the clock, and its weights."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for timed in (line, *line["nodes"]):
            timed.pop("seconds", None)
    return lines, sha256(run / "node0" / "model.safetensors")


def holder(run):
    """Process id of the trainer that holds a run's lock."""
    lock = run / "state" / "lock"
    found = re.match(r"pid (\d+) on", lock.read_text()) if lock.exists() else None
    return int(found[1]) if found else None


def trained(run, step):
    """Waits until a run has a checkpoint of that iteration or a later one."""
    wait_for(
        lambda: any(p.name >= f"step-{step:06d}" for p in (run / "state").glob("step-*")), PATIENCE, 0.02
    )


def test_a_figure_from_nothing(figure):
    path, printed = figure
    assert path.stat().st_size > 0 and path.with_suffix(".pdf").stat().st_size > 0
    assert len(re.findall("has been submitted with SLURM jobid", printed)) == 4, "a warm start and three runs"


@pytest.mark.long
def test_the_whole_smoke_tier(figure, snakemake, checkout):
    process = snakemake("--config", "tier=smoke")
    assert process.wait(3600) == 0, process.output.read_text()
    drawn = checkout / "paper_figures" / "smoke"
    expected = [f"fig{n}.{end}" for n in range(1, 13) for end in ("pdf", "png", "csv")]
    assert [
        name
        for name in [*expected, "table1.csv", "table2.csv", "claims.csv"]
        if not (drawn / name).stat().st_size
    ] == []
    assert (checkout / "results/smoke/report.html").stat().st_size > 0


def test_a_killed_job_goes_on_from_its_state(slurm, snakemake, checkout, reference):
    run = checkout / "results" / "long" / "runs" / RUN
    process = snakemake("--config", "tier=long", "--", f"results/long/runs/{RUN}/final.json")
    trained(run, 3)
    first = holder(run)
    # The job asks for its GPUs as generic resources, and sees those that Slurm gives it.
    job = slurm.call("squeue", "-h", "-t", "R", "-o", "%A").strip()
    assert re.search(r"TresPerJob=gres:gpu:2\b", slurm.call("scontrol", "show", "job", "-d", job))
    environment = Path(f"/proc/{first}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=0,1" in environment
    os.kill(first, signal.SIGKILL)
    printed = finish(process)
    assert "Trying to restart job" in printed
    log = (checkout / f"results/long/logs/train/{RUN}.log").read_text()
    assert re.search(r"going on after iteration [3-9]", log), log
    assert holder(run) != first and outcome(run) == outcome(reference)


def test_a_lost_node_does_not_train_twice(slurm, snakemake, checkout, reference):
    run = checkout / "results" / "long" / "runs" / RUN
    shutil.rmtree(run, ignore_errors=True)
    process = snakemake("--config", "tier=long", "--", f"results/long/runs/{RUN}/final.json")
    trained(run, 3)
    first = holder(run)
    node = slurm.call("squeue", "-h", "-t", "R", "-o", "%N").strip()
    # Nobody hears of the node any more, but its trainer lives, slowly.
    os.kill(first, signal.SIGSTOP)
    slurm.lose_node(node)
    wait_for(lambda: slurm.call("sinfo", "-h", "-N", "-n", node, "-o", "%T").startswith("down"), 60)
    log = checkout / f"results/long/logs/train/{RUN}.log"
    wait_for(
        lambda: f"trains this run (pid {first} on" in log.read_text() if log.exists() else False, PATIENCE
    )
    again = slurm.call("squeue", "-h", "-t", "R", "-o", "%N").strip()
    assert {node, again} == set(NODES)
    assert holder(run) == first
    os.kill(first, signal.SIGCONT)
    finish(process)
    assert outcome(run) == outcome(reference)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (["--default-resources", "slurm_partition=nope"], "invalid partition specified: nope"),
        (
            ["--set-resources", "train:gpu=3"],
            r"a train job \(.*--gpus=3.*Requested node configuration is not",
        ),
    ],
)
def test_what_the_cluster_has_not_is_said_before_anything_is_queued(slurm, snakemake, changed, reason):
    before = slurm.call("squeue", "-h", "--states=all", "-o", "%A")
    process = snakemake("--config", "tier=tiny", *changed, "--", "paper_figures/tiny/fig8.csv")
    assert process.wait(PATIENCE) != 0
    printed = process.output.read_text()
    assert re.search(f"{reason}.*The partitions here are cpu, gpu", printed), printed
    assert "Traceback" not in printed and "tiny: making" not in printed
    assert slurm.call("squeue", "-h", "--states=all", "-o", "%A") == before


def test_what_compute_nodes_could_not_reach_is_said_before_anything_is_queued(slurm, snakemake, tmp_path):
    before = slurm.call("squeue", "-h", "--states=all", "-o", "%A")
    process = snakemake("--", "results/small/runs/alone-base_small-s42/final.json", HF_HOME=str(tmp_path))
    assert process.wait(PATIENCE) != 0
    printed = process.output.read_text()
    assert re.search(
        r"HuggingFaceTB/SmolLM2-135M-Instruct.*snakemake -c1 fetch --config tier=small", printed
    ), printed
    assert "Traceback" not in printed
    assert slurm.call("squeue", "-h", "--states=all", "-o", "%A") == before


def test_two_tasks_on_two_nodes_talk(slurm):
    program = """
import os, torch, torch.distributed as dist
rank = int(os.environ["SLURM_PROCID"])
dist.init_process_group("gloo", init_method=os.environ["MEETING"], rank=rank, world_size=int(os.environ["SLURM_NTASKS"]))
both = torch.tensor([10.0 ** rank])
dist.all_reduce(both)
print(os.environ["SLURMD_NODENAME"], int(both))
"""
    command = [
        "srun",
        "--nodes=2",
        "--ntasks=2",
        "--partition=cpu",
        f"--export=ALL,MEETING=file://{slurm.folder}/meeting",
    ]
    printed = slurm.call(*command, sys.executable, "-c", program, timeout=PATIENCE)
    assert sorted(printed.splitlines()) == [f"{node} 11" for node in NODES]


def test_a_task_a_node_is_the_same_run_as_in_one_process(slurm, make_config, tmp_path):
    config = make_config(iterations=2, prompts=4, group_size=4)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(to_dict(config)))
    train(config, tmp_path / "whole")
    command = [
        "srun",
        "--nodes=2",
        "--ntasks=2",
        "--partition=cpu",
        sys.executable,
        "-m",
        "ftis.cli",
        "train",
    ]
    slurm.call(*command, f"{tmp_path}/run.yaml", "--out", f"{tmp_path}/run", "--node=auto", timeout=PATIENCE)
    one, other = (json.loads((tmp_path / out / "final.json").read_text()) for out in ("whole", "run"))
    assert one["nodes"] == other["nodes"] and other["lost"] == []
