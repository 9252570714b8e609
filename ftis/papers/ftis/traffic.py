"""The paper's tenth claim: how many bytes a token costs. It is counted, so it needs no test."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from ftis.papers.ftis.measures import frame, grid_runs

TRAFFIC = (10, "8 bytes a token", "about 8 bytes a token: id and log-prob")


def traffic(tables: Mapping[str, pd.DataFrame]) -> dict[str, object]:
    """Claim 10, exact: 8 bytes a token for each of a node's peers are enough, in every run.

    The effect is bytes sent / (tokens generated x peers) over all runs, low and high its range over nodes.
    With compressed messages it is below 8 with everything, and the claim holds. Plain ones are above it by
    what a message and a completion cost whatever their length. That part is the same in each iteration of a
    run, so the slope of bytes over tokens is the cost of a token, which may then be 8, within 0.01. Where
    iterations don't tell (their table is missing), an effect up to 10 % above 8 has to do.
    """
    runs = grid_runs(tables)
    runs["peers"] = runs.groupby("run")["node"].transform("count") - 1
    runs = runs[(runs["peers"] > 0) & (runs["tokens_generated"] > 0)].copy()
    row = {"effect": math.nan, "low": math.nan, "high": math.nan, "verdict": "undecided", "needed_seeds": "1"}
    row |= {"n_seeds": runs["seed"].nunique(), "n_runs": runs["run"].nunique(), "test": "exact"}
    row |= {"unit": "bytes a token", "note": "missing: runs of a pair"}
    if runs.empty:
        return row
    runs["tokens"] = runs["tokens_generated"] * runs["peers"]
    average = runs["bytes_sent"] / runs["tokens"]
    row["effect"] = runs["bytes_sent"].sum() / runs["tokens"].sum()
    row["low"], row["high"] = average.min(), average.max()
    if row["high"] <= 8:
        row["verdict"], row["note"] = "holds", "with what messages and completions cost"
        return row
    steps = frame(tables, "training", ["run", "node", "step", "tokens_generated", "bytes_sent"])
    steps = steps.merge(runs[["run", "node", "peers"]], on=["run", "node"])
    steps["x"], steps["y"] = steps["tokens_generated"], steps["bytes_sent"] / steps["peers"]
    steps[["x", "y"]] -= steps.groupby(["run", "node"])[["x", "y"]].transform("mean")
    sums = (steps.assign(xy=steps["x"] * steps["y"], xx=steps["x"] ** 2)).groupby(["run", "node"])[
        ["xy", "xx"]
    ]
    slopes = sums.sum().query("xx > 0").eval("xy / xx")
    overhead = f"overhead of messages and completions {100 * (row['effect'] / 8 - 1):.1f} %"
    if slopes.empty:
        row["verdict"] = "holds" if row["effect"] / 8 - 1 <= 0.1 else "fails"
        row["note"] = f"{overhead}; missing: iterations with different numbers of tokens"
    else:
        row["verdict"] = "holds" if slopes.max() <= 8.01 else "fails"
        row["note"] = f"a further token {slopes.min():.4g} to {slopes.max():.4g} bytes; {overhead}"
    return row
