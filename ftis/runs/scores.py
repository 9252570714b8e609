"""Grading a generations file (`ftis.runs.answers`): every completion's verdicts, and accuracies by model and
test.

`scores.json` has the accuracies, by our grader and by math-verify's own verdict
(`ftis.tasks.grading.math_verify_verdict`), both with 95 % intervals, and pins the graders' versions. Beside
it `graded.jsonl` has a line a completion: node, test, id, sample, gold; answer, format, reason and extracted,
which are ours; math_verify (null where it gave up) and read, which are math-verify's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftis.files import write_atomic, write_json
from ftis.provenance import sha256, versions
from ftis.runs.answers import read_generations
from ftis.stats import mean_interval, pass_at_k, wilson
from ftis.swarm.asking import summary
from ftis.tasks.grading.math_verify_verdict import Theirs, math_verify_many
from ftis.tasks.grading.verdict import Verdict, grade_many

GRADERS = ("ftis", "math-verify", "latex2sympy2_extended", "sympy")

Graded = tuple[dict[str, Any], Verdict, Theirs]
"""A row of a generations file with our verdict and math-verify's."""


def score(generations: Path, out: Path) -> dict[str, Any]:
    """Grade a generations file; write `out` (scores.json) and graded.jsonl beside it; returns what `out`
    holds.

    Raises `UserError` for a file that isn't whole.
    """
    header, rows = read_generations(generations)
    ours = grade_many([(r["text"], r["gold"], r["task"]) for r in rows], shape=header["shape"])
    theirs = math_verify_many([(r["gold"], r["text"]) for r in rows])
    graded: dict[tuple[int, str], list[Graded]] = {}
    for row, mine, other in zip(rows, ours, theirs, strict=True):
        graded.setdefault((row["node"], row["test"]), []).append((row, mine, other))
    nodes = [
        {k: subject[k] for k in ("node", "name", "label")}
        | {
            "benchmarks": {
                role: {"dataset": test["dataset"], **_scores(graded[subject["node"], role])}
                for role, test in header["tests"].items()
            }
        }
        for subject in header["subjects"]
    ]
    scores = {
        "run": header.get("run"),
        "nodes": nodes,
        "graders": versions(GRADERS),
        "generations": {
            **{k: v for k, v in header.items() if k != "subjects"},
            "sha256": sha256(generations),
        },
    }
    lines = map(_line, rows, ours, theirs)
    write_atomic(out.with_name("graded.jsonl"), "".join(json.dumps(line) + "\n" for line in lines))
    write_json(out, scores)
    return scores


def _line(row: dict[str, Any], ours: Verdict, theirs: Theirs) -> dict[str, Any]:
    """A completion's line in graded.jsonl."""
    return {
        **{key: row[key] for key in ("node", "test", "id", "sample", "gold")},
        "answer": ours.answer, "format": ours.format, "reason": ours.reason, "extracted": ours.extracted,
        "math_verify": theirs.accepts, "read": theirs.read,
    }  # fmt: skip


def _scores(graded: Sequence[Graded]) -> dict[str, Any]:
    """One model on one test. With several samples a problem, `accuracy` is avg@k and `pass_at` follows."""
    ids = [row["id"] for row, _, _ in graded]
    ours = [mine.answer for _, mine, _ in graded]
    right: dict[str, list[bool]] = {}
    for problem, answer in zip(ids, ours, strict=True):
        right.setdefault(problem, []).append(answer)
    samples = len(next(iter(right.values())))
    result = summary([mine for _, mine, _ in graded], [row["finish"] == "length" for row, _, _ in graded])
    low, high = _interval(ids, ours)
    if samples > 1:
        ks = sorted({2**j for j in range(samples.bit_length()) if 2**j <= samples} | {samples})
        result["pass_at"] = {
            str(k): sum(pass_at_k(samples, sum(r), k) for r in right.values()) / len(right) for k in ks
        }
    by: dict[str, dict[str, list[bool]]] = {}
    for row, mine, _ in graded:
        for name, value in row["meta"].items():
            by.setdefault(name, {}).setdefault(str(value), []).append(mine.answer)
    return {
        **result, "problems": len(right), "samples": samples, "low": low, "high": high,
        "by": {
            name: {value: {"accuracy": sum(r) / len(r), "n": len(r)} for value, r in sorted(parts.items())}
            for name, parts in by.items()
        },
        "reasons": dict(Counter(mine.reason for _, mine, _ in graded)),
        "math_verify": _math_verify(ids, ours, [other for _, _, other in graded]),
    }  # fmt: skip


def _interval(ids: Sequence[str], right: Sequence[bool]) -> tuple[float, float]:
    """95 % interval of an accuracy over problems `ids`, one of which may have several samples."""
    by: dict[str, list[bool]] = {}
    for problem, verdict in zip(ids, right, strict=True):
        by.setdefault(problem, []).append(verdict)
    if len(by) == len(right):
        return wilson(sum(right), len(right))
    # Samples of one problem are no independent trials: the interval is over problems.
    return mean_interval([sum(samples) / len(samples) for samples in by.values()])


def _math_verify(ids: Sequence[str], ours: Sequence[bool], theirs: Sequence[Theirs]) -> dict[str, Any]:
    """Accuracy by math-verify's verdict, how often it gave up (which counts as wrong), and how many answers
    only one of the two graders accepts."""
    right = [bool(other.accepts) for other in theirs]
    low, high = _interval(ids, right)
    return {
        "accuracy": sum(right) / len(right), "low": low, "high": high,
        "faults": sum(other.accepts is None for other in theirs),
        "only_ours": sum(mine and not other for mine, other in zip(ours, right, strict=True)),
        "only_math_verify": sum(other and not mine for mine, other in zip(ours, right, strict=True)),
    }  # fmt: skip
