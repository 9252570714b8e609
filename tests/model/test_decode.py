"""The fused decoder against the model's own forward: every branch, step after step, as they fork and are
given up."""

import weakref

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

from ftis.model import decode
from ftis.model.decode import FusedDecoder, ModelDecoder, Prefix, can_fuse, decoder
from ftis.model.loading import load_policy
from ftis.model.lora import Lora
from tests.numerics import assert_rounded, assert_same, doubled, in_double

ROOM = 9


def prefilled(policy, prompts):
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    pad = torch.tensor([width - len(p) for p in prompts])
    visible = torch.arange(width) >= pad[:, None]
    positions = (torch.arange(width) - pad[:, None]).clamp(min=0)
    cache = DynamicCache()
    policy.hidden(
        input_ids=ids, attention_mask=visible, position_ids=positions, past_key_values=cache, use_cache=True
    )
    return Prefix(cache, visible)


def agree(policy, forks, lengths=(3, 7, 12)):
    """In float64 and in float32; forks: at each step, the branches that fork before it."""
    with torch.inference_mode():
        step_by_step(policy, forks, lengths, assert_rounded)
        with in_double():
            step_by_step(doubled(policy), forks, lengths, assert_same)


def step_by_step(policy, forks, lengths, assert_close):
    assert can_fuse(policy) and isinstance(decoder(policy, prefilled(policy, [[4], [5]]), 2, 1), FusedDecoder)
    random = torch.Generator().manual_seed(3)
    vocabulary = policy.causal_lm.config.vocab_size
    prompts = [torch.randint(vocabulary, (n,), generator=random).tolist() for n in lengths]
    capacity = len(prompts) + sum(map(len, forks.values()))
    fused, model = (
        kind(policy, prefilled(policy, prompts), capacity, ROOM) for kind in (FusedDecoder, ModelDecoder)
    )
    # What each branch has been fed: the model's forward of it, from nothing, is the third witness.
    fed = list(prompts)
    for step in range(ROOM):
        if forks.get(step):
            for d in (fused, model):
                d.fork(torch.tensor(forks[step]))
            fed += [fed[branch] for branch in forks[step]]
        tokens = torch.randint(vocabulary, (len(fed),), generator=random)
        fed = [[*f, t] for f, t in zip(fed, tokens.tolist())]
        ours, theirs = fused.step(tokens), model.step(tokens)
        assert_close(ours, theirs)
        fresh = torch.stack([policy.hidden(input_ids=torch.tensor([f]))[0, -1] for f in fed])
        assert_close(ours, fresh)
        if step in (2, 5):  # branches of one prompt end at different times, some prompts altogether
            keep = torch.arange(len(fed))[torch.rand(len(fed), generator=random) < 0.6]
            for d in (fused, model):
                d.keep(keep, capacity)
            fed = [fed[branch] for branch in keep]


FORKS = {
    "groups": {0: [0, 0, 0, 1, 1, 1, 2, 2, 2]},
    "ragged": {0: [2, 0], 1: [2, 3, 1], 2: [4], 4: [0, 0, 1]},
    "none": {},
    "late": {4: [0], 6: [1, 0], 7: [0]},
}


@pytest.mark.parametrize("shared", [1, decode.SHARED_LENGTH], ids=["prompt apart", "one slab"])
@pytest.mark.parametrize("forks", FORKS.values(), ids=FORKS)
@pytest.mark.parametrize("copies", [decode.FUSED_BYTES, 0], ids=["fused", "apart"])
def test_decoders_agree(tiny, forks, copies, shared, monkeypatch):
    monkeypatch.setattr(decode, "FUSED_BYTES", copies)
    monkeypatch.setattr(decode, "SHARED_LENGTH", shared)
    agree(load_policy(str(tiny / "base")), forks)
    agree(load_policy(str(tiny / "base")), forks, lengths=(5, 5, 5))


def test_decoders_agree_with_an_adapter(tiny):
    policy = load_policy(str(tiny / "base"), lora=Lora(r=4, alpha=8, target_modules="all-linear"))
    with torch.no_grad():
        for p in policy.trainable().values():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    agree(policy, FORKS["ragged"])


@pytest.mark.parametrize("copies", [decode.FUSED_BYTES, 0], ids=["fused", "apart"])
def test_decoders_agree_on_a_llama_with_biases_and_scaled_positions(tiny, copies, monkeypatch):
    monkeypatch.setattr(decode, "FUSED_BYTES", copies)
    policy = load_policy(str(tiny / "base"))
    torch.manual_seed(0)
    policy.model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=policy.vocab_size,
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=10,
            attention_bias=True,
            mlp_bias=True,
            initializer_range=0.3,
            rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0},
        )
    ).eval()
    for name, p in policy.model.named_parameters():
        if "bias" in name or "norm" in name:
            p.data += 0.3 * torch.randn_like(p)
    agree(policy, FORKS["groups"])


@pytest.mark.parametrize("kind", [ModelDecoder, FusedDecoder])
def test_prompts_are_not_kept_beside_the_rows_that_they_were_copied_to(tiny, kind):
    policy = load_policy(str(tiny / "base"))
    with torch.inference_mode():
        prefix = prefilled(policy, [[4, 5], [6]])
        kept = [weakref.ref(t) for layer in prefix.cache.layers for t in (layer.keys, layer.values)]
        assert kind(policy, prefix, 2, 3).step(torch.tensor([7, 8])).shape[0] == 2
    assert len(kept) >= 4 and all(tensor() is None for tensor in kept)


def test_other_models_decode_through_their_own_forward(tiny):
    policy = load_policy(str(tiny / "base"))
    policy.causal_lm.config.hidden_act = "gelu"
    assert not can_fuse(policy)
    policy = load_policy(str(tiny / "base"), compute_dtype="bfloat16")
    assert not can_fuse(policy)
