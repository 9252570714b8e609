"""What a node accepts from its peers: nothing before it has passed `check`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ftis.message import Message, MessageError, Rollouts, decode

LEAST_LOGPROB = -1e4  # far below any sampled token's; sums of what a peer claims must stay finite


@dataclass(frozen=True)
class Expected:
    """What a message from a given peer must agree with."""

    run: bytes
    step: int
    node: int
    share: dict[tuple[int, int], int]
    """(prompt, sample) that the peer was assigned -> the most tokens that completion may have."""
    vocab_size: int
    stop_ids: frozenset[int]
    rewards: frozenset[float]


def receive(data: bytes, expected: Expected) -> Rollouts:
    """The completions of a peer's message. Raises MessageError unless it passes every check."""
    share = expected.share
    message = decode(data, expected.vocab_size, len(share), sum(share.values()))
    check(message, expected)
    return message.rollouts


def check(message: Message, expected: Expected) -> None:
    """Raise MessageError unless the message is what the peer was to send, and possible."""
    r = message.rollouts
    for name in ("run", "step", "node"):
        if getattr(message, name) != getattr(expected, name):
            raise MessageError(f"other_{name}", repr(getattr(message, name)))
    if len(r) == 0 or (r.length < 1).any() or r.length.sum(dtype=np.int64) != len(r.tokens):
        raise MessageError("lengths")
    pairs = list(zip(r.prompt.tolist(), r.sample.tolist()))
    if len(set(pairs)) != len(pairs):
        raise MessageError("duplicate")
    if set(pairs) != set(expected.share):
        raise MessageError("assignment", "completions that weren't asked for, or not all that were")
    budget = np.array([expected.share[pair] for pair in pairs])
    if (r.length > budget).any():
        raise MessageError("too_long")
    if ((r.tokens < 0) | (r.tokens >= expected.vocab_size)).any():
        raise MessageError("token_id")
    if not ((r.logprobs <= 0) & (r.logprobs >= LEAST_LOGPROB)).all():  # false for NaN too
        raise MessageError("logprob")
    if not set(r.reward.tolist()) <= expected.rewards:
        raise MessageError("reward")
    stops = np.isin(r.tokens, list(expected.stop_ids))
    ends = np.cumsum(r.length) - 1
    if (stops[ends] != r.finished).any() or stops.sum() != r.finished.sum():
        raise MessageError("stop_token")
    if (~r.finished & (r.length != budget)).any():
        raise MessageError("truncation", "an unfinished completion that is shorter than its budget")
