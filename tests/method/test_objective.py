"""The objective: values and gradients worked by hand, identities, and a slow independent reference.

r = pi_theta / pi_gen. Tests give log r of each token and put log pi_gen at -2, so log pi_theta = log r - 2.
The gradient is that of the minimised total, with respect to log pi_theta of each token.
"""

import json
import math
from dataclasses import fields
from itertools import product

import pytest
import torch

from ftis.method.filters import FILTER_RULES, Far, Seen
from ftis.method.kl import KL_ESTIMATORS, KL_REDUCTIONS, sequence_kl
from ftis.method.methods import METHODS
from ftis.method.objective import group_advantages, grpo_loss
from ftis.method.readings import PRESETS, Readings
from tests.method import reference
from tests.method.objectives import WEIGHTINGS, objective, weighting_name
from tests.numerics import assert_rounded

LN2 = math.log(2)
INF = math.inf
RULES = ("negative_and_far", "nonpositive_and_far", "nonpositive_or_far")
REDUCTIONS = ("sum", "mean", "padded_mean")
EXACT = {"rtol": 0, "atol": 1e-12}


def pad(rows, width=None, fill=0.0, dtype=torch.float64):
    """Lists over tokens -> a right-padded (N, T) tensor."""
    width = width or max(map(len, rows))
    out = torch.full((len(rows), width), fill, dtype=dtype)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = torch.as_tensor(row, dtype=dtype)
    return out


def lengths_mask(lengths, width=None):
    return torch.arange(width or max(lengths)) < torch.tensor(lengths)[:, None]


def run(
    weighting, log_r, a, *, threshold=None, eps=0.2, cap=2.0, own=None, width=None, log_x=None, **readings
):
    """(Loss, gradient (N, T)) of completions given by the log-ratios of their tokens, in float64.

    With log_x, the policy at the iteration's start lies between: log x = log pi_theta - log pi_start and
    log_r = log pi_start - log pi_gen.
    """
    lengths = [len(row) for row in log_r]
    gen = pad([[-2.0] * n for n in lengths])
    start = gen + pad(log_r)
    theta = (start + (pad(log_x) if log_x else 0.0)).requires_grad_()
    loss = grpo_loss(
        objective(weighting, threshold, eps, cap, Readings(**readings)),
        theta,
        gen,
        lengths_mask(lengths),
        torch.tensor(a, dtype=torch.float64),
        torch.tensor(own or [False] * len(a)),
        torch.tensor(width or lengths),
        start if log_x else None,
    )
    loss.total.backward()
    return loss, theta.grad


def close(actual, expected, **tolerance):
    torch.testing.assert_close(
        actual.double(), torch.as_tensor(expected, dtype=torch.float64), **(tolerance or EXACT)
    )


def logs(*ratios):
    return [math.log(r) for r in ratios]


# ------------------------------------------------------------------------------------------- advantages


def test_advantages_by_hand():
    # Group 5: 1 0 0 0, mean 1/4, squares .5625 + 3 x .0625 = .75; sample std sqrt(.75 / 3) = .5,
    # population std sqrt(.75 / 4) = .4330127. Group 2, mixed in between: 1 0, mean 1/2, squares .5,
    # sample std sqrt(.5) = .7071068, population std .5.
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    group = torch.tensor([5, 2, 5, 2, 5, 5])
    root = math.sqrt(0.5)
    close(group_advantages(rewards, group), [1.5, root, -0.5, -root, -0.5, -0.5])
    root3 = math.sqrt(3)
    close(
        group_advantages(rewards, group, std="population"), [root3, 1, -root3 / 3, -1, -root3 / 3, -root3 / 3]
    )
    close(group_advantages(rewards, group, scale="none"), [0.75, 0.5, -0.25, -0.5, -0.25, -0.25])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [3, 7, 12])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 0.7, 1 / 3, 1e-9, 1e9, -0.3])
def test_equal_rewards_give_exactly_zero(reward, size, dtype):
    # 0.1 + 0.1 + 0.1 != 0.3 in floating point: the mean of equal rewards need not be that reward.
    rewards = torch.full((size + 2,), reward, dtype=dtype)
    rewards[-1] = reward + max(1, abs(reward))  # a second, unequal group beside it
    group = torch.tensor([3] * size + [8] * 2)
    for scale, std in product(("std", "none"), ("sample", "population")):
        advantages = group_advantages(rewards, group, scale, std)
        assert (advantages[:size] == 0).all()
        assert advantages[-1] > 0 > advantages[-2]


def test_equality_decides_and_not_a_small_std():
    # Two rewards 1e-8 apart are unequal: +-(d / 2) / sqrt(d^2 / 2) = +-sqrt(1/2).
    rewards = torch.tensor([0.0, 1e-8], dtype=torch.float64)
    close(group_advantages(rewards, torch.tensor([0, 0])), [-math.sqrt(0.5), math.sqrt(0.5)])


def test_group_of_one_is_zero():
    rewards = torch.tensor([1.0, 0.3, 0.0])
    for scale, std in product(("std", "none"), ("sample", "population")):
        assert (group_advantages(rewards, torch.tensor([2, 0, 1]), scale, std) == 0).all()


# ------------------------------------------------------------------------------------------- weightings


def test_nois_ignores_the_ratio():
    # Value A a token; completion 1 has 2 tokens, completion 2 has 1: total -(1.5 - 0.5) = -1.
    loss, grad = run("none", [logs(0.5, 4), logs(3)], [1.5, -0.5])
    close(loss.total, -1.0)
    close(grad, [[-0.75, -0.75], [0.5, 0]])
    assert loss.count == 2
    assert not loss.filtered.any()


def test_vis_by_hand():
    # A = 1, r = .5, 4, 1.1: min(.5, .8) = .5; min(4, 1.2) = 1.2; 1.1. Mean 2.8 / 3.
    # The slope of r A is r A where r is the smaller one: .5, 0 and 1.1, over 3 tokens.
    loss, grad = run("vis", [logs(0.5, 4, 1.1)], [1.0])
    close(loss.total, -2.8 / 3)
    close(grad, [[-0.5 / 3, 0, -1.1 / 3]])
    # A = -1: min(-.5, -.8) = -.8 is constant; min(-4, -1.2) = -4; -1.1. Mean -5.9 / 3.
    loss, grad = run("vis", [logs(0.5, 4, 1.1)], [-1.0])
    close(loss.total, 5.9 / 3)
    close(grad, [[0, 4 / 3, 1.1 / 3]])


def test_tis_by_hand():
    # A = 1.5, C = 2: weights min(.5, 2) = .5 and min(4, 2) = 2; mean 1.5 x 2.5 / 2 = 1.875.
    # The weights are constants, the slope is weight x A / 2.
    loss, grad = run("tis", [logs(0.5, 4)], [1.5])
    close(loss.total, -1.875)
    close(grad, [[-0.375, -1.5]])
    loss, grad = run("tis", [logs(0.5, 4)], [-1.0], cap=3.0)
    close(loss.total, 1.75)
    close(grad, [[0.25, 1.5]])


def test_undetached_weight():
    # min(r, C) R A with both factors moving: slope 2 r A below the cap, C A above; half of it a token.
    loss, grad = run("tis", [logs(0.5, 4)], [1.5], detach_weight=False)
    close(loss.total, -1.875)
    close(grad, [[-0.75, -1.5]])


def test_sequence_level_weight():
    # r = .5 x 3 = 1.5 for both tokens: total -1.5 A, slope 1.5 A / 2 a token.
    loss, grad = run("tis", [logs(0.5, 3)], [2.0], weight_level="sequence")
    close(loss.total, -3.0)
    close(grad, [[-1.5, -1.5]])
    # r = .5 x 6 = 3 is cut to C = 2.
    loss, grad = run("tis", [logs(0.5, 6)], [1.0], weight_level="sequence")
    close(loss.total, -2.0)
    close(grad, [[-1, -1]])
    # Undetached, each token moves the common weight too: 1.5 / 2 + 1.5 = 2.25.
    _, grad = run("tis", [logs(0.5, 3)], [1.0], weight_level="sequence", detach_weight=False)
    close(grad, [[-2.25, -2.25]])
    # VIS: r = 2 x .55 = 1.1 lies within 1 +- .2, and its slope in either token is r. r = 3 is clipped.
    loss, grad = run("vis", [logs(2, 0.55)], [1.0], weight_level="sequence")
    close(loss.total, -1.1)
    close(grad, [[-1.1, -1.1]])
    loss, grad = run("vis", [logs(0.5, 6)], [1.0], weight_level="sequence")
    close(loss.total, -1.2)
    close(grad, [[0, 0]])
    # NoIS has no weight to move.
    _, grad = run("none", [logs(0.5, 6)], [1.0], weight_level="sequence")
    close(grad, [[-0.5, -0.5]])


def test_literal_clip_kills_the_gradient_of_large_advantages():
    # R A = A: 1.5 is cut to 1.2 and has no slope; 1.1, 0.5 and -1 are not touched.
    loss, grad = run("none", [[0.0], [0.0], [0.0], [0.0]], [1.5, 1.1, 0.5, -1.0], clip="literal")
    close(loss.total, -(1.2 + 1.1 + 0.5 - 1.0))
    close(grad, [[0], [-1.1], [-0.5], [1]])
    # TIS, weight 2: 2 x 1.2 = 2.4 without slope; 2 x 1.1 with slope 2.2.
    loss, grad = run("tis", [logs(3), logs(3)], [1.5, 1.1], clip="literal")
    close(loss.total, -4.6)
    close(grad, [[0], [-2.2]])
    # VIS, r A = 1.5 x 1 is cut; .5 x 1.5 = .75 isn't, nor is 1.5 x -1.
    loss, grad = run("vis", [logs(1.5), logs(0.5), logs(1.5)], [1.0, 1.5, -1.0], clip="literal")
    close(loss.total, -(1.2 + 0.75 - 1.5))
    close(grad, [[0], [-0.75], [1.5]])


def test_clip_around_a_ratio_of_one_never_acts():
    # The default reading: A = 3 keeps its full slope in NoIS and TIS whatever eps is.
    for weighting in ("none", "tis"):
        _, grad = run(weighting, [[0.0]], [3.0], eps=0.01)
        close(grad, [[-3]])


def test_clip_reference_iteration_start():
    # x = pi_theta / pi_start, one token each, A = 1 1 -1 -1:
    # x = 1.5 -> 1.2, no slope; .5 -> .5; .5 -> -.8, no slope; 1.5 -> -1.5. Sum -.6.
    log_x, a, slope = (
        [[v] for v in logs(1.5, 0.5, 0.5, 1.5)],
        [1.0, 1.0, -1.0, -1.0],
        [[0], [-0.5], [0], [1.5]],
    )
    ppo = {"log_x": log_x, "clip_reference": "iteration_start"}
    loss, grad = run("none", [[0.0]] * 4, a, **ppo)
    close(loss.total, 0.6)
    close(grad, slope)
    # pi_start / pi_gen = 3 is the weight: 2 in TIS, 3 in VIS, constants both.
    for weighting, weight in (("tis", 2), ("vis", 3)):
        loss, grad = run(weighting, [logs(3)] * 4, a, **ppo)
        close(loss.total, 0.6 * weight)
        close(grad, [[s[0] * weight] for s in slope])


def test_iteration_start_weights_by_the_start_and_measures_distance_by_now():
    # pi_start / pi_gen = 4 but pi_theta / pi_gen = 4 x 1/8 = 1/2: d = log 2 > .5, so it is filtered;
    # with pi_theta / pi_gen = 4 x 1/4 = 1 it isn't, and pays the clipped weight 2 x .8.
    ppo = {"threshold": 0.5, "clip_reference": "iteration_start"}
    loss, _ = run("tis", [logs(4), logs(4)], [-1.0, -1.0], log_x=[logs(1 / 8), logs(1 / 4)], **ppo)
    assert loss.filtered.tolist() == [True, False]
    close(loss.total, 1.6)


# ------------------------------------------------------------------------------------------- the distance

# d = log 2, -log 2, log 4 for three tokens; L = log 2:
#   gen_theta          L - L + 2L                                     = 2L
#   k3_gen_theta       (1/2 + L - 1) + (2 - L - 1) + (1/4 + 2L - 1)   = 2L - 1/4
#   k3_code            (2 - L - 1) + (1/2 + L - 1) + (4 - 2L - 1)     = 3.5 - 2L
#   is_theta_gen       -L/2 + 2L - 2L/4                               = L
KL_SUMS = {
    "gen_theta": 2 * LN2,
    "theta_gen_literal": -2 * LN2,
    "k3_gen_theta": 2 * LN2 - 0.25,
    "k3_code": 3.5 - 2 * LN2,
    "is_theta_gen": LN2,
}
KL_TOKENS = [LN2, -LN2, 2 * LN2]


def test_estimators_are_all_covered():
    assert set(KL_SUMS) == set(KL_ESTIMATORS)
    assert set(RULES) == set(FILTER_RULES) and set(REDUCTIONS) == set(KL_REDUCTIONS)


@pytest.mark.parametrize("estimator", KL_SUMS)
@pytest.mark.parametrize(("reduction", "over"), [("sum", 1), ("mean", 3), ("padded_mean", 6)])
def test_estimator_and_reduction_by_hand(estimator, reduction, over):
    # The completion has 3 tokens in a tensor of 5; the longest of its group, not here, has 6.
    d = pad([KL_TOKENS], width=5, fill=math.nan)
    kl = sequence_kl(KL_ESTIMATORS[estimator](d), lengths_mask([3], 5), reduction, torch.tensor([6]))
    expected = KL_SUMS[estimator] / over
    close(kl, [expected])
    # The same number is what the loss compares with g.
    for threshold, dropped in ((expected - 1e-6, True), (expected + 1e-6, False)):
        loss, grad = run(
            "none", [[-v for v in KL_TOKENS]], [-1.0], threshold=threshold, width=[6],
            kl_estimator=estimator, kl_reduction=reduction,
        )  # fmt: skip
        assert loss.filtered.item() == loss.far.item() == dropped
        close(grad, [[0.0] * 3 if dropped else [1 / 3] * 3])


def test_what_the_estimators_estimate():
    # Two tokens, pi_gen = 1/2 1/2, pi_theta = 1/4 3/4; exact expectations under pi_gen: KL(gen||theta) = (log
    # 2 + log 2/3) / 2 = .1438410; KL(theta||gen) = (log 1/2 + 3 log 3/2) / 4 = .1308120; k3_code: ((2 - log 2
    # - 1) + (2/3 - log 2/3 - 1)) / 2 = .1894923, which is neither.
    d = torch.tensor([[LN2], [math.log(2 / 3)]], dtype=torch.float64)
    forward = (LN2 + math.log(2 / 3)) / 2
    backward = (math.log(1 / 2) + 3 * math.log(3 / 2)) / 4
    expected = {
        "gen_theta": forward,
        "theta_gen_literal": -forward,
        "k3_gen_theta": forward,
        "k3_code": 0.1894923,
        "is_theta_gen": backward,
    }
    assert forward == pytest.approx(0.1438410, abs=1e-7)
    assert backward == pytest.approx(0.1308120, abs=1e-7)
    for name, value in expected.items():
        assert KL_ESTIMATORS[name](d).mean().item() == pytest.approx(value, abs=1e-7)


# ------------------------------------------------------------------------------------------- the filter

# (A, d): harmful and far; harmful and near; neutral and far; neutral and near; good and far; good and near
FILTER_A = [-1.0, -1.0, 0.0, 0.0, 1.0, 1.0]
FILTER_D = [2.0, 0.5, 2.0, 0.5, 2.0, 0.5]
FILTERED = {
    "negative_and_far": [True, False, False, False, False, False],
    "nonpositive_and_far": [True, False, True, False, False, False],
    "nonpositive_or_far": [True, True, True, True, True, False],
}


def decided(a, kl, rule):
    """The filter at g = 1 on completions of one token with these advantages and distances."""
    n = len(a)
    seen = Seen(
        kl[:, None], torch.ones(n, 1, dtype=torch.bool), a, torch.zeros(n, dtype=torch.bool), torch.ones(n)
    )
    return Far(threshold=1.0, filter_rule=rule)(seen)


@pytest.mark.parametrize("rule", RULES)
def test_filter_rules_by_hand(rule):
    a, kl = torch.tensor(FILTER_A), torch.tensor(FILTER_D)
    left_out = decided(a, kl, rule)
    bad, far = left_out.bad, left_out.far
    assert bad.tolist() == [True, True, rule != "negative_and_far", rule != "negative_and_far", False, False]
    assert far.tolist() == [True, False, True, False, True, False]
    assert left_out.drop.tolist() == FILTERED[rule]


@pytest.mark.parametrize("rule", RULES)
def test_kl_equal_to_the_threshold_is_not_far(rule):
    a = torch.tensor([-1.0, 1.0])
    left_out = decided(a, torch.tensor([1.0, 1.0]), rule)
    assert not left_out.far.any()
    assert left_out.drop.tolist() == [rule.endswith("or_far"), False]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("denominator", ["stay", "leave"])
def test_filtered_methods_by_hand(weighting, rule, denominator):
    # One token each, r = exp(-d): the term of a sample is w(r) A, its slope s(r, A):   none: A, A.   tis: r
    # A, r A (r < C).   vis: r A with slope where A > 0 (r < .8); -.8 without for A < 0.
    loss, grad = run(
        weighting, [[-d] for d in FILTER_D], FILTER_A,
        threshold=1.0, filter_rule=rule, filtered_denominator=denominator,
    )  # fmt: skip
    r = [math.exp(-d) for d in FILTER_D]
    value = {
        "none": FILTER_A,
        "tis": [x * a for x, a in zip(r, FILTER_A, strict=True)],
        "vis": [-0.8, -0.8, 0, 0, r[4], r[5]],
    }[weighting]
    slope = [0, 0, 0, 0, r[4], r[5]] if weighting == "vis" else value
    kept = [not dropped for dropped in FILTERED[rule]]
    close(loss.total, -sum(v for v, k in zip(value, kept, strict=True) if k))
    close(grad, [[-s if k else 0.0] for s, k in zip(slope, kept, strict=True)])
    assert loss.filtered.tolist() == FILTERED[rule]
    assert loss.count == (6 if denominator == "stay" else sum(kept))


def test_filter_scope_foreign_spares_own_samples():
    for scope, dropped in (("all", [True, True]), ("foreign", [False, True])):
        loss, grad = run(
            "none", [[-2.0], [-2.0]], [-1.0, -1.0], threshold=1.0, own=[True, False], filter_scope=scope
        )
        assert loss.filtered.tolist() == dropped
        close(grad, [[0.0 if d else 1.0] for d in dropped])


def test_filtered_sample_counts_in_its_groups_mean_and_std():
    # Rewards 1 0 0 0: A = 1.5 -.5 -.5 -.5. Two of the zeros are far and leave the update; recomputed over the
    # other two (1 0) the first A would be .7071.
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    advantages = group_advantages(rewards, torch.zeros(4, dtype=torch.long)).tolist()
    loss, grad = run("none", [[0.0], [-3.0], [-3.0], [0.0]], advantages, threshold=1.0)
    close(grad, [[-1.5], [0], [0], [0.5]])
    close(loss.total, -1.0)
    assert loss.count == 4


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("denominator", ["stay", "leave"])
def test_fully_filtered_batch_has_zero_gradient(weighting, denominator):
    loss, grad = run(
        weighting, [[-3.0, 400.0], [2.0], [-400.0]], [-1.0, 0.0, -2.0],
        threshold=1.0, filter_rule="nonpositive_or_far", filtered_denominator=denominator,
    )  # fmt: skip
    assert loss.filtered.all()
    assert loss.total == 0
    assert (grad == 0).all()
    assert loss.count == (3 if denominator == "stay" else 0)


# ------------------------------------------------------------------------------------------- presets


def test_presets_are_those_of_the_paper_page():
    table = {
        "filter_rule": ("negative_and_far", "nonpositive_and_far", "nonpositive_or_far"),
        "kl_estimator": ("gen_theta", "k3_code", "gen_theta"),
        "kl_reduction": ("sum", "padded_mean", "sum"),
        "advantage_scale": ("std", "none", "std"),
        "filtered_denominator": ("stay", "leave", "stay"),
        "weight_level": ("token", "token", "token"),
        "filter_scope": ("all", "all", "all"),
        "top_k": (None, 50, None),
        # options beyond the presets
        "std": ("sample", "sample", "sample"),
        "clip": ("ratio", "ratio", "ratio"),
        "clip_reference": ("generation", "generation", "generation"),
        "detach_weight": (True, True, True),
        "preset": ("paper", "code", "seed"),
    }
    assert set(PRESETS) == {"paper", "code", "seed"}
    assert set(table) == {f.name for f in fields(Readings)}
    for i, preset in enumerate(("paper", "code", "seed")):
        assert {k: getattr(Readings(preset=preset), k) for k in table} == {k: v[i] for k, v in table.items()}
    assert Readings() == Readings(preset="paper")


def test_a_reading_overrides_its_preset():
    readings = Readings(preset="code", kl_reduction="mean", top_k=None)
    assert (readings.kl_reduction, readings.top_k, readings.kl_estimator) == ("mean", None, "k3_code")


def test_methods_are_those_of_the_paper_page():
    assert {k: (weighting_name(k), m.filtered) for k, m in METHODS.items()} == reference.METHODS


PRESET_LOSSES = {
    # Group 0: rewards 1 0 0 0 (a b c d), the longest 2 tokens. Group 1: rewards 1 1 (e f), 1 token. g = .5, C
    # = 2.         a        b          c     d        e        f r       1/4      1/2, 1     1     1/4
    # 1/4      1 sum d   1.386    .693       0     1.386    1.386    0          (gen_theta, sum) k3_code
    # 1.6137   .3069, 0   0     1.6137   1.6137   0          over the width: .807 .153 0 .807 1.614 0
    #
    # paper: A = 1.5 -.5 -.5 -.5 0 0. b and d are harmful and far. -(1.5/4 - .5) = .125, over 6.
    "paper": (0.125, 6, "bd", [[-0.375, 0], [0, 0], [0.5, 0], [0, 0], [0, 0], [0, 0]]),
    # code: A = .75 -.25 -.25 -.25 0 0. d and e go. -(.75/4 - .25 x (.5 + 1)/2 - .25) = .25, over 4.
    "code": (0.25, 4, "de", [[-0.1875, 0], [0.0625, 0.125], [0.25, 0], [0, 0], [0, 0], [0, 0]]),
    # seed: every A <= 0 goes, and a because it is far: nothing is left of 6.
    "seed": (0.0, 6, "abcdef", [[0, 0]] * 6),
}


@pytest.mark.parametrize("preset", PRESET_LOSSES)
def test_ftis_under_each_preset_by_hand(preset):
    total, count, dropped, slopes = PRESET_LOSSES[preset]
    readings = Readings(preset=preset)
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1], dtype=torch.float64)
    group = torch.tensor([0, 0, 0, 0, 1, 1])
    advantages = group_advantages(rewards, group, readings.advantage_scale, readings.std).tolist()
    log_r = [logs(0.25), logs(0.5, 1), [0.0], logs(0.25), logs(0.25), [0.0]]
    loss, grad = run("tis", log_r, advantages, threshold=0.5, width=[2, 2, 2, 2, 1, 1], preset=preset)
    close(loss.total, total)
    assert loss.count == count
    assert [c for c, drop in zip("abcdef", loss.filtered, strict=True) if drop] == list(dropped)
    close(grad, slopes)


# ------------------------------------------------------------------------------------------- identities


def tensors(batch, width=None, fill=0.0, dtype=torch.float64):
    """A reference batch as keyword arguments of `grpo_loss`, without advantages."""
    lengths = [len(row) for row in batch.theta]
    widths = [max(n for n, g in zip(lengths, batch.group, strict=True) if g == own) for own in batch.group]
    return {
        "logp": pad(batch.theta, width, fill, dtype).requires_grad_(),
        "logp_gen": pad(batch.gen, width, fill, dtype),
        "logp_start": pad(batch.start, width, fill, dtype),
        "mask": lengths_mask(lengths, width),
        "own": torch.tensor(batch.own),
        "group_width": torch.tensor(widths),
    }


def vectorised(batch, choice, width=None, fill=0.0, dtype=torch.float64):
    """(Loss, gradient) of `grpo_loss` on a reference batch."""
    given = tensors(batch, width, fill, dtype)
    names = {f.name for f in fields(Readings)} & {f.name for f in fields(choice)}
    readings = Readings(**{name: getattr(choice, name) for name in names})
    advantages = group_advantages(
        torch.tensor(batch.reward, dtype=torch.float64),
        torch.tensor(batch.group),
        choice.advantage_scale,
        choice.std,
    ).to(dtype)
    loss = grpo_loss(
        objective(choice.weighting, choice.threshold, choice.eps, choice.cap, readings),
        advantages=advantages,
        **given,
    )
    loss.total.backward()
    return loss, given["logp"].grad


def on_policy(batch):
    return reference.Batch(batch.reward, batch.group, batch.own, batch.theta, batch.theta, batch.theta)


# VIS with a sequence's ratio is left out: the product has slope 1 in each of its tokens, not 1 / length.
@pytest.mark.parametrize(
    ("weighting", "level"),
    [(w, lv) for w in WEIGHTINGS for lv in ("token", "sequence") if (w, lv) != ("vis", "sequence")],
)
def test_on_policy_every_unfiltered_method_has_alones_gradient(weighting, level):
    batch = on_policy(reference.random_batch(1))
    loss, grad = vectorised(batch, reference.Choice(weighting, weight_level=level))
    alone, expected = vectorised(batch, reference.Choice("none"))
    close(grad, expected)
    close(loss.total, alone.total)
    assert expected.abs().max() > 0.1


@pytest.mark.parametrize("estimator", KL_SUMS)
@pytest.mark.parametrize("rule", RULES[:2])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_on_policy_the_and_rules_have_alones_gradient(weighting, rule, estimator):
    batch = on_policy(reference.random_batch(2))
    choice = reference.Choice(weighting, threshold=1e-6, filter_rule=rule, kl_estimator=estimator)
    loss, grad = vectorised(batch, choice)
    _, expected = vectorised(batch, reference.Choice("none"))
    assert not loss.filtered.any()
    close(grad, expected)


def test_on_policy_the_or_rule_keeps_the_positive_samples():
    batch = on_policy(reference.random_batch(2))
    loss, grad = vectorised(batch, reference.Choice("tis", threshold=5.0, filter_rule="nonpositive_or_far"))
    _, alone = vectorised(batch, reference.Choice("none"))
    positive = torch.tensor(reference.advantages(batch, reference.Choice())) > 0
    assert loss.filtered.tolist() == (~positive).tolist()
    close(grad, torch.where(positive[:, None], alone, 0.0))


def test_tis_without_a_cap_is_the_plain_weighted_gradient():
    batch = reference.random_batch(3, spread=2.0)
    advantages = reference.advantages(batch, reference.Choice())
    expected = pad([
        [-math.exp(t - g) * a / len(theta) for t, g in zip(theta, gen, strict=True)]
        for theta, gen, a in zip(batch.theta, batch.gen, advantages, strict=True)
    ])  # fmt: skip
    for cap in (1e9, INF):
        _, grad = vectorised(batch, reference.Choice("tis", cap=cap))
        close(grad, expected, rtol=1e-12, atol=1e-12)
    _, capped = vectorised(batch, reference.Choice("tis", cap=2.0))
    assert (capped - expected).abs().max() > 1


def test_tis_and_vis_gradients_agree_near_a_ratio_of_one():
    batch = reference.random_batch(4, spread=0.3)
    _, tis = vectorised(batch, reference.Choice("tis", cap=INF))
    _, vis = vectorised(batch, reference.Choice("vis"))
    ratio = torch.exp(pad(batch.theta) - pad(batch.gen))
    inside = ((ratio - 1).abs() < 0.2) & lengths_mask([len(t) for t in batch.theta])
    assert inside.sum() > 10
    close(tis[inside], vis[inside])
    assert (tis - vis).abs().max() > 0.1  # outside they part


MICRO_CHOICES = [
    reference.Choice("none"),
    reference.Choice("vis"),
    reference.Choice("tis", weight_level="sequence"),
    reference.Choice("vis", weight_level="sequence", clip_reference="iteration_start"),
    reference.Choice("tis", threshold=0.3),
    reference.Choice("tis", threshold=0.1, **reference.READINGS["code"]),
    reference.Choice(
        "vis", threshold=0.3, filter_rule="nonpositive_or_far", clip_reference="iteration_start"
    ),
]


@pytest.mark.parametrize("choice", MICRO_CHOICES)
@pytest.mark.parametrize("size", [1, 3, 5, 16])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)  # float32, as in training
def test_micro_batches_and_padding_change_nothing(choice, size, dtype):
    # Each micro-batch padded further, the sums over the summed counts.
    batch = reference.random_batch(5)
    whole, expected = vectorised(batch, choice)
    given = tensors(batch, width=11, dtype=dtype)
    logp = given["logp"]
    advantages = torch.tensor(reference.advantages(batch, choice), dtype=dtype)
    names = {f.name for f in fields(Readings)} & {f.name for f in fields(choice)}
    loss_of = objective(
        choice.weighting, choice.threshold, 0.2, 2.0, Readings(**{n: getattr(choice, n) for n in names})
    )
    total, count, dropped = 0.0, 0, []
    for rows in torch.arange(16).split(size):
        loss = grpo_loss(loss_of, advantages=advantages[rows], **{k: v[rows] for k, v in given.items()})
        loss.total.backward()
        total, count = total + loss.total.item(), count + int(loss.count)
        dropped += loss.filtered.tolist()
    assert dropped == whole.filtered.tolist()
    assert count == whole.count
    if dtype == torch.float64:
        assert total == pytest.approx(whole.total.item(), rel=0, abs=1e-12)
        close(logp.grad[:, :6], expected)
    else:  # where a token's ratio isn't clipped, its gradient is as large as its term
        assert_rounded(total, whole.total, float(expected.abs().sum() + whole.total.detach().abs()))
        assert_rounded(logp.grad[:, :6], expected)
    assert (logp.grad[:, 6:] == 0).all()


# ------------------------------------------------------------------------------------------- extremes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reference_policy", ["generation", "iteration_start"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_extreme_log_ratios_stay_finite(weighting, level, reference_policy, dtype):
    extremes = [-500.0, -80.0, 0.0, 80.0, 500.0]
    rows = [[e] for e in extremes] + [[e] * 7 for e in extremes] + [extremes]
    gen, theta = pad([[-600.0] * len(r) for r in rows], dtype=dtype), pad(rows, dtype=dtype) - 600
    lengths = [len(r) for r in rows]
    own, widths = torch.zeros(len(rows), dtype=torch.bool), torch.tensor(lengths)
    for a, detach, clip, estimator, start in product(
        (1.5, -1.5), (True, False), ("ratio", "literal"), KL_ESTIMATORS, (gen, theta - 1, -theta - 1200)
    ):
        readings = Readings(
            weight_level=level, clip_reference=reference_policy, detach_weight=detach, clip=clip,
            kl_estimator=estimator,
        )  # fmt: skip
        logp = theta.clone().requires_grad_()
        loss = grpo_loss(
            objective(weighting, 50.0, 0.2, 2.0, readings), logp, gen, lengths_mask(lengths),
            torch.full((len(rows),), a, dtype=dtype), own, widths, start,
        )  # fmt: skip
        loss.total.backward()
        assert torch.isfinite(loss.total)
        assert torch.isfinite(logp.grad).all()


def test_extreme_ratios_by_hand():
    # r = e^500: TIS weighs by C = 2, VIS clips a good sample at 1.2. r = e^-500: both are 0 for a good
    # sample, and VIS is -.8 for a bad one.
    for level in ("token", "sequence"):
        loss, grad = run("tis", [[500.0], [-500.0]], [1.0, 1.0], weight_level=level)
        close(loss.total, -2.0)
        close(grad, [[-2], [0]])
        loss, grad = run("vis", [[500.0], [-500.0], [-500.0]], [1.0, 1.0, -1.0], weight_level=level)
        close(loss.total, -1.2 + 0.8)
        close(grad, [[0], [0], [0]])


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_estimators_stay_finite_and_fire_at_extremes(estimator, dtype):
    d = torch.tensor([-500.0, -80.0, 80.0, 500.0], dtype=dtype)
    values = KL_ESTIMATORS[estimator](d)
    assert torch.isfinite(values).all()
    fires = {  # over g = 50, where the exact value is: e^80 - 81 and 80 - 1 are, -80 and 80 e^-80 aren't
        "gen_theta": [False, False, True, True],
        "theta_gen_literal": [True, True, False, False],
        "k3_gen_theta": [True, True, True, True],
        "k3_code": [True, True, True, True],
        "is_theta_gen": [True, True, False, False],
    }
    assert (values > 50).tolist() == fires[estimator]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("garbage", [math.nan, -INF, INF, 1e30, -1e30])
@pytest.mark.parametrize("choice", MICRO_CHOICES)
def test_garbage_in_the_padding_never_leaks(choice, garbage, dtype):
    batch = reference.random_batch(6)
    clean, expected = vectorised(batch, choice, width=9, dtype=dtype)
    dirty, grad = vectorised(batch, choice, width=9, fill=garbage, dtype=dtype)
    assert torch.equal(dirty.total, clean.total)
    assert torch.equal(grad, expected)
    assert (grad[~lengths_mask([len(t) for t in batch.theta], 9)] == 0).all()
    for name in ("filtered", "bad", "far", "count"):
        assert torch.equal(getattr(dirty, name), getattr(clean, name))


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_garbage_in_the_padding_never_reaches_the_filter(estimator, reduction):
    batch = reference.random_batch(6)
    choice = reference.Choice("tis", 0.1, kl_estimator=estimator, kl_reduction=reduction)
    clean, _ = vectorised(batch, choice, width=9)
    for garbage in (math.nan, INF, -INF):
        dirty, _ = vectorised(batch, choice, width=9, fill=garbage)
        assert torch.equal(dirty.far, clean.far)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_fully_masked_batch_is_differentiable_and_adds_zero(weighting, reduction):
    logp = torch.full((2, 3), math.nan, requires_grad=True)
    loss = grpo_loss(
        objective(weighting, 1.0, 0.2, 2.0, Readings(kl_reduction=reduction)),
        logp,
        torch.zeros(2, 3),
        torch.zeros(2, 3, dtype=torch.bool),
        torch.tensor([1.0, -1.0]),
        torch.zeros(2, dtype=torch.bool),
        torch.zeros(2, dtype=torch.long),
    )
    loss.total.backward()
    assert loss.total == 0
    assert (logp.grad == 0).all()


# ------------------------------------------------------------------------------------------- slow reference


def compare(batch, choice):
    """One choice against the reference; returns the number of filtered completions."""
    loss, grad = vectorised(batch, choice)
    total, count, dropped = reference.loss(batch, choice)
    assert loss.filtered.tolist() == dropped, choice
    assert loss.count == count, choice
    assert loss.total.item() == pytest.approx(total, abs=1e-9, rel=1e-9), choice
    torch.testing.assert_close(
        grad, pad(reference.gradient(batch, choice)), rtol=1e-7, atol=1e-7, msg=str(choice)
    )
    return sum(dropped)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", METHODS)
def test_methods_and_filters_against_the_slow_reference(method, seed):
    batch = reference.random_batch(100 + seed)
    weighting, filters = weighting_name(method), METHODS[method].filtered
    if not filters:
        compare(batch, reference.Choice(weighting))
        return
    dropped = []
    for rule, estimator, reduction, denominator in product(RULES, KL_SUMS, REDUCTIONS, ("stay", "leave")):
        choice = reference.Choice(
            weighting, threshold=0.2, filter_rule=rule, kl_estimator=estimator,
            kl_reduction=reduction, filtered_denominator=denominator,
        )  # fmt: skip
        dropped.append(compare(batch, choice))
    assert min(dropped) <= 2  # the threshold bites, and not always
    assert max(dropped) > 6


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("filters", [False, True])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_other_readings_against_the_slow_reference(weighting, filters, seed):
    batch = reference.random_batch(200 + seed)
    options = product(
        ("std", "none"), ("sample", "population"), ("all", "foreign"), ("token", "sequence"),
        (True, False), ("ratio", "literal"), ("generation", "iteration_start"),
    )  # fmt: skip
    for scale, std, scope, level, detach, clip, start in options:
        if (scale == "none" and std == "population") or (weighting != "tis" and not detach):
            continue  # neither is read there
        if not filters and scope == "foreign":
            continue
        choice = reference.Choice(
            weighting, 0.2 if filters else None, eps=0.15, cap=1.5, advantage_scale=scale, std=std,
            filter_scope=scope, weight_level=level, detach_weight=detach, clip=clip, clip_reference=start,
        )  # fmt: skip
        compare(batch, choice)


# ------------------------------------------------------------------------------------------- golden losses


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_golden_losses_of_stored_rollouts(dtype):
    """Loss, gradient norm and filtered completions of stored rollouts, each preset x method.

    `python tests/reference.py` writes tests/golden/objective.json anew, from the slow reference.
    """
    golden = json.loads(reference.GOLDEN.read_text())
    batch = reference.Batch(**golden["batch"])
    assert len(golden["expected"]) == len(PRESETS) * len(METHODS)
    for name, expected in golden["expected"].items():
        preset, method = name.split("/")
        readings = Readings(preset=preset)
        given = tensors(batch, dtype=dtype)
        advantages = group_advantages(
            torch.tensor(batch.reward, dtype=torch.float64),
            torch.tensor(batch.group),
            readings.advantage_scale,
            readings.std,
        ).to(dtype)
        threshold = golden["threshold"] if METHODS[method].filtered else None
        loss = grpo_loss(
            objective(weighting_name(method), threshold, 0.2, 2.0, readings),
            advantages=advantages,
            **given,
        )
        mean = loss.total / loss.count
        mean.backward()
        gradient = given["logp"].grad
        if dtype == torch.float64:
            assert mean.item() == pytest.approx(expected["loss"], abs=2e-8), name
            assert gradient.norm().item() == pytest.approx(expected["grad_norm"], abs=2e-8), name
        else:
            terms = float(gradient.abs().sum() + mean.detach().abs())
            assert_rounded(mean, expected["loss"], terms)
            assert_rounded(gradient.norm(), expected["grad_norm"])
        assert loss.filtered.nonzero().flatten().tolist() == expected["filtered"], name
