"""Checkpoints' tensors: read back by the safetensors library, with the digest of what lies on the disk."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ftis.provenance import sha256
from ftis.runs.tensor_file import save_tensors


def test_what_is_written_is_read_by_the_library_and_has_the_digest_that_is_returned(tmp_path):
    draw = torch.Generator().manual_seed(0)
    tensors = {
        "param/b.weight": torch.randn(7, 5, generator=draw).T,  # not contiguous
        "param/a.weight": torch.randn(3, 1, 2, generator=draw, requires_grad=True),
        "half": torch.randn(3, generator=draw).bfloat16(),  # an odd number of bytes pairs
        "step/a.weight": torch.tensor(4.0),
        "wide": torch.randn(2, generator=draw, dtype=torch.float64),
        "count/\N{GREEK SMALL LETTER ALPHA}": torch.arange(3),
        "empty": torch.zeros(0, 4),
    }
    digest = save_tensors(tmp_path / "ours.safetensors", tensors)
    assert digest == sha256(tmp_path / "ours.safetensors")
    read = load_file(tmp_path / "ours.safetensors")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor.detach()), name
    # As large as the library's own file, and each tensor where its type wants it.
    save_file({k: t.detach().contiguous() for k, t in tensors.items()}, tmp_path / "theirs.safetensors")
    ours, theirs = ((tmp_path / f"{name}.safetensors").stat().st_size for name in ("ours", "theirs"))
    assert abs(ours - theirs) < 16
    with safe_open(tmp_path / "ours.safetensors", "pt") as file:
        assert list(file.keys()) and all(t.data_ptr() % t.element_size() == 0 for t in read.values())
    # Nothing but the content decides the digest.
    assert save_tensors(tmp_path / "again", dict(reversed(tensors.items()))) == digest


def test_no_tensor_at_all(tmp_path):
    save_tensors(tmp_path / "none", {})
    assert load_file(tmp_path / "none") == {}


def test_a_type_that_no_checkpoint_has_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"flags: torch.bool is no type of a checkpoint"):
        save_tensors(tmp_path / "x", {"flags": torch.ones(2, dtype=torch.bool)})
    assert not (tmp_path / "x").exists()


def test_a_full_disk_is_named():
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        save_tensors(Path("/dev/full"), {"weight": torch.ones(1 << 16)})
