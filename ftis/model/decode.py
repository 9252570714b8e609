"""One decoding step after another from a prefilled cache: `ModelDecoder` through the model's own forward,
`FusedDecoder` on the bare weights of Llama-shaped models, which on a CPU is about twice as fast.

Both hold the keys and values of branches: what has been fed so far, each once, however many completions share
it. A branch forks where they part, and is given up when all of them are done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from ftis.model.policy import Policy, merged_weight

# Copies of weights that a decoder may make to have them side by side: what a core's cache can hold.
FUSED_BYTES = 64 << 20
# Tokens of a prompt from which on attention to it is computed apart, once for all of its branches.
SHARED_LENGTH = 64


@dataclass(frozen=True)
class Prefix:
    """What the prompts left: the cache of P distinct prompts, padded on the left to L tokens; the first P
    branches.

    A decoder takes the layers out of the cache, so that one that it has copied is free for the next.
    """

    cache: DynamicCache
    visible: Tensor
    """(P, L) bool, False on padding."""


class Decoder(Protocol):
    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token a branch (B,); returns the hidden states (B, H) that predict the next."""

    def fork(self, branches: Tensor) -> None:
        """Add a branch behind the others for each of these (int64), going on from what it holds."""

    def keep(self, branches: Tensor, capacity: int) -> None:
        """Go on with these branches (int64) only, in this order, and never again with more than
        `capacity`."""


def decoder(policy: Policy, prefix: Prefix, capacity: int, room: int) -> Decoder:
    """The fastest decoder that can go on from `prefix`, in at most `capacity` branches of `room` tokens."""
    return (FusedDecoder if can_fuse(policy) else ModelDecoder)(policy, prefix, capacity, room)


class _Slab:
    """Keys or values of branches (B, heads, L, D) in a buffer with room for more of both."""

    def __init__(self, states: Tensor, capacity: int, room: int):
        n, heads, length, width = states.shape
        self.buffer = states.new_empty(capacity, heads, length + room, width)
        self.buffer[:n, :, :length] = states

    def fork(self, count: int, used: int, branches: Tensor) -> None:
        # Only what is used is worth copying, here and below.
        self.buffer[count : count + len(branches), :, :used] = self.buffer[branches, :, :used]

    def keep(self, used: int, branches: Tensor, capacity: int) -> None:
        kept = self.buffer.new_empty(capacity, *self.buffer.shape[1:])
        torch.index_select(self.buffer[:, :, :used], 0, branches, out=kept[: len(branches), :, :used])
        self.buffer = kept


# ------------------------------------------------------------------------------------------ any model


class _Layer(DynamicLayer):
    """A layer's keys and values in slabs, of which the first `count` branches are fed."""

    def __init__(self, layer: DynamicLayer, capacity: int, room: int):
        super().__init__()
        self.count, _, self.used, _ = layer.keys.shape
        self.slabs = [_Slab(states, capacity, room) for states in (layer.keys, layer.values)]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        for slab, states in zip(self.slabs, (key_states, value_states)):
            slab.buffer[: self.count, :, self.used] = states[:, :, 0]
        self.used += 1
        keys, values = (slab.buffer[: self.count, :, : self.used] for slab in self.slabs)
        return keys, values

    def get_seq_length(self) -> int:
        return self.used

    def fork(self, branches: Tensor) -> None:
        for slab in self.slabs:
            slab.fork(self.count, self.used, branches)
        self.count += len(branches)

    def keep(self, branches: Tensor, capacity: int) -> None:
        for slab in self.slabs:
            slab.keep(self.used, branches, capacity)
        self.count = len(branches)


class ModelDecoder:
    """Decodes through the model's forward, whatever its architecture."""

    def __init__(self, policy: Policy, prefix: Prefix, capacity: int, room: int):
        self.policy = policy
        layers = prefix.cache.layers
        self.layers = [_Layer(layers.pop(0), capacity, room) for _ in range(len(layers))]
        self.cache = Cache(layers=self.layers)
        visible = prefix.visible
        self.visible = torch.cat([visible, visible.new_ones(len(visible), room)], 1)
        self.position = visible.sum(1, keepdim=True) - 1

    def step(self, tokens: Tensor) -> Tensor:
        self.position = self.position + 1
        return self.policy.hidden(
            input_ids=tokens[:, None],
            attention_mask=self.visible[:, None, None, : self.layers[0].used + 1],
            position_ids=self.position,
            past_key_values=self.cache,
            use_cache=True,
        )[:, -1]

    def fork(self, branches: Tensor) -> None:
        self.visible, self.position = (torch.cat([t, t[branches]]) for t in (self.visible, self.position))
        for layer in self.layers:
            layer.fork(branches)

    def keep(self, branches: Tensor, capacity: int) -> None:
        self.visible, self.position = self.visible[branches], self.position[branches]
        for layer in self.layers:
            layer.keep(branches, capacity)


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
    return (x.square().mean(-1, keepdim=True) + eps).rsqrt_()


class _FusedLayer:
    """A layer's weights, and its keys and values: of the prompts where branches share them, and of the
    branches."""

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
    keys of a long prompt read once for all of its branches.

    Attention to a shared prompt and to a branch's own tokens are computed apart and joined by their
    log-sum-exps, as split attention kernels do (Dao et al. 2023).
    """

    def __init__(self, policy: Policy, prefix: Prefix, capacity: int, room: int):
        model = policy.causal_lm.base_model
        size = sum(p.numel() * p.element_size() for p in model.layers.parameters())
        self.layers = [_FusedLayer(layer, fuse=size <= FUSED_BYTES) for layer in model.layers]
        self.embedding, self.norm = model.embed_tokens.weight, model.norm
        keys = prefix.cache.layers[0].keys
        prompts, self.kv_heads, length, self.width = keys.shape
        self.count = prompts
        self.position = prefix.visible.sum(1)
        table = model.rotary_emb(keys, torch.arange(length + room)[None])
        self.cos, self.sin = (t[0] for t in table)
        self.shared = length >= SHARED_LENGTH and capacity >= 2 * prompts
        self.used = 0 if self.shared else length
        self.mask = None
        if not self.shared and not prefix.visible.all():
            self.mask = torch.cat([prefix.visible, prefix.visible.new_ones(prompts, room)], 1)[:, None, None]
        for layer in self.layers:
            cached = prefix.cache.layers.pop(0)
            states = (cached.keys, cached.values)
            layer.slabs = [_Slab(t[:, :, : self.used], capacity, room) for t in states]
            if self.shared:
                layer.prompt = states
        if self.shared:
            self.visible = prefix.visible
            self._arrange(torch.arange(prompts))

    def _arrange(self, owner: Tensor) -> None:
        """Where each branch's queries stand among those of its prompt: as the i-th of `most` branches."""
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

    def fork(self, branches: Tensor) -> None:
        self.position = torch.cat([self.position, self.position[branches]])
        if self.mask is not None:
            self.mask = torch.cat([self.mask, self.mask[branches]])
        for layer in self.layers:
            for slab in layer.slabs:
                slab.fork(self.count, self.used, branches)
        self.count += len(branches)
        if self.shared:
            self._arrange(torch.cat([self.owner, self.owner[branches]]))

    def keep(self, branches: Tensor, capacity: int) -> None:
        self.position = self.position[branches]
        if self.mask is not None:
            self.mask = self.mask[branches]
        for layer in self.layers:
            for slab in layer.slabs:
                slab.keep(self.used, branches, capacity)
        self.count = len(branches)
        if self.shared:
            left, owner = torch.unique(self.owner[branches], return_inverse=True)
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

    def _attention(self, layer: _FusedLayer, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Heads' outputs (N, heads x D) of the projections (N, (heads + 2 kv_heads) x D)."""
        n, half = len(qkv), self.width // 2
        heads = qkv.view(n, -1, self.width)
        plain, value = heads[:, : -self.kv_heads], heads[:, -self.kv_heads :]
        turned = plain * cos
        turned[..., :half].addcmul_(plain[..., half:], sin[..., :half], value=-1)
        turned[..., half:].addcmul_(plain[..., :half], sin[..., half:])
        keys, values = (slab.buffer[:n, :, : self.used] for slab in layer.slabs)
        keys[:, :, -1], values[:, :, -1] = turned[:, -self.kv_heads :], value
        query = turned[:, : -self.kv_heads].reshape(n, self.kv_heads, -1, self.width)
        mask = None if self.mask is None else self.mask[..., : self.used]
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
