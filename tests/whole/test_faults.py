"""The workflow under faults: what was half written is never taken for a result, and the next call ends as if
nothing had happened."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import yaml

from ftis.provenance import sha256
from tests.parts import copy_checkout, said

RUN = "results/faults/runs/alone-base_small-s42"
FINAL = f"{RUN}/final.json"
PATIENCE = 1200
SABOTAGE = """
import os, sys
if "train" in sys.orig_argv and not os.path.exists({marker!r}):
    open({marker!r}, "w").close()
    open({output!r}, "w").write("half a resu")
    os._exit(1)
"""


def start(checkout, target, **environment):
    """`snakemake` of the local profile, in a process group of its own, as in a terminal."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SNAKEMAKE", "FTIS", "PYTHONPATH"))}
    command = [sys.executable, "-m", "snakemake", "--profile", "workflow/profiles/local"]
    return subprocess.Popen(
        [*command, "--config", "tier=faults", "--", target],
        cwd=checkout,
        env=clean | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A terminal's processes don't ignore Ctrl-C, but those that a shell put in the background do.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  no threads here
    )


def call(checkout, target, **environment):
    """Its exit code and all that it printed."""
    process = start(checkout, target, **environment)
    try:
        printed, _ = process.communicate(timeout=PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, printed


def wait_for(condition, process):
    """Returns when the condition is true; an error if the process has ended by then."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.01)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A checkout with a tier of one short run, trained without a fault."""
    checkout = copy_checkout(tmp_path_factory.mktemp("faults") / "checkout")
    tier = yaml.safe_load(
        (checkout / "workflow/config/tiers/smoke.yaml").read_text().replace("smoke", "faults")
    )
    tier["models"] = {"base_small": {"label": "XS", "tiny": {"size": "xs", "style": "base", "steps": 20}}}
    tier["data"] = {"train": 64, "validation": 16, "ood": 16}
    tier["prompts"] = {"*": 2}
    tier["run"] |= {"iterations": 80, "checkpoint_every": 1, "validation": {}}
    (checkout / "workflow/config/tiers/faults.yaml").write_text(yaml.safe_dump(tier))
    code, printed = call(checkout, FINAL)
    assert code == 0, printed
    return checkout


@pytest.fixture
def checkout(finished, tmp_path):
    """The same on its own, with the warm start and without the run."""
    shutil.copytree(finished, tmp_path / "checkout", symlinks=True)
    shutil.rmtree(tmp_path / "checkout" / RUN)
    return tmp_path / "checkout"


def holder(checkout):
    """The process that trains the run, as its lock says."""
    return int(re.match(r"pid (\d+) on", (checkout / RUN / "state" / "lock").read_text())[1])


def outcome(checkout):
    """What the run came to: its metrics without the clock, and its weights."""
    lines = [json.loads(line) for line in (checkout / RUN / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for timed in (line, *line["nodes"]):
            timed.pop("seconds", None)
    return lines, sha256(checkout / RUN / "node0")


def test_a_rule_that_fails_once_and_ctrl_c(finished, checkout):
    final, metrics = checkout / FINAL, checkout / RUN / "metrics.jsonl"
    metrics.parent.mkdir()
    (checkout / "sitecustomize.py").write_text(
        SABOTAGE.format(marker=str(checkout / "failed"), output=str(metrics))
    )
    code, printed = call(checkout, FINAL, PYTHONPATH=str(checkout))
    assert code != 0 and "Error in rule train" in printed, printed
    assert (checkout / "failed").exists() and not metrics.exists(), "half a file was left"

    process = start(checkout, FINAL, PYTHONPATH=str(checkout))
    wait_for(lambda: list((checkout / RUN / "state").glob("step-*[2-9]")), process)
    # Held while it is signalled, so that it can't be done before.
    trainer = holder(checkout)
    os.kill(trainer, signal.SIGSTOP)
    os.killpg(process.pid, signal.SIGINT)
    os.kill(trainer, signal.SIGCONT)
    printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0, printed
    assert not final.exists() and not metrics.exists()

    code, printed = call(checkout, FINAL)
    assert code == 0 and "warm start" not in printed, printed
    assert (
        "going on after iteration"
        in (checkout / "results/faults/logs/train/alone-base_small-s42.log").read_text()
    )
    assert outcome(checkout) == outcome(finished)


def test_an_orphan_of_a_killed_snakemake_is_waited_for(finished, checkout):
    log = checkout / "results/faults/logs/train/alone-base_small-s42.log"
    process = start(checkout, FINAL)
    wait_for(lambda: list((checkout / RUN / "state").glob("step-*[2-9]")), process)
    orphan = holder(checkout)
    os.kill(orphan, signal.SIGSTOP)
    process.kill()
    process.wait()
    unlock = [sys.executable, "-m", "snakemake", "--unlock", "--config", "tier=faults"]
    subprocess.run(unlock, cwd=checkout, check=True, capture_output=True)

    second = start(checkout, FINAL)
    wait_for(
        lambda: f"another process trains this run (pid {orphan} on" in said(log),
        second,
    )
    os.kill(orphan, signal.SIGCONT)
    printed, _ = second.communicate(timeout=PATIENCE)
    process.stdout.close()
    assert second.returncode == 0, printed
    assert "this run is finished; nothing to do" in log.read_text()
    assert outcome(checkout) == outcome(finished)


@pytest.fixture
def small_disk(checkout):
    """Results on a disk with room for the warm start and little else; called with mount's options, it changes
    it."""
    results = checkout / "results"
    results.rename(checkout / "made")
    results.mkdir()

    def mount(options):
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", results], check=False)
        return done.returncode == 0

    if os.geteuid() != 0 or not mount("size=3m"):
        pytest.skip("mounting a small disk needs root")
    shutil.copytree(checkout / "made", results, dirs_exist_ok=True)
    yield mount
    subprocess.run(["umount", "--lazy", results], check=True)


def test_a_full_disk_and_one_that_can_only_be_read(finished, checkout, small_disk):
    code, printed = call(checkout, FINAL)
    assert code != 0 and "Error in rule train" in printed, printed
    assert re.search("error: .*No space left", printed) and "Traceback" not in printed, printed
    assert not (checkout / FINAL).exists()
    newest = max(p.name for p in (checkout / RUN / "state").glob("step-*"))

    before = sha256(checkout / "results")
    assert small_disk("remount,ro")
    code, printed = call(checkout, FINAL)
    assert code != 0 and "Read-only file system" in printed, printed
    assert sha256(checkout / "results") == before

    assert small_disk("remount,rw,size=50m")
    code, printed = call(checkout, FINAL)
    assert code == 0 and "warm start" not in printed, printed
    log = (checkout / "results/faults/logs/train/alone-base_small-s42.log").read_text()
    assert f"going on after iteration {int(newest.removeprefix('step-'))}\n" in log
    assert outcome(checkout) == outcome(finished)


@pytest.mark.long
def test_after_snakemake_is_killed_its_orphan_and_a_new_call_never_train_at_once(finished, checkout):
    process = start(checkout, FINAL)
    lock = checkout / RUN / "state/lock"
    until = time.monotonic() + PATIENCE
    while not list((checkout / RUN / "state").glob("step-*")):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.01)
    orphan = int(lock.read_text().split()[1])
    os.kill(orphan, signal.SIGSTOP)  # so that it is still there when the new call comes
    try:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        unlock = [sys.executable, "-m", "snakemake", "--unlock", "--config", "tier=faults"]
        subprocess.run(unlock, cwd=checkout, check=True, capture_output=True)
        again = start(checkout, FINAL)
        log = checkout / "results/faults/logs/train/alone-base_small-s42.log"
        while "waiting for its end" not in said(log):
            assert time.monotonic() < until and again.poll() is None
            time.sleep(0.05)
        assert f"another process trains this run (pid {orphan} on" in log.read_text()
        before = sha256(checkout / RUN)
        time.sleep(1)
        assert sha256(checkout / RUN) == before and again.poll() is None, "the new call has written"
    finally:
        os.kill(orphan, signal.SIGCONT)
    printed, _ = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, printed
    assert "nothing to do" in log.read_text(), "the orphan has finished the run"
    assert outcome(checkout) == outcome(finished)
