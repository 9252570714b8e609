"""Who samples what: an iteration's completions, dealt out to the nodes."""

from __future__ import annotations


def owner(split: str, prompt: int, sample: int, nodes: int) -> int:
    """The node that samples a completion. Vertical: prompts are dealt out; horizontal: each group is."""
    return (prompt if split == "vertical" else sample) % nodes


def assignment(
    split: str, prompts: int, group_size: int, nodes: int, node: int
) -> list[tuple[int, list[int]]]:
    """A node's share of an iteration: for each of its prompts, the group indices that it samples."""
    share = [(p, [s for s in range(group_size) if owner(split, p, s, nodes) == node]) for p in range(prompts)]
    return [(p, samples) for p, samples in share if samples]
