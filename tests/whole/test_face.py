"""The face, `import ftis`: every name has a docstring and stands in an example, and the examples are true.

Those of dictionaries are string literals below them, so the sources are read and not `__doc__`. They run
where the documentation says: beside examples/, with what examples/make_models.py makes.
"""

import ast
import doctest
import importlib
import inspect
import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import ftis

ROOT = Path(__file__).parents[2]


def docstring(name: str) -> str:
    """What is written at the definition of a name of the face."""
    module = importlib.import_module(f"ftis.{ftis._HOME[name]}")
    value = getattr(ftis, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return inspect.getdoc(value) or ""
    body = ast.parse(inspect.getsource(module)).body
    for statement, below in pairwise(body):
        targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        if any(isinstance(t, ast.Name) and t.id == name for t in targets) and isinstance(below, ast.Expr):
            return inspect.cleandoc(below.value.value)
    return ""


@pytest.fixture(scope="module")
def beside_examples(tiny, tmp_path_factory) -> Path:
    """A folder with examples/, the models made, and GSM8K's place held by problems of its format."""
    root = tmp_path_factory.mktemp("face")
    shutil.copytree(ROOT / "examples", root / "examples", ignore=shutil.ignore_patterns("made"))
    (root / "examples/made").mkdir()
    for name in ("base", "coder", "data"):
        (root / "examples/made" / name).symlink_to(tiny / name)
    (root / "paper_figures").symlink_to(ROOT / "paper_figures")
    (root / "data/gsm8k").mkdir(parents=True)
    shutil.copyfile(tiny / "data/validation.jsonl", root / "data/gsm8k/test.jsonl")
    return root


@pytest.mark.parametrize("name", ftis.__all__)
def test_every_name_has_a_docstring(name):
    assert len(docstring(name)) > 15


def test_every_name_stands_in_an_example():
    examples = "\n".join(
        example.source
        for name in ftis.__all__
        for example in doctest.DocTestParser().get_examples(docstring(name))
    )
    assert [name for name in ftis.__all__ if f"ftis.{name}" not in examples] == []


@pytest.mark.parametrize("name", [name for name in ftis.__all__ if ">>>" in docstring(name)])
def test_examples_are_true(name, beside_examples, tmp_path, monkeypatch):
    for entry in beside_examples.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FTIS_DATA", str(tmp_path / "data"))
    parser, known = doctest.DocTestParser(), {"ftis": ftis, "torch": torch}
    for given in ("Terms",) if name in ("NoWeight", "VIS", "TIS") else ():
        exec("".join(e.source for e in parser.get_examples(docstring(given))), known)
    test = parser.get_doctest(docstring(name), known, name, None, 0)
    said: list[str] = []
    result = doctest.DocTestRunner().run(test, out=said.append)
    assert result.attempted and not result.failed, "".join(said)
    assert os.getcwd() == str(tmp_path)
