"""The exact study's problems: random small policies, what is right, and foreign generators at a distance.

Shapes as in `ftis.study.exact.enumerable`; distances are in nats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import torch
from scipy.optimize import brentq
from torch import Tensor

from ftis.study.exact.enumerable import Enumerated, completions, kl, token_logps

VOCABULARY, LENGTH = 4, 4
PROBLEMS = 12
DISTANCES = (0.0, 0.03, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0)
"""True KL(gen || theta) over a completion, nats; a completion has LENGTH tokens, so 1 is 0.25 a token,
as 50 is at 200 tokens."""
KINDS = ("weaker", "peer", "stronger", "hard")
"""What the foreign node is to the learner, see `expert`. hard: stronger, on a prompt the learner rarely
solves."""
CHANCES = {"hard": (0.02, 0.05)}
USUAL = (0.2, 0.5)
"""Range that the learner's chance of a right completion is drawn from."""
SHARPNESS = 2.0
SKILL = 0.5
"""Root mean square share of skill beside that of chance in the direction of stronger and weaker experts."""


def make_problem(
    seed: int, chances: tuple[float, float] = USUAL, vocabulary: int = VOCABULARY, length: int = LENGTH
) -> Enumerated:
    """A random policy (logits N(0, 1)), and right completions added at random, as long as its chance of
    one stays below a level drawn from the range `chances`."""
    rng = torch.Generator().manual_seed(seed)
    tokens, prefix = completions(vocabulary, length)
    theta = torch.randn(int(prefix.max()) + 1, vocabulary, generator=rng, dtype=torch.float64)
    problem = Enumerated(tokens, prefix, torch.zeros(len(tokens), dtype=torch.float64), theta)
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


def expert(problem: Enumerated, kind: str, seed: int) -> Tensor:
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


def at_distance(problem: Enumerated, towards: Tensor, distance: float) -> Tensor:
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


def problem_of(kind: str, seed: int) -> Enumerated:
    """The problem of that number for a kind of foreign node."""
    return make_problem(seed, CHANCES.get(kind, USUAL))


def instances() -> Iterator[tuple[int, Enumerated, str, float, list[Tensor]]]:
    """(number, problem, kind, distance, logits of two foreign nodes) of everything that is studied."""
    for seed, kind in product(range(PROBLEMS), KINDS):
        problem = problem_of(kind, seed)
        experts = [expert(problem, kind, seed + other) for other in (0, 500)]
        for distance in DISTANCES:
            yield seed, problem, kind, distance, [at_distance(problem, e, distance) for e in experts]
