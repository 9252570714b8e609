"""From finished runs to the paper's artefacts: tidy tables of curves and scores, Table 1, Table 2.

Everything here is a function of run folders (`results/{tier}/runs/{run}`) and of the published
numbers in `workflow/config/paper_values.csv`. Accuracies are fractions throughout, as in the files
they come from; columns that end in `_pct` and all drawings are in percent. `ftis.study.plots` draws.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from ftis.config import NodeConfig, RunConfig, load_run
from ftis.errors import UserError, unknown
from ftis.method.methods import METHODS
from ftis.stats import t_interval
from ftis.suite.grid import SINGLE
from ftis.suite.suite import Suite
from ftis.tasks.problems import Dataset

PAPER_VALUES = Path(__file__).parents[2] / "workflow" / "config" / "paper_values.csv"

RUN_COLUMNS = ["run", "setup", "method", "g", "split", "variant", "seed"]


# ---------------------------------------------------------------- reading runs


def make_target(path: Path) -> str:
    """How to make a missing file of a run: the Snakemake command with the path's target."""
    parts = path.parts
    if "results" in parts:
        start = len(parts) - 1 - parts[::-1].index("results")
        parts = parts[start:]
    return f"make it with `snakemake -c1 {Path(*parts)}`"


def read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: no such file; {make_target(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: can't be read ({error})") from None


def parse_json(text: str, where: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON ({error.msg}); delete it and {make_target(path)}") from None


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Leaves of a nested record as (dotted name, number); nulls, texts and booleans are passed over."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{name}.{index}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def load_curves(run_dirs: Sequence[Path], tier: str, metrics: Collection[str] | None = None) -> pd.DataFrame:
    """Tidy curves of a tier's runs: one row a (run, node, step, metric).

    Columns: run, setup, method, g, split, variant, seed, node, role, label, step, metric, value. Metrics are
    named by their place in metrics.jsonl, joined by dots and without `validation`, e.g.
    `greedy.accuracy` (a fraction), `reward`, `filtered.foreign`. `metrics` keeps only those named.
    """
    rows, called = [], Suite.load().labels(tier)
    for folder in run_dirs:
        run = run_columns(folder.name)
        path = folder / "metrics.jsonl"
        for number, line in enumerate(read_text(path).splitlines(), start=1):
            record = parse_json(line, f"{path}, line {number}", path)
            try:
                for node in record["nodes"]:
                    rest = {k: v for k, v in node.items() if k not in ("node", "name", "label", "validation")}
                    who = named(node, called)
                    for metric, value in _numbers({**(node.get("validation") or {}), **rest}):
                        if metrics is None or metric in metrics:
                            rows.append(
                                {**run, **who, "step": record["step"], "metric": metric, "value": value}
                            )
            except (KeyError, TypeError, AttributeError) as error:
                raise UserError(
                    f"{path}, line {number}: lacks {error}; delete it and {make_target(path)}"
                ) from None
    return pd.DataFrame(rows, columns=[*RUN_COLUMNS, "node", "role", "label", "step", "metric", "value"])


def load_scores(run_dirs: Sequence[Path], tier: str) -> pd.DataFrame:
    """Tidy scores of a tier's runs: one row a (run, node, benchmark).

    Columns: run, setup, method, g, split, variant, seed, node, role, label, benchmark (id or ood), dataset,
    accuracy, low, high, n, format_rate, truncated, math_verify (accuracy by math-verify's own verdict).
    """
    fields = ["dataset", "accuracy", "low", "high", "n", "format_rate", "truncated"]
    rows, called = [], Suite.load().labels(tier)
    for folder in run_dirs:
        run = run_columns(folder.name)
        path = folder / "scores.json"
        scores = parse_json(read_text(path), str(path), path)
        try:
            for node in scores["nodes"]:
                who = named(node, called)
                for benchmark, score in node["benchmarks"].items():
                    found = {field: score.get(field) for field in fields}
                    found["accuracy"] = float(score["accuracy"])
                    found["math_verify"] = float(score["math_verify"]["accuracy"])
                    rows.append({**run, **who, "benchmark": benchmark, **found})
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: lacks {error}; delete it and {make_target(path)}") from None
    return pd.DataFrame(
        rows, columns=[*RUN_COLUMNS, "node", "role", "label", "benchmark", *fields, "math_verify"]
    )


def named(node: Mapping[str, Any], called: Mapping[str, str]) -> dict[str, Any]:
    """A node of a run's files as the columns node, role and label: as its role is called now, else as it was."""
    role, label = node["name"], node["label"]
    return {"node": node["node"], "role": role, "label": called.get(role, label)}


def run_columns(slug: str) -> dict[str, Any]:
    """A run's name as the columns `RUN_COLUMNS`.

    g is text ("50"), empty where there is no filter; split is empty for a run alone, whose setup is its role.
    variant is that of an ablation, else empty.
    """
    run = Suite.load().run(slug)
    g = "" if run.threshold is None else f"{run.threshold:g}"
    split = "" if run.method in SINGLE else run.split
    values = (slug, run.setup, run.method, g, split, run.variant, run.seed)
    return dict(zip(RUN_COLUMNS, values, strict=True))


# ---------------------------------------------------------------- statistics over seeds


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


# ---------------------------------------------------------------- figures


DECODINGS = ("greedy", "sampled")


def figure_data(figure_id: str, tier: str, run_dirs: Sequence[Path]) -> pd.DataFrame:
    """What a figure is drawn from: validation accuracy (a fraction) of the runs it is given, greedy as in the paper,
    and sampled at T = 1 where every run has it (greedy saturates on easy problems).

    Columns: figure, tier, those of `load_curves`, decoding (greedy or sampled), series (the curve's name in the
    legend), problems (number of validation problems) and samples (of each). Rows are ordered as they are drawn. A run that doesn't belong on
    the figure, and a curve without any run, are errors; further runs of the same pair are drawn too.
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
    thresholds = _listed(data.loc[data["g"] != "", "g"])
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


def _listed(numbers: pd.Series) -> str:
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


# ---------------------------------------------------------------- Table 1: settings

FILTER_RULES = {
    "negative_and_far": "A < 0 and KL > g",
    "nonpositive_and_far": "A <= 0 and KL > g",
    "nonpositive_or_far": "A <= 0 or KL > g",
}
# Rows whose values are listed where runs differ; of the others each value is named with its runs.
LISTED = {"models", "filter threshold, g", "seeds"}


def settings_of(config: RunConfig) -> dict[str, str]:
    """A run's settings in the words of Table 1's rows; a row that the run has no value for is left out."""
    readings, rollout, optim, validation = config.readings, config.rollout, config.optim, config.validation
    autocast = " (bf16 autocast)" if any(n.compute_dtype == "bfloat16" for n in config.nodes) else ""
    found = {
        "models": ", ".join(dict.fromkeys(_model(node) for node in config.nodes)),
        "iterations": f"{config.iterations}",
        "prompts an iteration, B": f"{config.prompts}",
        "completions a prompt, G": f"{config.group_size}",
        "clip range of VIS, eps": f"{config.eps:g}",
        "cap of TIS, C": f"{config.cap:g}",
        "optimizer": {"adam": "Adam", "adamw": "AdamW"}[optim.name]
        + f", fp32 weights{autocast}, gradient clip {optim.clip}, "
        + (f"weight decay {optim.weight_decay:g}, " if optim.weight_decay else "")
        + (f"warm-up over {optim.warmup} iterations" if optim.warmup else "no warm-up"),
        "updates an iteration": f"{optim.mini_batches}",
        "sampling": f"T = {rollout.temperature:g}, "
        + (f"top_k {readings.top_k}" if readings.top_k else "full support"),
        "token budget": f"{rollout.max_total_tokens} with the prompt"
        if rollout.max_total_tokens
        else f"{rollout.max_new_tokens} new",
        "advantage": "divided by the group's std" if readings.advantage_scale == "std" else "not divided",
        "importance weight": f"per {readings.weight_level}",
        "age of foreign completions": f"{config.staleness} iterations",
        "reward": f"1 if format ({config.reward}) and answer are right, else 0",
        "training data": _dataset(config.train),
        "seeds": f"{config.seed}",
    }
    for node in config.nodes:
        if node.lora is None:
            found["learning rate, full"] = _rate(node.learning_rate)
        else:
            targets = node.lora.target_modules or "default targets"
            named = targets if isinstance(targets, str) else " ".join(targets)
            found["learning rate, LoRA"] = _rate(node.learning_rate)
            found["LoRA"] = f"r {node.lora.r}, alpha {node.lora.alpha}, dropout 0, {named}"
    if config.threshold is not None:
        found["filter threshold, g"] = f"{config.threshold:g}"
        found["filtered when"] = FILTER_RULES[readings.filter_rule]
        found["KL estimate"] = f"{readings.kl_estimator}, {readings.kl_reduction.replace('_', ' ')}"
        found["filtered samples in the mean"] = readings.filtered_denominator
    if validation.data is not None:
        samples = f" and {validation.samples} samples at T = 1" if validation.samples else ""
        found["validation data"] = _dataset(validation.data)
        found["validation"] = (
            f"every {validation.every} iterations, greedy{samples}, {validation.max_new_tokens} new tokens"
        )
    return found


def _model(node: NodeConfig) -> str:
    # A folder under results/ is the tier's own warm start, one a seed: its label says more than its path.
    if node.model.startswith("results/"):
        return node.label
    return node.model + (f" at {node.revision[:7]}" if node.revision else "")


def _dataset(data: Dataset) -> str:
    size = f"{data.limit} problems of " if data.limit else ""
    order = "" if data.shuffle_seed is None else f", shuffled (seed {data.shuffle_seed})"
    return f"{size}{data.name} {data.split}{order}"


def _rate(value: float) -> str:
    """1e-06 as 1e-6, 0.00015 as 1.5e-4."""
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _over_runs(values: Mapping[str, str], listed: bool) -> str:
    """One setting over the runs {slug: value}: the value, or each value with the runs that have it."""
    groups: dict[str, list[str]] = {}
    for slug, value in values.items():
        run = Suite.load().run(slug)
        kind = "alone" if run.method == "alone" else f"{run.setup} {run.split}"
        kinds = groups.setdefault(value, [])
        if kind not in kinds:
            kinds.append(kind)
    if len(groups) < 2:
        return next(iter(groups), "-")
    if listed:
        parts = dict.fromkeys(part for value in groups for part in value.split(", "))
        numeric = all(re.fullmatch(r"[\d.]+", part) for part in parts)
        return ", ".join(sorted(parts, key=float) if numeric else parts)
    common = max(groups, key=lambda value: len(groups[value]))
    named = [f"{value} ({', '.join(kinds)})" for value, kinds in groups.items() if value != common]
    return "; ".join([*named, f"{common} (otherwise)"])


def table1(configs: Mapping[str, RunConfig]) -> pd.DataFrame:
    """Table 1: the paper's settings beside those of the runs {slug: settings}.

    Columns: setting, paper, source, ours.
    """
    settings = {slug: settings_of(config) for slug, config in configs.items()}
    published = paper_values()
    rows = []
    for row in published[published["artefact"] == "table1"].itertuples():
        values = {slug: found[row.quantity] for slug, found in settings.items() if row.quantity in found}
        ours = _over_runs(values, row.quantity in LISTED)
        rows.append({"setting": row.quantity, "paper": row.value, "source": row.source, "ours": ours})
    return pd.DataFrame(rows)


# ---------------------------------------------------------------- Table 2: scores


def paper_values() -> pd.DataFrame:
    """The published numbers, all columns as text: artefact, pair, role, quantity, value, source.

    Sources: notes (public reading notes of the paper), code (the first author's public repository),
    seed (the summary this project started from). Table 2's numbers are fractions. `headline` holds
    the gains stated in the summary beside what Table 2 gives for the row whose gain is nearest.
    """
    try:
        return pd.read_csv(PAPER_VALUES, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise UserError(
            f"{PAPER_VALUES}: no such file; it is part of the repository: `git checkout -- {PAPER_VALUES}`"
        ) from None


def table2(scores: pd.DataFrame) -> pd.DataFrame:
    """Table 2: out-of-distribution accuracy alone and under vertical F-TIS, the paper's beside ours.

    One row a (pair, model) that `scores` has an F-TIS run of, in the paper's order. Ours is over the
    seeds that both runs have, so the difference is paired by seed; its interval is the 95 % t-interval
    (empty for one seed), sd the sample standard deviation. Fractions, and the same in percent with one
    decimal in the columns that end in `_pct`. Columns that start with `math_verify_` are ours by math-verify's
    own verdict; they are there if the scores have it.
    """
    published = paper_values()
    values = published.set_index(["artefact", "pair", "role", "quantity"])["value"]
    ood = scores[scores["benchmark"] == "ood"]
    both = "math_verify" in ood and ood["math_verify"].notna().all()
    rows = []
    models = published[(published["artefact"] == "table2") & (published["quantity"] == "model")]
    for setup, role, model in models[["pair", "role", "value"]].itertuples(index=False):
        pair = ood[(ood["setup"] == setup) & (ood["method"] == "ftis") & (ood["split"] == "vertical")]
        if pair.empty:
            continue
        if pair["g"].nunique() > 1:
            raise UserError(
                f"table2: {setup} has F-TIS runs with g = {_listed(pair['g'])}; name those of one threshold"
            )
        node = pair[pair["role"] == role].set_index("seed")
        lone = ood[(ood["method"] == "alone") & (ood["role"] == role)].set_index("seed")
        seeds = sorted(set(node.index) & set(lone.index))
        if not seeds:
            wanted = f"alone-{role}-s{pair['seed'].min()}"
            raise UserError(
                f"table2: no run of {role} alone with a seed of its F-TIS run; name it: --run {wanted}"
            )
        paper_alone = float(values["table2", setup, role, "alone"])
        paper_ftis = float(values["table2", setup, role, "ftis"])
        fractions = {
            "paper_alone": paper_alone,
            "paper_ftis": paper_ftis,
            # Three decimals are published: the rest would be rounding noise of the subtraction.
            "paper_difference": round(paper_ftis - paper_alone, 6),
            **_paired(lone.loc[seeds, "accuracy"], node.loc[seeds, "accuracy"]),
        }
        if both:
            by = _paired(lone.loc[seeds, "math_verify"], node.loc[seeds, "math_verify"])
            fractions |= {f"math_verify_{name}": value for name, value in by.items()}
        rows.append(
            {
                "pair": Suite.load().grid.setups[setup].title,
                "setup": setup,
                "role": role,
                "paper_model": model,
                "model": node.loc[seeds, "label"].iloc[0],
                "benchmark": node.loc[seeds, "dataset"].iloc[0],
                "problems": node.loc[seeds, "n"].iloc[0],
                "seeds": len(seeds),
                **fractions,
                **{f"{name}_pct": _pct(value) for name, value in fractions.items()},
            }
        )
    if not rows:
        raise UserError("table2: no run of vertical F-TIS with a score on the out-of-distribution set")
    return pd.DataFrame(rows)


def _paired(alone: pd.Series, ftis: pd.Series) -> dict[str, float]:
    """Accuracies by seed: their means, standard deviations, and the mean difference with its 95 % interval."""
    gain = ftis - alone
    low, high = t_interval(gain)
    return {
        "alone": alone.mean(),
        "alone_sd": alone.std(ddof=1),
        "ftis": ftis.mean(),
        "ftis_sd": ftis.std(ddof=1),
        "difference": gain.mean(),
        "difference_low": low,
        "difference_high": high,
    }


def _pct(fraction: float) -> str:
    """Percent with one decimal; empty for nan. Rounded half away from zero, as a reader would."""
    if math.isnan(fraction):
        return ""
    tenths = math.floor(abs(fraction) * 1000 + 0.5 + 1e-9)
    return f"{'-' if fraction < 0 and tenths else ''}{tenths // 10}.{tenths % 10}"


# ---------------------------------------------------------------- LaTeX

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def escape(text: object) -> str:
    """Text for LaTeX: every character that means something to it is spelt out."""
    return "".join(_ESCAPES.get(character, character) for character in str(text))


def latex_table(caption: str, label: str, columns: str, head: list[str], body: list[str], size: str) -> str:
    """A complete table environment in booktabs style; `caption` is plain text, the rest LaTeX."""
    return "\n".join(
        [
            r"% Needs \usepackage{booktabs}. Written by ftis; edits are lost.",
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{escape(caption)}}}",
            rf"\label{{tab:{label}}}",
            size,
            rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
            r"\toprule",
            *head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def table1_tex(table: pd.DataFrame, tier: str) -> str:
    """Table 1 as LaTeX."""
    body = [
        " & ".join(escape(cell) for cell in row) + r" \\"
        for row in table[["setting", "paper", "source", "ours"]].itertuples(index=False)
    ]
    wrapped = [
        rf">{{\raggedright\arraybackslash}}p{{{width}\linewidth}}" for width in (0.17, 0.27, 0.14, 0.3)
    ]
    caption = (
        f"Settings of the paper and of the {tier} tier. Sources: notes (public reading notes of the paper), "
        "code (its first author's public repository)."
    )
    text = latex_table(
        caption,
        f"{tier}-settings",
        "".join(wrapped),
        [f"Setting & Paper & Source & Tier {escape(tier)} \\\\"],
        body,
        r"\footnotesize",
    )
    return text.replace(r"\usepackage{booktabs}.", r"\usepackage{array,booktabs}.", 1)


def table2_tex(table: pd.DataFrame, tier: str) -> str:
    """Table 2 as LaTeX: percent, the pair named once, the interval beside our difference."""
    published = paper_values()
    several = table["seeds"].max() > 1

    def signed(text: str) -> str:
        return f"${text}$" if text.startswith("-") or text == "0.0" else f"$+{text}$"

    def with_sd(mean: str, sd: str) -> str:
        return rf"${mean} \pm {sd}$" if sd else mean

    def ours(row: Any, by: str = "") -> list[str]:
        alone, alone_sd, ftis, ftis_sd, difference, low, high = (
            getattr(row, f"{by}{name}_pct")
            for name in (
                *("alone", "alone_sd", "ftis", "ftis_sd"),
                *("difference", "difference_low", "difference_high"),
            )
        )
        interval = f" $[{low}, {high}]$" if low else ""
        return [with_sd(alone, alone_sd), with_sd(ftis, ftis_sd), signed(difference) + interval]

    both = "math_verify_alone" in table
    body, previous = [], None
    for row in table.itertuples():
        if row.setup != previous:
            body += [] if previous is None else [r"\addlinespace"]
            body.append(rf"\multicolumn{{8}}{{l}}{{\emph{{{escape(row.pair)}}}}} \\")
            previous = row.setup
        paper = [
            escape(row.paper_model.removeprefix("Qwen2.5-")),
            row.paper_alone_pct,
            row.paper_ftis_pct,
            signed(row.paper_difference_pct),
        ]
        body.append(" & ".join([*paper, escape(row.model), *ours(row)]) + r" \\")
        if both:
            body.append(
                " & ".join([*[""] * 4, r"\emph{by math-verify}", *ours(row, "math_verify_")]) + r" \\"
            )
    counts = sorted(table["seeds"].unique())
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    benchmarks = sorted({f"{row.benchmark} ({row.problems} problems)" for row in table.itertuples()})
    stated, found = (
        ", ".join(f"{100 * float(v):g}" for v in published.loc[published["quantity"] == name, "value"])
        for name in ("gain_stated", "gain_in_table2")
    )
    spread = (
        " Ours: mean and standard deviation over seeds; difference with its 95 % paired t-interval."
        if several
        else ""
    )
    grader = (
        " Our grader, and below it math-verify's own verdict on the same answers (docs/grading.md)."
        if both
        else ""
    )
    caption = (
        "Out-of-distribution accuracy (%), trained alone and under F-TIS. "
        "Paper: Qwen2.5 on MATH-500, one seed. "
        f"Tier {tier}: {', '.join(benchmarks)}, {seeds} seed{'' if seeds == '1' else 's'}.{spread}{grader} "
        f"The gains stated in the summary of the paper ({stated} %) are {found} points in its table."
    )
    head = [
        rf"\multicolumn{{4}}{{c}}{{Paper}} & \multicolumn{{4}}{{c}}{{Tier {escape(tier)}}} \\",
        r"\cmidrule(lr){1-4} \cmidrule(lr){5-8}",
        r"Model & Alone & F-TIS & Diff. & Model & Alone & F-TIS & Diff. \\",
    ]
    return latex_table(caption, f"{tier}-ood", "lrrrlrrr", head, body, r"\footnotesize\tabcolsep=3pt")


# ---------------------------------------------------------------- writing


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write all files or none: each under a temporary name beside its own, renamed when all are there."""
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in files}
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary[path].write_bytes(content)
        for path in files:
            os.replace(temporary[path], path)
    except OSError as error:
        raise UserError(
            f"{error.filename or path}: can't be written ({error.strerror}); choose another --out"
        ) from None
    finally:
        for path in temporary.values():
            with suppress(OSError):
                path.unlink()


def make_table(table_id: str, tier: str, run_dirs: Sequence[Path], out: Path) -> None:
    """Write `{table_id}.csv` and `{table_id}.tex` into the folder `out`.

    Table 1 given no runs shows the settings that the tier's runs would have.
    """
    if table_id not in TABLES:
        raise unknown("table", table_id, TABLES)
    table, tex = TABLES[table_id](list(dict.fromkeys(map(Path, run_dirs))), tier)
    write_files(
        {
            Path(out) / f"{table_id}.csv": table.to_csv(index=False, lineterminator="\n").encode(),
            Path(out) / f"{table_id}.tex": tex.encode(),
        }
    )


def _make_table1(run_dirs: Sequence[Path], tier: str) -> tuple[pd.DataFrame, str]:
    # Without runs, those that the tier would make: the table asks for settings and needs no training.
    configs = (
        {} if run_dirs else {run.slug: Suite.load().resolve(tier, run) for run in Suite.load().runs(tier)}
    )
    for folder in run_dirs:
        path = folder / "config.yaml"
        if not path.exists():
            raise UserError(f"{path}: no such file; {make_target(path.with_name('final.json'))}")
        configs[folder.name] = load_run(path)
    table = table1(configs)
    return table, table1_tex(table, tier)


def _make_table2(run_dirs: Sequence[Path], tier: str) -> tuple[pd.DataFrame, str]:
    if not run_dirs:
        raise UserError(
            f"table2: no runs given; name them with --run, or `snakemake -c1 paper_figures/{tier}/table2.csv`"
        )
    table = table2(load_scores(run_dirs, tier))
    return table, table2_tex(table, tier)


TABLES = {"table1": _make_table1, "table2": _make_table2}
