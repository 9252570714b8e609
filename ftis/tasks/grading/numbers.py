"""GSM8K: the one exact number that an answer states."""

import itertools
import re
from fractions import Fraction
from functools import lru_cache

from ftis.tasks.grading.units import (
    NUMBER_WORD,
    NUMBER_WORDS,
    SCALES,
    VULGAR_FRACTIONS,
    number_words,
    vulgar_fraction,
)

_PLAIN = re.compile(r"\$?(-?(?:\d{1,18}|[1-9]\d{0,2}(?:,\d{3}){1,5}))(?:\.0{0,4})?")
_CHARS = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2013\u2010\u2011\uff0d\ufe63", "-"),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
        **dict.fromkeys("\u00a0\u3000\t\r\f\v~`#\x00", " "),
        **dict.fromkeys("\u2009\u202f\u2007", "\u2009"),
        **dict.fromkeys("’‘", "'"),
        **dict.fromkeys("“”", '"'),
        **dict.fromkeys("≈≅≃", "="),
        **dict.fromkeys("⋅·∙", "×"),
        **{chr(code): f" {vulgar_fraction(chr(code))} " for code in VULGAR_FRACTIONS},
        "⁄": "/",
    }
)
_LATEX = [
    (re.compile(r"\\times|\\cdot(?![a-zA-Z])"), "×"),
    (re.compile(r"\\(?:\$|\{\$\})"), "$"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"^\s*\{(.*)\}[\s.]*$", re.DOTALL), r"\1"),
    (re.compile(r",\\!|\{,\}"), ","),
    (re.compile(r"\\[,!](?=\d{3}(?!\d))"), "\u2009"),
    (re.compile(r"\\[()\[\],;:! ]|\\(?:left|right|quad|displaystyle)(?![a-zA-Z])"), " "),
    (re.compile(r"\\(?:text|mbox|textbf|mathrm|mathbf|boxed|fbox)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\[dtc]?frac\s*(?:\{(\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))"), r" \1\2/\3\4 "),
    (re.compile(r"\\approx(?![a-zA-Z])"), "="),
    (re.compile(r"\^\s*(?:\{\s*)?\\circ\s*\}?"), "°"),
]
_SPACES = re.compile(r"\s+")
_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_POWER = r"(?:\^ ?(?:\{ ?([+-]?\d{1,2}) ?\}|\(([+-]?\d{1,2})\)|([+-]?\d{1,2}))|([⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹]{1,3}))"
_SPELLED = [  # one spelling for what is a single number
    # 1.2 × 10^6
    (
        re.compile(rf"(?<![\d.,])([1-9](?:\.\d+)?) ?[×*x] ?10 ?{_POWER}(?![\d.])"),
        lambda m: f"{m[1]}e{(m[2] or m[3] or m[4] or m[5]).translate(_POWERS)}",
    ),
    # 1 234, in whole groups
    (
        re.compile(r"(?<![\d.,/:\u2009])([1-9]\d{0,2})((?: \d{3})+)(?![\d\u2009]|[,:]\d| ?/| \d)"),
        lambda m: m[1] + m[2].replace(" ", "\u2009"),
    ),
    # 5 and 1/2, 5 and a half
    (re.compile(r"(?<=\d) and (?=\d+/\d)"), " "),
    (re.compile(r"(?<=\d) and (?:a|one)[ -]half\b"), " 1/2"),
    (re.compile(r"(?<=\d) and (?:a|one)[ -](?:quarter|fourth)\b"), " 1/4"),
    (re.compile(r"(?<=\d) and three[ -](?:quarter|fourth)s\b"), " 3/4"),
    # a dash between words and the number; 18 eggs!
    (re.compile(r"(?<=[A-Za-z\d]) — |(?<=[A-Za-z])—(?=[A-Za-z\d$])|(?<=[A-Za-z]) -{2,3} "), ": "),
    (re.compile(r"(?<=[A-Za-z]{2})!+(?![\w!])"), "."),
    # 18 (eighteen), eighteen (18)
    (
        re.compile(r"(?<![\d.,])(\d[\d,]*) ?\(([A-Za-z]+(?:[ -][A-Za-z]+)*)\)"),
        lambda m: m[1] if m[1].replace(",", "") == str(number_words(m[2])) else m[0],
    ),
    (
        re.compile(rf"\b({NUMBER_WORD}(?:[ -](?:and )?{NUMBER_WORD})*) ?\((\d[\d,]*)\)", re.IGNORECASE),
        lambda m: m[2] if m[2].replace(",", "") == str(number_words(m[1])) else m[0],
    ),
]
# Most answers need none of these.
_SPELLED_HINT = re.compile(r"\d (?:\d|and)|[(!—×]|--|10 ?[\^⁰¹²³⁴⁵⁶⁷⁸⁹⁻]")
_DIGITS = re.compile(r"\.?\d(?:[\d.,\u2009]*\d)?(?:[eE][+-]?\d{1,2}(?!\w))?")
_GROUPED = re.compile(
    r"(?:[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,2}(?:\u2009\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,2})?|\.\d+"
)
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])(?:\^\{?[23]\}?|[²³])")
_MONEY = "$£€¥₹₩₱₫₽฿₦₺₴₪"
_CODES = "USD|EUR|GBP|INR|CAD|AUD|NZD|CHF|JPY|CNY|RMB|MXN|SGD|HKD|PHP|KRW|BRL|ZAR|SEK|NOK|DKK|PKR|NGN"
_LEAD = re.compile(  # what stands before the number: words, a sign, a currency
    r"(?P<words>.*?)(?P<space>\s*)(?P<minus>\b(?:negative|minus) +)?(?P<sign>[+-]?)(?P<gap> *)"
    rf"(?P<money>(?:\b(?:US|CA|AU|NZ|HK|NT|MX|[ACSR]))?[{_MONEY}] *|\b(?:{_CODES}|Rs\.?) *|)(?P<inner>[+-]?)",
    re.IGNORECASE | re.DOTALL,
)
_BEFORE = re.compile(r"(?:[A-Za-z'\",.:()°\[\] ]|\n|(?<=[A-Za-z])-(?=[A-Za-z]))*")
_SCALE_WORD = rf"[ -]?(?i:{'|'.join(SCALES)})s?(?![A-Za-z])"
_AFTER = re.compile(
    rf"(?P<scale>[kK](?!\w)|(?: ?(?:M|B|[MmBb]n|MN|BN|mln|mil)(?!\w))|(?:{_SCALE_WORD})+)?"
    r"(?![XYZNxyzn](?![A-Za-z]))(?! ?[MBKTkb](?![A-Za-z]))"
    rf" *[%¢°{_MONEY}]?(?:[A-Za-z'\",.:;()°%¢$\[\] ]|\n"
    r"|(?<=[A-Za-z\d$%])(?:-(?=[A-Za-z]{2})|/(?=[A-Za-z])))*"
)
# What makes one number no answer: alternatives, denials, further numbers; bounds, and functions of it.
_DENIALS = (
    "or|nor|not|never|cannot|either|neither|maybe|perhaps|possibly|unless|between|unknown|itself|"
    + NUMBER_WORDS
)
_BOUNDS = "than|over|under|above|below|nearly|almost"
_FUNCTIONS = (
    "twice|thrice|double|doubled|triple|tripled|quadruple|times|plus|sqrt|log|ln|sin|cos|tan|exp|abs|floor|ceil|"
    "round|root|roots|square|squares|cube|cubes|reciprocal|inverse|opposite|factorial|multiple|multiples|divisor|"
    "divisors|factor|factors|fraction|third|quarter|fourth|fifth|tenth|percent"
)
_BEHIND = (
    "squared|cubed|factorial|doubled|tripled|halved|twice|thrice|plus|minus|divided|multiplied|mod|modulo|lakh|lakhs|"
    "crore|crores|tens"
)
_SUSPECTS = frozenset(f"{_DENIALS}|{_BOUNDS}|{_FUNCTIONS}|{_BEHIND}|and|least|most|to|by".split("|"))
_WORD = re.compile("[a-z]{2,}")
_MARK = re.compile(r"[<>≤≥≠!?^_]|[nN]'[tT]\b")
_SPOILER = re.compile(
    rf"\b(?:{_DENIALS})\b|\band (?:a|one) "
    rf"|\b(?:(?:at least|at most|up to|{_BOUNDS}) [$£€]?"
    rf"|(?:multiplied by|divided by|(?:{_FUNCTIONS})(?: of)?(?: the)?(?: number)?) [$£€]?-?)\d"
    rf"|\d[a-z $%]* (?:{_BEHIND})\b|\d(?:lakh|crore)s?\b"
)


def _spoiled(side: str) -> bool:
    """Whether a side of an answer says that its number is no answer."""
    if _MARK.search(side):
        return True
    side = side.lower()
    return not _SUSPECTS.isdisjoint(_WORD.findall(side)) and _SPOILER.search(side) is not None


_SCALE = {"k": 10**3, "m": 10**6, "mn": 10**6, "mln": 10**6, "mil": 10**6, "b": 10**9, "bn": 10**9, **SCALES}
_JOINTS = re.compile(r"[,;\n](?!\d{3}(?!\d))|\b(?:and|so|then)\b")
_BARE = re.compile(r"\s*(-?)\s*[$£€]?\s*(\d[\d,]*(?:\.\d+)?)\s*%?\s*")


@lru_cache(maxsize=8192)
def read_number(text: str) -> tuple[Fraction | int | None, str]:
    r"""(the one number that an answer states, "") or (None, reason).

    Reads a sign, a currency, thousands commas or spaces, decimals, scientific notation, a percent sign
    (dropped, as GSM8K's golds drop it), unit words, a phrase around the number, the end of an equation chain,
    and a fraction in lowest terms. Two numbers, an unevaluated operation, a bound ("at least 18"), a denial
    or an alternative state none. Examples: "$1,234.50" -> 1234.5; "9+9=18" -> 18; "18 eggs per day" -> 18;
    "9+9", "18 or 20", "1,23" -> none.
    """
    plain = _PLAIN.fullmatch(text)
    if plain:
        return int(plain[1].replace(",", "")), ""
    text = text.translate(_CHARS).replace("**", " ").strip(" *")
    if "\\" in text or "{" in text or "$" in text:
        for pattern, new in _LATEX:
            text = pattern.sub(new, text)
    if text.count("$") > 1:  # maths mode; money signs more than once change nothing either
        text = re.sub(r"(?<=\d)\$+(?=\d)", " ", text).replace("$", "")
    # Patterns below with several optional spaces in a row would try every way to share a long run among them.
    text = _SPACES.sub(_one_space, text)
    if _SPELLED_HINT.search(text):
        for pattern, new in _SPELLED:
            text = pattern.sub(new, text)
    sides = re.split(r"==?", text)
    sides[-1] = _UNIT_POWER.sub("", sides[-1])
    if any(map(_spoiled, sides)):
        return None, "hedged"
    if any(_JOINTS.search(side) or not side.strip() for side in sides[1:-1]):
        return None, "hedged"
    bare = [
        match and Fraction((match[1] + match[2]).replace(",", "")) for match in map(_BARE.fullmatch, sides)
    ]
    if any(
        left is not None and right is not None and left != right for left, right in itertools.pairwise(bare)
    ):
        return None, "contradiction"
    return _one_number(sides[-1].strip())


def _one_space(run: re.Match) -> str:
    """One character for a run of white space: a line's end, a thousands mark that stands alone, or a
    space."""
    return "\n" if "\n" in run[0] else run[0] if run[0] == "\u2009" else " "


def _one_number(text: str) -> tuple[Fraction | int | None, str]:
    """The number of a phrase that holds exactly one; `1 1/2` and `1/2` are one number, `36/2` is work."""
    runs = list(_DIGITS.finditer(text))
    if not runs:
        return None, "no_number"
    gaps = [text[a.end() : b.start()] for a, b in itertools.pairwise(runs)]
    fraction = bool(gaps) and gaps[-1].strip() == "/" and all(run[0].isdigit() for run in runs)
    if len(runs) > 1 and not (fraction and (len(runs) == 2 or (len(runs) == 3 and gaps[0].isspace()))):
        return None, "many_numbers"
    if not all(_GROUPED.fullmatch(run[0]) and len(run[0]) < 400 for run in runs):
        return None, "bad_number"
    if fraction:
        top, bottom = int(runs[-2][0]), int(runs[-1][0])
        if bottom < 2 or Fraction(top, bottom).denominator != bottom or (len(runs) == 3 and top > bottom):
            return None, "work"
        value = Fraction(top, bottom) + (int(runs[0][0]) if len(runs) == 3 else 0)
    else:
        value = Fraction(runs[0][0].replace(",", "").replace("\u2009", ""))
    lead, tail = _LEAD.fullmatch(text[: runs[0].start()]), _AFTER.fullmatch(text, runs[-1].end())
    words, signs = lead["words"], (lead["minus"] or "")[:1] + lead["sign"] + lead["inner"]
    # "total - 18" may hold a dash or a minus, "x18" and "2-18" hold no number of their own
    called = words[-1:] in ("(", "[") and words[-2:-1].isalpha()  # sqrt(81)
    apart = not words or lead["space"] or (words[-1] in ":([\"'" and not called)
    dash = lead["sign"] and lead["gap"] and words and words[-1] not in ":("
    if tail is None or not apart or dash or len(signs) > 1 or not _BEFORE.fullmatch(words):
        return None, "work"
    if tail["scale"]:
        for word in re.split("[ -]", tail["scale"].strip(" -").lower()):  # 5 hundred thousand
            value *= _SCALE[word.removesuffix("s")]
    return (value if signs in ("", "+") else -value), ""


def gold_number(gold: str) -> Fraction | int:
    value, _ = read_number(gold.rpartition("####")[2].strip())
    if value is None:
        raise ValueError(f"gold {gold[:60]!r} is no number, which a GSM8K gold must be")
    return value
