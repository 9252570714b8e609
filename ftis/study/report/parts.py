"""What a report is made of: blocks of plain text, numbers and names as text, inputs that may be missing."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import PIL.Image

from ftis.method.methods import METHODS
from ftis.suite.suite import Suite

# ---------------------------------------------------------------- blocks


@dataclass(frozen=True)
class Text:
    text: str
    lead: str = ""
    """Set in bold before the text."""


@dataclass(frozen=True)
class Missing:
    """What isn't there, and the command that makes it."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Tiles:
    """Few numbers, large: (value, what it is)."""

    tiles: list[tuple[str, str]]


@dataclass(frozen=True)
class Points:
    """A list of points."""

    points: list[Text]


@dataclass(frozen=True)
class Table:
    """`heads` and `rows` of text; a row that is a text by itself is a heading over the rows below it.

    In a cell, what follows a line break is set small below the rest.
    """

    heads: list[str]
    rows: list[list[str] | str]
    caption: str = ""

    @property
    def numeric(self) -> list[bool]:
        """Columns to align right: those that hold nothing but numbers."""
        rows = [row for row in self.rows if isinstance(row, list)]
        return [all(map(_numeric, column)) for column in zip(*rows, strict=True)]


@dataclass(frozen=True)
class Image:
    """A PNG inside the page; width and height (pixels) keep its room while the page is laid out."""

    title: str
    uri: str
    width: int
    height: int
    alt: str
    caption: list[Text]


@dataclass(frozen=True)
class Answers:
    """One question and what several models answered: (who, right, in the format, text)."""

    about: str
    question: str
    gold: str
    answers: list[tuple[str, bool, bool, str]]


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Fold:
    """Blocks that a reader opens; on paper they are open."""

    title: str
    blocks: list[Block]


Block = Text | Missing | Tiles | Points | Table | Image | Answers | Code | Fold


# ---------------------------------------------------------------- numbers as text


def signed(value: float, digits: int = 1) -> str:
    """+1.2, −0.3 or 0.0, with a real minus sign; a dash for nan."""
    if math.isnan(value):
        return "–"
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def points(fraction: float) -> str:
    """A difference of fractions in percentage points."""
    return signed(100 * fraction)


def percent(fraction: float) -> str:
    return "–" if math.isnan(fraction) else f"{100 * fraction:.1f}"


def interval(low: float, high: float) -> str:
    """Ends of an interval of a difference of fractions, in points; empty where there is none."""
    return "" if math.isnan(low) or math.isnan(high) else f"{points(low)} to {points(high)}"


def number(value: Any) -> str:
    """Any cell: integers with thousands apart, other numbers to four digits, a dash for nothing."""
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    whole = float(value).is_integer() and abs(value) < 1e15
    return (f"{int(value):,}" if whole else f"{value:.4g}").replace("-", "−")


def short(value: float, unit: str = "") -> str:
    """1234567 as 1.23 M; a dash for nothing and for infinity."""
    if not math.isfinite(value):
        return "–"
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {name}{unit}"
    return f"{value:.3g} {unit}".strip()


def count(how_many: int, what: str) -> str:
    return f"{how_many:,} {what}{'' if how_many == 1 else 's'}"


def seed_counts(counts: pd.Series) -> str:
    fewest, most = int(counts.min()), int(counts.max())
    return count(most, "seed") if fewest == most else f"{fewest} to {most} seeds"


def _numeric(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell[0] in "+−–"


# ---------------------------------------------------------------- words


def method_name(method: str) -> str:
    return METHODS[method].label if method in METHODS else method.capitalize()


def method_place(method: str) -> int:
    """The start model first, then the registry's order."""
    order = ["start", *METHODS]
    return order.index(method) if method in order else len(order)


def setup_title(method: str, setup: str) -> str:
    """What a run belongs to; a run of one model has its role in the place of a set-up."""
    if method == "start":
        return "Each model before training"
    if method == "alone":
        return "Each model alone"
    setups = Suite.load().grid.setups
    return setups[setup].title if setup in setups else setup


def setup_place(method: str, setup: str) -> int:
    """Before training, alone, then the set-ups as the grid lists them."""
    setups = list(Suite.load().grid.setups)
    return method_place(method) if method in ("start", "alone") else 2 + [*setups, setup].index(setup)


EACH_BY_ITSELF = "Each by its own 95 % interval: of twenty that don't differ, about one is told apart."


def by_difference(rows: Sequence[tuple[str, str, float, float, float]], reference: str) -> str:
    """Rows (series, model, difference, low, high) sorted by what their 95 % intervals tell, as sentences."""
    if not rows:
        return f"Nothing to compare with {reference}."
    kinds = {f"Below {reference}": [], f"Above {reference}": [], f"Not told apart from {reference}": []}
    below, above, level = kinds.values()
    for series, model, difference, low, high in rows:
        if not math.isnan(low):
            kind = below if high < 0 else above if low > 0 else level
            kind.append((series, f"{model} {points(difference)}"))
    sentences = []
    for head, members in kinds.items():
        models: dict[str, list[str]] = {}
        for series, model in members:
            models.setdefault(series, []).append(model)
        if models:
            listed = [f"{series} ({', '.join(names)})" for series, names in models.items()]
            sentences.append(f"{head}: {'; '.join(listed)}.")
    return " ".join(sentences) or "One seed, so no interval and nothing that can be told from chance."


def any_table(frame: pd.DataFrame, caption: str = "") -> Table:
    """A csv as it is, with readable heads."""
    heads = [str(name).replace("_pct", " %").replace("_", " ") for name in frame]
    if "method" in frame:
        frame = frame.assign(method=frame["method"].map(method_name))
    rows = [[number(cell) for cell in row] for row in frame.astype(object).to_numpy()]
    return Table([head[:1].upper() + head[1:] for head in heads], rows, caption)


@dataclass(frozen=True)
class Words:
    """What a paper says, for the sections that set a tier's results beside it."""

    figures: Mapping[str, tuple[str, str]]
    """Of each figure: where to look, and what the paper says of its own. What ours shows is computed."""
    references: tuple[str, ...]
    """The series that the others of a figure are compared with: the first of these that it has."""
    claims: str
    """What the caption of its claims has to say of their effects."""


# ---------------------------------------------------------------- inputs


class Absent(Exception):
    """An input that isn't there or can't be used, and the command that makes it."""


@dataclass(frozen=True)
class Source:
    """A folder of inputs; `name` is its path from the repository's root, for the command that fills it."""

    folder: Path
    name: str

    def absent(self, file: str, why: str = "isn't there yet") -> Absent:
        return Absent(f"{self.name}/{file} {why}.", f"snakemake -c2 {self.name}/{file}")

    def csv(self, file: str, needs: Sequence[str] = (), **options: Any) -> pd.DataFrame:
        """A csv file with at least one row and the columns in `needs`."""
        try:
            frame = pd.read_csv(self.folder / file, **options)
        except (FileNotFoundError, NotADirectoryError):
            raise self.absent(file) from None
        except (OSError, ValueError) as error:
            raise self.absent(file, f"can't be read ({type(error).__name__})") from None
        if lacking := [column for column in needs if column not in frame]:
            raise self.absent(file, f"lacks {', '.join(lacking)}")
        if frame.empty:
            raise self.absent(file, "has no rows")
        return frame

    def image(self, file: str, title: str, alt: str, caption: list[Text]) -> Image:
        """A picture on white, in 256 colours: a third of the bytes and the same to the eye."""
        try:
            with PIL.Image.open(self.folder / file) as found:
                picture = found.convert("RGBA")
        except FileNotFoundError:
            raise self.absent(file) from None
        except (OSError, ValueError):
            raise self.absent(file, "is no picture") from None
        white = PIL.Image.new("RGBA", picture.size, "white")
        picture = PIL.Image.alpha_composite(white, picture).convert("RGB")
        # This method keeps white white; the default one tints it in some figures.
        picture = picture.quantize(256, PIL.Image.Quantize.MAXCOVERAGE, dither=PIL.Image.Dither.NONE)
        png = io.BytesIO()
        picture.save(png, "PNG")
        uri = "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()
        return Image(title, uri, *picture.size, alt, caption)

    def split(self, names: Sequence[str], form: str) -> tuple[list[str], list[Block]]:
        """The names whose file (`form` of the name) is there, and a block about the others, if any."""
        there = [name for name in names if (self.folder / form.format(name)).exists()]
        missing = [name for name in names if name not in there]
        targets = " ".join(f"{self.name}/{form.format(name)}" for name in missing)
        return there, [
            Missing(f"Not there yet: {', '.join(missing)}.", f"snakemake -c2 {targets}")
        ] if missing else []


def attempt(build: Callable[..., list[Block]], *args: Any) -> list[Block]:
    """What `build` makes of its input, or what is wrong with it: a bad file costs its own place alone."""
    try:
        return build(*args)
    except Absent as error:
        return [Missing(*error.args)]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        what = build.__name__.replace("_", " ")
        return [Missing(f"“{what}” can't be made of its files ({type(error).__name__}: {error}).")]
