r"""Are two MATH answers the same? Structure is compared by rules of our own, single expressions by algebra.

An answer is read into a small tree: number, expression, tuple or interval, set, list, union, matrix,
equation. Two answers are equal when their trees are: same kind, same brackets, same parts (in order for
tuples and matrices, in any order for sets, lists and unions). Only an expression that isn't a plain number
needs algebra; it goes, alone, to math-verify's LaTeX parser, and the two values are then compared to 40
digits or more.

Why not `math_verify.verify` on the whole text: it rounds decimals to 6 places, drops units and subscripts,
merges boxes, reads 50, 50% and 0.5 as one number, and calls 3x+4y=1 and 3x+5y=1 equal. A wrong accept is
worse here than a wrong reject, so whatever this file can't read counts only if it is the same string.
"""

import itertools
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

MAX_CHARS = 2000  # of an answer; the longest gold of MATH-500 has 53
MAX_DEPTH = 30  # of nested brackets
MAX_PARTS = 60  # of a list, set or tuple


class NeedsAlgebra(Exception):
    """The cheap rules don't decide this pair: ask a worker."""


class Unreadable(Exception):
    """No answer by the rules here (hedged, contradictory, too long). The text is the reason code."""


# --- cleaning -------------------------------------------------------------------------------------


def _table(lines: str) -> dict[str, str]:
    """{spelling: name} of lines "name: spelling, spelling"; a name is a spelling of itself."""
    rows = [line.partition(":") for line in lines.splitlines()]
    return {key.strip(): name for name, _, keys in rows for key in [name, *keys.split(",")] if key.strip()}


_SYMBOLS = (
    r"× \times · \cdot ⋅ \cdot ÷ \div ° ^\circ π \pi ∞ \infty ∪ \cup ∈ \in ± \pm "
    r"≤ \le ≥ \ge ≠ \ne √ \sqrt θ \theta"
)
_PAIRS = _SYMBOLS.split()
_CHARS = str.maketrans(
    dict(zip(_PAIRS[::2], (command + " " for command in _PAIRS[1::2]), strict=True))
    | dict.fromkeys("\u2212\u2013\u2010\u2011\uff0d\ufe63", "-")
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", "")
    | dict.fromkeys("\u00a0\u2007\u3000\t\r\n\f\v\x00~", " ")
    | dict.fromkeys("\u2009\u202f", r"\,")
    | {"²": "^2", "³": "^3", "⟨": "(", "⟩": ")", "“": '"', "”": '"', "’": "'"}
)
_COMMANDS = _table(r"""\frac: dfrac, tfrac, cfrac
\text: mbox, hbox, textrm, textbf, textit, textnormal, textsf, mathrm, mathbf, mathit, mathsf, operatorname
\le: leq, leqslant
\ge: geq, geqslant
\ne: neq
(: langle
): rangle
[: lbrack
]: rbrack
\{: lbrace
\}: rbrace
<: lt
>: gt
|: vert, mid
^\circ: degree, degrees
 : left, right, quad, qquad, displaystyle, limits, rm, bf, it, big, Big, bigg, bigl, bigr, Bigl, Bigr""")
_PLAIN_MATHS = [  # sqrt(2), pi, a matrix written as an array
    (re.compile(r"(?:\\|(?<![a-zA-Z\\]))sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![a-zA-Z\\])pi(?![a-zA-Z])"), r"\\pi "),
    (re.compile(r"[(\[]\s*\\begin\{array\}\{[lcr| ]*\}"), r"\\begin{pmatrix}"),
    (re.compile(r"\\end\{array\}\s*[)\]]"), r"\\end{pmatrix}"),
]
NUMBER_WORDS = (
    "zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|"
    "sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|half|"
    "halves|thirds|fourths|fifths|tenths|hundredths|thousandths"
)
_HEDGE = re.compile(
    rf"\b(?:{NUMBER_WORDS}|squared|cubed|factorial|plus|minus|times|or|nor|and|not|never|cannot|no|maybe|"
    r"perhaps|possibly|unless|except|either|neither|if|than|least|most|between)\b|n't|\?",
    re.IGNORECASE,
)
_JOIN = re.compile(r"[\s,;.]*(?:and|or)?[\s,;.]*")
_WORDS = re.compile(r"[A-Za-z ,.:;'\"()\-]*")
_LEAD_IN = re.compile(
    r"(?:[A-Za-z' ,]*\b(?:is|are|equals|be)\b|(?:the |final |my )*(?:answer|result))\s*:?\s+(?=\S)"
    r"|answer\s*:\s*",
    re.IGNORECASE,
)


def clean(text: str) -> str:
    r"""`text` without what changes nothing: `$` signs, spacing, sizes, font commands, a trailing dot.

    One maths segment among words ("The value is $\frac12$.") is taken alone. Raises Unreadable for text
    that is too long, too deep, or hedged in words around the maths.
    """
    # One space for a run: patterns with several optional spaces in a row would try every way to share it.
    text = re.sub(r"\s+", " ", text.translate(_CHARS)).strip()
    if len(text) > MAX_CHARS:  # only now: a symbol has become a command of up to seven characters
        raise Unreadable("too_long")
    depth = deepest = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise Unreadable("too_deep")
    text = re.sub(r"\\\[|\\\]|\\\(|\\\)|\$\$", "$", re.sub(r"\\\\", "\x01", text)).replace("\x01", r"\\")
    segments = re.split(r"(?<!\\)\$", text)  # outside, inside, outside, ...
    outside = " ".join(segments[::2])
    if len(segments) > 3 and all(_JOIN.fullmatch(segment) for segment in segments[::2]):
        text = "".join(segments)  # $1$ and $-2$
    elif len(segments) > 2:
        if len(segments) > 3 or not _WORDS.fullmatch(outside) or _HEDGE.search(outside):
            raise Unreadable("hedged")
        unit = segments[2].strip(" .")
        text = segments[1] + (rf"\text{{ {unit}}}" if _unit_name(unit) in _UNIT_NAMES else "")
    text = re.sub(r"(?<!\\)\$", r"\\$", text)
    if (lead := _LEAD_IN.match(text)) and not _HEDGE.search(lead[0]):
        text = text[lead.end() :]
    # explicit thousands marks: 10,\!080  10{,}080  10\,080
    text = re.sub(r"(?<=\d)(?:,\s*\\!\s*|\{,\}|\\,)(?=\d{3}(?!\d))", "", text).replace("\\\\", "\x01")
    text = re.sub(r"\\[,;:! ]", " ", text)
    text = re.sub(r"\\([a-zA-Z]+)", lambda m: _COMMANDS[m[1]] + " " if m[1] in _COMMANDS else m[0], text)
    text = re.sub(r"\^\s*\{\s*\\circ\s*\}", r"^\\circ ", re.sub(r"\\text\s*\{(\d+)\}", r"\1", text))
    text = re.sub(r"\\text\s+\{", r"\\text{", text)
    for pattern, new in _PLAIN_MATHS:
        text = pattern.sub(new, text)
    text = re.sub(r" +", " ", text).replace("\x01", "\\\\")
    while True:
        short = _unwrap(text.strip().rstrip(".,;: \\"))
        if short == text:
            return text
        text = short


def _unwrap(text: str) -> str:
    r"""`\text{x}`, `\boxed{x}` or `{x}` around the whole of it taken off."""
    for head in ("\\text{", "\\boxed{", "\\fbox{", "\\boldsymbol{", "{"):
        if text.startswith(head) and text.endswith("}") and _closing(text, len(head) - 1) == len(text) - 1:
            return text[len(head) : -1].strip()
    if len(text) > 2 and text[0] == text[-1] and text[0] in "*`":
        return text[1:-1]
    return text


def _closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`, any bracket kind; -1 if none does."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return i
    return -1


def _split(text: str, separator: re.Pattern) -> list[str]:
    """`text` cut at the matches of `separator` that stand outside all brackets."""
    if not separator.search(text):
        return [text]
    depths, depth = [], 0
    for char in text:
        depth -= char in ")]}"
        depths.append(depth)
        depth += char in "([{"
    parts, start = [], 0
    for match in separator.finditer(text):
        if depths[match.start()] == 0 and match.start() >= start:
            parts.append(text[start : match.start()])
            start = match.end()
    return parts + [text[start:]]


def squeeze(text: str) -> str:
    r"""One spelling per expression: no idle spaces, `\frac12` as `\frac{1}{2}`, no leading plus."""
    for _ in range(3):
        text = re.sub(r"\\frac\s*([0-9a-zA-Z])", r"\\frac{\1}", text)
        text = re.sub(r"(\\frac\s*\{[^{}]*\})\s*([0-9a-zA-Z])", r"\1{\2}", text)
    text = re.sub(r"\\sqrt\s*([0-9a-zA-Z])", r"\\sqrt{\1}", text)
    text = re.sub(r"([\^_])\{([0-9a-zA-Z])\}", r"\1\2", text)
    # a space stays where dropping it would join two numbers or a command and a letter
    text = re.sub(r"(?<=[\d.]) +(?=[\d.])|(?<=[a-zA-Z]) +(?=[a-zA-Z])", "\x01", text).replace(" ", "")
    text = re.sub(r"(?<![a-zA-Z])([a-zA-Z])\x01(?=[a-zA-Z])", r"\1", text).replace("\x01", " ")
    return text.removeprefix("+")


# --- units ----------------------------------------------------------------------------------------

# name: other spellings. A trailing s is dropped before the look-up.
_UNITS = _table("""dollar: $, usd, buck
cent: ¢
percent: %, per cent
degree: deg
metre: m, meter
cm: centimeter, centimetre
mm: millimeter, millimetre
km: kilometer, kilometre
inch: in, inche
foot: ft, feet
yard: yd
mile: mi
mph: mile per hour, mile/hour
second: s, sec
minute: min
hour: h, hr
gram: g
kg: kilogram
pound: lb
ounce: oz
litre: l, liter
ml: milliliter, millilitre""") | {
    name: name for name in ("unit", "point", "day", "week", "month", "year", "radian", "pm", "am")
}
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_UNIT_NAMES = frozenset(_UNITS.values())
_TAIL = re.compile(  # one piece of a unit at the end of an answer
    r"\s*(?:\\text\{([^{}\\\d]*)\}|(\^\\circ\s*[CF]?(?![a-zA-Z]))|(\\?[%$]|¢)"
    r"|(?<![\\a-zA-Z])([A-Za-z][A-Za-z. /]++(?<=[A-Za-z.])))"
    r"(\^\s*\{?\s*\d\s*\}?)?$"
)


def _unit_name(words: str) -> str:
    """Plain name of a unit: `square centimeters` -> `cm^2`; unknown words stay, lower case, singular."""
    words = " ".join(re.sub(r"[.\\\\]", "", words.lower()).split())
    power = ""
    if match := re.match(r"(square|sq|cubic|cu) (?=\w)", words):
        power, words = ("^2" if match[1][0] == "s" else "^3"), words[match.end() :]
    singular = words[:-1] if len(words) > 2 and words.endswith("s") else words
    return _UNITS.get(words, _UNITS.get(singular, singular)) + power


def split_unit(text: str) -> tuple[str, str, int]:
    r"""(value, unit name or "", scale): `\$2 \text{ million}` -> ("2", "dollar", 10**6).

    A bare word is a unit only if it is a known one; words inside `\text{}` always are, unless they hedge.
    """
    units, scale = [], 1
    if match := re.match(r"([+-]?)\s*(?:\\text\{\s*)?(\\?\$|[£€¥₹])(?:\s*\})?\s*", text):
        units.append(_unit_name(match[2]))
        text = match[1] + text[match.end() :]
    for _ in range(4):  # pieces: "million", "dollars", "per day"
        match = _TAIL.search(text)
        if match is None or not text[: match.start()].strip():
            break
        words, degrees, sign, bare, power = match.groups()
        if degrees:
            name = f"degree {degrees[6:].strip().lower()}".strip()
        else:
            name = _unit_name(words if words is not None else sign or bare)
        if words and (_HEDGE.search(words) or not re.fullmatch(r"[A-Za-z .,/'()\-¢°:]*", words)):
            break
        known = name in SCALES or name in _UNIT_NAMES or name.endswith(("^2", "^3"))
        if bare is not None and (not known or len(bare) < 2):
            break
        text = text[: match.start()]
        if name in SCALES:
            scale *= SCALES[name]
        elif name:
            units.append(name + (f"^{re.search(r'[0-9]', power)[0]}" if power else ""))
    return text.strip(), " ".join(reversed(units)), scale


# --- the tree -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """kind: number | atom | seq | set | list | union | matrix | determinant | equation | assign | opaque.

    `value` is the Fraction, the squeezed LaTeX or the brackets; `parts` the children; `unit` a name or "".
    """

    kind: str
    value: object = None
    parts: tuple["Node", ...] = ()
    unit: str = ""


_GREEK = "alpha|beta|gamma|theta|phi|omega|lambda|mu|sigma"
_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"  # one way to match: with two, a fraction that fails takes cubic time
_NUMBER = re.compile(rf"([+-]?){_DECIMAL}")
_FRACTION = re.compile(
    rf"([+-]?)(?:\\frac\{{([+-]?{_DECIMAL})\}}\{{([+-]?{_DECIMAL})\}}|({_DECIMAL})/({_DECIMAL}))"
)
_MIXED = re.compile(r"([+-]?)(\d+)(?:\\frac\{(\d+)\}\{(\d+)\}| (\d+)/(\d+))")
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d*)\\(?:overline|bar)\{?(\d+)\}?")
_SCIENTIFIC = re.compile(rf"([+-]?{_DECIMAL})(?:\\times|\\cdot|\*)10\^(?:\{{([+-]?\d{{1,3}})\}}|(\d))")


@lru_cache(maxsize=4096)
def plain_number(text: str) -> Fraction | None:
    r"""The exact value of an integer, (repeating) decimal, fraction, mixed or scientific number, else None.

    Thousands commas are read where all groups are of three digits: `58,500`, not `5,85`.
    """
    if re.fullmatch(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?", text):
        text = text.replace(",", "")
    if _NUMBER.fullmatch(text):
        return Fraction(text.rstrip(".") if text.endswith(".") else text)
    if m := _FRACTION.fullmatch(text):
        top, bottom = Fraction((m[2] or m[4]).rstrip(".")), Fraction((m[3] or m[5]).rstrip("."))
        return None if bottom == 0 else (-1 if m[1] == "-" else 1) * top / bottom
    if m := _MIXED.fullmatch(text):
        top, bottom = int(m[3] or m[5]), int(m[4] or m[6])
        return (-1 if m[1] == "-" else 1) * (int(m[2]) + Fraction(top, bottom)) if top < bottom else None
    if m := _REPEATING.fullmatch(text):
        once, whole = int((m[2] + m[3]) or 0), int(m[2] + m[3] + m[4])
        return (-1 if m[1] == "-" else 1) * Fraction(whole - once, 10 ** len(m[3]) * (10 ** len(m[4]) - 1))
    if m := _SCIENTIFIC.fullmatch(text):
        return Fraction(m[1]) * Fraction(10) ** int(m[2] or m[3])
    return None


def _number(text: str) -> Fraction | None:
    """`plain_number` of a text in any spelling; `1, 234` is two."""
    return None if ", " in text else plain_number(squeeze(text))


_COMMA = re.compile(r",|;|\\text\{\s*,?\s*(?:or|and)\s*\}|(?<![a-zA-Z\\])(?:or|and)(?![a-zA-Z])")
_CUP = re.compile(r"\\cup(?![a-zA-Z])")
_IN = re.compile(r"\\in(?![a-zA-Z])")
_EQUALS = re.compile(r"(?<![<>!:])=")
_ORDER = re.compile(r"\\[lg]e(?![a-zA-Z])|<=|>=|<|>")
_MATRIX = re.compile(r"\\begin\{([pbvBV]?)matrix\}(.*)\\end\{\1matrix\}", re.DOTALL)
_NAME = re.compile(
    rf"(?:\\(?:angle|triangle|overline|vec|hat|text|Delta|sin|cos|tan|{_GREEK})(?![a-zA-Z])"
    r"|[a-zA-Z]|_(?:\{\w+\}|\d)|[{}'| ]|\((?:[\w,\s-]|\\[a-z]+(?![a-z]))*\))+"
)


def parse(text: str, depth: int = 0) -> Node:
    """The tree of a cleaned answer. Raises Unreadable for too many parts or a contradiction such as `4=5`."""
    text = _unwrap(text.strip())
    if depth > MAX_DEPTH:
        raise Unreadable("too_deep")
    value, unit, scale = split_unit(text)
    number = _number(value)  # first, for 58,500
    if number is not None:
        return Node("number", number * scale, unit=unit)
    *names, last = _split(text, _EQUALS)
    if names and "," in last and "," not in "".join(names) and _number(last) is not None:
        return _equation([*names, last], depth)  # x = 58,500
    parts = _split(text, _COMMA)
    if len(parts) > 1:
        node = _items("list", None, [p for p in parts if p.strip()], depth)
        either = all(part.kind == "seq" for part in node.parts) and re.search(r"\bor\b", text)
        return Node("union", None, node.parts) if either else node  # x < 2 or x > 3
    parts = _split(text, _CUP)
    if len(parts) > 1:
        return _items("union", None, parts, depth)
    parts = _split(text, _IN)
    if len(parts) == 2 and _NAME.fullmatch(parts[0].strip()):
        return parse(parts[1], depth + 1)
    parts = _split(text, _EQUALS)
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
    if text.startswith("\\{") and text.endswith("\\}") and _closing(text, 1) == len(text) - 1:
        inside = text[2:-2]
        return _items("set", None, _split(inside, re.compile(",")) if inside.strip() else [], depth)
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and _closing(text, 0) == len(text) - 1:
        parts = _split(text[1:-1], re.compile(","))
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
    numbers = [_number(side) for side in sides]
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
    sides = [side.strip() for side in _split(text, _ORDER)]
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


# --- comparing ------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def letters(atom: str) -> frozenset[str]:
    r"""The variables of an expression: its letters and Greek names, without commands, e and i."""
    greek = re.findall(rf"\\({_GREEK})(?![a-zA-Z])", atom)
    return frozenset(re.sub(r"\\[a-zA-Z]+", " ", atom)) & _LETTERS | frozenset(greek)


_LETTERS = frozenset("abcdfghjklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


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


def read_gold(gold: str) -> tuple[str, Node | None]:
    """A gold cleaned, and its tree; None for text: a bracketed choice letter, or a word of two letters or more.

    Raises Unreadable for a gold that no answer can equal.
    """
    gold = clean(gold)
    if not gold:
        raise Unreadable("empty")
    if re.fullmatch(r"\(?[A-Z]\)|[A-Za-z][a-z]+(?:[ -][A-Za-z]+)*", gold):
        return gold, None
    return gold, parse(gold)


def _same_words(gold: str, answer: str) -> bool:
    """Words: case and an article don't matter; a choice letter keeps its case and may lose its brackets."""
    plain = re.sub(r"\\text\{([^{}]*)\}", r"\1", answer).strip(" .\"'")
    if gold.endswith(")"):
        return plain.strip("()").strip() == gold.strip("()")
    return re.sub(r"^(?:an?|the) ", "", plain.lower()) == re.sub(r"^(?:an?|the) ", "", gold.lower())


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
    if gold.kind != answer.kind and {gold.kind, answer.kind} != {"list", "set"}:
        return False
    if gold.kind == "equation":
        return _same_line(gold.parts, answer.parts, algebra)
    if gold.value != answer.value or len(gold.parts) != len(answer.parts):
        return False
    if gold.kind in ("seq", "matrix", "determinant"):
        return all(_same(g, a, algebra) for g, a in zip(gold.parts, answer.parts, strict=True))
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
    if gold.unit and answer.kind == "atom" and _UNITS.get(answer.value[-1:]) == gold.unit:
        return plain_number(answer.value[:-1]) == gold.value  # a bare `3 m` for 3\text{ m}
    sides = [_latex(node) for node in (gold, answer)]
    if not all(readable(side) for side in sides) or letters(sides[0]) != letters(sides[1]):
        return False
    if algebra is None:
        raise NeedsAlgebra
    return algebra(*sides, "value")


def _same_line(gold: tuple[Node, ...], answer: tuple[Node, ...], algebra) -> bool:
    """Two equations have the same solutions if lhs - rhs of one is a constant times that of the other."""
    if any(node.kind not in ("number", "atom") for node in gold + answer):
        return False
    sides = [f"({_latex(lhs)})-({_latex(rhs)})" for lhs, rhs in (gold, answer)]
    if not all(readable(side) for side in sides) or letters(sides[0]) != letters(sides[1]):
        return False
    if algebra is None:
        raise NeedsAlgebra
    return algebra(*sides, "line")


def _latex(node: Node) -> str:
    if node.kind == "number":
        top, bottom = node.value.numerator, node.value.denominator
        return f"{top}" if bottom == 1 else rf"\frac{{{top}}}{{{bottom}}}"
    return node.value


_READABLE = re.compile(
    rf"(?:\\(?:frac|sqrt|pi|{_GREEK}|cdot|times|div|sin|cos|tan|cot|sec|csc"
    r"|arcsin|arccos|arctan|ln|log|exp|binom|lfloor|rfloor|lceil|rceil)(?![a-zA-Z])"
    r"|(?<!\d)_|[A-Za-z0-9+\-*/^(){}\[\]!|]|\.(?=\d)|(?<=\d)\.(?!\d)|(?<!\d) (?!\d))+"
)


def readable(atom: str) -> bool:
    """Whether the LaTeX parser is known to read every token as written (it drops what it doesn't know)."""
    return _READABLE.fullmatch(atom) is not None and not re.search(r"\.\d*\.", atom)


# --- algebra (in a worker only) -------------------------------------------------------------------


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
