"""A tier's report: one HTML file that holds everything it shows and opens without a network.

It is a function of `paper_figures/{tier}` (and `paper_figures/exact`) alone, so it can be made again from
published results. Every input may be missing; its place then says how to make it. A section is a list of
the blocks of `ftis.study.report.parts`; `report.html.jinja` escapes their text and decides how they look.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ftis.errors import UserError
from ftis.study.paper import write_files
from ftis.study.report.graders import graders
from ftis.study.report.parts import (
    Absent,
    Answers,
    Block,
    Code,
    Fold,
    Missing,
    Source,
    Table,
    Text,
    Tiles,
    attempt,
    count,
    method_name,
    method_place,
    number,
    percent,
    setup_place,
    setup_title,
    short,
)
from ftis.study.report.results import (
    ablations,
    claims,
    economics,
    exact_study,
    figures,
    paper_against_ours,
    what_differs,
)
from ftis.suite.suite import Suite

PHASES = {"sample": "sampling", "grade": "grading", "exchange": "exchange", "update": "updates"}
QUESTIONS = 6
"""Shown openly; the others are folded away."""
LONGEST = 1500
"""Characters of an answer that are shown."""


def make_report(tier: str, folder: Path, exact: Path | None, out: Path) -> None:
    """Write the report of `tier` to `out`.

    It reads `folder` (paper_figures/{tier}) and `exact` (paper_figures/exact) and nothing else: the same
    inputs give the same bytes. What is missing is named in the report, with the command that makes it.
    """
    source = Source(Path(folder), f"paper_figures/{tier}")
    study = None if exact is None else Source(Path(exact), "paper_figures/exact")
    sections: list[tuple[str, str, list[Block]]] = [
        ("runs", "What was run", attempt(what_was_run, source)),
        ("paper", "Paper against ours", paper_against_ours(source)),
        ("graders", "Ours and math-verify's verdicts", attempt(graders, source)),
        ("claims", "The paper's claims", attempt(claims, source)),
        ("differs", "What does not reproduce", what_differs(source)),
        ("figures", "Figures", figures(source)),
        ("ablations", "Ablations", ablations(source)),
        ("exact", "Exact study", exact_study(study)),
        ("economics", "Economics", attempt(economics, source)),
        ("answers", "What the models write", attempt(completions, source)),
        ("provenance", "Provenance", provenance(source)),
    ]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    page = environment.get_template("report.html.jinja").render(
        tier=tier, about=about(tier), glance=attempt(glance, source), sections=sections
    )
    write_files({Path(out): page.encode()})


def about(tier: str) -> str:
    """The tier's own line about itself; nothing for a tier that isn't in the workflow."""
    try:
        text = Suite.load().tier(tier).about
    except UserError:
        return ""
    return f"{text[:1].upper()}{text[1:]}."


def glance(source: Source) -> list[Block]:
    """The verdicts, counted; nothing before there are any."""
    try:
        verdicts = source.csv("claims.csv", ["verdict"])["verdict"]
    except Absent:
        return []
    words = {"holds": f"of {count(len(verdicts), 'claim')} hold", "fails": "fail", "undecided": "undecided"}
    return [Tiles([(number(int((verdicts == verdict).sum())), word) for verdict, word in words.items()])]


# ---------------------------------------------------------------- what was run


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


# ---------------------------------------------------------------- what the models write


def completions(source: Source) -> list[Block]:
    needs = [
        "method",
        "role",
        "label",
        "seed",
        "benchmark",
        "id",
        "question",
        "gold",
        "text",
        "correct",
        "format",
    ]
    texts = ("id", "question", "gold", "text")
    table = source.csv("tidy/completions.csv", needs, dtype=dict.fromkeys(texts, str), keep_default_na=False)
    for column in ("correct", "format"):
        table[column] = table[column].astype(str).str.lower().isin(["true", "1", "1.0"])
    table["place"] = table["method"].map(method_place)
    rates: list[list[str] | str] = []
    for label, models in table.groupby("label", sort=False):
        rates.append(str(label))
        for _, group in models.groupby("place"):
            shares = (percent(group[column].mean()) for column in ("correct", "format"))
            rates.append([method_name(group["method"].iloc[0]), number(len(group)), *shares])
    ranked = []
    for keys, group in table.groupby(["label", "benchmark", "id", "seed"], sort=False):
        group = group.sort_values("place", kind="stable").drop_duplicates("method")
        right = dict(zip(group["method"], group["correct"] & group["format"], strict=True))
        harmed = right.get("alone", False) and not right.get("nois", True)
        ranked.append((not harmed, len(ranked), answers(keys, group)))
    ranked.sort(key=lambda item: item[:2])
    harmed = sum(not kept for kept, _, _ in ranked)
    shown = [block for _, _, block in ranked]
    heads = ["Method", "Answers", "Right (%)", "In the format (%)"]
    blocks: list[Block] = [
        Text(
            "The same question, answered by a model before training (start), trained alone and under several "
            f"methods. Of the {count(len(ranked), 'question')} here, the {harmed} whose answer is right and "
            "in the format alone and not under NoIS come first: they show what harm looks like, not "
            "how often it happens."
        ),
        Table(
            heads,
            rates,
            "Of the answers kept here, too few for a comparison: scores are under “Paper against ours”.",
        ),
        *shown[:QUESTIONS],
    ]
    if rest := shown[QUESTIONS:]:
        blocks.append(Fold(count(len(rest), "more question"), rest))
    return blocks


def answers(keys: tuple, group: pd.DataFrame) -> Answers:
    label, benchmark, name, seed = keys
    where = {"id": "in distribution", "ood": "out of distribution"}.get(benchmark, benchmark)
    said = [
        (method_name(row.method), bool(row.correct), bool(row.format), clipped(row.text))
        for row in group.itertuples()
    ]
    first = group.iloc[0]
    return Answers(f"{label}, {where}, {name}, seed {seed}", first["question"], first["gold"], said)


def clipped(text: str) -> str:
    more = len(text) - LONGEST
    return text if more <= 0 else f"{text[:LONGEST]}… ({count(more, 'character')} more)"


# ---------------------------------------------------------------- provenance


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
