"""Published tables are what the published tidy tables give."""

import csv
import importlib.util
import io
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from ftis.papers.ftis.claim_tables import make_claims
from ftis.papers.ftis.table2 import table2
from ftis.study.economics import make_economics
from ftis.study.exact.findings import findings
from ftis.study.exact.tables import TABLES
from ftis.study.tidy import read_tidy

PUBLISHED = Path(__file__).parents[2] / "paper_figures/published"
TIERS = sorted(p.name for p in PUBLISHED.iterdir() if (p / "tidy").is_dir()) if PUBLISHED.exists() else []


@pytest.fixture(params=TIERS)
def tier(request):
    return request.param


def read(path_or_text) -> pd.DataFrame:
    return pd.read_csv(path_or_text, dtype=str, keep_default_na=False)


def assert_same_table(made: pd.DataFrame, stored: pd.DataFrame) -> None:
    """Equal texts; numbers to what their rounding in the tidy tables leaves."""
    assert list(made) == list(stored) and len(made) == len(stored)
    for column in made:
        numbers = [pd.to_numeric(frame[column], errors="coerce") for frame in (made, stored)]
        assert_frame_equal(numbers[0].to_frame(), numbers[1].to_frame(), rtol=1e-3, atol=2e-5)
        texts = [frame[column][numbers[1].isna()] for frame in (made, stored)]
        assert list(texts[0]) == list(texts[1]), column


def test_claims_and_economics_are_those_of_the_tidy_tables(tier, tmp_path):
    tables = read_tidy(PUBLISHED / tier / "tidy")
    make_claims(tables, tier, tmp_path)
    make_economics(tables, tier, tmp_path)
    for name in ("claims", "claims_components", "economics", "economics_paper"):
        assert_same_table(read(tmp_path / f"{name}.csv"), read(PUBLISHED / tier / f"{name}.csv"))


def test_table2_is_that_of_the_tidy_scores(tier):
    tables = read_tidy(PUBLISHED / tier / "tidy")
    scores = tables["scores"][tables["scores"]["decoding"] == "greedy"].rename(columns={"problems": "n"})
    runs = tables["runs"][["run", "node", "setup", "method", "g", "split", "seed", "role", "label"]]
    wanted = {"alone", "ftis"}
    merged = scores.merge(runs[runs["method"].isin(wanted) & runs["g"].isin(["", "50"])], on=["run", "node"])
    made = table2(merged).to_csv(index=False, lineterminator="\n")
    assert_same_table(read(io.StringIO(made)), read(PUBLISHED / tier / "table2.csv"))


@pytest.mark.skipif(not (PUBLISHED / "exact").is_dir(), reason="the exact study is not published")
def test_the_exact_findings_are_those_of_its_tables():
    folder = PUBLISHED / "exact"
    tables = {name: pd.read_csv(folder / f"{name}.csv") for name in TABLES}
    made = findings(tables).to_csv(index=False, float_format="%.4g", lineterminator="\n")
    made, stored = read(io.StringIO(made)), read(folder / "exact_findings.csv")
    # Standard errors are over problems, which the tables have only the means of.
    errors = pd.to_numeric(stored.pop("se")).dropna()
    assert len(errors) > len(stored) / 2 and (errors >= 0).all()
    assert list(made) == list(stored) and len(made) == len(stored)
    for column in set(made) - {"value"}:
        assert list(made[column]) == list(stored[column]), column
    # The tables are rounded to four digits, and a crossing is interpolated between two of their rows.
    numbers = [pd.to_numeric(frame["value"]) for frame in (made, stored)]
    assert_frame_equal(numbers[0].to_frame(), numbers[1].to_frame(), rtol=2e-2, atol=1e-3)
    git = json.loads((folder / "provenance.json").read_text())["git"]
    assert not git["dirty"] and git["commit"] in (folder / "README.md").read_text()


@pytest.mark.skipif("tiny" not in TIERS, reason="no results of the tiny tier are published")
def test_pages_show_the_published_claims():
    """docs/results.md has the whole table, README.md the verdicts."""
    path = PUBLISHED.parents[1] / "workflow/scripts/publish.py"
    publish = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("publish", path))
    spec.loader.exec_module(publish)
    table = publish.claims_table(PUBLISHED / "tiny/claims.csv")
    results = (PUBLISHED.parents[1] / "docs/results.md").read_text()
    assert table in results
    assert publish.with_claims(results.replace(table, "old"), table) == results
    readme = (PUBLISHED.parents[1] / "README.md").read_text()
    shown = re.findall(r"^\| (\d+) [^|]*\| (\w+) \|", readme, flags=re.MULTILINE)
    claims = pd.read_csv(PUBLISHED / "tiny/claims.csv", dtype=str)
    assert shown == list(zip(claims["claim"], claims["verdict"]))


@pytest.mark.skipif("tiny" not in TIERS, reason="no results of the tiny tier are published")
def test_tables_of_the_notes_are_those_of_the_ablations():
    """Each "effect [low, high]" in a table of docs/tiny.md stands in the ablation's CSV."""
    notes = (PUBLISHED.parents[1] / "docs/tiny.md").read_text()
    sections = re.findall(r"^## Ablation `(\w+)`.*?$(.*?)(?=^## )", notes, flags=re.DOTALL | re.MULTILINE)
    assert {name for name, _ in sections} == {
        path.stem.removeprefix("ablation-") for path in (PUBLISHED / "tiny").glob("ablation-*.csv")
    }
    number = r"-?\d+\.\d"
    for name, text in sections:
        table = pd.read_csv(PUBLISHED / f"tiny/ablation-{name}.csv")
        there = set()
        for effect in ("difference", "over_alone"):
            columns = 100 * table[[effect, f"{effect}_low", f"{effect}_high"]].dropna()
            there |= {
                tuple(f"{value:.1f}".replace("-0.0", "0.0") for value in row) for row in columns.to_numpy()
            }
        rows = "\n".join(line for line in text.splitlines() if line.startswith("|"))
        shown = re.findall(rf"({number}) \[({number}), ({number})\]", rows)
        assert shown and set(shown) <= there, (name, set(shown) - there)


def test_published_files_are_small_and_name_their_commit(tier):
    facts = json.loads((PUBLISHED / tier / "provenance.json").read_text())
    assert len(facts["commit"]) == 40 and f"tier={tier}" in facts["command"]
    for path in (PUBLISHED / tier).rglob("*"):
        assert path.stat().st_size <= 500_000, path
    assert facts["commit"] in (PUBLISHED / tier / "README.md").read_text()


def test_published_ablations_are_of_one_commit_each(tier):
    """They may be of another commit than the tier's tables, and say of which."""
    for path in (PUBLISHED / tier).glob("ablation-*.csv"):
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        assert len({row["commit"] for row in rows}) == 1 and len(rows[0]["commit"]) == 12, path
        assert all(row["processor"] for row in rows), path
        for end in ("png", "pdf"):
            assert path.with_suffix(f".{end}").is_file(), path
