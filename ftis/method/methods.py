"""The registry of methods: a method is an importance weighting, with or without a filter.

A new one is a line here besides its function (`ftis.method.weightings`, `ftis.method.filters`). Those of
others come in through the entry point group `ftis.methods`, or from a file that is named with `--methods` or
in FTIS_METHODS: importing them registers them, and they stand in the grid, the figures, the exact study and
the report as the paper's own do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from ftis.errors import UserError
from ftis.method.filters import Far, Filter
from ftis.method.weightings import TIS, VIS, NoWeight, Weighting
from ftis.plugins import load_plugins

GROUP, FILES = "ftis.methods", "FTIS_METHODS"
"""Where methods of others are found: an entry point group, and a variable that names files, as PATH does."""


@dataclass(frozen=True)
class Method:
    """How a node learns from the swarm's samples, and how that is drawn.

    >>> ftis.Method("TIS, C = 1", ftis.TIS(cap=1.0)).filtered
    False
    """

    label: str
    """Name in figures and tables."""
    weighting: Weighting
    filter: Filter | None = None
    """What decides whose update is zeroed; needs the run's threshold g."""
    colour: str = ""
    marker: str = ""
    """Both as matplotlib names them; where empty, `register` chooses ones that no other method has."""

    @property
    def filtered(self) -> bool:
        return self.filter is not None


# Colours are Okabe and Ito's colour-blind-safe palette (https://jfly.uni-koeln.de/color/); its yellow is left
# out, because it vanishes on white.
METHODS: dict[str, Method] = {
    "alone": Method("Alone", NoWeight(), None, "#000000", "o"),
    "nois": Method("NoIS", NoWeight(), None, "#CC79A7", "X"),
    "vis": Method("VIS", VIS(), None, "#E69F00", "v"),
    "tis": Method("TIS", TIS(), None, "#56B4E9", "^"),
    "fnois": Method("F-NoIS", NoWeight(), Far(), "#009E73", "P"),
    "fvis": Method("F-VIS", VIS(), Far(), "#D55E00", "s"),
    "ftis": Method("F-TIS", TIS(), Far(), "#0072B2", "D"),
}
"""All methods by the name that a run's setting `method` takes: the paper's, and those that were registered.

>>> ftis.METHODS["tis"].weighting
TIS(cap=2.0, detach_weight=True)
"""
PAPER = tuple(METHODS)
"""The paper's own."""

# For others: matplotlib's tab20b, of which the paper's own come near none.
COLOURS = (
    "#8c6d31",
    "#843c39",
    "#7b4173",
    "#637939",
    "#393b79",
    "#ad494a",
    "#8ca252",
    "#5254a3",
    "#a55194",
    "#bd9e39",
)
MARKERS = ("p", "h", "*", "d", "<", ">", "8", "H")


WANTED = "it takes ftis.Method(LABEL, WEIGHTING(), FILTER()), instances of classes marked with @dataclass"


def register(name: str, method: Method) -> Method:
    """Add a method under a name that runs can have: lower-case letters, digits and _, beginning with a
    letter.

    Raises UserError for a name that is taken or can't stand in a run's name.

    >>> ftis.register("ftis", ftis.Method("Mine", ftis.TIS()))
    Traceback (most recent call last):
    ftis.errors.UserError: method 'ftis': there is one of that name (F-TIS); choose another
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise UserError(
            f"method {name!r}: a name is lower-case letters, digits and _, and begins with a letter"
        )
    parts = (method.weighting, method.filter) if isinstance(method, Method) else (method,)
    if any(part is not None and (isinstance(part, type) or not is_dataclass(part)) for part in parts):
        raise UserError(f"method {name!r}: {parts} is given; {WANTED}")
    if (taken := METHODS.get(name)) is not None:
        alike = replace(method, colour=method.colour or taken.colour, marker=method.marker or taken.marker)
        if alike != taken:
            raise UserError(f"method {name!r}: there is one of that name ({taken.label}); choose another")
        return taken
    METHODS[name] = replace(
        method,
        colour=method.colour or _free(COLOURS, {other.colour for other in METHODS.values()}),
        marker=method.marker or _free(MARKERS, {other.marker for other in METHODS.values()}),
    )
    return METHODS[name]


def _free(choices: Sequence[str], taken: Collection[str]) -> str:
    """The first that isn't taken; when all are, they come round again."""
    return next((c for c in choices if c not in taken), choices[len(METHODS) % len(choices)])


def unfiltered(name: str) -> str | None:
    """The method that is `name` without its filter; None where there is none."""
    weighting = METHODS[name].weighting
    alike = (other for other, m in METHODS.items() if m.weighting == weighting and not m.filtered)
    return next((other for other in alike if other != "alone"), None)


def parameters(method: Method) -> set[str]:
    """Names of what its weighting and its filter can be told."""
    return {f.name for part in (method.weighting, method.filter) if part is not None for f in fields(part)}


def refuse_unknown(method: Method, given: Mapping[str, Any]) -> None:
    """Raise UserError for parameters that neither its weighting nor its filter has."""
    if other := sorted(given.keys() - parameters(method)):
        known = ", ".join(sorted(parameters(method))) or "none"
        raise UserError(f"parameters.{other[0]}: {method.label} has no such parameter; it has {known}")


Part = TypeVar("Part", Weighting, Filter)


def filled(part: Part, given: Mapping[str, Any]) -> Part:
    """A weighting or filter whose fields take the values that `given` has under their names."""
    return replace(part, **{f.name: given[f.name] for f in fields(part) if f.name in given})


def _take(name: str, found: object) -> None:
    if isinstance(found, Method):
        register(name, found)


load_plugins(GROUP, FILES, _take)
