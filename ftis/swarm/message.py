"""What crosses the wire: completions packed and compressed without loss, under a header and a checksum.

A column is written byte plane after byte plane, which puts like with like: the exponents of log-probs, the
high bits of ids. Ids have the vocabulary's width, and deflate gives their top bits no more room than they
need. Nothing is ever unpickled, and how much memory a message may take is known before it is unpacked.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np

BYTES_A_TOKEN, BYTES_A_COMPLETION, BYTES_A_MESSAGE = 8, 17, 32
"""What the paper's plain packing takes: id and log-prob of four bytes each, 17 bytes of facts a completion,
a header. Plans are made with these; what a run really sent is in its metrics."""

MAGIC, VERSION = b"FTIS", 2
# magic, version, node, step, run, completions, tokens, bits of an id, bytes between header and checksum
_HEADER = struct.Struct("<4sHHI8sIIBI")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _HEADER.size
_LEVEL = 6  # of deflate: 9 gains less than 0.1 %
_COLUMNS = {  # array: its type here, in this order on the wire
    "prompt": np.int32,
    "sample": np.int32,
    "length": np.int32,
    "reward": np.float32,
    "finished": np.bool_,
    "tokens": np.int32,
    "logprobs": np.float32,
}
_PER_TOKEN = ("tokens", "logprobs")


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

    def only(self, rows: np.ndarray) -> Rollouts:
        """The completions at the positions `rows`, which ascend."""
        mask = np.zeros(len(self), bool)
        mask[rows] = True
        tokens = np.repeat(mask, self.length)
        return Rollouts(
            self.prompt[mask], self.sample[mask], self.length[mask], self.reward[mask], self.finished[mask],
            self.tokens[tokens], self.logprobs[tokens],
        )  # fmt: skip


def pack(
    prompt: list[int], sample: list[int], tokens: list[np.ndarray], logprobs: list[np.ndarray],
    reward: list[float], finished: list[bool],
) -> Rollouts:  # fmt: skip
    """Pack lists of one entry a completion; they may be empty."""
    return Rollouts(
        np.array(prompt, np.int32),
        np.array(sample, np.int32),
        np.array([len(t) for t in tokens], np.int32),
        np.array(reward, np.float32),
        np.array(finished, bool),
        np.concatenate([np.empty(0, np.int32), *tokens]).astype(np.int32),
        np.concatenate([np.empty(0, np.float32), *logprobs]).astype(np.float32),
    )


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


def id_bits(vocab_size: int) -> int:
    """Bits that an id of the vocabulary takes: 18 for 151,936."""
    return max(1, (vocab_size - 1).bit_length())


def encode(message: Message, vocab_size: int) -> bytes:
    """The message as bytes, little-endian. Raises ValueError for an id beyond the vocabulary's width."""
    r, bits = message.rollouts, id_bits(vocab_size)
    if len(r.tokens) and (r.tokens.min() < 0 or int(r.tokens.max()) >> bits):
        raise ValueError(f"token ids from {r.tokens.min()} to {r.tokens.max()} don't fit {bits} bits")
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
    parts: list[bytes] = []
    for name, kind in _COLUMNS.items():
        values: np.ndarray = np.ascontiguousarray(getattr(r, name), kind)
        octets = values.view(np.uint8).reshape(-1, values.itemsize)
        for plane in range(_octets(name, bits)):
            # A block of its own, so that each plane has the code that suits it: two bits of 18 cost two.
            parts += [deflate.compress(octets[:, plane].tobytes()), deflate.flush(zlib.Z_BLOCK)]
    parts.append(deflate.flush())
    body = b"".join(parts)
    facts = (message.node, message.step, message.run, len(r), len(r.tokens), bits, len(body))
    sealed = _HEADER.pack(MAGIC, VERSION, *facts) + body
    return sealed + _CHECKSUM.pack(zlib.crc32(sealed))


def message_size(head: bytes) -> int:
    """Bytes of the whole message that begins with the HEADER_BYTES `head`, as it says itself.

    Raises MessageError where it isn't the beginning of a message.
    """
    magic, version, *_, body = _HEADER.unpack_from(head)
    if magic != MAGIC:
        raise MessageError("not_a_message")
    if version != VERSION:
        raise MessageError("version", f"{version}, expected {VERSION}")
    return HEADER_BYTES + body + _CHECKSUM.size


def decode(data: bytes, vocab_size: int, most_completions: int, most_tokens: int) -> Message:
    """Read a message of at most so many completions and tokens.

    Raises MessageError unless it is one, its ids have this vocabulary's width and every length adds up.
    Memory stays within three times what so many take plain, whatever the bytes say.
    """
    if len(data) < HEADER_BYTES + _CHECKSUM.size:
        raise MessageError("too_short", f"{len(data)} bytes")
    size = message_size(data)
    _magic, _version, node, step, run, n, m, bits, _body = _HEADER.unpack_from(data)
    if len(data) != size:
        raise MessageError("size", f"{len(data)} bytes, the header says {size}")
    if n > most_completions or m > most_tokens or size > most_bytes(vocab_size, n, m):
        raise MessageError("too_large", f"{n} completions, {m} tokens, {size} bytes")
    if bits != id_bits(vocab_size):
        raise MessageError("id_bits", f"{bits}, expected {id_bits(vocab_size)}")
    if zlib.crc32(memoryview(data)[: -_CHECKSUM.size]) != _CHECKSUM.unpack(data[-_CHECKSUM.size :])[0]:
        raise MessageError("checksum")
    plain_size, inflate = _plain_bytes(bits, n, m), zlib.decompressobj(-15)
    try:
        plain = inflate.decompress(memoryview(data)[HEADER_BYTES : -_CHECKSUM.size], plain_size + 1)
    except zlib.error as error:
        raise MessageError("compression", str(error)) from None
    if len(plain) != plain_size or not inflate.eof or inflate.unused_data:
        raise MessageError("compression", f"doesn't unpack to {plain_size} bytes")
    arrays, offset = {}, 0
    for name, kind in _COLUMNS.items():
        values = np.zeros(m if name in _PER_TOKEN else n, kind)
        octets = values.view(np.uint8).reshape(-1, values.itemsize)
        for plane in range(_octets(name, bits)):
            octets[:, plane] = np.frombuffer(plain, np.uint8, len(values), offset)
            offset += len(values)
        if kind is np.bool_ and (octets > 1).any():
            raise MessageError("not_a_bool", name)
        arrays[name] = values
    return Message(run, step, node, Rollouts(**arrays))


def most_bytes(vocab_size: int, completions: int, tokens: int) -> int:
    """The largest message of so many completions and tokens: where deflate gains nothing, it stores."""
    plain, planes = _plain_bytes(id_bits(vocab_size), completions, tokens), 4 * len(_COLUMNS)
    return HEADER_BYTES + plain + plain // 1000 + 16 * planes + _CHECKSUM.size


def _octets(column: str, bits: int) -> int:
    """Bytes that an entry takes before compression."""
    return -(-bits // 8) if column == "tokens" else np.dtype(_COLUMNS[column]).itemsize


def _plain_bytes(bits: int, n: int, m: int) -> int:
    return sum((m if name in _PER_TOKEN else n) * _octets(name, bits) for name in _COLUMNS)
