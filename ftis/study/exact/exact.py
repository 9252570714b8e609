"""Exact study: bias, variance and worth of each method's update over the distance between nodes.

Nothing here is sampled: `ftis.study.exact.enumerable` takes the expectation of the shipped objective over every
completion of a small policy. This module sets up problems and foreign generators, lists the cases that
are compared, and writes their tables and figures. Shapes as there; distances are in nats.

The reference is Alone's expected update on its own samples. With completions of one length it has the
direction of grad J, the true policy gradient of the expected reward (the advantage depends on a completion
through its reward alone), so one reference serves for both; relative biases are in Alone's units.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import torch
from scipy.optimize import brentq
from torch import Tensor

from ftis.method.kl import KL_ESTIMATORS, sequence_kl
from ftis.method.methods import METHODS, unfiltered
from ftis.method.objective import Objective
from ftis.method.readings import Readings
from ftis.provenance import provenance
from ftis.study.exact.enumerable import (
    Moments,
    Part,
    Problem,
    completions,
    group_moments,
    kl,
    success,
    swarm_update,
    token_logps,
    true_gradient,
)
from ftis.study.exact.figures import FIGURES
from ftis.study.paper import write_files
from ftis.study.plots import STYLE, rendered

# ---------------------------------------------------------------- problems and foreign generators

VOCABULARY, LENGTH = 4, 4
GROUP, PROMPTS = 12, 24
"""G, and B over the swarm, both the paper's for its size pairs."""
PROBLEMS = 12
DISTANCES = (0.0, 0.03, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0)
"""True KL(gen || theta) over a completion, nats; a completion has LENGTH tokens, so 1 is 0.25 a token,
as 50 is at 200 tokens."""
KINDS = ("weaker", "peer", "stronger", "hard")
"""What the foreign node is to the learner, see `expert`. hard: stronger, on a prompt the learner rarely solves."""
CHANCES = {"hard": (0.02, 0.05)}
USUAL = (0.2, 0.5)
"""Range that the learner's chance of a right completion is drawn from."""
THRESHOLDS = (0.1, 0.3, 1.0, 3.0, 10.0)
CAPS = (1.0, 2.0, 5.0, math.inf)
G, CAP, EPS = 1.0, 2.0, 0.2
"""g, C and eps where a block doesn't vary them; g is 0.25 nats a token, the paper's 50 at 200 tokens."""
SHARPNESS = 2.0
SKILL = 0.5
"""Root mean square share of skill beside that of chance in the direction of stronger and weaker experts."""
PAPER = Readings()
STEP = 1.0
"""Norm of a step in logit space for the exact gains."""


def make_problem(
    seed: int, chances: tuple[float, float] = USUAL, vocabulary: int = VOCABULARY, length: int = LENGTH
) -> Problem:
    """A random policy (logits N(0, 1)), and right completions added at random, as long as its chance of
    one stays below a level drawn from the range `chances`."""
    rng = torch.Generator().manual_seed(seed)
    tokens, prefix = completions(vocabulary, length)
    theta = torch.randn(int(prefix.max()) + 1, vocabulary, generator=rng, dtype=torch.float64)
    problem = Problem(tokens, prefix, torch.zeros(len(tokens), dtype=torch.float64), theta)
    chance = token_logps(problem, theta).sum(-1).exp()
    level = chances[0] + (chances[1] - chances[0]) * float(torch.rand((), generator=rng))
    found = 0.0
    for y in torch.randperm(len(tokens), generator=rng).tolist():
        if found + float(chance[y]) <= level:
            found += float(chance[y])
            problem.rewards[y] = 1.0
        if found > 0.9 * level:
            break
    return problem


def expert(problem: Problem, kind: str, seed: int) -> Tensor:
    """Logits (H, V) of a foreign expert, of standard deviation SHARPNESS where theta's is 1.

    peer: random, so that it knows nothing of what is right. stronger and weaker: besides, SKILL times
    towards (away from) right completions: per prefix, the logarithm of each token's chance of success
    after it under theta, centred.
    """
    rng = torch.Generator().manual_seed(1000 + seed)
    noise = torch.randn(problem.theta.shape, generator=rng, dtype=torch.float64)
    if kind == "peer":
        return SHARPNESS * noise
    chance = token_logps(problem, problem.theta).sum(-1).exp()[:, None].expand_as(problem.cell)
    reach, right = torch.zeros(2, problem.theta.numel(), dtype=torch.float64)
    reach.index_add_(0, problem.cell.flatten(), chance.flatten())
    right.index_add_(0, problem.cell.flatten(), (chance * problem.rewards[:, None]).flatten())
    # The 0.01 keeps a hopeless token's logarithm finite.
    skill = (right / reach + 0.01).log().view_as(problem.theta)
    skill = skill - skill.mean(-1, keepdim=True)
    skill = skill / skill.square().mean().sqrt()
    return SHARPNESS * (noise + SKILL * skill * (-1 if kind == "weaker" else 1)) / math.hypot(1, SKILL)


def at_distance(problem: Problem, towards: Tensor, distance: float) -> Tensor:
    """Logits theta + x (towards - theta), x >= 0, whose true KL to theta is `distance` nats.

    To 1e-9. x may exceed 1; where the way ends before the distance is reached (a policy that is certain of
    everything), that is an error.
    """
    if distance == 0:
        return problem.theta
    own, way = token_logps(problem, problem.theta), towards - problem.theta

    def reached(x: float) -> float:
        return kl(token_logps(problem, problem.theta + x * way), own)

    high = 1.0
    while reached(high) < distance:
        if high > 64:
            raise ValueError(f"no policy on the way to this expert is {distance} nats from theta")
        high *= 2
    return problem.theta + brentq(lambda x: reached(x) - distance, 0.0, high, xtol=1e-12) * way


# ---------------------------------------------------------------- cases and measures


@dataclass(frozen=True)
class Case:
    """One way to learn from a swarm; a line of exact.csv a (case, kind, distance)."""

    block: str
    """What varies in it: methods, cap, threshold, estimator, rule; split: horizontal or three nodes;
    alone: B prompts of one's own, or half as many (what a node of a pair samples itself)."""
    method: str
    g: float | None = None
    cap: float = CAP
    split: str = "vertical"
    nodes: int = 2
    prompts: int = PROMPTS
    """Over the swarm."""
    readings: Readings = PAPER

    @property
    def objective(self) -> Objective:
        return Objective.of(METHODS[self.method], self.readings, threshold=self.g, eps=EPS, cap=self.cap)


def cases() -> list[Case]:
    """Everything that is computed at each (kind, distance)."""
    learning = [name for name in METHODS if name != "alone"]
    found = [
        Case(
            "split" if (nodes, split) != (2, "vertical") else "methods",
            name,
            threshold(name),
            CAP,
            split,
            nodes,
        )
        for nodes, split in ((2, "vertical"), (2, "horizontal"), (3, "vertical"), (3, "horizontal"))
        for name in learning
    ]
    found += [Case("alone", "alone", nodes=1, prompts=b) for b in (PROMPTS, PROMPTS // 2)]
    found += [Case("cap", name, threshold(name), cap) for name in ("tis", "ftis") for cap in CAPS]
    found += [
        Case("cap", "tis", None, cap, readings=Readings(weight_level="sequence")) for cap in (CAP, math.inf)
    ]
    found += [Case("threshold", name, g) for name in ("fnois", "fvis", "ftis") for g in THRESHOLDS]
    found += [
        Case("estimator", name, g, readings=Readings(kl_estimator=estimator))
        for name in ("ftis",)
        for estimator in KL_ESTIMATORS
        for g in (0.3, 1.0, 3.0)
    ]
    rules = ("negative_and_far", "nonpositive_or_far")
    found += [
        Case("rule", "ftis", g, readings=Readings(filter_rule=rule))
        for rule in rules
        for g in THRESHOLDS[::2]
    ]
    return found


def threshold(method: str) -> float | None:
    return G if METHODS[method].filtered else None


def case_groups(
    case: Case, problem: Problem, gens: Sequence[Tensor], seen: dict
) -> list[tuple[Moments, int]]:
    """The groups of an update with how many of each, own ones first.

    seen: moments of groups that one node samples, by (objective, node); cases share them, and they are added to.

    gens: token log-probs (S, L) of the foreign nodes. Vertical: prompts / nodes groups of G each node.
    Horizontal: as many groups as prompts, G / nodes completions from each node.
    """
    logp = token_logps(problem, problem.theta)
    if case.split == "horizontal":
        share = GROUP // case.nodes
        parts = [Part(logp, share, True), *(Part(gen, share, False) for gen in gens)]
        return [(group_moments(case.objective, problem, parts), case.prompts)]
    for node, gen in enumerate([logp, *gens]):
        if (case.objective, node) not in seen:
            part = Part(gen, GROUP, node == 0)
            seen[case.objective, node] = group_moments(case.objective, problem, [part])
    return [(seen[case.objective, node], case.prompts // case.nodes) for node in range(case.nodes)]


def measures(
    case: Case, problem: Problem, groups: Sequence[tuple[Moments, int]], alone: Moments
) -> dict[str, float]:
    """How good an update is, against Alone's on PROMPTS prompts of its own.

    cosine: of the expected update with grad J (foreign_: the foreign groups' part of it).
    relative_bias: |expected - Alone's expected| / |Alone's expected|. sd: root of the total variance over
    Alone's; snr: |expected| / root of the total variance. progress_lr: grad J . expected, over Alone's: the
    first-order gain in reward at a learning rate. progress_norm: grad J . expected / (|grad J| root of
    E|update|^2): the same for steps of equal root mean square norm, noise included, in [-1, 1].
    gain_norm, gain_lr: exact J(theta + step) - J(theta) along the expected update, of norm STEP, and at
    the learning rate at which Alone's has that norm.
    """
    samples = GROUP * sum(count for _, count in groups)
    mean, variance = swarm_update(groups, samples)
    target, lone_variance = swarm_update([(alone, PROMPTS)], GROUP * PROMPTS)
    gradient = true_gradient(problem)
    size, lone = float(mean.norm()), float(target.norm())
    foreign = groups[1:] if case.split == "vertical" else []
    foreign_mean = sum((n * moments.mean for moments, n in foreign), torch.zeros_like(mean)) / samples
    start = success(problem, problem.theta)
    return {
        "cosine": cosine(mean, gradient),
        "foreign_cosine": cosine(foreign_mean, gradient) if foreign else math.nan,
        "relative_bias": float((mean - target).norm()) / lone,
        "norm": size / lone,
        "sd": math.sqrt(variance / lone_variance),
        "snr": size / math.sqrt(variance),
        "progress_lr": float((gradient * mean).sum() / (gradient * target).sum()),
        "progress_norm": float((gradient * mean).sum() / gradient.norm()) / math.sqrt(size**2 + variance),
        "gain_norm": success(problem, problem.theta + STEP * mean / max(size, 1e-300)) - start,
        "gain_lr": success(problem, problem.theta + STEP * mean / lone) - start,
    }


def cosine(a: Tensor, b: Tensor) -> float:
    """Of two tables; nan where one is 0 (an update that is filtered whole)."""
    return float((a * b).sum() / (a.norm() * b.norm())) if a.any() and b.any() else math.nan


# ---------------------------------------------------------------- the study's tables

KEYS = ("block", "kind", "distance", "method", "g", "cap", "split", "nodes", "prompts")
READ = ("kl_estimator", "filter_rule", "weight_level")
"""Readings that a block varies."""
SPREAD = ("cosine", "relative_bias", "progress_lr", "progress_norm")
"""Measures that also get their quartiles over problems, as _low and _high."""


def instances() -> Iterator[tuple[int, Problem, str, float, list[Tensor]]]:
    """(number, problem, kind, distance, logits of two foreign nodes) of everything that is studied."""
    for seed, kind in product(range(PROBLEMS), KINDS):
        problem = make_problem(seed, CHANCES.get(kind, USUAL))
        experts = [expert(problem, kind, seed + other) for other in (0, 500)]
        for distance in DISTANCES:
            yield seed, problem, kind, distance, [at_distance(problem, e, distance) for e in experts]


def study() -> pd.DataFrame:
    """One row a (problem, case, kind, distance): KEYS, READ, p_theta and p_gen (chance of a right completion of the
    learner and of the first foreign node), and the `measures`."""
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


def estimator_moments(problem: Problem, gen_SL: Tensor, threshold: float) -> list[dict]:
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
    """What foreign successes and foreign failures are each good for: one row a (problem, kind, distance, method,
    left_out).

    left_out: the foreign completions without an update: none, failures or successes (their rewards still count in the
    advantages). Columns: `measures`, of which foreign_cosine is that of what is left.
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


RATE, ITERATIONS = 5.0, 50
STARTS = (("stronger", 1.0), ("stronger", 4.0), ("hard", 1.0), ("hard", 4.0))
"""(kind, KL(gen || theta) in nats) before the first step."""
NODES = ("learner", "stronger")


def train(problem: Problem, logits: Sequence[Tensor], case: Case) -> Iterator[list[Problem]]:
    """The nodes of a vertical swarm before each of ITERATIONS expected updates, and after the last.

    Every node steps by RATE along the expectation of its update: gradient ascent without sampling noise.
    Alone, a node's update is over its own groups only.
    """
    nodes = [replace(problem, theta=table) for table in logits]
    for _ in range(ITERATIONS):
        yield nodes
        gens = [token_logps(node, node.theta) for node in nodes]
        stepped = []
        for k, node in enumerate(nodes):
            senders = [k] if case.method == "alone" else range(len(nodes))
            groups = [[Part(gens[sender], GROUP, sender == k)] for sender in senders]
            update = sum(group_moments(case.objective, node, parts, variance=False).mean for parts in groups)
            stepped.append(replace(node, theta=node.theta + RATE * update / (GROUP * len(groups))))
        nodes = stepped
    yield nodes


def training_study() -> pd.DataFrame:
    """One row a (problem, kind, start, method, node, step).

    Two nodes train together, the second a stronger expert at `start` nats. Columns: reward, the chance of
    a right completion; kl, the true KL(other node || node) in nats.
    """
    rows = []
    for seed, (kind, start), method in product(range(PROBLEMS), STARTS, METHODS):
        problem = make_problem(seed, CHANCES.get(kind, USUAL))
        foreign = at_distance(problem, expert(problem, kind, seed), start)
        case = Case("methods", method, threshold(method))
        for step, nodes in enumerate(train(problem, [problem.theta, foreign], case)):
            if step % 5:
                continue
            logps = [token_logps(node, node.theta) for node in nodes]
            for k, role in enumerate(NODES):
                rows.append(
                    {"problem": seed, "kind": kind, "start": start, "method": method, "node": role, "step": step,
                     "reward": success(nodes[k], nodes[k].theta), "kl": kl(logps[1 - k], logps[k])}
                )  # fmt: skip
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
"""By name: what computes its rows, which columns tell them apart beside the problem, and which get quartiles."""


# ---------------------------------------------------------------- findings and files


def crossing(distances: Sequence[float], values: Sequence[float], level: float) -> float:
    """First distance at which `values` falls below `level`, linear between points; inf if it doesn't."""
    for (d0, v0), (d1, v1) in pairwise(zip(distances, values, strict=True)):
        if v1 < level <= v0:
            return d0 + (d1 - d0) * (v0 - level) / (v0 - v1)
    return math.inf


def findings(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """topic, finding, where, value, unit, each computed from the tables of `make_exact`.

    "Worth" is the gain in reward of a step of fixed norm (progress_norm), where 1 would be a step along
    grad J without noise.
    """
    data, training, rows = tables["exact"], tables["exact_training"], []
    main = data[data["block"] == "methods"]

    def add(topic: str, finding: str, where: str, value: float, unit: str) -> None:
        value = float(f"{value:.4g}")
        rows.append({"topic": topic, "finding": finding, "where": where, "value": value, "unit": unit})

    def curve(table: pd.DataFrame, measure: str, **where: object) -> pd.Series:
        """`measure` over distance, where the other columns have these values."""
        for name, value in where.items():
            table = table[table[name] == value]
        return table.groupby("distance")[measure].mean()

    for kind, method in product(KINDS, ("nois", "vis", "tis", "ftis")):
        worth = curve(main, "progress_norm", kind=kind, method=method)
        half = curve(data, "progress_norm", block="alone", prompts=PROMPTS // 2, kind=kind).mean()
        finding = f"{METHODS[method].label} is worth less than the own half of the samples from"
        add("distance", finding, kind, crossing(worth.index, worth, half), "nats")
    for kind, method in product(("stronger", "hard"), ("nois", "vis", "ftis")):
        gain = curve(main, "progress_lr", kind=kind, method=method)[1.0]
        finding = f"gain of {METHODS[method].label} at Alone's learning rate, over Alone's"
        add("learning rate", finding, f"{kind}, KL = 1", gain, "ratio")
    for method in ("vis", "fvis", "tis"):
        sd = curve(main, "sd", method=method, kind="stronger")[2.0]
        finding = f"standard deviation of {METHODS[method].label} over Alone's"
        add("noise", finding, "stronger, KL = 2", sd, "ratio")

    plain = main.set_index(["kind", "distance", "method"])["progress_norm"]
    swept = data[data["block"] == "threshold"]
    for method in ("fnois", "fvis", "ftis"):
        table = swept[swept["method"] == method]
        without = [plain[kind, d, unfiltered(method)] for kind, d in table[["kind", "distance"]].to_numpy()]
        change, near = table["progress_norm"] - without, table["distance"] <= 1
        finding = f"change of worth by the filter, {METHODS[method].label}, "
        add("filter", finding + "mean", "KL <= 1, all kinds and g", change[near].mean(), "difference")
        add("filter", finding + "mean", "KL >= 2, all kinds and g", change[~near].mean(), "difference")
        for word, index in (("best", change.idxmax()), ("worst", change.idxmin())):
            row = table.loc[index]
            where = f"{row['kind']}, KL = {row['distance']:g}, g = {row['g']:g}"
            add("filter", finding + word, where, change[index], "difference")
        for where, part in (("KL <= 1, all kinds", table[near]), ("KL >= 2, all kinds", table[~near])):
            best = part.groupby("g")["progress_norm"].mean().idxmax()
            listed = ", ".join(f"{g:g}" for g in THRESHOLDS)
            add(
                "filter", f"g of the largest worth, {METHODS[method].label}, of {listed}", where, best, "nats"
            )
    halves = tables["exact_halves"].set_index(["left_out", "method", "distance"]).sort_index()
    for method, left_out, distance in product(("nois", "tis"), ("failures", "successes"), (1.0, 2.0)):
        rest = "successes" if left_out == "failures" else "failures"
        name, where = METHODS[method].label, f"KL = {distance:g}, all kinds"
        at = halves.loc[left_out, method, distance]
        add(
            "halves",
            f"cosine of foreign {rest} to grad J, {name}",
            where,
            at["foreign_cosine"].mean(),
            "cosine",
        )
        whole = halves.loc["none", method, distance]["progress_norm"].mean()
        change = at["progress_norm"].mean() - whole
        add("halves", f"change of worth without foreign {left_out}, {name}", where, change, "difference")
    caps = data[(data["block"] == "cap") & (data["method"] == "tis") & (data["distance"] == 1)]
    for cap, level in (*((c, "token") for c in CAPS), (CAP, "sequence"), (math.inf, "sequence")):
        part = caps[(caps["cap"] == cap) & (caps["weight_level"] == level)]
        finding = f"worth of TIS with C = {cap:g}, weight per {level}"
        add("cap", finding, "KL = 1, all kinds", part["progress_norm"].mean(), "cosine")
    split = data[(data["block"] == "split") & (data["split"] == "horizontal") & (data["nodes"] == 2)]
    for kind in KINDS:
        change = curve(split, "progress_norm", kind=kind, method="ftis")[1.0] - plain[kind, 1.0, "ftis"]
        add("split", "worth of F-TIS, horizontal less vertical", f"{kind}, KL = 1", change, "difference")
    estimates = tables["exact_kl"].groupby(["estimator", "distance"])[["mean", "sd"]].mean()
    for name in KL_ESTIMATORS:
        mean, sd = estimates.loc[name, 1.0]
        add("KL", f"mean of {name}", "KL = 1", mean, "nats")
        add("KL", f"standard deviation of {name} over completions", "KL = 1", sd, "nats")
    halfway = ITERATIONS // 2
    reward = training[training["step"] == halfway].set_index(["kind", "start", "node", "method"])["reward"]
    for (kind, start), method in product(STARTS, ("nois", "vis", "tis", "fnois", "ftis")):
        change = reward[kind, start, "learner", method] - reward[kind, start, "learner", "alone"]
        where = f"{kind}, KL = {start:g} at the start, learner at iteration {halfway}"
        add("training", f"reward of {METHODS[method].label} less Alone's", where, change, "probability")
    return pd.DataFrame(rows)


def standard_errors(rows: Mapping[str, pd.DataFrame], found: pd.DataFrame) -> list[float]:
    """Of each finding over problems, by the jackknife: from the same finding with each problem left out in turn.

    rows: the tables by problem. nan of one problem, of a choice (the best g), and where leaving a problem out changes
    what is named or makes it infinite.
    """
    if PROBLEMS < 2:
        return [math.nan] * len(found)
    names, without = ["topic", "finding", "where"], []
    for left_out in range(PROBLEMS):
        means = {
            name: over_problems(rows[name][rows[name]["problem"] != left_out], keys, ())
            for name, (_, keys, _) in TABLES.items()
        }
        again = findings(means).set_index(names)["value"]
        without.append(again.reindex(pd.MultiIndex.from_frame(found[names])).to_numpy(float))
    away = np.square(np.array(without) - found["value"].to_numpy(float)).sum(0)
    chosen = found["finding"].str.startswith("g of the largest worth")
    return np.where(chosen, math.nan, np.sqrt((PROBLEMS - 1) / PROBLEMS * away)).tolist()


def make_exact(out: Path) -> None:
    """Write the means over problems of each of TABLES, exact_findings.csv (`findings`, and se, their standard errors
    over problems), the figures and provenance.json, what they were made with, into `out`."""
    made = json.dumps(provenance(), indent=1) + "\n"  # at the start: of the code that runs
    rows = {name: compute() for name, (compute, *_) in TABLES.items()}
    tables = {name: over_problems(rows[name], keys, spread) for name, (_, keys, spread) in TABLES.items()}
    found = findings(tables)
    errors = [f"{error:.2g}" if math.isfinite(error) else "" for error in standard_errors(rows, found)]
    tables["exact_findings"] = found.assign(se=errors)
    files = {
        f"{name}.csv": table.to_csv(index=False, float_format="%.4g", lineterminator="\n").encode()
        for name, table in tables.items()
    }
    with matplotlib.rc_context(STYLE):
        for name, (draw, source) in FIGURES.items():
            files |= rendered(name, draw(tables[source]))
    files["provenance.json"] = made.encode()
    write_files({Path(out) / name: content for name, content in files.items()})
