"""Mutated messages: none crashes the receiver, none that is used breaks an invariant, memory and time are
bounded.

10,000 in the tests and 100,000 in `make check-all`. The invariants are checked apart from the code
under test, number by number.
"""

import struct
import time
import tracemalloc
import zlib
from collections import Counter

import numpy as np
import pytest

from ftis.swarm.inbox import Expected, receive
from ftis.swarm.message import HEADER_BYTES, Message, MessageError, Rollouts, encode, most_bytes, pack

SEED = 20260
RUN, STEP, NODE = b"\x01\x02\x03\x04\x05\x06\0\0", 5, 1
HEADER = struct.Struct("<4sHHI8sIIBI")
EXTREMES = (0, 1, 2, 0x7F, 0x80, 0xFF, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
FLOATS = (np.nan, np.inf, -np.inf, 1e-45, 1e-3, -1e4, -10000.001, -3e38, 3e38, -0.0, 0.0, 1.0, 2.0)


def reward_of(tokens) -> float:
    """Stands for the grader: any fixed function of the text."""
    return float(sum(tokens) % 3 == 0)


def grade(r: Rollouts) -> list[float]:
    return [reward_of(tokens.tolist()) for tokens in r.split(r.tokens)]


def honest(rng: np.random.Generator, vocab: int, groups: int, size: int, budget: int):
    """A message that passes, and what it is checked against."""
    stop = 3
    share = {(2 * g, s): int(rng.integers(2, budget)) for g in range(groups) for s in range(size)}
    tokens, logprobs, finished = [], [], []
    for most in share.values():
        length = int(rng.integers(1, most + 1))
        ids = rng.integers(4, vocab, length)
        ends = length < most or bool(rng.random() < 0.5)
        if ends:
            ids[-1] = stop
        tokens.append(ids)
        logprobs.append(-rng.exponential(1.0, length).astype(np.float32))
        finished.append(ends)
    prompt, sample = zip(*share)
    rollouts = pack(prompt, sample, tokens, logprobs, [reward_of(t.tolist()) for t in tokens], finished)
    expected = Expected(RUN, STEP, NODE, share, vocab, frozenset({stop, 1}))
    return Message(RUN, STEP, NODE, rollouts), expected


def sealed(body: bytes) -> bytes:
    return body + struct.pack("<I", zlib.crc32(body))


def deflated(plain: bytes) -> bytes:
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    return deflate.compress(plain) + deflate.flush()


# ---------------------------------------------------------------------------- mutations of the bytes


def flip_bits(rng, data):
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 9))):
        out[rng.integers(len(out))] ^= 1 << int(rng.integers(8))
    return bytes(out)


def truncate(rng, data):
    return data[: rng.integers(len(data))]


def swap(rng, data):
    """Two stretches change places."""
    a, b, c, d = sorted(rng.integers(0, len(data) + 1, 4).tolist())
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def insert(rng, data):
    at = int(rng.integers(len(data) + 1))
    return data[:at] + rng.bytes(int(rng.integers(1, 40))) + data[at:]


def remove(rng, data):
    a, b = sorted(rng.integers(0, len(data) + 1, 2).tolist())
    return data[:a] + data[b:]


def twice(rng, data):
    return data + data[: rng.integers(1, len(data) + 1)]


def noise(rng, data):
    return rng.bytes(int(rng.integers(0, 200)))


BYTES = (flip_bits, truncate, swap, insert, remove, twice, noise)


def header_field(rng, data):
    """One number of the header at an edge."""
    fields = list(HEADER.unpack_from(data))
    k = int(rng.integers(len(fields)))
    top = {0: 0, 1: 16, 2: 16, 3: 32, 4: 0, 5: 32, 6: 32, 7: 8, 8: 32}[k]
    if top:
        value = int(rng.choice(EXTREMES)) if rng.random() < 0.7 else fields[k] + int(rng.integers(-3, 4))
        fields[k] = value % 2**top
    else:
        fields[k] = rng.bytes(len(fields[k]))
    return HEADER.pack(*fields) + data[HEADER_BYTES:]


def resealed(mutation):
    """As a peer does it who knows the format: with the right length and checksum."""

    def apply(rng, data):
        body = mutation(rng, data[HEADER_BYTES:-4])
        return sealed(HEADER.pack(*HEADER.unpack_from(data)[:-1], len(body)) + body)

    return apply


def plain(mutation):
    """A mutation of what the body unpacks to; sometimes with a header that fits the new length."""

    def apply(rng, data):
        columns = mutation(rng, zlib.decompress(data[HEADER_BYTES:-4], -15))
        fields = list(HEADER.unpack_from(data))
        if rng.random() < 0.5:
            fields[5] = int(rng.integers(0, fields[5] + 3))
            fields[6] = max(0, (len(columns) - 17 * fields[5]) // (4 + -(-fields[7] // 8)))
        body = deflated(columns)
        return sealed(HEADER.pack(*fields[:-1], len(body)) + body)

    return apply


def bomb(rng, data):
    """A body that unpacks to much more than it says, or says so."""
    fields = list(HEADER.unpack_from(data))
    body = BOMBS[int(rng.integers(len(BOMBS)))]
    if rng.random() < 0.5:
        fields[5], fields[6] = (int(rng.choice(EXTREMES)) for _ in range(2))
    return sealed(HEADER.pack(*fields[:-1], len(body)) + body)


BOMBS = [deflated(bytes([value]) * size) for value in (0, 255) for size in (10_000, 1_000_000, 30_000_000)]


# ---------------------------------------------------------------------------- mutations of the arrays


def change(rng, message, expected):
    """Entries of one array at the edges of their type, written in the right format."""
    arrays = {k: v.copy() for k, v in vars(message.rollouts).items()}
    name = list(arrays)[rng.integers(len(arrays))]
    array = arrays[name]
    for _ in range(int(rng.integers(1, 4))):
        k = int(rng.integers(len(array)))
        if array.dtype == np.float32:
            array[k] = rng.choice(FLOATS) if rng.random() < 0.8 else rng.normal()
        elif array.dtype == bool:
            array[k] ^= True
        elif name == "tokens":
            top = 2 ** max(1, (expected.vocab_size - 1).bit_length())
            edges = [0, 1, 2, 3, 4, expected.vocab_size - 1, expected.vocab_size % top, top - 1]
            array[k] = rng.choice(edges) if rng.random() < 0.8 else rng.integers(top)
        else:
            edge = np.array(rng.choice(EXTREMES), np.uint32).view(np.int32)
            array[k] = edge if rng.random() < 0.5 else np.int32(array[k] + rng.integers(-2, 3))
    if rng.random() < 0.3:
        order = rng.permutation(len(array))
        arrays[name] = array[order]
    return encode(Message(message.run, message.step, message.node, Rollouts(**arrays)), expected.vocab_size)


def shorten(rng, message, expected):
    """Completions left out, sent twice or in another order; whole and part of groups."""
    r = message.rollouts
    rows = rng.permutation(len(r))[: rng.integers(1, len(r) + 1)]
    if rng.random() < 0.3:
        rows = np.append(rows, rng.choice(rows))
    tokens, logprobs = r.split(r.tokens), r.split(r.logprobs)
    part = pack(
        r.prompt[rows], r.sample[rows], [tokens[k] for k in rows], [logprobs[k] for k in rows],
        r.reward[rows], r.finished[rows],
    )  # fmt: skip
    return encode(Message(message.run, message.step, message.node, part), expected.vocab_size)


def retouch(rng, message, expected):
    """A completion that ends otherwise: cut or prolonged, with or without a stop token and the mark of it."""
    r = message.rollouts
    tokens, logprobs, finished = r.split(r.tokens), r.split(r.logprobs), r.finished.copy()
    k = int(rng.integers(len(r)))
    length = max(1, len(tokens[k]) + int(rng.integers(-1, 3)))
    tokens[k] = np.resize(tokens[k], length)
    logprobs[k] = np.resize(logprobs[k], length)
    tokens[k][-1] = rng.choice([1, 3, 4, 5])
    finished[k] = rng.random() < 0.5
    reward = [reward_of(t.tolist()) for t in tokens]
    part = pack(r.prompt, r.sample, tokens, logprobs, reward, finished)
    return encode(Message(message.run, message.step, message.node, part), expected.vocab_size)


def other_width(rng, message, expected):
    """Ids written for another vocabulary."""
    return encode(message, min(2**31, expected.vocab_size * int(rng.choice([2, 2**8, 2**16]))))


def other_frame(rng, message, expected):
    """Another run's, step's or node's message."""
    run = RUN if rng.random() < 0.5 else rng.bytes(8)
    step, node = STEP + int(rng.integers(-1, 2)), NODE + int(rng.integers(-1, 2))
    return encode(Message(run, step, node, message.rollouts), expected.vocab_size)


ARRAYS = (change, change, change, retouch, shorten, other_width, other_frame)
ENCODED = (*BYTES, header_field, lambda rng, d: sealed(header_field(rng, d[:-4])), bomb)
ENCODED += (*map(resealed, BYTES), *map(plain, BYTES), *map(plain, (flip_bits, swap)))


def mutate(rng, message, data, expected) -> bytes:
    if rng.random() < 0.5:
        data = ARRAYS[rng.integers(len(ARRAYS))](rng, message, expected)
        if rng.random() < 0.7:
            return data
    return ENCODED[rng.integers(len(ENCODED))](rng, data)


# ---------------------------------------------------------------------------- the independent check


def broken(r: Rollouts, expected: Expected) -> str:
    """What is wrong with completions that were taken, "" if nothing is."""
    n = len(r.length)
    if any(len(a) != n for a in (r.prompt, r.sample, r.reward, r.finished)):
        return "columns of different lengths"
    if sum(r.length.tolist()) != len(r.tokens) or len(r.tokens) != len(r.logprobs):
        return "lengths that don't add up"
    dtypes = [a.dtype for a in vars(r).values()]
    if dtypes != [np.int32, np.int32, np.int32, np.float32, np.bool_, np.int32, np.float32]:
        return "types"
    if any(octet > 1 for octet in r.finished.tobytes()):
        return "a truth value that is neither"
    seen, first = [], 0
    for p, s, length, reward, finished in zip(*(a.tolist() for a in (r.prompt, r.sample, r.length, r.reward, r.finished))):  # fmt: skip
        seen.append((p, s))
        most = expected.share.get((p, s), 0)
        tokens = r.tokens[first : first + length].tolist()
        logprobs = r.logprobs[first : first + length].tolist()
        first += length
        if not 1 <= length <= most:
            return f"length {length} of at most {most}"
        if any(not 0 <= t < expected.vocab_size for t in tokens):
            return "an id that isn't in the vocabulary"
        if any(not -1e4 <= x <= 0 for x in logprobs):
            return "a log-prob that is none"
        if any(t in expected.stop_ids for t in tokens[:-1]):
            return "a stop token inside"
        if finished != (tokens[-1] in expected.stop_ids) or (not finished and length < most):
            return "an end that is none"
        if reward != reward_of(tokens):
            return "a reward that the grader doesn't give"
    groups = {p: [s for q, s in expected.share if q == p] for p, _ in seen}
    if len(set(seen)) != len(seen) or set(seen) != {(p, s) for p in groups for s in groups[p]}:
        return "groups that aren't whole"
    return ""


# ---------------------------------------------------------------------------- the test


@pytest.fixture(scope="module")
def originals():
    rng = np.random.default_rng(SEED)
    shapes = [(93, 2, 3, 8), (10, 3, 2, 4), (151_936, 2, 4, 12), (256, 1, 6, 30), (2**16, 4, 1, 6)]
    made = [honest(rng, *shape) for shape in shapes]
    return [(message, encode(message, expected.vocab_size), expected) for message, expected in made]


def test_the_originals_pass_and_the_checker_can_fail(originals):
    for message, data, expected in originals:
        taken, reasons = receive(data, expected, grade)
        assert len(taken) == len(message.rollouts) and not reasons and broken(taken, expected) == ""
        wrong = {
            "length": message.rollouts.length + 1,
            "tokens": message.rollouts.tokens + expected.vocab_size,
            "logprobs": -message.rollouts.logprobs,
            "finished": ~message.rollouts.finished,
            "reward": 1 - message.rollouts.reward,
            "sample": message.rollouts.sample * 0 + 99,
        }
        for name, array in wrong.items():
            assert broken(Rollouts(**vars(message.rollouts) | {name: array}), expected), name


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_no_mutated_message_crashes_or_gets_in(originals, count):
    rng = np.random.default_rng(SEED)
    outcomes, slowest, largest = Counter(), 0.0, 0.0
    for turn in range(count):
        message, data, expected = originals[turn % len(originals)]
        mutated = mutate(rng, message, data, expected)
        tracemalloc.start()
        began = time.thread_time()
        try:
            taken, reasons = receive(mutated, expected, grade)
        except MessageError as error:
            taken, reasons = None, {error.reason: 1}
        except Exception as error:
            error.add_note(f"mutation {turn} of seed {SEED}: {mutated.hex()}")
            raise
        finally:
            seconds, peak = time.thread_time() - began, tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        if taken is not None:
            assert (wrong := broken(taken, expected)) == "", (turn, wrong, mutated.hex())
            assert len(taken) < len(expected.share) or not reasons
            outcomes["used" if len(taken) else "nothing left"] += 1
        outcomes.update(reasons.keys())
        size = most_bytes(expected.vocab_size, len(expected.share), sum(expected.share.values()))
        slowest, largest = max(slowest, seconds), max(largest, peak / (size + 20_000))
    print(f"{count} mutations: {sorted(outcomes.items())}; {slowest:.4f} CPU s, {largest:.2f} of the memory")
    # Every reason to refuse was met, so that each check has been tried, and some messages came through in
    # part.
    assert {
        "too_short", "not_a_message", "version", "size", "too_large", "id_bits", "checksum", "compression",
        "not_a_bool", "other_run", "other_step", "other_node", "lengths", "duplicate", "assignment", "too_long",
        "token_id", "logprob", "reward", "stop_token", "truncation", "reward_differs", "used", "nothing left",
    } <= outcomes.keys()  # fmt: skip
    assert slowest < 0.5, "CPU seconds for one message"
    assert largest < 3, "memory for one message, in units of the largest one and 20 kB"
