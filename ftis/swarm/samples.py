"""What a node trains on in an iteration: its own and foreign completions in one order, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ftis.swarm.message import Rollouts
from ftis.tasks.grading.verdict import Verdict


@dataclass(frozen=True)
class Sampled:
    """What a node sampled itself in an iteration, with the verdict on each completion."""

    rollouts: Rollouts
    verdicts: list[Verdict]


@dataclass(frozen=True)
class Share:
    """One node's completions of one iteration."""

    step: int
    node: int
    rollouts: Rollouts


@dataclass(frozen=True)
class Samples:
    """All completions that a node trains on in an iteration; N entries each but `prompts`."""

    prompts: list[list[int]]
    """Token ids of each group's prompt: that of completion i is `prompts[group[i]]`."""
    tokens: list[np.ndarray]
    logprobs: list[np.ndarray]
    """log pi_gen of the tokens, in nats."""
    reward: np.ndarray
    finished: np.ndarray
    own: np.ndarray
    group: np.ndarray
    """Index of the completion's (step, prompt)."""
    length: np.ndarray
    group_width: np.ndarray
    """Length of the longest completion of the group."""

    @classmethod
    def gather(
        cls, shares: Sequence[Share], prompts: Mapping[int, Sequence[list[int]]], node: int
    ) -> Samples:
        """The shares as node `node` sees them, with the `prompts` of each step; ordered by group, then
        sample, so that the order in which messages come changes nothing."""
        rows = [
            (share.step, int(p), int(s), share.node == node, tokens, logprobs, float(reward), bool(finished))
            for share in shares
            for r in [share.rollouts]
            for p, s, tokens, logprobs, reward, finished in zip(
                r.prompt, r.sample, r.split(r.tokens), r.split(r.logprobs), r.reward, r.finished
            )
        ]
        rows.sort(key=lambda row: row[:3])
        labels = {pair: i for i, pair in enumerate(dict.fromkeys((row[0], row[1]) for row in rows))}
        group = np.array([labels[row[0], row[1]] for row in rows])
        length = np.array([len(row[4]) for row in rows])
        width = np.zeros(len(labels), length.dtype)
        np.maximum.at(width, group, length)
        tokens, logprobs = [row[4] for row in rows], [row[5] for row in rows]
        own, reward, finished = (np.array([row[k] for row in rows]) for k in (3, 6, 7))
        asked = [prompts[step][p] for step, p in labels]
        return cls(asked, tokens, logprobs, reward, finished, own, group, length, width[group])

    def prompts_of(self, rows: np.ndarray) -> list[list[int]]:
        """The prompt of each of the completions `rows`; it is read once for each group."""
        return [self.prompts[group] for group in self.group[rows]]

    def micro_batches(self, rows: np.ndarray, budget: int) -> list[np.ndarray]:
        """The completions `rows` cut up: those of a group together, since they share their prompt's pass, and
        groups of like length together; each batch within the `budget` of padded tokens, prompts counted
        once."""
        prompt_length = np.array([len(p) for p in self.prompts])[self.group]
        ordered = rows[np.lexsort((self.length[rows], self.group[rows], self.group_width[rows]))]
        batches, first = [], 0
        groups, longest, longest_prompt = set(), 0, 0
        for i, row in enumerate(ordered):
            groups.add(self.group[row])
            longest = max(longest, self.length[row])
            longest_prompt = max(longest_prompt, prompt_length[row])
            tokens = len(groups) * longest_prompt + (i + 1 - first) * longest
            if i > first and tokens > budget:
                batches.append(ordered[first:i])
                first, groups = i, {self.group[row]}
                longest, longest_prompt = self.length[row], prompt_length[row]
        return [*batches, ordered[first:]] if len(ordered) else []
