"""Trackers: what they are sent, and what is said where one isn't installed."""

import importlib.util
import sys
from dataclasses import replace
from types import ModuleType

import pytest

from ftis.errors import UserError
from ftis.runs.trackers import PACKAGES, numbers
from ftis.runs.train import train


def test_numbers_by_their_paths():
    nested = {
        "reward": 0.5,
        "filtered": {"all": 0.25, "own": None},
        "kl": {"own": {"k3_sum": [1.0, 2.0]}},
        "n": 3,
    }
    assert dict(numbers(nested)) == {"reward": 0.5, "filtered/all": 0.25, "n": 3.0}


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_hosted_tracker_gets_each_iteration_once(make_config, tmp_path, monkeypatch, tracker):
    """With a stand-in for the package, whose real one sends what it gets to a server."""
    calls = []
    module = ModuleType(tracker)
    module.init = lambda **given: calls.append(
        ("init", given["project"], given["name"], given["config"]["seed"])
    )
    module.log = lambda values, step: calls.append(("log", step, values))
    module.finish = lambda: calls.append(("finish",))
    monkeypatch.setitem(sys.modules, tracker, module)
    config = replace(make_config(iterations=2), tracker=tracker)
    train(config, tmp_path / "run")
    assert calls[0] == ("init", "ftis", "test", 42) and calls[-1] == ("finish",)
    assert [call[1] for call in calls[1:-1]] == [1, 2]
    values = calls[1][2]
    assert {"base0/reward", "coder1/filtered/foreign", "seconds"} <= values.keys()
    assert all(isinstance(value, float) for value in values.values())


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard isn't installed")
def test_tensorboard_reads_what_was_written(make_config, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = replace(make_config(iterations=2, nodes=("base",)), tracker="tensorboard")
    folder = train(config, tmp_path / "run")
    events = EventAccumulator(str(folder.state / "tensorboard")).Reload()
    rewards = [(event.step, event.value) for event in events.Scalars("base0/reward")]
    lines = folder.metrics()
    assert rewards == [
        (step, pytest.approx(r)) for step, r in zip(lines["step"][1:], lines["reward"][1:], strict=True)
    ]


@pytest.mark.parametrize("tracker", PACKAGES)
def test_a_missing_tracker_is_told_before_anything_is_trained(make_config, tmp_path, monkeypatch, tracker):
    monkeypatch.setitem(sys.modules, PACKAGES[tracker], None)
    with pytest.raises(
        UserError, match=f"tracker: {tracker} can't be imported .*pip install {PACKAGES[tracker]}"
    ):
        train(replace(make_config(), tracker=tracker), tmp_path / "run")
    assert not (tmp_path / "run").exists()
