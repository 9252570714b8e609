"""What the claims are tested on: measures of runs by seed, and shares of samples that filters dropped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from ftis.method.methods import METHODS
from ftis.study.verdicts import Measure, Values
from ftis.suite.grid import Run

WINDOWS = {"early": (0, 1 / 4), "middle": (1 / 2, 3 / 4), "last": (3 / 4, 1)}
"""Validation checkpoints that are averaged, as shares of a run's iterations, the left end excluded. `middle`
and `last` are as long as each other and chosen before any curve is seen; a fall from a run's peak would be
there without any fall, since a peak is picked for its noise."""


def frame(tables: Mapping[str, pd.DataFrame], name: str, columns: Sequence[str]) -> pd.DataFrame:
    """Those columns of a tidy table; empty where it or they are missing."""
    return tables.get(name, pd.DataFrame()).reindex(columns=list(columns))


def grid_runs(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The table `runs` without variants and untrained models, and with the column cell."""
    columns = ["run", "setup", "method", "g", "split", "variant", "seed", "node", "role", "iterations"]
    runs = frame(tables, "runs", [*columns, "tokens_generated", "bytes_sent"])
    runs = runs[(runs["variant"].isna() | runs["variant"].eq("")) & runs["method"].isin(METHODS)].copy()
    thresholds = pd.to_numeric(runs["g"], errors="coerce")
    runs["cell"] = [
        Run(row.setup, row.method, None if math.isnan(g) else g, row.split, row.seed).cell
        for row, g in zip(runs.itertuples(), thresholds, strict=True)
    ]
    return runs


def values(tables: Mapping[str, pd.DataFrame], decoding: str = "sampled") -> Values:
    """Every measure of the tables under a decoding (sampled: at T = 1; greedy), by seed."""
    keys = ["run", "node"]
    runs = grid_runs(tables)[[*keys, "cell", "role", "seed", "iterations"]]
    scores = frame(tables, "scores", [*keys, "benchmark", "decoding", "accuracy"])
    scores = scores[(scores["decoding"] == decoding) & scores["benchmark"].isin(["id", "ood"])]
    parts = [scores.assign(what=scores["benchmark"].replace("id", "end")).merge(runs, on=keys)]
    curves = frame(tables, "validation", [*keys, "step", decoding]).merge(runs, on=keys)
    for what, (after, until) in WINDOWS.items():
        inside = curves["step"].between(after * curves["iterations"], until * curves["iterations"], "right")
        parts.append(curves[inside].assign(what=what, accuracy=curves[decoding]))
    found: dict[Measure, dict[int, float]] = {}
    for part in parts:
        means = part.dropna(subset="accuracy").groupby(["cell", "role", "what", "seed"])["accuracy"].mean()
        for (cell, role, what, seed), value in means.items():
            found.setdefault((cell, role, what), {})[int(seed)] = float(value)
    return found


def filtered_shares(tables: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """By cell with a filter: the mean share of foreign samples that it dropped, over iterations, nodes and
    seeds."""
    steps = frame(tables, "training", ["run", "node", "filtered_foreign"]).dropna(subset="filtered_foreign")
    runs = grid_runs(tables)
    runs = runs[runs["method"].isin([name for name, method in METHODS.items() if method.filtered])]
    steps = steps.merge(runs[["run", "node", "cell"]], on=["run", "node"])
    return steps.groupby("cell")["filtered_foreign"].mean().to_dict()
