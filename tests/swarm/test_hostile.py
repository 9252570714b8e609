"""Peers that send what they shouldn't: the run goes on without it, and without them if they go on."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch

from ftis.runs.train import train
from ftis.swarm.attacks import ATTACKS
from ftis.swarm.loop import Swarm
from ftis.swarm.message import message_size
from tests.small_runs import Killed, assert_same_run, pair_config


def forge(monkeypatch, change):
    """Node 1 sends `change`(rollouts, vocab_size) instead of what it sampled."""
    monkeypatch.setitem(ATTACKS, "test", lambda rollouts, scene: change(rollouts, len(scene.tokenizer)))


def attacked(config, attack="test"):
    """The run with node 1 an attacker."""
    nodes = [replace(node, attack=attack) if k == 1 else node for k, node in enumerate(config.nodes)]
    return replace(config, nodes=tuple(nodes))


def until(iteration, last):
    """`Swarm.iteration` of a run that is killed before its `last`."""

    def stopping(self, step):
        if step == last:
            raise Killed
        return iteration(self, step)

    return stopping


def test_a_bad_completion_takes_its_group_with_it(make_config, monkeypatch, capsys):
    def one_bad_token(rollouts, vocab_size):
        tokens = rollouts.tokens.copy()
        tokens[0] = vocab_size
        return replace(rollouts, tokens=tokens)

    forge(monkeypatch, one_bad_token)
    swarm = Swarm(attacked(make_config()))
    lines = swarm.iteration(1).nodes
    assert lines[0].refused == {"token_id": 1} and lines[1].refused == {}
    assert lines[0].dropped == 6 and lines[1].dropped == 0  # a group of 6
    group = lines[1].sampled.rollouts
    lost = group.length[group.prompt == group.prompt[0]].sum()
    assert lines[0].tokens_trained == lines[1].tokens_trained - lost
    said = capsys.readouterr().err
    assert "iteration 1: node 0 refuses completions of node 1: 1 x token_id; 12 of 18 are used" in said


def test_a_message_that_is_none_is_left_out_whole(make_config, monkeypatch, capsys):
    forge(monkeypatch, lambda rollouts, _: rollouts.only(np.arange(3)))
    line = Swarm(attacked(make_config())).iteration(1).nodes[0]
    assert (line.refused, line.dropped) == ({"assignment": 1}, 18)
    assert line.tokens_trained == line.tokens_generated
    assert "node 0 refuses the message of node 1: assignment" in capsys.readouterr().err


def test_of_a_horizontal_group_only_the_senders_part_is_dropped(make_config, monkeypatch):
    def worthless(rollouts, _):
        reward = rollouts.reward.copy()
        reward[0] = 0.5
        return replace(rollouts, reward=reward)

    forge(monkeypatch, worthless)
    swarm = Swarm(attacked(make_config(nodes=("base", "coder", "base"), split="horizontal")))
    lines = swarm.iteration(1).nodes
    line = lines[0]
    assert (line.refused, line.dropped) == ({"reward": 1}, 2)  # of a group of 6 on 3 nodes
    sent = lines[1].sampled.rollouts
    everything = sum(n.sampled.rollouts.length.sum() for n in lines)
    assert line.tokens_trained == everything - sent.length[sent.prompt == sent.prompt[0]].sum()


@pytest.mark.parametrize("verify", [True, False])
def test_rewards_are_verified_unless_told_not_to(make_config, verify):
    line, liar = Swarm(attacked(make_config(verify_rewards=verify), "claim_all_right")).iteration(1).nodes
    wrong = liar.sampled.rollouts.reward == 0
    groups = liar.sampled.rollouts.prompt
    assert wrong.any()
    assert line.refused == ({"reward_differs": wrong.sum()} if verify else {})
    assert line.dropped == (np.isin(groups, groups[wrong]).sum() if verify else 0)
    assert ("verify" in line.seconds) == verify


def test_a_peer_that_keeps_lying_is_left_out_and_stays_out_after_a_kill(tiny, tmp_path, monkeypatch, capsys):
    config = attacked(pair_config(tiny, iterations=6, validation={}, patience=2), "claim_all_right")
    train(config, tmp_path / "whole")
    text = (tmp_path / "whole/metrics.jsonl").read_text()
    lines = [json.loads(line)["nodes"][0] for line in text.splitlines()][1:]
    assert [line["distrusted"] for line in lines] == [[], [1], [1], [1], [1], [1]]
    assert [bool(line["refused"]) for line in lines] == [True, True, False, False, False, False]
    assert all(line["tokens_trained"] == line["tokens_generated"] for line in lines[2:])
    assert "node 0 takes nothing of node 1 from iteration 3 on" in capsys.readouterr().err
    final = json.loads((tmp_path / "whole/final.json").read_text())
    assert [n["distrusted"] for n in final["nodes"]] == [
        [{"node": 1, "name": "base_lora", "iteration": 3}], [],
    ]  # fmt: skip

    for kill in (2, 4):  # with one failure noted, and with the peer out
        with monkeypatch.context() as patch:
            patch.setattr(Swarm, "iteration", until(Swarm.iteration, kill))
            with pytest.raises(Killed):
                train(config, tmp_path / f"cut{kill}")
        train(config, tmp_path / f"cut{kill}")
        assert_same_run(tmp_path / "whole", tmp_path / f"cut{kill}")
        again = json.loads((tmp_path / f"cut{kill}/final.json").read_text())
        assert again["nodes"] == final["nodes"]


def test_no_pickle_in_state_or_messages(tiny, tmp_path, monkeypatch):
    """A run with mail that waits is checkpointed, killed and taken up again while nothing can be
    (un)pickled."""
    before = pair_config(tiny, iterations=3, validation={}, split="vertical", staleness=1)
    for module, names in (
        (pickle, ("load", "loads", "dump", "dumps", "Pickler", "Unpickler")),
        (torch, ("load", "save")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, lambda *_, what=name, **__: pytest.fail(f"{what} was called"))
    with monkeypatch.context() as patch:
        patch.setattr(Swarm, "iteration", until(Swarm.iteration, 3))
        with pytest.raises(Killed):
            train(before, tmp_path / "run")
    kinds = {
        "safetensors": lambda data: safetensors.torch.load(data),
        "json": json.loads,
        "jsonl": lambda data: [json.loads(line) for line in data.splitlines()],
        "mail": message_size,
        "lock": bytes.decode,
    }
    seen = set()
    for path in (tmp_path / "run/state").rglob("*"):
        if path.is_file():
            kind = path.suffix[1:] or path.name.split("-")[0]
            kinds[kind](path.read_bytes())
            seen.add(kind)
    assert seen == set(kinds)
    train(before, tmp_path / "run")
    assert (tmp_path / "run/final.json").exists()
