"""The report's section on what the models write."""

from __future__ import annotations

import pandas as pd

from ftis.study.report.parts import (
    Answers,
    Block,
    Fold,
    Source,
    Table,
    Text,
    count,
    method_name,
    method_place,
    number,
    percent,
)

QUESTIONS = 6
"""Shown openly; the others are folded away."""
LONGEST = 1500
"""Characters of an answer that are shown."""


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
