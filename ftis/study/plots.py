"""Draws the paper's figures from the curves of `ftis.study.figures`.

One colour and one marker a method in every figure: those of `ftis.method.methods`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ftis.errors import UserError
from ftis.files import write_files
from ftis.method.methods import METHODS
from ftis.study.figures import figure_data, figure_note, figure_title, summarise
from ftis.study.style import STYLE, finish, rendered, shade

THRESHOLD_MARKERS = ("v", "s", "D", "^", "P", "X", "<", ">")


def make_figure(figure_id: str, tier: str, run_dirs: Sequence[Path], out: Path) -> None:
    """Write `{figure_id}.pdf`, `.png` and `.csv` (what it is drawn from) into the folder `out`."""
    run_dirs = list(dict.fromkeys(map(Path, run_dirs)))
    if not run_dirs:
        raise UserError(f"{figure_id}: no runs given; name them with --run")
    data = figure_data(figure_id, tier, run_dirs)
    files = {f"{figure_id}.csv": data.to_csv(index=False, lineterminator="\n").encode()}
    with matplotlib.rc_context(STYLE):
        files |= rendered(figure_id, draw(figure_id, data))
    write_files({Path(out) / name: content for name, content in files.items()})


DECODINGS = {"greedy": "Greedy", "sampled": "T = 1"}


def draw(figure_id: str, data: pd.DataFrame) -> Figure:
    """One panel a node of the pair, a row a decoding; a line a series: mean over seeds, with a band if
    several."""
    looks = series_looks(data)
    nodes = data[data["method"] != "alone"].drop_duplicates("node").sort_values("node")
    rows = [how for how in DECODINGS if how in set(data["decoding"])]
    figure = Figure(figsize=(3.7 * max(2, len(nodes)), 1.2 + 2.9 * len(rows)))
    panels = figure.subplots(len(rows), len(nodes), sharex=True, sharey="row", squeeze=False)
    panels[0][0].xaxis.set_major_locator(MaxNLocator(integer=True))  # of all panels
    for axes, how in zip(panels, rows, strict=True):
        summary = summarise(data[data["decoding"] == how])
        summary[["mean", "low", "high"]] *= 100
        for axis, role in zip(axes, nodes["role"], strict=True):
            for series, look in looks.items():
                _curve(axis, summary[(summary["series"] == series) & (summary["role"] == role)], series, look)
        axes[0].set_ylabel(f"{DECODINGS[how]} validation accuracy (%)")
        axes[0].set_ylim(*y_limits(summary))
        if len({(m, s) for m, s in zip(data["method"], data["split"], strict=True)}) < len(looks):
            for axis, role in zip(axes, nodes["role"], strict=True):
                label_ends(axis, summary[summary["role"] == role])
    for axis, label in zip(panels[0], nodes["label"], strict=True):
        axis.set_title(label)
    for axis in panels[-1]:
        axis.set_xlabel("GRPO iteration")
    note = figure_note(data, summarise(data[data["decoding"] == "greedy"]))
    finish(figure, panels[0][0], figure_title(figure_id, data), note)
    return figure


def _curve(axis: Axes, curve: pd.DataFrame, series: str, look: dict) -> None:
    axis.plot(curve["step"], curve["mean"], label=series, **look)
    if curve["seeds"].max() > 1:
        # Hatched where the line is dashed: two bands of one colour stay apart.
        dashed = look["linestyle"] == "--"
        axis.fill_between(
            curve["step"],
            curve["low"],
            curve["high"],
            facecolor="none" if dashed else look["color"],
            edgecolor=look["color"],
            hatch="////" if dashed else None,
            alpha=0.4 if dashed else 0.16,
            linewidth=0,
        )


def series_looks(data: pd.DataFrame) -> dict[str, dict]:
    """Line properties of each series, in the legend's order.

    The method decides colour and marker, the split the line (dashed and hollow: horizontal). Where a
    method has several thresholds they are shades of its colour, darker with g, each with a marker.
    """
    looks = {}
    kinds = data.drop_duplicates("series")
    for kind in kinds.itertuples():
        rivals = sorted(kinds.loc[kinds["method"] == kind.method, "g"].unique(), key=lambda g: float(g or 0))
        # Alone is the widest line and filtered methods are the narrowest, in the order in which they are
        # drawn: where one coincides with another, both are seen.
        width = 2.8 if kind.method == "alone" else 1.3 if METHODS[kind.method].filtered else 2.2
        colour, marker = METHODS[kind.method].colour, METHODS[kind.method].marker
        if len(rivals) > 1:
            place = rivals.index(kind.g)
            depth = place / (len(rivals) - 1)
            # Dark thin lines over light wide ones: where they coincide both are seen.
            colour, width = shade(colour, depth), 3 - 1.8 * depth
            marker = THRESHOLD_MARKERS[place % len(THRESHOLD_MARKERS)]
        horizontal = kind.split == "horizontal"
        looks[kind.series] = {
            "color": colour,
            "marker": marker,
            "markersize": 7 if marker in "XPo" else 5.5,
            "markerfacecolor": "white" if horizontal else colour,
            # A thin white rim keeps markers apart that lie on top of each other.
            "markeredgecolor": colour if horizontal else "white",
            "markeredgewidth": 1.2 if horizontal else 0.6,
            "linestyle": "--" if horizontal else "-",
            "linewidth": width,
        }
    return looks


def y_limits(summary: pd.DataFrame) -> tuple[float, float]:
    """Limits in percent around lines and bands, inside 0-100 and at least 10 points apart.

    A tighter scale would show the validation set's sampling noise as if it were an effect.
    """
    low, high = summary[["mean", "low"]].min().min(), summary[["mean", "high"]].max().max()
    low, high = max(0.0, low), min(100.0, high)
    pad = max(0.05 * (high - low), (10 - (high - low)) / 2)
    # A little room beyond 0 and 100 keeps the markers there whole.
    return max(-2.0, low - pad), min(102.0, high + pad)


def label_ends(axis: Axes, summary: pd.DataFrame) -> None:
    """Name each line at its right end, moved apart where ends meet, with a thin line to its point."""
    last = summary[summary["step"] == summary["step"].max()].sort_values("mean")
    bottom, top = axis.get_ylim()
    left, right = summary["step"].min(), summary["step"].max()
    width = max(right - left, 1)
    places = spread(list(last["mean"]), 0.055 * (top - bottom), bottom, top)
    axis.set_xticks([tick for tick in axis.get_xticks() if left <= tick <= right])
    axis.set_xlim(left - 0.05 * width, right + 0.3 * width)
    for series, mean, place in zip(last["series"], last["mean"], places, strict=True):
        axis.plot(
            [right + 0.02 * width, right + 0.07 * width], [mean, place], color="0.6", linewidth=0.7, zorder=1
        )
        axis.text(right + 0.08 * width, place, series.split(", ")[-1], va="center", fontsize=7.5, color="0.2")


def spread(values: Sequence[float], gap: float, bottom: float, top: float) -> list[float]:
    """Ascending positions near ascending `values`, at least `gap` apart, inside bottom..top if they fit."""
    places = []
    for value in values:
        places.append(max(value, places[-1] + gap) if places else max(value, bottom + gap / 2))
    ceiling = top - gap / 2
    for index in reversed(range(len(places))):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - gap
    return places
