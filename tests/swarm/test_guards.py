"""NaN and infinity in loss, gradient and weights: the update is left out, explained and counted, never
silently."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ftis.errors import UserError
from ftis.method.objective import grpo_loss
from ftis.runs.train import train
from ftis.swarm import update as update_module
from ftis.swarm.loop import Swarm
from ftis.swarm.samples import Samples, Share
from tests.small_runs import metrics, pair_config


def poison_loss(monkeypatch, *calls):
    """The given calls of the loss, counted from 1, come out as NaN."""
    count = iter(range(1, 10**6))

    def poisoned(*arguments):
        loss = grpo_loss(*arguments)
        return replace(loss, total=loss.total * float("nan")) if next(count) in calls else loss

    monkeypatch.setattr(update_module, "grpo_loss", poisoned)


def snapshot(node):
    return {name: p.detach().clone() for name, p in node.params.items()}


def explained(folder):
    """The one explanation in a folder: its name, facts and tensors."""
    (path,) = folder.glob("*.json")
    return path.stem, json.loads(path.read_text()), load_file(path.with_suffix(".safetensors"))


def test_a_loss_that_is_nan_ends_the_run_with_an_explanation(tiny, tmp_path, monkeypatch):
    poison_loss(monkeypatch, 2)
    config = pair_config(tiny, validation={}, optim={"micro_batch_tokens": 400})
    with pytest.raises(
        UserError, match=r"iteration 1, node 0 \(base\): the loss is nan \(explained in .*json\)"
    ):
        train(config, tmp_path / "run")
    name, facts, tensors = explained(tmp_path / "run/state/nonfinite")
    assert name == "iteration-000001-node0-update0" and facts["what"] == "loss is nan"
    losses = [batch["loss"] for batch in facts["micro_batches"]]
    assert losses[1] == "nan" and isinstance(losses[0], float)
    assert set(facts["weight_norms"]) == set(facts["gradient_norms"]) and facts["learning_rate"] == 3e-4
    rows = [row for batch in facts["micro_batches"] for row in batch["rows"]]
    assert sorted(rows) == list(range(36)), "the whole update"
    # What was kept is what a fresh swarm samples: enough to compute the update again.
    swarm = Swarm(config)
    asked = swarm.asked(1)
    shares = [Share(1, n.index, n.sample(1, asked).rollouts) for n in swarm.nodes]
    samples = Samples.gather(shares, {1: asked.prompts}, 0)
    assert tensors["tokens"].tolist() == [t for row in rows for t in samples.tokens[row].tolist()]
    assert tensors["length"].tolist() == samples.length[rows].tolist()
    assert tensors["own"].tolist() == samples.own[rows].tolist()
    own = np.repeat(samples.own[rows], samples.length[rows])
    assert (tensors["logp"] - tensors["logp_gen"])[own].abs().max() < 1e-4
    assert tensors["prompt_tokens"].tolist() == [
        t for prompt in samples.prompts_of(np.array(rows)) for t in prompt
    ]


def test_a_gradient_that_is_not_finite_keeps_the_weights(make_config):
    swarm = Swarm(make_config())
    node = swarm.nodes[0]
    before = snapshot(node)
    # A norm's weight: the embedding's gradient is added by hand, past such hooks.
    [*node.params.values()][-1].register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(UserError, match="gradient norm is (nan|inf); lower learning_rate"):
        swarm.iteration(1)
    assert all(torch.equal(before[name], p) for name, p in node.params.items())
    moments = [t for state in node.optimizer.state.values() for t in state.values()]
    assert moments and not any(t.any() for t in moments), "Adam's moments haven't seen it either"


def test_weights_that_are_not_finite_end_the_run_whatever_is_allowed(tiny, tmp_path, monkeypatch):
    step = torch.optim.AdamW.step

    def overflow(self, *arguments, **keywords):
        step(self, *arguments, **keywords)
        with torch.no_grad():
            self.param_groups[0]["params"][0].view(-1)[0] = float("inf")

    monkeypatch.setattr(torch.optim.AdamW, "step", overflow)
    with pytest.raises(UserError, match="weights' norm is inf .*go on from its last checkpoint"):
        train(pair_config(tiny, validation={}, nonfinite_updates=10), tmp_path / "run")
    _, facts, _ = explained(tmp_path / "run/state/nonfinite")
    assert facts["what"] == "weights' norm is inf" and "inf" in facts["weight_norms"].values()


def test_updates_may_be_left_out_and_are_counted(tiny, tmp_path, monkeypatch, capsys):
    """Node 0 makes updates 1 and 2 of iteration 1, node 1 makes 3 and 4, and so on: 6 is its fourth."""
    config = pair_config(
        tiny, validation={}, iterations=2, nonfinite_updates=2,
        optim={"mini_batches": 2, "micro_batch_tokens": 10**6},
    )  # fmt: skip
    with monkeypatch.context() as patch:
        poison_loss(patch, 2)
        train(config, tmp_path / "run")
    lines = [line["nodes"] for line in metrics(tmp_path / "run")[1:]]
    assert [[node["nonfinite"] for node in nodes] for nodes in lines] == [[1, 0], [0, 0]]
    assert np.isfinite(lines[0][0]["loss"]) and lines[0][0]["grad_norm"] > 0, "those of the other update"
    assert "warning: iteration 1, node 0 (base): the loss is nan" in capsys.readouterr().err
    name, _, _ = explained(tmp_path / "run/state/nonfinite")
    assert name == "iteration-000001-node0-update1"

    poison_loss(monkeypatch, 2, 6)
    with pytest.raises(UserError, match=r"iteration 2, node 0 .*a larger nonfinite_updates leaves"):
        train(config, tmp_path / "twice")
    # The first is remembered by the checkpoint of iteration 1: the second ends the run again.
    poison_loss(monkeypatch, 2)
    with pytest.raises(UserError, match=r"iteration 2, node 0 .*update1\.json"):
        train(config, tmp_path / "twice")


def test_nothing_is_left_of_an_update_that_was_left_out(make_config, monkeypatch):
    """The other updates are those of a run without it."""
    swarm = Swarm(make_config(nodes=("base",), nonfinite_updates=2))
    node = swarm.nodes[0]
    before = snapshot(node)
    poison_loss(monkeypatch, *range(1, 100))
    line = swarm.iteration(1).nodes[0]
    assert (line.nonfinite, line.grad_norm, line.statistics.loss) == (1, 0.0, 0.0)
    assert all(torch.equal(before[name], p) and p.grad is None for name, p in node.params.items())
