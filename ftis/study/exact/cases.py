"""The exact study's cases: ways to learn from a swarm, the moments of their updates, and how good those are.

The reference is Alone's expected update on its own samples. With completions of one length it has the
direction of grad J, the true policy gradient of the expected reward (the advantage depends on a completion
through its reward alone), so one reference serves for both; relative biases are in Alone's units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ftis.method.kl import KL_ESTIMATORS
from ftis.method.methods import METHODS, unfiltered
from ftis.method.objective import Objective
from ftis.method.readings import Readings
from ftis.study.exact.enumerable import (
    Enumerated,
    Moments,
    Part,
    group_moments,
    success,
    swarm_update,
    token_logps,
    true_gradient,
)

GROUP, PROMPTS = 12, 24
"""G, and B over the swarm, both the paper's for its size pairs."""
THRESHOLDS = (0.1, 0.3, 1.0, 3.0, 10.0)
CAPS = (1.0, 2.0, 5.0, math.inf)
G, CAP, EPS = 1.0, 2.0, 0.2
"""g, C and eps where a block doesn't vary them; g is 0.25 nats a token, the paper's 50 at 200 tokens."""
PAPER = Readings()
STEP = 1.0
"""Norm of a step in logit space for the exact gains."""


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
    swept = [name for name in learning if METHODS[name].filtered and unfiltered(name)]
    found += [Case("threshold", name, g) for name in swept for g in THRESHOLDS]
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
    case: Case, problem: Enumerated, gens: Sequence[Tensor], seen: dict
) -> list[tuple[Moments, int]]:
    """The groups of an update with how many of each, own ones first.

    seen: moments of groups that one node samples, by (objective, node); cases share them, and they are added
    to.

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
    case: Case, problem: Enumerated, groups: Sequence[tuple[Moments, int]], alone: Moments
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
