r"""A cleaned MATH answer read into a small tree.

Number, expression, tuple or interval, set, list, union, matrix, equation.
"""

import itertools
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ftis.tasks.grading.clean import MAX_DEPTH, MAX_PARTS, Unreadable, closing, split, squeeze, unwrap
from ftis.tasks.grading.values import number_in, split_unit


@dataclass(frozen=True)
class Node:
    """kind: number | atom | seq | set | list | union | either | matrix | determinant | equation | assign |
    opaque

    `either` is a list of pairs joined by "or", which may be points or a union of intervals. `value` is the
    Fraction, the squeezed LaTeX or the brackets; `parts` the children; `unit` a name or "".
    """

    kind: str
    value: object = None
    parts: tuple["Node", ...] = ()
    unit: str = ""


GREEK = "alpha|beta|gamma|theta|phi|omega|lambda|mu|sigma"


_COMMA = re.compile(r",|;|\\text\{\s*,?\s*(?:or|and)\s*\}|(?<![a-zA-Z\\])(?:or|and)(?![a-zA-Z])")
_CUP = re.compile(r"\\cup(?![a-zA-Z])")
_IN = re.compile(r"\\in(?![a-zA-Z])")
_EQUALS = re.compile(r"(?<![<>!:])=")
_ORDER = re.compile(r"\\[lg]e(?![a-zA-Z])|<=|>=|<|>")
_NOT = re.compile(r"\\ne(?![a-zA-Z])")
_APPROX = re.compile(r"\\approx(?![a-zA-Z])")
_REALS = r"(?:\\mathbb ?(?:\{ ?R ?\}|R)|\\R(?![a-zA-Z])|\\Re(?![a-zA-Z]))"
_ALL_BUT = re.compile(rf"{_REALS} ?(?:\\setminus|\\backslash|-) ?\\\{{([^{{}},]*)\\\}}")
_SUCH_THAT = re.compile(rf"\\\{{ ?([a-zA-Z]) ?(?:\\in ?{_REALS} ?)?(?:\||:) ?(.*)\\\}}")
_EMPTY = re.compile(r"(?:the )?empty set|\\(?:emptyset|varnothing)", re.IGNORECASE)
_SUM_OF_NAMES = re.compile(r"[a-zA-Z](?:[+-][a-zA-Z])+")
_SCALED_MATRIX = re.compile(
    r"([^=,;&]*?) ?(?:\\cdot ?|\\times ?|\* ?)?(\\begin\{[pbB]?matrix\}.*)", re.DOTALL
)
_MATRIX = re.compile(r"\\begin\{([pbvBV]?)matrix\}(.*)\\end\{\1matrix\}", re.DOTALL)
_NAME = re.compile(
    rf"(?:\\(?:angle|triangle|overline|vec|hat|text|Delta|sin|cos|tan|{GREEK})(?![a-zA-Z])"
    r"|[a-zA-Z]|_(?:\{\w+\}|\d)|[{}'| ]|\((?:[\w,\s-]|\\[a-z]+(?![a-z]))*\))+"
)


def asks_for_sum(equation: Node) -> bool:
    """Whether an equation says what a sum of different names is (`a+b+c = 6`), as problems ask for it."""
    left = equation.parts[0]
    return (
        left.kind == "atom"
        and _SUM_OF_NAMES.fullmatch(left.value) is not None
        and len(letters(left.value)) == len(left.value) // 2 + 1
    )


def parse(text: str, depth: int = 0) -> Node:
    """The tree of a cleaned answer. Raises Unreadable for too many parts or a contradiction such as `4=5`."""
    text = unwrap(text.strip())
    if depth > MAX_DEPTH:
        raise Unreadable("too_deep")
    value, unit, scale = split_unit(text)
    number = number_in(value)  # first, for 58,500
    if number is not None:
        return Node("number", number * scale, unit=unit)
    *names, last = split(text, _EQUALS)
    if names and "," in last and "," not in "".join(names) and number_in(last) is not None:
        return _equation([*names, last], depth)  # x = 58,500
    parts = split(text, _COMMA)
    if len(parts) > 1:
        node = _items("list", None, [p for p in parts if p.strip()], depth)
        if all(part.kind == "seq" for part in node.parts) and re.search(r"\bor\b", text):
            return Node("union" if _ORDER.search(text) else "either", None, node.parts)  # x < 2 or x > 3
        return node
    about = split(text, _APPROX)
    if len(about) > 1:
        return _exact_side(about, depth)
    parts = split(text, _CUP)
    if len(parts) > 1:
        return _items("union", None, parts, depth)
    parts = split(text, _IN)
    if len(parts) == 2 and _NAME.fullmatch(parts[0].strip()):
        return parse(parts[1], depth + 1)
    parts = split(text, _EQUALS)
    if len(parts) > 1:
        return _equation(parts, depth)
    if (special := _interval_form(text, depth)) is not None:
        return special
    if _ORDER.search(text):
        return _inequality(text, depth)
    if (matrix := _MATRIX.fullmatch(text)) is not None:
        rows = [row.split("&") for row in re.split(r"\\\\(?:\[[^\]]*\])?", matrix[2]) if row.strip()]
        kind = "determinant" if matrix[1] in ("v", "V") else "matrix"
        return Node(
            kind,
            tuple(len(row) for row in rows),
            tuple(parse(cell, depth + 1) for row in rows for cell in row),
        )
    if (scaled := _SCALED_MATRIX.fullmatch(text)) is not None and scaled[1]:
        return _times(scaled[1].strip(), parse(scaled[2], depth + 1), depth)
    if text.startswith("\\{") and text.endswith("\\}") and closing(text, 1) == len(text) - 1:
        inside = text[2:-2]
        return _items("set", None, split(inside, re.compile(",")) if inside.strip() else [], depth)
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and closing(text, 0) == len(text) - 1:
        parts = split(text[1:-1], re.compile(","))
        if len(parts) > 1:
            return _items("seq", text[0] + text[-1], parts, depth)
        if text[0] == "(" and text[-1] == ")":
            return parse(text[1:-1], depth + 1)
    if len(re.findall(r"\\pm(?![a-zA-Z])", text)) == 1 and "\\mp" not in text:
        both = [re.sub(r"\\pm(?![a-zA-Z])", lambda _, sign=sign: sign, text) for sign in "+-"]
        return Node("list", None, tuple(parse(one.strip(), depth + 1) for one in both))
    if scale != 1:
        raise Unreadable("unreadable")
    return Node("atom", squeeze(value), unit=unit)


def _exact_side(sides: list[str], depth: int) -> Node:
    r"""The exact value in front of its decimal, `\frac{20}{\pi} \approx 6.37`; a name in front has none.

    Two plain numbers must agree to the last digit written.
    """
    exact, _, _ = split_unit(sides[0].strip())
    rounded = number_in(split_unit(sides[-1].strip(" .").removesuffix("\\ldots").removesuffix("\\dots"))[0])
    last = split(exact, _EQUALS)[-1].strip()
    if len(sides) > 2 or rounded is None or not last or (_NAME.fullmatch(last) and letters(squeeze(last))):
        raise Unreadable("hedged")
    value, digits = number_in(last), len(sides[-1].strip(" .").partition(".")[2])
    if value is not None and abs(value - rounded) > Fraction(1, 10**digits):
        raise Unreadable("contradiction")
    return parse(sides[0], depth + 1)


def _interval_form(text: str, depth: int) -> Node | None:
    r"""Other spellings of intervals: `\mathbb{R}`, `x \ne 3`, `\{x \mid x \le 0\}`, `]1,2[`; the empty
    set."""
    if _EMPTY.fullmatch(text):
        return Node("set")
    if re.fullmatch(_REALS, text):
        return parse(r"(-\infty,\infty)", depth + 1)
    sides = split(text, _NOT)
    hole = _ALL_BUT.fullmatch(text)
    if hole or (len(sides) == 2 and re.fullmatch("[a-zA-Z]", sides[0].strip()) and "," not in sides[1]):
        hole = hole[1] if hole else sides[1]
        return parse(rf"(-\infty,{hole})\cup({hole},\infty)", depth + 1)
    if match := _SUCH_THAT.fullmatch(text):
        if match[1] not in letters(squeeze(match[2])):
            return None
        node = parse(match[2], depth + 1)
        return node if node.kind in ("seq", "union") else None
    if (text[:1] == "]" or text[-1:] == "[") and re.fullmatch(
        r"[\[\](][^\[\]();]*,[^\[\](),;]*[\[\])]", text
    ):
        left, right = text[0].replace("]", "("), text[-1].replace("[", ")")
        return parse(left + text[1:-1] + right, depth + 1)
    return None


def _times(scalar: str, matrix: Node, depth: int) -> Node:
    """A matrix with each entry times a scalar; "-" stands for -1."""
    by = parse("-1" if scalar == "-" else scalar, depth + 1)
    if matrix.kind != "matrix" or by.kind not in ("number", "atom") or by.unit:
        raise Unreadable("unreadable")
    entries = []
    for entry in matrix.parts:
        if entry.kind == by.kind == "number":
            entries.append(Node("number", by.value * entry.value))
        elif entry.kind in ("number", "atom"):
            entries.append(Node("atom", f"({latex_of(by)})({latex_of(entry)})"))
        else:
            raise Unreadable("unreadable")
    return Node("matrix", matrix.value, tuple(entries))


def latex_of(node: Node) -> str:
    """The LaTeX of a number or an atom."""
    if node.kind == "number":
        top, bottom = node.value.numerator, node.value.denominator
        return f"{top}" if bottom == 1 else rf"\frac{{{top}}}{{{bottom}}}"
    return node.value


def _items(kind: str, brackets: str | None, texts: list[str], depth: int) -> Node:
    if len(texts) > MAX_PARTS:
        raise Unreadable("too_long")
    parts = []
    for text in texts:
        part = parse(text, depth + 1)
        # 1 \pm a inside a list or a set is two members
        if kind in ("list", "set") and part.kind == "list":
            parts += part.parts
        elif kind in ("list", "set") and part.kind == "assign" and part.parts[0].kind == "list":
            parts += [Node("assign", part.value, (one,)) for one in part.parts[0].parts]
        else:
            parts.append(part)
    names = [part.value for part in parts if part.kind == "assign"]
    if kind == "seq" and names != sorted(names):
        raise Unreadable("unreadable")  # (y=1, x=2) is no pair (1, 2)
    return Node(kind, brackets, tuple(parts))


def _equation(sides: list[str], depth: int) -> Node:
    """`x = ... = v` is an assignment; `2+3 = 5` is its end; other equations stay whole.

    Two plain numbers that differ and are put equal (4=5) are no answer.
    """
    sides = [side.strip() for side in sides]
    numbers = [number_in(side) for side in sides]
    if any(a is not None and b is not None and a != b for a, b in itertools.pairwise(numbers)):
        raise Unreadable("contradiction")
    if not all(sides):
        raise Unreadable("unreadable")
    name, last = squeeze(sides[0]), sides[-1]
    if len(sides) == 2 and _NAME.fullmatch(last) and not letters(name):  # 5 = x
        return Node("assign", squeeze(last), (parse(sides[0], depth + 1),))
    if _NAME.fullmatch(name) and letters(name):
        names = re.findall("[a-zA-Z]", name) if re.fullmatch(r"\([a-zA-Z](?:,[a-zA-Z])+\)", name) else []
        if names != sorted(names):
            raise Unreadable("unreadable")  # (y,x) = (1,2)
        return Node("assign", name, (parse(last, depth + 1),))
    if not any(letters(squeeze(split_unit(side)[0])) for side in sides):
        return parse(last, depth + 1)
    if len(sides) > 2 and _SUM_OF_NAMES.fullmatch(name) and not any(letters(squeeze(s)) for s in sides[1:]):
        sides = [sides[0], last]  # m+n = 256+37 = 293
    if len(sides) != 2:
        raise Unreadable("unreadable")
    return Node("equation", None, tuple(parse(side, depth + 1) for side in sides))


def _inequality(text: str, depth: int) -> Node:
    r"""`a < x \le b`, `x > a` as the interval meant; a form without one lone variable stays a string."""
    signs = _ORDER.findall(text)
    sides = [side.strip() for side in split(text, _ORDER)]
    opaque = Node("opaque", squeeze(text))
    if len(sides) != len(signs) + 1 or not all(sides):
        return opaque
    down = ["g" in sign or ">" in sign for sign in signs]
    if len(set(down)) > 1:
        return opaque
    if down[0]:
        sides, signs = sides[::-1], signs[::-1]
    closed = ["=" in sign or "e" in sign for sign in signs]
    single = [bool(re.fullmatch(r"[a-zA-Z](?: ?\([a-zA-Z]\))?|\\theta", side)) for side in sides]
    if len(sides) == 3 and single == [False, True, False]:
        low, high, brackets = sides[0], sides[2], "[("[not closed[0]] + "])"[not closed[1]]
    elif len(sides) == 2 and single == [True, False]:
        low, high, brackets = r"-\infty", sides[1], "(" + "])"[not closed[0]]
    elif len(sides) == 2 and single == [False, True]:
        low, high, brackets = sides[0], r"\infty", "[("[not closed[0]] + ")"
    else:
        return opaque
    return Node("seq", brackets, (parse(low, depth + 1), parse(high, depth + 1)))


@lru_cache(maxsize=4096)
def letters(atom: str) -> frozenset[str]:
    r"""The variables of an expression: its letters and Greek names, without commands, e and i."""
    greek = re.findall(rf"\\({GREEK})(?![a-zA-Z])", atom)
    return frozenset(re.sub(r"\\[a-zA-Z]+", " ", atom)) & _LETTERS | frozenset(greek)


_LETTERS = frozenset("abcdfghjklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
