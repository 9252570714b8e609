"""The paper's report of a tier: what the paper says, set beside what the tier shows.

It is a function of `paper_figures/{tier}` (and `paper_figures/exact`) alone, so it can be made again from
published results. Every input may be missing; its place then says how to make it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from ftis.study.report.ablations import ablations
from ftis.study.report.answers import completions
from ftis.study.report.claims import claims, claims_that_differ, glance
from ftis.study.report.economics import economics
from ftis.study.report.exact import exact_study
from ftis.study.report.figures import figures
from ftis.study.report.graders import graders
from ftis.study.report.page import Section, write_report
from ftis.study.report.parts import (
    Block,
    Fold,
    Points,
    Source,
    Table,
    Text,
    Words,
    attempt,
    count,
    interval,
    number,
    percent,
    points,
    seed_counts,
)
from ftis.study.report.runs import provenance, what_was_run
from ftis.study.report.scores import all_scores

PAIR = ("where F-TIS starts and ends against alone", "F-TIS ends level with alone, more slowly at first")
READING = {
    "fig1": ("how far from alone NoIS ends", "NoIS leaves both models worse than alone"),
    "fig2": (
        "the order of the three methods, and which of them reach alone",
        "TIS beats VIS on the larger model, and without the filter stays below alone",
    ),
    "fig3": (
        "how much of the gap between NoIS and alone the filter closes by itself",
        "F-NoIS removes most of NoIS's loss",
    ),
    **{f"fig{n}": PAIR for n in range(4, 10)},
    "fig10": (
        "which threshold leads early and which late, on each model",
        "a small g helps the small model early, a large g the large model late",
    ),
    "fig11": (
        "which method leads early and which late",
        "F-VIS starts faster and falls back late, F-TIS doesn't",
    ),
    "fig12": (
        "the gap between the two splits, on the larger model above all",
        "horizontal hurts the larger model, vertical doesn't",
    ),
}
WORDS = Words(
    figures=READING,
    references=("Alone", "F-TIS, g = 50", "F-TIS, vertical", "F-TIS"),
    claims="bytes have the range over nodes",
)


def make_report(tier: str, folder: Path, exact: Path | None, out: Path) -> None:
    """Write the report of `tier` to `out`.

    It reads `folder` (paper_figures/{tier}) and `exact` (paper_figures/exact) and nothing else: the same
    inputs give the same bytes. What is missing is named in the report, with the command that makes it.
    """
    source = Source(Path(folder), f"paper_figures/{tier}")
    study = None if exact is None else Source(Path(exact), "paper_figures/exact")
    sections: list[Section] = [
        ("runs", "What was run", attempt(what_was_run, source)),
        ("paper", "Paper against ours", paper_against_ours(source)),
        ("graders", "Ours and math-verify's verdicts", attempt(graders, source)),
        ("claims", "The paper's claims", attempt(claims, source, WORDS)),
        ("differs", "What does not reproduce", what_differs(source)),
        ("figures", "Figures", figures(source, WORDS)),
        ("ablations", "Ablations", ablations(source)),
        ("exact", "Exact study", exact_study(study)),
        ("economics", "Economics", attempt(economics, source)),
        ("answers", "What the models write", attempt(completions, source)),
        ("provenance", "Provenance", provenance(source)),
    ]
    write_report(tier, attempt(glance, source), sections, out)


def paper_against_ours(source: Source) -> list[Block]:
    return [*attempt(accuracies, source), *attempt(settings, source), *attempt(all_scores, source)]


def read_table2(source: Source) -> pd.DataFrame:
    numbers = ["paper_alone", "paper_ftis", "paper_difference", "alone", "ftis", "difference"]
    texts = ["pair", "paper_model", "model", "benchmark", "problems", "seeds"]
    return source.csv("table2.csv", [*texts, *numbers, "difference_low", "difference_high"])


def accuracies(source: Source) -> list[Block]:
    table = read_table2(source)
    both = "math_verify_alone" in table
    rows: list[list[str] | str] = []
    for pair, models in table.groupby("pair", sort=False):
        rows.append(str(pair))
        for row in models.itertuples():
            paper = (percent(row.paper_alone), percent(row.paper_ftis), points(row.paper_difference))
            ours = table2_cells(row)
            if both:
                by_other = table2_cells(row, "math_verify_")
                ours = [f"{cell}\n{below}" for cell, below in zip(ours, by_other, strict=True)]
            rows.append([row.paper_model, *paper, row.model, *ours])
    figures = ["Alone", "F-TIS", "Gain"]
    heads = ["Paper's model", *figures, "Our model", *figures, "95 % interval"]
    sets = sorted({f"{row.benchmark} ({number(row.problems)} problems)" for row in table.itertuples()})
    caption = (
        "Table 2: out-of-distribution accuracy (%) after training, alone and under F-TIS; gains in points. "
        f"Paper: MATH-500, one seed. Ours: {', '.join(sets)}, {seed_counts(table['seeds'])}; gains are "
        "paired by seed."
    )
    if both:
        caption += " Small, below ours: the same by math-verify's own verdict."
    return [Table(heads, rows, caption)]


def table2_cells(row: Any, by: str = "") -> list[str]:
    """Our accuracies alone and under F-TIS, the gain and its interval; `by` starts the columns of another
    grader."""
    alone, ftis, gain, low, high = (
        getattr(row, f"{by}{name}")
        for name in ("alone", "ftis", "difference", "difference_low", "difference_high")
    )
    return [percent(alone), percent(ftis), points(gain), interval(low, high) or "–"]


def settings(source: Source) -> list[Block]:
    table = source.csv("table1.csv", ["setting", "paper", "source", "ours"], dtype=str).fillna("–")
    caption = (
        "Sources: notes (public reading notes of the paper), code (its first author's public repository), "
        "seed (the summary that this reproduction started from)."
    )
    rows = table[["setting", "paper", "ours", "source"]].to_numpy().tolist()
    heads = ["Setting", "Paper", "Ours", "Source"]
    return [Fold("Table 1: settings, the paper's and ours", [Table(heads, rows, caption)])]


def what_differs(source: Source) -> list[Block]:
    """Claims that don't hold, and gains of Table 2 whose sign isn't the paper's."""
    return [*attempt(claims_that_differ, source), *attempt(gains_that_differ, source)]


def gains_that_differ(source: Source) -> list[Block]:
    table = read_table2(source)
    other = table[table["paper_difference"] * table["difference"] < 0]
    if other.empty:
        return [Text("No gain in Table 2 differs in sign from the paper's.")]
    listed = []
    for row in other.itertuples():
        ours = points(row.difference)
        if math.isnan(row.difference_low):
            ours += ", from one seed"
        else:
            zero = ", which includes 0" if row.difference_low <= 0 <= row.difference_high else ""
            ours += f" ({interval(row.difference_low, row.difference_high)}{zero})"
        listed.append(
            Text(f"paper {points(row.paper_difference)}, ours {ours}.", f"{row.pair}, {row.model}:")
        )
    blocks: list[Block] = [
        Text(f"{len(other)} of {count(len(table), 'gain')} in Table 2 differ in sign from the paper's:"),
        Points(listed),
    ]
    if (other["paper_model"] != other["model"]).any():
        blocks.append(
            Text("Models and problems here are others than the paper's, which this doesn't refute.")
        )
    return blocks
