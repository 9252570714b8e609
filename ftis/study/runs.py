"""Reading finished runs: tidy tables of their curves and scores, and errors that say how to make what is
missing.

Everything is a function of run folders (`results/{tier}/runs/{run}`). Accuracies are fractions, as in the
files they come from.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ftis.errors import UserError
from ftis.suite.grid import SINGLE
from ftis.suite.suite import Suite

RUN_COLUMNS = ["run", "setup", "method", "g", "split", "variant", "seed"]


def make_target(path: Path) -> str:
    """How to make a missing file of a run: the Snakemake command with the path's target."""
    parts = path.parts
    if "results" in parts:
        start = len(parts) - 1 - parts[::-1].index("results")
        parts = parts[start:]
    return f"make it with `snakemake -c1 {Path(*parts)}`"


def read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: no such file; {make_target(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: can't be read ({error})") from None


def parse_json(text: str, where: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON ({error.msg}); delete it and {make_target(path)}") from None


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Leaves of a nested record as (dotted name, number); nulls, texts and booleans are passed over."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{name}.{index}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def load_curves(run_dirs: Sequence[Path], tier: str, metrics: Collection[str] | None = None) -> pd.DataFrame:
    """Tidy curves of a tier's runs: one row a (run, node, step, metric).

    Columns: run, setup, method, g, split, variant, seed, node, role, label, step, metric, value. Metrics are
    named by their place in metrics.jsonl, joined by dots and without `validation`, e.g.
    `greedy.accuracy` (a fraction), `reward`, `filtered.foreign`. `metrics` keeps only those named.
    """
    rows, called = [], Suite.load().labels(tier)
    for folder in run_dirs:
        run = run_columns(folder.name)
        path = folder / "metrics.jsonl"
        for number, line in enumerate(read_text(path).splitlines(), start=1):
            record = parse_json(line, f"{path}, line {number}", path)
            try:
                for node in record["nodes"]:
                    rest = {k: v for k, v in node.items() if k not in ("node", "name", "label", "validation")}
                    who = named(node, called)
                    for metric, value in _numbers({**(node.get("validation") or {}), **rest}):
                        if metrics is None or metric in metrics:
                            rows.append(
                                {**run, **who, "step": record["step"], "metric": metric, "value": value}
                            )
            except (KeyError, TypeError, AttributeError) as error:
                raise UserError(
                    f"{path}, line {number}: lacks {error}; delete it and {make_target(path)}"
                ) from None
    return pd.DataFrame(rows, columns=[*RUN_COLUMNS, "node", "role", "label", "step", "metric", "value"])


def load_scores(run_dirs: Sequence[Path], tier: str) -> pd.DataFrame:
    """Tidy scores of a tier's runs: one row a (run, node, benchmark).

    Columns: run, setup, method, g, split, variant, seed, node, role, label, benchmark (id or ood), dataset,
    accuracy, low, high, n, format_rate, truncated, math_verify (accuracy by math-verify's own verdict).
    """
    fields = ["dataset", "accuracy", "low", "high", "n", "format_rate", "truncated"]
    rows, called = [], Suite.load().labels(tier)
    for folder in run_dirs:
        run = run_columns(folder.name)
        path = folder / "scores.json"
        scores = parse_json(read_text(path), str(path), path)
        try:
            for node in scores["nodes"]:
                who = named(node, called)
                for benchmark, score in node["benchmarks"].items():
                    found = {field: score.get(field) for field in fields}
                    found["accuracy"] = float(score["accuracy"])
                    found["math_verify"] = float(score["math_verify"]["accuracy"])
                    rows.append({**run, **who, "benchmark": benchmark, **found})
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: lacks {error}; delete it and {make_target(path)}") from None
    return pd.DataFrame(
        rows, columns=[*RUN_COLUMNS, "node", "role", "label", "benchmark", *fields, "math_verify"]
    )


def named(node: Mapping[str, Any], called: Mapping[str, str]) -> dict[str, Any]:
    """A node of a run's files as the columns node, role and label: as its role is called now, else as it
    was."""
    role, label = node["name"], node["label"]
    return {"node": node["node"], "role": role, "label": called.get(role, label)}


def run_columns(slug: str) -> dict[str, Any]:
    """A run's name as the columns `RUN_COLUMNS`.

    g is text ("50"), empty where there is no filter; split is empty for a run alone, whose setup is its role.
    variant is that of an ablation, else empty.
    """
    run = Suite.load().run(slug)
    g = "" if run.threshold is None else f"{run.threshold:g}"
    split = "" if run.method in SINGLE else run.split
    values = (slug, run.setup, run.method, g, split, run.variant, run.seed)
    return dict(zip(RUN_COLUMNS, values, strict=True))
