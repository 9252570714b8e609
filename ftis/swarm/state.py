"""What a swarm's training goes on from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ftis.swarm.transport import Lost


@dataclass(frozen=True)
class State:
    """What it takes to go on after an iteration."""

    step: int
    tensors: dict[int, dict[str, Tensor]]
    """By node: trainable weights and Adam's moments, under one set of names."""
    mail: dict[tuple[int, int, int], bytes]
    """(node, step, sender) -> a message that waits to be used."""
    memory: dict[int, dict[str, Any]]
    """By node: what else it knows, as JSON."""
    lost: Lost


def pack_node(params: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """A node's trainable weights and Adam's moments under one set of names."""
    tensors = {f"param/{name}": p for name, p in params.items()}
    for name, p in params.items():
        for key, value in optimizer.state.get(p, {}).items():
            tensors[f"{key}/{name}"] = value
    return tensors


@torch.no_grad()
def unpack_node(
    tensors: dict[str, Tensor], params: dict[str, Tensor], optimizer: torch.optim.Optimizer
) -> None:
    """Put back what `pack_node` took."""
    for full, value in tensors.items():
        key, name = full.split("/", 1)
        p = params[name]
        if key == "param":
            p.copy_(value)
        else:
            # Adam counts its steps in a CPU scalar, whatever device the weights are on, unless it is fused.
            stays = key == "step" and not optimizer.defaults["fused"]
            optimizer.state[p][key] = value.clone() if stays else value.to(p.device)
