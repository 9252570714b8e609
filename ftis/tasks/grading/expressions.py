r"""A single LaTeX expression read into sympy, strictly: every token in its one meaning, or Unreadable.

Why not math-verify's parser: latex2sympy2_extended 1.11.0, on which math-verify 0.9.0 stands, adds a number
to the bracket or binomial behind it as if it were a mixed number (`3(4)` = 7, `2\binom{5}{2}` = 12), lets a
function take the product behind it (`\ln 2 \cdot 3` = ln 6), reads `3!!` as (3!)!, `d \cdot x` as one name
and `1/2x` as 1/(2x), and drops primes. A rewriting of the text around all that is as long as this reader. It
reads, and never simplifies: values are sympy's.

    sum      = ["+" | "-"] product {("+" | "-") product}
    product  = factor {[dot | slash] factor}
    factor   = base ["^" exponent] | base "!"
    base     = number | letter | constant | bracketed sum | |sum| | \frac | \sqrt | \binom | function

Refused, as people don't agree on what they mean: a slash before a product (`1/2x`), a mixed number inside a
product (`2\frac13 x`), a bracket, root or fraction behind a function's bare argument (`\ln 2\sqrt3`,
`\sin x(x+1)`), a constant multiple of pi before a slash (`\sin \pi/6`), `2^3!`, `2^3^2`, `f(2)`.
"""

import re

import sympy

from ftis.tasks.grading.clean import Unreadable
from ftis.tasks.grading.tree import GREEK

_TOKEN = re.compile(r"\d+(?:\.\d*)?|\.\d+|\\[a-zA-Z]+|\*\*|\S| +(?=\d)")
_FUNCTIONS = {
    "sin": (sympy.sin, sympy.asin),
    "cos": (sympy.cos, sympy.acos),
    "tan": (sympy.tan, sympy.atan),
    "cot": (sympy.cot, sympy.acot),
    "sec": (sympy.sec, sympy.asec),
    "csc": (sympy.csc, sympy.acsc),
    "arcsin": (sympy.asin, None),
    "arccos": (sympy.acos, None),
    "arctan": (sympy.atan, None),
    "ln": (sympy.log, None),
    "exp": (sympy.exp, None),
    "log": (sympy.log, None),
}
_CLOSING = {"(": ")", "[": "]", "{": "}", "|": "|", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_AROUND = {"|": sympy.Abs, r"\lfloor": sympy.floor, r"\lceil": sympy.ceiling}
_CONSTANTS = {r"\pi": sympy.pi, "e": sympy.E, "i": sympy.I}
_DOTS = (r"\cdot", r"\times", "*")
_SLASHES = ("/", r"\div")
_NAMES = frozenset(rf"\{name}" for name in GREEK.split("|"))


def read_expression(latex: str) -> sympy.Expr:
    """The expression as written, unevaluated; decimals are exact. Raises Unreadable."""
    reader = _Reader(latex)
    try:
        expression = reader.sum()
    except RecursionError:
        raise Unreadable("too_deep") from None
    if reader.token:
        raise Unreadable("unreadable")
    return expression


def _negative(value: sympy.Expr) -> sympy.Expr:
    return -value if value.is_Rational else sympy.Mul(-1, value, evaluate=False)


class _Reader:
    """A cursor on the tokens; `token` is the next one, "" at the end."""

    def __init__(self, latex: str):
        self.tokens = [*_TOKEN.findall(latex), ""]
        self.place = 0
        self.bars = 0  # open |

    @property
    def token(self) -> str:
        return self.tokens[self.place]

    def take(self, *wanted: str) -> str:
        """The next token if it is one of `wanted` (any if none are given), else Unreadable."""
        token = self.token
        if not token or (wanted and token not in wanted):
            raise Unreadable("unreadable")
        self.place += 1
        return token

    def skip(self, *wanted: str) -> bool:
        """Whether the next token was one of `wanted`, and is passed."""
        found = self.token in wanted
        self.place += found
        return found

    def sum(self) -> sympy.Expr:
        terms = []
        while True:
            minus = self.token == "-"
            self.skip("+", "-")
            product = self.product()
            terms.append(_negative(product) if minus else product)
            if self.token not in ("+", "-"):
                return terms[0] if len(terms) == 1 else sympy.Add(*terms, evaluate=False)

    def product(self) -> sympy.Expr:
        factors, alone, divided = [], True, False
        while True:
            first = self.place
            factor, mixed = self.factor()
            if mixed and not alone:
                raise Unreadable("unreadable")
            factors.append(sympy.Pow(factor, -1, evaluate=False) if divided else factor)
            if self.token in (*_DOTS, *_SLASHES):
                divided = self.take() in _SLASHES
                alone = True
                if self.skip("-"):
                    factors.append(sympy.Integer(-1))
                else:
                    self.skip("+")
            elif self.starts_factor():
                # two numbers side by side are no product, `1/2x` has two readings
                if divided or mixed or (first + 1 == self.place and self.digits() and self.digits(first)):
                    raise Unreadable("unreadable")
                divided = alone = False
            else:
                return factors[0] if len(factors) == 1 else sympy.Mul(*factors, evaluate=False)

    def digits(self, place: int | None = None) -> bool:
        token = self.tokens[self.place if place is None else place]
        return token[:1].isdigit() or (len(token) > 1 and token[0] == ".")

    def starts_factor(self) -> bool:
        token = self.token
        return (
            self.digits()
            or token.isalpha()
            or (
                token in (*_CLOSING, *_CONSTANTS, *_NAMES, r"\frac", r"\sqrt", r"\binom")
                and (token != "|" or not self.bars)
            )
            or token[1:] in _FUNCTIONS
        )

    def factor(self) -> tuple[sympy.Expr, bool]:
        """(base with its power, whether it is a mixed number)."""
        if self.token[1:] in _FUNCTIONS:
            return self.function(), False
        whole = self.token if self.token.isdigit() else None
        base = self.base()
        if whole and self.token == r"\frac":
            proper = re.match(r"\{(\d+)\}\{(\d+)\}", "".join(self.tokens[self.place + 1 :][:6]))
            if proper and int(proper[1]) < int(proper[2]):
                part = self.base()
                if self.token in ("^", "**", "!"):
                    raise Unreadable("unreadable")
                return sympy.Add(base, part, evaluate=False), True
        return self.powered(base), False

    def powered(self, base: sympy.Expr) -> sympy.Expr:
        if self.skip("^", "**"):
            base = sympy.Pow(base, self.exponent(), evaluate=False)
            if self.token in ("^", "**", "!"):
                raise Unreadable("unreadable")
        elif self.skip("!"):
            base = sympy.factorial2(base) if self.skip("!") else sympy.factorial(base, evaluate=False)
            if self.token in ("^", "**", "!"):
                raise Unreadable("unreadable")
        return base

    def exponent(self) -> sympy.Expr:
        if self.skip("-"):
            return _negative(self.base())
        return self.base()

    def base(self) -> sympy.Expr:
        token = self.take()
        if token[0].isdigit() or (len(token) > 1 and token[0] == "."):
            return sympy.Rational(token)
        if token in _CLOSING:
            return self.bracketed(token)
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        if token == r"\frac":
            return sympy.Mul(self.argument(), sympy.Pow(self.argument(), -1, evaluate=False), evaluate=False)
        if token == r"\binom":
            return sympy.binomial(self.argument(), self.argument(), evaluate=False)
        if token == r"\sqrt":
            degree = self.bracketed(self.take()) if self.token == "[" else sympy.Integer(2)
            inside = self.argument(number=True)
            return sympy.Pow(inside, sympy.Pow(degree, -1, evaluate=False), evaluate=False)
        if token in _NAMES or (len(token) == 1 and token.isascii() and token.isalpha()):
            return self.symbol(token)
        raise Unreadable("unreadable")

    def bracketed(self, opening: str) -> sympy.Expr:
        """The sum up to the bracket that closes `opening`, which has been taken."""
        outside, self.bars = self.bars, int(opening == "|")
        inside = self.sum()
        self.take(_CLOSING[opening])
        self.bars = outside
        return _AROUND[opening](inside, evaluate=False) if opening in _AROUND else inside

    def argument(self, number: bool = False) -> sympy.Expr:
        r"""What a command takes: a group, a name, or one digit as in TeX; for a root sign a whole number."""
        token = self.take()
        if token in ("{", "("):
            return self.bracketed(token)
        if token.isdigit() and not number and len(token) > 1:
            self.place -= 1
            self.tokens[self.place] = token[1:]
            return sympy.Integer(token[0])
        if self.digits(self.place - 1):
            return sympy.Rational(token)
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        if token in _NAMES or (len(token) == 1 and token.isalpha()):
            return self.symbol(token)
        raise Unreadable("unreadable")

    def symbol(self, name: str) -> sympy.Symbol:
        if name in "fgh" and self.token == "(":
            raise Unreadable("unreadable")  # a value of a function, which is no product
        if self.skip("_"):
            parts = [self.take()]
            if parts[0] == "{":
                while self.token.isalnum():
                    parts.append(self.take())
                self.take("}")
            index = "".join(parts).strip("{")
            if not index.isalnum():
                raise Unreadable("unreadable")
            name += f"_{index}"
        return sympy.Symbol(name)

    def function(self) -> sympy.Expr:
        r"""`\sin x`, `\sin^2 x`, `\log_2(3)`: a dot, a slash or a closed bracket ends the argument."""
        name = self.take()[1:]
        function, inverse = _FUNCTIONS[name]
        base = power = None
        if name == "log":
            base = self.argument(number=True) if self.skip("_") else sympy.Integer(10)
        if self.skip("^"):
            power = self.exponent()
            if power == -1:
                if inverse is None:
                    raise Unreadable("unreadable")
                function, power = inverse, None
        bracket = self.token in _CLOSING
        inside = self.bracketed(self.take()) if bracket else self.bare_argument()
        if bracket and self.token == "!":
            raise Unreadable("unreadable")
        value = function(inside, evaluate=False)
        if base is not None:
            value = sympy.Mul(
                value, sympy.Pow(sympy.log(base, evaluate=False), -1, evaluate=False), evaluate=False
            )
        if power is not None:
            value = sympy.Pow(value, power, evaluate=False)
        return self.powered(value) if bracket else value

    def bare_argument(self) -> sympy.Expr:
        r"""`x`, `2x`, `2\pi x`, `\frac{\pi}{6}`, another function; what may belong to it is refused."""
        if self.token[1:] in _FUNCTIONS:
            return self.function()
        simple = self.digits() or self.token.isalpha() or self.token in _CONSTANTS or self.token in _NAMES
        factors = [self.powered(self.base())]
        while simple and (
            (self.token.isalpha() and self.token != "e") or self.token == r"\pi" or self.token in _NAMES
        ):
            factors.append(self.powered(self.base()))
        if self.starts_factor() and self.token[1:] not in _FUNCTIONS:
            raise Unreadable("unreadable")
        inside = factors[0] if len(factors) == 1 else sympy.Mul(*factors, evaluate=False)
        if self.token in _SLASHES and inside.has(sympy.pi) and not inside.free_symbols:
            raise Unreadable("unreadable")
        return inside
