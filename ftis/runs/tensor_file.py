"""Tensors written as a safetensors file whose SHA-256 is known when it is written: nothing is read a second
time.

A checkpoint of a large run has tens of gigabytes, and `safetensors.save_file` can't hash. Its format is
short: eight bytes with the length of a JSON header, the header (name -> type, shape, first and last byte),
the tensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

TYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
}
"""The format's names."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write `tensors` to `path`, which `safetensors.torch.load_file` reads; returns the file's sha256 as hex
    digits.

    They may be on any device; one at a time is copied to the machine's memory. Raises TypeError for a type
    that isn't among `TYPES`, and OSError with the path where it can't be written.
    """
    # Wide types first, as the library orders them: each tensor then begins at a multiple of its item's size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, end = {}, 0
    for name, tensor in ordered:
        if tensor.dtype not in TYPES:
            raise TypeError(f"{name}: {tensor.dtype} is no type of a checkpoint")
        first, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [first, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()

    def put(data: bytes | memoryview) -> None:
        """Hash and write side by side: both leave Python's lock."""
        hashed = hashing.submit(digest.update, data)
        file.write(data)
        hashed.result()

    try:
        with open(path, "wb") as file, ThreadPoolExecutor(1) as hashing:
            put(len(text).to_bytes(8, "little") + text)
            for _, tensor in ordered:
                put(memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
    except OSError as error:
        error.filename = str(path)  # a full disk is found by a write, which doesn't name it
        raise
    return digest.hexdigest()
