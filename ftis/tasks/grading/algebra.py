"""Are two expressions equal? By sympy, in a worker only, but for `readable`."""

import re
from functools import lru_cache

from ftis.tasks.grading.clean import Unreadable
from ftis.tasks.grading.tree import GREEK

_READABLE = re.compile(
    rf"(?:\\(?:frac|sqrt|pi|{GREEK}|cdot|times|div|sin|cos|tan|cot|sec|csc"
    r"|arcsin|arccos|arctan|ln|log|exp|binom|lfloor|rfloor|lceil|rceil)(?![a-zA-Z])"
    r"|(?<!\d)_|[A-Za-z0-9+\-*/^(){}\[\]!|]|\.(?=\d)|(?<=\d)\.(?!\d)|(?<!\d) (?!\d))+"
)


def readable(atom: str) -> bool:
    """Whether `expressions` may be able to read it: every token is known there."""
    return _READABLE.fullmatch(atom) is not None and not re.search(r"\.\d*\.", atom)


_DIGITS = 1000  # to which a difference is followed before it counts as zero


@lru_cache(maxsize=2048)
def _expression(latex: str):
    from ftis.tasks.grading.expressions import read_expression

    return read_expression(latex)


def sympy_algebra(gold: str, answer: str, kind: str) -> bool:
    """Whether two expressions agree at every point ("line": their ratio is constant).

    Rational numbers are compared exactly, others to 1,000 digits. Points are fixed rationals of both signs,
    so a verdict never depends on a draw; where roots or logarithms aren't real at some of them, the others
    count, if there are two. Raises Unreadable for an answer that the reader refuses, and ValueError for such
    a gold.
    """
    import sympy

    try:
        a = _expression(gold)
    except Unreadable as problem:
        raise ValueError(f"gold {problem}") from None
    b = _expression(answer)
    if a == b:
        return True
    names = sorted(a.free_symbols | b.free_symbols, key=str)
    points = [
        {
            name: sympy.Rational((-1) ** (i * k + k) * (37 + 101 * i + 59 * k * k), 71 + 13 * i)
            for i, name in enumerate(names)
        }
        for k in range(4 if names or kind == "line" else 1)
    ]
    values = [(a.subs(p), b.subs(p)) if p else (a, b) for p in points]
    pairs = [(x, y, _value(x), _value(y)) for x, y in values]
    pairs = [pair for pair in pairs if all(v.is_number and v.is_finite for v in pair[2:])]
    if not (a.has(sympy.I) or b.has(sympy.I)):
        real = [pair for pair in pairs if all(v.is_real for v in pair[2:])]
        pairs = real if len(real) > 1 else pairs
    if len(pairs) < min(2, len(points)):
        return False
    # a long decimal is not the irrational number that it rounds
    digits = _DIGITS + max(map(len, re.findall(r"\d+", gold + " " + answer)), default=0)
    if kind == "line":
        zeros = [(_is_zero(x, digits), _is_zero(y, digits)) for x, y, *_ in pairs]
        apart = [(x, y) for (x, y, *_), zero in zip(pairs, zeros, strict=True) if not any(zero)]
        if len(apart) < 2 or any(one != other for one, other in zeros):
            return False
        (x, y), *others = apart
        return all(_same_number(x * v, y * u, _value(x * v), _value(y * u), digits) for u, v in others)
    return all(_same_number(*pair, digits) for pair in pairs)


def _value(expression, digits: int = 30):
    """To `digits` digits, unless it takes over 100 to find the first of them."""
    return expression.evalf(digits, maxn=100 + digits)


def _same_number(x, y, near_x, near_y, digits: int) -> bool:
    """Whether two constants are equal: exactly if rational, else to `digits` digits."""
    import sympy

    if not _vague(near_x) and not _vague(near_y) and abs(near_x - near_y) > 1e-15 * abs(near_x):
        return False
    if not _is_zero(sympy.Add(x, -y, evaluate=False), digits):
        return False
    x, y = x.doit(), y.doit()  # last, since it may take long: 10^9! has a value to 30 digits at once
    return x == y or not (x.is_Rational and y.is_Rational)


def _is_zero(x, digits: int) -> bool:
    """Whether no digit of x is found among its first `digits`."""
    return _vague(x.evalf(15, maxn=digits))


def _vague(value) -> bool:
    """Whether evalf found no digit in either part: it is zero, or lies below what was looked at."""
    return all(part == 0 or (part.is_Float and part._prec < 20) for part in value.as_real_imag())


def warm_up() -> None:
    """Import sympy and use it once, so that the first pair isn't charged for it."""
    sympy_algebra(r"\frac{\sqrt{2}}{2}+x_1^2", r"2^{-\frac{1}{2}}+x_1^2", "value")
