r"""A MATH answer's LaTeX without what changes nothing, and the cuts that respect brackets."""

import re

from ftis.tasks.grading.units import HEDGE, UNIT_NAMES, spellings, unit_name

MAX_CHARS = 2000  # of an answer; the longest gold of MATH-500 has 53
MAX_DEPTH = 30  # of nested brackets
MAX_PARTS = 60  # of a list, set or tuple


class Unreadable(Exception):
    """No answer by the rules here (hedged, contradictory, too long). The text is the reason code."""


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
_COMMANDS = spellings(r"""\frac: dfrac, tfrac, cfrac
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
        if len(segments) > 3 or not _WORDS.fullmatch(outside) or HEDGE.search(outside):
            raise Unreadable("hedged")
        unit = segments[2].strip(" .")
        text = segments[1] + (rf"\text{{ {unit}}}" if unit_name(unit) in UNIT_NAMES else "")
    text = re.sub(r"(?<!\\)\$", r"\\$", text)
    if (lead := _LEAD_IN.match(text)) and not HEDGE.search(lead[0]):
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
        short = unwrap(text.strip().rstrip(".,;: \\"))
        if short == text:
            return text
        text = short


def unwrap(text: str) -> str:
    r"""`\text{x}`, `\boxed{x}` or `{x}` around the whole of it taken off."""
    for head in ("\\text{", "\\boxed{", "\\fbox{", "\\boldsymbol{", "{"):
        if text.startswith(head) and text.endswith("}") and closing(text, len(head) - 1) == len(text) - 1:
            return text[len(head) : -1].strip()
    if len(text) > 2 and text[0] == text[-1] and text[0] in "*`":
        return text[1:-1]
    return text


def closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`, any bracket kind; -1 if none does."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return i
    return -1


def split(text: str, separator: re.Pattern) -> list[str]:
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
