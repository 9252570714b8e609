"""The report's section on ablations."""

from __future__ import annotations

import math

from ftis.study.report.parts import (
    EACH_BY_ITSELF,
    Absent,
    Block,
    Fold,
    Missing,
    Source,
    Table,
    Text,
    attempt,
    by_difference,
    interval,
    method_name,
    number,
    percent,
    points,
)
from ftis.suite.suite import Suite


def ablations(source: Source) -> list[Block]:
    listed = list(Suite.load().grid.ablations)
    others = {path.stem.removeprefix("ablation-") for path in source.folder.glob("ablation-*.csv")} - set(
        listed
    )
    there, missing = source.split([*listed, *sorted(others)], "ablation-{}.csv")
    return [block for name in there for block in attempt(ablation, source, name)] + missing


def ablation(source: Source, name: str) -> list[Block]:
    needs = ["label", "setup", "method", "g", "role", "seeds", "accuracy"]
    needs += [f"{measure}{end}" for measure in ("difference", "over_alone") for end in ("", "_low", "_high")]
    table = source.csv(f"ablation-{name}.csv", needs, dtype={"g": str}).fillna({"g": ""})
    known = Suite.load().grid.ablations.get(name)
    title = getattr(known, "title", name.replace("_", " ").capitalize())
    question = getattr(known, "question", "")
    table["who"] = table["model"] if "model" in table else table["role"]
    several = table.groupby("method")["g"].transform("nunique") > 1
    table["how"] = table["method"].map(method_name) + (", g = " + table["g"]).where(several, "")
    alike = table["how"].nunique() == 1
    # An ablation without variants compares runs of the grid: there is nothing but alone to hold them against.
    changed = table["difference"].notna().any()
    reference, measure = ("the unchanged run", "difference") if changed else ("alone", "over_alone")
    rows, compared = [], []
    for row in table.itertuples():
        value, *ends = (getattr(row, f"{measure}{end}") for end in ("", "_low", "_high"))
        cells = [row.how, row.label, row.who, number(row.seeds), percent(row.accuracy)]
        rows.append([*cells, points(value), interval(*ends) or "–"])
        if not math.isnan(ends[0]):
            what = row.how if not changed else row.label if alike else f"{row.how}, {row.label}"
            compared.append((what, row.who, value, *ends))
    heads = ["Method", "Variant", "Model", "Seeds", "Accuracy (%)", "Difference", "95 % interval"]
    caption = [
        *([Text(question, "What to see:")] if question else []),
        Text(f"{by_difference(compared, reference)} {EACH_BY_ITSELF}", "In points:"),
        *([Text("The picture has points over the same model alone.")] if changed else []),
    ]
    to = "the same run without the change" if changed else "the same model alone"
    note = f"After training; differences in points to {to}, paired by seed."
    if {"commit", "processor"} <= set(table):  # it may be of other runs than the tier's tables
        made = [" and ".join(dict.fromkeys(table[what].astype(str))) for what in ("commit", "processor")]
        note += f" Runs of commit {made[0]}, on {made[1]}."
    fold = Fold(f"Numbers of “{title}”", [Table(heads, rows, note)])
    alt = f"{title}: accuracy of {', '.join(dict.fromkeys(table['label'].astype(str)))}."
    try:
        return [source.image(f"ablation-{name}.png", title, alt, caption), fold]
    except Absent as error:
        return [Text("", f"{title}."), *caption, Missing(*error.args), fold]
