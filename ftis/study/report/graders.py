"""The report's section on grading: accuracy by our grader and by math-verify's own verdict, and where they
differ."""

from __future__ import annotations

import pandas as pd

from ftis.study.report.parts import (
    Block,
    Fold,
    Source,
    Table,
    Text,
    attempt,
    count,
    method_name,
    method_place,
    number,
    percent,
    points,
)

OPEN = 2
"""Answers of each way to differ that are shown openly; the others are folded away."""
VERDICTS = {"True": "✓ right", "False": "✗ wrong", "": "gave up"}
PLACES = {"id": "in distribution", "ood": "out of distribution"}
ABOUT = (
    "Others' numbers are often made with math-verify. Its verdict here is that of its defaults on the whole "
    "completion: "
    "it looks for the answer by its own rules, where ours asks for a complete <answer> tag or \\boxed{}. "
    "Claims, figures "
    "and all else here go by ours. docs/grading.md says what either accepts."
)


def graders(source: Source) -> list[Block]:
    needs = [
        "run",
        "node",
        "benchmark",
        "decoding",
        "dataset",
        "accuracy",
        "problems",
        "samples",
        "math_verify",
    ]
    counts = ["math_verify_faults", "only_ours", "only_math_verify"]
    scores = source.csv("tidy/scores.csv", [*needs, *counts])
    scores["answers"] = scores["problems"] * scores["samples"]
    for name in ("accuracy", "math_verify"):
        scores[name] *= scores["answers"]  # so that sums over rows are counts of answers
    where = ["benchmark", "decoding", "dataset"]
    rows = [
        [f"{dataset}\n{PLACES.get(benchmark, benchmark)}, {decoding}", *compared(group)]
        for (benchmark, decoding, dataset), group in scores.groupby(where, sort=False)
    ]
    heads = [
        "Answers",
        "Ours (%)",
        "math-verify (%)",
        "Difference",
        "Only ours",
        "Only math-verify",
        "Gave up",
    ]
    caption = (
        "Accuracy over the answers of all models and runs by each grader, the difference in points, the "
        "answers that "
        "only one of them accepts, and those on which math-verify gave up (its time was over or its process "
        "died), which count as wrong."
    )
    overall = Table(["Benchmark", *heads], rows, caption)
    blocks = [Text(ABOUT), overall, *attempt(by_method, source, scores, heads)]
    if scores["only_ours"].sum() + scores["only_math_verify"].sum() == 0:
        return [*blocks, Text("The two graders agree on every answer.")]
    return [*blocks, *attempt(where_they_differ, source)]


def compared(scores: pd.DataFrame) -> list[str]:
    """The cells of one row: numbers of answers, accuracies, who alone accepts."""
    total = scores["answers"].sum()
    ours, theirs = (scores[name].sum() / total for name in ("accuracy", "math_verify"))
    counts = (scores[name].sum() for name in ("only_ours", "only_math_verify", "math_verify_faults"))
    return [
        number(int(total)),
        percent(ours),
        percent(theirs),
        points(theirs - ours),
        *map(number, map(int, counts)),
    ]


def by_method(source: Source, scores: pd.DataFrame, heads: list[str]) -> list[Block]:
    runs = source.csv("tidy/runs.csv", ["run", "node", "method"])[["run", "node", "method"]]
    scores = scores.merge(runs, on=["run", "node"])
    scores["place"] = scores["method"].map(method_place)
    rows: list[list[str] | str] = []
    for (benchmark, decoding, dataset), tests in scores.groupby(
        ["benchmark", "decoding", "dataset"], sort=False
    ):
        rows.append(f"{dataset}, {PLACES.get(benchmark, benchmark)}, {decoding}")
        for _, group in tests.groupby("place"):
            rows.append([method_name(group["method"].iloc[0]), *compared(group)])
    return [Fold("By method", [Table(["Method", *heads], rows)])]


def where_they_differ(source: Source) -> list[Block]:
    kind = ["benchmark", "ours", "math_verify", "reason"]
    needs = ["kind_rows", "rows", "id", "gold", "extracted", "read"]
    texts = dict.fromkeys([*kind, "id", "gold", "extracted", "read"], str)
    table = source.csv("tidy/disagreements.csv", [*kind, *needs], dtype=texts, keep_default_na=False)
    order = {
        "benchmark": True,
        "kind_rows": False,
        "ours": True,
        "math_verify": True,
        "reason": True,
        "rows": False,
    }
    table = table.sort_values(list(order), ascending=list(order.values()), kind="stable")
    openly: list[list[str] | str] = []
    folded: list[list[str] | str] = []
    for (benchmark, ours, theirs, reason), group in table.groupby(kind, sort=False):
        who = "only ours accepts" if ours == "True" else "only math-verify accepts"
        title = (
            f"{PLACES.get(benchmark, benchmark).capitalize()}, {who}, ours says {reason}: "
            f"{count(int(group['kind_rows'].iloc[0]), 'answer')}"
        )
        verdicts = [VERDICTS[ours], VERDICTS[theirs]]
        rows = [
            [row.id, row.gold, row.extracted or "–", row.read or "–", *verdicts, number(row.rows)]
            for row in group.itertuples()
        ]
        openly += [title, *rows[:OPEN]]
        folded += [title, *rows[OPEN:]] if rows[OPEN:] else []
    heads = ["Question", "Gold", "Ours read", "math-verify read", "Ours", "math-verify", "Alike"]
    caption = (
        "Answers on which the graders differ, by our reason: what each took for the answer, both verdicts, "
        "and how "
        "many completions of all runs say the same. graded.jsonl in a run's folder has them all."
    )
    more = [Fold("More answers on which they differ", [Table(heads, folded)])] if folded else []
    return [Table(heads, openly, caption), *more]
