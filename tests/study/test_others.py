"""A method that somebody else adds stands wherever the paper's own do: grid, figures, tables, exact study,
report."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftis.errors import UserError
from ftis.method.filters import Far
from ftis.method.methods import METHODS, PAPER, Method, register
from ftis.papers.ftis.claim_tables import make_claims
from ftis.papers.ftis.report import make_report
from ftis.papers.ftis.tables import make_table
from ftis.study import plots
from ftis.study.economics import economics
from ftis.study.exact import figures, problems, tables, training
from ftis.study.exact.cases import THRESHOLDS, G, cases
from ftis.study.exact.tables import TABLES, over_problems
from ftis.study.figures import figure_data
from ftis.study.tidy import make_tidy, read_tidy
from ftis.suite.suite import FOLDER, Suite
from tests.written_runs import TIER, write_run

CONFIG = Path(__file__).parents[2] / "workflow" / "config"


@dataclass(frozen=True)
class Root:
    """sg(min(sqrt(r), C)) R A: TIS with half of the log-ratio."""

    cap: float = 2.0

    def __call__(self, t):
        return t.ratio.sqrt().clamp(max=self.cap).detach() * t.surrogate(t.x)


@pytest.fixture
def others(monkeypatch, tmp_path):
    """Root with and without the filter, registered for one test, in a suite that has not been asked for its
    runs yet."""
    shutil.copytree(CONFIG, tmp_path / "config")
    monkeypatch.setenv(FOLDER, str(tmp_path / "config"))
    yield [register("root", Method("Root", Root())), register("froot", Method("F-Root", Root(), Far()))]
    for name in [name for name in METHODS if name not in PAPER]:
        del METHODS[name]


def write_runs(root: Path, artefact: str) -> list[Path]:
    return [
        write_run(root, run.slug, lambda role, step: 0.5 + step / 100)
        for run in Suite.load().artefact_runs(artefact, TIER, 1)
        if not (root / "results" / TIER / "runs" / run.slug).exists()
    ]


def labels(figure) -> set[str]:
    return {text.get_text() for text in figure.legends[0].get_texts()}


def test_looks_are_chosen_that_no_other_has(others):
    assert (
        len({m.colour for m in METHODS.values()}) == len({m.marker for m in METHODS.values()}) == len(METHODS)
    )
    assert register("root", Method("Root", Root())) is METHODS["root"]  # as a plugin that is loaded twice
    own = register("own", Method("Own", Root(cap=1), colour="#123456", marker="8"))
    assert (own.colour, own.marker) == ("#123456", "8")
    with pytest.raises(UserError, match="there is one of that name"):
        register("root", Method("Root", Root(cap=1)))
    many = [register(f"m{k}", Method(f"M{k}", Root(cap=k + 3))) for k in range(20)]
    assert all(method.colour and method.marker for method in many)


def test_they_are_drawn_beside_those_that_filter_as_they_do(others, tmp_path):
    for artefact, shown in (("fig2", ["Root"]), ("fig3", ["Root", "F-Root"]), ("fig1", [])):
        folders = write_runs(tmp_path / artefact, artefact)
        data = figure_data(artefact, TIER, folders)
        assert [name for name in data["series"].unique() if "Root" in name] == shown
        assert labels(plots.draw(artefact, data)) == set(data["series"])
    looks = plots.series_looks(data := figure_data("fig3", TIER, write_runs(tmp_path / "again", "fig3")))
    assert len({(look["color"], look["marker"]) for look in looks.values()}) == data["series"].nunique()


def test_the_exact_study_has_them(others, monkeypatch):
    """Its blocks on methods, on thresholds of those that filter, and on training."""
    make = problems.make_problem
    monkeypatch.setattr(problems, "PROBLEMS", 1)
    monkeypatch.setattr(problems, "DISTANCES", (1.0,))
    monkeypatch.setattr(training, "ITERATIONS", 5)
    monkeypatch.setattr(training, "STARTS", (("hard", 1.0),))
    monkeypatch.setattr(problems, "make_problem", lambda seed, _: make(seed, vocabulary=3, length=2))
    chosen = [case for case in cases() if case.block in ("methods", "threshold", "alone")]
    monkeypatch.setattr(tables, "cases", lambda: chosen)
    made = {
        name: over_problems(compute(), keys, spread)
        for name, (compute, keys, spread) in TABLES.items()
        if name in ("exact", "exact_training")
    }
    exact = made["exact"].set_index(["block", "method"]).sort_index()
    assert set(exact.loc[("methods", "froot")]["g"]) == {G}
    assert len(exact.loc[("threshold", "froot")]) == len(problems.KINDS) * len(THRESHOLDS)
    # Half of a log-ratio is neither nothing nor all of it.
    bias = exact.xs("methods")["relative_bias"].groupby("method").mean()
    assert len({round(bias[name], 6) for name in ("nois", "root", "tis")}) == 3
    names = {method.label for method in METHODS.values()}
    assert labels(figures.bias(made["exact"])) == names - {"Alone"}
    assert labels(figures.training(made["exact_training"])) == names
    rows = figures.filter_map(made["exact"]).axes
    assert any("F-Root - Root" in axis.get_ylabel() for axis in rows)


def test_a_filter_whose_weighting_is_no_method_is_held_against_nothing(others):
    del METHODS["root"]
    blocks = {case.block for case in cases() if case.method == "froot"}
    assert blocks == {"methods", "split"}


def finished(folder: Path) -> Path:
    """Add what training and scoring record besides what figures need."""
    spent = {"tokens_generated": 100, "tokens_trained": 50, "bytes_sent": 400, "bytes_received": 400}
    spent |= {"seconds": {"sample": 1.0}, "accuracy": 0.5, "entropy": 1.0, "grad_norm": 1.0, "kl": {}}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["nodes"] = [{**node, **spent} for node in line["nodes"]]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    scores = json.loads((folder / "scores.json").read_text())
    for score in (score for node in scores["nodes"] for score in node["benchmarks"].values()):
        score |= {"problems": 500, "samples": 1}
        score["math_verify"] |= {"faults": 0, "only_ours": 0, "only_math_verify": 0}
    (folder / "scores.json").write_text(json.dumps(scores))
    made = {"git": None, "python": "3", "cpu": "one", "cpus": 1, "gpus": [], "packages": {}}
    nodes = [{"name": node["name"]} for node in scores["nodes"]]
    (folder / "final.json").write_text(json.dumps({"recipe": "r", "provenance": made, "nodes": nodes}))
    (folder / "graded.jsonl").write_text("")
    return folder


def test_tables_claims_and_the_report_have_them(others, tmp_path, monkeypatch):
    folders = [finished(folder) for folder in write_runs(tmp_path, "fig3")]
    out = tmp_path / "out"
    plots.make_figure("fig3", TIER, folders, out)
    make_table("table1", TIER, folders, out)
    # These runs hold no answers.
    monkeypatch.setattr("ftis.study.tidy.completions", lambda *_: [])
    make_tidy(TIER, folders, out)
    found = read_tidy(out / "tidy")
    assert {"root", "froot"} <= set(found["runs"]["method"])
    make_claims(found, TIER, out)
    economics(found).to_csv(out / "economics.csv", index=False)
    page = tmp_path / "report.html"
    make_report(TIER, out, None, page)
    sections = dict(re.findall(r'<section id="(\w+)".*?>(.*?)</section>', page.read_text(), flags=re.DOTALL))
    for method in others:
        for section in ("runs", "paper", "figures", "economics"):
            assert re.search(rf"(?<![-\w]){method.label}\b", sections[section]), (method.label, section)
