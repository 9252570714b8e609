"""Nodes that don't send what they sampled: a node's setting `attack` names an entry of `ATTACKS`.

An attack sees the node's rollouts before they are encoded, and what it returns goes to the others; the node
itself trains on what it really sampled. What can be refused of it is the inbox's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftis.config import RunConfig
from ftis.errors import UserError, unknown
from ftis.swarm.message import Rollouts
from ftis.tasks.problems import Problem


@dataclass(frozen=True)
class Scene:
    """What an attacker knows when it sends."""

    step: int
    node: int
    seed: int
    problems: Sequence[Problem]
    """The iteration's; `Rollouts.prompt` are positions in them."""
    tokenizer: PreTrainedTokenizerBase


Attack = Callable[[Rollouts, Scene], Rollouts]


def claim_all_right(rollouts: Rollouts, scene: Scene) -> Rollouts:
    """Every completion is said to have earned the reward; `verify_rewards` finds it out."""
    return replace(rollouts, reward=np.ones_like(rollouts.reward))


ATTACKS: dict[str, Attack] = {"claim_all_right": claim_all_right}


def refuse_unknown_attacks(config: RunConfig) -> None:
    """Raise UserError for a node whose attack nobody has registered."""
    for k, node in enumerate(config.nodes):
        if node.attack is not None and node.attack not in ATTACKS:
            raise UserError(f"nodes.{k}.attack: {unknown('attack', node.attack, ATTACKS)}")
