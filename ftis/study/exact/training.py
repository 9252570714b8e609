"""Training without sampling noise: a swarm of two small policies that step along their expected updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import pandas as pd
from torch import Tensor

from ftis.method.methods import METHODS
from ftis.study.exact import problems
from ftis.study.exact.cases import GROUP, Case, threshold
from ftis.study.exact.enumerable import Enumerated, Part, group_moments, kl, success, token_logps

RATE, ITERATIONS = 5.0, 50
STARTS = (("stronger", 1.0), ("stronger", 4.0), ("hard", 1.0), ("hard", 4.0))
"""(kind, KL(gen || theta) in nats) before the first step."""
NODES = ("learner", "stronger")


def train_expected(problem: Enumerated, logits: Sequence[Tensor], case: Case) -> Iterator[list[Enumerated]]:
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
    for seed, (kind, start), method in product(range(problems.PROBLEMS), STARTS, METHODS):
        problem = problems.problem_of(kind, seed)
        foreign = problems.at_distance(problem, problems.expert(problem, kind, seed), start)
        case = Case("methods", method, threshold(method))
        for step, nodes in enumerate(train_expected(problem, [problem.theta, foreign], case)):
            if step % 5:
                continue
            logps = [token_logps(node, node.theta) for node in nodes]
            for k, role in enumerate(NODES):
                rows.append(
                    {
                        "problem": seed,
                        "kind": kind,
                        "start": start,
                        "method": method,
                        "node": role,
                        "step": step,
                        "reward": success(nodes[k], nodes[k].theta),
                        "kl": kl(logps[1 - k], logps[k]),
                    }
                )
    return pd.DataFrame(rows)
