"""What nodes exchange: who samples what, the packed message, what is accepted from a peer.

A message is a fixed header, packed arrays and a checksum; nothing in it is ever unpickled or trusted
before `check` has passed it. Eight bytes a token (id and log-prob) and 17 a completion.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np

MAGIC, VERSION = b"FTIS", 1
LEAST_LOGPROB = -1e4  # far below any sampled token's; sums of what a peer claims must stay finite
_HEADER = struct.Struct("<4sHHI8sII")  # magic, version, node, step, run, completions, tokens
_LAYOUT = {  # array: dtype on the wire, in this order
    "prompt": "<i4",
    "sample": "<i4",
    "length": "<i4",
    "reward": "<f4",
    "finished": "?",
    "tokens": "<i4",
    "logprobs": "<f4",
}
_PER_TOKEN = ("tokens", "logprobs")
BYTES_A_TOKEN = sum(np.dtype(d).itemsize for k, d in _LAYOUT.items() if k in _PER_TOKEN)
BYTES_A_COMPLETION = sum(np.dtype(d).itemsize for k, d in _LAYOUT.items() if k not in _PER_TOKEN)
HEADER_BYTES = _HEADER.size
BYTES_A_MESSAGE = HEADER_BYTES + 4
"""What a message takes on the wire: 8 bytes a token, 17 a completion, and 32 with its checksum."""


@dataclass(frozen=True)
class Rollouts:
    """N completions of one node, packed: M tokens in all.

    prompt (N,) position in the iteration's prompts; sample (N,) index within the prompt's group;
    length (N,) tokens with the stop token; reward (N,); finished (N,) ended by a stop token;
    tokens (M,) ids and logprobs (M,) in nats, completion after completion.
    """

    prompt: np.ndarray
    sample: np.ndarray
    length: np.ndarray
    reward: np.ndarray
    finished: np.ndarray
    tokens: np.ndarray
    logprobs: np.ndarray

    def __len__(self) -> int:
        return len(self.length)

    def split(self, packed: np.ndarray) -> list[np.ndarray]:
        """Cut a packed (M,) array into one array a completion."""
        return np.split(packed, np.cumsum(self.length)[:-1])


def pack(
    prompt: list[int], sample: list[int], tokens: list[np.ndarray], logprobs: list[np.ndarray],
    reward: list[float], finished: list[bool],
) -> Rollouts:  # fmt: skip
    """Pack lists of one entry a completion."""
    return Rollouts(
        np.array(prompt, np.int32),
        np.array(sample, np.int32),
        np.array([len(t) for t in tokens], np.int32),
        np.array(reward, np.float32),
        np.array(finished, bool),
        np.concatenate(tokens).astype(np.int32),
        np.concatenate(logprobs).astype(np.float32),
    )


# ------------------------------------------------------------------------------------------ who samples


def owner(split: str, prompt: int, sample: int, nodes: int) -> int:
    """The node that samples a completion. Vertical: prompts are dealt out; horizontal: each group is."""
    return (prompt if split == "vertical" else sample) % nodes


def assignment(
    split: str, prompts: int, group_size: int, nodes: int, node: int
) -> list[tuple[int, list[int]]]:
    """A node's share of an iteration: for each of its prompts, the group indices that it samples."""
    share = [(p, [s for s in range(group_size) if owner(split, p, s, nodes) == node]) for p in range(prompts)]
    return [(p, samples) for p, samples in share if samples]


# ------------------------------------------------------------------------------------------ messages


@dataclass(frozen=True)
class Message:
    run: bytes
    """First 8 bytes of the run's recipe hash, so that runs never mix."""
    step: int
    node: int
    rollouts: Rollouts


class MessageError(Exception):
    """A message that isn't accepted. `reason` is a short code that is counted in the metrics."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def encode(message: Message) -> bytes:
    """The message as bytes, little-endian."""
    r = message.rollouts
    head = _HEADER.pack(MAGIC, VERSION, message.node, message.step, message.run, len(r), len(r.tokens))
    body = head + b"".join(
        np.ascontiguousarray(getattr(r, k), dtype).tobytes() for k, dtype in _LAYOUT.items()
    )
    return body + struct.pack("<I", zlib.crc32(body))


def message_size(head: bytes) -> int:
    """Bytes of the whole message that begins with the HEADER_BYTES `head`, as its counts say.

    Raises MessageError where it isn't the beginning of a message.
    """
    magic, version, _node, _step, _run, n, m = _HEADER.unpack_from(head)
    if magic != MAGIC:
        raise MessageError("not_a_message")
    if version != VERSION:
        raise MessageError("version", f"{version}, expected {VERSION}")
    return BYTES_A_MESSAGE + BYTES_A_COMPLETION * n + BYTES_A_TOKEN * m


def decode(data: bytes) -> Message:
    """Read a message. Raises MessageError unless every length adds up and the checksum is right."""
    if len(data) < BYTES_A_MESSAGE:
        raise MessageError("too_short", f"{len(data)} bytes")
    size = message_size(data)
    _magic, _version, node, step, run, n, m = _HEADER.unpack_from(data)
    if len(data) != size:
        raise MessageError("size", f"{len(data)} bytes, the header says {size}")
    if zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise MessageError("checksum")
    arrays, offset = {}, HEADER_BYTES
    for key, dtype in _LAYOUT.items():
        arrays[key] = np.frombuffer(data, dtype, m if key in _PER_TOKEN else n, offset)
        offset += arrays[key].nbytes
    return Message(run, step, node, Rollouts(**arrays))


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
