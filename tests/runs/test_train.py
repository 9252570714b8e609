"""The loop: same seed, same run; what must not change a result; resuming; refusals."""

import errno
import importlib.util
import json
import shutil
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from ftis.config import load_run
from ftis.errors import UserError
from ftis.provenance import sha256
from ftis.runs import folder as folder_module
from ftis.runs import state
from ftis.runs.folder import RunFolder
from ftis.runs.processes.launch import launch
from ftis.runs.processes.node import train_alone
from ftis.runs.train import train
from ftis.swarm import node as node_module
from ftis.swarm.loop import Swarm
from ftis.swarm.message import Message, encode
from ftis.swarm.node import Node
from ftis.swarm.samples import Samples, Share
from ftis.tasks.problems import iteration_problems
from tests.numerics import assert_rounded, assert_same, in_double
from tests.parts import with_swapped_ids
from tests.small_runs import Killed, assert_same_run, lora_node, metrics, pair_config


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """One finished pair with validation, shared by the tests that only look at it."""
    out = tmp_path_factory.mktemp("finished") / "run"
    config = pair_config(tiny, iterations=4)
    train(config, out)
    return config, out


def test_what_a_finished_run_leaves(finished):
    config, out = finished
    final = json.loads((out / "final.json").read_text())
    assert final["run"] == "test" and final["iterations"] == 4 and len(final["recipe"]) == 12
    assert [n["label"] for n in final["nodes"]] == ["XS base", "base_lora"]
    for node in final["nodes"]:
        assert sha256(out / node["path"]) == node["sha256"]
    assert final["files"]["metrics.jsonl"] == sha256(out / "metrics.jsonl")
    assert final["provenance"]["packages"]["torch"] == torch.__version__.split("+")[0] or torch.__version__
    assert load_run(out / "config.yaml") == config
    assert not state.checkpoints(out / "state"), "a finished run keeps no optimizer state"
    lines = metrics(out)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert [bool(line["nodes"][0]["validation"]) for line in lines] == [True, False, True, False, True]
    assert lines[0]["nodes"][0]["validation"]["greedy"]["n"] == 16
    assert lines[0]["nodes"][0]["validation"]["sampled"]["n"] == 32


def test_every_promised_metric_is_logged_and_plausible(finished):
    _, out = finished
    for line in metrics(out)[1:]:
        sent = [node["bytes_sent"] for node in line["nodes"]]
        for node in line["nodes"]:
            assert 0 <= node["reward"] <= node["format_rate"] <= 1
            assert 0 <= node["truncated"] <= 1 and node["entropy"] > 0 and node["grad_norm"] >= 0
            assert node["tokens_generated"] == pytest.approx(18 * node["length"])
            # Log-probs are what can't be compressed much: more than 1 and less than 6 bytes with the ids.
            assert 1 < node["bytes_sent"] / node["tokens_generated"] < 6
            assert node["bytes_received"] == sent[1 - node["node"]]
            assert (node["refused"], node["dropped"], node["distrusted"]) == ({}, 0, [])
            assert node["nonfinite"] == 0
            assert set(node["filtered"]) == {"all", "own", "foreign"}
            assert set(node["filter_causes"]["foreign"]) == {"advantage", "distance"}
            assert len(node["kl"]["foreign"]) == 10 and len(node["kl"]["own"]["k3_code_mean"]) == 5
            assert set(node["weight"]["foreign"]) == {"mean", "max", "truncated", "ess"}
            assert node["mismatch"]["max"] < 1e-4, "sampler and trainer disagree about log-probs"
            assert abs(node["kl"]["own"]["gen_theta_sum"][2]) < 1e-3, "one update: own samples are on-policy"
    for line in (out / "metrics.jsonl").read_text().splitlines()[1:]:
        for node in json.loads(line)["nodes"]:
            assert 0 < node["seconds"]["verify"] <= node["seconds"]["exchange"], "grading again is part of it"
    total = sum(node["tokens_generated"] for node in metrics(out)[1]["nodes"])
    assert {node["tokens_trained"] for node in metrics(out)[1]["nodes"]} == {total}
    assert any(node["grad_norm"] > 0 for line in metrics(out)[1:] for node in line["nodes"])


def test_same_seed_same_run_another_seed_another(finished, tiny, tmp_path):
    config, out = finished
    train(config, tmp_path / "again")
    assert_same_run(out, tmp_path / "again")
    train(pair_config(tiny, iterations=4, seed=43), tmp_path / "other")
    assert metrics(out) != metrics(tmp_path / "other")


@pytest.mark.parametrize("where", ["sample", "learn", "save", "rename", "append", "finish"])
def test_a_killed_run_ends_like_an_uninterrupted_one(finished, tmp_path, monkeypatch, where):
    config, out = finished

    def bomb(function, after):
        calls = iter(range(after))

        def wrapped(*args, **kwargs):
            if next(calls, None) is None:
                raise Killed
            return function(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        if where == "sample":
            patch.setattr(Node, "sample", bomb(Node.sample, 5))
        elif where == "learn":
            patch.setattr(node_module, "update", bomb(node_module.update, 4))
        elif where == "save":
            patch.setattr(state, "save_tensors", bomb(state.save_tensors, 3))
        elif where == "rename":
            patch.setattr(state.Path, "rename", bomb(state.Path.rename, 1))
        elif where == "append":
            patch.setattr(state, "append_metrics", bomb(state.append_metrics, 3))
        else:
            patch.setattr(folder_module, "provenance", bomb(folder_module.provenance, 0))
        with pytest.raises(Killed):
            train(config, tmp_path / "run")
    assert not (tmp_path / "run/final.json").exists()
    train(config, tmp_path / "run")
    assert_same_run(out, tmp_path / "run")


def test_a_damaged_checkpoint_is_passed_over(finished, tmp_path, monkeypatch, capsys):
    config, out = finished
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "publish", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            train(config, tmp_path / "run")
    saved = state.checkpoints(tmp_path / "run/state")
    assert [p.name for p in saved] == ["step-000003", "step-000002"]
    damaged = bytearray((saved[0] / "node0.safetensors").read_bytes())
    damaged[-5] ^= 1
    (saved[0] / "node0.safetensors").write_bytes(damaged)
    train(config, tmp_path / "run")
    assert "step-000003 is damaged (node0.safetensors has changed)" in capsys.readouterr().err
    assert_same_run(out, tmp_path / "run")


@pytest.mark.parametrize("staleness", [0, 2])
def test_mini_batches_stale_samples_and_all_readings_resume(tiny, tmp_path, monkeypatch, staleness):
    config = pair_config(
        tiny, staleness=staleness, iterations=3, optim={"name": "adam", "mini_batches": 3, "warmup": 2},
        readings={"preset": "code", "clip_reference": "iteration_start"},
        split="vertical" if staleness else "horizontal",
    )  # fmt: skip
    train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        original = Swarm.iteration
        patch.setattr(
            Swarm,
            "iteration",
            lambda self, step: original(self, step) if step < 3 else (_ for _ in ()).throw(Killed),
        )
        with pytest.raises(Killed):
            train(config, tmp_path / "cut")
    train(config, tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    lines = metrics(tmp_path / "whole")
    foreign = ["foreign" in line["nodes"][0]["weight"] for line in lines[1:]]
    assert foreign == [staleness <= t for t in range(3)], "foreign samples are used once they are old enough"
    assert lines[1]["nodes"][0]["learning_rate"] == pytest.approx(1.5e-4)


def gradients(config, step=1):
    """Each node's gradient of the first update, before any step, in float64."""
    swarm, kept = Swarm(config), {}
    for node in swarm.nodes:
        node.policy.model.double()
        node.optimizer.step = lambda n=node: kept.setdefault(
            n.index, torch.cat([p.grad.flatten() for p in n.params.values()])
        )
    with in_double():
        swarm.iteration(step)
    return [kept[node.index] for node in swarm.nodes]


def test_gradients_are_freed_after_the_update(make_config):
    """They are as large as the weights, and on a shared GPU the next node needs the room."""
    swarm = Swarm(make_config(optim={"mini_batches": 2}))
    assert all(node.grad_norm > 0 for node in swarm.iteration(1).nodes)
    assert all(p.grad is None for node in swarm.nodes for p in node.params.values())


def test_micro_batches_change_nothing(make_config):
    whole = gradients(make_config(optim={"micro_batch_tokens": 100000, "clip": 1e9}))
    small = gradients(make_config(optim={"micro_batch_tokens": 64, "clip": 1e9}))
    for a, b in zip(whole, small):
        assert a.norm() > 1e-3
        assert_same(a, b)


def test_a_state_of_other_settings_is_refused_or_by_a_job_cleared(tiny, tmp_path, monkeypatch, capsys):
    """Kept in the way, each checkpoint of the new run would be pruned as the oldest, and every kill start it
    from 0."""

    def stop_after(step, config, job=False):
        with monkeypatch.context() as patch:
            original = Swarm.iteration
            patch.setattr(
                Swarm,
                "iteration",
                lambda self, t: original(self, t) if t <= step else (_ for _ in ()).throw(Killed),
            )
            with pytest.raises(Killed):
                train(config, tmp_path / "run", job)
        return [p.name for p in state.checkpoints(tmp_path / "run/state")]

    assert stop_after(3, pair_config(tiny, iterations=4)) == ["step-000003", "step-000002"]
    before, changed = sha256(tmp_path / "run"), pair_config(tiny, iterations=5, seed=7)
    says = r"run: holds checkpoints of an unfinished run with other settings \(seed: 42 there, 7 here; iterations: 4 there"
    with pytest.raises(UserError, match=says):
        train(changed, tmp_path / "run")
    with pytest.raises(UserError, match=says):
        launch(changed, tmp_path / "run")
    assert sha256(tmp_path / "run") == before
    with pytest.raises(UserError, match=says):
        train_alone(changed, tmp_path / "run", 0, "127.0.0.1")
    capsys.readouterr()
    assert stop_after(1, changed, job=True) == ["step-000001"]
    assert "5 here); they are removed, and the run starts over" in capsys.readouterr().err
    assert stop_after(2, changed) == ["step-000002", "step-000001"]
    assert "holds checkpoints" not in capsys.readouterr().err


def test_micro_batches_count_a_groups_prompt_once(make_config):
    swarm = Swarm(make_config(optim={"micro_batch_tokens": 400}))
    node = swarm.nodes[0]
    asked = swarm.asked(1)
    samples = Samples.gather([Share(1, 0, node.sample(1, asked).rollouts)], {1: asked.prompts}, 0)
    everything = np.arange(len(samples.tokens))

    def padded(rows):
        lengths = [len(samples.prompts[group]) for group in set(samples.group[rows])]
        return len(lengths) * max(lengths) + len(rows) * max(samples.length[rows])

    batches = samples.micro_batches(everything, 400)
    assert sorted(np.concatenate(batches)) == list(everything) and len(batches) > 1
    assert all(padded(rows) <= 400 or len(rows) == 1 for rows in batches)


def test_skipping_zero_advantages_changes_no_gradient(make_config):
    plain = make_config(optim={"clip": 1e9})
    skipping = make_config(optim={"clip": 1e9, "skip_zero_advantage": True})
    for a, b in zip(gradients(plain), gradients(skipping)):
        assert a.norm() > 1e-3
        assert_same(a, b)
    lines = [Swarm(c).iteration(1).nodes[0] for c in (plain, skipping)]
    assert lines[1].tokens_trained < lines[0].tokens_trained
    with pytest.raises(UserError, match="skip_zero_advantage: with filtered_denominator 'leave'"):
        make_config(optim={"skip_zero_advantage": True}, readings={"preset": "code"})


def test_the_mismatch_is_before_any_step_however_many_completions_are_skipped(make_config):
    """Mini-batches are unequal then: their share of what is computed doesn't tell where the first ends."""
    optim = {"mini_batches": 3, "skip_zero_advantage": True, "micro_batch_tokens": 64}
    swarm = Swarm(make_config(nodes=("base", "base"), optim=optim))
    found = [node.statistics.mismatch for step in (1, 2, 3) for node in swarm.iteration(step).nodes]
    assert all(mismatch and mismatch["max"] < 1e-4 for mismatch in found), found


@pytest.mark.parametrize("method", ["nois", "vis", "tis", "fnois", "fvis", "ftis"])
@pytest.mark.parametrize("split", ["vertical", "horizontal"])
def test_equal_nodes_have_the_gradient_of_alone(make_config, method, split):
    """Two nodes with one model: pi_gen = pi_theta, and every method is on-policy GRPO on the union."""
    twins = gradients(make_config(nodes=("base", "base"), method=method, split=split, optim={"clip": 1e9}))
    assert_same(twins[0], twins[1])
    nois = gradients(make_config(nodes=("base", "base"), method="nois", split=split, optim={"clip": 1e9}))
    # Messages hold log-probs in float32, so that ratios are 1 but for a rounding.
    assert_rounded(twins[0], nois[0])


@pytest.mark.parametrize(("split", "nodes"), [("vertical", 3), ("horizontal", 3), ("vertical", 2)])
def test_a_swarm_of_any_size_trains_on_all_completions(make_config, tiny, split, nodes):
    names = ("base", "coder", lora_node(tiny))[:nodes]
    swarm = Swarm(make_config(nodes=names, split=split, prompts=7, group_size=5))
    lines = swarm.iteration(1).nodes
    assert {n.tokens_trained for n in lines} == {sum(n.tokens_generated for n in lines)}
    sampled = [n.sampled.rollouts for n in lines]
    pairs = [(p, s) for r in sampled for p, s in zip(r.prompt.tolist(), r.sample.tolist())]
    assert sorted(pairs) == [(p, s) for p in range(7) for s in range(5)]


def test_bytes_sent_are_those_of_the_messages(make_config):
    swarm = Swarm(make_config(nodes=("base", "coder", "base")))
    lines = swarm.iteration(1).nodes
    vocabulary = swarm.nodes[0].policy.vocab_size
    sizes = [len(encode(Message(bytes(8), 1, n.node, n.sampled.rollouts), vocabulary)) for n in lines]
    assert [line.bytes_sent for line in lines] == [2 * size for size in sizes]
    assert [line.bytes_received for line in lines] == [sum(sizes) - size for size in sizes]


def test_a_token_takes_at_most_six_bytes_whatever_the_text(make_config):
    """Log-probs of a real model, and ids of the largest vocabulary without any pattern."""
    swarm = Swarm(make_config(nodes=("coder",)))
    rollouts = swarm.iteration(1).nodes[0].sampled.rollouts
    ids = np.random.default_rng(0).integers(0, 151_936, len(rollouts.tokens)).astype(np.int32)
    data = encode(Message(bytes(8), 1, 0, replace(rollouts, tokens=ids)), 151_936)
    assert len(ids) > 500 and len(data) / len(ids) < 6


def test_splits_see_the_same_prompts(make_config):
    for split in ("vertical", "horizontal"):
        swarm = Swarm(make_config(split=split))
        chosen = [p.id for p in swarm.asked(3).problems]
        assert chosen == [swarm.problems[i].id for i in iteration_problems(256, 6, 42, 3)]


def test_truncated_completions_can_be_dropped(make_config):
    rollout = {"prompt": "tiny-v1", "max_new_tokens": 24}
    kept = Swarm(make_config(rollout=rollout)).iteration(1).nodes[0]
    dropped = Swarm(make_config(rollout=rollout | {"truncated": "drop"})).iteration(1).nodes[0]
    assert 0 < kept.truncated < 1 and dropped.tokens_trained < kept.tokens_trained


def test_alone_learns(make_config):
    """Training reward rises within a few iterations on a barely warmed-up model: by 0.2 to 0.3 with six other
    draws."""
    config = make_config(
        nodes=("base",), prompts=12, group_size=12, iterations=14, readings={"preset": "paper"}
    )
    swarm = Swarm(config)
    rewards = [line.nodes[0].reward for line in swarm]
    assert np.mean(rewards[-4:]) > np.mean(rewards[:4]) + 0.05, rewards


def test_nodes_must_share_a_tokenizer_by_content(make_config, tiny, tmp_path):
    odd = with_swapped_ids(tiny / "coder", tmp_path / "odd")
    with pytest.raises(UserError, match=r"nodes\.1\.model: its tokenizer differs .*token '[ab]'"):
        Swarm(make_config(nodes=("base", {"name": "odd", "model": str(odd)})))


def test_one_trainer_a_run(make_config, tmp_path):
    refused = pytest.raises(
        UserError, match=r"another process trains this run \(pid \d+ on \S+ since 20\d\d-"
    )
    with state.run_lock(tmp_path / "run/state"), refused:
        train(make_config(), tmp_path / "run")
    assert not (tmp_path / "run/config.yaml").exists()


def test_a_second_trainer_may_wait_and_take_over_what_the_first_leaves(finished, tmp_path, capsys):
    config, done = finished
    out = tmp_path / "run"
    shutil.copytree(done, out)
    held = out / "final.json"
    held.rename(tmp_path / "final.json")
    before = sha256(out / "node0")
    with state.run_lock(out / "state"):
        second = threading.Thread(target=train, args=(config, out, True))
        second.start()
        while "waiting for its end" not in (said := capsys.readouterr().err):
            assert second.is_alive() and not said
            time.sleep(0.01)
        (tmp_path / "final.json").rename(held)
    second.join(60)
    assert "this run is finished; nothing to do" in capsys.readouterr().err
    assert sha256(out / "node0") == before


def test_a_lock_whose_folder_was_removed_keeps_nobody_out(tmp_path):
    took = threading.Event()

    def second():
        with state.run_lock(tmp_path / "state", wait=True):
            took.set()
            while not (tmp_path / "leave").exists():
                time.sleep(0.01)

    waiting = threading.Thread(target=second)
    with state.run_lock(tmp_path / "state"):
        waiting.start()
        time.sleep(0.2)  # it waits for the file that is removed next
        shutil.rmtree(tmp_path / "state")
    assert took.wait(60)
    refused = pytest.raises(UserError, match="another process trains this run")
    with refused, state.run_lock(tmp_path / "state"):
        pass
    (tmp_path / "leave").touch()
    waiting.join(60)


def test_a_file_system_without_locks_is_said_to_be_one(tmp_path, monkeypatch):
    def refuse(_file, _kind):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(state.fcntl, "flock", refuse)
    for locked in (state.run_lock(tmp_path / "state"), state.only_writer(tmp_path / "answers.jsonl")):
        with pytest.raises(UserError, match=r"no locks \(Function not implemented\).*-o flock"), locked:
            pass


def test_a_lock_goes_with_its_file_and_lets_one_in_at_a_time(tmp_path):
    """Each of many removes the file that the others wait for."""
    inside, most = [], []

    def write(k):
        with state.only_writer(tmp_path / "out", wait=True):
            inside.append(k)
            most.append(len(inside))
            time.sleep(0.01)
            inside.remove(k)

    threads = [threading.Thread(target=write, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 8 and not list(tmp_path.iterdir())


def test_finished_and_foreign_folders(finished, tiny, tmp_path, capsys):
    config, out = finished
    before = sha256(out)
    train(config, out)
    assert "nothing to do" in capsys.readouterr().err and sha256(out / "node0") == sha256(out / "node0")
    with pytest.raises(
        UserError, match=r"finished run with other settings \(seed: 42 there, 7 here\); choose"
    ):
        train(pair_config(tiny, iterations=4, seed=7), out)
    assert sha256(out) == before, "neither call touched the finished run"


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_missing_vllm_is_told_before_models_are_loaded(make_config, tmp_path):
    nodes = [{"name": "base_small", "model": "no/such/folder", "learning_rate": 1e-3}]
    config = make_config(nodes, rollout={"prompt": "tiny-v1", "backend": "vllm"})
    with pytest.raises(UserError, match="vLLM can't be imported .*; install it"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_with_top_k_says_what_its_ratios_are_not(make_config, tmp_path, capsys):
    for top_k in (None, 5):
        Swarm(make_config(readings={"top_k": top_k}))
        said = capsys.readouterr().err
        assert said.count(
            "warning: readings.top_k: completions are drawn from the 5 likeliest tokens"
        ) == bool(top_k)


@pytest.mark.parametrize("where", ["rollout", "validation"])
def test_a_context_that_is_too_short_is_refused_before_anything_runs(make_config, tiny, tmp_path, where):
    data = {"name": "tiny", "path": str(tiny / "data/validation.jsonl")}
    changes = {
        "rollout": {"rollout": {"prompt": "tiny-v1", "max_new_tokens": 250}},
        "validation": {"validation": {"data": data, "max_new_tokens": 250}},
    }[where]
    with pytest.raises(
        UserError, match=r"model .*base: reads 256 tokens, prompt and completion may need 2\d\d"
    ):
        train(make_config(**changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()
