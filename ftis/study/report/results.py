"""The report's sections on results: the paper beside ours, claims, figures, ablations, exact study, costs."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from ftis.stats import t_interval
from ftis.study.paper import figure_note, figure_title, summarise
from ftis.study.report.parts import (
    Absent,
    Block,
    Fold,
    Missing,
    Points,
    Source,
    Table,
    Text,
    any_table,
    attempt,
    by_difference,
    count,
    interval,
    method_name,
    method_place,
    number,
    percent,
    points,
    seed_counts,
    setup_place,
    setup_title,
    short,
)
from ftis.suite.suite import Suite

# Of each figure: where to look, and what the paper says of its own. What ours shows is computed.
PAIR = ("where F-TIS starts and ends against alone", "F-TIS ends level with alone, more slowly at first")
READING = {
    "fig1": ("how far from alone NoIS ends", "NoIS leaves both models worse than alone"),
    "fig2": (
        "the order of the three methods, and which of them reach alone",
        "TIS beats VIS on the larger model, and without the filter stays below alone",
    ),
    "fig3": (
        "how much of the gap between NoIS and alone the filter closes by itself",
        "F-NoIS removes most of NoIS's loss",
    ),
    **{f"fig{n}": PAIR for n in range(4, 10)},
    "fig10": (
        "which threshold leads early and which late, on each model",
        "a small g helps the small model early, a large g the large model late",
    ),
    "fig11": (
        "which method leads early and which late",
        "F-VIS starts faster and falls back late, F-TIS doesn't",
    ),
    "fig12": (
        "the gap between the two splits, on the larger model above all",
        "horizontal hurts the larger model, vertical doesn't",
    ),
}
# Of each figure of the exact study: the topics of its findings, and where to look.
EXACT = {
    "exact_bias": (
        (),
        "how each method's expected update turns from the true gradient as the other node gets further away.",
    ),
    "exact_progress": (
        ("noise", "distance", "learning rate"),
        "up to which distance a step is worth more than one on the node's own half of the prompts (dotted).",
    ),
    "exact_filter": (
        ("filter",),
        "at which distance and threshold g the filter makes a step worth more (orange) or less (violet).",
    ),
    "exact_halves": (
        ("halves",),
        "whether foreign successes or foreign failures point the right way, and what leaving the others out loses.",
    ),
    "exact_cap": (
        ("cap",),
        "what a larger cap C wins in direction (top), costs in noise (middle), and what is left (bottom).",
    ),
    "exact_kl": (
        ("KL",),
        "whether an estimator finds the true KL (1 in the left panel), how it scatters, when it exceeds g.",
    ),
    "exact_training": (
        ("training",),
        "the learner's expected reward, and below it the learner's and the stronger node's, less alone's.",
    ),
}
# Of each figure of economics: the cost, and where a node gains.
ECONOMICS = {
    "economics": ("own tokens", "at the same number of tokens that it sampled itself"),
    "economics_seconds": ("seconds", "after the same time of its own"),
    "economics_bytes": ("bytes sent", "in the end, and for how many bytes"),
}
DECODINGS = {"greedy": "greedy", "sampled": "at T = 1"}
EACH_BY_ITSELF = "Each by its own 95 % interval: of twenty that don't differ, about one is told apart."
# The series that the others of a figure are compared with: the first of these that it has.
REFERENCES = ("Alone", "F-TIS, g = 50", "F-TIS, vertical", "F-TIS")


# ---------------------------------------------------------------- paper against ours


def paper_against_ours(source: Source) -> list[Block]:
    return [*attempt(accuracies, source), *attempt(settings, source), *attempt(all_scores, source)]


def read_table2(source: Source) -> pd.DataFrame:
    numbers = ["paper_alone", "paper_ftis", "paper_difference", "alone", "ftis", "difference"]
    texts = ["pair", "paper_model", "model", "benchmark", "problems", "seeds"]
    return source.csv("table2.csv", [*texts, *numbers, "difference_low", "difference_high"])


def accuracies(source: Source) -> list[Block]:
    table = read_table2(source)
    both = "math_verify_alone" in table
    rows: list[list[str] | str] = []
    for pair, models in table.groupby("pair", sort=False):
        rows.append(str(pair))
        for row in models.itertuples():
            paper = (percent(row.paper_alone), percent(row.paper_ftis), points(row.paper_difference))
            ours = table2_cells(row)
            if both:
                by_other = table2_cells(row, "math_verify_")
                ours = [f"{cell}\n{below}" for cell, below in zip(ours, by_other, strict=True)]
            rows.append([row.paper_model, *paper, row.model, *ours])
    figures = ["Alone", "F-TIS", "Gain"]
    heads = ["Paper's model", *figures, "Our model", *figures, "95 % interval"]
    sets = sorted({f"{row.benchmark} ({number(row.problems)} problems)" for row in table.itertuples()})
    caption = (
        "Table 2: out-of-distribution accuracy (%) after training, alone and under F-TIS; gains in points. "
        f"Paper: MATH-500, one seed. Ours: {', '.join(sets)}, {seed_counts(table['seeds'])}; gains are "
        "paired by seed."
    )
    if both:
        caption += " Small, below ours: the same by math-verify's own verdict."
    return [Table(heads, rows, caption)]


def table2_cells(row: Any, by: str = "") -> list[str]:
    """Our accuracies alone and under F-TIS, the gain and its interval; `by` starts the columns of another grader."""
    alone, ftis, gain, low, high = (
        getattr(row, f"{by}{name}")
        for name in ("alone", "ftis", "difference", "difference_low", "difference_high")
    )
    return [percent(alone), percent(ftis), points(gain), interval(low, high) or "–"]


def settings(source: Source) -> list[Block]:
    table = source.csv("table1.csv", ["setting", "paper", "source", "ours"], dtype=str).fillna("–")
    caption = (
        "Sources: notes (public reading notes of the paper), code (its first author's public repository), "
        "seed (the summary that this reproduction started from)."
    )
    rows = table[["setting", "paper", "ours", "source"]].to_numpy().tolist()
    heads = ["Setting", "Paper", "Ours", "Source"]
    return [Fold("Table 1: settings, the paper's and ours", [Table(heads, rows, caption)])]


def all_scores(source: Source) -> list[Block]:
    """Mean and spread over seeds of every benchmark, of every kind of run."""
    kinds = ["setup", "method", "g", "split", "variant", "role"]
    texts = {name: str for name in kinds}
    runs = source.csv("tidy/runs.csv", ["run", "node", "seed", "label", *kinds], dtype=texts)
    runs[kinds] = runs[kinds].fillna("")
    needs = ["run", "node", "benchmark", "decoding", "accuracy", "format_rate"]
    scores = source.csv("tidy/scores.csv", needs)[needs].merge(runs, on=["run", "node"])
    columns = list(dict.fromkeys(zip(scores["benchmark"], scores["decoding"], strict=True)))
    roles = {role: place for place, role in enumerate(Suite.load().grid.roles)}
    order = {
        "setup": list(map(setup_place, scores["method"], scores["setup"])),
        "method": scores["method"].map(method_place),
        "g": pd.to_numeric(scores["g"]).fillna(0),
        "split": scores["split"] == "horizontal",
        "variant": scores["variant"],
        "role": scores["role"].map(roles),
    }
    scores = scores.loc[pd.DataFrame(order).sort_values(kinds, kind="stable").index]
    rows: list[list[str] | str] = []
    for (setup, method, g, split, variant, _), group in scores.groupby(kinds, sort=False):
        if (title := setup_title(method, setup)) not in rows:
            rows.append(title)
        details = ", ".join(filter(None, [g and f"g = {g}", split, variant])) or "–"
        cells = [group["label"].iloc[0], method_name(method), details, number(group["seed"].nunique())]
        for benchmark, decoding in columns:
            chosen = group[(group["benchmark"] == benchmark) & (group["decoding"] == decoding)]
            cells += [mean_and_spread(chosen["accuracy"]), percent(chosen["format_rate"].mean())]
        rows.append(cells)
    heads = ["Model", "Method", "Details", "Seeds"]
    for benchmark, decoding in columns:
        name = {"id": "In distribution", "ood": "Out of distribution"}.get(benchmark, benchmark)
        heads += [f"{name}, {decoding}", "Format"]
    caption = (
        "Accuracy (%), mean ± standard deviation over seeds, and the share of answers in the format (%)."
    )
    return [Fold("Every benchmark of every kind of run", [Table(heads, rows, caption)])]


def mean_and_spread(values: pd.Series) -> str:
    return percent(values.mean()) + (f" ± {percent(values.std(ddof=1))}" if len(values) > 1 else "")


# ---------------------------------------------------------------- claims


def read_claims(
    source: Source, file: str = "claims.csv", more: tuple[str, ...] = ("statement",)
) -> pd.DataFrame:
    """Claims or their components, effects as text in `measured`, `range` (the simultaneous interval where there
    is one) and `greedy`, accuracies in points; `needed`: how many seeds for which verdict."""
    table = source.csv(file, ["claim", "verdict", "effect", "low", "high", *more])
    unit = table["unit"].fillna("") if "unit" in table else pd.Series("accuracy", index=table.index)
    for name in ("low", "high"):
        if (wide := f"{name}_simultaneous") in table:
            table[name] = table[wide].fillna(table[name])
    shown = {
        name: [points(x) if u == "accuracy" else number(x) for x, u in zip(table[name], unit, strict=True)]
        for name in ("effect", "low", "high")
    }
    table["greedy"] = [points(x) for x in table.get("greedy_effect", pd.Series(math.nan, index=table.index))]
    table["measured"] = [
        text if u in ("", "accuracy") or text == "–" else f"{text} {u}"
        for text, u in zip(shown["effect"], unit, strict=True)
    ]
    ranges = zip(shown["low"], shown["high"], strict=True)
    table["range"] = ["–" if "–" in ends else " to ".join(ends) for ends in ranges]
    for name in ("component", "setup", "role", "note", "paper", "needed_seeds", "needed_for"):
        table[name] = table[name].fillna("").map(number).replace("–", "") if name in table else ""
    verdict = table["needed_for"].where(table["needed_for"] == "", " (" + table["needed_for"] + ")")
    table["needed"] = (table["needed_seeds"] + verdict).where(table["needed_seeds"] != "", "–")
    where = (table["setup"] + ", " + table["role"]).where(table["setup"] != table["role"], table["role"])
    where = where.str.strip(", ")
    table["test"] = table["component"] + (" (" + where + ")").where(where != "", "")
    return table


def claims(source: Source) -> list[Block]:
    table = read_claims(source)
    rows: list[list[str] | str] = []
    for row in table.itertuples():
        statement = row.statement + (f" ({row.paper})" if row.paper else "")
        seeds = number(getattr(row, "n_seeds", None))
        test = row.test and f"\n{row.test}"
        effects = (row.measured, row.range, row.greedy)
        rows.append([number(row.claim), statement + test, row.verdict, *effects, seeds])
    heads = ["", "Claim, and the test that decides it", "Verdict", "Effect", "95 % interval", "Greedy"]
    how = "sampled at T = 1" if "sampled" in set(table.get("decoding", ())) else "of greedy decoding"
    caption = (
        f"Effects in points of accuracy {how}, over paired seeds, where no unit stands; a positive one speaks for "
        "the claim, except in a test of being level. Intervals hold for all tests of a claim together; bytes have the "
        "range over nodes. Greedy: the same effect under greedy decoding, which decides nothing. docs/claims.md says "
        "how a verdict comes about."
    )
    notes = [Text(f"{row.note}.", f"Claim {number(row.claim)}:") for row in table.itertuples() if row.note]
    blocks: list[Block] = [Table([*heads, "Seeds"], rows, caption)]
    if notes:
        blocks.append(Points(notes))
    return [*blocks, *attempt(components, source)]


def components(source: Source) -> list[Block]:
    table = read_claims(source, "claims_components.csv", ("component",))
    rows: list[list[str] | str] = [
        [number(row.claim), row.test, row.verdict, row.measured, row.range, row.greedy, row.needed]
        for row in table.itertuples()
    ]
    heads = ["Claim", "Test", "Verdict", "Effect", "95 % interval", "Greedy", "Needed"]
    caption = (
        "Effects in points of accuracy. Each test's own interval; verdicts and needed seeds by a correction over "
        "all tests of this table, so that each may be quoted by itself. Needed: seeds for that verdict with a chance of "
        "80 %, at this effect and spread."
    )
    return [Fold("Every test behind the claims", [Table(heads, rows, caption)])]


def what_differs(source: Source) -> list[Block]:
    """Claims that don't hold, and gains of Table 2 whose sign isn't the paper's."""
    return [*attempt(claims_that_differ, source), *attempt(gains_that_differ, source)]


def claims_that_differ(source: Source) -> list[Block]:
    table = read_claims(source)
    listed = []
    for verdict, word in (("fails", "fails"), ("undecided", "is undecided")):
        for row in table[table["verdict"] == verdict].itertuples():
            parts = [f"{row.statement}."]
            if row.measured != "–":
                ends = f" ({row.range})" if row.range != "–" else ""
                parts.append(f"{row.test or 'Effect'}: {row.measured}{ends}.")
            if row.note:
                parts.append(f"{row.note[:1].upper()}{row.note[1:]}.")
            if verdict == "undecided" and row.needed_seeds:
                parts.append(f"Seeds that would decide it, at this effect and spread: {row.needed}.")
            listed.append(Text(" ".join(parts), f"Claim {number(row.claim)} {word}."))
    if not listed:
        return [Text(f"All of {count(len(table), 'claim')} hold.")]
    return [
        Text("Claims that fail or stay undecided; effects in points, with 95 % intervals:"),
        Points(listed),
    ]


def gains_that_differ(source: Source) -> list[Block]:
    table = read_table2(source)
    other = table[table["paper_difference"] * table["difference"] < 0]
    if other.empty:
        return [Text("No gain in Table 2 differs in sign from the paper's.")]
    listed = []
    for row in other.itertuples():
        ours = points(row.difference)
        if math.isnan(row.difference_low):
            ours += ", from one seed"
        else:
            zero = ", which includes 0" if row.difference_low <= 0 <= row.difference_high else ""
            ours += f" ({interval(row.difference_low, row.difference_high)}{zero})"
        listed.append(
            Text(f"paper {points(row.paper_difference)}, ours {ours}.", f"{row.pair}, {row.model}:")
        )
    blocks: list[Block] = [
        Text(f"{len(other)} of {count(len(table), 'gain')} in Table 2 differ in sign from the paper's:"),
        Points(listed),
    ]
    if (other["paper_model"] != other["model"]).any():
        blocks.append(
            Text("Models and problems here are others than the paper's, which this doesn't refute.")
        )
    return blocks


# ---------------------------------------------------------------- figures


def figures(source: Source) -> list[Block]:
    names = [name for name in Suite.load().grid.artefacts if name.startswith("fig")]
    there, missing = source.split(names, "{}.csv")
    return [block for name in there for block in attempt(figure, source, name)] + missing


def figure(source: Source, name: str) -> list[Block]:
    needs = ["tier", "run", "method", "g", "split", "seed", "node", "role", "label", "step", "value"]
    needs += ["decoding", "series", "problems", "samples"]
    data = source.csv(f"{name}.csv", needs, dtype={"g": str, "split": str})
    data = data.fillna({"g": "", "split": ""})
    title = figure_title(name, data)
    ours: list[Text] = []
    rows: list[list[str] | str] = []
    for how, words in DECODINGS.items():
        part = data[data["decoding"] == how]
        if not part.empty:
            found, compared, step, reference = endings(part)
            rows += [f"Accuracy {words} (%), differences to {reference} in points", *found]
            ours.append(
                Text(
                    f"{by_difference(compared, reference)} {EACH_BY_ITSELF}",
                    f"After iteration {step}, {words}, in points:",
                )
            )
    where, paper = READING.get(name, ("", ""))
    seen = [Text(f"{where}. The paper: {paper}.", "What to see:")] if where else []
    alt = (
        "Line chart, a panel a model: validation accuracy by iteration of "
        f"{', '.join(data['series'].unique())}."
    )
    heads = ["Model", "Series", "Seeds", "Mean of all steps", "At the end", "Difference", "95 % interval"]
    note = figure_note(data, summarise(data[data["decoding"] == data["decoding"].iloc[0]]))
    return [
        source.image(f"{name}.png", title, alt, [*seen, *ours]),
        Fold(f"Numbers of {title.split(':')[0]}", [Table(heads, rows, note)]),
    ]


def endings(data: pd.DataFrame) -> tuple[list[list[str]], list[tuple], int, str]:
    """Where curves end: rows of a table, the differences to one of them, the step, which one that is.

    The end is the last step that every curve has. Differences are paired by seed.
    """
    summary = summarise(data)
    step = int(summary.groupby(["series", "role"])["step"].max().min())
    first = next((name for name in REFERENCES if name in set(data["series"])), data["series"].iloc[0])
    rows, compared = [], []
    for (role, label), curves in data[data["step"] == step].groupby(["role", "label"], sort=False):
        curves = curves.set_index("seed")
        lone = curves.loc[curves["series"] == first, "value"]
        for series, curve in curves.groupby("series", sort=False):
            same = (summary["series"] == series) & (summary["role"] == role)
            path = summary[same & (summary["step"] <= step)]
            gain = (curve["value"] - lone).dropna()
            ends = t_interval(gain)
            difference = ["–", "–"]
            if series != first and len(gain):
                compared.append((series, label, gain.mean(), *ends))
                difference = [points(gain.mean()), interval(*ends) or "–"]
            over, end = percent(path["mean"].mean()), percent(curve["value"].mean())
            rows.append([label, series, number(len(curve)), over, end, *difference])
    return rows, compared, step, "alone" if first == "Alone" else first


# ---------------------------------------------------------------- ablations, exact study, economics


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


def exact_study(study: Source | None) -> list[Block]:
    if study is None:
        return [Missing("No folder of the exact study was given.")]
    about = Text(
        "A policy small enough to enumerate: what each method's update is on average and how much it "
        "scatters, computed and not sampled. Problems are drawn at random: se is the standard error over them. "
        "docs/exact.md says what it can show."
    )
    others = {path.stem for path in study.folder.glob("*.png")} - set(EXACT)
    there, missing = study.split([*EXACT, *sorted(others)], "{}.png")
    blocks = [block for name in there for block in attempt(exact_figure, study, name)]
    return [about, *blocks, *attempt(exact_findings, study, None), *(missing if there else [])]


def exact_figure(study: Source, name: str) -> list[Block]:
    topics, what = EXACT.get(name, ((), ""))
    title = name.removeprefix("exact_").replace("_", " ").capitalize()
    caption = [Text(what, "What to see:")] if what else []
    image = study.image(
        f"{name}.png", title, f"{title}, a figure of the exact study. {what}".strip(), caption
    )
    return [image, *(attempt(exact_findings, study, topics) if topics else [])]


def exact_findings(study: Source, topics: tuple[str, ...] | None) -> list[Block]:
    """The findings on `topics`; None: those that no figure has."""
    table = study.csv("exact_findings.csv", ["topic", "finding", "value"])
    if topics is None:
        shown = {topic for with_figure, _ in EXACT.values() for topic in with_figure}
        topics = tuple(topic for topic in table["topic"].unique() if topic not in shown)
    table = table[table["topic"].isin(topics)]
    if table.empty:
        return []
    return [Fold(f"Numbers: {', '.join(topics)}", [any_table(table.drop(columns="topic"))])]


def economics(source: Source) -> list[Block]:
    pictures = [block for name in ECONOMICS for block in attempt(economics_figure, source, name)]
    return [*pictures, *attempt(joining, source), *attempt(paper_scale, source)]


def economics_figure(source: Source, name: str) -> list[Block]:
    cost, when = ECONOMICS[name]
    where = f"whether a node is higher in the swarm than alone {when}."
    alt = f"Validation accuracy over {cost}, a panel a pair. Look at {where}"
    return [source.image(f"{name}.png", f"Accuracy for {cost}", alt, [Text(where, "What to see:")])]


def joining(source: Source) -> list[Block]:
    """What a node gains and pays by joining, per set-up; the meaning of columns is in `ftis.study.economics`."""
    gains = ("gain", "gain_equal_tokens", "gain_equal_seconds")
    spans = [f"{name}{end}" for name in gains for end in ("", "_low", "_high")]
    costs = ["alone_tokens", "swarm_tokens", "seconds_saved", "seconds_saved_low", "traffic", "break_even"]
    needs = ["setup", "method", "g", "split", "label", *spans, *costs]
    table = source.csv("economics.csv", needs, dtype={"g": str}).fillna({"g": "", "split": ""})
    rows: list[list[str] | str] = []
    for setup, nodes in table.groupby("setup", sort=False):
        rows.append(setup_title("", setup))
        for row in nodes.itertuples():
            details = ", ".join(filter(None, [row.g and f"g = {row.g}", row.split]))
            rows.append(
                [
                    f"{row.label}\n{method_name(row.method)}, {details}",
                    points(row.gain),
                    interval(row.gain_low, row.gain_high) or "–",
                    points(row.gain_equal_tokens),
                    interval(row.gain_equal_tokens_low, row.gain_equal_tokens_high) or "–",
                    points(row.gain_equal_seconds),
                    interval(row.gain_equal_seconds_low, row.gain_equal_seconds_high) or "–",
                    f"{short(row.swarm_tokens)} / {short(row.alone_tokens)}",
                    short(row.traffic, "B"),
                    short(row.break_even, "B/s") if row.seconds_saved_low > 0 else "–",
                ]
            )
    heads = ["Model", "Gain", "95 % interval", "Gain, equal tokens", "95 % interval"]
    heads += ["Gain, equal seconds", "95 % interval"]
    heads += ["Own tokens / alone", "Traffic", "Break-even"]
    caption = (
        "Gains over alone in points of validation accuracy: at the end, when both had sampled as many tokens, and "
        "when both had worked as long (where the first of the two ends). Tokens and traffic an iteration. Break-even: "
        "the bandwidth above which moving the bytes takes less time than joining saves here in sampling, grading and "
        "checking; a dash where a saving isn't established (its 95 % interval reaches 0)."
    )
    return [Table(heads, rows, caption), Fold("All columns of economics.csv", [any_table(table)])]


def paper_scale(source: Source) -> list[Block]:
    table = any_table(source.csv("economics_paper.csv"), "Seconds, bytes and bytes a second, an iteration.")
    return [Fold("The same at the paper's scale, computed from stated assumptions", [table])]
