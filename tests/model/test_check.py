"""Policies and samplers that check themselves: what works, what is refused and by which words, what is left
behind."""

import ast
import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

import ftis
from ftis.errors import UserError
from ftis.model import check
from ftis.model.check import attach, check_policy
from ftis.model.loading import load_policy
from ftis.model.lora import Lora
from ftis.model.policy import Policy
from ftis.model.sampler import Request, SamplingParams, TransformersSampler

SHAPE = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 128, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 8}
OLD = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}
EXPERTS = {
    **GROUPED, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}  # fmt: skip
DEEPSEEK = {
    **LATENT, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}  # fmt: skip


def rope(kind, **parameters):
    return {**GROUPED, "rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


WORKS = {
    "llama": GROUPED, "mistral": {**GROUPED, "sliding_window": None}, "qwen2": GROUPED, "qwen3": WIDE, "gemma": WIDE,
    "phi3": {**GROUPED, "sliding_window": None}, "gpt2": OLD, "gpt_neox": {}, "gpt_bigcode": OLD,
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32}, "olmo": GROUPED, "olmo2": GROUPED, "granite": GROUPED,
    "smollm3": GROUPED, "starcoder2": {**GROUPED, "sliding_window": None}, "glm4": WIDE, "mixtral": EXPERTS,
    "qwen2_moe": EXPERTS, "qwen3_moe": {**EXPERTS, "head_dim": 8}, "deepseek_v2": DEEPSEEK,
    "llama, linear": rope("linear", factor=2.0),
    "llama, yarn": rope("yarn", factor=4.0, original_max_position_embeddings=32),
    "llama, llama3": rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
    ),
}  # fmt: skip
FAILS = r"training fails on it \(\w+: .+\); take a model of a supported type \(docs/models.md\)"
REFUSED = {
    **dict.fromkeys(("gemma2", "gemma3_text", "gpt_oss"), (WIDE, "only full attention")),
    "mamba": ({"state_size": 4}, "only full attention"),
    "phi": ({}, "its output layer has a bias"), "gptj": ({**OLD, "rotary_dim": 4}, "its output layer has a "
                                                                                   "bias"),
    "cohere": (GROUPED, r"off its plain forward's by [\d.]+ nats: its logits aren't .* but scaled or capped"),
    "rwkv": ({"attention_hidden_size": 32}, r"off its plain forward's by [\d.]+ nats: its attention or its "
                                            r"positions"),
    "stablelm": ({}, FAILS), "bloom": ({"n_layer": 2, "n_head": 4}, FAILS), "falcon": ({}, FAILS),
    "mpt": ({"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}, FAILS),
    "gpt_neo": ({"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}, FAILS),
    "nemotron": (GROUPED, FAILS), "deepseek_v3": (DEEPSEEK, FAILS), "minicpm3": (LATENT, FAILS),
    "llama, dynamic": (rope("dynamic", factor=2.0), r"rotary embeddings \(dynamic\) change with the length"),
    "llama, longrope": (
        rope("longrope", factor=4.0, original_max_position_embeddings=32, short_factor=[1.0] * 4, long_factor=[2.0] * 4),
        r"rotary embeddings \(longrope\) change with the length",
    ),
}  # fmt: skip


def build(name: str, settings: dict, tiny, folder: Path) -> str:
    """A small model of a type with random weights, every tensor away from its initial value, saved."""
    config = AutoConfig.for_model(name.partition(",")[0], **{**SHAPE, **settings})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for p in lm.parameters():
                p.add_(0.1 * torch.randn_like(p))
    lm.save_pretrained(folder)
    for file in (tiny / "tok").iterdir():
        shutil.copy(file, folder)
    return str(folder)


@pytest.mark.parametrize("name", WORKS)
def test_architectures_that_work(tiny, tmp_path, name):
    policy = load_policy(build(name, WORKS[name], tiny, tmp_path))
    sampler = attach(policy, TransformersSampler)
    # The check said so; here with other tokens, and against a forward of each row by itself.
    prompts = [[5, 9, 7, 20, 21, 3], [40, 41, 50]]
    groups = sampler.sample(
        [Request(p, [(i, s) for s in range(3)]) for i, p in enumerate(prompts)], SamplingParams(8)
    )
    for prompt, group in zip(prompts, groups, strict=True):
        tokens = [c.tokens.tolist() for c in group]
        with torch.no_grad():
            trained, _, mask = policy.token_logprobs([prompt] * 3, tokens)
        for row, kept, completion in zip(trained, mask, group, strict=True):
            ids = torch.tensor([[*prompt, *completion.tokens.tolist()]])
            with torch.no_grad():
                logits = policy.causal_lm(ids, use_cache=False).logits[
                    0, len(prompt) - 1 : -1, : policy.vocab_size
                ]
            expected = logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])[:, 0].numpy()
            np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
            np.testing.assert_allclose(row[kept].numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_architectures_that_are_refused(tiny, tmp_path, name):
    settings, says = REFUSED[name]
    folder = build(name, settings, tiny, tmp_path)
    kind = name.partition(",")[0]
    with pytest.raises(UserError, match=rf"^model {re.escape(folder)} \(type {kind}\): .*{says}") as error:
        load_policy(folder)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=says):
        load_policy(folder, trained=False)


# ------------------------------------------------------------------------------------------ what differs


class Wrong(TransformersSampler):
    """Log-probs that are off."""

    def __init__(self, policy, change):
        super().__init__(policy)
        self.change = change

    def sample(self, requests, params):
        groups = super().sample(requests, params)
        return [[replace(c, logprobs=self.change(c.logprobs)) for c in group] for group in groups]


def test_a_sampler_whose_log_probs_differ_is_refused(tiny):
    policy = load_policy(str(tiny / "base"))
    attach(policy, lambda policy: Wrong(policy, lambda logp: logp + np.float32(5e-4)))
    with pytest.raises(
        UserError, match=r"log-probs of Wrong are off its plain forward's by 0.002 nats \(0.001 may be\)"
    ):
        attach(policy, lambda policy: Wrong(policy, lambda logp: logp + np.float32(2e-3)))
    with pytest.raises(UserError, match="log-probs of Wrong are off its plain forward's by nan nats"):
        attach(policy, lambda policy: Wrong(policy, lambda logp: np.full_like(logp, np.nan)))


def test_a_sampler_that_forgets_the_temperature_is_refused(tiny):
    class Forgets(TransformersSampler):
        def sample(self, requests, params):
            return super().sample(requests, replace(params, temperature=1.0))

    with pytest.raises(UserError, match="log-probs of Forgets are off"):
        attach(load_policy(str(tiny / "base")), Forgets)


def test_a_decoder_that_leaves_the_adapter_out_is_refused(tiny, monkeypatch):
    """A fresh adapter too, whose B is zero and changes nothing yet."""
    policy = load_policy(str(tiny / "base"), lora=Lora(r=4, alpha=8, target_modules="all-linear"))
    monkeypatch.setattr("ftis.model.decode.merged_weight", lambda m: getattr(m, "base_layer", m).weight)
    with pytest.raises(UserError, match="base with its adapter .*log-probs of TransformersSampler are off"):
        attach(policy, TransformersSampler)
    monkeypatch.setattr("ftis.model.decode.can_fuse", lambda policy: False)  # knows no merged weights
    attach(policy, TransformersSampler)


def test_a_tensor_that_training_does_not_reach_is_named(tiny, monkeypatch):
    policy = load_policy(str(tiny / "base"))
    with monkeypatch.context() as patch:
        # The embedding is the head too: it keeps the half of its gradient that comes through the inputs.
        patch.setattr(Policy, "_head_gradient", lambda self: None)
        with pytest.raises(
            UserError, match=r"tensor model.embed_tokens.weight has a gradient .* another one in training"
        ):
            check_policy(policy)
    embedded = Policy._embedded
    policy.causal_lm.lm_head.weight = torch.nn.Parameter(policy.head().detach().clone())
    with monkeypatch.context() as patch:
        patch.setattr(Policy, "_embedded", lambda self, ids: embedded(self, ids).detach().requires_grad_())
        with pytest.raises(
            UserError, match=r"tensor model.embed_tokens.weight has a gradient .* and none in training"
        ):
            check_policy(policy)


def test_log_probs_that_training_gets_wrong_are_refused(tiny, monkeypatch):
    policy = load_policy(str(tiny / "base"))
    packed = Policy._predicting

    def shifted(self, prompts, completions):
        hidden, target, mask = packed(self, prompts, completions)
        return hidden * 1.01, target, mask

    monkeypatch.setattr(Policy, "_predicting", shifted)
    with pytest.raises(
        UserError, match="log-probs in training are off its plain forward's by .*its attention"
    ):
        check_policy(policy)


def test_weights_that_are_not_finite_are_told(tiny, tmp_path):
    policy = load_policy(str(tiny / "base"))
    with torch.no_grad():
        policy.model.model.norm.weight[0] = torch.nan
    policy.save(tmp_path / "m")
    with pytest.raises(UserError, match="model .*m: its logits are NaN or infinite"):
        load_policy(str(tmp_path / "m"))


def test_an_odd_error_of_a_model_is_one_line(tiny, monkeypatch):
    policy = load_policy(str(tiny / "base"))

    def fails(*_):
        raise KeyError("first line\nsecond line")

    monkeypatch.setattr(Policy, "hidden", fails)
    with pytest.raises(UserError, match=r"training fails on it \(\w+: .*\); take a model") as error:
        check_policy(policy)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("settings", [
    {}, {"gradient_checkpointing": True}, {"lora": Lora(r=4, alpha=8, target_modules="all-linear")}, {"trained": False},
    {"compute_dtype": "bfloat16"},
], ids=lambda s: "".join(s) or "full")  # fmt: skip
def test_a_check_leaves_nothing_behind(tiny, settings):
    policy = load_policy(str(tiny / "base"), **settings)
    params = dict(policy.model.named_parameters())
    with (
        torch.no_grad()
    ):  # zeros that hide others, one of them negative: adding and subtracting would lose its sign
        params[next(iter(params))].view(-1)[0] = -0.0

    def state():
        return (
            {n: p.detach().clone().view(torch.int32) for n, p in params.items()},
            torch.get_rng_state(),
            [m.training for m in policy.model.modules()],
        )

    weights, drawn, modes = state()
    plain = (random.getstate(), str(np.random.get_state()), torch.get_num_threads(), policy.stop_ids, policy.compute_dtype,
             policy.causal_lm.config._attn_implementation, torch.is_grad_enabled(),
             policy.causal_lm.get_input_embeddings().padding_idx)  # fmt: skip
    check_policy(policy)
    attach(policy, TransformersSampler)
    now, drawn_now, modes_now = state()
    assert (
        all(torch.equal(weights[n], now[n]) for n in weights)
        and torch.equal(drawn, drawn_now)
        and modes == modes_now
    )
    assert plain == (random.getstate(), str(np.random.get_state()), torch.get_num_threads(), policy.stop_ids,
                     policy.compute_dtype, policy.causal_lm.config._attn_implementation, torch.is_grad_enabled(),
                     policy.causal_lm.get_input_embeddings().padding_idx)  # fmt: skip
    assert all(p.grad is None for p in params.values())
    assert policy.causal_lm.get_input_embeddings().padding_idx == 0, "what the check has to put back"


def test_every_sampler_is_made_through_the_one_door():
    """Whoever makes one by hand, in the package, has it unchecked."""
    root = Path(ftis.__file__).parent
    found = set()
    for file in (file for file in root.rglob("*.py") if "Sampler(" in file.read_text()):
        tree = ast.parse(file.read_text())
        checked = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "attach"
            for part in ast.walk(node)
        }
        # What a function makes that is itself handed to `attach`, as `attach(policy, engine)` does.
        handed = {
            part.id
            for node in ast.walk(tree)
            if id(node) in checked
            for part in [node]
            if isinstance(node, ast.Name)
        }
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and function.name in handed:
                checked |= {id(part) for part in ast.walk(function)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Sampler"):
                found.add(f"{file.relative_to(root)}:{node.func.id}")
                assert id(node) in checked, f"{file}:{node.lineno}: make it with ftis.model.check.attach"
    assert any("VllmSampler" in place for place in found), "the test no longer sees where samplers are made"


# ------------------------------------------------------------------------------------------ adapters


def adapter(tiny, folder: Path, change=None, **settings) -> str:
    """A PEFT adapter beside the tiny model, with random weights, saved."""
    lm = AutoModelForCausalLM.from_pretrained(tiny / "base", dtype=torch.float32)
    settings = {
        "target_modules": ["q_proj", "down_proj"],
        "r": 4,
        "lora_alpha": 8,
        "task_type": "CAUSAL_LM",
    } | settings
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        lm = get_peft_model(lm, LoraConfig(**settings))
        with torch.no_grad():
            for p in lm.parameters():
                if p.requires_grad:
                    p.add_(0.1 * torch.randn_like(p))
    lm.save_pretrained(folder)
    for file in (tiny / "tok").iterdir():
        shutil.copy(file, folder)
    if change:
        from safetensors.torch import load_file, save_file

        path = folder / "adapter_model.safetensors"
        save_file(change(load_file(path)), path)
    return str(folder)


@pytest.mark.parametrize("settings", [
    {}, {"use_rslora": True}, {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"down_proj": 3}}, {"lora_dropout": 0.1},
    {"layers_to_transform": [1]},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
def test_adapters_that_work(tiny, tmp_path, settings, checkpointing):
    folder = adapter(tiny, tmp_path / "a", **settings)
    policy = load_policy(folder, gradient_checkpointing=checkpointing)
    attach(policy, TransformersSampler)
    base = load_policy(str(tiny / "base"))
    ids = base.tokenizer(check.TEXT).input_ids
    with torch.no_grad():
        ours, plain = (p.token_logprobs([ids[:3]], [ids[3:]])[0] for p in (policy, base))
    assert (ours - plain).abs().max() > 0.01, "the adapter changes nothing"


NAMED = {
    "use_dora": {"use_dora": True}, "lora_bias": {"lora_bias": True}, "bias": {"bias": "all"},
    "modules_to_save": {"modules_to_save": ["lm_head"]}, "trainable_token_indices": {"trainable_token_indices": [3, 4]},
}  # fmt: skip


@pytest.mark.parametrize("field", NAMED)
def test_what_an_adapter_may_not_have_is_named(tiny, tmp_path, field):
    folder = adapter(tiny, tmp_path / "a", **NAMED[field])
    says = rf"adapter_config.json: {field}: .* isn't supported; merge the adapter"
    for trained in (True, False):
        with pytest.raises(UserError, match=says):
            load_policy(folder, trained=trained)


def test_a_feature_of_a_later_peft_is_refused(tiny, tmp_path):
    folder = adapter(tiny, tmp_path / "a")
    file = Path(folder, "adapter_config.json")
    saved = json.loads(file.read_text())
    file.write_text(json.dumps(saved | {"use_something": None}))
    load_policy(folder)
    file.write_text(json.dumps(saved | {"use_something": True}))
    with pytest.raises(UserError, match="adapter_config.json: use_something: true isn't supported"):
        load_policy(folder)


@pytest.mark.parametrize("name, what", [("embed_tokens", "input embedding"), ("lm_head", "output layer")])
def test_adapters_on_the_embeddings_are_refused(tiny, tmp_path, name, what):
    folder = adapter(tiny, tmp_path / "a", target_modules=["q_proj", name])
    with pytest.raises(
        UserError, match=rf"target_modules: an adapter on .*{name} \(the {what}\) isn't supported"
    ):
        load_policy(folder)
    with pytest.raises(UserError, match=rf"^lora.target_modules: an adapter on .*{name} \(the {what}\)"):
        load_policy(str(tiny / "base"), lora=Lora(r=4, alpha=8, target_modules=("q_proj", name)))


def renamed(weights):
    return {k.replace("q_proj", "query"): v for k, v in weights.items()}


def lacking(weights):
    return dict(list(weights.items())[1:])


def wider(weights):
    return {k: torch.cat([v, v], 1).contiguous() if "lora_A" in k else v for k, v in weights.items()}


@pytest.mark.parametrize("change, says", [
    (renamed, r"tensor base_model.model.model.layers.0.self_attn.\w+.lora_A.weight is in .* \(8 such of 8\)"),
    (lacking, r"tensor base_model.model.model.layers.0.mlp.down_proj.lora_A.weight is in no file of the "
              r"adapter"),
    (wider, "the adapter doesn't fit its model .*base"),
], ids=["renamed", "lacking", "wider"])  # fmt: skip
def test_an_adapter_whose_keys_do_not_fit_is_refused(tiny, tmp_path, change, says):
    with pytest.raises(UserError, match=says):
        load_policy(adapter(tiny, tmp_path / "a", change), trained=False)


def test_an_adapter_on_an_adapter_is_refused(tiny, tmp_path):
    first = adapter(tiny, tmp_path / "a")
    second = Path(adapter(tiny, tmp_path / "b"), "adapter_config.json")
    second.write_text(json.dumps(json.loads(second.read_text()) | {"base_model_name_or_path": first}))
    with pytest.raises(
        UserError, match="base_model_name_or_path: model .*: an adapter, where a model is needed"
    ):
        load_policy(str(second.parent))


@pytest.mark.parametrize("lora", [
    None, Lora(r=4, alpha=8, target_modules=("q_proj", "down_proj"))
], ids=["as it is", "described"])  # fmt: skip
def test_training_goes_on_from_an_adapter(tiny, tmp_path, make_config, lora):
    from ftis.runs.train import train

    folder = adapter(tiny, tmp_path / "a")
    node = {"name": "a", "model": folder, "learning_rate": 3e-3}
    if lora:
        node["lora"] = {"r": lora.r, "alpha": lora.alpha, "target_modules": list(lora.target_modules)}
    policy = load_policy(folder, lora=lora)
    assert len(policy.trainable()) == 8 and all("lora_" in name for name in policy.trainable())
    train(make_config((node,), iterations=1, group_size=12), tmp_path / "out")
    after = load_policy(str(tmp_path / "out/node0"))
    assert after.trainable().keys() == policy.trainable().keys()
    moved = [(after.trainable()[n] - p).abs().max() for n, p in policy.trainable().items()]
    assert 0 < max(moved) < 0.01, "one step of Adam at 3e-3"
    base = dict(load_policy(str(tiny / "base")).model.named_parameters())
    for name, p in after.causal_lm.named_parameters():
        if "lora_" not in name:
            assert torch.equal(p, base[name.replace(".base_layer", "")])


@pytest.mark.parametrize("lora, says", [
    (Lora(r=8, alpha=8), "lora.r: 8, but the adapter that is trained on has 4"),
    (Lora(r=4, alpha=16), "lora.alpha: 16, but .* has 8"),
    (Lora(r=4, alpha=8, target_modules=("q_proj",)), r"lora.target_modules: \['q_proj'\], but .* has "
                                                     r"\['down_proj', 'q_proj'\]"),
    (Lora(r=4, alpha=8, target_modules="all-linear"), "lora.target_modules: all-linear, but"),
    (Lora(r=4, alpha=8), r"lora.target_modules: \['q_proj', 'v_proj'\], but"),
])  # fmt: skip
def test_a_lora_that_does_not_describe_the_adapter_is_refused(tiny, tmp_path, lora, says):
    with pytest.raises(UserError, match=says):
        load_policy(adapter(tiny, tmp_path / "a"), lora=lora)


def test_all_linear_describes_an_adapter_on_all(tiny, tmp_path):
    lora = Lora(r=4, alpha=8, target_modules="all-linear")
    load_policy(str(tiny / "base"), lora=lora).save(tmp_path / "a")
    load_policy(str(tmp_path / "a"), lora=lora)
