"""Objectives by the names that the slow reference has for the paper's weightings."""

from ftis.method.filters import Far
from ftis.method.methods import METHODS, Method
from ftis.method.objective import Objective
from ftis.method.readings import Readings
from ftis.method.weightings import TIS, VIS, NoWeight

WEIGHTINGS = {"none": NoWeight(), "vis": VIS(), "tis": TIS()}


def objective(
    weighting: str, threshold: float | None, eps: float, cap: float, readings: Readings
) -> Objective:
    """A weighting with the paper's filter where there is a threshold."""
    method = Method(weighting, WEIGHTINGS[weighting], None if threshold is None else Far())
    return Objective.of(method, readings, threshold=threshold, eps=eps, cap=cap)


def weighting_name(method: str) -> str:
    """What the reference calls a method's weighting."""
    return next(name for name, weighting in WEIGHTINGS.items() if METHODS[method].weighting == weighting)
