"""The GRPO objective and its off-policy corrections: pure functions of tensors (arXiv 2605.22537).

Shapes: N completions, T tokens of the longest one. `logp` is log pi_theta of the sampled tokens and
carries the gradient, `logp_gen` is log pi_gen as the generating node sent it, both (N, T) in nats,
right-padded; `mask` (N, T) is True on real tokens. A group is the G completions of one prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ftis.method.readings import Readings

# exp() of a clamped log-ratio stays finite in float32; a ratio of e^20 is far beyond any cap or clip.
MAX_LOG_RATIO = 20.0


def group_advantages(rewards: Tensor, group: Tensor, scale: str = "std", std: str = "sample") -> Tensor:
    """A = (reward - group mean) / group std, or the centred reward alone with scale "none" (Dr. GRPO).

    rewards (N,), group (N,) integer label of each completion's prompt -> (N,). A group whose rewards
    are all equal, or of one member, gets exactly 0: equality decides, never a small std.
    """
    labels, index = group.unique(return_inverse=True)
    zeros = rewards.new_zeros(len(labels))
    count = zeros.index_add(0, index, torch.ones_like(rewards))
    centred = rewards - (zeros.index_add(0, index, rewards) / count)[index]
    low = zeros.scatter_reduce(0, index, rewards, "amin", include_self=False)
    high = zeros.scatter_reduce(0, index, rewards, "amax", include_self=False)
    equal = (low == high)[index]
    if scale == "std":
        degrees = count - 1 if std == "sample" else count
        variance = zeros.index_add(0, index, centred.square()) / degrees.clamp(min=1)
        centred = centred / variance.sqrt()[index].masked_fill(equal, 1.0)
    return centred.masked_fill(equal, 0.0)


# Per-token estimators on samples of pi_gen, d = log pi_gen - log pi_theta (nats). Named by what they compute.
KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    # unbiased for KL(gen || theta)
    "gen_theta": lambda d: d,
    # the formula as printed with the arguments swapped: its mean is -KL(gen || theta), so it never fires
    "theta_gen_literal": lambda d: -d,
    # Schulman's k3 for KL(gen || theta): unbiased and never negative
    "k3_gen_theta": lambda d: torch.exp((-d).clamp(max=MAX_LOG_RATIO)) + d - 1,
    # GRPO's form in the authors' code; under pi_gen its mean is no KL and the worst token dominates it
    "k3_code": lambda d: torch.exp(d.clamp(max=MAX_LOG_RATIO)) - d - 1,
    # importance-weighted: unbiased for KL(theta || gen)
    "is_theta_gen": lambda d: -d * torch.exp((-d).clamp(max=MAX_LOG_RATIO)),
}


def sequence_kl(token_kl: Tensor, mask: Tensor, reduction: str, group_width: Tensor | None = None) -> Tensor:
    """Reduce per-token values (N, T) to one a completion (N,): "sum", "mean" over its tokens, or
    "padded_mean" over group_width (N,), the length of the longest completion of its group."""
    total = torch.where(mask, token_kl, 0.0).sum(-1)
    if reduction == "sum":
        return total
    if reduction == "mean":
        return total / mask.sum(-1).clamp(min=1)
    return total / group_width.clamp(min=1)


def filter_conditions(advantages: Tensor, kl: Tensor, threshold: float, rule: str) -> tuple[Tensor, Tensor]:
    """The two tests of a filter rule, each (N,) bool: (bad advantage, KL > g)."""
    bad = advantages < 0 if rule == "negative_and_far" else advantages <= 0
    return bad, kl > threshold


def filtered(bad: Tensor, far: Tensor, rule: str) -> Tensor:
    """Which completions' updates are zeroed (N,) bool, from `filter_conditions`."""
    return bad | far if rule.endswith("or_far") else bad & far


@dataclass(frozen=True)
class Terms:
    """What a weighting is a function of. x is the ratio that carries the gradient: R = pi_theta /
    sg(pi_theta), with value 1, or PPO's pi_theta / pi_start; log_ratio is log r = log pi_theta/pi_gen
    (with PPO's ratio: log pi_start/pi_gen). x, log_ratio (N, T), advantages (N, 1)."""

    x: Tensor
    log_ratio: Tensor
    advantages: Tensor
    eps: float
    cap: float
    readings: Readings

    @property
    def ratio(self) -> Tensor:
        """r, finite."""
        return torch.exp(self.log_ratio.clamp(max=MAX_LOG_RATIO))

    def surrogate(self, x: Tensor) -> Tensor:
        """x A, with the clip that the reading puts around it."""
        value = x * self.advantages
        if self.readings.clip == "literal":
            return torch.minimum(value, value.clamp(1 - self.eps, 1 + self.eps))
        if self.readings.clip_reference == "iteration_start":
            return self.clipped(x)
        return value

    def clipped(self, x: Tensor) -> Tensor:
        """min(x A, clip(x, 1 - eps, 1 + eps) A)."""
        return torch.minimum(x * self.advantages, x.clamp(1 - self.eps, 1 + self.eps) * self.advantages)


def no_weight(t: Terms) -> Tensor:
    """NoIS: R A; foreign samples are taken for one's own."""
    return t.surrogate(t.x)


def vis_weight(t: Terms) -> Tensor:
    """VIS: min(r A, clip(r, 1 - eps, 1 + eps) A), PPO's clip on the ratio to the generator.

    With `clip_reference: iteration_start` the ratio to the generator becomes a constant weight on
    PPO's own clipped term (decoupled PPO, Hilton et al. 2022).
    """
    if t.readings.clip_reference == "iteration_start":
        return t.ratio.detach() * t.surrogate(t.x)
    return t.surrogate(t.ratio) if t.readings.clip == "literal" else t.clipped(t.ratio)


def tis_weight(t: Terms) -> Tensor:
    """TIS: sg(min(r, C)) R A; `detach_weight: false` drops the sg, so that both factors carry gradient."""
    weight = t.ratio.clamp(max=t.cap)
    return (weight.detach() if t.readings.detach_weight else weight) * t.surrogate(t.x)


WEIGHTINGS: dict[str, Callable[[Terms], Tensor]] = {"none": no_weight, "vis": vis_weight, "tis": tis_weight}


@dataclass(frozen=True)
class Objective:
    """How an update turns samples into a loss: a method under a reading."""

    weighting: str
    threshold: float | None
    """g; None: no filter."""
    eps: float
    cap: float
    readings: Readings


@dataclass(frozen=True)
class Loss:
    """Of a micro-batch. The gradient of an update is that of the summed `total`s over the summed `count`s."""

    total: Tensor
    """Scalar: minus the sum over completions of the mean over their tokens of the maximised term."""
    count: Tensor
    """Scalar: completions in the denominator."""
    filtered: Tensor
    bad: Tensor
    far: Tensor
    """(N,) bool: update zeroed; the advantage's and the distance's part in it."""


def grpo_loss(
    objective: Objective,
    logp: Tensor,
    logp_gen: Tensor,
    mask: Tensor,
    advantages: Tensor,
    own: Tensor,
    group_width: Tensor,
    logp_start: Tensor | None = None,
) -> Loss:
    """The loss of a micro-batch: mean over a completion's tokens, summed over completions.

    logp, logp_gen, logp_start (N, T); mask (N, T) bool; advantages (N,) over whole groups, computed
    before anything is filtered; own (N,) bool: sampled by this node; group_width (N,) longest
    completion of the group. logp_start is needed with `clip_reference: iteration_start`.
    """
    readings = objective.readings
    logp = torch.where(mask, logp, 0.0)
    logp_gen = torch.where(mask, logp_gen, 0.0)
    if readings.clip_reference == "iteration_start":
        start = torch.where(mask, logp_start, 0.0)
        log_ratio = start - logp_gen
    else:
        start = logp.detach()
        log_ratio = logp - logp_gen
    x = torch.exp((logp - start).clamp(max=MAX_LOG_RATIO))
    if readings.weight_level == "sequence":
        log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(logp)

    terms = Terms(x, log_ratio, advantages[:, None], objective.eps, objective.cap, readings)
    value = torch.where(mask, WEIGHTINGS[objective.weighting](terms), 0.0)
    value = value.sum(-1) / mask.sum(-1).clamp(min=1)

    if objective.threshold is None:
        bad = far = drop = torch.zeros_like(own)
    else:
        token_kl = KL_ESTIMATORS[readings.kl_estimator](logp_gen - logp.detach())
        kl = sequence_kl(token_kl, mask, readings.kl_reduction, group_width)
        bad, far = filter_conditions(advantages, kl, objective.threshold, readings.filter_rule)
        drop = filtered(bad, far, readings.filter_rule)
        if readings.filter_scope == "foreign":
            drop = drop & ~own
    total = -torch.where(drop, 0.0, value).sum()
    kept = ~drop if readings.filtered_denominator == "leave" else torch.ones_like(drop)
    return Loss(total, kept.sum(), drop, bad, far)
