"""The workflow on a real Slurm: one machine that plays two nodes, with GPUs that are files.

The figure is of the smoke tier and made from nothing; the other tests go on from its warm start, with a
longer run.
"""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ftis.runs.processes.host import reachable_host
from tests.parts import copy_checkout, said
from tests.slurm.cluster import NODES, cluster, missing, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(missing()), reason=f"no Slurm here: {missing()}")]

RUN = "alone-base_small-s42"
TOLD = ("requeued", "cancelled", "signalled")
"""Ways to tell a job that it must end, each with a tier of its own."""
PATIENCE = 1200
"""Seconds after which something hangs; on a quiet machine all takes a few minutes together."""


@pytest.fixture(scope="module")
def slurm():
    with cluster() as started:
        yield started


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return copy_checkout(tmp_path_factory.mktemp("slurm") / "checkout")


@pytest.fixture(scope="module")
def snakemake(slurm, checkout):
    """Start `snakemake --profile slurm` in the checkout; the process's output is in its file."""
    started = []

    def start(*arguments, profile="slurm", **environment):
        output = checkout.parent / f"snakemake{len(started)}.txt"
        command = [sys.executable, "-m", "snakemake", "--profile", profile]
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


def follow(process, condition):
    """Returns when the condition is true; an error with what it printed if the process has ended by then."""

    def reached():
        assert process.poll() is None, process.output.read_text()
        return condition()

    wait_for(reached, PATIENCE, 0.02)


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
    tier["run"] |= {"iterations": 12, "checkpoint_every": 1, "validation": {}}
    tier["resources"]["train"] = {"mem_mb": 1500, "runtime": 10, "gpus": 2}
    tier["node"] = {**tier.get("node", {}), "device": "cpu"}  # the GPUs are made up
    for name in ("long", *TOLD):
        (checkout / f"workflow/config/tiers/{name}.yaml").write_text(yaml.safe_dump(tier))
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
    """What a run came to: its metrics without the clock, and its models' checksums."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for timed in (line, *line["nodes"]):
            timed.pop("seconds", None)
    return lines, json.loads((run / "final.json").read_text())["nodes"]


def holder(run):
    """Process id of the trainer that holds a run's lock."""
    lock = run / "state" / "lock"
    found = re.match(r"pid (\d+) on", lock.read_text()) if lock.exists() else None
    return int(found[1]) if found else None


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


def test_a_killed_job_goes_on_and_a_lost_node_does_not_train_twice(slurm, snakemake, checkout, reference):
    run = checkout / "results" / "long" / "runs" / RUN
    log = checkout / "results" / "long" / "logs" / "train" / f"{RUN}.log"
    process = snakemake("--config", "tier=long", "--", f"results/long/runs/{RUN}/final.json")
    follow(process, lambda: list((run / "state").glob("step-*[3-9]")))
    first = holder(run)
    # The job asks for its GPUs as generic resources, and sees those that Slurm gives it: one task, with them
    # all.
    job = slurm.call("squeue", "-h", "-t", "R", "-o", "%A").strip()
    shown = slurm.call("scontrol", "show", "job", "-d", job)
    assert re.search(r"TresPerJob=gres:gpu:2\b", shown) and re.search(r"\bNumTasks=1\b", shown), shown
    assert b"CUDA_VISIBLE_DEVICES=0,1" in Path(f"/proc/{first}/environ").read_bytes().split(b"\0")
    os.kill(first, signal.SIGKILL)

    # Snakemake starts it again, and it goes on. Now nobody hears of its node any more, but it lives, slowly.
    follow(process, lambda: re.search(r"going on after iteration [3-9]", said(log)))
    second = holder(run)
    os.kill(second, signal.SIGSTOP)
    assert second != first and not (run / "final.json").exists()
    node = slurm.call("squeue", "-h", "-t", "R", "-o", "%N").strip()
    slurm.lose_node(node)

    # The third, on the other node, doesn't train beside it: it waits, and finds the run finished.
    waits = f"another process trains this run (pid {second} on"
    follow(process, lambda: waits in said(log))
    assert {node, slurm.call("squeue", "-h", "-t", "R", "-o", "%N").strip()} == set(NODES)
    assert holder(run) == second
    os.kill(second, signal.SIGCONT)
    printed = finish(process)
    slurm.start_node(node)
    assert printed.count("Trying to restart job") == 2
    assert "this run is finished; nothing to do" in log.read_text()
    assert outcome(run) == outcome(reference)
    # Its log kept all three attempts, each below a line that says where it ran; and a line an iteration.
    attempts = re.findall(r"^=== .*: attempt (\d) on \S+, Slurm job (\d+)$", log.read_text(), re.MULTILINE)
    assert [int(attempt) for attempt, _ in attempts] == [1, 2, 3] and attempts[0][1] == job
    assert re.search(rf"^{RUN}: iteration 12/12, [\d.]+ s, XS base: reward ", log.read_text(), re.MULTILINE)


@pytest.mark.parametrize("how", [*TOLD[:2], pytest.param(TOLD[2], marks=pytest.mark.long)])
def test_a_job_that_is_told_to_end_goes_on(slurm, snakemake, checkout, reference, how):
    """Preempted by one of a partition with a higher priority, requeued by Slurm or not, or sent USR1:
    Snakemake doesn't wait for ever, and the run ends like one that nobody disturbed."""
    run = checkout / "results" / how / "runs" / RUN
    log = checkout / "results" / how / "logs" / "train" / f"{RUN}.log"
    profile = "slurm"
    if how == "requeued":  # as the profile says for such partitions
        settings = yaml.safe_load((checkout / "slurm/profile.yaml").read_text())
        assert settings.pop("slurm-no-requeue")
        profile = checkout / "preemptible"
        profile.mkdir()
        (profile / "profile.yaml").write_text(yaml.safe_dump(settings | {"slurm-requeue": True}))
    partition = {"requeued": "requeue", "cancelled": "cancel", "signalled": "gpu"}[how]
    process = snakemake(
        *("--set-resources", f"train:slurm_partition={partition}", "--config", f"tier={how}"),
        *("--", f"results/{how}/runs/{RUN}/final.json"),
        profile=profile,
    )
    follow(process, lambda: list((run / "state").glob("step-*[3-9]")))
    job, node = slurm.call("squeue", "-h", "-t", "R", "-p", partition, "-o", "%A %N").split()
    if how == "signalled":
        slurm.call("scancel", "--signal=USR1", job)
    else:
        wanted = ["--nodelist", node, "--cpus-per-task=2", "--mem=100", "--output=/dev/null"]
        slurm.call("sbatch", "--partition=urgent", *wanted, "--wrap=true")
    printed = finish(process)
    assert outcome(run) == outcome(reference)
    assert "going on after iteration" in log.read_text()
    heads = re.findall(r"^=== .*: attempt (\d) on \S+, Slurm job (\d+)$", log.read_text(), re.MULTILINE)
    if how == "requeued":  # the same job, and none of Snakemake's retries used
        assert heads == [("1", job), ("1", job)] and "Trying to restart" not in printed
    else:
        assert [attempt for attempt, _ in heads] == ["1", "2"] and heads[0][1] == job != heads[1][1]
        assert printed.count("Trying to restart job") == 1


def test_bad_input_is_not_tried_again(slurm, snakemake, checkout, reference):
    """Here a tier that asks for GPUs, on nodes whose torch sees none."""
    tier = yaml.safe_load((checkout / "workflow/config/tiers/long.yaml").read_text())
    del tier["node"]["device"]
    (checkout / "workflow/config/tiers/blind.yaml").write_text(yaml.safe_dump(tier))
    process = snakemake("--config", "tier=blind", "--", f"results/blind/runs/{RUN}/final.json")
    assert process.wait(PATIENCE) != 0
    log = (checkout / f"results/blind/logs/train/{RUN}.log").read_text()
    assert len(re.findall(r"^error: 2 GPUs asked for .*, and torch sees none: ", log, re.MULTILINE)) == 1, log
    assert log.count("not tried again: the error above is for you to mend") == 2, log
    jobs = re.findall(r"Slurm job (\d+)", log)
    asked = ["gres:gpu:2" in slurm.call("scontrol", "show", "job", "-d", job) for job in jobs]
    assert asked == [True, False, False], "saying so takes no GPU"


def known_jobs(slurm) -> set[str]:
    """All that Slurm still remembers; old ones are forgotten in time."""
    return set(slurm.call("squeue", "-h", "--states=all", "-o", "%A").split())


PARTITIONS = "The partitions here are cancel, cpu, gpu, requeue, urgent"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            ["--set-resources", "train:slurm_partition=nope"],
            f"invalid partition specified: nope.*{PARTITIONS}",
        ),
        (
            ["--set-resources", "train:gpu=3"],
            rf"a train job \(.*--gpus=3.*Requested node configuration is not.*{PARTITIONS}",
        ),
        (
            ["--default-resources", "slurm_extra='--qos=high'"],
            r"a \w+ job can't be submitted: .*not allowed in the 'slurm_extra' parameter.* Rows for .*qos, "
            r"constraint",
        ),
    ],
)
def test_what_the_cluster_has_not_is_said_before_anything_is_queued(slurm, snakemake, changed, reason):
    printed = refused(
        slurm, snakemake("--config", "tier=tiny", *changed, "--", "paper_figures/tiny/fig8.csv")
    )
    assert re.search(reason, printed), printed


def test_job_ends_that_would_not_be_seen_are_said_before_anything_is_queued(slurm, snakemake):
    with slurm.configured("MinJobAge=600", "MinJobAge=100"):
        printed = refused(slurm, snakemake("--config", "tier=tiny", "--", "paper_figures/tiny/fig8.csv"))
    assert re.search("Slurm forgets a job 100 s after its end .*for ever.*Ask for MinJobAge=300", printed), (
        printed
    )


def refused(slurm, process):
    """What Snakemake printed that ended before it queued anything."""
    before = known_jobs(slurm)
    code = process.wait(PATIENCE)
    printed = process.output.read_text()
    assert code != 0 and "Traceback" not in printed and "tiny: making" not in printed, printed
    assert known_jobs(slurm) <= before
    return printed


def test_what_compute_nodes_could_not_reach_is_said_before_anything_is_queued(slurm, snakemake, tmp_path):
    target = "results/small/runs/alone-base_small-s42/final.json"
    printed = refused(slurm, snakemake("--", target, HF_HOME=str(tmp_path)))
    assert re.search(
        r"HuggingFaceTB/SmolLM2-135M-Instruct.*snakemake -c1 fetch --config tier=small", printed
    ), printed


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_missing_vllm_is_said_before_anything_is_queued(slurm, snakemake, checkout):
    tier = yaml.safe_load((checkout / "workflow/config/tiers/smoke.yaml").read_text())
    tier["run"]["rollout"]["backend"] = "vllm"
    (checkout / "workflow/config/tiers/engines.yaml").write_text(yaml.safe_dump(tier))
    target = f"results/engines/runs/{RUN}/final.json"
    assert "vLLM can't be imported" in refused(slurm, snakemake("--config", "tier=engines", "--", target))


@pytest.mark.long
def test_a_job_that_starts_a_process_a_node_is_the_same_run(figure, snakemake, checkout):
    """The figure's pair in a tier of its own, from the same warm start."""
    pair = "peft_small-ftis-g50-vertical-s42"
    tier = yaml.safe_load((checkout / "workflow/config/tiers/smoke.yaml").read_text())
    base = {"label": tier["models"]["base_small"]["label"], "model": "results/smoke/models/base_small-s42"}
    tier["models"] = {"base_small": base, "base_small_lora": tier["models"]["base_small_lora"]}
    tier["run"]["transport"] = "processes"
    (checkout / "workflow/config/tiers/apart.yaml").write_text(yaml.safe_dump(tier))
    finish(snakemake("--config", "tier=apart", "--", f"results/apart/runs/{pair}/final.json"))
    apart, together = (checkout / "results" / name / "runs" / pair for name in ("apart", "smoke"))
    assert outcome(apart) == outcome(together)
    assert len(list((apart / "state").glob("node[01]"))) == 2, (
        "each node had a process and a state of its own"
    )


def test_a_task_a_node_is_the_same_run_as_in_one_process(slurm, figure, checkout):
    pair, out = "peft_small-ftis-g50-vertical-s42", checkout / "two_tasks"
    if reachable_host() in ("localhost", socket.gethostname()):
        pytest.skip("this machine has no address but its own, and Slurm counts its two nodes as two machines")
    program = [sys.executable, "-m", "ftis.cli", "train", "--tier", "smoke", "--run", pair, "--out", out]
    step = ["srun", "--nodes=2", "--ntasks=2", "--partition=cpu"]
    options = ["--transport", "processes", "--node=auto"]
    slurm.call(*step, *program, *options, cwd=checkout, timeout=PATIENCE)
    assert outcome(out) == outcome(checkout / "results" / "smoke" / "runs" / pair)
    assert json.loads((out / "final.json").read_text())["lost"] == []
