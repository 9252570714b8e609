"""The GRPO objective and its off-policy corrections: pure functions of tensors (arXiv 2605.22537).

Shapes: N completions, T tokens of the longest one. `logp` is log pi_theta of the sampled tokens and
carries the gradient, `logp_gen` is log pi_gen as the generating node sent it, both (N, T) in nats,
right-padded; `mask` (N, T) is True on real tokens. A group is the G completions of one prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ftis.method.filters import Dropped, Filter, Seen
from ftis.method.kl import MAX_LOG_RATIO
from ftis.method.methods import Method, filled, refuse_unknown
from ftis.method.readings import Readings
from ftis.method.weightings import Terms, Weighting


def group_advantages(rewards: Tensor, group: Tensor, scale: str = "std", std: str = "sample") -> Tensor:
    """A = (reward - group mean) / group std, or the centred reward alone with scale "none" (Dr. GRPO).

    rewards (N,), group (N,) integer label of each completion's prompt -> (N,). A group whose rewards
    are all equal, or of one member, gets exactly 0: equality decides, never a small std.

    >>> ftis.group_advantages(torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    tensor([ 0.7071, -0.7071,  0.0000,  0.0000])
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


@dataclass(frozen=True)
class Objective:
    """How an update turns samples into a loss: a method's weighting and filter under a reading.

    >>> ftis.Objective.of(ftis.METHODS["ftis"], threshold=50.0, cap=1.5).weighting
    TIS(cap=1.5, detach_weight=True)
    """

    weighting: Weighting
    filter: Filter | None
    """None: nothing is left out."""
    readings: Readings = field(default_factory=Readings)
    eps: float = 0.2
    """Clip range of the readings that put a clip around every method."""

    @classmethod
    def of(
        cls,
        method: Method,
        readings: Readings | None = None,
        *,
        threshold: float | None = None,
        eps: float = 0.2,
        cap: float = 2.0,
        parameters: Mapping[str, Any] | None = None,
    ) -> Objective:
        """The objective of a method under a run's settings.

        Every field of its weighting and its filter takes the value of the setting, reading or entry of
        `parameters` that has its name. Raises UserError for a parameter that the method hasn't.
        """
        readings = readings or Readings()
        parameters = dict(parameters or {})
        given = dict(vars(readings))
        given |= (
            {"eps": eps, "cap": cap} | ({} if threshold is None else {"threshold": threshold}) | parameters
        )
        refuse_unknown(method, parameters)
        return cls(
            filled(method.weighting, given), method.filter and filled(method.filter, given), readings, eps
        )


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

    >>> tis = ftis.Objective.of(ftis.METHODS["tis"], cap=2.0)
    >>> logp = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    >>> loss = ftis.grpo_loss(  # one foreign completion of two tokens, A = 1; r is 1 and e, which C cuts to 2
    ...     tis, logp, logp_gen=torch.tensor([[-1.0, -2.0]]), mask=torch.tensor([[True, True]]),
    ...     advantages=torch.tensor([1.0]), own=torch.tensor([False]), group_width=torch.tensor([2]),
    ... )
    >>> loss.total.backward()
    >>> loss.total.item(), logp.grad
    (-1.5, tensor([[-0.5000, -1.0000]]))
    """
    readings = objective.readings
    logp = torch.where(mask, logp, 0.0)
    logp_gen = torch.where(mask, logp_gen, 0.0)
    if readings.clip_reference == "iteration_start":
        if logp_start is None:
            raise ValueError("clip_reference: iteration_start needs logp_start")
        start = torch.where(mask, logp_start, 0.0)
        log_ratio = start - logp_gen
    else:
        start = logp.detach()
        log_ratio = logp - logp_gen
    x = torch.exp((logp - start).clamp(max=MAX_LOG_RATIO))
    if readings.weight_level == "sequence":
        log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(logp)

    terms = Terms(x, log_ratio, advantages[:, None], mask, own[:, None], objective.eps, readings)
    value = torch.where(mask, objective.weighting(terms), 0.0)
    value = value.sum(-1) / mask.sum(-1).clamp(min=1)

    if objective.filter is None:
        none = torch.zeros_like(own)
        left_out = Dropped(none, none, none)
    else:
        left_out = objective.filter(Seen(logp_gen - logp.detach(), mask, advantages, own, group_width))
    total = -torch.where(left_out.drop, 0.0, value).sum()
    kept = ~left_out.drop if readings.filtered_denominator == "leave" else torch.ones_like(left_out.drop)
    return Loss(total, kept.sum(), left_out.drop, left_out.bad, left_out.far)
