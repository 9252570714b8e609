"""Words beside a number: units, scales, number words, and words that make it no answer."""

import re


def spellings(lines: str) -> dict[str, str]:
    """{spelling: name} of lines "name: spelling, spelling"; a name is a spelling of itself."""
    rows = [line.partition(":") for line in lines.splitlines()]
    return {key.strip(): name for name, _, keys in rows for key in [name, *keys.split(",")] if key.strip()}


NUMBER_WORDS = (
    "zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|"
    "sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|half|"
    "halves|thirds|fourths|fifths|tenths|hundredths|thousandths"
)
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
UNIT_NAMES = frozenset(UNITS.values())
_TAIL = re.compile(  # one piece of a unit at the end of an answer
    r"\s*(?:\\text\{([^{}\\\d]*)\}|(\^\\circ\s*[CF]?(?![a-zA-Z]))|(\\?[%$]|¢)"
    r"|(?<![\\a-zA-Z])([A-Za-z][A-Za-z. /]++(?<=[A-Za-z.])))"
    r"(\^\s*\{?\s*\d\s*\}?)?$"
)


def unit_name(words: str) -> str:
    """Plain name of a unit: `square centimeters` -> `cm^2`; unknown words stay, lower case, singular."""
    words = " ".join(re.sub(r"[.\\\\]", "", words.lower()).split())
    power = ""
    if match := re.match(r"(square|sq|cubic|cu) (?=\w)", words):
        power, words = ("^2" if match[1][0] == "s" else "^3"), words[match.end() :]
    singular = words[:-1] if len(words) > 2 and words.endswith("s") else words
    return UNITS.get(words, UNITS.get(singular, singular)) + power


def split_unit(text: str) -> tuple[str, str, int]:
    r"""(value, unit name or "", scale): `\$2 \text{ million}` -> ("2", "dollar", 10**6).

    A bare word is a unit only if it is a known one; words inside `\text{}` always are, unless they hedge.
    """
    units, scale = [], 1
    if match := re.match(r"([+-]?)\s*(?:\\text\{\s*)?(\\?\$|[£€¥₹])(?:\s*\})?\s*", text):
        units.append(unit_name(match[2]))
        text = match[1] + text[match.end() :]
    for _ in range(4):  # pieces: "million", "dollars", "per day"
        match = _TAIL.search(text)
        if match is None or not text[: match.start()].strip():
            break
        words, degrees, sign, bare, power = match.groups()
        if degrees:
            name = f"degree {degrees[6:].strip().lower()}".strip()
        else:
            name = unit_name(words if words is not None else sign or bare)
        if words and (HEDGE.search(words) or not re.fullmatch(r"[A-Za-z .,/'()\-¢°:]*", words)):
            break
        known = name in SCALES or name in UNIT_NAMES or name.endswith(("^2", "^3"))
        if bare is not None and (not known or len(bare) < 2):
            break
        text = text[: match.start()]
        if name in SCALES:
            scale *= SCALES[name]
        elif name:
            units.append(name + (f"^{re.search(r'[0-9]', power)[0]}" if power else ""))
    return text.strip(), " ".join(reversed(units)), scale
