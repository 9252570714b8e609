"""What is logged: the records of an iteration, and the statistics of its updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch

from ftis.method.kl import KL_ESTIMATORS, MAX_LOG_RATIO, sequence_kl
from ftis.swarm.samples import Sampled, Samples
from ftis.swarm.update import Pass

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Statistics:
    """Of an iteration's updates of a node; origins are "own" and "foreign", as far as there are such
    samples."""

    loss: float = 0.0
    """Mean over all completions that were trained on, filtered ones as 0."""
    entropy: float | None = None
    """Nats a token, of own samples."""
    filtered: Mapping[str, float] = field(default_factory=dict)
    """Share of completions whose update was zeroed, by origin and of "all"."""
    filter_causes: Mapping[str, Mapping[str, float]] | None = None
    """By origin: share with a bad "advantage", and beyond the "distance" g."""
    kl: Mapping[str, Mapping[str, list[float]]] = field(default_factory=dict)
    """By origin and ESTIMATOR_REDUCTION: `QUANTILES` over completions, nats."""
    weight: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By origin: `weight_statistics`."""
    mismatch: Mapping[str, float] | None = None
    """Between sampler and trainer: "k3", the mean of k3 a token, and the largest |delta log p| ("max")."""


@dataclass(frozen=True)
class NodeLine:
    """What a node's iteration came to; before the first one only its name and validation."""

    node: int
    name: str
    label: str
    validation: Mapping[str, Any] | None = None
    """Scores of "greedy" and "sampled" answers."""
    reward: float | None = None
    """Mean of its own completions."""
    accuracy: float | None = None
    """Share of its own completions whose answer is right, whatever their form."""
    format_rate: float | None = None
    length: float | None = None
    """Mean tokens of its own completions."""
    truncated: float | None = None
    grader_faults: int | None = None
    zero_advantage: float | None = None
    grad_norm: float | None = None
    """Mean over updates, before clipping."""
    nonfinite: int | None = None
    """Updates that were left out, since a number in them wasn't finite."""
    learning_rate: float | None = None
    tokens_generated: int | None = None
    tokens_trained: int | None = None
    statistics: Statistics | None = None
    bytes_sent: int | None = None
    bytes_received: int | None = None
    refused: Mapping[str, int] | None = None
    """By reason: messages refused whole and completions."""
    dropped: int | None = None
    """Completions of peers that the iteration went without."""
    distrusted: Sequence[int] | None = None
    seconds: Mapping[str, float] | None = None
    """By phase."""
    sampled: Sampled | None = None
    """Its own completions; not part of the JSON."""

    def as_dict(self) -> dict[str, Any]:
        """The entry of metrics.jsonl: flat, and without what wasn't measured."""
        if self.reward is None:
            return {name: getattr(self, name) for name in ("node", "name", "label", "validation")}
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "sampled"}
        statistics = {
            k: v for k, v in asdict(plain.pop("statistics")).items() if (k, v) != ("filter_causes", None)
        }
        return plain | statistics


@dataclass(frozen=True)
class Line:
    """An iteration of all nodes; 0 stands for before the first."""

    step: int
    seconds: float
    nodes: tuple[NodeLine, ...]

    def as_dict(self) -> dict[str, Any]:
        """The line of metrics.jsonl."""
        return {"step": self.step, "seconds": self.seconds, "nodes": [node.as_dict() for node in self.nodes]}


def statistics(passes: Sequence[Pass], cap: float, samples: Samples) -> Statistics:
    """Over an iteration's passes, split by origin; `cap` is C, at which weights are truncated.

    Log-ratios are those at the moment of a sample's own update. The sampler-trainer mismatch is over own
    samples of the first update, before any weight has moved.
    """
    if not passes:
        return Statistics()
    origin: dict[str, list[dict[str, np.ndarray]]] = {"own": [], "foreign": []}
    entropy, mismatch = [], []
    for one in passes:
        mask, d = one.mask, one.logp_gen - one.logp
        own = torch.from_numpy(samples.own[one.rows])
        entropy.append(one.entropy[mask & own[:, None]])
        if not one.before:
            mismatch.append(-d[mask & own[:, None]])
        kl = {
            f"{name}_{how}": sequence_kl(estimator(d), mask, how).numpy()
            for name, estimator in KL_ESTIMATORS.items()
            for how in ("sum", "mean")
        }
        for who, rows in (("own", own), ("foreign", ~own)):
            part = {name: values[rows.numpy()] for name, values in kl.items()}
            part |= {name: getattr(one, name)[rows].numpy() for name in ("filtered", "bad", "far")}
            part["log_ratio"] = -d[mask & rows[:, None]].numpy()
            origin[who].append(part)
    joined = {
        who: {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        for who, parts in origin.items()
    }
    present = {who: part for who, part in joined.items() if len(part["filtered"])}
    everything = np.concatenate([part["filtered"] for part in joined.values()])
    entropies, log_ratio = torch.cat(entropy), torch.cat([torch.zeros(0), *mismatch]).double()
    return Statistics(
        loss=sum(one.loss for one in passes) / len(everything),
        entropy=float(entropies.mean()) if len(entropies) else None,
        filtered={"all": float(everything.mean())}
        | {who: float(part["filtered"].mean()) for who, part in present.items()},
        filter_causes={
            who: {"advantage": float(part["bad"].mean()), "distance": float(part["far"].mean())}
            for who, part in present.items()
        },
        kl={
            who: {
                key: [round(float(q), 6) for q in np.quantile(part[key], QUANTILES)]
                for key in part
                if key.endswith(("_sum", "_mean"))
            }
            for who, part in present.items()
        },
        weight={who: weight_statistics(part["log_ratio"], cap) for who, part in present.items()},
        mismatch={
            "k3": float((torch.exp(log_ratio) - log_ratio - 1).mean()),
            "max": float(log_ratio.abs().max()),
        }
        if len(log_ratio)
        else None,
    )


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
