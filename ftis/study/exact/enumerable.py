"""A policy small enough to enumerate, and the exact mean and variance of a group's GRPO update.

A policy is a table of logits, one row a prefix; completions have L tokens of a vocabulary of V, some of them
are right (reward 1). The update of each completion comes from `ftis.method.objective.grpo_loss`, the code
that trains; this module only takes its expectation. That is exact because rewards are binary: the advantage
of a completion depends on the others of its group through the number of their successes alone, which is a sum
of binomials, and given the rewards completions are independent. It is quick because an advantage's sign is
that of the reward, and the update is in proportion to its size.

Shapes: S = V^L completions, L tokens, H prefixes of length < L, G completions a group. Policies are
(H, V) float64 logits, log-probs (S, L) and distances in nats. An "update" is the direction of ascent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import torch
from torch import Tensor

from ftis.method.objective import Objective, group_advantages, grpo_loss
from ftis.method.readings import Readings

# ---------------------------------------------------------------- the enumerable policy


@dataclass(frozen=True, eq=False)
class Enumerated:
    """A prompt: every completion of it, which are right, and the policy that learns."""

    tokens: Tensor
    """(S, L) every completion."""
    prefix: Tensor
    """(S, L) row of the logit table that each token is drawn from."""
    rewards: Tensor
    """(S,) 1.0 where the completion is right."""
    theta: Tensor
    """(H, V) logits of the policy that learns."""

    @cached_property
    def cell(self) -> Tensor:
        """(S, L) place of each token in the flattened (H, V) table."""
        return self.prefix * (int(self.tokens.max()) + 1) + self.tokens


def completions(vocabulary: int, length: int) -> tuple[Tensor, Tensor]:
    """All V^L completions (S, L) and the index of the prefix before each token (S, L).

    Prefixes are numbered by length, then as numbers in base V: the empty one is 0, then 1..V, ...
    """
    tokens = torch.tensor(list(product(range(vocabulary), repeat=length)))
    prefix = torch.zeros_like(tokens)
    for t in range(1, length):
        prefix[:, t] = prefix[:, t - 1] * vocabulary + tokens[:, t - 1] + 1
    return tokens, prefix


def token_logps(problem: Enumerated, logits: Tensor) -> Tensor:
    """log pi of every token of every completion, (S, L)."""
    return logits.log_softmax(-1).flatten()[problem.cell]


def kl(p_SL: Tensor, q_SL: Tensor) -> float:
    """True KL(p || q) over completions in nats, from their token log-probs."""
    return float((p_SL.sum(-1).exp() * (p_SL - q_SL).sum(-1)).sum())


def success(problem: Enumerated, logits: Tensor) -> float:
    """J, the expected reward: chance that a completion is right."""
    return float(token_logps(problem, logits).sum(-1).exp() @ problem.rewards)


def score_sum(problem: Enumerated, weights_KSL: Tensor) -> Tensor:
    """sum over completions y and tokens t of weight(y, t) grad log pi_theta(y_t | prefix), (K, H, V).

    For a softmax that gradient is e_token - pi(. | prefix) in the row of the prefix and 0 elsewhere.
    """
    table = weights_KSL.new_zeros(len(weights_KSL), problem.theta.numel())
    table.index_add_(1, problem.cell.flatten(), weights_KSL.flatten(1))
    table = table.unflatten(1, problem.theta.shape)
    return table - problem.theta.softmax(-1) * table.sum(-1, keepdim=True)


def true_gradient(problem: Enumerated) -> Tensor:
    """grad J = E[reward grad log pi(y)], (H, V)."""
    logp = token_logps(problem, problem.theta)
    weights = (logp.sum(-1).exp() * problem.rewards)[:, None].expand_as(logp)
    return score_sum(problem, weights[None])[0]


# ---------------------------------------------------------------- exact moments of a group's update


@dataclass(frozen=True, eq=False)
class Part:
    """The completions of a group that one node samples: n draws from the policy `logp_gen` (S, L)."""

    logp_gen: Tensor
    n: int
    own: bool
    left_out: Tensor | None = None
    """(S,) bool: completions that count in the advantages and have no update; None: none."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Of the sum of the updates of a group's completions."""

    mean: Tensor
    """(H, V) expectation."""
    square: float
    """Expectation of the squared norm; nan where it wasn't asked for."""

    @property
    def variance(self) -> float:
        """Trace of the covariance."""
        return self.square - float(self.mean.square().sum())


def success_counts(chances: Sequence[tuple[float, int]]) -> Tensor:
    """Distribution of the number of successes among n draws of chance p for each (p, n): (sum n + 1,)."""
    counts = [1.0]
    for p, n in chances:
        one = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
        total = [0.0] * (len(counts) + n)
        for i, j in product(range(len(counts)), range(n + 1)):
            total[i + j] += counts[i] * one[j]
        counts = total
    return torch.tensor(counts, dtype=torch.float64)


@lru_cache
def advantage_table(size: int, readings: Readings) -> Tensor:
    """A of a completion with reward r in a group of `size` where s others succeed, (2, size) by [r, s]."""
    table = torch.zeros(2, size, dtype=torch.float64)
    for successes in range(size + 1):
        rewards = (torch.arange(size) < successes).double()
        group = torch.zeros(size, dtype=torch.long)
        advantages = group_advantages(rewards, group, readings.advantage_scale, readings.std)
        if successes > 0:
            table[1, successes - 1] = advantages[0]
        if successes < size:
            table[0, successes] = advantages[-1]
    return table


def update_weights(objective: Objective, problem: Enumerated, part: Part) -> Tensor:
    """Factor of grad log pi_theta(token) in a completion's update a unit of its advantage's size, (S, L).

    One call of the project's loss over all completions, right ones with an advantage of 1, others with -1.
    Raises ValueError for the clip as printed, under which an update isn't in proportion to the advantage.
    """
    if objective.readings.clip == "literal":
        raise ValueError("readings.clip: the moments of the literal clip are not computed; use 'ratio'")
    s, length = problem.tokens.shape
    logp = token_logps(problem, problem.theta).requires_grad_()
    mask = torch.ones_like(logp, dtype=torch.bool)
    own, width = torch.full((s,), part.own), torch.full((s,), length)
    loss = grpo_loss(objective, logp, part.logp_gen, mask, 2 * problem.rewards - 1, own, width)
    weights = -torch.autograd.grad(loss.total, logp)[0]
    return weights if part.left_out is None else weights * ~part.left_out[:, None]


def group_moments(
    objective: Objective, problem: Enumerated, parts: Sequence[Part], variance: bool = True
) -> Moments:
    """Expectation and mean squared norm of the summed update of a group that `parts` sample together.

    With u_i a member's update, which depends on its completion and on how many others succeed:
    E|sum u_i|^2 = sum E|u_i|^2 + sum over pairs of E[u_i . u_j]. Given both rewards and the successes s
    of the rest, i and j are independent, so a pair's term needs only each one's mean by reward.
    """
    size = sum(part.n for part in parts)
    sizes = advantage_table(size, objective.readings).abs()
    right = problem.rewards.long()
    chances = [float(part.logp_gen.sum(-1).exp() @ problem.rewards) for part in parts]

    def others(*left_out: int) -> Tensor:
        """Successes among the group without one member of each part named."""
        return success_counts(
            [(p, part.n - left_out.count(k)) for k, (p, part) in enumerate(zip(chances, parts, strict=True))]
        )

    pi = problem.theta.softmax(-1)
    # |grad log pi(token)|^2; the tokens of a completion lie in different rows, so squared norms add up.
    norm_SL = (1 - 2 * pi + pi.square().sum(-1, keepdim=True)).flatten()[problem.cell]
    mean, square, means = torch.zeros_like(problem.theta), 0.0, []
    for k, part in enumerate(parts):
        weights_SL = update_weights(objective, problem, part)
        drawn_SL = weights_SL * part.logp_gen.sum(-1).exp()[:, None]
        # (2, H, V): the mean update of a completion by its reward, for an advantage of size 1, times
        # P(reward).
        by_reward = score_sum(problem, torch.stack([drawn_SL * (right == r)[:, None] for r in (0, 1)]))
        means.append(by_reward)
        rest = others(k)
        mean += part.n * torch.einsum("rhv,r->hv", by_reward, sizes @ rest)
        if variance:
            squares_S = (drawn_SL * weights_SL * norm_SL).sum(-1)
            square += part.n * float((sizes.square() @ rest)[right] @ squares_S)
    for a, b in product(range(len(parts)), repeat=2) if variance else ():
        pairs = parts[a].n * (parts[b].n - (a == b))
        if pairs:
            rest, dots = others(a, b), torch.einsum("xhv,yhv->xy", means[a], means[b]).tolist()
            for ra, rb in product((0, 1), repeat=2):
                both = sizes[ra, rb : rb + size - 1] * sizes[rb, ra : ra + size - 1]
                square += pairs * dots[ra][rb] * float(both @ rest)
    return Moments(mean, square if variance else math.nan)


def swarm_update(groups: Sequence[tuple[Moments, int]], samples: int) -> tuple[Tensor, float]:
    """Mean (H, V) and total variance of the update averaged over `samples` completions, from independent
    groups, each (moments, how many such groups)."""
    mean = sum(count * moments.mean for moments, count in groups) / samples
    return mean, sum(count * moments.variance for moments, count in groups) / samples**2
