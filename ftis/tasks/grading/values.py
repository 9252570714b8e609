"""Exact values of plain numbers as MATH answers write them."""

import re
from fractions import Fraction
from functools import lru_cache

from ftis.tasks.grading.clean import squeeze

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


def number_in(text: str) -> Fraction | None:
    """`plain_number` of a text in any spelling; `1, 234` is two."""
    return None if ", " in text else plain_number(squeeze(text))
