"""The model side: log-probs without the logits tensor, loading, saving, refusals."""

import json
import shutil

import pytest
import torch

from ftis.errors import UserError
from ftis.model.check import attach
from ftis.model.loading import _refuse_by_name, load_policy, load_tokenizer, pick_device, require_context
from ftis.model.lora import Lora
from ftis.model.sampler import Request, SamplingParams, TransformersSampler
from ftis.provenance import sha256
from tests.numerics import assert_same, doubled, in_double

LORA = Lora(r=4, alpha=8, target_modules="all-linear")


def load_double(*arguments, **keywords):
    return doubled(load_policy(*arguments, **keywords))


def batch(policy):
    ids = policy.tokenizer("Tom has 7 pens.", add_special_tokens=False).input_ids
    return [ids, ids[:3]], [ids[1:5], ids[3:5]]


def test_logprobs_are_those_of_the_models_own_logits(tiny):
    policy = load_double(str(tiny / "base"))
    prompts, completions = batch(policy)
    with in_double():
        logp, _, mask = policy.token_logprobs(prompts, completions)
        expected = [plain_logprobs(policy.model, *pair) for pair in zip(prompts, completions)]
    assert mask.sum(-1).tolist() == [4, 2]
    assert_same(logp[mask], torch.cat(expected))
    assert (logp[~mask] == 0).all()


def plain_logprobs(model, prompt, completion):
    """From the logits of the model's own forward."""
    logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(completion)[:, None]).squeeze(-1)


def test_ids_beyond_the_tokenizer_have_no_probability(tiny, tmp_path):
    plain, padded = load_double(str(tiny / "base")), load_double(str(tiny / "base"))
    padded.model.resize_token_embeddings(len(plain.tokenizer) + 35)
    padded.model.get_input_embeddings().weight.data[len(plain.tokenizer) :] = 100.0
    with in_double():
        assert_same(padded.token_logprobs(*batch(plain))[0], plain.token_logprobs(*batch(plain))[0])
    assert padded.head().shape[0] == padded.vocab_size == len(plain.tokenizer)


def test_gradient_checkpointing_and_autocast_change_little(tiny):
    def gradient(policy):
        policy.token_logprobs(*batch(policy))[0].sum().backward()
        return torch.cat([p.grad.flatten() for p in policy.trainable().values()])

    plain, checkpointing, half = (
        load_policy(str(tiny / "base"), **settings)
        for settings in ({}, {"gradient_checkpointing": True}, {"compute_dtype": "bfloat16"})
    )
    with in_double():
        assert_same(gradient(doubled(checkpointing)), gradient(doubled(plain)))
    plain, half = gradient(plain), gradient(half)
    assert half.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(half.double(), plain.double(), dim=0) > 0.999


def test_with_two_threads_a_gradient_repeats_its_bits(tiny):
    """A run that was killed goes on as if it had not been, whatever its threads."""
    policy = load_policy(str(tiny / "base"))
    prompt, completion = [5], [6] * 100  # all add to one row of the embedding
    found, before = [], torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(8):
            policy.model.zero_grad()
            policy.accumulate_gradient([prompt] * 20, [completion] * 20, lambda _rows, logp, *_: logp.sum())
            found.append(torch.cat([p.grad.flatten() for p in policy.trainable().values()]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(gradient, found[0]) for gradient in found)


def test_lora_trains_the_adapter_alone_and_starts_as_the_base(tiny):
    base, lora = load_policy(str(tiny / "base")), load_policy(str(tiny / "base"), lora=LORA, lora_seed=3)
    assert all("lora_" in name for name in lora.trainable())
    # 7 linears in each of 2 layers, r (in + out) each: 4 (64+64 + 64+32 + 64+32 + 64+64 + 3 (64+192)) 2 =
    # 9,728.
    assert sum(p.numel() for p in lora.trainable().values()) == 9728
    with in_double():
        assert_same(*(doubled(policy).token_logprobs(*batch(base))[0] for policy in (lora, base)))
    again = load_policy(str(tiny / "base"), lora=LORA, lora_seed=3)
    other = load_policy(str(tiny / "base"), lora=LORA, lora_seed=4)
    same = [torch.equal(a, b) for a, b in zip(lora.trainable().values(), again.trainable().values())]
    assert all(same)
    assert not all(torch.equal(a, b) for a, b in zip(lora.trainable().values(), other.trainable().values()))


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_saved_policy_loads_with_the_libraries_and_with_us(tiny, tmp_path, lora):
    policy = load_policy(str(tiny / "base"), lora=lora)
    with torch.no_grad():
        for p in policy.trainable().values():
            p.add_(0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    policy.save(tmp_path / "saved")
    ours = load_double(str(tmp_path / "saved"))
    with in_double():
        expected = doubled(policy).token_logprobs(*batch(policy))[0]
        assert_same(ours.token_logprobs(*batch(ours))[0], expected)
    if lora is None:
        from transformers import AutoModelForCausalLM

        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    else:
        from peft import AutoPeftModelForCausalLM

        theirs = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "saved")
    with in_double():
        assert_same(plain_logprobs(theirs.double(), *(part[0] for part in batch(policy))), expected[0])


def test_stop_ids_are_the_union_of_configs_and_tokenizer(tiny, tmp_path):
    shutil.copytree(tiny / "base", tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    tokenizer_eos = config["eos_token_id"]
    config["eos_token_id"] = [tokenizer_eos, 7]
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    generation = json.loads((tmp_path / "m/generation_config.json").read_text())
    (tmp_path / "m/generation_config.json").write_text(json.dumps(generation | {"eos_token_id": 9}))
    assert load_policy(str(tmp_path / "m")).stop_ids == {tokenizer_eos, 7, 9}


@pytest.mark.parametrize(
    ("model", "says"),
    [("/no/such/folder", "no folder"), ("notahubname", "no folder"), ("nobody/nothing", "hub")],
)
def test_a_model_that_is_not_there_is_one_clear_error(monkeypatch, model, says):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=says) as error:
        load_policy(model)
    assert model in str(error.value)


def test_a_folder_without_weights_is_refused(tiny, tmp_path):
    shutil.copytree(tiny / "base", tmp_path / "m")
    (tmp_path / "m/model.safetensors").unlink()
    with pytest.raises(UserError, match="model .*m: no local copy"):
        load_policy(str(tmp_path / "m"))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_is_off(tiny, tmp_path, checkpointing):
    """Activation checkpoints keep a model in train mode, where it would be on."""
    with_settings(tiny, tmp_path / "m", attention_dropout=0.5)
    plain = load_policy(str(tiny / "base"))
    policy = load_policy(str(tmp_path / "m"), gradient_checkpointing=checkpointing)
    torch.testing.assert_close(
        policy.token_logprobs(*batch(plain))[0], plain.token_logprobs(*batch(plain))[0]
    )
    assert policy.causal_lm.config.attention_dropout == 0


def with_settings(tiny, folder, **changes):
    """A copy of the tiny model with other settings in its config.json."""
    shutil.copytree(tiny / "base", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def with_last_id(tiny, folder, gap):
    """A copy of the tiny model whose eos has an id `gap` beyond the others', on an embedding with room for
    it."""
    base = load_policy(str(tiny / "base"))
    last, old = base.vocab_size - 1 + gap, base.tokenizer.eos_token_id
    base.model.resize_token_embeddings(last + 5)
    weight = base.model.get_input_embeddings().weight.data
    weight[last] = weight[old]
    weight[old] = 0
    base.model.config.eos_token_id = base.model.generation_config.eos_token_id = last
    base.save(folder)
    path = folder / "tokenizer.json"
    text = json.loads(path.read_text())
    text["model"]["vocab"]["<eos>"] = last
    for token in text["added_tokens"]:
        token["id"] = last if token["content"] == "<eos>" else token["id"]
    path.write_text(json.dumps(text))
    return last, old


def test_ids_with_gaps_keep_their_last_ones(tiny, tmp_path):
    """As many tokens as before, but the stop token is beyond their number."""
    last, old = with_last_id(tiny, tmp_path / "m", 20)
    policy, plain = load_policy(str(tmp_path / "m")), load_policy(str(tiny / "base"))
    assert len(policy.tokenizer) == len(plain.tokenizer) <= last
    assert policy.vocab_size == last + 1 and policy.stop_ids == {last}
    problem = policy.tokenizer(
        "Tom has 7 pens, buys 5. How many pens now?", add_special_tokens=False
    ).input_ids
    request = Request(problem, [None])
    ours, theirs = (
        attach(p, TransformersSampler).sample([request], SamplingParams(48))[0][0] for p in (policy, plain)
    )
    assert theirs.finished and ours.finished and ours.tokens[-1] == last and theirs.tokens[-1] == old
    assert ours.tokens[:-1].tolist() == theirs.tokens[:-1].tolist()
    expected = policy.token_logprobs([problem], [ours.tokens])[0][0]
    torch.testing.assert_close(torch.from_numpy(ours.logprobs), expected.detach(), atol=1e-5, rtol=1e-5)


def test_a_stop_token_beyond_the_tokenizer_is_refused(tiny, tmp_path):
    with_settings(tiny, tmp_path / "m", eos_token_id=[1, 500])
    with pytest.raises(UserError, match="eos_token_id 500 is beyond the tokenizer's ids .up to 92."):
        load_policy(str(tmp_path / "m"))


def test_a_context_that_is_too_short_is_one_error(tiny):
    config = load_policy(str(tiny / "base")).causal_lm.config
    require_context("m", config, 256)
    with pytest.raises(
        UserError, match="model m: reads 256 tokens, prompt and completion may need 257; lower"
    ):
        require_context("m", config, 257)


def test_quantised_weights_are_refused(tiny):
    policy = load_policy(str(tiny / "base"))
    policy.model.config.quantization_config = {"quant_method": "gptq"}
    with pytest.raises(UserError, match="model m .type qwen2.: its weights are quantised"):
        _refuse_by_name("m", policy.model, policy.tokenizer)


def test_sliding_windows_are_refused(tiny, tmp_path):
    windowed = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0, "layer_types": None}
    with_settings(tiny, tmp_path / "m", **windowed)
    with pytest.raises(UserError, match="only full attention"):
        load_policy(str(tmp_path / "m"))


def test_an_adapter_names_its_base_and_says_when_it_is_gone(tiny, tmp_path):
    shutil.copytree(tiny / "base", tmp_path / "base")
    load_policy(str(tmp_path / "base"), "a1b2c3", lora=LORA).save(tmp_path / "adapter")
    saved = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == str(tmp_path / "base")
    assert saved["revision"] is None, "a folder has no hub revision"
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(UserError, match="adapter_config.json: base_model_name_or_path: model: no folder"):
        load_policy(str(tmp_path / "adapter"))


def test_a_device_that_is_not_there_is_refused(tiny):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UserError, match="no GPU"):
        load_policy(str(tiny / "base"), device="cuda:0")


def test_gpus_are_dealt_out_and_one_too_many_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [pick_device("auto", k).index for k in range(4)] == [0, 1, 0, 1]
    assert pick_device("cuda:1", 0).index == 1 and pick_device("cpu", 1).type == "cpu"
    with pytest.raises(UserError, match="'cuda:2' was asked for, but torch sees 2 GPUs, cuda:0 to cuda:1 "):
        pick_device("cuda:2")


def test_a_tokenizer_that_mangles_text_is_refused(tiny, tmp_path):
    shutil.copytree(tiny / "tok", tmp_path / "tok")
    path = tmp_path / "tok/tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match="doesn't give it back"):
        load_tokenizer(str(tmp_path / "tok"))


def test_a_saved_model_does_not_say_whether_the_hub_could_be_reached(tiny, tmp_path, monkeypatch):
    load_policy(str(tiny / "base")).save(tmp_path / "with")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    load_policy(str(tiny / "base")).save(tmp_path / "without")
    assert sha256(tmp_path / "with") == sha256(tmp_path / "without")


def test_names_that_torch_and_peft_do_not_know(tiny):
    with pytest.raises(UserError, match="device: torch knows none by the name 'gpu'; use 'auto'"):
        pick_device("gpu")
    with pytest.raises(UserError, match=r"lora.target_modules: Target modules .*'nope'.* not found"):
        load_policy(str(tiny / "base"), lora=Lora(r=4, target_modules=("nope",)))
