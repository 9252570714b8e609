"""Draws the exact study from the tables of `ftis.study.exact.tables`, with the methods' colours and markers.

Distances stand evenly spaced on the axes, so that 0 has its place and near ones are told apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from ftis.method.kl import KL_ESTIMATORS
from ftis.method.methods import METHODS, PAPER, unfiltered
from ftis.study.style import finish, shade

TITLES = {
    "weaker": "Weaker foreign node",
    "peer": "Peer of other skills",
    "stronger": "Stronger foreign node",
    "hard": "Stronger, hard prompt",
}
DISTANCE = "KL(gen || theta), nats"
BAND = "Line: mean over random problems; band: quartiles."


def look(method: str, **other) -> dict:
    """Line properties of a method: filtered ones dashed, over the solid line of the unfiltered."""
    return {
        "color": METHODS[method].colour,
        "marker": METHODS[method].marker,
        "linestyle": "--" if METHODS[method].filtered else "-",
        "markersize": 4.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
        "linewidth": 1.4,
        "label": METHODS[method].label,
        **other,
    }


def settings(data: pd.DataFrame) -> str:
    """g and C of the main block, for captions."""
    row = data[(data["block"] == "methods") & (data["method"] == "ftis")].iloc[0]
    return f"g = {row['g']:g} nat, C = {row['cap']:g}."


def panels(rows: int, kinds: Sequence[str], height: float) -> tuple[Figure, list[list[Axes]]]:
    """A figure of one column a kind, with the same y-axis along a row."""
    figure = Figure(figsize=(2.55 * len(kinds), height))
    axes = list(figure.subplots(rows, len(kinds), sharey="row", sharex=True, squeeze=False))
    for axis, kind in zip(axes[0], kinds, strict=True):
        axis.set_title(TITLES[kind])
    return figure, axes


def at_distances(axis: Axes, distances: Sequence[float], label: bool) -> None:
    axis.set_xticks(range(len(distances)), [f"{d:g}" for d in distances], fontsize=7.5)
    if label:
        axis.set_xlabel(DISTANCE)


def lines(axis: Axes, data: pd.DataFrame, measure: str, distances: Sequence[float], **style) -> None:
    """One line over distance, with its band where the table has quartiles."""
    data = data.set_index("distance").reindex(distances)
    axis.plot(range(len(distances)), data[measure], **style)
    if f"{measure}_low" in data:
        band = (data[f"{measure}_low"], data[f"{measure}_high"])
        axis.fill_between(range(len(distances)), *band, color=style["color"], alpha=0.08, linewidth=0)


def by_method(data: pd.DataFrame, measures: dict[str, str], height: float) -> tuple[Figure, list[list[Axes]]]:
    """Rows of `measures` {column: label of the axis}, a line a method of the block `methods`."""
    main, kinds, distances = data[data["block"] == "methods"], list(TITLES), sorted(set(data["distance"]))
    figure, axes = panels(len(measures), kinds, height)
    for row, (measure, label) in zip(axes, measures.items(), strict=True):
        for axis, kind in zip(row, kinds, strict=True):
            for method in main["method"].unique():
                curve = main[(main["kind"] == kind) & (main["method"] == method)]
                lines(axis, curve, measure, distances, **look(method))
            at_distances(axis, distances, row is axes[-1])
        row[0].set_ylabel(label)
    return figure, axes


def bias(data: pd.DataFrame) -> Figure:
    """Cosine and relative bias of the expected update."""
    measures = {
        "cosine": "Cosine to grad J,\nown and foreign groups",
        "foreign_cosine": "Cosine to grad J,\nforeign groups",
        "relative_bias": "|bias| / |Alone's update|",
    }
    # Rounding at distance 0 has no place on a logarithmic axis.
    known = data.assign(relative_bias=data["relative_bias"].where(data["distance"] > 0))
    figure, axes = by_method(known, measures, 7.4)
    for axis in axes[2]:
        axis.set_yscale("log")
        axis.set_ylim(0.05, 5)
        axis.set_yticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
        axis.minorticks_off()
    finish(
        figure,
        axes[0][0],
        "Bias of the expected update (exact), two nodes, vertical",
        f"{BAND} Alone has cosine 1 and bias 0 by definition. {settings(data)}",
    )
    return figure


def progress(data: pd.DataFrame) -> Figure:
    """Noise, and what a step is worth."""
    measures = {
        "sd": "Standard deviation / Alone's",
        "progress_norm": "Gain per step of fixed norm\n(cosine with noise)",
        "progress_lr": "Gain per learning rate\n/ Alone's",
    }
    figure, axes = by_method(data, measures, 7.4)
    lone = data[data["block"] == "alone"]
    for row, measure in zip(axes, measures, strict=True):
        for axis, kind in zip(row, TITLES, strict=True):
            for prompts, style in zip(
                sorted(lone["prompts"].unique(), reverse=True), ("-", ":"), strict=True
            ):
                level = lone[(lone["kind"] == kind) & (lone["prompts"] == prompts)][measure].mean()
                name = f"Alone, {prompts} prompts"
                axis.axhline(level, color="black", linestyle=style, linewidth=1.2, label=name, zorder=1)
    for axis in axes[0]:
        axis.set_yscale("log")
        axis.set_ylim(0.7, 5)
        axis.set_yticks([1, 2, 4], ["1", "2", "4"])
        axis.minorticks_off()
    for axis in axes[2]:
        axis.set_yscale("log")
        axis.set_yticks([0.5, 1, 2], ["0.5", "1", "2"])
        axis.minorticks_off()
    finish(
        figure,
        axes[0][0],
        "Noise, and the first-order gain in reward of a step (exact), two nodes, vertical",
        f"{BAND} Dotted: a node that trains on its own half of the swarm's prompts alone. {settings(data)} "
        f"VIS leaves the top panels: up to {data.loc[data['method'] == 'vis', 'sd'].max():.0f} times "
        f"Alone's.",
    )
    return figure


def filter_map(data: pd.DataFrame) -> Figure:
    """Gain with minus without the filter, over distance and g."""
    plain = data[data["block"] == "methods"].set_index(["kind", "distance", "method"])["progress_norm"]
    table = data[data["block"] == "threshold"].copy()
    without = [plain[kind, d, unfiltered(m)] for kind, d, m in table[["kind", "distance", "method"]].values]
    table["change"] = table["progress_norm"] - without
    kinds, methods = list(TITLES), list(table["method"].unique())
    figure, axes = panels(len(methods), kinds, 6.6 * (len(methods) / 3))
    # Not to the extremes: a few large changes far away would leave the rest white.
    norm = TwoSlopeNorm(0, -0.06, 0.06)
    for row, method in zip(axes, methods, strict=True):
        for axis, kind in zip(row, kinds, strict=True):
            part = table[(table["method"] == method) & (table["kind"] == kind)]
            grid = part.pivot(index="g", columns="distance", values="change")
            image = axis.imshow(grid, cmap="PuOr_r", norm=norm, aspect="auto", origin="lower")
            for (i, j), value in zip(
                [(i, j) for i in range(grid.shape[0]) for j in range(grid.shape[1])], grid.to_numpy().flat
            ):
                if abs(value) >= 0.005:
                    axis.text(
                        j,
                        i,
                        f"{100 * value:.0f}",
                        ha="center",
                        va="center",
                        fontsize=6.5,
                        color="white" if abs(value) > 0.04 else "black",
                    )
            axis.grid(False)
            axis.set_yticks(range(len(grid)), [f"{g:g}" for g in grid.index])
            at_distances(axis, list(grid.columns), row is axes[-1])
        row[0].set_ylabel(f"{METHODS[method].label} - {METHODS[unfiltered(method)].label}\ng, nats")
    title = "Where the filter helps (orange) and hurts (violet): change of the gain per step of fixed norm"
    figure.suptitle(title, x=0.01, ha="left", size=10.5, weight="bold")
    note = (
        "Numbers: change in hundredths, where it is at least half of one (1 would be a perfect step). Exact."
    )
    figure.text(0.01, 0.01, note, size=7, color="0.3")
    figure.tight_layout(rect=(0, 0.02, 0.92, 1))
    bar = figure.colorbar(image, cax=figure.add_axes((0.925, 0.3, 0.012, 0.4)), extend="both")
    bar.ax.grid(False)
    return figure


def estimators(data: pd.DataFrame) -> Figure:
    """Mean, spread and firing of the KL estimators."""
    table = data.groupby(["estimator", "distance"], as_index=False).mean(numeric_only=True)
    distances = sorted(d for d in set(table["distance"]) if d > 0)
    figure = Figure(figsize=(10.2, 3.9))
    axes = figure.subplots(1, 3)
    palette = [METHODS[name].colour for name in PAPER[1:]]
    table["ratio"] = table["mean"] / table["distance"]
    for column, axis in zip(("ratio", "sd", "over_g"), axes, strict=True):
        for name, colour, marker in zip(KL_ESTIMATORS, palette, "v^sDP", strict=False):
            curve = table[table["estimator"] == name].set_index("distance").reindex(distances)
            # The literal form has gen_theta's spread: the wider line below stays visible.
            width = 3.5 if name == "gen_theta" else 1.4
            axis.plot(
                distances,
                curve[column],
                color=colour,
                marker=marker,
                markersize=4.5,
                linewidth=width,
                label=name,
            )
        axis.set_xscale("log")
        axis.set_xticks(distances, [f"{d:g}" for d in distances])
        axis.minorticks_off()
        axis.set_xlabel(DISTANCE)
    truth = table[table["estimator"] == "gen_theta"].set_index("distance").reindex(distances)
    axes[0].plot(
        distances, truth["reverse"] / distances, color="black", linestyle=":", label="true KL(theta || gen)"
    )
    axes[0].set_ylim(-1.3, 3.3)
    axes[0].set_ylabel("Mean / true KL(gen || theta)")
    axes[1].set_yscale("log")
    axes[1].set_ylim(0.02, 100)
    axes[1].set_ylabel("Standard deviation, nats")
    axes[2].set_ylabel("Share of them above g = 1 nat")
    finish(
        figure,
        axes[0],
        "KL estimators, summed over a foreign completion (exact)",
        "Means over all random problems and kinds of foreign node.",
    )
    return figure


def cap(data: pd.DataFrame) -> Figure:
    """What TIS's cap C trades, per token and per sequence."""
    table = data[(data["block"] == "cap") & (data["method"] == "tis")]
    kinds, distances = list(TITLES), sorted(set(table["distance"]))
    measures = {
        "cosine": "Cosine to grad J",
        "sd": "Standard deviation / Alone's",
        "progress_norm": "Gain per step\nof fixed norm",
    }
    figure, axes = panels(len(measures), kinds, 6.8)
    series = list(table[["weight_level", "cap"]].drop_duplicates().itertuples(index=False))
    for row, (measure, label) in zip(axes, measures.items(), strict=True):
        for axis, kind in zip(row, kinds, strict=True):
            for place, (level, c) in enumerate(series):
                curve = table[
                    (table["kind"] == kind) & (table["weight_level"] == level) & (table["cap"] == c)
                ]
                token = level == "token"
                style = {
                    "color": shade(METHODS["tis"].colour, place / 3) if token else METHODS["vis"].colour,
                    "marker": "v^<D" [place] if token else "sP"[place - 4],
                    "linestyle": "-" if token else "--",
                    "markersize": 4.5,
                    "linewidth": 1.4,
                    "label": f"C = {c:g} a {level}".replace("inf", "$\\infty$"),
                }  # fmt: skip
                lines(axis, curve, measure, distances, **style)
            at_distances(axis, distances, row is axes[-1])
        row[0].set_ylabel(label)
    for axis in axes[1]:
        axis.set_yscale("log")
        axis.set_ylim(0.7, 30)
    note = (
        f"{BAND} Two nodes, vertical. A weight per sequence without a cap is unbiased; its noise is the "
        "price."
    )
    finish(figure, axes[0][0], "TIS: the cap C, and the level of the weight (exact)", note)
    return figure


def training(data: pd.DataFrame) -> Figure:
    """Reward over iterations of expected updates."""
    starts = list(data[["kind", "start"]].drop_duplicates().itertuples(index=False))
    figure = Figure(figsize=(2.3 * len(starts), 7.4))
    axes = list(figure.subplots(3, len(starts), sharey="row", sharex=True, squeeze=False))
    shown = (("learner", False), ("learner", True), ("stronger", True))
    for row, (role, against_alone) in zip(axes, shown, strict=True):
        for axis, (kind, start) in zip(row, starts, strict=True):
            part = data[(data["node"] == role) & (data["kind"] == kind) & (data["start"] == start)]
            curves = part.pivot(index="step", columns="method", values="reward")
            if against_alone:
                curves = curves.sub(curves["alone"], axis=0)
            for method in (name for name in METHODS if name in curves):
                width = {"linewidth": 2.8} if method == "alone" else {}
                axis.plot(curves.index, curves[method], **look(method, markersize=3.5, **width))
            if row is axes[0]:
                axis.set_title(f"{TITLES[kind]}\nKL {start:g} at the start", fontsize=8)
            elif row is axes[-1]:
                axis.set_xlabel("Iteration")
        row[0].set_ylabel(
            f"{role.capitalize()}: expected reward" + ("\nless Alone's" if against_alone else "")
        )
    finish(
        figure,
        axes[0][0],
        "Two nodes trained together by expected updates, without sampling noise",
        "Means over random problems; vertical; one learning rate for all methods.",
    )
    return figure


def halves(data: pd.DataFrame) -> Figure:
    """What foreign successes and failures are each good for."""
    kinds, distances = list(TITLES), sorted(set(data["distance"]))
    series = {  # what is left out, what is left, how it looks
        "failures": ("successes", {"color": METHODS["tis"].colour, "marker": "^"}),
        "successes": ("failures", {"color": METHODS["nois"].colour, "marker": "v"}),
    }
    figure, axes = panels(4, kinds, 8.6)
    for method, upper, lower in (("nois", axes[0], axes[1]), ("tis", axes[2], axes[3])):
        name, part = METHODS[method].label, data[data["method"] == method]
        for kind, cosine, worth in zip(kinds, upper, lower, strict=True):
            curves = part[part["kind"] == kind]
            whole = curves[curves["left_out"] == "none"].set_index("distance")["progress_norm"]
            for left_out, (rest, style) in series.items():
                curve = curves[curves["left_out"] == left_out]
                style = {**style, "markersize": 4.5, "linewidth": 1.4}
                lines(cosine, curve, "foreign_cosine", distances, **style, label=f"foreign {rest}")
                change = curve.set_index("distance")["progress_norm"].reindex(distances) - whole
                worth.plot(range(len(distances)), change, **style)
            worth.axhline(0, color="black", linewidth=0.8)
            at_distances(worth, distances, lower is axes[-1])
        upper[0].set_ylabel(f"{name}: cosine\nto grad J")
        lower[0].set_ylabel(f"{name}: change of\nworth if only these")
    finish(
        figure,
        axes[0][0],
        "What foreign successes and foreign failures point at, and what a step of only one of them loses "
        "(exact)",
        f"{BAND} The own groups stay whole; what is left out still counts in the advantages. Two nodes, "
        f"vertical.",
    )
    return figure


FIGURES = {
    "exact_bias": (bias, "exact"),
    "exact_progress": (progress, "exact"),
    "exact_filter": (filter_map, "exact"),
    "exact_halves": (halves, "exact_halves"),
    "exact_cap": (cap, "exact"),
    "exact_kl": (estimators, "exact_kl"),
    "exact_training": (training, "exact_training"),
}
