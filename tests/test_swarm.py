"""Who samples what, the packed message, and what is refused from a peer."""

import struct
import tracemalloc
import zlib
from dataclasses import fields, replace

import numpy as np
import pytest

from ftis.swarm import (
    Expected,
    Message,
    MessageError,
    Rollouts,
    assignment,
    check,
    decode,
    encode,
    message_size,
    owner,
    pack,
)

RUN = b"\x00\x01abcdef"
STOP = 9
HEADER = 28  # magic 4, version 2, node 2, step 4, run 8, completions 4, tokens 4
CHECKSUM = 4


def rollouts():
    """Completions of 3, 1 and 2 tokens; the last reached its budget without a stop token."""
    return pack(
        [0, 0, 2],
        [1, 4, 0],
        [np.array([5, 6, STOP]), np.array([STOP]), np.array([7, 8])],
        [np.array([-0.5, -1.25, 0.0]), np.array([-3.0]), np.array([-0.125, -80.0])],
        [1.0, 0.0, 0.0],
        [True, True, False],
    )


MESSAGE = Message(RUN, 7, 3, rollouts())
EXPECTED = Expected(
    run=RUN, step=7, node=3, share={(0, 1): 5, (0, 4): 5, (2, 0): 2}, vocab_size=10,
    stop_ids=frozenset({STOP}), rewards=frozenset({0.0, 1.0}),
)  # fmt: skip


def same(a: Rollouts, b: Rollouts) -> bool:
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(Rollouts))


def sealed(body: bytes) -> bytes:
    """A body with its right checksum, as a peer who knows the format would send."""
    return body + struct.pack("<I", zlib.crc32(body))


def reason(call, *args) -> str:
    with pytest.raises(MessageError) as error:
        call(*args)
    return error.value.reason


# ------------------------------------------------------------------------------------------- assignment


@pytest.mark.parametrize("nodes", [2, 3, 4, 5])
@pytest.mark.parametrize("prompts", [1, 5, 7, 16])
@pytest.mark.parametrize("group_size", [1, 5, 7, 12])
@pytest.mark.parametrize("split", ["vertical", "horizontal"])
def test_every_completion_has_exactly_one_owner(split, prompts, group_size, nodes):
    dealt = []
    for node in range(nodes):
        share = assignment(split, prompts, group_size, nodes, node)
        pairs = [(p, s) for p, samples in share for s in samples]
        assert all(samples for _, samples in share)
        assert all(owner(split, p, s, nodes) == node for p, s in pairs)
        assert len(share) == len({p for p, _ in share})
        dealt += pairs
    assert sorted(dealt) == [(p, s) for p in range(prompts) for s in range(group_size)]


@pytest.mark.parametrize("nodes", [2, 3, 4, 5])
def test_shares_differ_by_one_at_most(nodes):
    vertical = [assignment("vertical", 16, 7, nodes, k) for k in range(nodes)]
    assert max(map(len, vertical)) - min(map(len, vertical)) <= 1
    assert all(samples == list(range(7)) for share in vertical for _, samples in share)  # whole groups
    horizontal = [assignment("horizontal", 3, 7, nodes, k) for k in range(nodes)]
    assert all([p for p, _ in share] == [0, 1, 2] for share in horizontal)  # every node, every prompt
    sizes = [len(samples) for share in horizontal for _, samples in share]
    assert max(sizes) - min(sizes) <= 1


def test_assignment_by_hand():
    assert assignment("vertical", 5, 2, 2, 0) == [(0, [0, 1]), (2, [0, 1]), (4, [0, 1])]
    assert assignment("vertical", 5, 2, 2, 1) == [(1, [0, 1]), (3, [0, 1])]
    assert assignment("horizontal", 2, 5, 2, 0) == [(0, [0, 2, 4]), (1, [0, 2, 4])]
    assert assignment("horizontal", 2, 5, 2, 1) == [(0, [1, 3]), (1, [1, 3])]
    assert assignment("vertical", 2, 3, 1, 0) == assignment("horizontal", 2, 3, 1, 0)  # one node: all of it


# ------------------------------------------------------------------------------------------- the message


def test_round_trip_is_exact():
    back = decode(encode(MESSAGE))
    assert (back.run, back.step, back.node) == (RUN, 7, 3)
    assert same(back.rollouts, MESSAGE.rollouts)
    assert encode(back) == encode(MESSAGE)
    check(back, EXPECTED)


def test_round_trip_of_random_rollouts():
    rng = np.random.default_rng(0)
    for n in (1, 2, 17):
        lengths = rng.integers(1, 40, n)
        sent = Message(
            rng.bytes(8), 2**32 - 1, 2**16 - 1,
            pack(
                rng.integers(0, 2**31, n).tolist(), rng.integers(0, 2**31, n).tolist(),
                [rng.integers(0, 2**31, k) for k in lengths],
                [-rng.exponential(3, k).astype(np.float32) for k in lengths],
                rng.random(n).astype(np.float32).tolist(), (rng.random(n) < 0.5).tolist(),
            ),
        )  # fmt: skip
        back = decode(encode(sent))
        assert (back.run, back.step, back.node) == (sent.run, sent.step, sent.node)
        assert same(back.rollouts, sent.rollouts)


def test_size_is_eight_bytes_a_token_and_seventeen_a_completion():
    assert len(encode(MESSAGE)) == HEADER + 17 * 3 + 8 * 6 + CHECKSUM
    long = pack([0], [0], [np.zeros(1000)], [np.zeros(1000)], [0.0], [False])
    assert len(encode(Message(RUN, 0, 0, long))) == HEADER + 17 + 8000 + CHECKSUM


def test_layout_is_little_endian_and_packed():
    # The same message written out by hand, array after array.
    body = struct.pack("<4sHHI8sII", b"FTIS", 1, 3, 7, RUN, 3, 6)
    body += struct.pack("<3i", 0, 0, 2) + struct.pack("<3i", 1, 4, 0) + struct.pack("<3i", 3, 1, 2)
    body += struct.pack("<3f", 1, 0, 0) + b"\x01\x01\x00"
    body += struct.pack("<6i", 5, 6, 9, 9, 7, 8) + struct.pack("<6f", -0.5, -1.25, 0, -3, -0.125, -80)
    assert encode(MESSAGE) == sealed(body)


def test_split():
    r = rollouts()
    assert [t.tolist() for t in r.split(r.tokens)] == [[5, 6, 9], [9], [7, 8]]


# ------------------------------------------------------------------------------------------- broken bytes


def test_decode_refuses_a_message_cut_anywhere():
    data = encode(MESSAGE)
    for n in range(len(data)):
        assert reason(decode, data[:n]) in ("too_short", "size"), n


def test_decode_refuses_any_flipped_bit():
    data = encode(MESSAGE)
    for i in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[i] ^= 1 << bit
            assert reason(decode, bytes(broken)), (i, bit)


def test_decode_refuses_what_follows_the_message():
    for tail in (b"\x00", b"x" * 8, encode(MESSAGE)):
        assert reason(decode, encode(MESSAGE) + tail) == "size"


def test_decode_refuses_other_magic_and_version():
    body = encode(MESSAGE)[:-CHECKSUM]
    assert reason(decode, sealed(b"SITF" + body[4:])) == "not_a_message"
    assert reason(decode, sealed(body[:4] + struct.pack("<H", 2) + body[6:])) == "version"
    assert reason(decode, b"\x80\x04" + b"pickle" * 20) == "not_a_message"


@pytest.mark.parametrize(
    ("n", "m"), [(2**32 - 1, 2**32 - 1), (2**32 - 1, 0), (0, 2**32 - 1), (2**31, 6), (4, 6), (3, 7)]
)
def test_decode_refuses_counts_that_the_bytes_do_not_hold_without_allocating(n, m):
    body = bytearray(encode(MESSAGE)[:-CHECKSUM])
    struct.pack_into("<II", body, HEADER - 8, n, m)
    data = sealed(bytes(body))
    tracemalloc.start()
    try:
        assert reason(decode, data) == "size"
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_header_tells_the_size_of_its_message():
    data = encode(MESSAGE)
    assert message_size(data[:HEADER]) == len(data)
    assert reason(message_size, b"SITF" + data[4:HEADER]) == "not_a_message"


# ------------------------------------------------------------------------------------------- what is accepted


def changed(**arrays) -> Message:
    """The good message with some of its arrays replaced, as it arrives."""
    given = {k: np.asarray(v, getattr(MESSAGE.rollouts, k).dtype) for k, v in arrays.items()}
    return decode(encode(replace(MESSAGE, rollouts=replace(MESSAGE.rollouts, **given))))


REFUSED = {
    "lengths that miss a token": ({"length": [3, 1, 1]}, "lengths"),
    "lengths beyond the tokens": ({"length": [3, 1, 3]}, "lengths"),
    "an empty completion": ({"length": [4, 0, 2]}, "lengths"),
    "a negative length": ({"length": [7, -3, 2]}, "lengths"),
    "lengths that overflow 32 bits to the right sum": ({"length": [2**31 - 1, 2**31 - 1, 8]}, "lengths"),
    "a completion sent twice": ({"sample": [1, 1, 0]}, "duplicate"),
    "another node's prompt": ({"prompt": [0, 0, 1]}, "assignment"),
    "a sample beyond the group": ({"sample": [1, 12, 0]}, "assignment"),
    "a negative prompt": ({"prompt": [0, 0, -1]}, "assignment"),
    "an id at the vocabulary's end": ({"tokens": [5, 10, 9, 9, 7, 8]}, "token_id"),
    "a negative id": ({"tokens": [5, -1, 9, 9, 7, 8]}, "token_id"),
    "a NaN log-prob": ({"logprobs": [-1, np.nan, -1, -1, -1, -1]}, "logprob"),
    "an infinite log-prob": ({"logprobs": [-1, -np.inf, -1, -1, -1, -1]}, "logprob"),
    "a log-prob whose sums overflow": ({"logprobs": [-1, -1e38, -1, -1, -1, -1]}, "logprob"),
    "a positively infinite log-prob": ({"logprobs": [-1, np.inf, -1, -1, -1, -1]}, "logprob"),
    "a probability above 1": ({"logprobs": [-1, -1, -1, -1, -1, 1e-3]}, "logprob"),
    "a reward that the grader can't give": ({"reward": [2, 0, 0]}, "reward"),
    "a negative reward": ({"reward": [-1, 0, 0]}, "reward"),
    "a NaN reward": ({"reward": [np.nan, 0, 0]}, "reward"),
    "a stop token inside": ({"tokens": [STOP, 6, 9, 9, 7, 8]}, "stop_token"),
    "a stop token inside an unfinished one": ({"tokens": [5, 6, 9, 9, STOP, 8]}, "stop_token"),
    "finished without a stop token": ({"tokens": [5, 6, 8, 9, 7, 8]}, "stop_token"),
    "unfinished with a stop token at its end": ({"tokens": [5, 6, 9, 9, 7, STOP]}, "stop_token"),
    "stop tokens that only add up": ({"tokens": [STOP, 6, 8, 9, 7, 8]}, "stop_token"),
    "unfinished before its budget": (
        {"finished": [True, False, False], "tokens": [5, 6, 9, 4, 7, 8]},
        "truncation",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_check_refuses(case):
    arrays, expected = REFUSED[case]
    assert reason(check, changed(**arrays), EXPECTED) == expected


def test_check_refuses_the_wrong_run_step_and_sender():
    for name, value in (("run", b"otherrun"), ("step", 6), ("node", 2)):
        assert reason(check, replace(MESSAGE, **{name: value}), EXPECTED) == f"other_{name}"


def test_check_refuses_a_share_that_is_not_whole():
    r = MESSAGE.rollouts
    part = pack(
        [0, 2], [1, 0], [r.tokens[:3], r.tokens[4:]], [r.logprobs[:3], r.logprobs[4:]], [1, 0], [True, False]
    )
    assert reason(check, replace(MESSAGE, rollouts=part), EXPECTED) == "assignment"
    nothing = Rollouts(*(getattr(r, f.name)[:0] for f in fields(Rollouts)))
    assert reason(check, decode(encode(replace(MESSAGE, rollouts=nothing))), EXPECTED) == "lengths"


def test_check_refuses_a_completion_beyond_its_budget():
    for budget in ({(0, 1): 2, (0, 4): 5, (2, 0): 2}, {(0, 1): 5, (0, 4): 5, (2, 0): 1}):
        assert reason(check, MESSAGE, replace(EXPECTED, share=budget)) == "too_long"


def test_check_takes_any_order_and_the_edges():
    # A completion may end on the last token of its budget; probability 1 and id 0 are possible.
    check(MESSAGE, replace(EXPECTED, share={(2, 0): 2, (0, 4): 1, (0, 1): 3}))
    check(changed(tokens=[0, 0, 9, 9, 0, 0], logprobs=[0, 0, 0, -0.0, 0, 0]), EXPECTED)
    check(changed(tokens=[5, 6, 9, 4, 7, 8]), replace(EXPECTED, stop_ids=frozenset({4, 9})))  # any stop token
