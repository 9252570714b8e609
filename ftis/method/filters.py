"""Which completions an update leaves out: the filter of F-TIS (arXiv 2605.22537) and its readings.

Shapes: N completions, T tokens. To add a filter, write a frozen dataclass that is called as `Far` is; to add
a rule, a line in `FILTER_RULES`. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ftis.method.kl import KL_ESTIMATORS, sequence_kl

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Seen:
    """What a filter decides by; N completions."""

    d: Tensor
    """(N, T) log pi_gen - log pi_theta in nats, 0 on padding, without gradient."""
    mask: Tensor
    """(N, T) bool: real tokens."""
    advantages: Tensor
    """(N,) over whole groups."""
    own: Tensor
    """(N,) bool: sampled by this node."""
    group_width: Tensor
    """(N,) length of the longest completion of the group."""


@dataclass(frozen=True)
class Dropped:
    """A filter's decision, each (N,) bool: whose update is zeroed, and the advantage's and the distance's
    part in it."""

    drop: Tensor
    bad: Tensor
    far: Tensor


class Filter(Protocol):
    """Any frozen dataclass that decides which completions are left out; its fields are the filter's own
    parameters."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __call__(self, seen: Seen) -> Dropped: ...


@dataclass(frozen=True)
class Rule:
    """When a completion is left out: what a bad advantage is, and how that goes together with being far."""

    bad: Callable[[Tensor], Tensor]
    combine: Callable[[Tensor, Tensor], Tensor]


FILTER_RULES: dict[str, Rule] = {
    "negative_and_far": Rule(lambda a: a < 0, lambda bad, far: bad & far),
    "nonpositive_and_far": Rule(lambda a: a <= 0, lambda bad, far: bad & far),
    "nonpositive_or_far": Rule(lambda a: a <= 0, lambda bad, far: bad | far),
}
"""When a completion is left out, by the name that `readings.filter_rule` takes.

>>> ftis.FILTER_RULES["negative_and_far"].bad(torch.tensor([-1.0, 0.0]))
tensor([ True, False])
"""


@dataclass(frozen=True)
class Far:
    """F-TIS's filter: a completion leaves where its advantage is bad and KL > g (paper, the filter's
    indicator).

    >>> from ftis.method.filters import Seen
    >>> two = torch.tensor([[30.0, 30.0], [1.0, 1.0]])  # d of two completions, nats
    >>> bad, own = torch.tensor([-1.0, -1.0]), torch.tensor([False, False])
    >>> seen = Seen(two, two > 0, bad, own, torch.tensor([2, 2]))
    >>> ftis.Far(threshold=50.0)(seen).drop
    tensor([ True, False])
    """

    threshold: float = 50.0
    """g, nats."""
    kl_estimator: str = "gen_theta"
    kl_reduction: str = "sum"
    filter_rule: str = "negative_and_far"
    filter_scope: str = "all"
    """all | foreign: whether a node's own completions may leave, too."""

    def __call__(self, seen: Seen) -> Dropped:
        rule = FILTER_RULES[self.filter_rule]
        kl = sequence_kl(
            KL_ESTIMATORS[self.kl_estimator](seen.d), seen.mask, self.kl_reduction, seen.group_width
        )
        bad, far = rule.bad(seen.advantages), kl > self.threshold
        drop = rule.combine(bad, far)
        return Dropped(drop & ~seen.own if self.filter_scope == "foreign" else drop, bad, far)
