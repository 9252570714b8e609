"""What is kept of an update that was left out because a number in it isn't finite: enough to compute it again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from ftis.provenance import write_json
from ftis.swarm.metrics import Samples


def save_evidence(
    stem: Path,
    facts: dict[str, Any],
    samples: Samples,
    advantages: Tensor,
    collected: Sequence[dict[str, Any]],
) -> None:
    """Write `stem`.json, the facts and each micro-batch's rows and loss, and `stem`.safetensors: the completions
    of the update in that order, packed, with their log-probs under the generator and under this node."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    rows = np.concatenate([np.empty(0, np.int64), *(c["rows"] for c in collected)])
    tensors = {
        "prompt_length": np.array([len(samples.prompts[i]) for i in rows], np.int32),
        "prompt_tokens": np.array([t for i in rows for t in samples.prompts[i]], np.int32),
        "length": samples.length[rows],
        "tokens": np.array([t for i in rows for t in samples.tokens[i]], np.int32),
        "logp_gen": np.array([x for i in rows for x in samples.logprobs[i]], np.float32),
        "reward": samples.reward[rows],
        "own": samples.own[rows],
        "group": samples.group[rows],
    }
    tensors = {name: torch.from_numpy(array) for name, array in tensors.items()}
    tensors["advantage"] = advantages[rows]
    tensors["logp"] = torch.cat([torch.empty(0), *(c["logp"][c["mask"]] for c in collected)])
    save_file(tensors, stem.with_suffix(".safetensors"))
    batches = [{"rows": c["rows"].tolist(), "loss": c["loss"]} for c in collected]
    write_json(stem.with_suffix(".json"), _json({**facts, "micro_batches": batches}))


def _json(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become text."""
    if isinstance(value, dict):
        return {key: _json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_json(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
