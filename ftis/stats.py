"""Intervals and estimators."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959963984540054


def wilson(successes: int, n: int) -> tuple[float, float]:
    """95 % Wilson score interval of a proportion; (0, 1) without observations (Wilson 1927)."""
    if n == 0:
        return 0.0, 1.0
    p, z2 = successes / n, Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % normal interval of a mean over many independent values in [0, 1], cut to that range."""
    n = len(values)
    if n < 2:
        return 0.0, 1.0
    mean = sum(values) / n
    half = Z95 * math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)
    return max(0.0, mean - half), min(1.0, mean + half)


def pass_at_k(n: int, right: int, k: int) -> float:
    """Unbiased chance that one of k samples is right, from `right` of n: 1 - C(n - right, k) / C(n, k)
    (Chen et al. 2021, arXiv 2107.03374, equation 1)."""
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


# ---------------------------------------------------------------- few values: Student's t
#
# scipy.special is imported where it is used: it takes a third of a second, and most commands need none of it.


def t_quantile(p: float, df: float) -> float:
    """The p quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(df, p))


def _t_parts(values: Sequence[float], sd_floor: float) -> tuple[int, float, float]:
    """n, mean and standard error; the standard deviation (n - 1) counts as `sd_floor` at least."""
    n = len(values)
    mean = math.fsum(values) / n
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return n, mean, max(math.sqrt(variance), sd_floor) / math.sqrt(n)


def t_interval(values: Sequence[float], level: float = 0.95, sd_floor: float = 0.0) -> tuple[float, float]:
    """t-interval of the mean; (nan, nan) for fewer than two values. Of paired differences: the paired t."""
    values = [float(v) for v in values]
    if len(values) < 2:
        return math.nan, math.nan
    n, mean, error = _t_parts(values, sd_floor)
    half = t_quantile(0.5 + level / 2, n - 1) * error
    return mean - half, mean + half


def p_above(values: Sequence[float], threshold: float, sd_floor: float = 0.0) -> float:
    """One-sided p of the t-test that the mean is above `threshold`; nan for fewer than two values.

    p < 0.025 says the same as: the 95 % t-interval lies above the threshold.
    """
    from scipy.special import stdtr

    if len(values) < 2:
        return math.nan
    n, mean, error = _t_parts(values, sd_floor)
    if error == 0:  # the limit of ever smaller errors
        return 0.0 if mean > threshold else 1.0
    return float(stdtr(n - 1, (threshold - mean) / error))


def p_below(values: Sequence[float], threshold: float, sd_floor: float = 0.0) -> float:
    """One-sided p of the t-test that the mean is below `threshold`."""
    return p_above([-v for v in values], -threshold, sd_floor)


def p_level(values: Sequence[float], margin: float, sd_floor: float = 0.0) -> float:
    """p of the equivalence test that the mean is within +-margin: two one-sided t-tests, the larger p
    (TOST, Schuirmann 1987)."""
    return max(p_above(values, -margin, sd_floor), p_below(values, margin, sd_floor))


def p_not_level(values: Sequence[float], margin: float, sd_floor: float = 0.0) -> float:
    """p of the test that the mean is outside +-margin: twice the smaller one-sided p, at most 1."""
    p = 2 * min(p_above(values, margin, sd_floor), p_below(values, -margin, sd_floor))
    return p if math.isnan(p) else min(p, 1.0)


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p-values of Holm (1979): those at most alpha may be rejected together, and the chance of any
    false rejection is at most alpha, whatever the dependence. nan is no test and stays nan."""
    adjusted, largest = [math.nan] * len(ps), 0.0
    order = sorted((k for k, p in enumerate(ps) if not math.isnan(p)), key=lambda k: ps[k])
    for rank, k in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * ps[k]))
        adjusted[k] = largest
    return adjusted


# ---------------------------------------------------------------- how many values are needed


def t_power(n: int, effect: float, sd: float, alpha: float) -> float:
    """Power of a one-sided t-test at level alpha on n values whose mean is `effect` beyond the threshold
    (noncentral t)."""
    from scipy.special import nctdtr

    missed = float(nctdtr(n - 1, effect / sd * math.sqrt(n), t_quantile(1 - alpha, n - 1)))
    return 1.0 if math.isnan(missed) else 1 - missed  # nan: too small for scipy's series, below 1e-40


def needed_n(
    distances: Sequence[float], sd: float, alpha: float = 0.025, power: float = 0.8, cap: int = 1000
) -> int | None:
    """Fewest values, from 2, with which one-sided t-tests over all `distances` succeed with at least `power`.

    A distance is how far the mean lies beyond a test's threshold; an equivalence test has two. The chance
    that all succeed is bounded from below by 1 - sum of the chances to miss. None: more than `cap`.
    """

    def enough(n: int) -> bool:
        return sum(1 - t_power(n, d, sd, alpha) for d in distances) <= 1 - power

    if min(distances) <= 0:
        return None
    if sd == 0 or enough(2):
        return 2
    if not enough(cap):
        return None
    low, high = 2, cap
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
