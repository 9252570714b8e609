"""A policy tried out before anything is trained or sampled: on a few tokens, against transformers' plain
forward.

Training runs packed rows through attention of its own (`ftis.model.attention`), takes log-probs from hidden
states (`ftis.model.logprobs`) and has shortcuts for gradients; sampling decodes with a cache, on bare weights
or in another engine. Each is right for the models that it was written for, and on others silently wrong. So a
policy is checked when it is loaded (`check_policy`), and a sampler where it is attached to one: `attach` is
the way to every sampler. What differs is refused.

A check leaves nothing behind: weights, gradients, modes and random states are as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ftis.errors import UserError
from ftis.model.policy import Policy
from ftis.model.sampler import Request, Sampler, SamplingParams, require_finite

TEXT = "Tom has 12 pens."
TEMPERATURE = 0.8
"""Not 1, so that one who forgets to scale is found."""
NEW_TOKENS = 3

LOGIT_ERROR = 2e-5
"""Of the largest logit: what float32 log-probs may be off in training. SmolLM2-135M's are by 4e-7, tiny
models' by 1e-7."""
GRADIENT_ERROR, GRADIENT_NOISE = 1e-3, 5e-6
"""Of a tensor's own gradient, and of all tensors' together: a tensor whose gradient cancels out has but the
noise."""
FILL = 0.02
"""Standard deviation of what stands in for a tensor of zeros, as a fresh adapter's: it hides what it is
multiplied with."""


def attach(policy: Policy, make: Callable[[Policy], Sampler]) -> Sampler:
    """The sampler that `make` makes of the policy, checked: the one way to a sampler.

    Raises UserError where its log-probs are off those of the policy's plain forward by more than its
    `tolerance`.
    """
    sampler = make(policy)
    with _explained(policy, "sampling fails on it"):
        _check_sampler(policy, sampler)
    return sampler


def check_policy(policy: Policy) -> None:
    """Raise UserError where training would see other log-probs than those of the model's plain forward, or,
    where any tensor is trainable, where one gets another gradient. In float32, whatever the policy computes
    in."""
    with _explained(policy, "training fails on it"):
        exact = replace(policy, compute_dtype=torch.float32)
        if policy.trainable():
            with _zeros_filled(exact):
                _check_gradients(exact)
        else:
            prompts, completions = _rows(exact)
            with torch.no_grad():
                logp, _, mask = exact.token_logprobs(prompts, completions, TEMPERATURE)
                _compare(exact, logp[mask], *_by_itself(exact, prompts, completions))


def _rows(policy: Policy) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and completions: two that go on from one prompt, and one of another length."""
    ids = policy.tokenizer(TEXT).input_ids
    ids = (ids * 9)[:9]  # a tokenizer of few large tokens has it too
    first, second = ids[:4], ids[3:9]
    return [first, first, second], [ids[4:9], ids[2:5], ids[1:4]]


def _by_itself(
    policy: Policy, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
) -> tuple[Tensor, float]:
    """The completions' log-probs (M,), one after another, from the logits of whole rows with the model's own
    attention; and the largest logit."""
    lm, table = policy.causal_lm, policy.causal_lm.get_input_embeddings()
    ours, training = lm.config._attn_implementation, policy.model.training
    padding = getattr(table, "padding_idx", None)
    rows = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
    width = max(map(len, rows))
    # What stands behind a row is seen by none of its tokens, so that no mask is needed to have them side by
    # side.
    ids = torch.tensor([row + row[:1] * (width - len(row)) for row in rows], device=policy.device)
    policy.model.eval()
    lm.set_attn_implementation("eager")
    # torch gives the padding token's row no gradient, wherever the token stands; here the mask says what is
    # padding.
    table.padding_idx = None
    try:
        logits = lm(input_ids=ids, use_cache=False).logits[..., : policy.vocab_size].float()
    finally:
        table.padding_idx = padding
        lm.set_attn_implementation(ours)
        policy.model.train(training)
    places = [
        (i, len(p) - 1 + t) for i, (p, c) in enumerate(zip(prompts, completions)) for t in range(len(c))
    ]
    row, place = torch.tensor(places, device=policy.device).T
    logits = logits[row, place]
    logp = torch.log_softmax(logits / TEMPERATURE, -1).gather(-1, ids[row, place + 1, None]).squeeze(-1)
    require_finite(logp.detach().cpu().numpy(), policy.name)
    return logp, float(logits.detach().abs().max())


def _check_gradients(policy: Policy) -> None:
    prompts, completions = _rows(policy)
    params = policy.trainable()
    ours = []

    def weighted(logp: Tensor) -> Tensor:
        return (logp / torch.arange(1, logp.shape[-1] + 1, device=logp.device)).sum()

    def loss_of(_rows, logp: Tensor, _entropy, mask: Tensor) -> Tensor:
        ours.append(logp.detach()[mask])
        return weighted(logp)

    try:
        policy.accumulate_gradient(prompts, completions, loss_of, TEMPERATURE)
        norms = {name: float(p.grad.norm()) if p.grad is not None else 0.0 for name, p in params.items()}
        theirs, largest = _by_itself(policy, prompts, completions)
        _compare(policy, torch.cat(ours), theirs.detach(), largest)
        # On top of ours with the sign turned, so that one set of gradients is enough: what is left is the
        # difference.
        parts = theirs.split([len(c) for c in completions])
        (-torch.stack([weighted(part) for part in parts]).sum()).backward()
        whole = float(np.linalg.norm(list(norms.values())))
        for name, p in params.items():
            left = float(p.grad.norm()) if p.grad is not None else 0.0
            if not left <= GRADIENT_ERROR * norms[name] + GRADIENT_NOISE * whole:
                what = f"another one in training, off by {left:.2g}," if norms[name] else "none in training"
                raise _refusal(policy, f"tensor {name} has a gradient in its plain forward and {what}")
    finally:
        for p in params.values():
            p.grad = None
        if policy.device.type == "cuda":
            torch.cuda.empty_cache()


def _compare(policy: Policy, ours: Tensor, theirs: Tensor, largest: float) -> None:
    off = float((ours - theirs).abs().max())
    if off <= LOGIT_ERROR * max(1.0, largest / TEMPERATURE):
        return
    token = torch.tensor([_rows(policy)[0][0][:1]], device=policy.device)
    with torch.no_grad():
        logits = policy.causal_lm(input_ids=token).logits[0, -1, : policy.vocab_size]
        bare = policy.hidden(input_ids=token)[0, -1] @ policy.head().T
    if torch.allclose(logits, bare, rtol=1e-4, atol=LOGIT_ERROR):
        why = "its attention or its positions are of a kind that packed completions don't know"
    else:
        why = "its logits aren't hidden states times the output embedding, but scaled or capped"
    raise _refusal(policy, f"log-probs in training are off its plain forward's by {off:.2g} nats: {why}")


def _check_sampler(policy: Policy, sampler: Sampler) -> None:
    first, _, second = _rows(policy)[0]
    # A greedy one, whose log-probs are of temperature 1, would need a reference of its own.
    asked = [Request(first, [(0,), (1,)]), Request(second, [(2,)])]
    stop = policy.stop_ids
    policy.stop_ids = frozenset()  # else the first token might be all
    try:
        with _zeros_filled(policy, sampler):
            groups = sampler.sample(asked, SamplingParams(NEW_TOKENS, TEMPERATURE))
            completions = [c for group in groups for c in group]
            prompts = [request.prompt for request in asked for _ in request.keys]
            with torch.no_grad():
                theirs, _ = _by_itself(policy, prompts, [c.tokens.tolist() for c in completions])
    finally:
        policy.stop_ids = stop
    ours = np.concatenate([c.logprobs for c in completions])
    off = float(np.abs(ours - theirs.cpu().numpy()).max())
    if not off <= sampler.tolerance:
        raise _refusal(
            policy,
            f"log-probs of {type(sampler).__name__} are off its plain forward's by {off:.2g} nats "
            f"({sampler.tolerance:g} may be)",
        )


@contextmanager
def _zeros_filled(policy: Policy, sampler: Sampler | None = None) -> Iterator[None]:
    """Trainable tensors of zeros hold noise meanwhile, and the sampler, where there is one, has taken it
    up."""
    # Most show in their first number that they aren't.
    zeros = {name: p for name, p in policy.trainable().items() if not p.flatten()[0] and not p.any()}
    if not zeros:
        yield
        return
    saved = {name: p.detach().clone() for name, p in zeros.items()}
    random = torch.Generator().manual_seed(0)
    noise = {name: FILL * torch.randn(p.shape, generator=random) for name, p in zeros.items()}

    def put(values: dict[str, Tensor]) -> None:
        with sampler.updating() if sampler else nullcontext(), torch.no_grad():
            for name, p in zeros.items():
                p.copy_(values[name])

    put(noise)
    try:
        yield
    finally:
        put(saved)


@contextmanager
def _explained(policy: Policy, what: str) -> Iterator[None]:
    """Whatever one of some hundred architectures raises in a place that doesn't know it, as one line."""
    try:
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        told = (str(error).strip().splitlines() or [""])[0][:200]
        raise _refusal(policy, f"{what} ({type(error).__name__}: {told})") from error


def _refusal(policy: Policy, what: str) -> UserError:
    kind = policy.causal_lm.config.model_type
    return UserError(
        f"model {policy.name} (type {kind}): {what}; take a model of a supported type (docs/models.md)"
    )
