"""The exact study: hand-worked cases, identities, and agreement with plain sampling.

Sampling draws groups of completions and sends them through `group_advantages` and `grpo_loss` as training
does; its gradients come from autograd alone. Seeds are fixed, and tolerances are five standard errors.
"""

import math

import pandas as pd
import pytest
import torch

from ftis.method.methods import METHODS
from ftis.method.objective import group_advantages, grpo_loss
from ftis.method.readings import Readings
from ftis.study import style
from ftis.study.exact import cases, findings, make, problems, training
from ftis.study.exact.cases import Case, cosine, measures
from ftis.study.exact.enumerable import (
    Enumerated,
    Part,
    advantage_table,
    completions,
    group_moments,
    kl,
    score_sum,
    success,
    success_counts,
    swarm_update,
    token_logps,
    true_gradient,
)
from ftis.study.exact.findings import crossing
from ftis.study.exact.problems import at_distance, expert, make_problem
from ftis.study.exact.tables import estimator_moments

UNFILTERED = [name for name, method in METHODS.items() if not method.filtered]
ROOT_HALF = math.sqrt(0.5)


def small(seed=3):
    """9 completions of 2 tokens, 4 prefixes."""
    return make_problem(seed, vocabulary=3, length=2)


def own(problem):
    return token_logps(problem, problem.theta)


def foreign(problem, distance, kind="peer"):
    return token_logps(problem, at_distance(problem, expert(problem, kind, 5), distance))


def objective(method, **fields):
    return Case("test", method, 0.3 if METHODS[method].filtered else None, **fields).objective


# ---------------------------------------------------------------- by hand


def coin():
    """One token, heads or tails at even odds, tails is right."""
    tokens, prefix = completions(2, 1)
    return Enumerated(tokens, prefix, torch.tensor([0.0, 1.0]).double(), torch.zeros(1, 2).double())


def test_completions_and_prefixes():
    tokens, prefix = completions(2, 3)
    assert tokens.tolist()[5] == [1, 0, 1]
    # Before its tokens: nothing (0); "1", the second of length 1 (2); "10", the third of length 2 (5).
    assert prefix.tolist()[5] == [0, 2, 5]


def test_success_counts():
    assert success_counts([(0.5, 1), (0.25, 1)]).tolist() == pytest.approx([0.375, 0.5, 0.125])
    assert success_counts([(0.3, 2)]).tolist() == pytest.approx([0.49, 0.42, 0.09])
    assert success_counts([(0.0, 3), (1.0, 1)]).tolist() == [0, 1, 0, 0, 0]


def test_advantage_table():
    # Of four, two succeed: centred +-1/2, sample variance 1/3. None or all: 0.
    table = advantage_table(4, Readings())
    assert table[1].tolist() == pytest.approx([1.5, math.sqrt(3) / 2, 0.5, 0])
    assert table[0].tolist() == pytest.approx([0, -0.5, -math.sqrt(3) / 2, -1.5])


def test_group_of_two_coins():
    # Both sides show with chance 1/2; A = +-sqrt(1/2), score of tails (-1/2, 1/2), of heads its negative:
    # the group's sum is sqrt(1/2) (-1, 1), of squared norm 1.
    moments = group_moments(objective("alone"), coin(), [Part(own(coin()), 2, True)])
    assert moments.mean.tolist()[0] == pytest.approx([-ROOT_HALF / 2, ROOT_HALF / 2])
    assert moments.square == pytest.approx(0.5)
    assert moments.variance == pytest.approx(0.25)
    # Three such groups: the mean over 6 completions, and its variance.
    mean, variance = swarm_update([(moments, 3)], 6)
    assert mean.tolist()[0] == pytest.approx([-ROOT_HALF / 4, ROOT_HALF / 4])
    assert variance == pytest.approx(3 * 0.25 / 36)


def test_group_of_an_own_and_a_foreign_coin():
    # gen shows tails with chance 3/4, so ratios are 2/3 (tails) and 2 (heads). Mixed group of one each:
    # own tails, foreign heads (1/8): A = sqrt(1/2) (1, -1), weights 1 and 2: sqrt(1/2) (1 + 2) (-1/2, 1/2);
    # own heads, foreign tails (3/8): weights 1 and 2/3: sqrt(1/2) (1 + 2/3) (-1/2, 1/2).
    problem = coin()
    gen = torch.tensor([[0.25], [0.75]]).double().log()
    parts = [Part(own(problem), 1, True), Part(gen, 1, False)]
    moments = group_moments(objective("tis"), problem, parts)
    step = (1 / 8) * 3 + (3 / 8) * (5 / 3)
    assert moments.mean.tolist()[0] == pytest.approx([-step * ROOT_HALF / 2, step * ROOT_HALF / 2])
    assert moments.square == pytest.approx((1 / 8) * 9 / 4 + (3 / 8) * (25 / 9) / 4)
    # KL(gen || theta) = 1/4 log(1/2) + 3/4 log(3/2)
    assert kl(gen, own(problem)) == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))


def test_completions_left_out_have_no_update_and_count_in_advantages():
    problem = small()
    gen, right = foreign(problem, 0.5), problem.rewards == 1
    whole, failures, successes, neither = (
        group_moments(objective("nois"), problem, [Part(gen, 4, False, left_out)])
        for left_out in (None, right, ~right, torch.ones_like(right))
    )
    assert torch.allclose(failures.mean + successes.mean, whole.mean, atol=1e-13)
    assert failures.mean.norm() > 0.01 and successes.mean.norm() > 0.01
    assert neither.mean.abs().max() == neither.square == 0
    # Without failures' updates a group of two coins moves only if one of them shows tails: chance 1/2,
    # sqrt(1/2) (-1/2, 1/2), half of the whole group's step.
    part = Part(own(coin()), 2, True, coin().rewards == 0)
    half = group_moments(objective("alone"), coin(), [part])
    assert half.mean.tolist()[0] == pytest.approx([-ROOT_HALF / 4, ROOT_HALF / 4])
    assert half.square == pytest.approx(0.5 * 0.25)


def test_standard_errors_of_a_mean_are_its_own(monkeypatch):
    values = [0.1, 0.5, 0.2, 0.6]
    rows = {"exact": pd.DataFrame({"problem": range(4), "kind": "peer", "worth": values})}
    monkeypatch.setattr(findings, "TABLES", {"exact": (None, ("kind",), ())})

    def found(tables):
        value = tables["exact"]["worth"].iloc[0]
        named = {"topic": "noise", "finding": f"best is {value > 0.3}", "where": "", "value": value}
        return pd.DataFrame([{**named, "finding": "mean"}, named])

    monkeypatch.setattr(findings, "findings", found)
    mean, best = findings.standard_errors(rows, found({"exact": pd.DataFrame({"worth": [sum(values) / 4]})}))
    assert mean == pytest.approx(pd.Series(values).sem())
    assert math.isnan(best)  # without 0.6 the mean is below 0.3


def test_crossing():
    assert crossing([0, 1, 3], [0.9, 0.8, 0.4], 0.6) == pytest.approx(2)
    assert crossing([0, 1], [0.9, 0.8], 0.6) == math.inf


# ---------------------------------------------------------------- identities


def test_true_gradient_is_that_of_autograd():
    problem = small()
    theta = problem.theta.clone().requires_grad_()
    reward = token_logps(problem, theta).sum(-1).exp() @ problem.rewards
    assert torch.allclose(torch.autograd.grad(reward, theta)[0], true_gradient(problem), atol=1e-13)
    assert float(reward.detach()) == pytest.approx(success(problem, problem.theta))


def test_scores_average_to_nothing():
    problem = small()
    chance = own(problem).sum(-1).exp()[:, None].expand(-1, 2)
    # Of terms that sum to 1 at most, in whichever order.
    assert score_sum(problem, chance[None]).abs().max() < 1e-13


@pytest.mark.parametrize("kind", problems.KINDS)
def test_a_foreign_generator_is_as_far_as_asked(kind):
    problem = make_problem(1)
    for distance in (0.03, 4.0):
        assert kl(foreign(problem, distance, kind), own(problem)) == pytest.approx(distance, abs=1e-9)
    assert torch.equal(at_distance(problem, expert(problem, kind, 1), 0.0), problem.theta)
    assert kl(own(problem), own(problem)) == 0


def test_kinds_are_what_they_are_called():
    problem = make_problem(1)
    chance = {
        kind: success(problem, at_distance(problem, expert(problem, kind, 1), 0.3)) for kind in problems.KINDS
    }
    assert chance["weaker"] < success(problem, problem.theta) < chance["stronger"]


@pytest.mark.parametrize("method", UNFILTERED)
def test_on_ones_own_samples_every_unfiltered_method_is_alone(method):
    problem = small()
    part = Part(own(problem), 4, False)
    expected = group_moments(objective("alone"), problem, [part])
    found = group_moments(objective(method), problem, [part])
    assert torch.allclose(found.mean, expected.mean, atol=1e-13)
    assert found.square == pytest.approx(expected.square)


def test_alone_has_the_direction_of_the_true_gradient():
    problem = small()
    moments = group_moments(objective("alone"), problem, [Part(own(problem), 4, True)])
    assert cosine(moments.mean, true_gradient(problem)) == pytest.approx(1, abs=1e-12)


def test_only_an_uncapped_weight_per_sequence_is_unbiased():
    problem = small()
    part = Part(foreign(problem, 0.5), 4, False)
    cosines = {
        (level, cap): cosine(
            group_moments(
                objective("tis", cap=cap, readings=Readings(weight_level=level)), problem, [part]
            ).mean,
            true_gradient(problem),
        )
        for level, cap in (("sequence", math.inf), ("sequence", 2.0), ("token", math.inf))
    }
    assert cosines.pop(("sequence", math.inf)) == pytest.approx(1, abs=1e-12)
    assert all(value < 0.999 for value in cosines.values())


def test_splitting_a_group_over_equal_nodes_changes_nothing():
    problem = small()
    whole = group_moments(objective("ftis"), problem, [Part(own(problem), 6, True)])
    parts = [Part(own(problem), n, n == 3) for n in (3, 2, 1)]
    split = group_moments(objective("ftis"), problem, parts)
    assert torch.allclose(split.mean, whole.mean, atol=1e-13)
    assert split.square == pytest.approx(whole.square)


def test_estimators_of_the_true_kl():
    problem = small()
    gen = foreign(problem, 0.5)
    found = {row["estimator"]: row for row in estimator_moments(problem, gen, 0.2)}
    assert found["gen_theta"]["mean"] == pytest.approx(0.5)
    assert found["k3_gen_theta"]["mean"] == pytest.approx(0.5)
    assert found["theta_gen_literal"]["mean"] == pytest.approx(-0.5)
    assert found["gen_theta"]["over_g"] == pytest.approx(
        float(gen.sum(-1).exp()[(gen - own(problem)).sum(-1) > 0.2].sum())
    )


def test_gain_at_a_learning_rate_is_the_slope_of_the_reward(monkeypatch):
    monkeypatch.setattr(cases, "STEP", 1e-5)
    problem = small()
    case = Case("test", "ftis", 0.3)
    alone = group_moments(objective("alone"), problem, [Part(own(problem), cases.GROUP, True)])
    lone = measures(Case("test", "alone", nodes=1), problem, [(alone, cases.PROMPTS)], alone)
    groups = cases.case_groups(case, problem, [foreign(problem, 0.5)], {})
    found = measures(case, problem, groups, alone)
    assert lone["relative_bias"] == 0 and lone["sd"] == lone["progress_lr"] == 1
    assert found["gain_lr"] / lone["gain_lr"] == pytest.approx(found["progress_lr"], rel=1e-4)
    assert found["gain_norm"] / lone["gain_norm"] == pytest.approx(found["cosine"], rel=1e-4)
    assert found["progress_norm"] < found["cosine"]


def test_the_literal_clip_is_refused():
    problem = small()
    with pytest.raises(ValueError, match="readings.clip"):
        group_moments(
            objective("nois", readings=Readings(clip="literal")), problem, [Part(own(problem), 2, True)]
        )


# ---------------------------------------------------------------- against sampling


def sampled_updates(case_objective, problem, parts, groups, seed):
    """Summed update of each of `groups` sampled groups, (groups, H V), by autograd alone."""
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.cat(
        [
            torch.multinomial(p.logp_gen.sum(-1).exp(), groups * p.n, True, generator=rng).view(groups, p.n)
            for p in parts
        ],
        1,
    )
    size = drawn.shape[1]
    ys = drawn.flatten()
    gen = torch.cat(
        [p.logp_gen[drawn[:, start : start + p.n]] for p, start in zip(parts, starts(parts), strict=True)], 1
    ).flatten(0, 1)
    mine = torch.cat([torch.full((p.n,), p.own) for p in parts]).repeat(groups)
    readings = case_objective.readings
    labels = torch.arange(groups).repeat_interleave(size)
    advantages = group_advantages(problem.rewards[ys], labels, readings.advantage_scale, readings.std)
    logp = own(problem)[ys].requires_grad_()
    length = logp.shape[1]
    loss = grpo_loss(
        case_objective, logp, gen, torch.ones_like(gen, dtype=torch.bool), advantages, mine,
        torch.full_like(ys, length),
    )  # fmt: skip
    factors = -torch.autograd.grad(loss.total, logp)[0]
    scores = torch.autograd.functional.jacobian(lambda t: token_logps(problem, t), problem.theta).flatten(2)
    return torch.einsum("nl,nlp->np", factors, scores[ys]).view(groups, size, -1).sum(1)


def starts(parts):
    return [sum(p.n for p in parts[:k]) for k in range(len(parts))]


SAMPLED = [
    ("ftis", {}),
    ("fvis", {}),
    ("nois", {}),
    ("tis", {"cap": math.inf, "readings": Readings(weight_level="sequence")}),
    ("ftis", {"readings": Readings(preset="code", filtered_denominator="stay")}),
    ("fnois", {"readings": Readings(preset="seed")}),
]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("number", range(len(SAMPLED)))
def test_moments_are_those_of_sampling(number, mixed):
    method, fields = SAMPLED[number]
    problem = small()
    gen = foreign(problem, 0.5)
    parts = [Part(own(problem), 2, True), Part(gen, 3, False)] if mixed else [Part(gen, 4, False)]
    rule = objective(method, **fields)
    groups = 20_000
    updates = sampled_updates(rule, problem, parts, groups, seed=number)
    moments = group_moments(rule, problem, parts)
    error = updates.std(0) / math.sqrt(groups)
    assert ((updates.mean(0) - moments.mean.flatten()).abs() < 5 * error + 1e-12).all()
    squares = (updates - moments.mean.flatten()).square().sum(1)
    assert abs(float(squares.mean()) - moments.variance) < 5 * float(squares.std()) / math.sqrt(groups)


def test_three_nodes_against_sampling():
    problem = small()
    parts = [Part(own(problem), 2, True), Part(foreign(problem, 0.5), 2, False)]
    parts.append(Part(foreign(problem, 0.3, "stronger"), 1, False))
    updates = sampled_updates(objective("ftis"), problem, parts, 20_000, seed=9)
    moments = group_moments(objective("ftis"), problem, parts)
    error = updates.std(0) / math.sqrt(20_000)
    assert ((updates.mean(0) - moments.mean.flatten()).abs() < 5 * error + 1e-12).all()


# ---------------------------------------------------------------- the whole study


def test_expected_training_alone_learns_and_follows_the_gradient():
    problem = small()
    case = Case("test", "alone")
    nodes = list(training.train_expected(problem, [problem.theta, problem.theta], case))
    first, second = nodes[0][0], nodes[1][0]
    assert cosine(second.theta - first.theta, true_gradient(first)) == pytest.approx(1, abs=1e-12)
    assert torch.equal(nodes[-1][0].theta, nodes[-1][1].theta)
    assert success(problem, nodes[-1][0].theta) > success(problem, problem.theta) + 0.2


def test_make_exact_writes_everything(tmp_path, monkeypatch):
    monkeypatch.setattr(problems, "PROBLEMS", 1)
    monkeypatch.setattr(problems, "DISTANCES", (0.0, 1.0, 2.0))
    monkeypatch.setattr(training, "ITERATIONS", 10)
    monkeypatch.setattr(problems, "make_problem", lambda seed, chances: small(seed))
    # Every figure is drawn, one is written out: that takes most of the time.
    blank = {"pdf": b"", "png": b""}
    monkeypatch.setattr(
        make,
        "rendered",
        lambda name, figure: (
            style.rendered(name, figure)
            if name == "exact_kl"
            else {f"{name}.{suffix}": content for suffix, content in blank.items()}
        ),
    )
    make.make_exact(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    figures = {f"{name}.{suffix}" for name in make.FIGURES for suffix in ("pdf", "png")}
    assert names == figures | {
        f"exact{part}.csv" for part in ("", "_kl", "_halves", "_training", "_findings")
    } | {"provenance.json"}
    table = pd.read_csv(tmp_path / "exact.csv")
    near = table[(table["distance"] == 0) & (table["block"] == "methods")]
    assert near["relative_bias"].max() < 1e-6
    assert not pd.read_csv(tmp_path / "exact_findings.csv").duplicated(["finding", "where"]).any()
