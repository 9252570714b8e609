"""Runs of tiny models: their settings, and what two of them must have in common."""

import json

import torch
from safetensors.torch import load_file

from ftis.config import RUN_CONFIG
from ftis.settings import parse
from tests.parts import THREADS


class Killed(BaseException):
    """What no code that catches errors catches: the end of a process, as far as a test in that process can
    tell."""


def metrics(out):
    """Metrics without the clock."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds")
        for node in line["nodes"]:
            node.pop("seconds", None)
    return lines


def weights(out, node=0):
    path = out / f"node{node}"
    name = "adapter_model.safetensors" if (path / "adapter_config.json").exists() else "model.safetensors"
    return load_file(path / name)


def assert_same_run(a, b, nodes=2):
    """The same metrics and, bit for bit, the same weights."""
    assert metrics(a) == metrics(b)
    for k in range(nodes):
        one, other = weights(a, k), weights(b, k)
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def lora_node(tiny):
    lora = {"r": 4, "alpha": 8, "target_modules": "all-linear"}
    return {"name": "base_lora", "model": str(tiny / "base"), "learning_rate": 1e-3, "lora": lora}


def pair_config(tiny, **changes):
    """A full model and an adapter of it; `changes` are settings that differ."""
    fields = {
        "name": "test",
        "nodes": [
            {"name": "base", "label": "XS base", "model": str(tiny / "base"), "learning_rate": 3e-4},
            lora_node(tiny),
        ],
        "train": {"name": "tiny", "path": str(tiny / "data" / "train.jsonl")},
        "validation": {
            "data": {"name": "tiny", "path": str(tiny / "data/validation.jsonl"), "limit": 16},
            "every": 2, "max_new_tokens": 40, "samples": 2,
        },
        "method": "ftis", "threshold": 5.0, "prompts": 6, "group_size": 6, "checkpoint_every": 1, "threads": THREADS,
        "rollout": {"prompt": "tiny-v1", "max_new_tokens": 48},
        "optim": {"name": "adamw", "micro_batch_tokens": 1024},
    }  # fmt: skip
    return parse(RUN_CONFIG, fields | changes, "test config")
