r"""A cleaned MATH answer read into a small tree.

Number, expression, tuple or interval, set, list, union, matrix, equation.
"""

import itertools
import re
from dataclasses import dataclass
from functools import lru_cache

from ftis.tasks.grading.clean import MAX_DEPTH, MAX_PARTS, Unreadable, closing, split, squeeze, unwrap
from ftis.tasks.grading.units import split_unit
from ftis.tasks.grading.values import number_in


@dataclass(frozen=True)
class Node:
    """kind: number | atom | seq | set | list | union | matrix | determinant | equation | assign | opaque.

    `value` is the Fraction, the squeezed LaTeX or the brackets; `parts` the children; `unit` a name or "".
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
_MATRIX = re.compile(r"\\begin\{([pbvBV]?)matrix\}(.*)\\end\{\1matrix\}", re.DOTALL)
_NAME = re.compile(
    rf"(?:\\(?:angle|triangle|overline|vec|hat|text|Delta|sin|cos|tan|{GREEK})(?![a-zA-Z])"
    r"|[a-zA-Z]|_(?:\{\w+\}|\d)|[{}'| ]|\((?:[\w,\s-]|\\[a-z]+(?![a-z]))*\))+"
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
        either = all(part.kind == "seq" for part in node.parts) and re.search(r"\bor\b", text)
        return Node("union", None, node.parts) if either else node  # x < 2 or x > 3
    parts = split(text, _CUP)
    if len(parts) > 1:
        return _items("union", None, parts, depth)
    parts = split(text, _IN)
    if len(parts) == 2 and _NAME.fullmatch(parts[0].strip()):
        return parse(parts[1], depth + 1)
    parts = split(text, _EQUALS)
    if len(parts) > 1:
        return _equation(parts, depth)
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


def _items(kind: str, brackets: str | None, texts: list[str], depth: int) -> Node:
    if len(texts) > MAX_PARTS:
        raise Unreadable("too_long")
    parts = []
    for text in texts:
        part = parse(text, depth + 1)
        # 1 \pm a inside a list or a set is two members
        parts += part.parts if part.kind == "list" and kind in ("list", "set") else [part]
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
        return Node("assign", name, (parse(last, depth + 1),))
    if not any(letters(squeeze(split_unit(side)[0])) for side in sides):
        return parse(last, depth + 1)
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
    single = [bool(re.fullmatch(r"[a-zA-Z]|\\theta", side)) for side in sides]
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
