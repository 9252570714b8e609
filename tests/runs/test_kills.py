"""A run killed with SIGKILL anywhere and started again ends like one that nobody disturbed.

Each run is a process of its own, forked from one that has everything imported. It kills itself at an event
that is drawn: so many calls of Python and C functions into a phase, as counted in the undisturbed run. The
seed is FTIS_KILL_SEED, 0 if that isn't set; 4 kills in the tests and 20 in `make check-all`.
"""

import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ftis.errors import UserError
from ftis.runs.state import truncate_metrics
from tests.small_runs import assert_same_run, metrics, pair_config

SEED = int(os.environ.get("FTIS_KILL_SEED", "0"))
PHASES = ("sampling", "step", "checkpoint", "rename", "anywhere")
SHORT = [(1, "sampling", 0), (1, "rename", 0), (2, "step", 0), (2, "checkpoint", 0)]
ALL = [(minis, phase, draw) for minis in (1, 2) for phase in PHASES for draw in (1, 2)]
CASES = [*SHORT, *(pytest.param(*case, marks=pytest.mark.long) for case in ALL)]


def run(config, out: Path, phase: str = "", event: int = 0, counts: Path | None = None) -> None:
    """Train in this process, which dies at an event of a phase; or count the events of all phases."""
    import torch

    from ftis.runs import state
    from ftis.runs import train as module
    from ftis.swarm.node import Node

    torch.set_num_threads(1)
    seen = Counter()

    def count(name):
        seen[name] += 1
        if name == phase and seen[name] == event:
            os.kill(os.getpid(), signal.SIGKILL)

    def within(name, function):
        def wrapped(*arguments, **keywords):
            outer = sys.getprofile()
            sys.setprofile(lambda *_: (count(name), outer and outer()))
            try:
                return function(*arguments, **keywords)
            finally:
                sys.setprofile(outer)

        return wrapped

    def around(name, function):
        def wrapped(*arguments, **keywords):
            count(name)
            result = function(*arguments, **keywords)
            count(name)
            return result

        return wrapped

    train = module.train
    if phase or counts:
        Node.sample = within("sampling", Node.sample)
        Node.learn = within("step", Node.learn)
        state.save_checkpoint = within("checkpoint", state.save_checkpoint)
        Path.rename = around("rename", Path.rename)
        os.replace = around("rename", os.replace)
        train = within("anywhere", train)
    train(config, out)
    if counts:
        counts.write_text(json.dumps(seen))


@pytest.fixture(scope="module")
def start():
    """Starts `run` in a forked process; its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ftis.runs.train", "tests.runs.test_kills"])

    def start(*arguments) -> int:
        process = context.Process(target=run, args=arguments)
        process.start()
        process.join(120)
        assert process.exitcode is not None, "the run hangs"
        return process.exitcode

    return start


@pytest.fixture(scope="module")
def undisturbed(tiny, start, tmp_path_factory):
    """By number of mini-batches: settings, folder of a run that nobody disturbed, events by phase."""
    made = {}

    def get(minis: int):
        if minis not in made:
            root = tmp_path_factory.mktemp("undisturbed")
            config = pair_config(
                tiny, iterations=3, prompts=2, group_size=4, validation={}, split="horizontal",
                rollout={"prompt": "tiny-v1", "max_new_tokens": 40}, optim={"mini_batches": minis},
            )  # fmt: skip
            assert start(config, root / "run", "", 0, root / "counts.json") == 0
            made[minis] = config, root / "run", json.loads((root / "counts.json").read_text())
        return made[minis]

    return get


@pytest.mark.parametrize(("minis", "phase", "draw"), CASES)
def test_a_killed_run_ends_like_an_undisturbed_one(undisturbed, start, tmp_path, minis, phase, draw):
    """One node trains all weights, the other an adapter."""
    config, whole, counts = undisturbed(minis)
    assert set(counts) == set(PHASES)
    rng = np.random.default_rng((SEED, minis, PHASES.index(phase), draw))
    event = int(rng.integers(1, counts[phase], endpoint=True))
    print(f"seed {SEED}: event {event} of {counts[phase]} of {phase}")
    assert start(config, tmp_path / "run", phase, event) == -signal.SIGKILL
    for half in (".final.json.1.partial", "state/.step-000009.partial/node0.safetensors"):
        (tmp_path / "run" / half).parent.mkdir(exist_ok=True)
        (tmp_path / "run" / half).write_bytes(b"half a fi")
    assert start(config, tmp_path / "run") == 0
    assert not list((tmp_path / "run").rglob(".*.partial"))
    assert_same_run(whole, tmp_path / "run")
    assert any(node["grad_norm"] > 0 for line in metrics(whole)[1:] for node in line["nodes"])
    facts = [json.loads((out / "final.json").read_text()) for out in (whole, tmp_path / "run")]
    assert [f["nodes"] for f in facts[:1]] == [f["nodes"] for f in facts[1:]]


def test_a_half_written_line_is_cut_off(tmp_path):
    """What a kill in the middle of a write leaves, and a line of the iteration after the checkpoint."""
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "loss": 0.5}) + "\n" for step in range(4)]
    for rest in ("", lines[3], lines[3][:9], lines[3][:-1], "\0" * 40):
        path.write_text("".join(lines[:3]) + rest)
        truncate_metrics(path, 2)
        assert path.read_text() == "".join(lines[:3])
    path.write_text(lines[0] + lines[1][:9] + "\n" + lines[2])
    with pytest.raises(UserError, match="iterations up to 2 are missing"):
        truncate_metrics(path, 2)
