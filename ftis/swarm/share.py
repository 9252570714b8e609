"""Who samples what: an iteration's completions, dealt out to the nodes."""

from __future__ import annotations

from ftis.config import RunConfig
from ftis.swarm.message import most_bytes


def owner(split: str, prompt: int, sample: int, nodes: int) -> int:
    """The node that samples a completion. Vertical: prompts are dealt out; horizontal: each group is."""
    return (prompt if split == "vertical" else sample) % nodes


def assignment(
    split: str, prompts: int, group_size: int, nodes: int, node: int
) -> list[tuple[int, list[int]]]:
    """A node's share of an iteration: for each of its prompts, the group indices that it samples."""
    share = [(p, [s for s in range(group_size) if owner(split, p, s, nodes) == node]) for p in range(prompts)]
    return [(p, samples) for p, samples in share if samples]


def largest_message(config: RunConfig, vocab_size: int) -> int:
    """Bytes of the largest message that any node of the run may send."""
    shares = [
        assignment(config.split, config.prompts, config.group_size, len(config.nodes), k)
        for k in range(len(config.nodes))
    ]
    completions = max(sum(len(samples) for _, samples in share) for share in shares)
    return most_bytes(vocab_size, completions, completions * config.rollout.max_new_tokens)
