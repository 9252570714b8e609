"""Settings: presets, refusals, and what of them decides a run's result."""

from math import inf, nan

import pytest

import ftis.config
from ftis.config import RUN_CONFIG, differences, recipe_hash
from ftis.errors import UserError
from ftis.method.readings import Readings
from ftis.settings import parse

MINIMAL = {"name": "x", "train": {"name": "gsm8k"}, "nodes": [{"name": "a", "model": "m"}], "method": "alone"}


def build(**changes):
    return parse(RUN_CONFIG, MINIMAL | changes, "run.yaml")


def two(**changes):
    nodes = [{"name": "a", "model": "m"}, {"name": "b", "model": "m"}]
    return build(**{"nodes": nodes, "method": "ftis", "threshold": 50} | changes)


def test_a_preset_is_a_start_that_single_choices_override():
    assert Readings(preset="code").kl_estimator == "k3_code"
    mixed = Readings(preset="code", kl_estimator="gen_theta")
    assert (mixed.kl_estimator, mixed.filter_rule) == ("gen_theta", "nonpositive_and_far")
    assert build(readings={"preset": "seed"}).readings.filter_rule == "nonpositive_or_far"


@pytest.mark.parametrize("readings", ["code", 5, ["code"], None, {"preset": ["code"]}, {"preset": "book"}])
def test_readings_that_are_no_mapping_are_never_taken_for_the_default(readings):
    with pytest.raises(UserError, match="readings"):
        build(readings=readings)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nodes": [{"name": "a", "model": "m"}] * 2}, "names must differ"),
        ({"split": "horizontal", "staleness": 1}, "staleness: a horizontal group"),
        ({"readings": {"clip": "literal", "clip_reference": "iteration_start"}}, "two clips; choose one"),
        ({"method": "nois"}, "threshold: method 'nois' doesn't filter; remove it"),
        ({"method": "alone", "threshold": None}, "'alone' takes exactly 1 node, 2 given"),
        ({"prompts": 1}, "1 can't be dealt to 2 nodes"),
        ({"split": "horizontal", "group_size": 1}, "1 can't be split over 2 nodes"),
        ({"reward": "loose"}, "unknown format 'loose'"),
        ({"rollout": {"prompt": "chat-v9"}}, "unknown prompt 'chat-v9'"),
        ({"rollout": {"temperature": 0}}, "rollout.temperature"),
        ({"rollout": {"temperature": 1e-40}}, "rollout.temperature"),
        ({"rollout": {"temperature": inf}}, "rollout.temperature: Input should be a finite number"),
        ({"optim": {"betas": [1.0, 0.9]}}, "optim.betas.0: Input should be less than 1"),
        ({"optim": {"betas": [0.9, -0.1]}}, "optim.betas.1"),
        ({"optim": {"betas": [nan, 0.9]}}, "optim.betas.0"),
        ({"optim": {"eps": inf}}, "optim.eps"),
        ({"optim": {"weight_decay": inf}}, "optim.weight_decay"),
        ({"nodes": [{"name": "a", "model": "m", "learning_rate": inf}]}, "nodes.0.learning_rate"),
        ({"train": {"name": "gsm8k", "shuffle_seed": -1}}, "train.shuffle_seed"),
        ({"threads": 2**31}, "threads"),
    ],
)
def test_combinations_that_make_no_sense(changes, says):
    with pytest.raises(UserError, match=says):
        two(**changes)


def test_differences_name_the_settings_that_decide_a_result():
    changed = two(seed=7, threads=3, optim={"betas": [0.9, 0.95]})
    assert (
        differences(two(), changed)
        == "seed: 42 there, 7 here; optim.betas: [0.9, 0.999] there, [0.9, 0.95] here"
    )
    assert "nodes.1.model: absent there, m here" in differences(build(), two())
    assert differences(two(), two(name="y", deadline=5, cap=2)) == ""


def test_auto_is_what_samples_here_and_so_is_the_recipe(monkeypatch):
    for there, samples in ((True, "vllm"), (False, "transformers")):
        monkeypatch.setattr(ftis.config, "find_spec", lambda _name, there=there: "there" if there else None)
        auto = build(rollout={"backend": "auto"})
        assert auto.rollout.backend == samples and auto.needs_vllm == there
        assert auto == build(rollout={"backend": samples})
        assert recipe_hash(auto) == recipe_hash(build(rollout={"backend": samples}))
        assert build().rollout.backend == "transformers"
    with pytest.raises(UserError, match="rollout.backend: Input should be 'auto', 'transformers' or 'vllm'"):
        build(rollout={"backend": "llama"})


def test_the_recipe_holds_what_decides_the_result_and_nothing_else():
    base = recipe_hash(build())
    for same in (
        {"name": "other"},
        {"threads": 2},
        {"checkpoint_every": 3},
        {"nodes": [{"name": "a", "model": "m", "label": "M", "device": "cpu", "micro_batch_tokens": 64}]},
        {"transport": "processes", "deadline": 60},
    ):
        assert recipe_hash(build(**same)) == base, same
    for other in (
        {"optim": {"name": "adamw"}},
        {"train": {"name": "math500"}},
        {"seed": 1},
        {"nodes": [{"name": "b", "model": "m"}]},
        {"nodes": [{"name": "a", "model": "m", "revision": "abc"}]},
        {"nodes": [{"name": "a", "model": "m", "backend": "vllm"}]},
        {"readings": {"std": "population"}},
        {"validation": {"every": 3}},
    ):
        assert recipe_hash(build(**other)) != base, other
