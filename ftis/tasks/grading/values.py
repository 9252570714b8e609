"""Plain numbers of MATH answers: their exact values, and the units behind them."""

import re
from fractions import Fraction
from functools import lru_cache

from ftis.tasks.grading.clean import squeeze
from ftis.tasks.grading.units import HEDGE, NO_COUNT, SCALES, is_unit, names_things, unit_name

_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"  # one way to match: with two, a fraction that fails takes cubic time
_NUMBER = re.compile(rf"([+-]?){_DECIMAL}")
_FRACTION = re.compile(
    rf"([+-]?)(?:\\frac\{{([+-]?{_DECIMAL})\}}\{{([+-]?{_DECIMAL})\}}|({_DECIMAL})/({_DECIMAL}))"
)
_MIXED = re.compile(r"([+-]?)(\d+)(?:\\frac\{(\d+)\}\{(\d+)\}| (\d+)/(\d+))")
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d*)\\(?:overline|bar)\{?(\d+)\}?")
_SCIENTIFIC = re.compile(rf"([+-]?{_DECIMAL})(?:\\times|\\cdot|\*)10\^(?:\{{([+-]?\d{{1,3}})\}}|(\d{{1,3}}))")


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


def number_in(text: str) -> Fraction | None:
    """`plain_number` of a text in any spelling; `1, 234` is two."""
    return None if ", " in text else plain_number(squeeze(text))


_TAIL = re.compile(  # one piece of a unit at the end of an answer
    r"\s*(?:\\text\{([^{}\\\d]*)\}|(\^\\circ\s*[CF]?(?![a-zA-Z]))|(\\?[%$]|¢)"
    r"|(?<![\\a-zA-Z])([A-Za-z][A-Za-z. /'-]++(?<=[A-Za-z.])))"
    r"(\^\s*\{?\s*\d\s*\}?)?$"
)
_SCALED = re.compile(rf"({'|'.join(SCALES)})s? +(.+)", re.IGNORECASE)


def split_unit(text: str) -> tuple[str, str, int]:
    r"""(value, unit name or "", scale): `\$2 \text{ million}` -> ("2", "dollar", 10**6).

    Bare words are a unit if it is a known one, or if they stand apart behind a plain number and name what is
    counted; words inside `\text{}` always are, unless they hedge.
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
        if (plain := words or bare) and (scaled := _SCALED.fullmatch(plain.strip())):  # 5 million people
            scale, plain = scale * SCALES[scaled[1].lower()], scaled[2]
            name = unit_name(plain)
        known = name in SCALES or is_unit(name)
        if words and (HEDGE.search(words) or not re.fullmatch(r"[A-Za-z .,/'()\-¢°:]*", words)):
            break
        if words and not known and NO_COUNT.search(plain):
            break
        if bare is not None and not (known and len(plain) > 1):
            apart = match[0][0] == " " and number_in(text[: match.start()].strip()) is not None
            if not (apart and names_things(plain)):
                break
            # "cents each" is cents, and "$36 per person" dollars
            first = unit_name(plain.split()[0])
            name = "" if units else first if first != "inch" and is_unit(first) else name
        text = text[: match.start()]
        if name in SCALES:
            scale *= SCALES[name]
        elif name:
            units.append(name + (f"^{re.search(r'[0-9]', power)[0]}" if power else ""))
    return text.strip(), " ".join(reversed(units)), scale
