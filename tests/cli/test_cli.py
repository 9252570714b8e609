"""The command line as a user meets it: help, errors in one line with exit code 2, runs without Snakemake."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from ftis.cli.main import main
from ftis.runs import state
from ftis.settings import to_dict
from ftis.tasks.tiny import models as tiny_models


def ftis(*arguments, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, "-m", "ftis.cli", *map(str, arguments)],
        check=False, capture_output=True, text=True, cwd=cwd, stdin=subprocess.DEVNULL, env=os.environ | environment,
    )  # fmt: skip


ROOT = Path(__file__).parents[2]
COMMANDS = ("train", "settings", "evaluate", "grade", "plan", "report", "init")
JOBS = (
    "generate", "score", "figure", "table", "tidy", "ablation", "claims", "economics", "exact", "fetch", "tokenizer",
    "tiny-data", "warm-start",
)  # fmt: skip


def test_help_names_every_command_and_needs_no_torch():
    result = ftis("--help")
    assert result.returncode == 0 and all(command in result.stdout for command in COMMANDS)
    assert all(name in ftis("job", "--help").stdout for name in JOBS)
    code = "import sys, ftis.cli.main as c\ntry: c.main(['--help'])\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("command", [(name,) for name in COMMANDS] + [("job", name) for name in JOBS])
def test_each_command_has_help(command):
    result = ftis(*command, "--help")
    assert result.returncode == 0 and "usage: ftis" in result.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no such file"),
        ("nodes: [", "not valid YAML"),
        ("just text", "config.yaml is not valid"),
        ("name: x\ntrain: {name: gsm8k}\nnodes: [{name: a, model: m}]\nmethod: "
         "grpo", "unknown method 'grpo': choose one of alone, fnois"),
        ("name: x\ntrain: {name: gsm8k}\nnodes: [{name: a, model: m, lr: 1}]\nmethod: "
         "alone", "nodes.0.lr: unknown key; the keys here are"),
        ("name: x\ntrain: {name: mmlu}\nnodes: [{name: a, model: m}]\nmethod: "
         "alone", "train.name: Input should be 'gsm8k', 'math500' or 'tiny'"),
        ("name: x\ntrain: {name: gsm8k}\nnodes: [{name: a, model: m}]\nmethod: "
         "ftis", "threshold: method 'ftis' filters and needs one"),
        ("name: x\ntrain: {name: gsm8k}\nnodes: [{name: a, model: m}]\nmethod: alone\niterations: "
         "many", "iterations: Input should be a valid integer"),
        ("name: x\ntrain: {name: gsm8k}\nnodes: [{name: a, model: m}]\nmethod: alone\nreadings: {preset: "
         "book}", "readings.preset: Input should be 'paper', 'code' or 'seed'"),
    ],
)  # fmt: skip
def test_a_bad_settings_file_is_one_clear_error(tmp_path, text, says):
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    result = ftis("train", path, "--out", tmp_path / "run")
    assert result.returncode == 2 and says in result.stderr and str(path) in result.stderr
    assert "Traceback" not in result.stderr and not (tmp_path / "run").exists()


def test_errors_come_within_a_second_or_two():
    began = time.monotonic()
    result = ftis("train", "--tier", "tiny", "--run", "nonsense")
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert time.monotonic() - began < 5, "torch must not be imported for an error (about 0.5 s is usual)"


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--tier", "huge", "--run", "alone-base_small-s42"],
        ["train", "--tier", "tiny", "--run", "nonsense"],
        ["train", "no_such.yaml", "--out", "run"],
        ["plan", "--tier", "huge"],
        ["plan", "--tier", "tiny", "--gpu", "tpu"],
        ["plan", "--tier", "tiny", "--seeds", "99"],
        ["evaluate", "--model", "m", "--benchmark", "aime"],
        ["evaluate", "--model", "m", "--prompt", "nope"],
        ["evaluate", "--model", "m", "--samples", "4"],
        ["job", "generate", "--tier", "huge", "--run", "alone-base_small-s42"],
    ],
)
def test_errors_need_no_torch(arguments, tmp_path):
    code = (
        "import sys, ftis.cli.main as c\nassert c.main(sys.argv[1:]) == 2\nassert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train"], "either CONFIG.yaml or --tier and --run"),
        (["train", "--tier", "tiny"], "either CONFIG.yaml or --tier and --run"),
        (["train", "--tier", "huge", "--run", "alone-base_small-s42"], "unknown tier 'huge': choose one of"),
        (["train", "--tier", "tiny", "--run", "size_base-ppo-g50-vertical-s42"], "ppo"),
        (["train", "x.yaml", "--tier", "tiny"], "either CONFIG.yaml or --tier and --run"),
        (["plan", "--tier", "nope"], "unknown tier"),
        (["plan", "--tier", "tiny", "--gpu", "tpu"], "unknown GPU 'tpu': choose one of a100, h100"),
        (["plan", "--tier", "tiny", "--seeds", "0"], "must be a whole number from 1, given '0'"),
        (["evaluate", "--model", "m", "--limit", "0"], "must be a whole number from 1, given '0'"),
        (["evaluate", "--model", "m", "--temperature", "-1"], "must be a number from 0, given '-1'"),
        (["evaluate", "--model", "m", "--temperature", "1e-40"], "must be 0 (greedy) or from 1e-6"),
        (["evaluate", "--model", "m", "--temperature", "1", "--seed", "-1"], "must be a whole number from "
                                                                             "0, given '-1'"),
        (["job", "warm-start", "--tier", "tiny", "--model", "base_small", "--out", "m", "--seed", "-1"], "must be a whole number from 0"),
        (["evaluate", "--model", "m", "--samples", "4"], "several need --temperature above 0"),
        (["evaluate", "--model", "m", "--prompt", "nope"], "unknown prompt 'nope': choose one of"),
        (["evaluate", "--model", "/no/model", "--benchmark", "aime"], "unknown benchmark 'aime'"),
        (["evaluate", "--model", "/no/model", "--benchmark", "gsm8k"], "/no/model"),
        (["job", "score", "--tier", "smoke", "--run", "alone-base_small-s42", "--runs-dir", "/no/runs"], "run generate first"),
        (["job", "generate", "--tier", "smoke", "--run", "alone-base_small-s42", "--runs-dir", "/no/runs"], "train the run first"),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_clear_error(tmp_path, arguments, says):
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k/test.jsonl").write_text('{"question": "1+1?", "answer": "#### 2"}\n')
    result = ftis(*arguments, cwd=tmp_path, FTIS_DATA=str(tmp_path), HF_HUB_OFFLINE="1", PYTHONPATH=str(ROOT))
    assert result.returncode == 2 and says in result.stderr and "Traceback" not in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["gsm8k"], "nothing was left behind"


def test_a_run_from_one_file_then_evaluate(tmp_path, make_config, tiny):
    """`ftis train` without Snakemake, quiet when not on a terminal, and its model through `ftis evaluate`."""
    settings = to_dict(make_config(iterations=2))
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    result = ftis("train", path, "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "" and "left" not in result.stderr, "no progress bar in a log"
    assert json.loads((tmp_path / "run/final.json").read_text())["method"] == "ftis"
    again = ftis("train", path, "--out", tmp_path / "run")
    assert again.returncode == 0 and "nothing to do" in again.stderr

    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k/test.jsonl").write_text((tiny / "data/ood.jsonl").read_text())
    result = ftis(
        "evaluate", "--model", tmp_path / "run/node0", "--benchmark", "gsm8k", "--limit", "8", "--prompt", "tiny-v1",
        "--max-new-tokens", "48", "--out", tmp_path / "eval", FTIS_DATA=str(tmp_path),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "gsm8k: accuracy" in result.stdout and "8 problems x 1" in result.stdout
    scores = json.loads((tmp_path / "eval/scores.json").read_text())
    result = scores["nodes"][0]["benchmarks"]["gsm8k"]
    assert 0 <= result["low"] <= result["accuracy"] <= result["high"] <= 1 and result["n"] == 8
    assert (
        scores["graders"]["math-verify"]
        and len(scores["generations"]["tests"]["gsm8k"]["data"]["sha256"]) == 64
    )
    header, *rows = [
        json.loads(line) for line in (tmp_path / "eval/generations.jsonl").read_text().splitlines()
    ]
    assert header["tests"]["gsm8k"]["prompt"] == "tiny-v1"
    assert len(rows) == 8 and all(row["tokens"] and row["finish"] in ("stop", "length") for row in rows)


@contextlib.contextmanager
def waiting(path, capsys, *command):
    """A command in a thread that waits for another to have written `path`; it goes on at the end of the
    block."""
    second = threading.Thread(target=main, args=(list(map(str, command)),))
    with state.only_writer(path):
        second.start()
        while f"{path.name}: another process is writing it" not in capsys.readouterr().err:
            assert second.is_alive()
            time.sleep(0.01)
        yield
    second.join(120)


def test_a_warm_start_waits_for_another_of_the_same_model(tmp_path, monkeypatch, capsys):
    """The orphan of a killed Snakemake would replace the folder while runs read it."""
    made, out = [], tmp_path / "model"
    monkeypatch.setattr(tiny_models, "make_model", lambda *_: made.append(1))
    command = ("job", "warm-start", "--tier", "smoke", "--model", "base_small", "--seed", "1", "--out", out)
    with waiting(out, capsys, *command):
        assert not made
    assert made and not list(tmp_path.iterdir())


def test_answers_wait_for_another_job_that_gives_them(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results/smoke/runs/start-base_small-s1"
    shutil.copytree(tiny / "base", tmp_path / "results/smoke/models/base_small-s1")
    shutil.copytree(tiny / "data", tmp_path / "results/smoke/data")
    command = ("job", "generate", "--tier", "smoke", "--run", folder.name)
    with waiting(folder / "generations.jsonl", capsys, *command):
        assert not (folder / "generations.jsonl").exists()
    assert [p.name for p in folder.iterdir()] == ["generations.jsonl"]
    assert main([*command]) == 0 and "is finished; nothing to do" in capsys.readouterr().err


def test_a_model_that_is_not_there_leaves_nothing_behind(tmp_path, make_config):
    settings = to_dict(make_config())
    settings["nodes"][1]["model"] = str(tmp_path / "absent")
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    result = ftis("train", path, "--out", tmp_path / "run")
    assert result.returncode == 2 and f"no folder {tmp_path / 'absent'}" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_results_folder_that_cannot_be_written(tmp_path, make_config):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(to_dict(make_config())))
    (tmp_path / "file").write_text("in the way")
    result = ftis("train", path, "--out", tmp_path / "file" / "run")
    assert result.returncode == 2 and "can't be written" in result.stderr and "Traceback" not in result.stderr


def test_settings_lists_every_field_with_its_default():
    result = ftis("settings")
    assert result.returncode == 0
    assert "group_size  (integer; default 12)  G, completions a prompt." in result.stdout
    assert (
        "kl_estimator  (gen_theta | theta_gen_literal | k3_gen_theta | k3_code | is_theta_gen"
        in result.stdout
    )
