"""The grid: set-ups, methods, artefacts and ablations, as `grid.yaml` of a suite's folder lists them; and a
run's name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ftis.errors import UserError, unknown
from ftis.method.methods import METHODS
from ftis.settings import settings

SINGLE = ("alone", "start")
"""Runs of one model: trained alone, and as it is before any training (answers and scores only)."""


@settings
class Setup:
    """Nodes that train together."""

    nodes: tuple[str, ...] = Field(min_length=2)
    """Roles: keys of a tier's `models`."""
    title: str
    """Name in figures."""


@settings
class Artefact:
    """A figure or a table."""

    title: str
    runs: tuple[str, ...]
    """Patterns over run names without their seed: * and {a,b} as in a shell."""
    reads: Literal["metrics", "scores"] = "metrics"
    """metrics: curves during training; scores: benchmarks after it."""
    others: bool = False
    """Show methods that others have added, too, wherever one of the paper's stands that filters, or doesn't,
    as they do."""

    @property
    def patterns(self) -> list[str]:
        """`runs` without braces."""
        return [p for text in self.runs for p in braces(text)]


@settings
class Variant:
    """One change to a run."""

    label: str
    """Name in figures."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings of a run by dotted name, e.g. readings.preset."""
    times: dict[Literal["prompts", "iterations", "group_size"], int] = Field(default_factory=dict)
    """Factors on settings whose value the tier decides."""
    nodes: tuple[str, ...] | None = Field(default=None, min_length=2)
    """Roles that train together in place of the set-up's."""


@settings
class Ablation:
    """Runs beside the same runs with one thing changed; each is a target of its own."""

    title: str
    question: str
    """What it answers, in a sentence."""
    runs: tuple[str, ...]
    """Patterns over run names without their seed: what the variants start from and are compared with."""
    variants: dict[str, Variant] = Field(default_factory=dict)
    """By name; none where runs of the grid are compared that grid=paper lacks."""

    @property
    def patterns(self) -> list[str]:
        """`runs` without braces."""
        return [p for text in self.runs for p in braces(text)]

    @model_validator(mode="after")
    def _names(self) -> Ablation:
        for name in self.variants:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
                raise ValueError(f"variants: {name!r}: use a-z, 0-9 and _; it becomes part of a run's name")
        return self


@settings
class Grid:
    """`workflow/config/grid.yaml`."""

    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    """The first N are used."""
    setups: dict[str, Setup]
    methods: tuple[str, ...]
    thresholds: tuple[float, ...]
    """g, of the filtered methods."""
    splits: tuple[Literal["vertical", "horizontal"], ...]
    artefacts: dict[str, Artefact]
    ablations: dict[str, Ablation] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_names(self) -> Grid:
        for method in self.methods:
            if method not in METHODS:
                raise ValueError(f"methods: {unknown('method', method, METHODS)}")
        names = [name for ablation in self.ablations.values() for name in ablation.variants]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"ablations: two variants are named {name!r}; a run's name says which it is")
        for name, variant in self.variants.items():
            for role in variant.nodes or ():
                if role not in self.roles:
                    raise ValueError(f"ablations: variant {name}: {unknown('role', role, self.roles)}")
        return self

    @property
    def variants(self) -> dict[str, Variant]:
        return {name: v for ablation in self.ablations.values() for name, v in ablation.variants.items()}

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(role for setup in self.setups.values() for role in setup.nodes))


@dataclass(frozen=True)
class Run:
    """One training run, known by its name in every tier. `Suite.run(run.slug) == run`."""

    setup: str
    """Key of `setups`; the role when the method is alone."""
    method: str
    threshold: float | None
    """g; None where the method doesn't filter."""
    split: str
    seed: int
    variant: str = ""
    """Key of an ablation's `variants`; empty in the grid itself."""

    @property
    def cell(self) -> str:
        """The name without its seed, e.g. size_base-ftis-g50-vertical, alone-base_small or
        alone-base_small+mini4."""
        variant = f"+{self.variant}" if self.variant else ""
        if self.method in SINGLE:
            return f"{self.method}-{self.setup}{variant}"
        g = "" if self.threshold is None else f"-g{_plain(self.threshold)}"
        return f"{self.setup}-{self.method}{g}-{self.split}{variant}"

    @property
    def slug(self) -> str:
        return f"{self.cell}-s{self.seed}"


def parse_slug(slug: str, grid: Grid) -> Run:
    """The run of that name; any threshold and seed, but a known set-up and method, else `UserError`."""
    if match := re.fullmatch(r"(alone|start)-(\w+)(?:\+(\w+))?-s(\d+)", slug):
        method, role, variant, seed = match.groups()
        if role not in grid.roles:
            raise UserError(f"run {slug!r}: {unknown('model', role, grid.roles)}")
        run = Run(role, method, None, "vertical", int(seed), variant or "")
    elif match := re.fullmatch(r"(\w+)-([a-z]\w*)(?:-g([\d.]+))?-([a-z]+)(?:\+(\w+))?-s(\d+)", slug):
        setup, method, g, split, variant, seed = match.groups()
        for kind, given, known in [
            ("set-up", setup, grid.setups),
            ("method", method, [m for m in METHODS if m != "alone"]),
            ("split", split, grid.splits),
        ]:
            if given not in known:
                raise UserError(f"run {slug!r}: {unknown(kind, given, known)}")
        if METHODS[method].filtered != (g is not None):
            needs = "needs its threshold, e.g. -g50" if g is None else "doesn't filter: leave out -g"
            raise UserError(f"run {slug!r}: method {method} {needs}")
        try:
            threshold = None if g is None else float(g)
        except ValueError:
            raise UserError(f"run {slug!r}: threshold g{g} is not a number") from None
        run = Run(setup, method, threshold, split, int(seed), variant or "")
    else:
        raise UserError(
            f"run {slug!r}: not a run's name; they read "
            "{setup}-{method}[-g{threshold}]-{split}[+{variant}]-s{seed}, "
            "e.g. size_base-ftis-g50-vertical-s42, or alone-{model}-s{seed}"
        )
    if run.variant and (run.variant not in grid.variants or method == "start"):
        raise UserError(f"run {slug!r}: {unknown('variant', run.variant, grid.variants)}")
    if run.slug != slug:
        raise UserError(f"run {slug!r}: write it {run.slug}")
    return run


def braces(pattern: str) -> list[str]:
    """a{b,c} -> ab, ac."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    parts = match[1].split(",")
    return [p for part in parts for p in braces(pattern[: match.start()] + part + pattern[match.end() :])]


def matches(cell: str, patterns: Sequence[str]) -> bool:
    """Whether a run's name without its seed is one of the patterns: * and {a,b} as in a shell."""
    return any(fnmatchcase(cell, p) for text in patterns for p in braces(text))


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(float(number))
