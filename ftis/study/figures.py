"""What a figure of a suite shows: its curves, summarised over seeds, and its words. `ftis.study.plots` draws
it.

Accuracies are fractions; drawings are in percent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ftis.errors import UserError, unknown
from ftis.method.methods import METHODS
from ftis.stats import t_interval
from ftis.study.runs import load_curves
from ftis.suite.suite import Suite

DECODINGS = ("greedy", "sampled")


def summarise(data: pd.DataFrame) -> pd.DataFrame:
    """Mean and band over seeds of each (series, role, step), for steps that every seed has.

    Columns: series, role, step, seeds, mean, low, high. The band is the 95 % t-interval from five
    seeds on, and runs from the smallest to the largest value below that: an interval from so few
    would be wider than the figure.
    """
    rows = []
    for (series, role), curve in data.groupby(["series", "role"], sort=False):
        seeds = curve["seed"].nunique()
        for step, values in curve.groupby("step")["value"]:
            if len(values) == seeds:
                low, high = t_interval(values) if seeds >= 5 else (values.min(), values.max())
                rows.append((series, role, step, seeds, values.mean(), low, high))
    return pd.DataFrame(rows, columns=["series", "role", "step", "seeds", "mean", "low", "high"])


def figure_data(figure_id: str, tier: str, run_dirs: Sequence[Path]) -> pd.DataFrame:
    """What a figure is drawn from: validation accuracy (a fraction) of the runs it is given, greedy as in the
    paper, and sampled at T = 1 where every run has it (greedy saturates on easy problems).

    Columns: figure, tier, those of `load_curves`, decoding (greedy or sampled), series (the curve's name in
    the legend), problems (number of validation problems) and samples (of each). Rows are ordered as they are
    drawn. A run that doesn't belong on the figure, and a curve without any run, are errors; further runs of
    the same pair are drawn too.
    """
    figures = [name for name in Suite.load().grid.artefacts if name.startswith("fig")]
    if figure_id not in figures:
        raise unknown("figure", figure_id, figures)
    choose = f"or let `snakemake -c1 paper_figures/{tier}/{figure_id}.pdf` choose the runs"
    given = [Suite.load().run(folder.name) for folder in run_dirs]
    needed = Suite.load().artefact_runs(figure_id, tier, 1)
    setup = next(run.setup for run in needed if run.method != "alone")
    for run in given:
        if run.setup != setup and run.method != "alone":
            raise UserError(
                f"{figure_id}: shows the pair {setup}, {run.slug} isn't on it; leave it out, {choose}"
            )
    for run in needed:
        if run.cell not in {other.cell for other in given}:
            raise UserError(f"{figure_id}: lacks {run.cell}; name one with --run {run.slug}, {choose}")
    curves = load_curves(run_dirs, tier, {f"{how}.{what}" for how in DECODINGS for what in ("accuracy", "n")})
    curves[["decoding", "what"]] = curves["metric"].str.split(".", expand=True).reindex(columns=[0, 1])
    data = curves[curves["what"] == "accuracy"].drop(columns="what")
    held = {how: set(part["run"]) for how, part in data.groupby("decoding")}
    for folder in run_dirs:
        if folder.name not in held.get("greedy", ()):
            raise UserError(
                f"{folder / 'metrics.jsonl'}: holds no greedy validation; set `validation` in its config"
            )
    data = data[[held[how] == held["greedy"] for how in data["decoding"]]].copy()
    keys = ["run", "node", "step", "decoding"]
    sizes = curves[curves["what"] == "n"].set_index(keys)["value"]
    data["problems"] = (
        pd.MultiIndex.from_frame(data[keys].assign(decoding="greedy")).map(sizes).astype("Int64")
    )
    data["samples"] = pd.MultiIndex.from_frame(data[keys]).map(sizes).astype("Int64") // data["problems"]
    roles = list(data[data["method"] != "alone"].sort_values("node")["role"].unique())
    strays = sorted(set(data["role"]) - set(roles))
    if strays:
        raise UserError(f"{figure_id}: {', '.join(strays)} isn't in the pair {setup}; leave its run out")
    data["series"] = series_names(data)
    data.insert(0, "figure", figure_id)
    data.insert(1, "tier", tier)
    methods = list(METHODS)
    order = pd.DataFrame(
        {
            "method": data["method"].map(methods.index),
            "g": pd.to_numeric(data["g"]).fillna(0),
            "split": data["split"] == "horizontal",
            "role": data["role"].map(roles.index),
            "decoding": data["decoding"].map(DECODINGS.index),
            "seed": data["seed"],
            "step": data["step"],
        }
    )
    return data.loc[order.sort_values(list(order)).index].reset_index(drop=True)


def series_names(data: pd.DataFrame) -> pd.Series:
    """A curve's name: its method, with g or the split where the method is there with several of them."""
    names = data["method"].map(lambda method: METHODS[method].label)
    for column, form in (("g", ", g = {}"), ("split", ", {}")):
        several = data.groupby("method")[column].transform("nunique") > 1
        names = names.where(~several, names + data[column].map(form.format))
    return names


def figure_title(figure_id: str, data: pd.DataFrame) -> str:
    """E.g. `Fig 10: Threshold g of the filter (XS base + S base)`."""
    pair = data[data["method"] != "alone"].drop_duplicates("node").sort_values("node")
    return (
        f"Fig {figure_id[3:]}: {Suite.load().grid.artefacts[figure_id].title} ({' + '.join(pair['label'])})"
    )


def figure_note(data: pd.DataFrame, summary: pd.DataFrame) -> str:
    """The caption under a figure: tier, seeds, what the band is, how fine the validation can tell."""
    seeds = sorted(data["seed"].unique())
    fewest, most = summary["seeds"].min(), summary["seeds"].max()
    count = f"{most} seed{'s' if most > 1 else ''}" if fewest == most else f"{fewest} to {most} seeds a curve"
    parts = [f"Tier {data['tier'].iloc[0]}", f"{count} ({_ranges(seeds)})"]
    if most > 1:
        bands = [
            text
            for text, used in (
                ("min to max", bool(summary["seeds"].between(2, 4).any())),
                ("95 % t-interval", most >= 5),
            )
            if used
        ]
        parts.append(f"line: mean, band: {' or '.join(bands)} over seeds")
    thresholds = listed(data.loc[data["g"] != "", "g"])
    if thresholds and ", " not in thresholds:
        parts.append(f"g = {thresholds}")
    problems = data["problems"].dropna()
    if len(problems):
        n = int(problems.min())
        samples = int(data["samples"].max())
        parts.append(
            f"{n} validation problems (s.e. of a greedy point up to {50 / math.sqrt(n):.1f} points)"
            + (f", {samples} samples of each at T = 1" if "sampled" in set(data["decoding"]) else "")
        )
    return "; ".join(parts) + "."


def listed(numbers: pd.Series) -> str:
    """Texts "50", "5", "50" as `5, 50`."""
    return ", ".join(sorted(numbers.unique(), key=float))


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7, 8 as `1-3, 7, 8`."""
    streaks: list[list[int]] = []
    for number in numbers:
        if streaks and number == streaks[-1][-1] + 1:
            streaks[-1].append(number)
        else:
            streaks.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in streaks)
