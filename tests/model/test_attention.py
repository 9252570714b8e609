"""Packed completions against the library's own forward, a row at a time: log-probs, entropies and every
gradient."""

import copy

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from ftis.model.adapter import add_lora
from ftis.model.attention import Packing, Rows, sdpa_backends
from ftis.model.loading import load_tokenizer
from ftis.model.lora import Lora
from ftis.model.policy import Policy
from tests.numerics import assert_rounded, assert_same, doubled, in_double

SHAPE = {
    "vocab_size": 93, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip


def build(kind: str, tied: bool, tokenizer):
    torch.manual_seed(1)
    config, model = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[kind]
    lm = model(config(**SHAPE, tie_word_embeddings=tied)).eval()
    for p in lm.parameters():  # away from the near-uniform start, where a wrong mask hardly shows
        p.data += 0.1 * torch.randn_like(p)
    return lm


def policy_of(lm, tokenizer) -> Policy:
    return Policy(lm, tokenizer, frozenset({1}), torch.device("cpu"), torch.float32)


def draw(lengths: list[int], seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, 93, n).tolist() for n in lengths]


def case(name: str):
    """Prompts, one a row, and completions."""
    prompts = draw({"single tokens": [1, 1, 1], "some single": [1, 9, 4]}.get(name, [3, 9, 6]), 0)
    if name == "distinct":
        return [list(p) for p in prompts], draw([4, 1, 7], 1)
    if name == "ragged":  # neither in order nor of equal size
        return [prompts[i] for i in (2, 0, 2, 2, 1)], draw([5, 2, 1, 8, 3], 1)
    return [p for p in prompts for _ in range(3)], draw([5, 2, 8, 1, 1, 6, 3, 3, 4], 1)


def reference(lm, prompts, completions):
    """(logp, entropy) of each row from the logits of a forward of its own, with gradients."""
    rows = []
    for prompt, completion in zip(prompts, completions):
        logits = lm(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
        logp = torch.log_softmax(logits, -1)
        rows.append(
            (logp.gather(-1, torch.tensor(completion)[:, None]).squeeze(-1), -(logp.exp() * logp).sum(-1))
        )
    return rows


def gradients(lm) -> torch.Tensor:
    found = [p.grad.flatten().clone() for p in lm.parameters() if p.requires_grad]
    lm.zero_grad()
    return torch.cat(found)


CASES = ["groups", "ragged", "distinct", "single tokens", "some single"]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind, tied", [("qwen2", True), ("qwen2", False), ("llama", True)])
def test_packed_completions_are_the_rows_by_themselves(tiny, kind, tied, name):
    tokenizer = load_tokenizer(str(tiny / "base"))
    lm = build(kind, tied, tokenizer)
    plain = copy.deepcopy(lm)
    plain.set_attn_implementation("eager")
    check(policy_of(lm, tokenizer), plain, *case(name))


@pytest.mark.parametrize("change", ["lora", "checkpoints", "lora and checkpoints"])
def test_so_they_are_with_an_adapter_and_with_activation_checkpoints(tiny, change):
    tokenizer = load_tokenizer(str(tiny / "base"))
    lm = build("qwen2", True, tokenizer)
    if "lora" in change:
        lm = add_lora(lm, Lora(r=4, alpha=8, target_modules="all-linear"), 0, None)
        for name, p in lm.named_parameters():
            if "lora_B" in name:  # zero at first, which would leave lora_A without a gradient
                p.data += 0.1 * torch.randn_like(p)
    plain = copy.deepcopy(lm)
    (plain.get_base_model() if "lora" in change else plain).set_attn_implementation("eager")
    if "checkpoints" in change:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        lm.train()
    check(policy_of(lm, tokenizer), plain, *case("groups"))


def check(policy: Policy, plain, prompts, completions) -> None:
    """Both in float64, and then the policy in float32."""
    # A gradient whose parts don't cancel: another weight for each token.
    shape = len(completions), max(map(len, completions))
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with in_double():
        plain = plain.double()
        rows = reference(plain, prompts, completions)
        sum((weight[i, : len(t)] * t).sum() for i, (t, _) in enumerate(rows)).backward()
        expected = *(torch.cat(parts).detach() for parts in zip(*rows)), gradients(plain)
        assert expected[-1].norm() > 1
        compare(doubled(policy), expected, weight, prompts, completions, assert_same)
    compare(policy, expected, weight, prompts, completions, assert_rounded)


def compare(policy: Policy, expected, weight, prompts, completions, agree) -> None:
    logp, entropy, mask = policy.token_logprobs(prompts, completions)
    assert mask.sum(1).tolist() == [len(c) for c in completions]
    agree(logp[mask], expected[0])
    agree(entropy[mask], expected[1])
    (weight * logp).sum().backward()
    agree(gradients(policy.model), expected[2])

    def loss_of(rows, logp, _entropy, mask):
        return (weight[rows][:, : logp.shape[1]] * logp).sum()

    policy.accumulate_gradient(prompts, completions, loss_of)
    policy.accumulate_gradient(prompts, completions, loss_of)  # adds up
    agree(gradients(policy.model), 2 * expected[2])


def test_cudnn_computes_no_attention():
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert sdpa_backends() == "flash, mem_efficient, math"


def test_a_prompt_is_read_once_and_nothing_is_padded():
    prompts, completions = case("groups")
    packing = Packing.of(prompts, completions, torch.device("cpu"))
    read = sum(len(p) - 1 for p in {tuple(p) for p in prompts})
    assert packing.ids.shape == (1, read + sum(map(len, completions)))
    assert packing.prompt_tokens == read
    # A completion's part goes on where its prompt's ends.
    assert packing.positions[0, read : read + 5].tolist() == [2, 3, 4, 5, 6]
    apart = Packing.of([[i, *p[1:]] for i, p in enumerate(prompts)], completions, torch.device("cpu"))
    assert apart.prompt_tokens == 3 * read


def test_rows_spread_and_collect_and_their_gradients_are_each_others():
    rows = Rows.of(np.array([3, 0, 1, 2]), torch.device("cpu"))
    packed = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    padded = rows.spread(packed)
    assert padded.shape == (4, 3, 2)
    assert torch.equal(padded[0], packed[:3]) and torch.equal(padded[2, 0], packed[3])
    assert torch.equal(rows.collect(padded), packed)
    assert torch.autograd.gradcheck(lambda x: rows.collect(torch.tanh(rows.spread(x))), packed)
    (there,) = torch.autograd.grad((rows.collect(padded) * 2).sum(), padded)
    assert there.flatten(0, 1).sum() == 2 * 6 * 2  # nothing on padding
