"""The report's table of every benchmark of every kind of run."""

from __future__ import annotations

import pandas as pd

from ftis.study.report.parts import (
    Block,
    Fold,
    Source,
    Table,
    method_name,
    method_place,
    number,
    percent,
    setup_place,
    setup_title,
)
from ftis.suite.suite import Suite


def all_scores(source: Source) -> list[Block]:
    """Mean and spread over seeds of every benchmark, of every kind of run."""
    kinds = ["setup", "method", "g", "split", "variant", "role"]
    texts = dict.fromkeys(kinds, str)
    runs = source.csv("tidy/runs.csv", ["run", "node", "seed", "label", *kinds], dtype=texts)
    runs[kinds] = runs[kinds].fillna("")
    needs = ["run", "node", "benchmark", "decoding", "accuracy", "format_rate"]
    scores = source.csv("tidy/scores.csv", needs)[needs].merge(runs, on=["run", "node"])
    columns = list(dict.fromkeys(zip(scores["benchmark"], scores["decoding"], strict=True)))
    roles = {role: place for place, role in enumerate(Suite.load().grid.roles)}
    order = {
        "setup": list(map(setup_place, scores["method"], scores["setup"])),
        "method": scores["method"].map(method_place),
        "g": pd.to_numeric(scores["g"]).fillna(0),
        "split": scores["split"] == "horizontal",
        "variant": scores["variant"],
        "role": scores["role"].map(roles),
    }
    scores = scores.loc[pd.DataFrame(order).sort_values(kinds, kind="stable").index]
    rows: list[list[str] | str] = []
    for (setup, method, g, split, variant, _), group in scores.groupby(kinds, sort=False):
        if (title := setup_title(method, setup)) not in rows:
            rows.append(title)
        details = ", ".join(filter(None, [g and f"g = {g}", split, variant])) or "–"
        cells = [group["label"].iloc[0], method_name(method), details, number(group["seed"].nunique())]
        for benchmark, decoding in columns:
            chosen = group[(group["benchmark"] == benchmark) & (group["decoding"] == decoding)]
            cells += [mean_and_spread(chosen["accuracy"]), percent(chosen["format_rate"].mean())]
        rows.append(cells)
    heads = ["Model", "Method", "Details", "Seeds"]
    for benchmark, decoding in columns:
        name = {"id": "In distribution", "ood": "Out of distribution"}.get(benchmark, benchmark)
        heads += [f"{name}, {decoding}", "Format"]
    caption = (
        "Accuracy (%), mean ± standard deviation over seeds, and the share of answers in the format (%)."
    )
    return [Fold("Every benchmark of every kind of run", [Table(heads, rows, caption)])]


def mean_and_spread(values: pd.Series) -> str:
    return percent(values.mean()) + (f" ± {percent(values.std(ddof=1))}" if len(values) > 1 else "")
