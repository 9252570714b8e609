"""Generating answers: what is pinned, resuming, one writer a file."""

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
from ftis.runs.answers import BenchmarkSpec, Sampling, Subject, _weights, generate, start_subjects
from ftis.tasks.problems import Dataset


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
    # A file that another version wrote test by test is not gone on with, since a pass would leave problems
    # out.
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
