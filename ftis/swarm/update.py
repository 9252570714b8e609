"""One optimizer step: micro-batches forward and backward, the mean's denominator, the guard, Adam."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ftis.method.objective import Objective, grpo_loss
from ftis.model.policy import Policy
from ftis.swarm.samples import Samples


@dataclass(frozen=True)
class Pass:
    """What was computed of n completions on their way through the model; T tokens of the longest."""

    rows: np.ndarray
    """(n,) which of the iteration's samples."""
    logp: Tensor
    logp_gen: Tensor
    """(n, T) log pi_theta and log pi_gen in nats."""
    entropy: Tensor
    """(n, T) nats."""
    mask: Tensor
    """(n, T) bool: real tokens."""
    loss: float
    """Summed over the completions."""
    count: int
    """Completions in the mean's denominator."""
    filtered: Tensor
    bad: Tensor
    far: Tensor
    """(n,) bool: update zeroed; the advantage's and the distance's part in it."""
    before: int = 0
    """Optimizer steps that the iteration had made before this pass."""


@dataclass(frozen=True)
class Broken:
    """Why an update was left out: a number that isn't finite, and where it may come from."""

    what: str
    fatal: bool
    """The weights are broken: there is nothing to go back to but the checkpoint."""
    gradient_norms: dict[str, float]
    weight_norms: dict[str, float]


@dataclass(frozen=True)
class Update:
    """An optimizer step, or why it was left out."""

    passes: tuple[Pass, ...]
    norm: float
    """Of the gradient, before clipping."""
    broken: Broken | None = None


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    samples: Samples,
    advantages: Tensor,
    rows: np.ndarray,
    *,
    temperature: float,
    budget: int,
    clip: float,
    unseen: int = 0,
    start: Mapping[int, np.ndarray] | None = None,
) -> Update:
    """One step of `optimizer` on the completions `rows` of `samples`; `advantages` (N,) are of all samples.

    `budget`: padded tokens in one forward and backward. `clip`: largest gradient norm. `unseen` completions
    of advantage 0 count in the mean without having been computed. `start`: log-probs at the iteration's
    start, by sample, which the reading `clip_reference: iteration_start` needs. A step with NaN or infinity
    in it isn't taken, and says so.
    """
    params = policy.trainable()
    passes: list[Pass] = []
    for batch in samples.micro_batches(rows, budget):
        passes += backward(policy, objective, samples, advantages, batch, temperature, start)
    if unseen:  # their gradient is 0, which isn't none: Adam's momentum still moves
        for p in params.values():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    gradients = [p.grad for p in params.values() if p.grad is not None]
    trained = [p for p in params.values() if p.grad is not None]
    # The mean's denominator is known only now: what is filtered may leave it.
    count = unseen + sum(one.count for one in passes)
    for gradient in gradients:
        gradient.div_(max(1.0, count))
    norm = torch.nn.utils.get_total_norm(gradients) if trained else torch.zeros(())
    broken = _broken_loss(passes) or ("" if norm.isfinite() else f"gradient norm is {norm}")
    fatal = False
    if not broken:
        if trained:
            torch.nn.utils.clip_grads_with_norm_(trained, clip, norm)
        optimizer.step()
        weights = torch.nn.utils.get_total_norm(list(params.values()))
        if not weights.isfinite():
            broken, fatal = f"weights' norm is {weights}", True
    why = Broken(broken, fatal, _norms(params, gradients=True), _norms(params)) if broken else None
    # Freed at once: while this node samples, or another one trains, their memory is wanted elsewhere.
    optimizer.zero_grad(set_to_none=True)
    return Update(tuple(passes), float(norm), why)


def backward(
    policy: Policy,
    objective: Objective,
    samples: Samples,
    advantages: Tensor,
    batch: np.ndarray,
    temperature: float,
    start: Mapping[int, np.ndarray] | None = None,
) -> list[Pass]:
    """Forward and backward of the completions `batch`: adds the gradient of their summed loss to the
    parameters'.

    The model's head asks for the loss of a few completions at a time, while their logits are there.
    """
    passes: list[Pass] = []

    def loss_of(part: slice, logp: Tensor, entropy: Tensor, mask: Tensor) -> Tensor:
        rows = batch[part]
        logp_gen = padded([samples.logprobs[i] for i in rows], logp)
        loss = grpo_loss(
            objective,
            logp,
            logp_gen,
            mask,
            advantages[rows].to(logp.device),
            torch.from_numpy(samples.own[rows]).to(logp.device),
            torch.from_numpy(samples.group_width[rows]).to(logp.device),
            None if start is None else padded([start[int(i)] for i in rows], logp),
        )
        passes.append(
            Pass(
                rows, logp.detach().cpu(), logp_gen.cpu(), entropy.cpu(), mask.cpu(),
                float(loss.total.detach()),
                int(loss.count), loss.filtered.cpu(), loss.bad.cpu(), loss.far.cpu(),
            )
        )  # fmt: skip
        return loss.total

    completions = [samples.tokens[i] for i in batch]
    policy.accumulate_gradient(samples.prompts_of(batch), completions, loss_of, temperature)
    return passes


@torch.no_grad()
def logprobs_now(
    policy: Policy, samples: Samples, rows: np.ndarray, temperature: float, budget: int
) -> dict[int, np.ndarray]:
    """Log-probs (length,) of each of the completions `rows` under the policy as it is, by sample."""
    found: dict[int, np.ndarray] = {}
    for batch in samples.micro_batches(rows, budget):
        completions = [samples.tokens[i] for i in batch]
        logp, _, _ = policy.token_logprobs(samples.prompts_of(batch), completions, temperature)
        found |= {int(i): row[: samples.length[i]] for i, row in zip(batch, logp.cpu().numpy())}
    return found


def padded(values: Sequence[np.ndarray], like: Tensor) -> Tensor:
    """Rows of floats in the shape (N, T) and on the device of `like`, padded with 0."""
    out = np.zeros(like.shape, np.float32)
    for line, value in zip(out, values):
        line[: len(value)] = value
    return torch.from_numpy(out).to(like.device)


def _broken_loss(passes: Sequence[Pass]) -> str:
    return next((f"loss is {one.loss}" for one in passes if not math.isfinite(one.loss)), "")


def _norms(params: Mapping[str, Tensor], gradients: bool = False) -> dict[str, float]:
    tensors = {name: p.grad if gradients else p.detach() for name, p in params.items()}
    return {name: float(tensor.norm()) for name, tensor in tensors.items() if tensor is not None}
