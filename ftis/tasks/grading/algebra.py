r"""Are two expressions equal? By math-verify's LaTeX parser and sympy, in a worker only."""

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
    """Whether the LaTeX parser is known to read every token as written (it drops what it doesn't know)."""
    return _READABLE.fullmatch(atom) is not None and not re.search(r"\.\d*\.", atom)


@lru_cache(maxsize=2048)
def _expression(latex: str):
    """The sympy expression of a LaTeX one: decimals exact, i the imaginary unit."""
    import sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from math_verify.parser import latex2sympy

    settings = ConversionConfig(lowercase_symbols=False)  # else R and r become one symbol
    expression = latex2sympy(latex, normalization_config=None, conversion_config=settings)
    if not isinstance(expression, sympy.Expr):
        raise TypeError(f"not an expression: {latex}")
    expression = expression.replace(lambda e: isinstance(e, sympy.Float), lambda e: sympy.Rational(str(e)))
    return expression.subs({symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i"})


def sympy_algebra(gold: str, answer: str, kind: str) -> bool:
    """Whether two expressions agree to 40 digits or more at every point ("line": their ratio is constant).

    Points are fixed rationals of both signs, so a verdict never depends on a draw. Raises Unreadable for an
    answer that the parser refuses, and what the parser raises for such a gold.
    """
    import sympy

    a = _expression(gold)
    try:
        b = _expression(answer)
    except (MemoryError, RecursionError):
        raise
    except Exception as problem:
        raise Unreadable("unreadable") from problem
    if a == b:
        return True
    names = sorted(a.free_symbols | b.free_symbols, key=str)
    if kind == "value" and not names:
        points = [{}]
    else:
        points = [
            {
                name: sympy.Rational((-1) ** (i * k + k) * (37 + 101 * i + 59 * k * k), 71 + 13 * i)
                for i, name in enumerate(names)
            }
            for k in range(4)
        ]
    # a long decimal is not the irrational number that it rounds
    digits = 60 + max(map(len, re.findall(r"\d+", gold + " " + answer)), default=0)
    pairs = [(sympy.N(a.subs(p), digits), sympy.N(b.subs(p), digits)) for p in points]
    pairs = [pair for pair in pairs if all(value.is_number and value.is_finite for value in pair)]
    if len(pairs) < min(2, len(points)):
        return False

    def close(x, y) -> bool:
        return bool(abs(x - y) <= sympy.Float(10, digits) ** (20 - digits) * max(1, abs(x)))

    if kind == "line":
        ratios = [x / y for x, y in pairs if y != 0]
        return len(ratios) >= 2 and ratios[0] != 0 and all(close(ratios[0], ratio) for ratio in ratios)
    return all(close(x, y) for x, y in pairs)


def warm_up() -> None:
    """Import the parser and build its tables, so that the first pair isn't charged for it."""
    sympy_algebra(r"\frac{\sqrt{2}}{2}+x_1^2", r"2^{-\frac{1}{2}}+x_1^2", "value")
