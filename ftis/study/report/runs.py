"""The report's sections on what was run, and on what it was run with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ftis.study.report.parts import (
    Block,
    Code,
    Fold,
    Missing,
    Source,
    Table,
    Text,
    Tiles,
    attempt,
    method_name,
    method_place,
    number,
    setup_place,
    setup_title,
    short,
)

PHASES = {"sample": "sampling", "grade": "grading", "exchange": "exchange", "update": "updates"}


def read_runs(source: Source) -> pd.DataFrame:
    """`tidy/runs.csv` without the models that weren't trained."""
    needs = ["run", "setup", "method", "g", "split", "variant", "seed", "label", "iterations"]
    texts = {"g": str, "split": str, "variant": str, "commit": str, "recipe": str}
    runs = source.csv(
        "tidy/runs.csv", [*needs, "tokens_generated", "tokens_trained", "bytes_sent"], dtype=texts
    )
    runs = runs.fillna({name: "" for name in texts if name in runs})
    return runs[runs["method"] != "start"].copy()


def what_was_run(source: Source) -> list[Block]:
    runs = read_runs(source)
    seconds = {phase: runs[f"seconds_{phase}"].sum() for phase in PHASES if f"seconds_{phase}" in runs}
    total = sum(seconds.values())
    tiles = [
        (number(runs["run"].nunique()), "training runs"),
        (number(runs["seed"].nunique()), "seeds"),
        (number(runs["label"].nunique()), "models"),
        (short(runs["tokens_generated"].sum()), "tokens generated"),
        (short(runs["tokens_trained"].sum()), "tokens trained on"),
        (short(runs["bytes_sent"].sum(), "B"), "sent between nodes"),
    ]
    if total:
        tiles.append((f"{total / 3600:.1f} h", "node time"))
    runs["title"] = list(map(setup_title, runs["method"], runs["setup"]))
    runs["place"] = list(map(setup_place, runs["method"], runs["setup"]))
    runs["order"] = runs["method"].map(method_place)
    rows: list[list[str] | str] = []
    for (_, title), pair in runs.groupby(["place", "title"]):
        rows.append(f"{title}: {', '.join(pair['label'].drop_duplicates())}")
        for _, group in pair.groupby("order"):
            rows.append(
                [
                    method_name(group["method"].iloc[0]),
                    ", ".join(sorted(set(group["g"]) - {""}, key=float)) or "–",
                    ", ".join(sorted(set(group["split"]) - {""}, reverse=True)) or "–",
                    number(len(set(group["variant"]) - {""})),
                    number(group["run"].nunique()),
                    number(group["seed"].nunique()),
                    ", ".join(map(number, sorted(set(group["iterations"])))),
                ]
            )
    heads = ["Method", "g", "Split", "Variants", "Runs", "Seeds", "Iterations"]
    if not any(runs["variant"]):
        heads.remove("Variants")
        rows = [row if isinstance(row, str) else row[:3] + row[4:] for row in rows]
    blocks: list[Block] = [Tiles(tiles), Table(heads, rows)]
    if total:
        shares = ", ".join(f"{PHASES[phase]} {100 * value / total:.0f} %" for phase, value in seconds.items())
        blocks.append(Text(f"Node time is the wall-clock time of each node's own work, summed: {shares}."))
    return blocks


def provenance(source: Source) -> list[Block]:
    return [*attempt(recorded, source), *attempt(commits, source)]


def recorded(source: Source) -> list[Block]:
    try:
        found = json.loads((source.folder / "provenance.json").read_text())
    except OSError:
        return [Missing(*source.absent("provenance.json").args)]
    rows: list[list[str] | str] = []
    folds: list[Block] = []
    for key, value in found.items():
        title = key.replace("_", " ").capitalize()
        text = flat(value)
        if len(text) <= 400:
            rows.append([title, text])
        else:
            folds.append(Fold(title, [Code(json.dumps(value, indent=1, ensure_ascii=False))]))
    return [Table(["What", "Value"], rows), *folds]


def commits(source: Source) -> list[Block]:
    runs = read_runs(source)
    counts = runs.groupby("commit")["run"].nunique()
    rows = [[str(commit) or "unknown", number(count)] for commit, count in counts.items()]
    made = Table(["Commit", "Runs"], rows, "What the runs were made with (+: uncommitted changes).")
    recipes = runs[["run", "recipe"]].drop_duplicates().astype(str).to_numpy().tolist()
    return [made, Fold("Recipe of each run", [Table(["Run", "Recipe"], recipes)])]


def flat(value: Any) -> str:
    """Nested values in one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {flat(item)}" for key, item in value.items()) or "–"
    if isinstance(value, list):
        return ", ".join(map(flat, value)) or "–"
    return number(value)
