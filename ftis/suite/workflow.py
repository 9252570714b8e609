"""What the workflow may be told (`--config`), and the schemas of all settings files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, TypeAdapter

from ftis.config import RunConfig
from ftis.errors import UserError, unknown
from ftis.settings import parse, settings
from ftis.suite.grid import Grid
from ftis.suite.suite import Suite
from ftis.suite.tiers import SET_HERE, Tier, existing


@settings
class Config:
    """`--config` of the workflow. It decides what the default target means; a path names its own tier."""

    tier: str = "smoke"
    """File in workflow/config/tiers."""
    grid: Literal["paper", "full"] = "paper"
    """paper: the runs that figures and tables need; full: the whole product."""
    seeds: int | None = Field(default=None, ge=1)
    """How many of the fixed list; None: the tier's own number."""
    ablations: Literal["none", "all"] | tuple[str, ...] = "none"
    """Names of ablations that the default target includes."""
    methods: str | None = None
    """A Python file that registers methods; they then stand in the grid."""
    models: dict[str, str] = Field(default_factory=dict)
    """Local copies of hub models, by hub name."""


def load_config(given: dict[str, Any]) -> Config:
    """The workflow's config, checked against the suite. Raises UserError that names the key."""
    config, suite = parse(TypeAdapter(Config), given, "the workflow's config"), Suite.load()
    suite.seed_list(config.tier, config.seeds)
    for name in config.ablations if isinstance(config.ablations, tuple) else ():
        if name not in suite.ablations(config.tier):
            raise UserError(f"ablations: {unknown('ablation', name, suite.ablations(config.tier))}")
    hub = {model.model for tier in suite.tiers for model in suite.tier(tier).models.values() if model.model}
    for name in existing(config.models):
        if name not in hub:
            raise UserError(f"models: {unknown('hub model', name, hub)}")
    return config


def schemas() -> dict[str, str]:
    """JSON Schema of each settings file, by file name under workflow/schemas; written by `python -m
    ftis.suite.workflow`."""
    found = {
        name: TypeAdapter(kind).json_schema()
        for name, kind in {"config": Config, "grid": Grid, "tier": Tier, "run": RunConfig}.items()
    }
    tier = found["tier"]
    for field, (kind, set_here) in SET_HERE.items():
        part = TypeAdapter(kind).json_schema()
        tier["$defs"] |= part.pop("$defs", {})
        kept = {k: v for k, v in part["properties"].items() if k not in set_here}
        tier["properties"][field] |= {"properties": kept, "additionalProperties": False}
    head = "# Made from the classes in ftis/suite and ftis/config.py: make schemas\n"
    return {
        f"{name}.schema.yaml": head + yaml.safe_dump(schema, sort_keys=False)
        for name, schema in found.items()
    }


if __name__ == "__main__":
    for file, text in schemas().items():
        (Path("workflow/schemas") / file).write_text(text)
