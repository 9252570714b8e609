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
