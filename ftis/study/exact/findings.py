"""The exact study's findings: numbers to be quoted, each computed from its tables, and their standard
errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, product

import numpy as np
import pandas as pd

from ftis.method.kl import KL_ESTIMATORS
from ftis.method.methods import METHODS, unfiltered
from ftis.study.exact.cases import CAP, CAPS, PROMPTS, THRESHOLDS
from ftis.study.exact.problems import KINDS
from ftis.study.exact.tables import TABLES, over_problems
from ftis.study.exact.training import STARTS


def crossing(distances: Sequence[float], values: Sequence[float], level: float) -> float:
    """First distance at which `values` falls below `level`, linear between points; inf if it doesn't."""
    for (d0, v0), (d1, v1) in pairwise(zip(distances, values, strict=True)):
        if v1 < level <= v0:
            return d0 + (d1 - d0) * (v0 - level) / (v0 - v1)
    return math.inf


def findings(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """topic, finding, where, value, unit, each computed from the means over problems of TABLES.

    "Worth" is the gain in reward of a step of fixed norm (progress_norm), where 1 would be a step along
    grad J without noise.
    """
    data, training, rows = tables["exact"], tables["exact_training"], []
    main = data[data["block"] == "methods"]

    def add(topic: str, finding: str, where: str, value: float, unit: str) -> None:
        value = float(f"{value:.4g}")
        rows.append({"topic": topic, "finding": finding, "where": where, "value": value, "unit": unit})

    def curve(table: pd.DataFrame, measure: str, **where: object) -> pd.Series:
        """`measure` over distance, where the other columns have these values."""
        for name, value in where.items():
            table = table[table[name] == value]
        return table.groupby("distance")[measure].mean()

    for kind, method in product(KINDS, ("nois", "vis", "tis", "ftis")):
        worth = curve(main, "progress_norm", kind=kind, method=method)
        half = curve(data, "progress_norm", block="alone", prompts=PROMPTS // 2, kind=kind).mean()
        finding = f"{METHODS[method].label} is worth less than the own half of the samples from"
        add("distance", finding, kind, crossing(worth.index, worth, half), "nats")
    for kind, method in product(("stronger", "hard"), ("nois", "vis", "ftis")):
        gain = curve(main, "progress_lr", kind=kind, method=method)[1.0]
        finding = f"gain of {METHODS[method].label} at Alone's learning rate, over Alone's"
        add("learning rate", finding, f"{kind}, KL = 1", gain, "ratio")
    for method in ("vis", "fvis", "tis"):
        sd = curve(main, "sd", method=method, kind="stronger")[2.0]
        finding = f"standard deviation of {METHODS[method].label} over Alone's"
        add("noise", finding, "stronger, KL = 2", sd, "ratio")

    plain = main.set_index(["kind", "distance", "method"])["progress_norm"]
    swept = data[data["block"] == "threshold"]
    for method in ("fnois", "fvis", "ftis"):
        table = swept[swept["method"] == method]
        without = [plain[kind, d, unfiltered(method)] for kind, d in table[["kind", "distance"]].to_numpy()]
        change, near = table["progress_norm"] - without, table["distance"] <= 1
        finding = f"change of worth by the filter, {METHODS[method].label}, "
        add("filter", finding + "mean", "KL <= 1, all kinds and g", change[near].mean(), "difference")
        add("filter", finding + "mean", "KL >= 2, all kinds and g", change[~near].mean(), "difference")
        for word, index in (("best", change.idxmax()), ("worst", change.idxmin())):
            row = table.loc[index]
            where = f"{row['kind']}, KL = {row['distance']:g}, g = {row['g']:g}"
            add("filter", finding + word, where, change[index], "difference")
        for where, part in (("KL <= 1, all kinds", table[near]), ("KL >= 2, all kinds", table[~near])):
            best = part.groupby("g")["progress_norm"].mean().idxmax()
            listed = ", ".join(f"{g:g}" for g in THRESHOLDS)
            add(
                "filter", f"g of the largest worth, {METHODS[method].label}, of {listed}", where, best, "nats"
            )
    halves = tables["exact_halves"].set_index(["left_out", "method", "distance"]).sort_index()
    for method, left_out, distance in product(("nois", "tis"), ("failures", "successes"), (1.0, 2.0)):
        rest = "successes" if left_out == "failures" else "failures"
        name, where = METHODS[method].label, f"KL = {distance:g}, all kinds"
        at = halves.loc[left_out, method, distance]
        add(
            "halves",
            f"cosine of foreign {rest} to grad J, {name}",
            where,
            at["foreign_cosine"].mean(),
            "cosine",
        )
        whole = halves.loc["none", method, distance]["progress_norm"].mean()
        change = at["progress_norm"].mean() - whole
        add("halves", f"change of worth without foreign {left_out}, {name}", where, change, "difference")
    caps = data[(data["block"] == "cap") & (data["method"] == "tis") & (data["distance"] == 1)]
    for cap, level in (*((c, "token") for c in CAPS), (CAP, "sequence"), (math.inf, "sequence")):
        part = caps[(caps["cap"] == cap) & (caps["weight_level"] == level)]
        finding = f"worth of TIS with C = {cap:g}, weight per {level}"
        add("cap", finding, "KL = 1, all kinds", part["progress_norm"].mean(), "cosine")
    split = data[(data["block"] == "split") & (data["split"] == "horizontal") & (data["nodes"] == 2)]
    for kind in KINDS:
        change = curve(split, "progress_norm", kind=kind, method="ftis")[1.0] - plain[kind, 1.0, "ftis"]
        add("split", "worth of F-TIS, horizontal less vertical", f"{kind}, KL = 1", change, "difference")
    estimates = tables["exact_kl"].groupby(["estimator", "distance"])[["mean", "sd"]].mean()
    for name in KL_ESTIMATORS:
        mean, sd = estimates.loc[name, 1.0]
        add("KL", f"mean of {name}", "KL = 1", mean, "nats")
        add("KL", f"standard deviation of {name} over completions", "KL = 1", sd, "nats")
    halfway = training["step"].max() // 2
    reward = training[training["step"] == halfway].set_index(["kind", "start", "node", "method"])["reward"]
    for (kind, start), method in product(STARTS, ("nois", "vis", "tis", "fnois", "ftis")):
        change = reward[kind, start, "learner", method] - reward[kind, start, "learner", "alone"]
        where = f"{kind}, KL = {start:g} at the start, learner at iteration {halfway}"
        add("training", f"reward of {METHODS[method].label} less Alone's", where, change, "probability")
    return pd.DataFrame(rows)


def standard_errors(rows: Mapping[str, pd.DataFrame], found: pd.DataFrame) -> list[float]:
    """Of each finding over problems, by the jackknife: from the same finding with each problem left out in
    turn.

    rows: the tables by problem. nan of one problem, of a choice (the best g), and where leaving a problem out
    changes what is named or makes it infinite.
    """
    problems = sorted(set().union(*(table["problem"] for table in rows.values())))
    count = len(problems)
    if count < 2:
        return [math.nan] * len(found)
    names, without = ["topic", "finding", "where"], []
    for left_out in problems:
        means = {
            name: over_problems(rows[name][rows[name]["problem"] != left_out], keys, ())
            for name, (_, keys, _) in TABLES.items()
        }
        again = findings(means).set_index(names)["value"]
        without.append(again.reindex(pd.MultiIndex.from_frame(found[names])).to_numpy(float))
    away = np.square(np.array(without) - found["value"].to_numpy(float)).sum(0)
    chosen = found["finding"].str.startswith("g of the largest worth")
    return np.where(chosen, math.nan, np.sqrt((count - 1) / count * away)).tolist()
