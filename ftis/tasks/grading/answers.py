r"""Are two MATH answers the same? Structure is compared by rules of our own, single expressions by algebra.

An answer is read into a small tree (`tree`). Two answers are equal when their trees are: same kind, same
brackets, same parts (in order for tuples and matrices, in any order for sets, lists and unions). Only an
expression that isn't a plain number needs algebra (`algebra`): it is read strictly (`expressions`), and the
values are compared exactly or to 1,000 digits.

Why not `math_verify.verify` on the whole text: it rounds decimals to 6 places, drops units and subscripts,
merges boxes, reads 50, 50% and 0.5 as one number, and calls 3x+4y=1 and 3x+5y=1 equal. A wrong accept is
worse here than a wrong reject, so whatever this package can't read counts only if it is the same string.
"""

import re
from functools import lru_cache

from ftis.tasks.grading.algebra import readable
from ftis.tasks.grading.clean import Unreadable, clean, squeeze
from ftis.tasks.grading.tree import Node, asks_for_sum, latex_of, letters, parse
from ftis.tasks.grading.units import UNITS, is_word
from ftis.tasks.grading.values import plain_number


class NeedsAlgebra(Exception):
    """The cheap rules don't decide this pair: ask a worker."""


def compare(gold: str, answer: str, algebra=None) -> tuple[bool, str]:
    """(equal, reason code) of two MATH answers.

    algebra(a, b, kind) decides two expressions ("value") or two equations given as lhs-rhs ("line");
    without it NeedsAlgebra is raised where the cheap rules don't decide.
    """
    try:
        gold, gold_tree = read_gold(gold)
    except Unreadable as problem:
        return False, f"error: gold {problem}"
    try:
        answer = clean(answer)
        if not answer:
            return False, "empty"
        if squeeze(gold) == squeeze(answer):
            return True, "same_text"
        same = _same(gold_tree, parse(answer), algebra) if gold_tree else _same_words(gold, answer)
    except Unreadable as problem:
        return False, str(problem)
    return same, "equal" if same else "different"


@lru_cache(maxsize=4096)  # the completions of a group share their gold
def read_gold(gold: str) -> tuple[str, Node | None]:
    r"""A gold cleaned, and its tree; None for text: a bracketed choice letter, or words.

    Letters are words in `\text{}`, or if they read as such (`even`); others are a product (`xy`).

    Raises Unreadable for a gold that no answer can equal.
    """
    raw, gold = gold, clean(gold)
    if not gold:
        raise Unreadable("empty")
    if re.fullmatch(r"\(?[A-Z]\)", gold):
        return gold, None
    words = re.fullmatch(r"[A-Za-z][a-z]+(?:[ -][A-Za-z]+)*", gold) and gold.lower() != "empty set"
    if words and (_IN_TEXT.search(raw) or all(map(is_word, re.split("[ -]", gold)))):
        return gold, None
    return gold, parse(gold)


_IN_TEXT = re.compile(r"\\(?:text|mbox|hbox|mathrm|operatorname)")


def _same_words(gold: str, answer: str) -> bool:
    """Words: case and an article don't matter; a choice letter keeps its case and may lose its brackets."""
    plain = re.sub(r"\\text\{([^{}]*)\}", r"\1", answer).strip(" .\"'")
    if gold.endswith(")"):
        return plain.strip("()").strip() == gold.strip("()")
    return re.sub(r"^(?:an?|the) ", "", plain.lower()) == re.sub(r"^(?:an?|the) ", "", gold.lower())


_ALIKE = ({"list", "set", "either"}, {"union", "either"})


def _variable(name: str) -> str:
    """A name without its index: x for x_1."""
    return name.partition("_")[0]


def _same(gold: Node, answer: Node, algebra) -> bool:
    if gold.kind == "assign":
        if answer.kind == "assign":
            return gold.value == answer.value and _same(gold.parts[0], answer.parts[0], algebra)
        if answer.kind == "equation" and gold.parts[0].kind == "atom":
            return _same_line((Node("atom", gold.value), gold.parts[0]), answer.parts, algebra)
        return answer.kind != "equation" and _same(gold.parts[0], answer, algebra)
    if answer.kind == "assign":
        if gold.kind == "equation":
            return _same_line(gold.parts, (Node("atom", answer.value), answer.parts[0]), algebra)
        return _same(gold, answer.parts[0], algebra)
    if {gold.kind, answer.kind} <= {"number", "atom", "opaque"}:
        return _same_value(gold, answer, algebra)
    if answer.kind == "equation" != gold.kind and asks_for_sum(answer):
        return _same(gold, answer.parts[1], algebra)
    if gold.kind != answer.kind and not any({gold.kind, answer.kind} <= kinds for kinds in _ALIKE):
        return False
    if gold.kind == "equation":
        return _same_line(gold.parts, answer.parts, algebra)
    if gold.value != answer.value or len(gold.parts) != len(answer.parts):
        return False
    if gold.kind in ("seq", "matrix", "determinant"):
        return all(_same(g, a, algebra) for g, a in zip(gold.parts, answer.parts, strict=True))
    names = [
        {_variable(part.value) for part in node.parts if part.kind == "assign"} for node in (gold, answer)
    ]
    if max(map(len, names)) > 1 and not all(names):
        return False  # x=1, y=-2 are no two values of one variable
    left = list(answer.parts)  # equality is an equivalence, so first come, first matched is enough
    for part in gold.parts:
        found = next((i for i, other in enumerate(left) if _same(part, other, algebra)), None)
        if found is None:
            return False
        left.pop(found)
    return True


def _same_value(gold: Node, answer: Node, algebra) -> bool:
    """Value and unit: a unit that one side leaves out is no difference, another unit is."""
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if gold.kind == answer.kind and gold.value == answer.value:
        return True
    if "opaque" in (gold.kind, answer.kind) or gold.kind == answer.kind == "number":
        return False
    if gold.unit and answer.kind == "atom" and UNITS.get(answer.value[-1:]) == gold.unit:
        return plain_number(answer.value[:-1]) == gold.value  # a bare `3 m` for 3\text{ m}
    sides = [latex_of(node) for node in (gold, answer)]
    if not all(readable(side) for side in sides) or letters(sides[0]) != letters(sides[1]):
        return False
    if algebra is None:
        raise NeedsAlgebra
    return algebra(*sides, "value")


def _same_line(gold: tuple[Node, ...], answer: tuple[Node, ...], algebra) -> bool:
    """Two equations have the same solutions if lhs - rhs of one is a constant times that of the other."""
    if any(node.kind not in ("number", "atom") for node in gold + answer):
        return False
    sides = [f"({latex_of(lhs)})-({latex_of(rhs)})" for lhs, rhs in (gold, answer)]
    if not all(readable(side) for side in sides) or letters(sides[0]) != letters(sides[1]):
        return False
    if algebra is None:
        raise NeedsAlgebra
    return algebra(*sides, "line")
