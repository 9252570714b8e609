"""math-verify's own verdict on completions, beside ours: what numbers that others made with it are compared
by.

It is what math-verify says when it is called as its users call it, with every default:

    verify(parse(f"${gold}$"), parse(completion))

The gold is LaTeX; of the completion the whole text is parsed, so that the library finds the answer by its own
rules (`LatexExtractionConfig` and `ExprExtractionConfig`), tag or not. One thing differs: its own time limits
are off. They are alarms, of no use against a computation inside C, and turn giving up into "no"; here the
worker (`ftis.tasks.grading.pool`) is killed, and giving up is `None`. An error that the library catches
itself is its "no", as it is for its users; that includes running out of the worker's memory where it catches
that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

LONGEST = 200
"""Characters kept of what math-verify read."""
PAIRS_A_WORKER = 2000
"""A worker takes half a second to start, in which another compares about a thousand short pairs."""


@dataclass(frozen=True)
class Theirs:
    """accepts: the verdict, None if math-verify gave none (time, memory, death); read: the text that it took
    for the answer, cut to `LONGEST` characters, empty if it took none; reason: why there is no verdict, else
    empty."""

    accepts: bool | None
    read: str = ""
    reason: str = ""


@lru_cache(maxsize=4096)
def _parsed_gold(gold: str) -> list:
    from math_verify import parse

    return parse(f"${gold}$", parsing_timeout=None)


def judge(gold: str, completion: str) -> tuple[bool, str]:
    """(verdict, "read " and what was read), without a limit of time: a worker's part."""
    from math_verify import parse, verify

    found = parse(completion, parsing_timeout=None)
    # `parse` gives values, then the text of the first match; a text alone is what it couldn't read as a
    # value.
    text = found[-1] if found and isinstance(found[-1], str) else ""
    return bool(verify(_parsed_gold(gold), found, timeout_seconds=None)), f"read {text[:LONGEST]}"


def math_verify_many(pairs: Sequence[tuple[str, str]], limit_s: float = 5.0) -> list[Theirs]:
    """math-verify's verdicts on (gold, completion), in order; equal pairs are judged once.

    limit_s: seconds before a worker that judges one pair is killed. Raises `WorkerCannotStart` (a UserError)
    where math-verify is missing.
    """
    from ftis.tasks.grading.pool import shared_pool

    distinct = list(dict.fromkeys(pairs))
    jobs = [(gold, completion, "math-verify") for gold, completion in distinct]
    outcomes = shared_pool().run(jobs, limit_s, at_most=1 + len(jobs) // PAIRS_A_WORKER)
    theirs = {
        pair: Theirs(None, reason=outcome.reason)
        if outcome.same is None
        else Theirs(outcome.same, outcome.reason.removeprefix("read "))
        for pair, outcome in zip(distinct, outcomes, strict=True)
    }
    return [theirs[pair] for pair in pairs]
