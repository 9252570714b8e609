"""Weights through shared memory, both ends in this process."""

import multiprocessing
import os
import threading

import pytest
import torch

from ftis.model.vllm import push
from ftis.model.vllm.push import Reader, Writer

FIRST = torch.arange(6.0).view(2, 3) + 1 / 3


def pushed(*pushes, dtype=torch.float32):
    """What a reader keeps of several pushes through one pair, and the sizes of the blocks that it was
    given."""
    ours, theirs = multiprocessing.Pipe()
    writer, reader = Writer(ours, os.getpid()), Reader(theirs)
    kept, sizes = [], []

    def read():
        for _ in pushes:
            kept.append([])
            for pair in reader.read():
                kept[-1].append(pair)
                if not sizes or sizes[-1] != len(reader.block):
                    sizes.append(len(reader.block))
            theirs.send((True, None))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    for weights in pushes:
        writer.write(weights.items(), dtype, ours.recv)
        assert ours.recv() == (True, None)
    thread.join(10)
    return [dict(pairs) for pairs in kept], sizes


def same(found, weights):
    assert found.keys() == weights.keys()
    assert all(
        torch.equal(found[name], weight) and found[name].shape == weight.shape
        for name, weight in weights.items()
    )


def test_tensors_arrive_as_they_are():
    """Not contiguous, of one number, trained, and an extreme value, in one block."""
    weights = {
        "first": FIRST,
        "turned": FIRST.T,
        "scalar": torch.tensor(3e38),
        "trained": torch.nn.Parameter(FIRST * 2),
    }
    (found,), sizes = pushed(weights)
    same(found, weights)
    assert sizes == [push.BLOCK_BYTES]


def test_what_was_read_outlives_the_block(monkeypatch):
    """200 bytes hold three tensors of 24: the fourth stands where the first stood, and all are still right,
    as in the push after it. One that is larger than the block brings a larger one."""
    monkeypatch.setattr(push, "BLOCK_BYTES", 200)
    many = {f"layer {i}": FIRST + i for i in range(8)}
    large = {"small": FIRST, "large": torch.arange(100.0), "last": FIRST * 3}
    found, sizes = pushed(many, large, many)
    for one, weights in zip(found, (many, large, many), strict=True):
        same(one, weights)
    assert sizes == [200, 400]


def test_they_are_cast_on_their_way():
    (found,), _ = pushed({"first": FIRST}, dtype=torch.bfloat16)
    assert found["first"].dtype == torch.bfloat16
    assert torch.equal(found["first"], FIRST.bfloat16())


def test_a_reader_that_is_gone_is_told():
    ours, theirs = multiprocessing.Pipe()
    theirs.close()
    with pytest.raises(ConnectionError):
        Writer(ours, os.getpid()).write({"first": FIRST}.items(), torch.float32, ours.recv)
