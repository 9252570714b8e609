"""One decoding step after another from a prefilled cache: `ModelDecoder` through the model's own forward,
`FusedDecoder` on the bare weights of Llama-shaped models, which on a CPU is about twice as fast.

Both hold the keys and values of the rows that still grow, and give up rows that are done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from ftis.policy import Policy, merged_weight

# Copies of weights that a decoder may make to have them side by side: what a core's cache can hold.
FUSED_BYTES = 64 << 20


@dataclass(frozen=True)
class Prefix:
    """What the prompts left: the cache of P distinct prompts, padded on the left to L tokens, and for each of
    N rows the prompt that it goes on from.

    A decoder takes the layers out of the cache, so that one that it has copied is free for the next.
    """

    cache: DynamicCache
    visible: Tensor
    """(P, L) bool, False on padding."""
    owner: Tensor
    """(N,) int64 into the prompts."""


class Decoder(Protocol):
    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token a row (N,); returns the hidden states (N, H) that predict the next."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows (int64) only."""


def decoder(policy: Policy, prefix: Prefix, room: int) -> Decoder:
    """The fastest decoder that can go on from `prefix`, with room for `room` tokens a row."""
    return (FusedDecoder if can_fuse(policy) else ModelDecoder)(policy, prefix, room)


# ------------------------------------------------------------------------------------------ any model


class _Slab(DynamicLayer):
    """A layer's keys and values in one buffer with room for the whole completion, rows removable."""

    def __init__(self, layer: DynamicLayer, owner: Tensor, room: int):
        super().__init__()
        self.used = layer.keys.shape[2]
        self.key_slab, self.value_slab = (_grown(t[owner], room) for t in (layer.keys, layer.values))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        self.key_slab[:, :, self.used] = key_states[:, :, 0]
        self.value_slab[:, :, self.used] = value_states[:, :, 0]
        self.used += 1
        return self.key_slab[:, :, : self.used], self.value_slab[:, :, : self.used]

    def get_seq_length(self) -> int:
        return self.used

    def keep(self, rows: Tensor) -> None:
        self.key_slab, self.value_slab = self.key_slab[rows], self.value_slab[rows]


def _grown(states: Tensor, room: int) -> Tensor:
    """(N, heads, L, D) in a buffer of length L + room."""
    n, heads, length, width = states.shape
    slab = states.new_empty(n, heads, length + room, width)
    slab[:, :, :length] = states
    return slab


class ModelDecoder:
    """Decodes through the model's forward, whatever its architecture."""

    def __init__(self, policy: Policy, prefix: Prefix, room: int):
        self.policy = policy
        layers = prefix.cache.layers
        self.slabs = [_Slab(layers.pop(0), prefix.owner, room) for _ in range(len(layers))]
        self.cache = Cache(layers=self.slabs)
        visible = prefix.visible[prefix.owner]
        self.visible = torch.cat([visible, visible.new_ones(len(visible), room)], 1)
        self.position = visible.sum(1, keepdim=True) - 1

    def step(self, tokens: Tensor) -> Tensor:
        self.position = self.position + 1
        return self.policy.hidden(
            input_ids=tokens[:, None],
            attention_mask=self.visible[:, None, None, : self.slabs[0].used + 1],
            position_ids=self.position,
            past_key_values=self.cache,
            use_cache=True,
        )[:, -1]

    def keep(self, rows: Tensor) -> None:
        self.visible, self.position = self.visible[rows], self.position[rows]
        for slab in self.slabs:
            slab.keep(rows)


# ------------------------------------------------------------------------------------------ Llama-shaped


def can_fuse(policy: Policy) -> bool:
    """Whether `FusedDecoder` computes this policy: float32 on a CPU, an architecture that it knows, and
    rotary embeddings that don't depend on the length."""
    config = policy.causal_lm.config
    return (
        policy.device.type == "cpu"
        and policy.compute_dtype == torch.float32
        and config.model_type in ("llama", "qwen2")
        and config.hidden_act == "silu"
        and policy.causal_lm.base_model.rotary_emb.rope_type in ("default", "linear", "llama3")
    )


class _Projection:
    """Linear layers that read the same normalised input, their outputs side by side.

    fuse: the weights are copied into one matrix and take up the norm's weight.
    """

    def __init__(self, norm: nn.Module, modules: list[nn.Module], fuse: bool):
        self.eps = norm.variance_epsilon
        weights, biases = [merged_weight(m) for m in modules], [m.bias for m in modules]
        if fuse:
            have_bias = any(b is not None for b in biases)
            padded = [b if b is not None else w.new_zeros(len(w)) for w, b in zip(weights, biases)]
            weights = [torch.cat(weights) * norm.weight]
            biases = [torch.cat(padded) if have_bias else None]
        self.norm = None if fuse else norm.weight
        self.parts = list(zip(weights, biases, strict=True))

    def __call__(self, x: Tensor) -> Tensor:
        y = x * _rms(x, self.eps)
        if self.norm is not None:
            y *= self.norm
        outs = [linear(y, weight, bias) for weight, bias in self.parts]
        return outs[0] if len(outs) == 1 else torch.cat(outs, -1)


def _rms(x: Tensor, eps: float) -> Tensor:
    """1 / root mean square of each row (N, 1)."""
    return (torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_() / x.shape[-1] + eps).rsqrt_()


class _Layer:
    """A layer's weights, and its keys and values: of the prompts, and (N, heads, room, D) of the rows."""

    def __init__(self, layer: nn.Module, fuse: bool):
        attention, mlp = layer.self_attn, layer.mlp
        self.qkv = _Projection(
            layer.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj], fuse
        )
        self.gate_up = _Projection(layer.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj], fuse)
        self.out = merged_weight(attention.o_proj), attention.o_proj.bias
        self.down = merged_weight(mlp.down_proj), mlp.down_proj.bias
        self.scale = attention.scaling


class FusedDecoder:
    """Decodes on the bare weights: projections side by side, norms folded in, results added in place, and the
    keys of a prompt read once for all of its rows.

    Attention to a shared prompt and to a row's own tokens are computed apart and joined by their
    log-sum-exps, as split attention kernels do (Dao et al. 2023).
    """

    def __init__(self, policy: Policy, prefix: Prefix, room: int):
        model = policy.causal_lm.base_model
        size = sum(p.numel() * p.element_size() for p in model.layers.parameters())
        self.layers = [_Layer(layer, fuse=size <= FUSED_BYTES) for layer in model.layers]
        self.embedding, self.norm = model.embed_tokens.weight, model.norm
        keys = prefix.cache.layers[0].keys
        prompts, self.kv_heads, length, self.width = keys.shape
        n = len(prefix.owner)
        self.position = prefix.visible.sum(1)[prefix.owner]
        table = model.rotary_emb(keys, torch.arange(length + room)[None])
        self.cos, self.sin = (t[0] for t in table)
        self.shared = n >= 2 * prompts
        self.used = 0 if self.shared else length
        self.mask = None if self.shared or prefix.visible.all() else prefix.visible[prefix.owner]
        if self.mask is not None:
            self.mask = torch.cat([self.mask, self.mask.new_ones(n, room)], 1)[:, None, None]
        for layer in self.layers:
            cached = prefix.cache.layers.pop(0)
            pair = (cached.keys, cached.values)
            if self.shared:
                layer.prompt = pair
                layer.slabs = tuple(t.new_empty(n, self.kv_heads, room, self.width) for t in pair)
            else:
                layer.slabs = tuple(_grown(t[prefix.owner], room) for t in pair)
        if self.shared:
            self.visible = prefix.visible
            self._arrange(prefix.owner)

    def _arrange(self, owner: Tensor) -> None:
        """Where each row's queries stand among those of its prompt: as the i-th of `most` rows."""
        self.owner = owner
        counts = torch.bincount(owner, minlength=len(self.visible))
        order = torch.argsort(owner, stable=True)
        first = counts.cumsum(0) - counts
        rank = torch.empty_like(owner)
        rank[order] = torch.arange(len(owner)) - first[owner[order]]
        self.most = int(counts.max())
        place = owner * self.most + rank
        dense = len(owner) == len(self.visible) * self.most and bool(
            (place == torch.arange(len(owner))).all()
        )
        self.place = None if dense else place
        hidden = ~self.visible
        self.bias = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[:, None, None]
        if not hidden.any():
            self.bias = None

    def keep(self, rows: Tensor) -> None:
        self.position = self.position[rows]
        if self.mask is not None:
            self.mask = self.mask[rows]
        for layer in self.layers:
            # Only what is used is worth copying.
            for i, slab in enumerate(layer.slabs):
                kept = slab.new_empty(len(rows), *slab.shape[1:])
                torch.index_select(slab[:, :, : self.used], 0, rows, out=kept[:, :, : self.used])
                layer.slabs = (*layer.slabs[:i], kept, *layer.slabs[i + 1 :])
        if self.shared:
            left, owner = torch.unique(self.owner[rows], return_inverse=True)
            if len(left) < len(self.visible):
                self.visible = self.visible[left]
                for layer in self.layers:
                    layer.prompt = tuple(t[left] for t in layer.prompt)
            self._arrange(owner)

    def step(self, tokens: Tensor) -> Tensor:
        x = self.embedding[tokens]
        cos, sin = self.cos[self.position, None], self.sin[self.position, None]
        self.used, self.position = self.used + 1, self.position + 1
        for layer in self.layers:
            weight, bias = layer.out
            x.addmm_(self._attention(layer, layer.qkv(x), cos, sin), weight.T)
            if bias is not None:
                x += bias
            gate, up = layer.gate_up(x).chunk(2, -1)
            weight, bias = layer.down
            x.addmm_(silu(gate, inplace=True).mul_(up), weight.T)
            if bias is not None:
                x += bias
        return x * _rms(x, self.norm.variance_epsilon) * self.norm.weight

    def _attention(self, layer: _Layer, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Heads' outputs (N, heads x D) of the projections (N, (heads + 2 kv_heads) x D)."""
        n, half = len(qkv), self.width // 2
        heads = qkv.view(n, -1, self.width)
        plain, value = heads[:, : -self.kv_heads], heads[:, -self.kv_heads :]
        turned = plain * cos
        turned[..., :half].addcmul_(plain[..., half:], sin[..., :half], value=-1)
        turned[..., half:].addcmul_(plain[..., :half], sin[..., half:])
        keys, values = layer.slabs
        keys[:, :, self.used - 1], values[:, :, self.used - 1] = turned[:, -self.kv_heads :], value
        query = turned[:, : -self.kv_heads].reshape(n, self.kv_heads, -1, self.width)
        mask = None if self.mask is None else self.mask[..., : self.used]
        keys, values = keys[:, :, : self.used], values[:, :, : self.used]
        if not self.shared:
            out = scaled_dot_product_attention(query, keys, values, mask, scale=layer.scale)
            return out.reshape(n, -1)
        out, lse = _attend(query, keys, values, None, layer.scale)
        ratio = query.shape[2]
        prompts = len(self.visible)
        if self.place is None:
            spread = query.view(prompts, self.most, self.kv_heads, ratio, self.width)
        else:
            spread = query.new_zeros(prompts * self.most, self.kv_heads, ratio, self.width)
            spread[self.place] = query
            spread = spread.view(prompts, self.most, self.kv_heads, ratio, self.width)
        spread = spread.transpose(1, 2).reshape(prompts, self.kv_heads, -1, self.width)
        there, there_lse = _attend(spread, *layer.prompt, self.bias, layer.scale)
        there = there.view(prompts, self.kv_heads, self.most, ratio, self.width).transpose(1, 2)
        there_lse = there_lse.view(prompts, self.kv_heads, self.most, ratio).transpose(1, 2)
        there, there_lse = (t.reshape(prompts * self.most, *t.shape[2:]) for t in (there, there_lse))
        if self.place is not None:
            there, there_lse = there[self.place], there_lse[self.place]
        share = torch.sigmoid_(there_lse - lse)
        return torch.lerp(out, there, share[..., None]).view(n, -1)


def _attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float):
    """Attention (..., Q, D) and the log-sum-exp (..., Q) of its scores."""
    scores = torch.matmul(query * scale, keys.mT)
    if bias is not None:
        scores += bias
    highest = scores.amax(-1, keepdim=True)
    weights = scores.sub_(highest).exp_()
    total = weights.sum(-1, keepdim=True)
    return torch.matmul(weights, values).div_(total), total.log_().add_(highest).squeeze(-1)
