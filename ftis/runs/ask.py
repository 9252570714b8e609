"""Completions of a policy in one call, for looking at what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ftis.model.check import attach
from ftis.model.policy import Policy
from ftis.model.sampler import Request, SamplingParams, TransformersSampler
from ftis.swarm.asking import completion_text


@dataclass(frozen=True)
class Answer:
    """A sampled completion."""

    text: str
    tokens: np.ndarray
    """(T,) ids, the stop token among them."""
    logprobs: np.ndarray
    """(T,) nats, at the temperature that was sampled with."""
    finished: bool
    """Ended by a stop token, and not cut off."""


def sample(
    policy: Policy,
    prompts: Sequence[str],
    n: int = 1,
    max_new_tokens: int = 256,
    temperature: float = 1.0,
    seed: int = 0,
) -> list[list[Answer]]:
    """`n` completions of each prompt, or with temperature 0 the greedy one (n times the same).

    Prompts are literal text, tokenised without a template. The draws depend on (seed, prompt's index,
    completion's index) alone.

    >>> policy = ftis.load_policy("examples/made/base", device="cpu")
    >>> ((first, second),) = ftis.sample(policy, ["Tom has 12 pens."], n=2, max_new_tokens=8)
    >>> len(first.tokens) == len(first.logprobs) <= 8
    True
    """
    requests = [
        Request(
            policy.tokenizer(prompt, add_special_tokens=False)["input_ids"],
            [None if temperature == 0 else (seed, i, k) for k in range(n)],
        )
        for i, prompt in enumerate(prompts)
    ]
    params = SamplingParams(max_new_tokens, temperature or 1.0)
    return [
        [Answer(completion_text(policy.tokenizer, c), c.tokens, c.logprobs, c.finished) for c in group]
        for group in attach(policy, TransformersSampler).sample(requests, params)
    ]
