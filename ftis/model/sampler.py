"""Sampling completions with the log-probs of what was sampled.

`Sampler` is the protocol; `TransformersSampler` is a batched decoder on the policy's own weights with a
key-value cache, one prefill for a whole group, each prefix that its completions share decoded once, and
random draws that belong to the completion and not to the batch that it happens to sit in.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from ftis.errors import UserError
from ftis.model.attention import shared
from ftis.model.decode import Prefix, decoder
from ftis.model.policy import Policy


@dataclass(frozen=True)
class Request:
    """Completions wanted of one prompt: one for each key, the key deciding its random draws; None is
    greedy."""

    prompt: Sequence[int]
    keys: Sequence[tuple[int, ...] | None]


@dataclass(frozen=True)
class Completion:
    """tokens (T,) int32 with the stop token if there is one; logprobs (T,) float32 in nats under the full
    softmax at the sampling temperature (1 if greedy); finished: ends with a stop token (else truncated)."""

    tokens: np.ndarray
    logprobs: np.ndarray
    finished: bool


@dataclass(frozen=True)
class SamplingParams:
    """temperature is of what is drawn (greedy completions know none); top_k None keeps the full support."""

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int | None = None
    max_batch: int = 1024
    max_total_tokens: int | None = None

    def budget(self, prompt_length: int) -> int:
        """New tokens that a completion may have, at least one."""
        if self.max_total_tokens is None:
            return self.max_new_tokens
        return max(1, min(self.max_new_tokens, self.max_total_tokens - prompt_length))


class Sampler(Protocol):
    """Samples from the policy's current weights. Made through `ftis.model.check.attach`, which tries it
    out."""

    tolerance: float
    """Nats that a log-prob may be off that of the policy's plain float32 forward, on a short text."""

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[list[Completion]]:
        """One list a request, one completion a key, in order."""

    def updating(self) -> AbstractContextManager[None]:
        """Around each change of the policy's weights; the sampler has taken them up when it ends."""


def draws(key: tuple[int, ...] | None, count: int) -> np.ndarray:
    """(count,) float32 uniforms in [0, 1) that depend on the key alone; NaN without one."""
    if key is None:
        return np.full(count, np.nan, dtype=np.float32)
    bits = np.random.Philox(np.random.SeedSequence(key))
    return np.random.Generator(bits).random(count, dtype=np.float32)


def choose(logits: Tensor, branch: Tensor, uniforms: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Pick a token a row by inverting the distribution function of its branch: tokens (N,), log-probs (N,).

    logits (B, V) float32, branch (N,) int64 into them, uniforms (N,) in [0, 1); NaN is the likeliest token,
    with its log-prob at temperature 1. Logits of a branch that aren't finite give some token with a log-prob
    of NaN.
    """
    logp = torch.log_softmax(logits / params.temperature, -1)
    greedy = uniforms.isnan()
    if greedy.any():
        plain = logp if params.temperature == 1 else torch.log_softmax(logits, -1)
        best, likeliest = (t[branch] for t in plain.max(-1))
        if greedy.all():
            return likeliest, best
    weights = logp.exp().double()
    if params.top_k is not None and params.top_k < weights.shape[-1]:
        kth = weights.topk(params.top_k).values[:, -1:]
        weights = weights.masked_fill(weights < kth, 0.0)
    cumulative = weights.cumsum(-1)[branch]
    # The first token whose cumulative weight passes the draw: one of weight 0 never is.
    target = uniforms.nan_to_num()[:, None].double() * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    tokens = tokens.clamp(max=logits.shape[-1] - 1)  # NaN passes nothing
    chosen = logp[branch, tokens]
    if greedy.any():
        tokens, chosen = torch.where(greedy, likeliest, tokens), torch.where(greedy, best, chosen)
    return tokens, chosen


def require_finite(logprobs: np.ndarray, model: str) -> None:
    """Raise UserError for a log-prob of a sampled token that is NaN or infinite, as its logits then were."""
    if not np.isfinite(logprobs).all():
        raise UserError(
            f"model {model}: its logits are NaN or infinite, so nothing can be sampled; take sound weights, "
            f"or if training "
            "made them so, lower learning_rate"
        )


class TransformersSampler:
    """Decodes with the policy's own weights, so there is nothing to synchronise after an update."""

    def __init__(self, policy: Policy):
        self.policy = policy
        # bfloat16 has 8 bits: logits of 10 to 30 are off by up to 0.1.
        self.tolerance = 1e-3 if policy.compute_dtype == torch.float32 else 0.5

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[list[Completion]]:
        flat: list[Completion] = []
        jobs = [(request, key) for request in requests for key in request.keys]
        for start in range(0, len(jobs), params.max_batch):
            flat += self._batch(jobs[start : start + params.max_batch], params)
        rest = iter(flat)
        return [[next(rest) for _ in request.keys] for request in requests]

    def updating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _batch(
        self, jobs: list[tuple[Request, tuple[int, ...] | None]], params: SamplingParams
    ) -> list[Completion]:
        # Activation checkpointing keeps a model in train mode, where transformers refuses a cache.
        training = self.policy.model.training
        self.policy.model.eval()
        try:
            with torch.inference_mode():
                return self._decode(jobs, params)
        finally:
            self.policy.model.train(training)

    def _decode(
        self, jobs: list[tuple[Request, tuple[int, ...] | None]], params: SamplingParams
    ) -> list[Completion]:
        policy, device = self.policy, self.policy.device

        def on_device(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device)

        # Each prompt once: a branch that no completion belongs to would be one more than there is room for.
        # The branch of each row that still grows: to begin with, its prompt.
        prompts, branch = shared([request.prompt for request, _ in jobs])
        rows = np.arange(len(jobs))
        budget = np.array([params.budget(len(request.prompt)) for request, _ in jobs])
        width, room = max(map(len, prompts)), int(budget.max())
        uniforms = np.stack([draws(key, room) for _, key in jobs])

        # Prompts are padded on the left, so that all rows generate at the same column.
        ids = torch.zeros(len(prompts), width, dtype=torch.int64)
        for row, prompt in zip(ids, prompts):
            row[width - len(prompt) :] = torch.tensor(prompt)
        pad = width - torch.tensor([len(p) for p in prompts])
        visible = torch.arange(width) >= pad[:, None]
        positions = (torch.arange(width) - pad[:, None]).clamp(min=0)
        ids, visible, positions = ids.to(device), visible.to(device), positions.to(device)

        with policy.autocast():
            head = policy.head()
            cache = DynamicCache()
            hidden = policy.hidden(
                input_ids=ids,
                attention_mask=visible,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
            logits = (hidden[:, -1] @ head.T).float()
            del hidden  # all prompts' columns; the decoder empties the cache as well
            decode = decoder(policy, Prefix(cache, visible), len(jobs), room)

            tokens = np.zeros((len(jobs), room), dtype=np.int32)
            logprobs = np.zeros((len(jobs), room), dtype=np.float32)
            length = budget.copy()
            finished = np.zeros(len(jobs), dtype=bool)
            stop, count = sorted(policy.stop_ids), len(prompts)
            for step in range(room):
                drawn = choose(logits, on_device(branch), on_device(uniforms[rows, step]), params)
                chosen, logp = (t.cpu().numpy() for t in drawn)
                require_finite(logp, policy.causal_lm.name_or_path)
                tokens[rows, step], logprobs[rows, step] = chosen, logp
                ended = np.isin(chosen, stop)
                finished[rows[ended]] = True
                length[rows[ended]] = step + 1
                live = length[rows] > step + 1
                if not live.any():
                    break
                rows, branch, chosen = rows[live], branch[live], chosen[live]

                # Completions go on as one branch while they choose alike: the first choice of a branch takes
                # its place, and the others fork from it.
                pairs, choice = np.unique(branch * policy.vocab_size + chosen, return_inverse=True)
                parent, fed = np.divmod(pairs, policy.vocab_size)
                first = np.diff(parent, prepend=-1) > 0
                # Branches that are done are dropped once they are worth the copy of the rest.
                if first.sum() <= 0.85 * count:
                    decode.keep(on_device(parent[first]), len(rows))
                    parent, count = first.cumsum() - 1, int(first.sum())
                place = parent.copy()
                place[~first] = count + np.arange((~first).sum())
                if not first.all():
                    decode.fork(on_device(parent[~first]))
                    count += int((~first).sum())
                feed = np.zeros(count, dtype=np.int64)
                feed[place] = fed
                branch = place[choice]
                logits = (decode.step(on_device(feed)) @ head.T).float()
        return [
            Completion(tokens[i, :n].copy(), logprobs[i, :n].copy(), bool(finished[i]))
            for i, n in enumerate(length)
        ]
