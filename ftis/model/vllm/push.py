"""Weights on their way to an engine's process: through a block of memory that both processes have mapped.

The block belongs to no file (`memfd_create`, Linux): it has no name that could be left behind, not the size
limit of /dev/shm (64 MB in many containers), and goes with the two processes. It stays between pushes, since
fresh pages cost more than the copies. Over the pipe go names, types, shapes and places alone.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle

import torch
from torch import Tensor

BLOCK_BYTES = 256 << 20
"""Of a block; as much as the largest tensor where that is more."""
ALIGNMENT = 64
"""Bytes: tensors begin at multiples of a cache line."""
FULL = "full"


class Writer:
    """The sending end of a pipe whose other end has a `Reader`."""

    def __init__(self, pipe: Connection, reader: int):
        """reader: the other process's id."""
        self.pipe, self.reader = pipe, reader
        self.block: mmap.mmap | None = None

    @torch.no_grad()
    def write(
        self, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, wait: Callable[[], object]
    ) -> None:
        """Hand over named tensors of any device, as `dtype`. The next call is allowed when the reader has
        them all.

        wait() returns when the reader has answered that it has read a full block. Raises ConnectionError
        where the other process is gone.
        """
        end = 0
        for name, tensor in weights:
            size = tensor.numel() * dtype.itemsize
            if self.block is None or size > len(self.block):
                self._take(max(size, BLOCK_BYTES))
                end = 0
            elif end + size > len(self.block):
                self.pipe.send(FULL)
                wait()
                end = 0
            _view(self.block, end, tensor.shape, dtype).copy_(tensor)
            self.pipe.send((name, str(dtype).removeprefix("torch."), tuple(tensor.shape), end))
            end += math.ceil(size / ALIGNMENT) * ALIGNMENT
        self.pipe.send(None)

    def _take(self, size: int) -> None:
        """A new block for both; what lies in the old one the reader can still read."""
        fd = os.memfd_create("weights")
        try:
            os.ftruncate(fd, size)
            self.block = mmap.mmap(fd, size)
            self.pipe.send(size)
            send_handle(self.pipe, fd, self.reader)
        finally:
            os.close(fd)


class Reader:
    """The receiving end; it answers a full block with (True, None)."""

    def __init__(self, pipe: Connection):
        self.pipe = pipe
        self.block: mmap.mmap | None = None

    def read(self) -> Iterator[tuple[str, Tensor]]:
        """The named tensors of one `write`, on the CPU. They are copies: vLLM keeps a tensor until its layer
        is complete, and by then other weights may stand in the block."""
        while (found := self.pipe.recv()) is not None:
            if found == FULL:
                self.pipe.send((True, None))
            elif isinstance(found, int):
                fd = recv_handle(self.pipe)
                self.block = mmap.mmap(fd, found)
                os.close(fd)
            else:
                name, dtype, shape, start = found
                yield name, _view(self.block, start, shape, getattr(torch, dtype)).clone()


def _view(block: mmap.mmap, start: int, shape: Iterable[int], dtype: torch.dtype) -> Tensor:
    """A tensor in the block, from byte `start` on."""
    return torch.frombuffer(block, dtype=dtype, count=math.prod(shape), offset=start).view(tuple(shape))
