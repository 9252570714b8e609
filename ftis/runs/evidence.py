"""What is kept of an update that was left out because a number in it isn't finite: enough to compute it
again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from ftis.files import write_json
from ftis.swarm.node import BrokenUpdate


def save_evidence(folder: Path, update: BrokenUpdate) -> str:
    """Write ITERATION-NODE-UPDATE.json into `folder`, the facts and each pass's rows and loss, and
    .safetensors: the completions of the update in that order, packed, with their log-probs under the
    generator and under this node. Returns the JSON file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"iteration-{update.step:06d}-node{update.node}-update{update.update}"
    samples, passes = update.samples, update.passes
    rows = np.concatenate([np.empty(0, np.int64), *(one.rows for one in passes)])
    prompts = samples.prompts_of(rows)
    tensors = {
        "prompt_length": np.array([len(prompt) for prompt in prompts], np.int32),
        "prompt_tokens": np.array([t for prompt in prompts for t in prompt], np.int32),
        "length": samples.length[rows],
        "tokens": np.array([t for i in rows for t in samples.tokens[i]], np.int32),
        "logp_gen": np.array([x for i in rows for x in samples.logprobs[i]], np.float32),
        "reward": samples.reward[rows],
        "own": samples.own[rows],
        "group": samples.group[rows],
    }
    tensors = {name: torch.from_numpy(array) for name, array in tensors.items()}
    tensors["advantage"] = update.advantages[rows]
    tensors["logp"] = torch.cat([torch.empty(0), *(one.logp[one.mask] for one in passes)])
    save_file(tensors, stem.with_suffix(".safetensors"))
    facts = {
        "iteration": update.step, "node": update.node, "name": update.name, "update": update.update,
        "what": update.broken.what, "learning_rate": update.learning_rate,
        "gradient_norms": update.broken.gradient_norms, "weight_norms": update.broken.weight_norms,
        "micro_batches": [{"rows": one.rows.tolist(), "loss": one.loss} for one in passes],
    }  # fmt: skip
    write_json(stem.with_suffix(".json"), _json(facts))
    return f"{stem}.json"


def _json(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become text."""
    if isinstance(value, dict):
        return {key: _json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_json(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
