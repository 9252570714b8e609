"""Generating and scoring: what is pinned, resuming, avg@k and pass@k, intervals."""

import importlib.util
import json
import shutil
import threading
import time
from dataclasses import replace

import pytest

from ftis.errors import UserError
from ftis.model.sampler import TransformersSampler
from ftis.provenance import sha256
from ftis.runs import state
from ftis.runs.answers import BenchmarkSpec, Sampling, Subject, _weights, generate, score, start_subjects
from ftis.stats import mean_interval, pass_at_k, wilson
from ftis.tasks.problems import Dataset


def test_wilson_by_hand():
    # p = 8/10, z^2 = 3.8415: centre (0.8 + 0.19207) / 1.38415, half 1.95996 sqrt(0.016 + 0.0096036) / 1.38415.
    low, high = wilson(8, 10)
    assert low == pytest.approx(0.4902, abs=1e-4) and high == pytest.approx(0.9433, abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0) and wilson(0, 5)[0] == 0.0 and wilson(5, 5)[1] == pytest.approx(1.0)


def test_pass_at_k_by_hand():
    # 2 of 4 right. k = 1: 1/2. k = 2: 1 - C(2,2)/C(4,2) = 5/6. k = 3: no three wrong ones exist.
    assert [pass_at_k(4, 2, k) for k in (1, 2, 3, 4)] == pytest.approx([0.5, 5 / 6, 1, 1])
    assert pass_at_k(4, 0, 4) == 0.0


def test_mean_interval_by_hand():
    # mean 0.5, sample variance 1/3, standard error sqrt(1/12) = 0.288675: 0.5 -+ 0.56579, cut to [0, 1].
    assert mean_interval([0.0, 0.0, 1.0, 1.0]) == (0.0, 1.0)
    low, high = mean_interval([0.4, 0.5, 0.6])
    assert (low, high) == pytest.approx(
        (0.5 - 1.95996 * 0.1 / 3**0.5, 0.5 + 1.95996 * 0.1 / 3**0.5), abs=1e-5
    )


def _row(test, identity, sample, text, gold, task, meta=None, finish="stop"):
    return {
        "node": 0, "test": test, "id": identity, "sample": sample, "task": task, "gold": gold, "meta": meta or {},
        "finish": finish, "tokens": [1], "text": text,
    }  # fmt: skip


def test_scores_of_stored_completions(tmp_path):
    """Two problems with two samples each of one test, three single answers of another."""
    right, bare, wrong = "<think> x </think> <answer> 3 </answer>", r"\boxed{3}", "<answer> 4 </answer>"
    header = {
        "run": "r", "shape": "strict", "seed": 1,
        "subjects": [{"node": 0, "name": "a", "label": "A"}],
        "tests": {
            "id": {"dataset": "gsm8k", "n": 2, "samples": 2}, "ood": {"dataset": "math500", "n": 3, "samples": 1},
        },
    }  # fmt: skip
    rows = [
        _row("id", "p1", 0, right, "3", "gsm8k"),
        _row("id", "p1", 1, wrong, "3", "gsm8k"),
        _row("id", "p2", 0, wrong, "3", "gsm8k", finish="length"),
        _row("id", "p2", 1, wrong, "3", "gsm8k"),
        _row("ood", "m1", 0, bare, "3", "math500", {"subject": "Algebra", "level": 2}),
        _row("ood", "m2", 0, wrong, "3", "math500", {"subject": "Algebra", "level": 5}),
        _row("ood", "m3", 0, right, "3", "math500", {"subject": "Geometry", "level": 2}),
    ]
    (tmp_path / "g.jsonl").write_text("".join(json.dumps(x) + "\n" for x in [header, *rows]))
    scores = score(tmp_path / "g.jsonl", tmp_path / "s.json")
    assert json.loads((tmp_path / "s.json").read_text()) == scores
    both = scores["nodes"][0]["benchmarks"]
    assert (both["id"]["accuracy"], both["id"]["problems"], both["id"]["samples"]) == (0.25, 2, 2)
    # p1: 1 of 2 right, p2: none. pass@1 = (1/2 + 0)/2, pass@2 = (1 + 0)/2.
    assert both["id"]["pass_at"] == {"1": 0.25, "2": 0.5}
    assert both["id"]["truncated"] == 0.25 and both["id"]["format_rate"] == 0.25
    ood = both["ood"]
    assert ood["accuracy"] == pytest.approx(2 / 3) and ood["format_rate"] == pytest.approx(1 / 3)
    assert (ood["low"], ood["high"]) == wilson(2, 3) and ood["grader_faults"] == 0
    assert ood["by"]["subject"] == {
        "Algebra": {"accuracy": 0.5, "n": 2},
        "Geometry": {"accuracy": 1.0, "n": 1},
    }
    assert ood["by"]["level"] == {"2": {"accuracy": 1.0, "n": 2}, "5": {"accuracy": 0.0, "n": 1}}
    assert {"ftis", "math-verify", "sympy"} <= set(scores["graders"])
    # A file that lost its end, or has a problem twice, is no basis for an accuracy.
    lines = (tmp_path / "g.jsonl").read_text().splitlines(keepends=True)
    for kept, message in (
        (lines[:-1], "g.jsonl: holds 2 of the 3 answers of node 0 to 'ood'; run generate again"),
        (lines[:4], "holds 3 of the 4 answers of node 0 to 'id'"),
        (lines[:1], "holds 0 of the 4 answers"),
        ([*lines, lines[-1]], "holds 4 of the 3 answers"),
    ):
        (tmp_path / "g.jsonl").write_text("".join(kept))
        with pytest.raises(UserError, match=message):
            score(tmp_path / "g.jsonl", tmp_path / "s.json")
    assert json.loads((tmp_path / "s.json").read_text()) == scores


def test_what_is_no_generations_file(tmp_path):
    with pytest.raises(UserError, match="run generate first"):
        score(tmp_path / "absent.jsonl", tmp_path / "s.json")
    for text in ("{half", "", "[1]\n", '{"text": "no header"}\n'):
        (tmp_path / "g.jsonl").write_text(text)
        with pytest.raises(UserError, match="not a generations file .* run generate again"):
            score(tmp_path / "g.jsonl", tmp_path / "s.json")
    assert not (tmp_path / "s.json").exists()


def test_one_writer_a_file(tiny, tmp_path):
    tests = {
        "id": BenchmarkSpec(Dataset(name="tiny", path=str(tiny / "data/ood.jsonl"), limit=2), "tiny-v1", 8)
    }
    call = [Subject(0, "a", "A", str(tiny / "base"))], tests, tmp_path / "g.jsonl", Sampling(1)
    refused = pytest.raises(
        UserError,
        match=r"g.jsonl: another process is writing it \(pid \d+ on \S+ since 20\d\d-.*; wait for it or",
    )
    with state.only_writer(tmp_path / "g.jsonl"), refused:
        generate(*call)
    assert not list(tmp_path.iterdir())
    generate(*call)
    assert [p.name for p in tmp_path.iterdir()] == ["g.jsonl"]


@pytest.mark.parametrize("end", ["finished", "killed"])
def test_a_second_writer_may_wait_and_take_over_what_the_first_leaves(
    tiny, tmp_path, monkeypatch, capsys, end
):
    data = Dataset(name="tiny", path=str(tiny / "data/ood.jsonl"), limit=6)
    out, asked = tmp_path / "g.jsonl", []
    call = [Subject(0, "a", "A", str(tiny / "base"))], {"id": BenchmarkSpec(data, "tiny-v1", 40)}, out
    generate(*call, Sampling(1, max_batch=2))
    whole = out.read_text()
    original = TransformersSampler.sample

    def counted(self, requests, params):
        asked.append(len(requests))
        return original(self, requests, params)

    monkeypatch.setattr("ftis.model.check._check_sampler", lambda *_: None)  # what is counted isn't the check
    monkeypatch.setattr(TransformersSampler, "sample", counted)
    out.rename(tmp_path / "aside")  # as Snakemake removes it before a job
    with state.only_writer(out):
        second = threading.Thread(
            target=generate, args=(*call, Sampling(1, max_batch=2)), kwargs={"resume": True, "wait": True}
        )
        second.start()
        while "waiting for its end" not in (said := capsys.readouterr().err):
            assert second.is_alive() and not said
            time.sleep(0.01)
        if end == "finished":
            (tmp_path / "aside").rename(out)
        else:
            (tmp_path / ".g.jsonl.partial").write_text("".join(whole.splitlines(keepends=True)[:5]))
    second.join(60)
    assert out.read_text() == whole
    assert sum(asked) == (0 if end == "finished" else 2)
    assert ("g.jsonl: is finished; nothing to do" in capsys.readouterr().err) == (end == "finished")
    # What lost its end is not finished, and neither is what is to be made anew.
    out.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    generate(*call, Sampling(1, max_batch=2), resume=True)
    generate(*call, Sampling(1, max_batch=2))
    assert out.read_text() == whole and sum(asked[-6:]) == 12


def test_another_model_in_the_same_folder_starts_over(tiny, tmp_path, capsys):
    """Though nothing else tells the two calls apart."""
    model = tmp_path / "model"
    shutil.copytree(tiny / "base", model)
    data = Dataset(name="tiny", path=str(tiny / "data/ood.jsonl"), limit=6)
    call = [Subject(0, "a", "A", str(model))], {"id": BenchmarkSpec(data, "tiny-v1", 40)}
    generate(*call, tmp_path / "first.jsonl", Sampling(1))
    begun = (tmp_path / "first.jsonl").read_text().splitlines(keepends=True)[:4]
    shutil.copy(tiny / "coder/model.safetensors", model)
    generate(*call, tmp_path / "second.jsonl", Sampling(1))
    (tmp_path / ".third.jsonl.partial").write_text("".join(begun))
    generate(*call, tmp_path / "third.jsonl", Sampling(1), resume=True)
    assert "made with other settings; starting over" in capsys.readouterr().err
    assert (tmp_path / "third.jsonl").read_text() == (tmp_path / "second.jsonl").read_text()
    assert json.loads(begun[0])["weights"] == [sha256(tiny / "base")]


def test_weights_of_a_model_in_the_home_folder_and_of_one_from_the_hub(
    tiny, tmp_path, make_config, monkeypatch
):
    """Whatever training takes for a model, a model before training may be."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    shutil.copytree(tiny / "base", tmp_path / "m/a")
    repo, commits = tmp_path / "hub/models--somebody--tiny", {"main": "a" * 40, "old": "b" * 40}
    for branch, commit in commits.items():
        (repo / "snapshots" / commit).mkdir(parents=True)
        (repo / "snapshots" / commit / "config.json").write_text("{}")
        (repo / "refs").mkdir(exist_ok=True)
        (repo / "refs" / branch).write_text(commit)

    def weights(model, revision=None):
        config = make_config(nodes=({"name": "a", "model": model, "revision": revision},))
        (subject,), facts = start_subjects(config)
        assert facts == {"run": "test"}
        return _weights(subject)

    assert weights("~/m/a") == weights("~/m/a", "of-its-warm-start") == sha256(tiny / "base")
    assert weights("somebody/tiny") == weights("somebody/tiny", "main") == "a" * 40
    assert weights("somebody/tiny", "old") == weights("somebody/tiny", "b" * 40) == "b" * 40
    with pytest.raises(UserError, match="model somebody/tiny: no local copy"):
        weights("somebody/tiny", "c" * 40)
    with pytest.raises(UserError, match="no folder ~/m/b"):
        weights("~/m/b")


def test_backends_that_are_not_there_say_so(tiny, tmp_path):
    tests = {
        "id": BenchmarkSpec(Dataset(name="tiny", path=str(tiny / "data/ood.jsonl"), limit=2), "tiny-v1", 8)
    }
    subject = Subject(0, "a", "A", str(tiny / "base"))
    with pytest.raises(UserError, match="unknown backend 'sglang': choose one of transformers, vllm"):
        generate([subject], tests, tmp_path / "g.jsonl", Sampling(1, backend="sglang"))
    if importlib.util.find_spec("vllm") is None:
        with pytest.raises(UserError, match="vLLM can't be imported .*; install it"):
            generate([subject], tests, tmp_path / "g.jsonl", Sampling(1, backend="vllm"))
    assert not list(tmp_path.iterdir())


def test_a_context_that_the_tests_exceed_is_refused_before_anything_is_sampled(tiny, tmp_path):
    data = Dataset(name="tiny", path=str(tiny / "data/ood.jsonl"), limit=2)
    tests = {"id": BenchmarkSpec(data, "tiny-v1", 8), "ood": BenchmarkSpec(data, "tiny-v1", 250)}
    with pytest.raises(
        UserError, match=r"base: reads 256 tokens, prompt and completion may need 2\d\d; lower"
    ):
        generate([Subject(0, "a", "A", str(tiny / "base"))], tests, tmp_path / "g.jsonl", Sampling(1))
    assert not (tmp_path / "g.jsonl").exists()


def test_greedy_answers_are_sampled_with_those_at_a_temperature(tiny, tmp_path, monkeypatch):
    """Of the same problems; a file is graded as if each test had been taken by itself."""
    greedy = BenchmarkSpec(
        Dataset(name="tiny", path=str(tiny / "data/validation.jsonl"), limit=5), "tiny-v1", 40
    )
    tests = {
        "id": greedy,
        "longer": replace(greedy, max_new_tokens=41),
        "id_sampled": replace(greedy, samples=3, temperature=1.0),
        "id_cold": replace(greedy, samples=2, temperature=0.5),
    }
    calls = []
    original = TransformersSampler.sample

    def counted(self, requests, params):
        calls.append(sum(len(r.keys) for r in requests))
        return original(self, requests, params)

    monkeypatch.setattr("ftis.model.check._check_sampler", lambda *_: None)  # what is counted isn't the check
    monkeypatch.setattr(TransformersSampler, "sample", counted)
    subjects, sampling = [Subject(0, "a", "A", str(tiny / "base"))], Sampling(3)
    generate(subjects, tests, tmp_path / "together.jsonl", sampling)
    assert sorted(calls) == [5, 5 * 2, 5 * (1 + 3)]

    def rows(path, role):
        lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
        return [line for line in lines if line["test"] == role]

    for role, test in tests.items():
        generate(subjects, {role: test}, tmp_path / f"{role}.jsonl", sampling)
        assert rows(tmp_path / "together.jsonl", role) == rows(tmp_path / f"{role}.jsonl", role)
        assert len(rows(tmp_path / "together.jsonl", role)) == 5 * test.samples
    # A file that another version wrote test by test is not gone on with, since a pass would leave problems out.
    header, *lines = (tmp_path / "together.jsonl").read_text().splitlines()
    begun = [line for line in lines if '"test": "id"' in line][:4]
    (tmp_path / ".again.jsonl.partial").write_text("\n".join([header, *begun]) + "\n")
    generate(subjects, tests, tmp_path / "again.jsonl", sampling, resume=True)
    assert (tmp_path / "again.jsonl").read_text() == (tmp_path / "together.jsonl").read_text()


def test_an_interrupted_generation_goes_on_and_ends_the_same(tiny, tmp_path, monkeypatch):
    subjects = [Subject(0, "a", "A", str(tiny / "base")), Subject(1, "b", "B", str(tiny / "coder"))]
    tests = {
        "id": BenchmarkSpec(
            Dataset(name="tiny", path=str(tiny / "data/validation.jsonl"), limit=10), "tiny-v1", 40, 2, 1.0
        ),
        "ood": BenchmarkSpec(
            Dataset(name="tiny", path=str(tiny / "data/ood.jsonl"), limit=6), "tiny-v1", 40, 3, 1.0
        ),
        "ood_greedy": BenchmarkSpec(
            Dataset(name="tiny", path=str(tiny / "data/ood.jsonl"), limit=6), "tiny-v1", 40
        ),
    }
    sampling = Sampling(3, max_batch=8)
    generate(subjects, tests, tmp_path / "whole.jsonl", sampling)
    asked = []
    original = TransformersSampler.sample

    def counting(self, requests, params):
        asked.append(len(requests))
        if len(asked) == 6:
            raise KeyboardInterrupt
        return original(self, requests, params)

    monkeypatch.setattr("ftis.model.check._check_sampler", lambda *_: None)  # what is counted isn't the check
    monkeypatch.setattr(TransformersSampler, "sample", counting)
    with pytest.raises(KeyboardInterrupt):
        generate(subjects, tests, tmp_path / "cut.jsonl", sampling)
    assert not (tmp_path / "cut.jsonl").exists()
    partial, whole = tmp_path / ".cut.jsonl.partial", (tmp_path / "whole.jsonl").read_text()
    begun = partial.read_text()
    header, *rows = whole.splitlines(keepends=True)
    # What a kill in the middle of a line leaves, just before a line's end, and in the header.
    cuts = (
        begun + '{"node": 1, "te',
        begun[:-1],
        header + "".join(rows[:2])[:-1],
        header + rows[0][:-1],
        header[:-1],
    )
    for cut in cuts:
        partial.write_text(cut)
        asked[:] = [0] * 6
        generate(subjects, tests, tmp_path / "cut.jsonl", sampling, resume=True)
        assert (tmp_path / "cut.jsonl").read_text() == whole
        if cut.startswith(begun[:-1]):
            assert sum(asked) <= 20, "14 of 32 problems were there, or all but the last of them"
        (tmp_path / "cut.jsonl").unlink()
    # Another setting starts anew.
    partial.write_text(whole)
    generate(subjects, tests, tmp_path / "other.jsonl", Sampling(4, 8), resume=True)
    assert (tmp_path / "other.jsonl").read_text() != whole
