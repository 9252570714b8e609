"""What a node gains by joining a swarm: accuracy against own generated tokens, seconds and bytes.

Alone, a node samples every completion it trains on; in a swarm of n it samples a share and receives the rest,
so it saves sampling and pays with bytes and with checking them. Both runs of a comparison share the seed.
Made from the tables of `ftis.study.tidy`; accuracies are those of validation, sampled at T = 1 where the tier
does that (else greedy), as fractions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ftis.errors import UserError
from ftis.files import write_files
from ftis.method.methods import METHODS
from ftis.stats import t_interval
from ftis.study.style import STYLE, finish, rendered
from ftis.study.tidy import primary_decoding
from ftis.suite.suite import Suite
from ftis.swarm.message import BYTES_A_COMPLETION, BYTES_A_TOKEN

Tables = Mapping[str, pd.DataFrame]

KEYS = ["setup", "method", "g", "split", "role"]
SPENT = {"tokens": "tokens_generated", "seconds": "seconds", "bytes": "bytes_sent"}
"""Costs and their columns in the table `training`."""
LEVEL = 0.9
"""Of Alone's gain in accuracy: the level that both are timed to."""
COLLECT = ("sample", "grade", "exchange")
"""The phases of an iteration that precede the update."""
LINES = (("-", "solid"), ("--", "dashed"), (":", "dotted"), ("-.", "dash-dotted"))
"""Of a set-up's nodes in their order."""


# ---------------------------------------------------------------- curves


def curve(tables: Tables, run: str, node: int) -> pd.DataFrame:
    """What one node had spent at each validated step, and its accuracy: columns step, tokens (of its own
    completions), seconds (of its phases), bytes (sent), accuracy. Empty without validation."""
    validation, training, how = tables["validation"], tables["training"], primary_decoding(tables)
    if validation.empty or training.empty or how not in validation:
        return pd.DataFrame(columns=["step", *SPENT, "accuracy"])
    found = _of(validation, run, node).dropna(subset=how).sort_values("step")
    spent = _of(training, run, node).set_index("step")[list(SPENT.values())].sort_index().cumsum()
    at = spent.reindex(found["step"], method="ffill").fillna(0).to_numpy(float)
    costs = dict(zip(SPENT, at.T, strict=True))
    return pd.DataFrame({"step": found["step"].to_numpy(), **costs, "accuracy": found[how].to_numpy(float)})


def _of(table: pd.DataFrame, run: str, node: int) -> pd.DataFrame:
    return table[(table["run"] == run) & (table["node"] == node)]


def gain_at_equal(swarm: pd.DataFrame, lone: pd.DataFrame, cost: str) -> float:
    """Accuracy in the swarm less Alone's at the most of a cost that both spent, linear between validations.

    Where one of the two ends earlier, that is where both are read: for every seed there is a number, so which
    seeds count doesn't depend on how fast either was.
    """
    budget = min(swarm[cost].iloc[-1], lone[cost].iloc[-1])
    at = [float(np.interp(budget, points[cost], points["accuracy"])) for points in (swarm, lone)]
    return at[0] - at[1]


def tokens_to(points: pd.DataFrame, level: float) -> float:
    """Own tokens at which a curve first reaches `level`, linear between validations; nan if it never does."""
    tokens, accuracy = points["tokens"].to_numpy(float), points["accuracy"].to_numpy(float)
    reached = np.flatnonzero(accuracy >= level)
    if not len(reached):
        return math.nan
    k = reached[0]
    if k == 0:
        return float(tokens[0])
    share = (level - accuracy[k - 1]) / (accuracy[k] - accuracy[k - 1])
    return float(tokens[k - 1] + share * (tokens[k] - tokens[k - 1]))


def break_even(traffic: float, saved: float) -> float:
    """Bytes a second at which moving `traffic` bytes takes as long as the `saved` seconds; inf if none
    were."""
    return traffic / saved if saved > 0 else math.inf


# ---------------------------------------------------------------- a node alone and in a swarm


def pairs(tables: Tables) -> pd.DataFrame:
    """One row a (run of a swarm, node) with Alone of that role and seed: KEYS, seed, label, run, node,
    lone_run, lone_node and, `lone_` before Alone's, iterations and costs. Main grid only (no variants)."""
    runs = tables["runs"]
    if runs.empty:
        raise UserError("economics: the tier has no runs; train some, or name them with --run")
    runs = runs[runs["variant"].fillna("") == ""]
    cost = ["run", "node", "iterations", "tokens_generated", "bytes_sent", "bytes_received"]
    cost += [f"seconds_{phase}" for phase in COLLECT]
    lone = runs.loc[runs["method"] == "alone", ["role", "seed", *cost]]
    lone = lone.rename(columns={name: f"lone_{name}" for name in cost})
    swarm = runs.loc[
        runs["method"].isin(METHODS) & (runs["method"] != "alone"), [*KEYS, "seed", "label", *cost]
    ]
    return swarm.merge(lone, on=["role", "seed"])


def compare(tables: Tables, level: float = LEVEL) -> pd.DataFrame:
    """Each pair's numbers, one row a (swarm run, node): the columns of `economics` before averaging.

    Costs are per iteration. Traffic is the larger of bytes sent and received: a link carries both at once.
    Seconds to collect are those until the samples to train on are there, but for moving bytes: sampling,
    grading and the exchange's own work (encoding, decoding, checking what peers claim).
    """
    rows = []
    for pair in pairs(tables).to_dict("records"):
        swarm = curve(tables, pair["run"], pair["node"])
        lone = curve(tables, pair["lone_run"], pair["lone_node"])
        row = {key: pair[key] for key in (*KEYS, "seed", "label")}
        for who, prefix in (("swarm", ""), ("alone", "lone_")):
            n = pair[f"{prefix}iterations"]
            row[f"{who}_tokens"] = pair[f"{prefix}tokens_generated"] / n
            row[f"{who}_seconds_collect"] = sum(pair[f"{prefix}seconds_{phase}"] for phase in COLLECT) / n
        row["seconds_saved"] = row["alone_seconds_collect"] - row["swarm_seconds_collect"]
        row["bytes_sent"] = pair["bytes_sent"] / pair["iterations"]
        row["traffic"] = max(pair["bytes_sent"], pair["bytes_received"]) / pair["iterations"]
        known = not (swarm.empty or lone.empty)
        row["swarm_accuracy"] = swarm["accuracy"].iloc[-1] if known else math.nan
        row["alone_accuracy"] = lone["accuracy"].iloc[-1] if known else math.nan
        row["gain"] = row["swarm_accuracy"] - row["alone_accuracy"]
        for cost in ("tokens", "seconds"):
            row[f"gain_equal_{cost}"] = gain_at_equal(swarm, lone, cost) if known else math.nan
        row["alone_tokens_to_level"] = row["swarm_tokens_to_level"] = math.nan
        if known and lone["accuracy"].iloc[-1] > lone["accuracy"].iloc[0]:
            first, last = lone["accuracy"].iloc[0], lone["accuracy"].iloc[-1]
            goal = first + level * (last - first)
            row["alone_tokens_to_level"], row["swarm_tokens_to_level"] = (
                tokens_to(lone, goal),
                tokens_to(swarm, goal),
            )
        rows.append(row)
    return pd.DataFrame(rows)


COLUMNS = [
    *KEYS,
    "label",
    "seeds",
    "alone_accuracy",
    "swarm_accuracy",
    "gain",
    "gain_low",
    "gain_high",
    "alone_tokens",
    "swarm_tokens",
    "gain_equal_tokens",
    "gain_equal_tokens_low",
    "gain_equal_tokens_high",
    "gain_equal_seconds",
    "gain_equal_seconds_low",
    "gain_equal_seconds_high",
    "reached",
    "alone_tokens_to_level",
    "swarm_tokens_to_level",
    "alone_seconds_collect",
    "swarm_seconds_collect",
    "seconds_saved",
    "seconds_saved_low",
    "seconds_saved_high",
    "bytes_sent",
    "traffic",
    "break_even",
]


def economics(tables: Tables, level: float = LEVEL) -> pd.DataFrame:
    """economics.csv: one row a (setup, method, g, split, role), means over the seeds that Alone has too.

    alone_ and swarm_accuracy: validation accuracy (`primary_decoding`) after the last iteration, a fraction.
    gain: their paired difference, with its 95 % t-interval (empty for one seed). tokens: own tokens generated
    an iteration. gain_equal_tokens: accuracy less Alone's when both had generated as many tokens;
    gain_equal_seconds: when both had worked as long (a swarm's node samples less and trains on as many
    samples, so either may end first: `gain_at_equal`). tokens_to_level: own tokens until `level` of Alone's
    total gain, over the seeds where both get there (`reached`). seconds_collect: an iteration's sampling,
    grading and exchange, without the time that bytes take on a network, which runs in one process don't have;
    seconds_saved: the difference. bytes_sent: an iteration; traffic: the larger of sent and received.
    break_even: bandwidth (bytes/s) at which an iteration's traffic takes as long as was saved; above it
    joining saves time, inf where nothing was saved. Empty where no swarm run has an Alone of its role and
    seed; accuracies are nan without validation.
    """
    each = compare(tables, level)
    if each.empty:
        return pd.DataFrame(columns=COLUMNS)
    rows = []
    for keys, part in each.groupby(KEYS, sort=False):
        row = dict(zip(KEYS, keys, strict=True)) | {"label": part["label"].iloc[0], "seeds": len(part)}
        both = part.dropna(subset=["alone_tokens_to_level", "swarm_tokens_to_level"])
        row["reached"] = len(both)
        for name in part.columns.difference([*KEYS, "label", "seed"]):
            values = both[name] if name.endswith("to_level") else part[name].dropna()
            row[name] = values.mean()
            if f"{name}_low" in COLUMNS:
                row[f"{name}_low"], row[f"{name}_high"] = t_interval(values)
        row["break_even"] = break_even(row["traffic"], row["seconds_saved"])
        rows.append(row)
    return pd.DataFrame(rows)[COLUMNS]


def paper_scale(
    prompts: int = 24,
    group: int = 12,
    nodes: int = 2,
    tokens: float = 300,
    rates: Sequence[float] = (500, 2000, 8000),
) -> pd.DataFrame:
    """The same at the paper's scale under stated assumptions: one row a sampling rate (tokens a second).

    B = `prompts` of `group` completions of `tokens` tokens each (an assumption; the budget is 760 with the
    prompt). A node samples 1/nodes of them and receives the rest. Columns: the assumptions, tokens_saved,
    seconds_saved and traffic (bytes) an iteration, break_even (bytes/s). With 8 bytes a token the last is
    8 times the rate and a little for the completions' headers, whatever the rest.
    """
    received = prompts * group * (nodes - 1) / nodes
    rows = []
    for rate in rates:
        saved = received * tokens / rate
        traffic = received * (BYTES_A_TOKEN * tokens + BYTES_A_COMPLETION)
        rows.append(
            {"prompts": prompts, "group": group, "nodes": nodes, "tokens_a_completion": tokens,
             "tokens_a_second": rate, "tokens_saved": received * tokens, "seconds_saved": saved,
             "traffic": traffic, "break_even": break_even(traffic, saved)}
        )  # fmt: skip
    return pd.DataFrame(rows)


# ---------------------------------------------------------------- the figure


def curves(tables: Tables, method: str = "ftis", split: str = "vertical", g: str = "50") -> pd.DataFrame:
    """Points of the figures, one row a (setup, role, series, step): mean costs and accuracy over the seeds of
    `pairs`, with a band (t-interval from five seeds, else smallest to largest; none for one)."""
    found = pairs(tables)
    found = found[(found["method"] == method) & (found["split"] == split) & (found["g"] == g)]
    points = []
    for pair in found.to_dict("records"):
        for series, prefix in ((method, ""), ("alone", "lone_")):
            one = curve(tables, pair[f"{prefix}run"], pair[f"{prefix}node"])
            where = {key: pair[key] for key in ("setup", "role", "label", "node", "seed")}
            points += [{**where, "series": series, **point} for point in one.to_dict("records")]
    rows = []
    for keys, part in pd.DataFrame(points).groupby(["setup", "role", "series"], sort=False) if points else ():
        seeds = part["seed"].nunique()
        for step, at in part.groupby("step"):
            if at["seed"].nunique() < seeds:
                continue  # a step that a seed lacks would bend the mean
            low, high = (
                t_interval(at["accuracy"]) if seeds >= 5 else (at["accuracy"].min(), at["accuracy"].max())
            )
            rows.append(
                {
                    **dict(zip(("setup", "role", "series"), keys, strict=True)),
                    "label": at["label"].iloc[0],
                    "node": at["node"].iloc[0],
                    "step": step,
                    "seeds": seeds,
                    **{cost: at[cost].mean() for cost in SPENT},
                    "accuracy": at["accuracy"].mean(),
                    "low": low,
                    "high": high,
                }
            )
    return pd.DataFrame(rows)


PICTURES = {
    "tokens": (
        "economics", "What a node gets for the tokens that it samples itself", "Own tokens generated",
        "A node gains by joining where its F-TIS line is above its Alone line at the same number of own "
        "tokens.",
    ),
    "seconds": (
        "economics_seconds", "What a node gets for its time", "Seconds of the node's work",
        "Sampling, grading, exchange and update, as measured: a swarm's node samples less and trains on as "
        "much.",
    ),
    "bytes": (
        "economics_bytes", "What a node gets for the bytes that it sends", "Bytes sent",
        "Alone sends none: its line is where it ends.",
    ),
}  # fmt: skip
"""By cost: the file's name, title, axis, and what to see."""


def draw(points: pd.DataFrame, tier: str, how: str, cost: str = "tokens") -> Figure:
    """One panel a set-up: accuracy over a cost of each of its nodes, alone and in the swarm."""
    _, title, axis_label, see = PICTURES[cost]
    setups = [setup for setup in Suite.load().grid.setups if setup in set(points["setup"])]
    columns = min(3, len(setups))
    rows = -(-len(setups) // columns)
    figure = Figure(figsize=(max(7.4, 3.5 * columns), 2.7 * rows + 1.5))
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    largest = points[cost].max()
    sizes = ((1e6, " (million)"), (1e3, " (thousand)"))
    scale, unit = next((s for s in sizes if largest >= 2 * s[0]), (1, ""))
    for axis, setup in zip(axes, setups, strict=False):
        _panel(axis, points[points["setup"] == setup], cost, scale)
        axis.set_title(Suite.load().grid.setups[setup].title)
    for axis in axes[len(setups) :]:
        axis.remove()
    for place, axis in enumerate(axes[: len(setups)]):
        if place % columns == 0:
            axis.set_ylabel(
                f"Validation accuracy\n{'sampled at T = 1' if how == 'sampled' else 'greedy'} (%)"
            )
        axis.set_xlabel(axis_label + unit)
    seeds = points["seeds"].max()
    band = "95 % t-interval" if seeds >= 5 else "smallest to largest"
    finish(
        figure,
        axes[0],
        title,
        f"Tier {tier}; mean{f' and {band}' if seeds > 1 else ''} over {seeds} "
        f"seed{'s' if seeds > 1 else ''}. {see}",
    )
    return figure


def _panel(axis: Axes, points: pd.DataFrame, cost: str, scale: float) -> None:
    nodes = points.drop_duplicates("role").sort_values("node")
    for place, role in enumerate(nodes["role"]):
        for series in ("alone", *points.loc[points["series"] != "alone", "series"].unique()):
            line = points[(points["role"] == role) & (points["series"] == series)]
            first = place == 0
            if cost == "bytes" and series == "alone":
                axis.axhline(
                    100 * line["accuracy"].iloc[-1], color=METHODS[series].colour, linewidth=2.4,
                    linestyle=LINES[place % len(LINES)][0], label=f"{METHODS[series].label}, node "
                                                                  f"{place + 1}",
                )  # fmt: skip
                continue
            axis.plot(
                line[cost] / scale,
                100 * line["accuracy"],
                color=METHODS[series].colour,
                marker=METHODS[series].marker,
                linestyle=LINES[place % len(LINES)][0],
                linewidth=2.4 if series == "alone" else 1.5,
                markersize=4.5,
                markerfacecolor=METHODS[series].colour if first else "white",
                label=f"{METHODS[series].label}, node {place + 1}",
            )
            if line["seeds"].max() > 1:
                axis.fill_between(
                    line[cost] / scale,
                    100 * line["low"],
                    100 * line["high"],
                    color=METHODS[series].colour,
                    alpha=0.12,
                    linewidth=0,
                )
    # Names differ from panel to panel, so they stand in the panel, where curves that rise leave room.
    names = [f"node {k + 1}, {LINES[k % len(LINES)][1]}: {label}" for k, label in enumerate(nodes["label"])]
    corner = {"ha": "right", "va": "bottom", "transform": axis.transAxes}
    axis.text(0.98, 0.03, "\n".join(names), fontsize=7.5, color="0.25", **corner)


def make_economics(tables: Tables, tier: str, out: Path) -> None:
    """Write economics.csv, economics_paper.csv and the `PICTURES` (pdf and png) into the folder `out`."""
    table = economics(tables)
    if table.empty:
        raise UserError(
            "economics: no swarm run has a run alone of its role and seed; add e.g. alone-base_small-s42"
        )
    points = curves(tables)
    if points.empty:
        raise UserError(
            "economics: no vertical F-TIS run with g = 50 and its run alone has validation accuracies; "
            "train them "
            "with validation.data set"
        )
    files = {
        name: frame.to_csv(index=False, float_format="%.6g", lineterminator="\n").encode()
        for name, frame in (("economics.csv", table), ("economics_paper.csv", paper_scale()))
    }
    with matplotlib.rc_context(STYLE):
        for cost, (stem, *_) in PICTURES.items():
            files |= rendered(stem, draw(points, tier, primary_decoding(tables), cost))
    write_files({Path(out) / name: content for name, content in files.items()})
