"""What the pages say is so: sizes, links, indexes, drift, and every Python block, which is run."""

import json
import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

import ftis
from ftis.method.kl import KL_REDUCTIONS
from ftis.method.methods import PAPER
from tests.small_runs import metrics, pair_config

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def blocks(page: str, language: str = "python") -> list[str]:
    """The fenced blocks of a page."""
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def unregistered(monkeypatch):
    """What an example registers is forgotten afterwards."""
    for registry in (ftis.METHODS, ftis.KL_ESTIMATORS):
        for name, value in list(registry.items()):
            monkeypatch.setitem(registry, name, value)
    before = {id(r): set(r) for r in (ftis.METHODS, ftis.KL_ESTIMATORS)}
    yield
    for registry in (ftis.METHODS, ftis.KL_ESTIMATORS):
        for name in set(registry) - before[id(registry)]:
            del registry[name]


@pytest.fixture
def checkout(tiny, tmp_path, monkeypatch) -> Path:
    """A folder like a checkout in which the examples' models are made; a run there has one iteration."""
    (tmp_path / "examples/made").mkdir(parents=True)
    for name in ("base", "coder", "data"):
        (tmp_path / "examples/made" / name).symlink_to(tiny / name)
    text = (ROOT / "examples/pair.yaml").read_text()
    (tmp_path / "examples/pair.yaml").write_text(text.replace("iterations: 20", "iterations: 1"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= 7_000


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link, _anchor in re.findall(r"\]\(([^)\s#]*)(#[^)\s]*)?\)", text):
        if "://" not in link:
            assert (page.parent / link).exists(), link


def test_no_page_is_left_out_of_the_site():
    shown = re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(shown) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_readme_in_python(checkout, capsys, unregistered):
    """Both of its blocks, as they stand."""
    known: dict = {}
    run, method = blocks("README.md")
    exec(run, known)
    assert "True\n" in capsys.readouterr().out and known["folder"].finished
    exec(method, {"__name__": __name__})
    assert ftis.METHODS["froot"].filtered


def test_extending_in_python(checkout, unregistered):
    known: dict = {"__name__": __name__}
    for block in blocks("docs/extending.md"):
        exec(block, known)
    root = ftis.METHODS["root"].weighting
    logp = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    # On one's own samples Alone's gradient: A over two tokens each.
    loss = ftis.grpo_loss(
        ftis.Objective.of(ftis.METHODS["froot"], threshold=50.0), logp, logp.detach(), torch.ones(1, 2) > 0,
        torch.tensor([3.0]), torch.tensor([True]), torch.tensor([2]),
    )  # fmt: skip
    loss.total.backward()
    assert logp.grad.tolist() == [[-1.5, -1.5]] and root.cap == 2.0


def test_a_method_from_a_file_trains_on_the_command_line(checkout):
    """--methods, a parameter of its own, and a weighting that is NoIS at power 0."""
    (checkout / "root.py").write_text(blocks("docs/extending.md")[0])
    short = {"prompts": 2, "group_size": 4, "validation.data": None, "threshold": None, "threads": 1}
    given = short | {"method": "root", "parameters": {"power": 0}}
    subprocess.run(
        [sys.executable, "-m", "ftis.cli", "--methods", "root.py", "train", "examples/pair.yaml", "--out", "root",
         *(f"--set={name}={json.dumps(value)}" for name, value in given.items())],
        check=True, env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    ftis.train(ftis.load_run("examples/pair.yaml", short, method="nois"), "nois")
    assert metrics(Path("root")) == metrics(Path("nois"))


def test_settings_page_is_that_of_the_classes():
    spec = spec_from_file_location("settings_page", ROOT / "workflow/scripts/settings_page.py")
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.PAGE.read_text() == made.page(), "run make schemas"


def test_methods_page_is_an_index():
    """Every method, KL estimator and filter rule has its row, and every test that is named is there."""
    text = (ROOT / "docs/methods.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE))
    assert {*PAPER, *ftis.KL_ESTIMATORS, *ftis.FILTER_RULES} <= rows
    assert all(f"`{name}`" in text for name in KL_REDUCTIONS)
    tests = (ROOT / "tests/method/test_objective.py").read_text()
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named and all(f"def {name}(" in tests for name in named)
    assert all(hasattr(ftis, name) for name in re.findall(r"`ftis\.(\w+)", text))


def test_api_page_has_the_face():
    assert sorted(
        re.findall(r"^::: ftis\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    ) == sorted(ftis.__all__)


def test_metrics_page_names_every_field(tiny):
    """And no field that isn't logged."""
    text = (ROOT / "docs/metrics.md").read_text()
    (line,) = ftis.Swarm(pair_config(tiny, iterations=1, prompts=2, group_size=2))
    entry = line.as_dict()["nodes"][0]
    rows = re.findall(r"^\| (`.*?) \|", text, flags=re.MULTILINE)
    named = {re.split(r"[.`]", name)[0] for row in rows for name in re.findall(r"`([a-z]\w*)", row)}
    assert named == entry.keys() - {"node", "name", "label"}


def test_paths_that_pages_name_exist():
    """Files of the repository in code spans, in the pages about its inside."""
    for page in (
        "docs/architecture.md",
        "docs/methods.md",
        "docs/models.md",
        "docs/extending.md",
        "CONTRIBUTING.md",
    ):
        for path in re.findall(
            r"`((?:ftis|workflow|tests|examples|benchmarks)/[\w/.-]*)`", (ROOT / page).read_text()
        ):
            assert "TIER" in path or (ROOT / path).exists(), (page, path)
