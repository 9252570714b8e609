"""Log-probs of sampled tokens from hidden states, and their gradients, without the (tokens, vocabulary)
tensor.

Shapes: M tokens, H hidden width, V vocabulary. logits = hidden @ weight.T / temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

# Logits held at a time: 2^25 float32 are 128 MiB.
CHUNK_LOGITS = 2**25
# A completion is never cut, so that its loss is known while its logits are there: one that is longer than
# this many logits has them computed twice instead.
LONGEST_LOGITS = 4 * CHUNK_LOGITS
# Logits that the passes over a row take at a time. On a CPU 4 MiB stay in a cache between them; on a GPU,
# where this hasn't been measured, blocks that small would be hundreds of short kernels a chunk, so they are
# 64 MiB.
BLOCK_LOGITS, GPU_BLOCK_LOGITS = 2**20, 2**24


class TokenLogprob(torch.autograd.Function):
    """log softmax(hidden @ weight.T / temperature)[target] and the entropy, chunk by chunk.

    hidden (M, H), weight (V, H), target (M,) int64 -> logp (M,), entropy (M,) float32, in nats. Only a
    chunk of the (M, V) logits exists at a time; backward recomputes it. The entropy carries no gradient.
    """

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, target: Tensor, temperature: float):
        ctx.save_for_backward(hidden, weight, target)
        ctx.temperature = temperature
        logp = hidden.new_empty(len(target), dtype=torch.float32)
        entropy = torch.empty_like(logp)
        for rows in _slices(len(target), CHUNK_LOGITS // len(weight)):
            logits = (hidden[rows] @ weight.T).float()
            logp[rows], entropy[rows], _ = _exponentiate(logits, target[rows], temperature)
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx, grad_logp: Tensor, _grad_entropy):
        hidden, weight, target = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for rows in _slices(len(target), CHUNK_LOGITS // len(weight)):
            logits = (hidden[rows] @ weight.T).float()
            _, _, total = _exponentiate(logits, target[rows], ctx.temperature)
            grad = _logits_gradient(logits, total, target[rows], grad_logp[rows], ctx.temperature)
            grad = grad.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = grad @ weight
            if grad_weight is not None:
                grad_weight.addmm_(grad.T, hidden[rows])
        return grad_hidden, grad_weight, None, None


LossOf = Callable[[slice, Tensor, Tensor], Tensor]
"""(completions, their logp (m,) with gradient, their entropy (m,)) -> scalar loss; tokens lie completion
after completion. A loss is a sum over completions: what one contributes depends on no other."""


def accumulate(
    hidden: Tensor, weight: Tensor, grad_weight: Tensor | None, target: Tensor, lengths: Sequence[int],
    temperature: float, loss_of: LossOf,
) -> Tensor:  # fmt: skip
    """Gradient of a loss of log-probs with respect to `hidden` (M, H); that of `weight` (V, H) is added to
    `grad_weight`.

    hidden (M, H) and target (M,) hold N completions of `lengths` tokens. The logits of a few whole
    completions are computed once: their loss gives the gradient of their log-probs, which turns the logits
    into their own gradient in place. Three matrix products a chunk, as without chunks; recomputing in a
    backward takes four.
    """
    hidden = hidden.detach()
    grad_hidden = torch.empty_like(hidden)
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    buffer: Tensor | None = None
    for part in _whole(lengths, CHUNK_LOGITS // len(weight)):
        rows = slice(ends[part.start], ends[part.stop])
        count = rows.stop - rows.start
        if count * len(weight) > LONGEST_LOGITS:
            grad_hidden[rows] = _recomputed(
                hidden[rows], weight, grad_weight, target[rows], temperature, part, loss_of
            )
            continue
        if buffer is None or len(buffer) < count:
            buffer = None  # freed before the larger one is taken
            buffer = hidden.new_empty(count, len(weight), dtype=torch.float32)
        logits = buffer[:count]
        if hidden.dtype == torch.float32:
            torch.mm(hidden[rows], weight.T, out=logits)
        else:
            logits.copy_(hidden[rows] @ weight.T)
        logp, entropy, total = _exponentiate(logits, target[rows], temperature)
        with torch.enable_grad():
            logp.requires_grad_()
            (grad_logp,) = torch.autograd.grad(loss_of(part, logp, entropy), logp)
        grad = _logits_gradient(logits, total, target[rows], grad_logp, temperature).to(hidden.dtype)
        grad_hidden[rows] = grad @ weight
        if grad_weight is not None and grad_weight.dtype == grad.dtype:
            grad_weight.addmm_(grad.T, hidden[rows])
        elif grad_weight is not None:  # chunks are summed in float32, whatever the products are in
            grad_weight += grad.T @ hidden[rows]
    return grad_hidden


def _recomputed(hidden, weight, grad_weight, target, temperature, part, loss_of) -> Tensor:
    """`accumulate` for one completion whose logits are too many to be kept."""
    with torch.enable_grad():
        hidden = hidden.requires_grad_()
        weight = weight.detach().requires_grad_(grad_weight is not None)
        logp, entropy = TokenLogprob.apply(hidden, weight, target, temperature)
        inputs = (hidden, weight) if grad_weight is not None else (hidden,)
        grads = torch.autograd.grad(loss_of(part, logp, entropy), inputs)
    if grad_weight is not None:
        grad_weight += grads[1]
    return grads[0]


def _exponentiate(logits: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """logp (M,), entropy (M,) and the sum of what `logits` (M, V) become in place: exp(logit - highest)."""
    logp = logits.new_empty(len(logits))
    entropy, total = torch.empty_like(logp), torch.empty_like(logp)
    block_logits = BLOCK_LOGITS if logits.device.type == "cpu" else GPU_BLOCK_LOGITS
    for rows in _slices(len(logits), block_logits // logits.shape[1]):
        block = logits[rows]
        if temperature != 1.0:
            block /= temperature
        shifted = block - block.amax(-1, keepdim=True)
        torch.exp(shifted, out=block)
        total[rows] = block.sum(-1)
        log_total = total[rows].log()
        logp[rows] = shifted.gather(-1, target[rows, None]).squeeze(-1) - log_total
        entropy[rows] = log_total - shifted.mul_(block).sum(-1) / total[rows]
    return logp, entropy, total


def _logits_gradient(
    exponentials: Tensor, total: Tensor, target: Tensor, grad_logp: Tensor, temperature: float
) -> Tensor:
    """What `_exponentiate` left, turned in place into the gradient: (onehot(target) - softmax) grad /
    temperature."""
    scale = grad_logp / temperature
    exponentials *= (-scale / total)[:, None]
    return exponentials.scatter_add_(-1, target[:, None], scale[:, None])


def _slices(rows: int, step: int) -> Iterator[slice]:
    step = max(1, step)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _whole(lengths: Sequence[int], most: int) -> Iterator[slice]:
    """Runs of completions of at most `most` tokens together; a longer one alone."""
    first, tokens = 0, 0
    for i, length in enumerate(lengths):
        if i > first and tokens + length > most:
            yield slice(first, i)
            first, tokens = i, 0
        tokens += length
    if len(lengths):
        yield slice(first, len(lengths))
