"""The supervised warm start of real models, on a tiny one and on made problems."""

import json
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file

from ftis.cli import main as cli
from ftis.errors import UserError
from ftis.model.loading import load_policy
from ftis.model.sampler import Request, SamplingParams, TransformersSampler
from ftis.runs.warm_start import WarmStart, solution_text, warm_start
from ftis.suite.suite import Suite
from ftis.swarm.loop import Swarm
from ftis.tasks.grading.verdict import grade_many
from ftis.tasks.problems import Dataset, Problem, load_problems
from tests.numerics import assert_same, doubled, in_double
from tests.parts import DATA, needs_data


@pytest.fixture(scope="module")
def easy(tmp_path_factory):
    """Sixteen sums in GSM8K's format, in words that the tiny tokenizer has."""
    path = tmp_path_factory.mktemp("easy") / "train.jsonl"
    rows = [
        {"question": f"Tom has {a} pens, buys {b}. How many pens "
                     f"now?", "answer": f"{a}+{b}=<<{a}+{b}={a + b}>>{a + b}\n#### {a + b}"}
        for a in range(2, 6) for b in range(2, 6)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Dataset(name="gsm8k", path=str(path))


def test_a_solution_earns_the_reward(easy):
    problems = load_problems(easy)
    assert solution_text(problems[0]) == "<think>\n2+2=4\n</think>\n<answer> 4 </answer>"
    verdicts = grade_many([(solution_text(p), p.gold, p.task) for p in problems])
    assert all(v.reward == 1 for v in verdicts)
    with pytest.raises(UserError, match="math500 has no worked solution"):
        solution_text(Problem("x", "q", "1", "math500"))


@needs_data
def test_every_gsm8k_solution_earns_the_reward():
    problems = load_problems(Dataset(name="gsm8k", path=f"{DATA}/gsm8k/train.jsonl"))
    verdicts = grade_many([(solution_text(p), p.gold, p.task) for p in problems])
    assert len(problems) == 7473 and all(v.reward == 1 for v in verdicts)


def test_a_warm_start_teaches_the_format(easy, tiny, tmp_path, make_config):
    """Questions that the model answered otherwise are answered in the format, and rewards vary between
    samples."""
    settings = WarmStart(steps=30, batch=8, learning_rate=3e-3, micro_batch=3)
    seen = []
    facts = warm_start(
        settings, 1, str(tiny / "coder"), None, "tiny-v1", easy, tmp_path / "warm", progress=lambda *a: seen.append(a)
    )  # fmt: skip
    assert [step for step, _, _ in seen] == list(range(1, 31)) and facts["loss"][-1] < 0.5 * facts["loss"][0]
    assert json.loads((tmp_path / "warm/warm.json").read_text()) == facts
    policy = load_policy(str(tmp_path / "warm"))
    problems = load_problems(easy)
    encode = policy.tokenizer.encode
    requests = [Request(encode(p.question, add_special_tokens=False), [None]) for p in problems]
    done = TransformersSampler(policy).sample(requests, SamplingParams(40))
    texts = [policy.tokenizer.decode(c.tokens[:-1]) for (c,) in done]
    assert sum(t.startswith("<think>\n") and t.endswith("</answer>") for t in texts) >= 12, texts
    config = make_config(
        nodes=({"name": "warm", "model": str(tmp_path / "warm")},), train={"name": "gsm8k", "path": easy.path}
    )
    node = Swarm(config).iteration(1).nodes[0]
    assert 0 < node.reward < 1 and node.zero_advantage < 1 and node.grad_norm > 0


def test_micro_batches_and_seeds(easy, tiny, tmp_path, monkeypatch):
    """In float64: Adam makes of a gradient that is 0 but for a rounding a step like any other."""
    base = load_policy(str(tiny / "base"))
    monkeypatch.setattr("ftis.model.loading.load_policy", lambda *_, **__: doubled(base))
    weights = []
    for k, (micro, seed) in enumerate([(1, 1), (4, 1), (4, 2)]):
        settings = WarmStart(steps=3, batch=4, learning_rate=1e-3, micro_batch=micro)
        with in_double():
            warm_start(settings, seed, str(tiny / "base"), None, "tiny-v1", easy, tmp_path / str(k))
        weights.append(load_file(tmp_path / str(k) / "model.safetensors"))
    for name, weight in weights[0].items():
        assert_same(weights[1][name], weight)
        assert (weights[2][name] - weight).abs().max() > 1e-4


def test_texts_that_are_too_long_are_left_out_and_all_of_them_is_an_error(easy, tiny, tmp_path):
    with pytest.raises(UserError, match="warm.max_tokens: none of 16 problems fits into 8 tokens"):
        warm_start(
            WarmStart(steps=1, max_tokens=8), 1, str(tiny / "base"), None, "tiny-v1", easy, tmp_path / "x"
        )
    assert not (tmp_path / "x").exists()


def test_a_tokenizer_that_names_no_eos_is_an_error(easy, tiny, tmp_path):
    shutil.copytree(tiny / "base", tmp_path / "m")
    path = tmp_path / "m/tokenizer_config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "eos_token"}))
    with pytest.raises(
        UserError, match="model .*/m: its tokenizer names no eos token.*set eos_token in its tokenizer_config"
    ):
        warm_start(WarmStart(steps=1), 1, str(tmp_path / "m"), None, "tiny-v1", easy, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_the_command_makes_what_the_tier_s_runs_start_from(easy, tiny, tmp_path, monkeypatch):
    (tmp_path / "tiers").mkdir()
    (tmp_path / "grid.yaml").write_text((Suite.load().folder / "grid.yaml").read_text())
    data = {"name": "gsm8k", "path": easy.path}
    model = {"label": "x", "model": str(tiny / "base"), "warm": {"steps": 2, "batch": 4}}
    (tmp_path / "tiers/warmed.yaml").write_text(yaml.safe_dump({
        "about": "a test", "seeds": 1, "learning_rate": {"full": 1e-4, "lora": 1e-3}, "prompts": {"*": 4},
        "models": {"base_small": model}, "benchmarks": {},
        "run": {"train": data, "rollout": {"prompt": "tiny-v1", "max_new_tokens": 20}},
    }))  # fmt: skip
    monkeypatch.setenv("FTIS_SUITE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (node,) = Suite.load().resolve("warmed", Suite.load().run("alone-base_small-s3")).nodes
    out = node.model
    assert out == "results/warmed/models/base_small-s3"
    assert (
        cli.main(
            ["job", "warm-start", "--tier", "warmed", "--model", "base_small", "--seed", "3", "--out", out]
        )
        == 0
    )
    facts = json.loads((tmp_path / out / "warm.json").read_text())
    assert (facts["model"], facts["seed"], facts["prompt"], facts["problems"]) == (
        str(tiny / "base"),
        3,
        "tiny-v1",
        16,
    )
    assert not torch.equal(load_policy(out).head(), load_policy(str(tiny / "base")).head())
