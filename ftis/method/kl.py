"""How far a completion is off-policy: estimators of the KL divergence a token, and their reduction to a
completion.

Shapes: N completions, T tokens. d = log pi_gen - log pi_theta of sampled tokens, (N, T) in nats. Nothing here
imports torch: settings are checked against these registries, and settings are read before torch is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# exp() of a clamped log-ratio stays finite in float32; a ratio of e^20 is far beyond any cap or clip.
MAX_LOG_RATIO = 20.0

# Per-token estimators on samples of pi_gen. Named by what they compute.
KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    # unbiased for KL(gen || theta)
    "gen_theta": lambda d: d,
    # the formula as printed with the arguments swapped: its mean is -KL(gen || theta), so it never fires
    "theta_gen_literal": lambda d: -d,
    # Schulman's k3 for KL(gen || theta): unbiased and never negative
    "k3_gen_theta": lambda d: (-d).clamp(max=MAX_LOG_RATIO).exp() + d - 1,
    # GRPO's form in the authors' code; under pi_gen its mean is no KL and the worst token dominates it
    "k3_code": lambda d: d.clamp(max=MAX_LOG_RATIO).exp() - d - 1,
    # importance-weighted: unbiased for KL(theta || gen)
    "is_theta_gen": lambda d: -d * (-d).clamp(max=MAX_LOG_RATIO).exp(),
}
"""Nats a token (N, T) from d = log pi_gen - log pi_theta (N, T), by the name that `readings.kl_estimator`
takes.

>>> ftis.KL_ESTIMATORS["k3_gen_theta"](torch.tensor([0.0, 1.0]))
tensor([0.0000, 0.3679])
"""

# From a completion's summed tokens (N,), its length (N,) and the length of its group's longest completion
# (N,).
KL_REDUCTIONS: dict[str, Callable[[Tensor, Tensor, Any], Tensor]] = {
    "sum": lambda total, length, width: total,
    "mean": lambda total, length, width: total / length.clamp(min=1),
    # over the width of the padded group, as a mean over a padded tensor gives it
    "padded_mean": lambda total, length, width: total / width.clamp(min=1),
}


def sequence_kl(token_kl: Tensor, mask: Tensor, reduction: str, group_width: Tensor | None = None) -> Tensor:
    """Reduce per-token values (N, T) to one a completion (N,), by a key of `KL_REDUCTIONS`.

    mask (N, T) is True on real tokens; group_width (N,), the length of the longest completion of each one's
    group, is needed for "padded_mean".
    """
    return KL_REDUCTIONS[reduction](token_kl.where(mask, 0.0).sum(-1), mask.sum(-1), group_width)
