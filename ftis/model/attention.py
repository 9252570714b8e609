"""The attention that policies' models call: of packed completions, of one new token a row, or the library's.

Packed, all tokens of a batch lie one after another in a single row (1, M), first the prompts, each once, then
the completions: projections, norms and activations see no padding and no prompt twice. Only attention itself
is computed in padded rows, where a completion sees its own prompt's keys and its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

IMPLEMENTATION = "ftis"
"""Its name in transformers' registry."""

# Since torch 2.10 cuDNN is the first choice on H100 and newer. Its backward gives NaN for masked rows whose
# logits are low (pytorch#196678), it decodes wrongly with few key heads (pytorch#193893), and it compiles
# anew for every shape, of which decoding has one a step.
torch.backends.cuda.enable_cudnn_sdp(False)


def sdpa_backends() -> str:
    """The backends that torch may choose from for attention on a GPU, in words."""
    cuda = torch.backends.cuda
    on = {
        "flash": cuda.flash_sdp_enabled(), "mem_efficient": cuda.mem_efficient_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(), "math": cuda.math_sdp_enabled(),
    }  # fmt: skip
    return ", ".join(name for name, enabled in on.items() if enabled)


@dataclass(frozen=True)
class Rows:
    """Where the tokens of R rows of different lengths lie in a packed sequence, and where in (R, L) padded
    rows."""

    take: Tensor
    """(R * L,) int64: the token at a place of the padded rows; where there is none, any of the sequence."""
    place: Tensor
    """(tokens,) int64: the place in the padded rows of each token of the sequence."""
    shape: tuple[int, int]

    @classmethod
    def of(cls, lengths: np.ndarray, device: torch.device) -> Rows:
        longest = int(lengths.max())
        there = np.arange(longest) < lengths[:, None]
        take = np.zeros(there.shape, np.int64)
        take[there] = np.arange(int(lengths.sum()))
        place = np.flatnonzero(there)
        return cls(
            torch.from_numpy(take.reshape(-1)).to(device), torch.from_numpy(place).to(device), there.shape
        )

    def spread(self, packed: Tensor) -> Tensor:
        """(tokens, ...) in padded rows (R, L, ...). What stands on padding must get no gradient."""
        return _Moved.apply(packed, self.take, self.place).view(*self.shape, *packed.shape[1:])

    def collect(self, padded: Tensor) -> Tensor:
        """(R, L, ...) without its padding, packed (tokens, ...)."""
        flat = padded.reshape(-1, *padded.shape[2:])
        return _Collected.apply(flat, self.place)


class _Moved(torch.autograd.Function):
    """packed[take], whose gradient is that of `place`s: each token stands in one place, so nothing adds
    up."""

    @staticmethod
    def forward(ctx, packed: Tensor, take: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return packed.index_select(0, take)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (place,) = ctx.saved_tensors
        return gradient.index_select(0, place), None, None


class _Collected(torch.autograd.Function):
    """flat[place]; the gradient of the other places is 0."""

    @staticmethod
    def forward(ctx, flat: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.places = len(flat)
        return flat.index_select(0, place)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (place,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.places, *gradient.shape[1:]).index_copy_(0, place, gradient), None


def shared(prompts: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """The distinct ones of N prompts in their order, and the index (N,) of each among them."""
    places: dict[tuple[int, ...], int] = {}
    owner = [places.setdefault(tuple(prompt), len(places)) for prompt in prompts]
    return list(places), np.array(owner)


@dataclass(frozen=True)
class Packing:
    """N completions and the P distinct prompts that they go on from, as one packed sequence of M tokens.

    A prompt is read up to the token before its last; a completion's part starts with that last one and ends
    before its own last, so that the hidden state of each of its tokens predicts the completion's next.
    """

    ids: Tensor
    """(1, M) int64."""
    positions: Tensor
    """(1, M) int64."""
    prompts: Rows | None
    """None where every prompt is a single token."""
    completions: Rows
    owner: Tensor
    """(N,) int64 into the prompts."""
    visible: Tensor
    """(N, 1, T, L + T) bool: what each token of a padded row sees of its prompt and of its row."""

    @classmethod
    def of(
        cls, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], device: torch.device
    ) -> Packing:
        """Equal prompts, as a group's are, are read once."""
        distinct, owner = shared(prompts)
        read = np.array([len(p) - 1 for p in distinct])
        lengths = np.array([len(c) for c in completions])
        parts: list[Sequence[int]] = [p[:-1] for p in distinct]
        for prompt, completion in zip(prompts, completions, strict=True):
            parts += [prompt[-1:], completion[:-1]]
        starts = [*np.zeros_like(read), *read[owner]]
        positions = np.concatenate([s + np.arange(n) for s, n in zip(starts, [*read, *lengths], strict=True)])
        width, longest = int(read.max()), int(lengths.max())
        visible = np.empty((len(lengths), 1, longest, width + longest), bool)
        visible[..., :width] = (np.arange(width) < read[owner, None])[:, None, None]
        visible[..., width:] = np.tri(longest, dtype=bool)

        def there(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device)

        return cls(
            there(np.concatenate([np.asarray(p, np.int64) for p in parts]))[None],
            there(positions)[None],
            Rows.of(read, device) if width else None,
            Rows.of(lengths, device),
            there(owner),
            there(visible),
        )

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the sequence that are prompts'; the completions' follow."""
        return len(self.prompts.place) if self.prompts else 0


def packed_attention(packing: Packing, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """query (1, heads, M, D), key and value (1, kv_heads, M, D) of a packed sequence -> (1, M, heads, D)."""
    states = [t[0].transpose(0, 1) for t in (query, key, value)]
    first = packing.prompt_tokens
    own = [packing.completions.spread(t[first:]) for t in states]
    outs = []
    if packing.prompts:
        before = [packing.prompts.spread(t[:first]) for t in states]
        length = before[0].shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
        outs = [packing.prompts.collect(_attend(before, causal[None, None], scale))]
        own[1:] = [
            torch.cat([p.index_select(0, packing.owner), o], 1)
            for p, o in zip(before[1:], own[1:], strict=True)
        ]
    outs.append(packing.completions.collect(_attend(own, packing.visible, scale)))
    return torch.cat(outs)[None]


def _attend(states: Sequence[Tensor], mask: Tensor, scale: float) -> Tensor:
    """states: query (R, L, heads, D), key and value (R, K, kv_heads, D); mask (R or 1, 1, L, K) ->
    (R, L, heads, D).

    The r query heads of a key head are r queries of it, so that no key is copied.
    """
    query, key, value = states
    rows, length, heads, width = query.shape
    ratio = heads // key.shape[2]
    query = query.view(rows, length, -1, ratio, width).transpose(1, 2).flatten(2, 3)
    out = scaled_dot_product_attention(
        query, key.transpose(1, 2), value.transpose(1, 2), mask.repeat_interleave(ratio, 2), scale=scale
    )
    return out.view(rows, -1, length, ratio, width).transpose(1, 2).flatten(2, 3)


def grouped_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention of one new token a row without copying the keys for each query head.

    query (N, H, 1, D), key and value (N, H/r, K, D) -> (N, 1, H, D): with no order among new tokens, the r
    query heads of a key head are r queries.
    """
    n, heads, _, width = query.shape
    out = scaled_dot_product_attention(query.view(n, key.shape[1], -1, width), key, value, mask, scale=scale)
    return out.view(n, 1, heads, width)


def attention(
    module, query, key, value, attention_mask, scaling=None, packing: Packing | None = None, **kwargs
):
    """What transformers calls."""
    if packing is not None:
        return packed_attention(packing, query, key, value, scaling), None
    if query.shape[2] == 1:
        return grouped_attention(query, key, value, attention_mask, scaling), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)


AttentionInterface.register(IMPLEMENTATION, attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
