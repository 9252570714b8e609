"""Asking a model problems: its completions as text, and what verdicts on them come to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ftis.tasks.grading.verdict import Verdict, is_fault
from ftis.tasks.problems import Problem
from ftis.tasks.prompts import encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ftis.model.sampler import Completion, Sampler


def completion_text(tokenizer: PreTrainedTokenizerBase, completion: Completion) -> str:
    """What is graded: the decoded completion without its stop token."""
    tokens = completion.tokens[:-1] if completion.finished else completion.tokens
    return str(tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def complete(
    tokenizer: PreTrainedTokenizerBase,
    sampler: Sampler,
    problems: Sequence[Problem],
    prompt: str,
    max_new_tokens: int,
    key: tuple[int, ...],
    samples: int,
    greedy: bool = False,
    temperature: float = 1.0,
    max_batch: int = 1024,
    start: int = 0,
) -> Iterator[tuple[int, int | None, Completion, str]]:
    """(problem index, sample index, completion, its text) for each problem from `start` on, in order; the
    sample None is the greedy one, which comes first.

    `key` decides the random draws together with the problem's and the sample's index.
    """
    from ftis.model.sampler import Request, SamplingParams  # torch only where a model is asked

    params = SamplingParams(max_new_tokens, temperature, max_batch=max_batch)
    wanted = [None] * greedy + list(range(samples))
    step = max(1, max_batch // len(wanted))
    for first in range(start, len(problems), step):
        requests = [
            Request(
                encode_prompt(prompt, problems[i].question, tokenizer),
                [None if s is None else (*key, i, s) for s in wanted],
            )
            for i in range(first, min(first + step, len(problems)))
        ]
        for i, group in enumerate(sampler.sample(requests, params), first):
            for s, completion in zip(wanted, group, strict=True):
                yield i, s, completion, completion_text(tokenizer, completion)


def summary(verdicts: Sequence[Verdict], truncated: Sequence[bool]) -> dict[str, float]:
    """Accuracy (answer right, whatever its form), format rate and share truncated."""
    n = len(verdicts)
    return {
        "accuracy": sum(v.answer for v in verdicts) / n,
        "format_rate": sum(v.format for v in verdicts) / n,
        "truncated": sum(truncated) / n,
        # Timeouts and dead workers are no wrong answers, though they count as such in the accuracy.
        "grader_faults": sum(map(is_fault, verdicts)),
        "n": n,
    }
