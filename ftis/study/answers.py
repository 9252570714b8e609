"""Answers of finished runs to be read: the same questions by several models, and where the two graders
differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftis.errors import UserError
from ftis.study.runs import make_target, named, parse_json, read_text
from ftis.suite.suite import Suite
from ftis.tasks.problems import load_problems

SHOWN = ("start", "alone", "nois", "tis", "ftis")
"""Methods whose completions are kept, g = 50 where they filter, of the paper's first pair."""
QUESTIONS = 3
"""A benchmark."""
DIFFERING = 5
"""Answers kept of each way to differ."""
LONGEST = 100
"""Characters kept of what a grader read."""


def read_graded(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's graded.jsonl (`ftis.runs.scores`)."""
    path = folder / "graded.jsonl"
    lines = read_text(path).splitlines()
    rows = [parse_json(line, f"{path}, line {n}", path) for n, line in enumerate(lines, start=1)]
    needs = {
        "node",
        "test",
        "id",
        "sample",
        "gold",
        "answer",
        "format",
        "reason",
        "extracted",
        "math_verify",
        "read",
    }
    if rows and (lacking := needs - set(rows[0])):
        raise UserError(f"{path}: lacks {min(lacking)!r}; delete it and {make_target(path)}")
    return rows


def completions(run_dirs: Sequence[Path], tier: str) -> list[dict[str, Any]]:
    """The first sampled (else greedy) answer to the first questions of each benchmark, by the models of one
    seed of the size pair: before training, alone, and under the methods `SHOWN`."""
    chosen = [(folder, Suite.load().run(folder.name)) for folder in run_dirs]
    pair = ("base_small", "base_large")
    shown = [
        (folder, run)
        for folder, run in chosen
        if run.method in SHOWN
        and not run.variant
        and run.split == "vertical"
        and run.threshold in (None, 50.0)
        and (run.setup == "size_base" or run.setup in pair)
    ]
    if not shown:
        return []
    seed = shown[0][1].seed
    questions = {
        (role, p.id): p.question
        for role, b in Suite.load().benchmarks(tier).items()
        for p in load_problems(b.data)
    }
    rows, called = [], Suite.load().labels(tier)
    for folder, run in shown:
        if run.seed != seed:
            continue
        graded = {(row["node"], row["test"], row["id"], row["sample"]): row for row in read_graded(folder)}
        with open(folder / "generations.jsonl") as file:
            header = json.loads(next(file))
            wanted = _first_questions(header)
            subjects = {s["node"]: named(s, called) for s in header["subjects"]}
            counts: dict[tuple, set] = {}
            for line in file:
                row = json.loads(line)
                ids = counts.setdefault((row["node"], row["test"]), set())
                if row["test"] not in wanted or row["sample"] or len(ids) >= QUESTIONS:
                    continue
                ids.add(row["id"])
                verdict = graded.get((row["node"], row["test"], row["id"], row["sample"]))
                if verdict is None:
                    path = folder / "graded.jsonl"
                    raise UserError(
                        f"{path}: lacks the answer to {row['id']}; delete it and {make_target(path)}"
                    )
                subject = subjects[row["node"]]
                benchmark = row["test"].removesuffix("_sampled")
                rows.append({
                    "run": folder.name, "method": run.method, "setup": run.setup, "role": subject["role"],
                    "label": subject["label"], "seed": run.seed, "benchmark": benchmark, "id": row["id"],
                    "question": questions[benchmark, row["id"]], "gold": row["gold"], "sample": row["sample"],
                    "text": row["text"], "correct": verdict["answer"], "format": verdict["format"],
                    "math_verify": verdict["math_verify"],
                })  # fmt: skip
    return rows


def _first_questions(header: Mapping[str, Any]) -> set[str]:
    """The sampled tests where there are any, else the greedy ones."""
    sampled = {name for name in header["tests"] if name.endswith("_sampled")}
    return sampled or set(header["tests"])


def disagreements(run_dirs: Sequence[Path]) -> list[dict[str, Any]]:
    """Of each way to differ, the `DIFFERING` answers that most completions share.

    A way is a benchmark, both verdicts and our reason; `kind_rows` counts its completions in all runs, `rows`
    those with this answer. run, node, test and sample are of the first such completion.
    """
    kinds: dict[tuple, dict[tuple, dict[str, Any]]] = {}
    for folder in run_dirs:
        for row in read_graded(folder):
            if row["answer"] == bool(row["math_verify"]):
                continue
            benchmark = row["test"].removesuffix("_sampled")
            extracted, read = (" ".join((row[key] or "").split())[:LONGEST] for key in ("extracted", "read"))
            kind = kinds.setdefault((benchmark, row["answer"], row["math_verify"], row["reason"]), {})
            same = kind.setdefault(
                (row["id"], row["gold"], extracted, read),
                {
                    "benchmark": benchmark,
                    "ours": row["answer"],
                    "math_verify": row["math_verify"],
                    "reason": row["reason"],
                    "id": row["id"],
                    "gold": row["gold"],
                    "extracted": extracted,
                    "read": read,
                    "run": folder.name,
                    "node": row["node"],
                    "test": row["test"],
                    "sample": row["sample"],
                    "rows": 0,
                },
            )
            same["rows"] += 1
    kept = []
    for kind in kinds.values():
        total = sum(row["rows"] for row in kind.values())
        most = sorted(kind.values(), key=lambda row: -row["rows"])[:DIFFERING]
        kept += [{**row, "kind_rows": total} for row in most]
    return kept
