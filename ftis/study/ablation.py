"""Ablations: runs beside the same runs with one thing changed, compared seed by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from ftis.errors import UserError, unknown
from ftis.files import write_files
from ftis.method.methods import METHODS
from ftis.stats import t_interval
from ftis.study.runs import load_curves, load_scores, parse_json, read_text
from ftis.study.style import STYLE, fit, rendered
from ftis.study.tidy import commit_of
from ftis.suite.suite import Suite

CELL = ["setup", "method", "g", "split", "variant", "role"]


def ablation_data(name: str, tier: str, run_dirs: Sequence[Path]) -> pd.DataFrame:
    """One row a (run without its seed, node): accuracy after training and its differences.

    Columns: ablation, tier, variant, label, setup, method, g, role, model, seeds, metric, accuracy, low,
    high, then `difference` to the same run without the variant and `over_alone` to the same model trained
    alone, both over seeds that the two share, each with _low and _high of its 95 % paired t-interval (empty
    below two seeds), `filtered`, the mean share of foreign samples that the filter dropped, and `commit` and
    `processor`, what trained the runs. Alone has the variant too where that was run, except one that changes
    how many prompts a swarm deals out: there the question is what a node gains over training alone as it
    would have. Accuracies are fractions, on the id benchmark: sampled at T = 1 where the tier does that, else
    greedy.
    """
    known = Suite.load().grid.ablations
    if name not in known:
        raise unknown("ablation", name, known)
    if not run_dirs:
        raise UserError(
            f"ablation {name}: no runs given; `snakemake -c1 paper_figures/{tier}/ablation-{name}.csv`"
        )
    scores = load_scores(run_dirs, tier)
    metric = "id_sampled" if "id_sampled" in set(scores["benchmark"]) else "id"
    scores = scores[scores["benchmark"] == metric]
    dropped = load_curves(run_dirs, tier, {"filtered.foreign"}).groupby(["run", "node"])["value"].mean()
    made = _made(run_dirs)
    cells = {cell: rows.set_index("seed") for cell, rows in scores.groupby(CELL, sort=False)}
    rows = []
    for cell, found in cells.items():
        setup, method, g, split, variant, role = cell
        same = cells.get((setup, method, g, split, "", role))
        alone = cells.get((role, "alone", "", "", "", role))
        if method != "alone" and variant and "prompts" not in known[name].variants[variant].times:
            alone = cells.get((role, "alone", "", "", variant, role), alone)
        filtered = [dropped.get((r.run, r.node)) for r in found.itertuples()]
        rows.append(
            {
                "ablation": name,
                "tier": tier,
                "variant": variant,
                "label": known[name].variants[variant].label if variant else "as in the grid",
                "setup": setup,
                "method": method,
                "g": g,
                "role": role,
                "model": found["label"].iloc[0],
                "seeds": len(found),
                "metric": metric,
                **_mean("accuracy", "", found["accuracy"]),
                **_mean("difference", "difference_", _paired(found, same) if variant else None),
                **_mean("over_alone", "over_alone_", _paired(found, alone) if alone is not found else None),
                "filtered": pd.Series(filtered, dtype=float).mean() if METHODS[method].filtered else math.nan,
                **{
                    what: "; ".join(sorted({made[run][what] for run in found["run"]}))
                    for what in ("commit", "processor")
                },
            }
        )
    variants, methods = ["", *known[name].variants], list(METHODS)
    order = pd.DataFrame(
        [
            (methods.index(r["method"]), float(r["g"] or 0), variants.index(r["variant"]), r["role"])
            for r in rows
        ]
    )
    return pd.DataFrame(rows).loc[order.sort_values(list(order)).index].reset_index(drop=True)


def _made(run_dirs: Sequence[Path]) -> dict[str, dict[str, str]]:
    """Run -> the commit and the processor that it was trained with."""
    found = {}
    for folder in run_dirs:
        path = Path(folder) / "final.json"
        final = parse_json(read_text(path), str(path), path)
        processor = final["provenance"].get("cpu") or "unknown"
        found[path.parent.name] = {"commit": commit_of(final), "processor": processor}
    return found


def _mean(name: str, prefix: str, values: pd.Series | None) -> dict[str, float]:
    values = pd.Series(dtype=float) if values is None else values
    low, high = t_interval(values)
    return {name: values.mean(), f"{prefix}low": low, f"{prefix}high": high}


def _paired(found: pd.DataFrame, other: pd.DataFrame | None) -> pd.Series | None:
    return None if other is None else (found["accuracy"] - other["accuracy"]).dropna()


def make_ablation(name: str, tier: str, run_dirs: Sequence[Path], out: Path) -> None:
    """Write `ablation-{name}.csv`, `.pdf` and `.png` into the folder `out`."""
    data = ablation_data(name, tier, list(dict.fromkeys(map(Path, run_dirs))))
    stem = f"ablation-{name}"
    files = {f"{stem}.csv": data.round(6).to_csv(index=False, lineterminator="\n").encode()}
    with matplotlib.rc_context(STYLE):
        files |= rendered(stem, draw(data))
    write_files({Path(out) / file: content for file, content in files.items()})


def draw(data: pd.DataFrame) -> Figure:
    """A panel a model, a line a run: its accuracy minus that of the same model alone, with the 95 % interval.

    Hollow: the run as the grid has it.
    """
    shown = data[data["over_alone"].notna()]
    if shown.empty:
        raise UserError(
            f"ablation {data['ablation'][0]}: has no model alone to compare with; add it to `runs`"
        )
    several = shown.groupby("method")["g"].transform("nunique") > 1
    names = shown["method"].map(lambda m: METHODS[m].label)
    names = names.where(~several, names + ", g = " + shown["g"])
    if shown["variant"].any():
        names += ": " + shown["label"]
    lines = list(dict.fromkeys(names))
    roles = list(dict.fromkeys(shown["role"]))
    height = 1.5 + 0.21 * len(lines)
    figure = Figure(figsize=(3.0 + 2.6 * len(roles), height))
    axes = figure.subplots(1, len(roles), sharey=True, squeeze=False)[0]
    for axis, role in zip(axes, roles, strict=True):
        part = shown[shown["role"] == role]
        axis.axvline(0, color=METHODS["alone"].colour, linewidth=1)
        for name, row in zip(names[part.index], part.itertuples()):
            y, colour = lines.index(name), METHODS[row.method].colour
            if not math.isnan(row.over_alone_low):
                ends = [100 * row.over_alone_low, 100 * row.over_alone_high]
                axis.plot(ends, [y, y], color=colour, linewidth=1.4, solid_capstyle="butt")
            face = colour if row.variant else "white"
            axis.plot([100 * row.over_alone], [y], "o", color=colour, markerfacecolor=face, markersize=5.5)
        axis.set_title(data.loc[data["role"] == role, "model"].iloc[0])
        axis.set_xlabel("points over alone")
        axis.set_ylim(len(lines) - 0.5, -0.5)
    axes[0].set_yticks(range(len(lines)), lines, fontsize=8)
    table = Suite.load().grid.ablations[data["ablation"][0]]
    seeds = sorted({int(n) for n in data["seeds"]})
    how = "sampled at T = 1" if data["metric"][0] == "id_sampled" else "greedy"
    note = (
        f"Tier {data['tier'][0]}; {' or '.join(map(str, seeds))} seed{'s' if seeds[-1] > 1 else ''}; "
        f"accuracy {how} after "
        "training, minus that of the same model alone; lines: 95 % paired t-interval over seeds; hollow: as "
        "in the grid."
    )
    fit(
        figure.suptitle(
            table.title, x=0.01, ha="left", y=1 - 0.06 / height, va="top", size=10.5, weight="bold"
        )
    )
    fit(figure.text(0.01, 0.06 / height, note, size=7, color="0.3", va="bottom", ha="left"))
    figure.tight_layout(rect=(0, 0.25 / height, 1, 1 - 0.1 / height))
    return figure
