"""What one iteration's samples say: the batch as plain arrays, and the statistics that are logged of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ftis.method.kl import KL_ESTIMATORS, MAX_LOG_RATIO, sequence_kl
from ftis.swarm.message import Rollouts

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Samples:
    """All completions that a node trains on in an iteration; N entries each."""

    prompts: list[list[int]]
    tokens: list[np.ndarray]
    logprobs: list[np.ndarray]
    """log pi_gen of the tokens."""
    reward: np.ndarray
    finished: np.ndarray
    own: np.ndarray
    group: np.ndarray
    """Label of the completion's (step, prompt)."""
    length: np.ndarray
    group_width: np.ndarray
    """Length of the longest completion of the group."""

    @classmethod
    def gather(
        cls, batch: Sequence[tuple[int, int, Rollouts]], prompts: dict[int, list[list[int]]], node: int
    ) -> Samples:
        """Unpack (step, sender, rollouts) as node `node` sees them; ordered by group, then sample, so
        that the order in which messages come changes nothing."""
        rows = [
            (step, int(p), int(s), sender == node, tokens, logprobs, float(reward), bool(finished))
            for step, sender, r in batch
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
        return cls(
            [prompts[row[0]][row[1]] for row in rows],
            [row[4] for row in rows],
            [row[5] for row in rows],
            np.array([row[6] for row in rows]),
            np.array([row[7] for row in rows]),
            np.array([row[3] for row in rows]),
            group,
            length,
            width[group],
        )


def update_metrics(
    collected: Sequence[dict[str, Any]], objective: Objective, samples: Samples
) -> dict[str, Any]:
    """Statistics over an iteration's micro-batches, split by origin (own, foreign).

    The loss is the mean over all completions that were trained on, filtered ones as 0. `collected` holds each
    micro-batch's rows, logp, logp_gen, mask, entropy, the filter's outcome and how many updates came before it.
    Log-ratios are those at the moment of a sample's own update. The sampler-trainer mismatch is over own
    samples of the first update, before any weight has moved.
    """
    if not collected:
        return {"loss": 0.0, "entropy": None, "filtered": {}, "kl": {}, "weight": {}, "mismatch": None}
    origin: dict[str, list[dict[str, np.ndarray]]] = {"own": [], "foreign": []}
    entropy, mismatch = [], []
    for c in collected:
        mask, d = c["mask"], c["logp_gen"] - c["logp"]
        own = torch.from_numpy(samples.own[c["rows"]])
        entropy.append(c["entropy"][mask & own[:, None]])
        if not c["updates"]:
            mismatch.append(-d[mask & own[:, None]])
        kl = {
            f"{name}_{how}": sequence_kl(estimator(d), mask, how).numpy()
            for name, estimator in KL_ESTIMATORS.items()
            for how in ("sum", "mean")
        }
        for who, rows in (("own", own), ("foreign", ~own)):
            part = {name: values[rows.numpy()] for name, values in kl.items()}
            part |= {name: c[name][rows].numpy() for name in ("filtered", "bad", "far")}
            part["log_ratio"] = -d[mask & rows[:, None]].numpy()
            origin[who].append(part)
    joined = {
        who: {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        for who, parts in origin.items()
    }
    present = {who: part for who, part in joined.items() if len(part["filtered"])}
    everything = np.concatenate([part["filtered"] for part in joined.values()])
    entropies, log_ratio = torch.cat(entropy), torch.cat([torch.zeros(0), *mismatch]).double()
    return {
        "loss": sum(c["loss"] for c in collected) / len(everything),
        "entropy": float(entropies.mean()) if len(entropies) else None,
        "filtered": {"all": float(everything.mean())}
        | {who: float(part["filtered"].mean()) for who, part in present.items()},
        "filter_causes": {
            who: {"advantage": float(part["bad"].mean()), "distance": float(part["far"].mean())}
            for who, part in present.items()
        },
        "kl": {
            who: {
                key: [round(float(q), 6) for q in np.quantile(part[key], QUANTILES)]
                for key in part
                if key.endswith(("_sum", "_mean"))
            }
            for who, part in present.items()
        },
        "weight": {who: weight_statistics(part["log_ratio"], objective.cap) for who, part in present.items()},
        "mismatch": {
            "k3": float((torch.exp(log_ratio) - log_ratio - 1).mean()),
            "max": float(log_ratio.abs().max()),
        }
        if len(log_ratio)
        else None,
    }


def weight_statistics(log_ratio: np.ndarray, cap: float) -> dict[str, float]:
    """Of the token ratios r = pi_theta / pi_gen: mean, max, share above the cap C, and the effective
    sample size of min(r, C) as a share of the tokens, (sum w)^2 / (n sum w^2) (Kong 1992)."""
    ratio = np.exp(np.minimum(log_ratio, MAX_LOG_RATIO).astype(np.float64))
    weight = np.minimum(ratio, cap)
    weight /= weight.max() or 1.0  # squares of tiny weights would underflow
    return {
        "mean": float(ratio.mean()),
        "max": float(ratio.max()),
        "truncated": float((ratio > cap).mean()),
        "ess": float(weight.sum() ** 2 / (len(weight) * (weight**2).sum())) if weight.any() else 0.0,
    }
