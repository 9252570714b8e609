"""Scoring stored answers: avg@k and pass@k, intervals, math-verify's verdict beside ours, what is kept of
each answer."""

import json
from functools import partial

import pytest

from ftis.errors import UserError
from ftis.runs.scores import score
from ftis.stats import mean_interval, pass_at_k, wilson
from ftis.tasks.grading.math_verify_verdict import math_verify_many


def test_wilson_by_hand():
    # p = 8/10, z^2 = 3.8415: centre (0.8 + 0.19207) / 1.38415, half 1.95996 sqrt(0.016 + 0.0096036) /
    # 1.38415.
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
    # math-verify reads the same answers here: also avg@k with the interval over problems.
    zero = {"faults": 0, "only_ours": 0, "only_math_verify": 0}
    low, high = mean_interval([0.5, 0.0])
    assert both["id"]["math_verify"] == {"accuracy": 0.25, "low": low, "high": high, **zero}
    low, high = wilson(2, 3)
    assert ood["math_verify"] == {"accuracy": 2 / 3, "low": low, "high": high, **zero}
    kept = [json.loads(line) for line in (tmp_path / "graded.jsonl").read_text().splitlines()]
    assert len(kept) == len(rows) and kept[4] == {
        "node": 0, "test": "ood", "id": "m1", "sample": 0, "gold": "3", "answer": True, "format": False,
        "reason": "same_text", "extracted": "3", "math_verify": True, "read": "3",
    }  # fmt: skip
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


def test_two_graders_that_differ_and_one_that_gives_up(tmp_path, monkeypatch):
    """Untagged prose, which only math-verify accepts; 18k, which only ours does; and a hang."""
    monkeypatch.setattr("ftis.runs.scores.math_verify_many", partial(math_verify_many, limit_s=2))
    texts = [
        ("18", "so it is 18"),
        ("18000", "<answer>18k</answer>"),
        ("18", "<answer> 18 </answer>"),  # without the spaces math-verify finds nothing
        ("18", r"\cos(10^{10^{10}}) = \boxed{\cos(10^{10^{10}})}"),
    ]
    rows = [_row("id", f"p{n}", 0, text, gold, "gsm8k") for n, (gold, text) in enumerate(texts)]
    header = {
        "shape": "strict", "subjects": [{"node": 0, "name": "a", "label": "A"}],
        "tests": {"id": {"dataset": "gsm8k", "n": 4, "samples": 1}},
    }  # fmt: skip
    (tmp_path / "g.jsonl").write_text("".join(json.dumps(x) + "\n" for x in [header, *rows]))
    result = score(tmp_path / "g.jsonl", tmp_path / "s.json")["nodes"][0]["benchmarks"]["id"]
    low, high = wilson(2, 4)
    assert result["accuracy"] == 0.5 and result["grader_faults"] == 0
    assert result["math_verify"] == {
        "accuracy": 0.5, "low": low, "high": high, "faults": 1, "only_ours": 1, "only_math_verify": 1
    }  # fmt: skip
    kept = [json.loads(line) for line in (tmp_path / "graded.jsonl").read_text().splitlines()]
    assert [(k["answer"], k["math_verify"], k["read"]) for k in kept] == [
        (False, True, "18"), (True, False, ""), (True, True, "18"), (False, None, ""),
    ]  # fmt: skip
