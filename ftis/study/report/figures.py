"""The report's section on figures: each with what to look for, and where its curves end."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ftis.stats import t_interval
from ftis.study.figures import figure_note, figure_title, summarise
from ftis.study.report.parts import (
    EACH_BY_ITSELF,
    Block,
    Fold,
    Source,
    Table,
    Text,
    Words,
    attempt,
    by_difference,
    interval,
    number,
    percent,
    points,
)
from ftis.suite.suite import Suite

DECODINGS = {"greedy": "greedy", "sampled": "at T = 1"}


def figures(source: Source, words: Words) -> list[Block]:
    names = [name for name in Suite.load().grid.artefacts if name.startswith("fig")]
    there, missing = source.split(names, "{}.csv")
    return [block for name in there for block in attempt(figure, source, name, words)] + missing


def figure(source: Source, name: str, words: Words) -> list[Block]:
    needs = ["tier", "run", "method", "g", "split", "seed", "node", "role", "label", "step", "value"]
    needs += ["decoding", "series", "problems", "samples"]
    data = source.csv(f"{name}.csv", needs, dtype={"g": str, "split": str})
    data = data.fillna({"g": "", "split": ""})
    title = figure_title(name, data)
    ours: list[Text] = []
    rows: list[list[str] | str] = []
    for how, said in DECODINGS.items():
        part = data[data["decoding"] == how]
        if not part.empty:
            found, compared, step, reference = endings(part, words.references)
            rows += [f"Accuracy {said} (%), differences to {reference} in points", *found]
            ours.append(
                Text(
                    f"{by_difference(compared, reference)} {EACH_BY_ITSELF}",
                    f"After iteration {step}, {said}, in points:",
                )
            )
    where, paper = words.figures.get(name, ("", ""))
    seen = [Text(f"{where}. The paper: {paper}.", "What to see:")] if where else []
    alt = (
        "Line chart, a panel a model: validation accuracy by iteration of "
        f"{', '.join(data['series'].unique())}."
    )
    heads = ["Model", "Series", "Seeds", "Mean of all steps", "At the end", "Difference", "95 % interval"]
    note = figure_note(data, summarise(data[data["decoding"] == data["decoding"].iloc[0]]))
    return [
        source.image(f"{name}.png", title, alt, [*seen, *ours]),
        Fold(f"Numbers of {title.split(':')[0]}", [Table(heads, rows, note)]),
    ]


def endings(data: pd.DataFrame, references: Sequence[str]) -> tuple[list[list[str]], list[tuple], int, str]:
    """Where curves end: rows of a table, the differences to one of them, the step, which one that is.

    The end is the last step that every curve has. Differences are paired by seed.
    """
    summary = summarise(data)
    step = int(summary.groupby(["series", "role"])["step"].max().min())
    first = next((name for name in references if name in set(data["series"])), data["series"].iloc[0])
    rows, compared = [], []
    for (role, label), curves in data[data["step"] == step].groupby(["role", "label"], sort=False):
        curves = curves.set_index("seed")
        lone = curves.loc[curves["series"] == first, "value"]
        for series, curve in curves.groupby("series", sort=False):
            same = (summary["series"] == series) & (summary["role"] == role)
            path = summary[same & (summary["step"] <= step)]
            gain = (curve["value"] - lone).dropna()
            ends = t_interval(gain)
            difference = ["–", "–"]
            if series != first and len(gain):
                compared.append((series, label, gain.mean(), *ends))
                difference = [points(gain.mean()), interval(*ends) or "–"]
            over, end = percent(path["mean"].mean()), percent(curve["value"].mean())
            rows.append([label, series, number(len(curve)), over, end, *difference])
    return rows, compared, step, "alone" if first == "Alone" else first
