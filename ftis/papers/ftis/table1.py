"""Table 1: the paper's settings beside those of runs."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pandas as pd

from ftis.config import NodeConfig, RunConfig
from ftis.papers.ftis.published import paper_values
from ftis.study.latex import escape, latex_table
from ftis.suite.suite import Suite
from ftis.tasks.problems import Dataset

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
            found["learning rate, full"] = rate(node.learning_rate)
        else:
            targets = node.lora.target_modules or "default targets"
            named = targets if isinstance(targets, str) else " ".join(targets)
            found["learning rate, LoRA"] = rate(node.learning_rate)
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


def rate(value: float) -> str:
    """1e-06 as 1e-6, 0.00015 as 1.5e-4."""
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def over_runs(values: Mapping[str, str], listed: bool) -> str:
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
        ours = over_runs(values, row.quantity in LISTED)
        rows.append({"setting": row.quantity, "paper": row.value, "source": row.source, "ours": ours})
    return pd.DataFrame(rows)


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
