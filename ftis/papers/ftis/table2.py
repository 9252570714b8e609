"""Table 2: out-of-distribution scores, the paper's beside ours.

Accuracies are fractions; columns that end in `_pct` and the LaTeX are in percent.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from ftis.errors import UserError
from ftis.papers.ftis.published import paper_values
from ftis.stats import t_interval
from ftis.study.figures import listed
from ftis.study.latex import escape, latex_table
from ftis.suite.suite import Suite


def table2(scores: pd.DataFrame) -> pd.DataFrame:
    """Table 2: out-of-distribution accuracy alone and under vertical F-TIS, the paper's beside ours.

    One row a (pair, model) that `scores` has an F-TIS run of, in the paper's order. Ours is over the seeds
    that both runs have, so the difference is paired by seed; its interval is the 95 % t-interval (empty for
    one seed), sd the sample standard deviation. Fractions, and the same in percent with one decimal in the
    columns that end in `_pct`. Columns that start with `math_verify_` are ours by math-verify's own verdict;
    they are there if the scores have it.
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
                f"table2: {setup} has F-TIS runs with g = {listed(pair['g'])}; name those of one threshold"
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
                **{f"{name}_pct": pct(value) for name, value in fractions.items()},
            }
        )
    if not rows:
        raise UserError("table2: no run of vertical F-TIS with a score on the out-of-distribution set")
    return pd.DataFrame(rows)


def _paired(alone: pd.Series, ftis: pd.Series) -> dict[str, float]:
    """Accuracies by seed: their means, standard deviations, and the mean difference with its 95 %
    interval."""
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


def pct(fraction: float) -> str:
    """Percent with one decimal; empty for nan. Rounded half away from zero, as a reader would."""
    if math.isnan(fraction):
        return ""
    tenths = math.floor(abs(fraction) * 1000 + 0.5 + 1e-9)
    return f"{'-' if fraction < 0 and tenths else ''}{tenths // 10}.{tenths % 10}"


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
