r"""Verdicts on completions: is the answer right, is the format right, and the binary reward.

Three things are kept apart. `answer`: the last complete `<answer>` tag, or else the last complete
`\boxed{}`, holds the gold answer. `format`: the completion has the asked shape (FORMATS). `reward`: both.
The reward alone makes a model look worse than it is: base models know far more answers than they can
format.

GSM8K answers are compared as exact numbers (`numbers`). MATH answers go through `answers`, whose algebra runs
in workers that can be killed (`pool`). Nothing here imports torch.
"""

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ftis.errors import UserError, unknown
from ftis.tasks.grading.answers import NeedsAlgebra, compare, read_gold
from ftis.tasks.grading.clean import Unreadable
from ftis.tasks.grading.extraction import FORMATS, extract
from ftis.tasks.grading.numbers import gold_number, read_number

FAULTS = ("timeout", "died", "error")  # reasons that are no verdict on the answer: the grader gave up


@dataclass(frozen=True, slots=True)
class Verdict:
    """answer, format: right or not; reward: 1.0 if both; reason: why (docs/grading.md lists the codes).

    extracted: the text that was compared, None if there was none; seconds: time spent on this pair.
    """

    answer: bool
    format: bool
    reward: float
    reason: str
    extracted: str | None
    seconds: float


def check_gold(gold: str, task: str) -> None:
    """Raise ValueError for a gold that no answer to the task can be compared with, as far as no algebra
    tells."""
    if task in NUMERIC:
        gold_number(gold)
        return
    try:
        read_gold(gold)
    except Unreadable as problem:
        raise ValueError(f"gold {gold[:60]!r} can't be read ({problem})") from None


# --- grading --------------------------------------------------------------------------------------

NUMERIC = ("gsm8k", "tiny")
TASKS = (*NUMERIC, "math500")


def grade(completion: str, gold: str, task: str, shape: str = "strict") -> Verdict:
    """The verdict on one completion; see `grade_many`.

    >>> verdict = ftis.grade("6 x 3 is <answer> 18 </answer>", gold="18", task="gsm8k")
    >>> isinstance(verdict, ftis.Verdict), verdict.answer, verdict.format, verdict.reason
    (True, True, False, 'equal')
    """
    return grade_many([(completion, gold, task)], shape)[0]


def grade_many(
    items: Iterable[tuple[str, str, str]],
    shape: str = "strict",
    limit_s: float = 5.0,
    workers: int | None = None,
) -> list[Verdict]:
    """Verdicts on (completion, gold, task), in order.

    shape: key of FORMATS; decides `format` and so `reward`, never `answer`. limit_s: seconds before a
    worker that compares one pair is killed. workers: processes, default one a core, at most 8; none is
    started unless a pair needs algebra. Raises UserError for an unknown task or shape, ValueError for a
    gold that is empty or, in GSM8K, no number, and pool.WorkerCannotStart where sympy is
    missing.
    """
    if shape not in FORMATS:
        raise unknown("format", shape, FORMATS)
    right_format = FORMATS[shape]
    verdicts: list[Verdict] = []
    # (gold, answer) -> where it is asked: the completions of a group repeat each other
    pending: dict[tuple[str, str], list[int]] = {}
    for completion, gold, task in items:
        since = time.perf_counter()
        formatted = right_format(completion)
        extracted, reason = extract(completion)
        correct = False
        if task in NUMERIC:
            target = gold_number(gold)
            if extracted is not None:
                value, reason = read_number(extracted)
                correct = value is not None and value == target
                reason = reason or ("equal" if correct else "different")
        elif task == "math500":
            if not gold.strip():
                raise ValueError("gold is empty")
            if extracted is not None:
                try:
                    correct, reason = compare(gold, extracted)
                except NeedsAlgebra:
                    pending.setdefault((gold, extracted), []).append(len(verdicts))
        else:
            raise unknown("task", task, TASKS)
        reward = float(correct and formatted)
        verdicts.append(Verdict(correct, formatted, reward, reason, extracted, time.perf_counter() - since))
    if pending:
        from ftis.tasks.grading.pool import shared_pool

        outcomes = shared_pool(workers).run(list(pending), limit_s)
        for places, outcome in zip(pending.values(), outcomes, strict=True):
            for i in places:
                old, same = verdicts[i], bool(outcome.same)
                seconds = old.seconds + outcome.seconds
                verdicts[i] = Verdict(
                    same, old.format, float(same and old.format), outcome.reason, old.extracted, seconds
                )
    return verdicts


def is_fault(verdict: Verdict) -> bool:
    """Whether the grader gave no verdict (timeout, died, error: ...): count these apart from wrong ones."""
    return verdict.reason.partition(":")[0] in FAULTS


# --- ftis grade -----------------------------------------------------------------------------------


def grade_file(path: str, out=None, shape: str = "strict", limit_s: float = 5.0, batch: int = 256) -> int:
    """Grade the JSON lines of `path` ("-": stdin) to `out` (default stdout); returns how many.

    In: `task`, `gold`, `completion`, optional `id`. Out: `id`, `correct`, `format`, `reward`, `answer`,
    `reason`, `seconds`. Raises UserError naming the first invalid line; the lines before it have been
    written by then.
    """
    out = out or sys.stdout
    try:
        source = sys.stdin if path == "-" else open(path, encoding="utf-8")  # noqa: SIM115 - stdin stays open
    except OSError as problem:
        raise UserError(f"{path}: can't be read: {problem.strerror}") from None
    done = 0
    rows: list[dict] = []
    try:
        for number, line in enumerate(source, 1):
            if line.strip():
                rows.append(_row(line, f"{path}: line {number}", number))
            if len(rows) == batch:
                done, rows = done + _write(rows, out, shape, limit_s), []
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except UserError:
        _write(rows, out, shape, limit_s)
        raise
    finally:
        if source is not sys.stdin:
            source.close()
    return done + _write(rows, out, shape, limit_s)


def _row(line: str, where: str, number: int) -> dict:
    """A checked input line; its line number stands in for a missing id."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{where}: not JSON ({problem}); write one object a line") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: not a JSON object; write one object with task, gold and completion")
    for field in ("task", "gold", "completion"):
        if not isinstance(row.get(field), str):
            raise UserError(
                f"{where}: field {field!r} is missing or no text; give task, gold and completion as strings"
            )
    if row["task"] not in TASKS:
        raise UserError(f"{where}: unknown task {row['task']!r}: choose one of {', '.join(sorted(TASKS))}")
    try:
        gold_number(row["gold"]) if row["task"] in NUMERIC else None
        if not row["gold"].strip():
            raise ValueError("gold is empty")
    except ValueError as problem:
        raise UserError(f"{where}: {problem}") from None
    return {"id": number, **row}


def _write(rows: list[dict], out, shape: str, limit_s: float) -> int:
    verdicts = grade_many([(r["completion"], r["gold"], r["task"]) for r in rows], shape, limit_s)
    for row, v in zip(rows, verdicts, strict=True):
        result = {"id": row["id"], "correct": v.answer, "format": v.format, "reward": v.reward}
        result |= {"answer": v.extracted, "reason": v.reason, "seconds": round(v.seconds, 6)}
        out.write(json.dumps(result) + "\n")
    out.flush()
    return len(rows)
