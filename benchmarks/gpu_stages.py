"""What a stage of `gpu_proof.py` is made of: its sizes, the numbers that it hands in, and the process that it
runs in."""

from __future__ import annotations

import importlib
import json
import math
import os
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_step import SHAPES, VOCABULARY

from ftis.files import write_json
from ftis.suite import cost
from ftis.suite.memory import Shape

STAGES = {
    "machine": "gpu_kernels", "exactness": "gpu_kernels", "first_calls": "gpu_kernels",
    "mismatch": "gpu_models",
    "iterations": "gpu_models", "pair": "gpu_models", "resume": "gpu_models", "processes": "gpu_processes",
    "engine": "gpu_processes",
}  # fmt: skip
"""Name of a stage, which is that of its function, and the module that it is in; in the order of their
numbers."""


class NotHere(Exception):
    """A stage can't be done on this machine, and why."""


@dataclass(frozen=True)
class Size:
    """How large the stages are. The large one has the paper tier's shapes; the toy runs on a CPU in
    seconds."""

    large: Shape
    small: Shape
    ids: int
    """Of the tokenizer; the embedding is padded beyond them."""
    group: int
    prompts: int
    prompt_tokens: tuple[int, int]
    """Shortest and longest prompt."""
    total_tokens: int
    """Budget of prompt and completion."""
    ends: int
    """One id in so many ends a completion, so that those of random weights have about this length."""
    micro_batch_tokens: int
    attention: tuple[int, int, int]
    """Query heads, key heads and their width."""
    keys: tuple[int, int]
    """Of a padded row of packed attention: all (a multiple of 128), and the prompt's among them."""
    rows: int
    """Decoded together, where nothing else says."""
    logits: tuple[int, int] | None
    """CHUNK_LOGITS and LONGEST_LOGITS of the log-prob head; None: as they are."""


def _qwen(name: str) -> Shape:
    return Shape(**SHAPES[name], num_key_value_heads=2, vocab_size=VOCABULARY[name][0])


def _toy(layers: int) -> Shape:
    return Shape(
        hidden_size=128, num_hidden_layers=layers, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=128, vocab_size=520,
    )  # fmt: skip


# Lengths of a prompt: GSM8K under chat-v1, its mean about 112; the rest is workflow/config/tiers/paper.yaml.
FULL = Size(
    _qwen("3b"), _qwen("1.5b"), VOCABULARY["3b"][1], group=12, prompts=16, prompt_tokens=(60, 275),
    total_tokens=760,
    ends=250, micro_batch_tokens=4096, attention=(16, 2, 128), keys=(512, 112), rows=144, logits=None,
)  # fmt: skip
TOY = Size(
    _toy(2), _toy(1), 500, group=4, prompts=2, prompt_tokens=(5, 12), total_tokens=40, ends=10,
    micro_batch_tokens=256,
    attention=(4, 2, 16), keys=(128, 20), rows=6, logits=(2**14, 2**16),
)  # fmt: skip


class Report:
    """Numbers of a stage, written to a file as they come: a stage that is killed keeps what it had."""

    def __init__(self, path: Path):
        self.path = path
        self.measured: dict[str, Any] = {}
        self.skipped: dict[str, str] = {}
        self.ended: str | None = None

    def add(self, **measured: Any) -> None:
        self.measured |= measured
        self._write()

    def skip(self, quantity: str, why: str) -> None:
        """Say that a number can't be had here."""
        self.skipped[quantity] = why
        self._write()

    def end(self, how: str, why: str = "") -> None:
        self.ended = how
        self._write(why)

    def _write(self, why: str = "") -> None:
        facts = {"ended": self.ended, "why": why, "measured": self.measured, "skipped": self.skipped}
        write_json(self.path, plain(facts))


def read(path: Path) -> dict[str, Any]:
    """What a stage's process has written, if it came to that."""
    if path.exists():
        return json.loads(path.read_text())
    return {"ended": None, "why": "", "measured": {}, "skipped": {}}


def plain(value: Any) -> Any:
    """As JSON can hold it: NaN and infinity as words, since JSON has no number for them."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


def run(stage: str, toy: bool, out: Path, log: Path) -> None:
    """A stage in a process of its own, which leads a group: what it starts is ended with it."""
    os.setsid()
    with open(log, "wb", buffering=0) as handle:
        os.dup2(handle.fileno(), 1)
        os.dup2(handle.fileno(), 2)
    measure(stage, toy, Report(out))


def measure(stage: str, toy: bool, report: Report) -> None:
    """A stage in this process; what stops it is in the report."""
    seen = torch.cuda.is_available()
    device = torch.device("cuda", 0) if seen else torch.device("cpu")
    try:
        if not (seen or toy or stage == "machine"):
            raise NotHere("torch sees no GPU, and only the toy size runs on a CPU")
        report.add(device=torch.cuda.get_device_name(device) if seen else "cpu")
        # Looked up by name: a stage loads what it needs, and no other's fault is its own.
        getattr(importlib.import_module(STAGES[stage]), stage)(TOY if toy else FULL, device, report)
    except NotHere as reason:
        report.end("skipped", str(reason))
    except Exception as error:  # noqa: BLE001  whatever it is, it is this stage's result
        traceback.print_exc()
        line = (str(error).strip().splitlines() or [""])[0]
        report.end("raised", f"{type(error).__name__}: {line}"[:300])
    else:
        report.end("done")


def card_of(device: torch.device) -> cost.Gpu | None:
    """What the table of `ftis.suite.cost` says of this card; None for a CPU or a card that isn't there."""
    if device.type != "cuda":
        return None
    return cost.gpu_of_device(torch.cuda.get_device_name(device))
