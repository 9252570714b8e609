"""Options that several commands share, and the kinds of their values."""

from __future__ import annotations

import argparse
import contextlib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftis.config import RunConfig


@dataclass(frozen=True)
class Option:
    """Names and settings of an argparse argument."""

    names: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)


def option(*names: str, **settings: Any) -> Option:
    return Option(names, settings)


@dataclass(frozen=True)
class Command:
    """What a command is called, does and takes."""

    name: str
    run: Callable[[argparse.Namespace], None]
    about: str
    options: tuple[Option, ...] = ()


def whole(text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number from {least}, given {text!r}")
    return int(text)


def positive(text: str) -> int:
    return whole(text, least=1)


def not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number from 0, given {text!r}")
    return value


def temperature(text: str) -> float:
    value = not_negative(text)
    if 0 < value < 1e-6:
        raise argparse.ArgumentTypeError(f"must be 0 (greedy) or from 1e-6, given {text!r}")
    return value


def assignment(text: str) -> tuple[str, Any]:
    """NAME=VALUE of `--set`: a setting's dotted name, and its value as YAML."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, e.g. optim.warmup=5, given {text!r}")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError:
        raise argparse.ArgumentTypeError(f"{name}: {value!r} is no YAML value") from None


TIER = option(
    "--tier",
    required=True,
    help="smoke, tiny, small, paper or a tier of your own in workflow/config/tiers",
)
RUN = option(
    "--run", required=True, metavar="NAME", help="a run of the grid, e.g. size_base-ftis-g50-vertical-s42"
)
RUNS = option("--run", action="append", default=[], metavar="NAME", help="a run to read; repeat it")
RUNS_DIR = option(
    "--runs-dir", type=Path, metavar="DIR", help="where the runs lie (default: results/TIER/runs)"
)
OUT = option("--out", type=Path, required=True, metavar="DIR", help="folder to write to")
SET = option(
    "--set", type=assignment, action="append", default=[], metavar="NAME=VALUE",
    help="change a setting by its dotted name, e.g. optim.warmup=5 or nodes.0.learning_rate=1e-6; repeat it",
)  # fmt: skip


def grid_run(arguments: argparse.Namespace) -> RunConfig:
    """The settings of the run of the grid that --tier and --run name."""
    from ftis.suite.suite import Suite

    suite = Suite.load()
    if note := suite.backend_note(arguments.tier):
        logging.getLogger(__name__).info(note)
    return suite.resolve(arguments.tier, suite.run(arguments.run))


def run_folder(arguments: argparse.Namespace) -> Path:
    return (arguments.runs_dir or Path("results", arguments.tier, "runs")) / arguments.run


def gpus(
    arguments: argparse.Namespace, rule: str, config: RunConfig
) -> contextlib.AbstractContextManager[Any]:
    """A lease of as many GPUs as the tier gives a job of that rule; without a tier nothing is leased or
    hidden."""
    from ftis.suite.gpus import lease

    return lease(gpu_count(arguments, rule, config)) if arguments.tier else contextlib.nullcontext()


def gpu_count(arguments: argparse.Namespace, rule: str, config: RunConfig) -> int:
    """GPUs that the tier gives a job of that rule; none where the settings say that all nodes are on the
    CPU."""
    from ftis.suite.suite import Suite

    run = Suite.load().run(arguments.run) if getattr(arguments, "run", None) else None
    on_cpu = all(node.device == "cpu" for node in config.nodes)
    return 0 if on_cpu else Suite.load().resources(arguments.tier, rule, run).gpus


def use_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)
