"""How a sample of another policy counts: the importance weightings of the paper (arXiv 2605.22537, Methods).

A weighting is a frozen dataclass whose fields are its own parameters and which turns `Terms` into the
maximised term of each token, (N, T). Fields that have the name of a run's setting (eps, cap) or reading
(detach_weight) take its value. Nothing here imports torch, since settings are checked against the methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ftis.method.kl import MAX_LOG_RATIO
from ftis.method.readings import Readings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Terms:
    """What a weighting is a function of; N completions, T tokens.

    >>> t = ftis.Terms(
    ...     x=torch.ones(1, 2), log_ratio=torch.tensor([[0.0, 2.0]]), advantages=torch.tensor([[0.5]]),
    ...     mask=torch.tensor([[True, True]]), own=torch.tensor([[False]]), eps=0.2, readings=ftis.Readings(),
    ... )
    >>> t.ratio
    tensor([[1.0000, 7.3891]])
    """

    x: Tensor
    """(N, T) the ratio that carries the gradient: R = pi_theta / sg(pi_theta), with value 1, or PPO's
    pi_theta / pi_start."""
    log_ratio: Tensor
    """(N, T) log r = log pi_theta / pi_gen (with PPO's ratio: log pi_start / pi_gen) in nats."""
    advantages: Tensor
    """(N, 1)."""
    mask: Tensor
    """(N, T) bool: real tokens."""
    own: Tensor
    """(N, 1) bool: sampled by this node."""
    eps: float
    """The clip range of the readings that put a clip around every method."""
    readings: Readings

    @property
    def ratio(self) -> Tensor:
        """r, finite, (N, T)."""
        return self.log_ratio.clamp(max=MAX_LOG_RATIO).exp()

    def surrogate(self, x: Tensor) -> Tensor:
        """x A, with the clip that the reading puts around it, (N, T)."""
        value = x * self.advantages
        if self.readings.clip == "literal":
            return value.minimum(value.clamp(1 - self.eps, 1 + self.eps))
        if self.readings.clip_reference == "iteration_start":
            return self.clipped(x, self.eps)
        return value

    def clipped(self, x: Tensor, eps: float) -> Tensor:
        """min(x A, clip(x, 1 - eps, 1 + eps) A), (N, T)."""
        return (x * self.advantages).minimum(x.clamp(1 - eps, 1 + eps) * self.advantages)


class Weighting(Protocol):
    """Any frozen dataclass that turns `Terms` into the maximised term of each token, (N, T)."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __call__(self, t: Terms) -> Tensor: ...


@dataclass(frozen=True)
class NoWeight:
    """NoIS: R A; foreign samples are taken for one's own. With t as in `Terms`:

    >>> ftis.NoWeight()(t)
    tensor([[0.5000, 0.5000]])
    """

    def __call__(self, t: Terms) -> Tensor:
        return t.surrogate(t.x)


@dataclass(frozen=True)
class VIS:
    """VIS: min(r A, clip(r, 1 - eps, 1 + eps) A), PPO's clip on the ratio to the generator.

    With `clip_reference: iteration_start` the ratio to the generator becomes a constant weight on
    PPO's own clipped term (decoupled PPO, Hilton et al. 2022). With t as in `Terms`:

    >>> ftis.VIS(eps=0.2)(t)
    tensor([[0.5000, 0.6000]])
    """

    eps: float = 0.2

    def __call__(self, t: Terms) -> Tensor:
        if t.readings.clip_reference == "iteration_start":
            return t.ratio.detach() * t.surrogate(t.x)
        return t.surrogate(t.ratio) if t.readings.clip == "literal" else t.clipped(t.ratio, self.eps)


@dataclass(frozen=True)
class TIS:
    """TIS: sg(min(r, C)) R A; without `detach_weight` both factors carry gradient. With t as in `Terms`:

    >>> ftis.TIS(cap=2.0)(t)
    tensor([[0.5000, 1.0000]])
    """

    cap: float = 2.0
    """C, where the ratio is truncated."""
    detach_weight: bool = True

    def __call__(self, t: Terms) -> Tensor:
        weight = t.ratio.clamp(max=self.cap)
        return (weight.detach() if self.detach_weight else weight) * t.surrogate(t.x)
