"""A node a process: the same run as in one process, nodes that are lost, and processes that must not be left
over."""

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from ftis.cli.main import main
from ftis.config import RUN_CONFIG, recipe_hash
from ftis.errors import UserError
from ftis.runs.answers import run_subjects
from ftis.runs.processes.launch import _Child, _unfinished, launch
from ftis.runs.processes.node import merge_metrics
from ftis.runs.train import train, train_here
from ftis.settings import parse, to_dict
from ftis.swarm.message import BYTES_A_COMPLETION, BYTES_A_MESSAGE, BYTES_A_TOKEN
from tests.parts import with_swapped_ids
from tests.small_runs import assert_same_run, lora_node, metrics

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="nodes die with their launcher on Linux only"),
]
ROOT = Path(__file__).parents[2]


def build(tiny, **changes):
    fields = {
        "name": "test",
        "nodes": [
            {"name": "base", "label": "XS base", "model": str(tiny / "base"), "learning_rate": 3e-4},
            lora_node(tiny) | {"micro_batch_tokens": 512},
        ],
        "train": {"name": "tiny", "path": str(tiny / "data" / "train.jsonl")},
        "method": "ftis", "threshold": 5.0, "iterations": 4, "prompts": 6, "group_size": 6,
        "checkpoint_every": 1, "threads": 1, "transport": "processes",
        "rollout": {"prompt": "tiny-v1", "max_new_tokens": 32},
        "optim": {"name": "adamw", "micro_batch_tokens": 1024},
    }  # fmt: skip
    return parse(RUN_CONFIG, fields | changes, "test config")


def three(tiny, **changes):
    coder = {"name": "coder", "model": str(tiny / "coder"), "learning_rate": 3e-4}
    base = {"name": "base", "model": str(tiny / "base"), "learning_rate": 3e-4}
    return build(tiny, nodes=[base, lora_node(tiny), coder], **changes)


@pytest.fixture(scope="module")
def pair(tiny, tmp_path_factory):
    """A pair with all that takes state along: stale samples, mini-batches, validation; trained in one
    process."""
    out = tmp_path_factory.mktemp("pair") / "run"
    config = build(
        tiny, staleness=1, optim={"name": "adamw", "mini_batches": 2, "micro_batch_tokens": 1024},
        validation={
            "data": {"name": "tiny", "path": str(tiny / "data/validation.jsonl"), "limit": 8},
            "every": 2, "max_new_tokens": 24, "samples": 1,
        },
    )  # fmt: skip
    train(config, out)
    return config, out


def command(config, out, *options) -> list[str]:
    """A command line that trains; its settings lie beside the run's folder."""
    settings = out.parent / f"{out.name}.yaml"
    settings.write_text(yaml.safe_dump(to_dict(config)))
    return [sys.executable, "-m", "ftis.cli", "train", str(settings), "--out", str(out), *options]


def holder(lock: Path) -> int:
    """The process that holds a lock of a run."""
    return int(lock.read_text().split()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds: float = 600.0):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return value


def iterations_done(out: Path, node: int) -> int:
    path = out / f"state/node{node}/metrics.jsonl"
    return len(path.read_text().splitlines()) - 1 if path.exists() else -1


def test_a_pair_is_the_same_run_as_in_one_process(pair, tmp_path):
    config, whole = pair
    launch(config, tmp_path / "run")
    assert_same_run(whole, tmp_path / "run")
    one, other = (json.loads((out / "final.json").read_text()) for out in (whole, tmp_path / "run"))
    assert one["nodes"] == other["nodes"], "the very files, whose checksums these are"
    assert one["recipe"] == other["recipe"] == recipe_hash(config) and other["lost"] == []
    assert (tmp_path / "run/config.yaml").read_text() == (whole / "config.yaml").read_text()
    assert not list((tmp_path / "run/state").rglob("step-*")), "a finished run keeps no optimizer state"


def test_three_nodes_started_singly_are_the_same_run_as_in_one_process(tiny, tmp_path):
    """As srun does it, a task a node; whole groups are cut across the nodes."""
    config = three(tiny, split="horizontal", iterations=2, readings={"preset": "code"})
    train(config, tmp_path / "whole")
    started = [
        subprocess.Popen(
            command(config, tmp_path / "run", "--node", "auto", "--host", "127.0.0.1"),
            env=os.environ | {"SLURM_PROCID": str(k), "SLURM_STEP_NUM_TASKS": "3"},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(3)
    ]
    said = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], said
    assert_same_run(tmp_path / "whole", tmp_path / "run", nodes=3)
    for line in metrics(tmp_path / "run")[1:]:
        for node in line["nodes"]:  # what went through the sockets, to two peers
            plain = BYTES_A_TOKEN * node["tokens_generated"] + BYTES_A_COMPLETION * 12 + BYTES_A_MESSAGE
            assert 0 < node["bytes_sent"] < 2 * plain


def singly(config, out: Path, node: int) -> subprocess.Popen:
    """The process of one node, as started by hand."""
    line = command(config, out, "--node", str(node), "--host", "127.0.0.1")
    return subprocess.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_node_that_is_started_again_beside_the_others_is_refused(tiny, tmp_path, victim):
    """It has nothing to go on with, and must not touch what the others know of its loss."""
    out, survivor = tmp_path / "run", 1 - victim
    config = build(tiny, iterations=8)
    started = [singly(config, out, k) for k in range(2)]
    try:
        wait_for(lambda: iterations_done(out, victim) >= 2)
        started[victim].kill()
        roll = out / "state/lost"
        wait_for(lambda: roll.exists() and roll.read_text().endswith("\n"))
        os.kill(started[survivor].pid, signal.SIGSTOP)  # so that it is still there when the other has started
        known = roll.read_text()
        again = singly(config, out, victim)
        try:
            said = again.communicate(timeout=300)[1]
        finally:
            again.kill()
        assert again.returncode == 2 and f"error: {out}: the run goes on without node {victim}; wait" in said
        assert roll.read_text() == known and known.startswith(f"{victim} ")
        os.kill(started[survivor].pid, signal.SIGCONT)
        said = started[survivor].communicate(timeout=300)[1]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert started[survivor].returncode == 0, said
    final = json.loads((out / "final.json").read_text())
    assert [node["node"] for node in final["lost"]] == [victim]
    assert [node["node"] for node in final["nodes"]] == [survivor]
    assert [line["step"] for line in metrics(out)] == list(range(9))


def test_nodes_started_singly_that_are_all_killed_go_on_and_may_come_one_after_the_other(pair, tmp_path):
    config, whole = pair
    out = tmp_path / "run"
    started = [singly(config, out, k) for k in range(2)]
    wait_for(lambda: iterations_done(out, 1) >= 2)
    for process in started:
        process.kill()
        process.communicate()
    (out / "state/node1/.step-000009.partial").mkdir()
    (out / "state/lost").write_text("1 3\n")  # as if one had seen the other's end before its own
    first = singly(config, out, 1)
    wait_for(lambda: (out / "state/node1/address.json").exists())
    started = [singly(config, out, 0), first]
    said = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert all("going on after iteration" in text for text in said)
    assert_same_run(whole, out)
    assert not list((out / "state/node1").glob(".*.partial"))


@pytest.mark.parametrize(("blow", "split"), [("SIGKILL", "vertical"), ("SIGSTOP", "horizontal")])
def test_the_others_finish_without_a_node_that_is_lost(tiny, tmp_path, capsys, blow, split):
    out = tmp_path / "run"
    config = three(
        tiny, split=split, iterations=8, deadline=1800 if blow == "SIGKILL" else 15, checkpoint_every=3
    )
    ended = []
    trainer = threading.Thread(target=lambda: ended.append(launch(config, out)))
    trainer.start()
    wait_for(lambda: iterations_done(out, 2) >= 2)
    victim = holder(out / "state/node2/lock")
    os.kill(victim, getattr(signal, blow))
    with pytest.raises(UserError, match=r"another process trains this run \(pid"):
        launch(config, out)
    trainer.join(300)
    assert len(ended) == 1 and not isinstance(ended[0], Exception) and not alive(victim)

    final = json.loads((out / "final.json").read_text())
    ((lost,), names) = final["lost"], [node["name"] for node in final["nodes"]]
    first = lost["iteration"]
    assert (lost["node"], lost["name"], names) == (2, "coder", ["base", "base_lora"]) and 2 < first <= 8
    lines = metrics(out)
    assert [line["step"] for line in lines] == list(range(9))
    for line in lines[1:]:
        here = [node["node"] for node in line["nodes"]]
        # A node that was killed while it learned has sent its samples of that iteration, and no metrics.
        assert here == ([0, 1] if line["step"] >= first else [0, 1, 2]) or line["step"] == first - 1
        assert line.get("lost", []) == ([2] if line["step"] >= first else [])
        if line["step"] >= first:
            generated = sum(node["tokens_generated"] for node in line["nodes"])
            assert {node["tokens_trained"] for node in line["nodes"]} == {generated}
            one, other = line["nodes"]
            assert one["bytes_sent"] == other["bytes_received"] or line["step"] == first
    subjects, _ = run_subjects(out)  # what evaluation reads
    assert [subject.name for subject in subjects] == ["base", "base_lora"]
    said = capsys.readouterr().err
    assert f"the run went on without node 2 (coder) from iteration {first}" in said
    launch(config, out)
    assert f"is finished, without coder from iteration {first}; nothing to do" in capsys.readouterr().err
    how = "was killed by SIGKILL" if blow == "SIGKILL" else "was left out by the others, and stopped"
    assert f"warning: node 2 (coder) {how}" in said
    why = "its connection ended" if blow == "SIGKILL" else "it sent no message within 15 s"
    assert f"node 2 is left out from iteration {first}: {why}" in said


def test_a_killed_launcher_leaves_no_process_and_the_run_goes_on(pair, tmp_path):
    config, whole = pair
    out = tmp_path / "run"
    launcher = subprocess.Popen(command(config, out), cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: iterations_done(out, 1) >= 2)
        nodes = [holder(out / f"state/node{k}/lock") for k in range(2)]
        assert all(map(alive, nodes)) and holder(out / "state/lock") == launcher.pid
    finally:
        launcher.kill()
        launcher.wait()
    wait_for(lambda: not any(map(alive, nodes)), 30.0)
    assert not (out / "final.json").exists() and list((out / "state/node0").glob("step-*"))
    with pytest.raises(UserError, match="begun with 'processes'; go on with that"):
        train_here(config, out)
    launch(config, out)
    assert_same_run(whole, out)


@pytest.mark.long
def test_a_run_that_is_killed_again_and_again_ends_the_same(pair, tmp_path):
    """At ten moments drawn from a seed; a run that gets through is compared and begun anew."""
    config, whole = pair
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed of the moments: {seed}")
    draws, kills, out = random.Random(seed), 0, tmp_path / "run0"
    while kills < 10:
        if _killed(config, out, draws.randint(0, 4), draws.uniform(0, 0.5)):
            kills += 1
        else:
            assert_same_run(whole, out)
            out = tmp_path / f"run{kills}"
    launch(config, out)
    assert_same_run(whole, out)


def _killed(config, out: Path, iterations: int, seconds: float) -> bool:
    """Start a run and kill it so long after so many iterations; False if it was finished by then."""
    launcher = subprocess.Popen(command(config, out), cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: iterations_done(out, 0) >= iterations or launcher.poll() is not None)
        time.sleep(seconds)
    finally:
        launcher.kill()
    finished = launcher.wait() == 0
    wait_for(lambda: _unlocked(out / "state/lock"), 30.0)
    return not finished


def _unlocked(lock: Path) -> bool:
    """Whether nobody holds a run any more: its nodes keep the launcher's lock."""
    with open(lock) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.mark.long
def test_a_lost_node_stays_out_when_its_run_is_started_again(tiny, tmp_path, capsys):
    out, config = tmp_path / "run", three(tiny, iterations=12)
    launcher = subprocess.Popen(command(config, out), cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: iterations_done(out, 2) >= 2)
        os.kill(holder(out / "state/node2/lock"), signal.SIGKILL)
        # Two checkpoints without it: none of the others goes back to when it was there.
        wait_for(lambda: iterations_done(out, 0) >= 7 and iterations_done(out, 1) >= 7)
    finally:
        launcher.kill()
        launcher.wait()
    wait_for(lambda: _unlocked(out / "state/lock"), 30.0)
    assert not (out / "final.json").exists()
    launch(config, out)
    said = capsys.readouterr().err
    final = json.loads((out / "final.json").read_text())
    first = final["lost"][0]["iteration"]
    assert [node["name"] for node in final["nodes"]] == ["base", "base_lora"] and 2 < first < 7
    assert f"node 2: node 2 was lost at iteration {first} and stays out" in said
    assert [line["step"] for line in metrics(out)] == list(range(13))
    assert [line.get("lost", []) for line in metrics(out)] == [[]] * first + [[2]] * (13 - first)


def test_a_node_must_be_one_of_the_run(tiny, tmp_path, monkeypatch, capsys):
    config = command(build(tiny), tmp_path / "run")[3:]
    for given, environment, said in (
        ("2", {}, "must be a node's number, 0 to 1, or 'auto', given '2'"),
        ("-1", {}, "must be a node's number"),
        ("auto", {}, "'auto' needs $SLURM_PROCID (srun) or $RANK (torchrun)"),
        ("auto", {"RANK": "0", "WORLD_SIZE": "3"}, "the run has 2 nodes and $WORLD_SIZE is 3"),
    ):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            assert main([*config, f"--node={given}"]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_node_that_fails_before_all_have_met_ends_the_run_with_its_error(tiny, tmp_path):
    nodes = [lora_node(tiny), {"name": "odd", "model": str(tmp_path / "nowhere")}]
    with pytest.raises(UserError) as error:
        launch(build(tiny, nodes=nodes), tmp_path / "run")
    said = str(error.value)
    assert "the run is not finished: it ended before all nodes had met" in said
    assert "node 1 (odd) ended with exit code 2\n  error: model" in said and "nowhere" in said
    assert "node 0 (base_lora) was stopped since not all nodes had come" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("codes", "code"),
    [((2, 2), 2), ((2, None), 2), ((-9, 2), 1), ((1, None), 1), ((-9, -9), 1)],  # None: stopped from here
)
def test_only_bad_input_of_all_nodes_is_bad_input_of_the_run(codes, code):
    """Else the workflow tries the run again."""
    children = [
        _Child(
            k, "xs", SimpleNamespace(returncode=-9 if c is None else c), 0, stopped="" if c else "was stopped"
        )
        for k, c in enumerate(codes)
    ]
    assert _unfinished("no node was left", children).exit_code == code


def test_nodes_with_different_tokenizers_are_refused_when_they_meet(tiny, tmp_path):
    """Each process has read one tokenizer only."""
    odd = {"name": "odd", "model": str(with_swapped_ids(tiny / "coder", tmp_path / "odd"))}
    with pytest.raises(UserError) as error:
        launch(build(tiny, nodes=[lora_node(tiny), odd]), tmp_path / "run")
    said = str(error.value)
    assert f"nodes.1.model: the tokenizer of {odd['model']} differs from that of nodes.0" in said
    assert "the run is not finished: it ended before all nodes had met" in said and "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_metrics_of_the_nodes_become_one_file(tmp_path):
    def line(step, node, seconds):
        return json.dumps({"step": step, "seconds": seconds, "nodes": [{"node": node}]}) + "\n"

    texts = [
        line(0, 0, 0) + line(1, 0, 1.0) + line(2, 0, 2.0),
        line(0, 1, 0) + line(1, 1, 3.0) + line(2, 1, 1),
    ]
    texts.append(line(0, 2, 0) + line(1, 2, 9.0) + line(2, 2, 9.0) + line(3, 2, 0)[:9])
    for k, text in enumerate(texts):
        (tmp_path / f"node{k}").mkdir()
        (tmp_path / f"node{k}/metrics.jsonl").write_text(text)
    merged = [json.loads(text) for text in merge_metrics(tmp_path, 3, {2: 2}).splitlines()]
    assert [[node["node"] for node in line["nodes"]] for line in merged] == [[0, 1, 2], [0, 1, 2], [0, 1]]
    assert [line["seconds"] for line in merged] == [0, 9.0, 2.0]
    assert [line.get("lost") for line in merged] == [None, None, [2]]
    assert merge_metrics(tmp_path, 2, {}) == "".join(
        json.dumps({"step": s, "seconds": seconds, "nodes": [{"node": 0}, {"node": 1}]}) + "\n"
        for s, seconds in ((0, 0.0), (1, 3.0), (2, 2.0))
    )
