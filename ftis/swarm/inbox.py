"""What a node takes from its peers, who are strangers: nothing that hasn't passed every check.

A message that is wrong as a whole is refused. In a sound one, a completion that fails takes with it what its
sender gave of that group, and the rest is used; other nodes' samples of the group stay, else one node could
void the work of all. A peer of which something is refused too often in a row is distrusted from then on.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ftis.swarm.message import Message, MessageError, Rollouts, decode

log = logging.getLogger(__name__)

LEAST_LOGPROB = -1e4  # far below any sampled token's; sums of what a peer claims must stay finite
UNVERIFIED = "unverified"
"""The reason that no peer is blamed for: the local grader gave up."""

Grade = Callable[[Rollouts], Sequence[float | None]]
"""The rewards of completions, None where the grader gave up."""


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
    rewards: frozenset[float] = frozenset({0.0, 1.0})


def receive(data: bytes, expected: Expected, grade: Grade | None = None) -> tuple[Rollouts, Counter[str]]:
    """What may be used of a peer's message, and how many completions were refused by reason.

    `grade` recomputes rewards. Raises MessageError for a message that is refused whole.
    """
    share = expected.share
    message = decode(data, expected.vocab_size, len(share), sum(share.values()))
    check(message, expected)
    r = message.rollouts
    reasons = faults(r, expected)
    if grade is not None and (rows := np.flatnonzero(_sound(r, reasons))).size:
        for row, reward in zip(rows, grade(r.only(rows))):
            if reward is None:
                reasons[row] = UNVERIFIED
            elif reward != r.reward[row]:
                reasons[row] = "reward_differs"
    return r.only(np.flatnonzero(_sound(r, reasons))), Counter(reasons[reasons != ""].tolist())


def check(message: Message, expected: Expected) -> None:
    """Raise MessageError unless the message is what the peer was to send, completion for completion."""
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


def faults(r: Rollouts, expected: Expected) -> np.ndarray:
    """(N,) why a completion is impossible, "" where it is possible. `r` has passed `check`."""
    ends = np.cumsum(r.length)
    starts = ends - r.length
    budget = np.array([expected.share[pair] for pair in zip(r.prompt.tolist(), r.sample.tolist())])
    unknown_id = (r.tokens < 0) | (r.tokens >= expected.vocab_size)
    likely = (r.logprobs <= 0) & (r.logprobs >= LEAST_LOGPROB)  # false for NaN too
    stops = np.isin(r.tokens, list(expected.stop_ids))
    found = {
        "too_long": r.length > budget,
        "token_id": np.logical_or.reduceat(unknown_id, starts),
        "logprob": ~np.logical_and.reduceat(likely, starts),
        "reward": ~np.isin(r.reward, np.array(list(expected.rewards), np.float32)),
        # One at the end of a finished completion, and none anywhere else.
        "stop_token": (stops[ends - 1] != r.finished)
        | (np.add.reduceat(stops.astype(np.int64), starts) != r.finished),
        "truncation": ~r.finished & (r.length != budget),
    }
    reasons = np.full(len(r), "", dtype="<U16")
    for reason, bad in found.items():
        reasons[bad & (reasons == "")] = reason
    return reasons


def _sound(r: Rollouts, reasons: np.ndarray) -> np.ndarray:
    """(N,) whether nothing is wrong with any completion of that prompt."""
    return ~np.isin(r.prompt, r.prompt[reasons != ""])


@dataclass
class Inbox:
    """A node's mail, and what it has come to think of its peers."""

    node: int
    patience: int
    """Iterations in a row with something refused, after which a peer is distrusted."""
    mail: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(step, sender, message) that wait to be used."""
    failing: dict[int, int] = field(default_factory=dict)
    """Peer -> iterations in a row with something refused."""
    distrusted: dict[int, int] = field(default_factory=dict)
    """Peer -> the first iteration in which nothing of it is taken any more."""
    refused: Counter[str] = field(default_factory=Counter)
    """Reason -> messages refused whole and completions, in this iteration."""
    dropped: int = 0
    """Completions of peers that this iteration goes without, for these reasons."""

    def begin(self) -> None:
        """Start an iteration's counts."""
        self.refused, self.dropped = Counter(), 0

    def put(self, step: int, received: Iterable[tuple[int, bytes]]) -> None:
        """Keep (sender, message) of an iteration until they are due; a distrusted peer's aren't."""
        self.mail += [(step, sender, data) for sender, data in received if sender not in self.distrusted]

    def due(self, step: int) -> list[tuple[int, int, bytes]]:
        """Take out the messages that were sent in iteration `step` or before."""
        due = [m for m in self.mail if m[0] <= step]
        self.mail = [m for m in self.mail if m[0] > step]
        return due

    def open(self, step: int, data: bytes, expected: Expected, grade: Grade | None) -> Rollouts | None:
        """What may be used of a due message in iteration `step`; what is refused is counted and logged."""
        sender = expected.node
        if sender in self.distrusted:
            return None
        try:
            taken, reasons = receive(data, expected, grade)
            what = f"completions of node {sender}: " + ", ".join(f"{n} x {why}" for why, n in reasons.items())
        except MessageError as error:
            taken, reasons, what = None, Counter({error.reason: 1}), f"the message of node {sender}: {error}"
        used = len(taken) if taken else 0
        self.refused += reasons
        self.dropped += len(expected.share) - used
        if reasons:
            log.info(
                "iteration %d: node %d refuses %s; %d of %d are used",
                step,
                self.node,
                what,
                used,
                len(expected.share),
            )
        self.failing[sender] = self.failing.get(sender, 0) + 1 if reasons.keys() - {UNVERIFIED} else 0
        if self.failing[sender] >= self.patience:
            self.distrusted[sender] = step + 1
            self.mail = [m for m in self.mail if m[1] != sender]
            log.info(
                "node %d takes nothing of node %d from iteration %d on: something of it was refused %d times "
                "in a row",
                self.node, sender, step + 1, self.failing[sender],
            )  # fmt: skip
        return taken if used else None

    def opinion(self) -> dict[str, Any]:
        """What a checkpoint keeps besides the mail, as JSON."""
        return {
            name: {str(k): n for k, n in getattr(self, name).items()} for name in ("failing", "distrusted")
        }

    def restore(self, opinion: dict[str, Any]) -> None:
        """Put back what `opinion` gave."""
        for name, peers in opinion.items():
            setattr(self, name, {int(k): n for k, n in peers.items()})
