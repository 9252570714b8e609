"""Words beside a number: units, scales, number words, and words that make it no answer."""

import re
import unicodedata


def spellings(lines: str) -> dict[str, str]:
    """{spelling: name} of lines "name: spelling, spelling"; a name is a spelling of itself."""
    rows = [line.partition(":") for line in lines.splitlines()]
    return {key.strip(): name for name, _, keys in rows for key in [name, *keys.split(",")] if key.strip()}


NUMBER_WORDS = (
    "zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|"
    "sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|half|"
    "halves|thirds|fourths|fifths|tenths|hundredths|thousandths|"
    "sixths|sevenths|eighths|ninths|twelfths|twentieths"
)
_DIGIT_WORDS = NUMBER_WORDS.split("|")[: NUMBER_WORDS.split("|").index("half")]
_VALUES = {"one": 1, "hundred": 100, "thousand": 1000, "million": 10**6} | dict(
    zip(_DIGIT_WORDS, [0, *range(2, 21), *range(30, 100, 10)], strict=True)
)
NUMBER_WORD = rf"(?:{'|'.join(_VALUES)})"


def number_words(text: str) -> int | None:
    """The value of an English number below a thousand million: `one hundred and twenty-five`; else None."""
    total = group = 0
    words = re.split("[ -]", text.lower().replace(" and ", " "))
    if any(word not in _VALUES for word in words):
        return None
    for word in words:
        value = _VALUES[word]
        if value < 100:
            group += value
        elif value == 100:
            group *= 100
        else:
            total, group = total + group * value, 0
    return total + group


VULGAR_FRACTIONS = (*range(0xBC, 0xBF), *range(0x2150, 0x215F))  # code points of ½ and its like


def vulgar_fraction(char: str) -> str:
    """`1/2` for ½."""
    return unicodedata.normalize("NFKC", char).replace("⁄", "/")


HEDGE = re.compile(
    rf"\b(?:{NUMBER_WORDS}|squared|cubed|factorial|plus|minus|times|or|nor|and|not|never|cannot|no|maybe|"
    r"perhaps|possibly|unless|except|either|neither|if|than|least|most|between)\b|n't|\?",
    re.IGNORECASE,
)


UNITS = spellings("""dollar: $, usd, buck
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
mile/hour: mph
km/hour: kph, kmh, kmph
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
UNIT_NAMES = frozenset(UNITS.values())
# Words behind a number that change it, bound it or take it back; a word of these makes no count.
NO_COUNT = re.compile(
    r"^choose\b|\b(?:base|mod|modulo|binary|octal|decimal|hexadecimal|dozens?|gross|lakhs?|crores?|tens|"
    r"hundreds?|thousands?|[mbtr]illions?|root|(?:square|cube) roots|power|inverse|reciprocal|doubled|"
    r"tripled|halved|raised|wrong|incorrect|false|invalid|impossible|undefined|unknown|none|nothing|about|"
    r"approx\w*|roughly|around|nearly|almost|over|under|above|below|more|fewer|less|greater|larger|"
    r"smaller|higher|lower|probably|likely|unsure|uncertain|guess|assum\w*|infinit\w*|remainder|divided|"
    r"multiplied|added|subtracted|itself|increased|decreased|reduced|negated|imaginary|rounded|estimated?|"
    r"quarters?|(?:six|seven|eigh|nin|eleven|twelf|\w+teen|\w+tie)ths?|third|fourth|fifth|tenth|alpha|"
    r"beta|gamma|delta|theta|lambda|sigma|omega|zeta|kappa|epsilon|cosh|sinh|tanh|sine|cosine|tangent)\b",
    re.IGNORECASE,
)
_SMALL_WORDS = re.compile(
    r"a|all|an|any|are|as|at|be|by|can|do|each|for|from|has|he|her|his|in|is|it|its|left|non|of|on|one|"
    r"our|per|she|that|the|them|they|this|to|was|way|we|with",
    re.IGNORECASE,
)
_SHORT_WORDS = re.compile(
    r"age|bag|bar|bee|box|boy|bus|cab|can|car|cat|cop|cow|cup|day|dog|ear|egg|end|eye|fox|fri|gap|hat|"
    r"hen|hit|hop|jar|job|key|kid|lap|leg|man|map|may|men|mon|mug|net|no|nut|odd|pan|pen|pet|pie|"
    r"pig|pin|pot|rat|ray|row|sat|set|son|thu|tie|toy|tue|van|way|wed|win|yes",
    re.IGNORECASE,
)
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def unit_name(words: str) -> str:
    """Plain name of a unit: `square centimeters` -> `cm^2`; unknown words stay, lower case, singular."""
    words = " ".join(re.sub(r"[.\\\\]", "", words.lower()).split())
    ratio = re.split(r" ?/ ?| per ", words)
    if len(ratio) > 1 and all(ratio):
        return "/".join(map(unit_name, ratio))
    power = ""
    if match := re.match(r"(square|sq|cubic|cu) (?=\w)", words):
        power, words = ("^2" if match[1][0] == "s" else "^3"), words[match.end() :]
    singular = words[:-1] if len(words) > 2 and words.endswith("s") else words
    return UNITS.get(words, UNITS.get(singular, singular)) + power


def is_unit(name: str) -> bool:
    """Whether a name is that of a known unit, or of a ratio of known ones."""
    return all(part.removesuffix("^2").removesuffix("^3") in UNIT_NAMES for part in name.split("/"))


def is_word(word: str) -> bool:
    """Whether letters are no product of variables: four or more with a vowel (`abcd` isn't), or known
    ones."""
    if _SHORT_WORDS.fullmatch(word) or (len(word) > 1 and unit_name(word) in UNIT_NAMES):
        return True
    word = word[:1].lower() + word[1:]
    return len(word) > 3 and word.islower() and bool(re.search("[aeiouy]", word)) and word not in _ALPHABET


def names_things(words: str) -> bool:
    """Whether words behind a number say what is counted (`ways`, `positive integers`), and no more."""
    if HEDGE.search(words) or NO_COUNT.search(words):
        return False
    words = re.sub(r" (?:of|for) [a-zA-Z]$", "", words.strip(" ."))  # values of n
    parts = re.split(r"[ .'-]+", words)
    return all(is_word(part) or _SMALL_WORDS.fullmatch(part) for part in parts) and any(map(is_word, parts))


def beside(words: str) -> str:
    r"""What of the words behind a maths segment bears on its value: a unit, a scale; " " if nothing does.

    "" if they may change the value in a way that isn't read (`$5$ dozen`).
    """
    first, _, _ = words.partition(" ")
    if is_unit(unit_name(words)) or unit_name(first) in SCALES:
        return words
    return "" if NO_COUNT.match(words) else " "
