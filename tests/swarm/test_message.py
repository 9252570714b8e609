"""The packed message: exact, small, and refused when anything about it is broken."""

import struct
import tracemalloc
import zlib
from dataclasses import fields, replace

import numpy as np
import pytest

from ftis.swarm.message import (
    HEADER_BYTES,
    Message,
    Rollouts,
    decode,
    encode,
    id_bits,
    message_size,
    most_bytes,
    pack,
)
from tests.messages import MESSAGE, RUN, VOCAB, reason

CHECKSUM = 4
DATA = encode(MESSAGE, VOCAB)


def same(a: Rollouts, b: Rollouts) -> bool:
    pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in fields(Rollouts)]
    return all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in pairs)


def sealed(body: bytes) -> bytes:
    """Header and body with their right checksum, as a peer who knows the format would send."""
    return body + struct.pack("<I", zlib.crc32(body))


def forged(plain: bytes, n=3, m=6, bits=4, packed=None) -> bytes:
    """A sealed message around any plain columns, or around any packed bytes."""
    if packed is None:
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = deflate.compress(plain) + deflate.flush()
    return sealed(struct.pack("<4sHHI8sIIBI", b"FTIS", 2, 3, 7, RUN, n, m, bits, len(packed)) + packed)


def read(data: bytes) -> Message:
    return decode(data, VOCAB, 10, 100)


# ------------------------------------------------------------------------------------------- a good message


def test_round_trip_is_exact():
    back = read(DATA)
    assert (back.run, back.step, back.node) == (RUN, 7, 3)
    assert same(back.rollouts, MESSAGE.rollouts)
    assert encode(back, VOCAB) == DATA


def test_round_trip_of_random_rollouts():
    rng = np.random.default_rng(0)
    for n, vocab in ((1, 2), (2, 93), (17, 151_936), (40, 2**31)):
        lengths = rng.integers(1, 40, n)
        sent = Message(
            rng.bytes(8), 2**32 - 1, 2**16 - 1,
            pack(
                rng.integers(-(2**31), 2**31, n).tolist(), rng.integers(0, 2**31, n).tolist(),
                [rng.integers(0, vocab, k) for k in lengths],
                [rng.integers(0, 2**32, k).astype(np.uint32).view(np.float32) for k in lengths],  # NaN and all
                rng.random(n).astype(np.float32).tolist(), (rng.random(n) < 0.5).tolist(),
            ),
        )  # fmt: skip
        back = decode(encode(sent, vocab), vocab, n, lengths.sum())
        assert (back.run, back.step, back.node) == (sent.run, sent.step, sent.node)
        assert same(back.rollouts, sent.rollouts)
        assert len(encode(sent, vocab)) <= most_bytes(vocab, n, lengths.sum())


def test_layout_is_little_endian_planes():
    # The same message written out by hand, plane after plane: low bytes first.
    def planes(width, *values):
        octets = [v.to_bytes(4, "little") if isinstance(v, int) else struct.pack("<f", v) for v in values]
        return b"".join(bytes(o[k] for o in octets) for k in range(width))

    plain = planes(4, 0, 0, 2) + planes(4, 1, 4, 0) + planes(4, 3, 1, 2) + planes(4, 1.0, 0.0, 0.0)
    plain += b"\x01\x01\x00" + planes(1, 5, 6, 9, 9, 7, 8) + planes(4, -0.5, -1.25, 0.0, -3.0, -0.125, -80.0)
    body = DATA[HEADER_BYTES:-CHECKSUM]
    assert zlib.decompress(body, -15) == plain
    head = struct.pack("<4sHHI8sIIBI", b"FTIS", 2, 3, 7, RUN, 3, 6, 4, len(body))
    assert sealed(head + body) == DATA
    assert same(read(forged(plain)).rollouts, MESSAGE.rollouts)


def test_ids_take_the_vocabularys_width():
    assert [id_bits(v) for v in (1, 2, 93, 256, 257, 49_152, 65_536, 65_537, 151_936)] == [
        1, 1, 7, 8, 9, 16, 16, 17, 18,
    ]  # fmt: skip
    # Ids of no pattern at all: no more than the width, and what messages and completions cost.
    rng = np.random.default_rng(1)
    ids = [rng.integers(0, 151_936, 1000) for _ in range(10)]
    one = pack([0] * 10, [0] * 10, ids, [np.zeros(1000)] * 10, [0.0] * 10, [False] * 10)
    assert 16 < 8 * len(encode(Message(RUN, 0, 0, one), 151_936)) / 10_000 < 18.2
    for wrong in ([0, 16], [-1, 0]):
        odd = pack([0], [0], [np.array(wrong)], [np.zeros(2)], [0.0], [False])
        with pytest.raises(ValueError, match="don't fit 4 bits"):
            encode(Message(RUN, 0, 0, odd), VOCAB)


def test_log_probs_of_a_model_cost_less_than_four_bytes():
    # log softmax in float32 of logits as a model has them: bits of no pattern below the exponent.
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 3, (5000, 50)).astype(np.float32)
    logp = logits[:, 0] - np.log(np.exp(logits).sum(1))
    one = pack([0], [0], [np.zeros(5000)], [np.minimum(logp, 0)], [0.0], [False])
    assert len(encode(Message(RUN, 0, 0, one), 151_936)) < 3.6 * 5000


def test_split():
    r = MESSAGE.rollouts
    assert [t.tolist() for t in r.split(r.tokens)] == [[5, 6, 9], [9], [7, 8]]


def test_a_header_tells_the_size_of_its_message():
    assert message_size(DATA[:HEADER_BYTES]) == len(DATA)
    assert reason(message_size, b"SITF" + DATA[4:HEADER_BYTES]) == "not_a_message"


# ------------------------------------------------------------------------------------------- broken bytes


def test_a_message_cut_anywhere_is_refused():
    for n in range(len(DATA)):
        assert reason(read, DATA[:n]) in ("too_short", "size"), n


def test_any_flipped_bit_is_refused():
    for i in range(len(DATA)):
        for bit in range(8):
            broken = bytearray(DATA)
            broken[i] ^= 1 << bit
            assert reason(read, bytes(broken)), (i, bit)


def test_what_follows_the_message_is_refused():
    for tail in (b"\x00", b"x" * 8, DATA):
        assert reason(read, DATA + tail) == "size"


def test_other_magic_version_and_width_are_refused():
    body = DATA[:-CHECKSUM]
    assert reason(read, sealed(b"SITF" + body[4:])) == "not_a_message"
    assert reason(read, sealed(body[:4] + struct.pack("<H", 1) + body[6:])) == "version"
    assert reason(read, b"\x80\x04" + b"pickle" * 20) == "not_a_message"
    assert reason(decode, DATA, 17, 10, 100) == "id_bits"  # of another vocabulary


@pytest.mark.parametrize(
    ("n", "m"), [(2**32 - 1, 2**32 - 1), (2**32 - 1, 0), (0, 2**32 - 1), (2**31, 6), (11, 6), (3, 101)]
)
def test_counts_beyond_what_is_expected_are_refused_without_allocating(n, m):
    body = bytearray(DATA[:-CHECKSUM])
    struct.pack_into("<II", body, HEADER_BYTES - 13, n, m)
    data = sealed(bytes(body))
    tracemalloc.start()
    try:
        assert reason(read, data) == "too_large"
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_decompression_bomb_is_cut_off():
    large, small = forged(bytes(50_000_000)), forged(bytes(500_000))
    assert len(large) < 100_000 and len(small) < most_bytes(VOCAB, 3, 6)
    tracemalloc.start()
    try:
        assert reason(decode, large, VOCAB, 3, 6) == "too_large"
        assert reason(decode, small, VOCAB, 3, 6) == "compression"
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_body_that_does_not_unpack_to_its_size_is_refused():
    plain = zlib.decompress(DATA[HEADER_BYTES:-CHECKSUM], -15)
    assert reason(read, forged(plain[:-1])) == "compression"
    assert reason(read, forged(plain + b"\x00")) == "compression"
    assert reason(read, forged(plain, packed=b"\xff\xff\xff")) == "compression"
    whole = DATA[HEADER_BYTES:-CHECKSUM]
    assert reason(read, forged(plain, packed=whole[:-1])) == "compression"  # no end
    assert reason(read, forged(plain, packed=whole + b"\x00")) == "compression"  # something after it
    assert reason(read, forged(plain, n=4)) == "compression"
    assert reason(read, forged(plain, m=7)) == "compression"
    odd = bytearray(plain)
    odd[4 * 4 * 3] = 2  # `finished` of the first completion
    assert reason(read, forged(bytes(odd))) == "not_a_bool"


def test_a_message_larger_than_its_columns_is_refused():
    junk = replace(MESSAGE, step=8)
    packed = encode(junk, VOCAB)[HEADER_BYTES:-CHECKSUM] + bytes(2000)
    assert reason(read, forged(b"", packed=packed)) == "too_large"
