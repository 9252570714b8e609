"""The logged statistics, on numbers worked by hand."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

from ftis.method.kl import KL_ESTIMATORS
from ftis.swarm.message import pack
from ftis.swarm.metrics import QUANTILES, statistics, weight_statistics
from ftis.swarm.samples import Samples, Share
from ftis.swarm.update import Pass

LN2 = math.log(2)
CAP = 2.0


def floats(*values):
    return np.array(values, np.float32)


# ------------------------------------------------------------------------------------------- weights


def test_weight_statistics_by_hand():
    # r = 1/2 1 4: mean 5.5 / 3. Cut at C = 2 they are 1/2 1 2: ESS 3.5^2 / (3 x 5.25) = 7/9.
    stats = weight_statistics(np.log(floats(0.5, 1, 4)), 2.0)
    assert stats == pytest.approx({"mean": 5.5 / 3, "max": 4, "truncated": 1 / 3, "ess": 7 / 9}, rel=1e-6)
    # Uncut: 5.5^2 / (3 x 17.25) = 30.25 / 51.75.
    stats = weight_statistics(np.log(floats(0.5, 1, 4)), math.inf)
    assert stats == pytest.approx({"mean": 5.5 / 3, "max": 4, "truncated": 0, "ess": 30.25 / 51.75}, rel=1e-6)


def test_equal_weights_have_a_full_effective_sample():
    stats = weight_statistics(floats(0, 0, 0, 0), 1.0)  # r = C isn't truncated
    assert stats == {"mean": 1.0, "max": 1.0, "truncated": 0.0, "ess": 1.0}


def test_one_heavy_token_among_many():
    # 99 weights of 0 (e^-500) and one of 2: ESS 2^2 / (100 x 2^2) = 1 %.
    stats = weight_statistics(floats(*[-500] * 99, 500), 2.0)
    assert stats["ess"] == pytest.approx(0.01)
    assert stats["truncated"] == pytest.approx(0.01)
    assert all(map(math.isfinite, stats.values()))


@pytest.mark.parametrize("log_ratio", [-80.0, -500.0, 80.0, 500.0])
def test_weight_statistics_stay_finite(log_ratio):
    # JSON lines never hold NaN, not even where the square of a weight is too small for a float64.
    stats = weight_statistics(floats(log_ratio, log_ratio), 2.0)
    assert all(map(math.isfinite, stats.values()))


# ------------------------------------------------------------------------------------------- gathering

PROMPTS = {3: [[11, 12], [13]], 4: [[21], [22, 23, 24]]}


def message(places, first_token):
    """Completions at (prompt, sample, length); token ids count up, log-probs are -id."""
    tokens, at = [], first_token
    for _, _, length in places:
        tokens.append(np.arange(at, at + length))
        at += length
    return pack(
        [p for p, _, _ in places],
        [s for _, s, _ in places],
        tokens,
        [-t.astype(np.float32) for t in tokens],
        [float(length % 2) for _, _, length in places],
        [length > 1 for _, _, length in places],
    )


# (step, sender, rollouts). Node 1's are of step 3, an iteration older than node 0's.
BATCH = [
    Share(4, 0, message([(0, 1, 3), (1, 0, 1), (0, 0, 2)], 100)),
    Share(3, 1, message([(0, 0, 4), (1, 1, 2), (1, 0, 1)], 200)),
]


def test_gather_by_hand():
    samples = Samples.gather(BATCH, PROMPTS, node=0)
    # By step, prompt, sample: (3,0,0) (3,1,0) (3,1,1) (4,0,0) (4,0,1) (4,1,0). Prompt 0 of step 3 isn't
    # prompt 0 of step 4, so these are four groups, of lengths 4 | 1 2 | 2 3 | 1.
    assert samples.group.tolist() == [0, 1, 1, 2, 2, 3]
    assert samples.length.tolist() == [4, 1, 2, 2, 3, 1]
    assert samples.group_width.tolist() == [4, 2, 2, 3, 3, 1]
    assert samples.prompts == [[11, 12], [13], [21], [22, 23, 24]]
    assert samples.prompts_of(np.arange(6)) == [[11, 12], [13], [13], [21], [21], [22, 23, 24]]
    assert samples.own.tolist() == [False, False, False, True, True, True]
    assert samples.reward.tolist() == [0, 1, 0, 0, 1, 1]
    assert samples.finished.tolist() == [True, False, True, True, True, False]
    expected = [[200, 201, 202, 203], [206], [204, 205], [104, 105], [100, 101, 102], [103]]
    assert [t.tolist() for t in samples.tokens] == expected
    assert [(-p).tolist() for p in samples.logprobs] == expected


def test_gather_marks_own_by_the_node_that_looks():
    assert Samples.gather(BATCH, PROMPTS, node=1).own.tolist() == [True, True, True, False, False, False]


def test_gather_does_not_depend_on_the_order_of_messages():
    prompts = {0: [[1]] * 4}
    batch = [
        Share(
            0, node, message([(p, s, 1 + (p + s) % 3) for p in range(4) for s in (node, node + 3)], 10 * node)
        )
        for node in range(3)
    ]
    first = Samples.gather(batch, prompts, node=1)
    assert first.group.tolist() == sorted([0, 1, 2, 3] * 6)
    for order in ([2, 0, 1], [1, 2, 0], [2, 1, 0]):
        other = Samples.gather([batch[i] for i in order], prompts, node=1)
        for name in ("group", "length", "group_width", "own", "reward", "finished"):
            assert np.array_equal(getattr(first, name), getattr(other, name)), name
        assert all(np.array_equal(a, b) for a, b in zip(first.tokens, other.tokens, strict=True))
        assert all(np.array_equal(a, b) for a, b in zip(first.logprobs, other.logprobs, strict=True))


# ------------------------------------------------------------------------------------------- an iteration


def samples_of(own):
    """Samples of which only `own` is read."""
    n = len(own)
    one = np.ones(n, int)
    return Samples([[0]], [floats(0)] * n, [floats(0)] * n, one, one > 0, np.array(own), one, one, one)


def micro_batch(rows, log_r, updates=0, *, entropy=0.0, loss=0.0, filtered=None, bad=None, far=None):
    """What the trainer collects of a micro-batch: log-ratios of each completion's tokens, NaN in the
    padding."""
    width = max(map(len, log_r))
    mask = torch.tensor([[i < len(row) for i in range(width)] for row in log_r])
    logp = torch.tensor([row + [math.nan] * (width - len(row)) for row in log_r]) - 3.0
    no = [False] * len(rows)
    return Pass(
        rows=np.array(rows),
        before=updates,
        logp=logp,
        logp_gen=torch.full(logp.shape, -3.0),
        mask=mask,
        entropy=torch.full(logp.shape, float(entropy)),
        loss=loss,
        count=len(rows),
        filtered=torch.tensor(filtered or no).bool(),
        bad=torch.tensor(bad or no).bool(),
        far=torch.tensor(far or no).bool(),
    )


def test_filtered_shares_by_cause_and_origin():
    # Own: rows 0 2 5; foreign: rows 1 3 4 6. Filtered 2 (own), 3 and 6 (foreign): 1/3, 2/4, 3/7 of all.
    # Bad advantage: 0 2 | 3 6 4 -> 2/3, 3/4.  Far: 2 | 1 3 6 -> 1/3, 3/4.
    samples = samples_of([True, False, True, False, False, True, False])
    collected = [
        micro_batch([6, 2, 0, 1], [[0.0]] * 4, filtered=[1, 1, 0, 0], bad=[1, 1, 1, 0], far=[1, 1, 0, 1]),
        micro_batch([3, 5, 4], [[0.0]] * 3, filtered=[1, 0, 0], bad=[1, 0, 1], far=[1, 0, 0]),
    ]
    out = statistics(collected, CAP, samples)
    assert out.filtered == pytest.approx({"all": 3 / 7, "own": 1 / 3, "foreign": 1 / 2})
    assert out.filter_causes["own"] == pytest.approx({"advantage": 2 / 3, "distance": 1 / 3})
    assert out.filter_causes["foreign"] == pytest.approx({"advantage": 3 / 4, "distance": 3 / 4})


def test_kl_quantiles_of_each_estimator():
    # Five own completions with sum d = 0 1 2 3 4 in tokens of 1: the quantiles of 0..4 are 4 x q.
    samples = samples_of([True] * 5 + [False])
    log_r = [[0.0], [-1.0], [-1.0] * 2, [-1.0] * 3, [-1.0] * 4]
    # One foreign completion, d = log 2, -log 2: all its quantiles are its value.
    collected = [micro_batch([0, 1, 2], log_r[:3]), micro_batch([5, 4, 3], [[-LN2, LN2], log_r[4], log_r[3]])]
    kl = statistics(collected, CAP, samples).kl
    assert kl["own"]["gen_theta_sum"] == pytest.approx([4 * q for q in QUANTILES])
    # Their means are 0 1 1 1 1.
    assert kl["own"]["gen_theta_mean"] == pytest.approx(np.quantile([0, 1, 1, 1, 1], QUANTILES).tolist())
    e = math.exp(-1)  # k3_gen_theta of d = 1: e^-1 + 1 - 1; k3_code: e - 2
    assert kl["own"]["k3_gen_theta_sum"] == pytest.approx([4 * q * e for q in QUANTILES], abs=1e-6)
    assert kl["own"]["k3_code_sum"] == pytest.approx([4 * q * (math.e - 2) for q in QUANTILES], abs=1e-6)
    foreign = {  # sums; see the arithmetic in test_objective.py
        "gen_theta": 0.0,
        "theta_gen_literal": 0.0,
        "k3_gen_theta": 0.5,  # (1/2 + L - 1) + (2 - L - 1)
        "k3_code": 0.5,
        "is_theta_gen": 1.5 * LN2,  # -L/2 + 2L
    }
    assert set(foreign) == set(KL_ESTIMATORS)
    for name, value in foreign.items():
        assert kl["foreign"][f"{name}_sum"] == pytest.approx([value] * 5, abs=1e-6)
        assert kl["foreign"][f"{name}_mean"] == pytest.approx([value / 2] * 5, abs=1e-6)


def test_weights_loss_and_entropy_by_origin():
    samples = samples_of([True, False])
    collected = [
        micro_batch([0], [[0.0, 0.0]], entropy=0.5, loss=1.0),
        micro_batch([1], [[-LN2, 0.0, 2 * LN2]], entropy=9.0, loss=2.0),
    ]
    out = statistics(collected, CAP, samples)
    assert out.weight["own"] == pytest.approx({"mean": 1, "max": 1, "truncated": 0, "ess": 1})
    assert out.weight["foreign"] == pytest.approx(
        {"mean": 5.5 / 3, "max": 4, "truncated": 1 / 3, "ess": 7 / 9}
    )
    assert out.loss == pytest.approx(1.5)  # summed totals over two completions
    assert out.entropy == pytest.approx(0.5)  # of own samples: what this policy explores


def test_mismatch_is_of_own_samples_before_any_step():
    # The first update holds one own token, log r = .5: k3 = e^.5 - .5 - 1. Neither the foreign tokens
    # (log r = 5) nor the second update's count, which here has most of the completions.
    samples = samples_of([True, True, False, True])
    batches = [([0], [[0.5]]), ([2], [[5.0, 5.0]]), ([1], [[3.0]]), ([3], [[-0.5, -0.5]])]
    collected = [micro_batch(*batch, updates) for batch, updates in zip(batches, (0, 1, 1, 1))]
    mismatch = statistics(collected, CAP, samples).mismatch
    assert mismatch["max"] == pytest.approx(0.5)
    assert mismatch["k3"] == pytest.approx(math.exp(0.5) - 1.5, abs=1e-6)
    mismatch = statistics([micro_batch(*batch) for batch in batches], CAP, samples).mismatch
    assert mismatch["max"] == pytest.approx(3)
    k3 = [math.exp(x) - x - 1 for x in (0.5, 3, -0.5, -0.5)]
    assert mismatch["k3"] == pytest.approx(sum(k3) / 4, rel=1e-6)
    # All of the first mini-batch was skipped for its advantage of 0, and its update moved the weights.
    assert statistics([micro_batch([0], [[0.5]], 1)], CAP, samples).mismatch is None


def assert_json(value):
    """Plain numbers without NaN or infinity."""
    json.loads(json.dumps(asdict(value), allow_nan=False))


@pytest.mark.parametrize("own", [[True, True], [True, False]])
def test_metrics_are_json_without_nan(own):
    for log_ratio in (0.0, 80.0, -80.0):
        assert_json(statistics([micro_batch([0, 1], [[log_ratio], [0.0, log_ratio]])], CAP, samples_of(own)))


def test_nothing_trained():
    out = statistics([], CAP, samples_of([True]))
    assert_json(out)
    assert out.loss == 0
    assert out.mismatch is None


def test_only_foreign_samples_trained():
    # With `truncated: drop` all of a young model's own completions may have left the update.
    out = statistics([micro_batch([1, 0], [[0.0], [0.0, -1.0]])], CAP, samples_of([False, False]))
    assert_json(out)
    assert out.mismatch is None
    assert out.entropy is None
    assert set(out.filtered) == {"all", "foreign"}


def test_only_foreign_samples_in_the_first_mini_batch():
    collected = [micro_batch([1], [[0.0]]), micro_batch([0], [[0.0]], 1)]
    out = statistics(collected, CAP, samples_of([True, False]))
    assert_json(out)
    assert out.mismatch is None
