"""The registry of methods: a method is an importance weighting, with or without the filter.

To add one: a line here and, if its weighting is new, a pure function in `ftis.method.objective.WEIGHTINGS`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """How a node learns from the swarm's samples (PAPER: section Methods)."""

    label: str
    """Name in figures and tables."""
    weighting: str
    """Key of `ftis.method.objective.WEIGHTINGS`: none (R A), vis (clipped ratio), tis (truncated ratio)."""
    filtered: bool
    """Whether the update of harmful samples is zeroed (needs a threshold g)."""


METHODS: dict[str, Method] = {
    "alone": Method("Alone", "none", False),
    "nois": Method("NoIS", "none", False),
    "vis": Method("VIS", "vis", False),
    "tis": Method("TIS", "tis", False),
    "fnois": Method("F-NoIS", "none", True),
    "fvis": Method("F-VIS", "vis", True),
    "ftis": Method("F-TIS", "tis", True),
}
