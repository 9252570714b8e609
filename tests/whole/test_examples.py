"""The examples run as they stand: settings, script, notebook."""

import json
import runpy
import shutil
from pathlib import Path

import pytest

import ftis

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tiny, tmp_path, monkeypatch) -> Path:
    """A folder like a checkout in which the examples' models are made."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("made"))
    (tmp_path / "examples/made").mkdir()
    for there, name in (("tok", "tokenizer"), ("base", "base"), ("coder", "coder"), ("data", "data")):
        (tmp_path / "examples/made" / name).symlink_to(tiny / there)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_models_are_made_by_one_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from make_models import make_models

    make_models(Path("made"), steps=2)
    policies = [ftis.load_policy(f"made/{name}", device="cpu") for name in ("base", "coder")]
    assert policies[0].tokenizer.get_vocab() == policies[1].tokenizer.get_vocab()


@pytest.mark.parametrize("name", ["pair", "alone"])
def test_settings_train(name, here):
    run = ftis.load_run(
        f"examples/{name}.yaml", {"validation.data": None}, iterations=1, prompts=2, group_size=2
    )
    assert ftis.train(run, f"results/{name}").finished


def shorter(settings: Path) -> None:
    """An iteration instead of twenty."""
    text = settings.read_text()
    assert "iterations: 20" in text
    settings.write_text(text.replace("iterations: 20", "iterations: 1"))


def test_script(here, monkeypatch, capsys):
    shorter(here / "examples/pair.yaml")
    shorter(here / "examples/alone.yaml")
    monkeypatch.syspath_prepend(str(here / "examples"))
    runpy.run_path("examples/train_in_memory.py", run_name="__main__")
    said = capsys.readouterr().out
    assert "pair, iteration 1: reward base" in said and "alone, base: " in said


def test_notebook(here, monkeypatch, capsys):
    """Its code cells one after the other, as a kernel runs them."""
    shorter(here / "examples/pair.yaml")
    monkeypatch.syspath_prepend(str(here / "examples"))
    cells = json.loads((here / "examples/first_steps.ipynb").read_text())["cells"]
    known: dict = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), known)
    assert "F-TIS" in capsys.readouterr().out
    assert known["folder"].finished
