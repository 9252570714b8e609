"""The exact study's tables: bias, variance and worth of each method's update over the distance between nodes.

Nothing here is sampled: `ftis.study.exact.enumerable` takes the expectation of the shipped objective over
every completion of a small policy. Rows are by problem; `over_problems` takes their means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import pandas as pd
import torch
from torch import Tensor

from ftis.method.kl import KL_ESTIMATORS, sequence_kl
from ftis.study.exact.cases import GROUP, PROMPTS, Case, G, case_groups, cases, measures
from ftis.study.exact.enumerable import Enumerated, Part, group_moments, kl, success, token_logps
from ftis.study.exact.problems import instances
from ftis.study.exact.training import training_study

KEYS = ("block", "kind", "distance", "method", "g", "cap", "split", "nodes", "prompts")
READ = ("kl_estimator", "filter_rule", "weight_level")
"""Readings that a block varies."""
SPREAD = ("cosine", "relative_bias", "progress_lr", "progress_norm")
"""Measures that also get their quartiles over problems, as _low and _high."""


def study() -> pd.DataFrame:
    """One row a (problem, case, kind, distance): KEYS, READ, p_theta and p_gen (chance of a right completion
    of the learner and of the first foreign node), and the `measures`."""
    everything, rows, own, last = cases(), [], {}, None
    for number, problem, kind, distance, logits in instances():
        gens = [token_logps(problem, gen) for gen in logits]
        if problem is not last:
            last, own = problem, {}
        seen = dict(own)
        alone = case_groups(Case("alone", "alone", nodes=1), problem, [], seen)[0][0]
        chances = {"p_theta": success(problem, problem.theta), "p_gen": success(problem, logits[0])}
        for case in everything:
            groups = case_groups(case, problem, gens[: case.nodes - 1], seen)
            row = {name: getattr(case, name, None) for name in KEYS} | {"kind": kind, "distance": distance}
            row |= {name: getattr(case.readings, name) for name in READ}
            rows.append({"problem": number, **row, **chances, **measures(case, problem, groups, alone)})
        own = {key: moments for key, moments in seen.items() if key[1] == 0}
    return pd.DataFrame(rows)


def over_problems(rows: pd.DataFrame, keys: Sequence[str], spread: Sequence[str]) -> pd.DataFrame:
    """Means over the problems of rows of equal `keys`, with the quartiles of `spread` behind."""
    groups = rows.drop(columns="problem").groupby(list(keys), sort=False, dropna=False)
    bands = {
        f"{name}_{end}": groups[name].quantile(q)
        for name, (end, q) in product(spread, (("low", 0.25), ("high", 0.75)))
    }
    return groups.mean().assign(**bands).reset_index()


def estimator_moments(problem: Enumerated, gen_SL: Tensor, threshold: float) -> list[dict]:
    """Of each KL estimator, summed over a completion of the generator: mean, sd, chance to exceed g."""
    d = gen_SL - token_logps(problem, problem.theta)
    chance, mask = gen_SL.sum(-1).exp(), torch.ones_like(d, dtype=torch.bool)
    rows = []
    for name, estimator in KL_ESTIMATORS.items():
        value = sequence_kl(estimator(d), mask, "sum")
        mean = float(chance @ value)
        sd = math.sqrt(float(chance @ (value - mean).square()))
        over = float(chance @ (value > threshold).double())
        rows.append({"estimator": name, "mean": mean, "sd": sd, "over_g": over})
    return rows


def kl_study() -> pd.DataFrame:
    """One row a (problem, kind, distance, estimator).

    Columns: mean and sd (nats) of the estimate of one completion, over_g its chance to exceed g = G, bias
    against the true KL(gen || theta) = distance, reverse the true KL(theta || gen).
    """
    rows = []
    for number, problem, kind, distance, (logits, _) in instances():
        gen = token_logps(problem, logits)
        where = {"problem": number, "kind": kind, "distance": distance}
        reverse = kl(token_logps(problem, problem.theta), gen)
        for row in estimator_moments(problem, gen, G):
            bias = row["mean"] - distance
            rows.append({**where, **row, "bias": bias, "reverse": reverse})
    return pd.DataFrame(rows)


def halves_study() -> pd.DataFrame:
    """What foreign successes and foreign failures are each good for: one row a (problem, kind, distance,
    method, left_out).

    left_out: the foreign completions without an update: none, failures or successes (their rewards still
    count in the advantages). Columns: `measures`, of which foreign_cosine is that of what is left.
    """
    rows = []
    for number, problem, kind, distance, (logits, _) in instances():
        logp, gen = token_logps(problem, problem.theta), token_logps(problem, logits)
        alone = group_moments(Case("halves", "alone").objective, problem, [Part(logp, GROUP, True)])
        for method in ("nois", "tis"):
            case = Case("halves", method)
            own = group_moments(case.objective, problem, [Part(logp, GROUP, True)])
            for left_out, those in (
                ("none", None),
                ("failures", problem.rewards == 0),
                ("successes", problem.rewards == 1),
            ):
                foreign = group_moments(case.objective, problem, [Part(gen, GROUP, False, those)])
                groups = [(moments, PROMPTS // 2) for moments in (own, foreign)]
                where = {"problem": number, "kind": kind, "distance": distance, "method": method}
                rows.append({**where, "left_out": left_out, **measures(case, problem, groups, alone)})
    return pd.DataFrame(rows)


TABLES = {
    "exact": (study, (*KEYS, *READ), SPREAD),
    "exact_kl": (kl_study, ("kind", "distance", "estimator"), ()),
    "exact_halves": (
        halves_study,
        ("kind", "distance", "method", "left_out"),
        ("foreign_cosine", "progress_norm"),
    ),
    "exact_training": (training_study, ("kind", "start", "method", "node", "step"), ("reward",)),
}
"""By name: what computes its rows, which columns tell them apart beside the problem, and which get
quartiles."""
