r"""A MATH answer's LaTeX without what changes nothing, and the cuts that respect brackets."""

import re

from ftis.tasks.grading.units import HEDGE, NUMBER_WORDS, VULGAR_FRACTIONS, beside, spellings, vulgar_fraction

MAX_CHARS = 2000  # of an answer; the longest gold of MATH-500 has 53
MAX_DEPTH = 30  # of nested brackets
MAX_PARTS = 60  # of a list, set or tuple


class Unreadable(Exception):
    """No answer by the rules here (hedged, contradictory, too long). The text is the reason code."""


_SYMBOLS = (
    r"× \times · \cdot ⋅ \cdot ÷ \div ° ^\circ π \pi ∞ \infty ∪ \cup ∈ \in ± \pm "
    r"≤ \le ≥ \ge ≠ \ne ∅ \emptyset ≈ \approx ∖ \setminus ℝ \mathbb{R} • \cdot ∙ \cdot "
    r"⌊ \lfloor ⌋ \rfloor ⌈ \lceil ⌉ \rceil α \alpha β \beta γ \gamma θ \theta λ \lambda μ \mu σ \sigma "
    r"φ \phi ω \omega"
)
_PAIRS = _SYMBOLS.split()
_CHARS = str.maketrans(
    dict(zip(_PAIRS[::2], (command + " " for command in _PAIRS[1::2]), strict=True))
    | dict.fromkeys("\u2212\u2013\u2010\u2011\uff0d\ufe63", "-")
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", "")
    | dict.fromkeys("\u00a0\u2007\u3000\t\r\n\f\v\x00~", " ")
    | dict.fromkeys("\u2009\u202f", r"\,")
    | {"⟨": "(", "⟩": ")", "“": '"', "”": '"', "’": "'", "∣": "|", "∗": "*", "ⅇ": "e", "ⅈ": "i"}
    | {
        chr(code): r"\frac{{{}}}{{{}}}".format(*vulgar_fraction(chr(code)).split("/"))
        for code in VULGAR_FRACTIONS
    }
)
_SCRIPTS = [  # x⁻¹² is x^{-12}
    (re.compile(f"[{small}]+"), mark, str.maketrans(small, plain))
    for mark, small, plain in [("^", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n"), ("_", "₀₁₂₃₄₅₆₇₈₉", "0123456789")]
]
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
_ROOT = re.compile(r"([√∛∜]) ?(\d+(?:\.\d+)?)?")
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
_BASES = {word: n for n, word in enumerate(NUMBER_WORDS.split("|")[1:15], 2)}
_BASE = rf"(\d{{1,2}}|{'|'.join(_BASES)})"
_PLAIN_MATHS = [  # one spelling for what is written with words, in plain text or by a computer algebra system
    (re.compile(r"(?:\\|(?<![a-zA-Z\\]))sqrt ?\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![a-zA-Z\\])pi(?![a-zA-Z])"), r"\\pi "),
    (re.compile(r"[(\[] ?\\begin ?\{(?:array\} ?\{[lcr| ]*|(?:small)?matrix)\}"), r"\\begin{pmatrix}"),
    (re.compile(r"\\end ?\{(?:array|(?:small)?matrix)\} ?[)\]]"), r"\\end{pmatrix}"),
    (re.compile(r"\| ?\\begin ?\{(?:array\} ?\{[lcr ]*|(?:small)?matrix)\}"), r"\\begin{vmatrix}"),
    (re.compile(r"\\end ?\{(?:array|(?:small)?matrix)\} ?\|"), r"\\end{vmatrix}"),
    (re.compile(r"\{([^{}\\]*)\\choose(?![a-zA-Z])([^{}\\]*)\}"), r"\\binom{\1}{\2}"),
    # powers: 5r**5, 2 ** 3, but **5** is bold
    (re.compile(r"(?<=[\w)}\]])\*\*(?=[\w({\\+-])|(?<=[\w)}\]]) \*\* (?=[\w({\\+-])"), "^"),
    # 6.72e-5, 1e5, 5e-05; 2e-3 may be Euler's number
    (
        re.compile(
            r"(?<![\w.\\}])(?:(\d+\.\d+|1)[eE]([+-]?\d{1,3})|(\d+)[eE](\+?\d{1,3}|-0\d))"
            r"(?![\w.^]|,\d{3})"
        ),
        lambda m: rf"{m[1] or m[3]}\times 10^{{{int(m[2] or m[4])}}}",
    ),
    # a base: (2516)_8, 2516_{(8)}, 2516_\text{eight}, 2516 base 8
    (re.compile(r"_ ?\{? ?\\text ?\{([^{}]*)\} ?\}?"), r"_{\1}"),
    (re.compile(rf"_ ?[{{(] ?\(? ?(?:base ?)?{_BASE} ?\)? ?[}})]"), lambda m: f"_{{{_base(m[1])}}}"),
    (
        re.compile(
            rf"(?<=[\dA-F)]) ?(?:\\text ?\{{)?[ (]*(?:in )?base ?\}}? ?{_BASE} ?\)? ?\}}?$", re.IGNORECASE
        ),
        lambda m: f"_{{{_base(m[1])}}}",
    ),
    (re.compile(r"^\((\d[\dA-F]*)\) ?_"), r"\1_"),
]


# Most answers need none of these.
_PLAIN_MATHS_HINT = re.compile(r"sqrt|pi|\\(?:begin|choose)|\*\*|\d[eE]|_|base", re.IGNORECASE)
_DECIMAL = re.compile(r"-?\d+(?:\.\d+)?")  # the commonest answer: nothing to clean


def _base(text: str) -> int:
    return _BASES.get(text) or int(text)


_UPRIGHT = re.compile(  # the constants; \mathbf{i} is a vector
    r"\\(?:mathrm|text|textrm|operatorname|mathit|textit)\s*\{\s*([ei])\s*\}|\{\s*\\(?:rm|it)\s+([ei])\s*\}"
)
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\S)")
_JOIN = re.compile(r"[\s,;.]*(?:and|or)?[\s,;.]*")
_MODIFIED = re.compile(  # twice $6$, the square root of $6$
    r"\b(?:(?:root|square|cube|reciprocal|inverse|negative|opposite|log\w*|sine|cosine|tangent|factorial|"
    r"multiples?|divisors?|factors?|third|quarter|fraction|percent) of|twice|thrice|double|triple|about|"
    r"approximately|roughly|nearly|almost|negative|over|under|above|below)\s*$",
    re.IGNORECASE,
)
_WORDS = re.compile(r"[A-Za-z ,.:;'\"()\-]*")
_LEAD_IN = re.compile(
    r"(?:[A-Za-z' ,]*\b(?:is|are|equals|be|have|has|get|gets|obtain|find|gives?|takes?|needs?)\b"
    r"|(?:the |final |my )*(?:answer|result))\s*:?\s+(?=\S)"
    r"|answer\s*:\s*|(?:a |the )?total of (?=\S)",
    re.IGNORECASE,
)


def clean(text: str) -> str:
    r"""`text` without what changes nothing: `$` signs, spacing, sizes, font commands, a trailing dot.

    One maths segment among words ("The value is $\frac12$.") is taken alone. Raises Unreadable for text
    that is too long, too deep, or hedged in words around the maths.
    """
    if len(text) <= MAX_CHARS and _DECIMAL.fullmatch(text) and text.isascii():
        return text
    # One space for a run: patterns with several optional spaces in a row would try every way to share it.
    text = re.sub(r"\s+", " ", text.translate(_CHARS)).strip()
    if not text.isascii():
        for run, mark, plain in _SCRIPTS:
            text = run.sub(lambda m, mark=mark, plain=plain: f"{mark}{{{m[0].translate(plain)}}}", text)
        text = _ROOT.sub(lambda m: _ROOTS[m[1]] + (f"{{{m[2]}}}" if m[2] else " "), text)
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
        if _MODIFIED.search(segments[0]) or not (unit := beside(segments[2].strip(" .,:"))):
            raise Unreadable("hedged")
        text = segments[1] + (rf"\text{{ {unit}}}" if unit.strip() else "")
    text = re.sub(r"(?<!\\)\$", r"\\$", text)
    if (lead := _LEAD_IN.match(text)) and not HEDGE.search(lead[0]):
        text = text[lead.end() :]
    # explicit thousands marks: 10,\!080  10{,}080  10\,080
    text = re.sub(r"(?<=\d)(?:,\s*\\!\s*|\{,\}|\\,)(?=\d{3}(?!\d))", "", text).replace("\\\\", "\x01")
    text = re.sub(r"\\[,;:! ]", " ", text)
    text = _UPRIGHT.sub(lambda m: m[1] or m[2], text)
    text = re.sub(r"\\([a-zA-Z]+)", lambda m: _COMMANDS[m[1]] + " " if m[1] in _COMMANDS else m[0], text)
    text = re.sub(r"\^\s*\{\s*\\circ\s*\}", r"^\\circ ", re.sub(r"\\text\s*\{(\d+)\}", r"\1", text))
    text = re.sub(r"\\text\s*\{\s*(\\?%)\s*\}", r"\1", re.sub(r"\\text\s+\{", r"\\text{", text))
    text = re.sub(r" +", " ", text)
    if _PLAIN_MATHS_HINT.search(text):
        for pattern, new in _PLAIN_MATHS:
            text = pattern.sub(new, text)
    if _THOUSANDS.search(text):
        text = _join_thousands(text)
    text = re.sub(r" +", " ", text).replace("\x01", "\\\\")
    while True:
        short = unwrap(text.strip().rstrip(".,;: \\"))
        if short == text:
            return text
        text = short


def _join_thousands(text: str) -> str:
    r"""Thousands commas taken out where no list can be meant: `\frac{20,000}{\pi}`, `1,000, 2,000`.

    That is in a group of braces, and elsewhere if each other comma of the same bracket has a space behind it;
    a lone comma in brackets separates (`(100,200)`).
    """
    groups: list[list[int]] = [[]]  # commas of each open bracket
    home = {}
    for i, char in enumerate(text):
        if char in "([{":
            groups.append([] if char != "{" or text[i - 1 : i] == "\\" else [-1])
        elif char in ")]}" and len(groups) > 1:
            groups.pop()
        elif char in ",;":
            groups[-1].append(i)
            home[i] = (groups[-1], len(groups) == 1)

    inside = {match.start() + k for match in _THOUSANDS.finditer(text) for k in range(len(match[0]))}

    def join(match: re.Match) -> str:
        commas, outermost = home[match.start() + match[0].index(",")]
        if commas[:1] == [-1]:
            return match[0].replace(",", "")
        others = [i for i in commas if i not in inside]
        joined = (outermost or others) and all(text[i + 1 : i + 2] == " " for i in others)
        return match[0].replace(",", "") if joined else match[0]

    return _THOUSANDS.sub(join, text)


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
    return [*parts, text[start:]]


def squeeze(text: str) -> str:
    r"""One spelling per expression: no idle spaces, `\frac12` as `\frac{1}{2}`, no leading plus."""
    if _DECIMAL.fullmatch(text):
        return text
    for _ in range(3):
        text = re.sub(r"\\frac\s*([0-9a-zA-Z])", r"\\frac{\1}", text)
        text = re.sub(r"(\\frac\s*\{[^{}]*\})\s*([0-9a-zA-Z])", r"\1{\2}", text)
    text = re.sub(r"\\sqrt\s*(\d+|[a-zA-Z])", r"\\sqrt{\1}", text)  # \sqrt51 is meant as √51
    text = re.sub(r"\^ ?([+-]) ?(\d+|[a-zA-Z])", r"^{\1\2}", text)
    text = re.sub(r"([\^_])([0-9a-zA-Z]) +(?=[\d.])", r"\1{\2}", text)
    text = re.sub(r"([\^_])\{([0-9a-zA-Z])\}(?!\s*[\d.])", r"\1\2", text)  # x^{2}3 isn't x^23
    # a space stays where dropping it would join two numbers or a command and a letter
    text = re.sub(r"(?<=[\d.]) +(?=[\d.])|(?<=[a-zA-Z]) +(?=[a-zA-Z])", "\x01", text).replace(" ", "")
    text = re.sub(r"(?<![a-zA-Z])([a-zA-Z])\x01(?=[a-zA-Z])", r"\1", text).replace("\x01", " ")
    return text.removeprefix("+")
