"""The tiny problems, tokenizer and warm starts."""

import json
import os
import random
import re
import subprocess
import sys

import pytest
import torch
from pydantic import TypeAdapter
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from ftis.errors import UserError
from ftis.files import write_folder
from ftis.model.loading import load_tokenizer
from ftis.runs.state import remove_partial
from ftis.settings import parse
from ftis.tasks.tiny import problems as tiny_data
from ftis.tasks.tiny.models import (
    EOS,
    KINDS,
    PAD,
    TinyModel,
    _Muon,
    build_model,
    examples,
    make_model,
    make_tokenizer,
    render,
    vocabulary,
)
from ftis.tasks.tiny.problems import LARGEST, DataSettings, make_data, make_problem

STYLES = ("base", "coder", "words")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with `tokenizer` and `data` in it."""
    root = tmp_path_factory.mktemp("tiny")
    make_tokenizer(root / "tokenizer")
    make_data(root / "data", DataSettings(train=400, validation=100, ood=100))
    return root


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def solve(question):
    """The answer from the text alone: the number that is left after each phrase, in order."""
    story = question.split(". ")[0]
    value, *_ = (int(n) for n in re.findall(r"\d+", story))
    values = [value]
    for phrase in story.split(", ")[1:]:
        amount = int(n[0]) if (n := re.findall(r"\d+", phrase)) else None
        verb = phrase.split()[0]
        if verb in ("buys", "finds", "gets", "wins"):
            value += amount
        elif verb in ("loses", "sells", "drops", "gives"):
            value -= amount
        elif verb == "halves":
            assert value % 2 == 0
            value //= 2
        else:
            value *= {"doubles": 2, "triples": 3}[verb]
        values.append(value)
    return values


def test_golds_follow_from_the_questions(folder):
    for name, lengths in (("train", {2, 3}), ("validation", {2, 3}), ("ood", {4})):
        problems = read(folder / "data" / f"{name}.jsonl")
        assert {len(solve(p["question"])) - 1 for p in problems} == lengths
        for problem in problems:
            values = solve(problem["question"])
            assert problem["answer"].split("#### ")[1] == str(values[-1])
            assert [int(r) for r in re.findall(r">>(\d+)", problem["answer"])] == values[1:]
            assert all(0 <= value <= LARGEST for value in values)


def test_data_are_disjoint_and_follow_from_the_seed(folder, tmp_path):
    names = ("train", "validation", "ood")
    questions = [p["question"] for name in names for p in read(folder / "data" / f"{name}.jsonl")]
    assert len(set(questions)) == len(questions) == 600
    make_data(tmp_path / "again", DataSettings(train=400, validation=100, ood=100))
    make_data(tmp_path / "other", DataSettings(train=400, validation=100, ood=100, seed=43))
    for name in names:
        text = (folder / "data" / f"{name}.jsonl").read_text()
        assert (tmp_path / "again" / f"{name}.jsonl").read_text() == text
        assert (tmp_path / "other" / f"{name}.jsonl").read_text() != text


def test_more_problems_than_there_are_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_data, "NAMES", ("Tom",))
    monkeypatch.setattr(tiny_data, "OBJECTS", ("pens",))
    with pytest.raises(UserError, match="data.train: 3000 different problems"):
        make_data(tmp_path, DataSettings(train=3000, validation=1, ood=1, steps=(1,)))


def test_tokenizer_gives_back_every_text(folder):
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    assert len(tokenizer) == len(set(vocabulary())) == 93
    assert (tokenizer.pad_token, tokenizer.eos_token) == (PAD, EOS)
    rng = random.Random(0)
    for i in range(100):
        problem = make_problem(rng, 2 + i % 3)
        for completion in (render(problem, style, kind) for style in STYLES for kind in KINDS):
            text = problem.question + completion
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids) == text
            # Prompt and completion never share a token.
            assert ids == tokenizer.encode(problem.question) + tokenizer.encode(completion)
    assert tokenizer.encode("12+7") == [vocabulary().index(c) for c in "12+7"]


def test_tagged_completions_are_right_and_the_others_are_not():
    def reward(completion, gold):
        match = re.fullmatch(r"<think>(.*)</think>\s<answer> (\d+) </answer>", completion, re.DOTALL)
        return bool(match) and int(match[2]) == gold

    rng = random.Random(1)
    for i in range(200):
        problem = make_problem(rng, 2 + i % 3)
        assert problem.gold == solve(problem.question)[-1]
        for style in STYLES:
            assert reward(render(problem, style), problem.gold)
            assert not reward(render(problem, style, slip=1), problem.gold)
            assert not reward(render(problem, style, "untagged"), problem.gold)
            assert not reward(render(problem, style, "guess", guess=problem.gold + 1), problem.gold)


def test_styles_by_example():
    problem = make_problem(random.Random(3), 2)
    (a, op1, b, c), (_, op2, d, e) = problem.steps
    assert (
        render(problem, "base") == f"<think> {a}{op1}{b}={c}; {c}{op2}{d}={e} </think> <answer> {e} </answer>"
    )
    assert render(problem, "coder") == (
        f"<think>\na={a}\nb=a{op1}{b}={c}\nc=b{op2}{d}={e}\n</think>\n<answer> {e} </answer>"
    )
    assert (
        render(problem, "words", "untagged") == f"{a}{op1}{b} gives {c}, then {c}{op2}{d} gives {e}, so {e}."
    )


def test_warm_start_texts_keep_to_their_shares():
    held_out = {
        p[0][0] for p in examples(TinyModel(size="xs", style="base", steps=10), random.Random(0), set())
    }
    model = TinyModel(size="xs", style="base", steps=500, batch=16, drill_share=0.5, other_share=0.1)
    texts = list(examples(model, random.Random(0), held_out))
    solved = [(question, completion) for (question, _), (completion, _) in (t for t in texts if len(t) == 2)]
    assert len(texts) == 8000 and len(solved) / 8000 == pytest.approx(1 - 0.7 * 0.5, abs=0.03)
    assert not held_out & {question for question, _ in solved}
    assert all(completion.endswith(EOS) for _, completion in solved)
    for form, shares in (("Count", (0.25, 0.70, 0.05)), ("How many", (0.75, 0.13, 0.12))):
        completions = [c for q, c in solved if form in q]
        guesses = sum("guess" in c for c in completions)
        tagged = sum("<think>" in c for c in completions) - guesses
        found = (tagged, len(completions) - tagged - guesses, guesses)
        assert [n / len(completions) for n in found] == pytest.approx(shares, abs=0.03)
    worked = [completion for _, completion in solved if "guess" not in completion]
    for mark in ("a=", " gives "):  # the coder's and the words style, half of the other styles' share each
        assert sum(mark in text for text in worked) / len(worked) == pytest.approx(0.05, abs=0.015)
    drills = [text for text in texts if len(text) == 10]
    assert len(drills) + len(solved) == 8000
    assert all(re.fullmatch(r"\d+; ", text) for drill in drills for text, counted in drill if counted)


def test_muon_is_torchs_muon():
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((12, 8), (8, 12), (12, 8))]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    before = [p.detach().clone() for p in ours]
    muon, reference = _Muon(ours), torch.optim.Muon(theirs, lr=0.02, weight_decay=0.0)
    for _ in range(3):
        for p, q in zip(ours, theirs):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        muon.step(0.02)
        reference.step()
    for p, q, start in zip(ours, theirs, before):  # torch computes in bfloat16
        assert (p - q).norm() < 0.03 * (q - start).norm()


@pytest.mark.parametrize("size, parameters", [("xs", 104_832), ("s", 314_304)])
def test_parameter_counts(size, parameters):
    model = build_model(size)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model.dtype == torch.float32


def test_warm_start_follows_from_its_seed_and_loads(folder):
    settings = TinyModel(size="xs", style="coder", steps=5)
    seen = []
    started = [
        make_model(
            settings, seed, folder / "tokenizer", folder / "data", folder / name, lambda *s: seen.append(s)
        )
        for seed, name in ((1, "one"), (1, "one"), (2, "two"))
    ]
    assert started[0]["sha256"] == started[1]["sha256"] != started[2]["sha256"]
    assert started[0] == {**started[1], "seconds": started[0]["seconds"]}
    assert json.loads((folder / "two" / "warm.json").read_text()) == started[2]
    assert [step[:2] for step in seen] == [(5, 5)] * 3
    assert not list(folder.glob(".*partial*"))

    model = AutoModelForCausalLM.from_pretrained(folder / "one")
    assert model.config.tie_word_embeddings and model.dtype == torch.float32
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "one")
    assert tokenizer.encode("Tom has 17 pens.") == load_tokenizer(str(folder / "tokenizer")).encode(
        "Tom has 17 pens."
    )
    generation = GenerationConfig.from_pretrained(folder / "one")
    assert (generation.eos_token_id, generation.pad_token_id) == (
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )
    assert model.config.eos_token_id == tokenizer.eos_token_id and model.config.bos_token_id is None


def test_half_a_folder_is_left_by_no_error_and_after_a_kill_by_no_later_write(tmp_path):
    out = tmp_path / "model[1]"
    with pytest.raises(KeyboardInterrupt), write_folder(out) as partial:
        (partial / "half").touch()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())

    kill = "import os, sys\nfrom ftis.files import write_folder\nfrom pathlib import Path\n"
    kill += "with write_folder(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", kill, out], check=False).returncode == -9
    (left,) = tmp_path.iterdir()
    lives = tmp_path / f".{out.name}.{os.uname().nodename}-{os.getppid()}.partial"
    lives.mkdir()
    with write_folder(out):
        assert lives.exists() and not left.exists()
    remove_partial(tmp_path)  # of a run that nobody else trains
    assert [path.name for path in tmp_path.iterdir()] == ["model[1]"]


def test_errors_say_what_to_do(folder, tmp_path):
    with pytest.raises(UserError, match="tiny-data"):
        make_model(
            TinyModel(size="xs", style="base", steps=1), 0, folder / "tokenizer", tmp_path, tmp_path / "m"
        )
    with pytest.raises(UserError, match="unknown key"):
        parse(TypeAdapter(TinyModel), {"size": "xs", "style": "base", "steps": 1, "colour": 3}, "models")
