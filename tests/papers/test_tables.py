"""Tables 1 and 2, made from run folders that the test writes with numbers worked by hand."""

import math
import re
from pathlib import Path

import pandas as pd
import pytest

from ftis.errors import UserError
from ftis.papers.ftis.published import paper_values
from ftis.papers.ftis.table1 import over_runs, rate, settings_of
from ftis.papers.ftis.table2 import pct, table2, table2_tex
from ftis.papers.ftis.tables import make_table
from ftis.study.latex import escape
from ftis.study.runs import load_scores
from ftis.suite.suite import Suite
from tests.written_runs import TIER, write_run, write_size_pair


@pytest.fixture
def size_pair(tmp_path):
    return write_size_pair(tmp_path)


def peft_runs(root: Path, alone: list[float], together: list[float]) -> list[Path]:
    made = []
    for seed, a, b in zip((42, 1, 2), alone, together, strict=False):
        for role in ("base_small", "base_small_lora"):
            made.append(write_run(root, f"alone-{role}-s{seed}", lambda *_: 0.5, lambda _, a=a: a))
        made.append(
            write_run(root, f"peft_small-ftis-g50-vertical-s{seed}", lambda *_: 0.5, lambda _, b=b: b)
        )
    return made


def test_table2_by_hand(tmp_path):
    runs = peft_runs(tmp_path, [0.40, 0.42, 0.44], [0.45, 0.44, 0.49])
    make_table("table2", TIER, runs, tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "table2.csv")
    assert table["role"].tolist() == ["base_small", "base_small_lora"]
    row = table.iloc[0]
    assert (row["paper_alone"], row["paper_ftis"], row["paper_difference"]) == (0.406, 0.43, 0.024)
    assert (row["paper_alone_pct"], row["paper_difference_pct"]) == (40.6, 2.4)
    assert (row["alone"], row["ftis"]) == (pytest.approx(0.42), pytest.approx(0.46))
    assert row["alone_sd"] == pytest.approx(0.02)
    # gains 0.05, 0.02, 0.05: mean 0.04, sd sqrt(0.0003), half width 4.3027 * 0.01 = 0.043027
    assert row["difference"] == pytest.approx(0.04)
    assert (row["difference_low"], row["difference_high"]) == (
        pytest.approx(-0.003027, abs=1e-6),
        pytest.approx(0.083027, abs=1e-6),
    )
    assert (row["difference_pct"], row["difference_low_pct"], row["difference_high_pct"]) == (4.0, -0.3, 8.3)
    assert (row["seeds"], row["benchmark"], row["problems"]) == (3, "tiny", 500)
    text = (tmp_path / "out" / "table2.tex").read_text()
    assert r"$42.0 \pm 2.0$" in text and r"$+4.0$ $[-0.3, 8.3]$" in text
    # By math-verify (1 + x) / 2: 0.70, 0.71, 0.72 alone; half the gains, so half the interval.
    assert (row["math_verify_alone"], row["math_verify_ftis"]) == (pytest.approx(0.71), pytest.approx(0.73))
    assert row["math_verify_difference_high"] == pytest.approx(0.041513, abs=1e-6)
    assert (row["math_verify_difference_pct"], row["math_verify_difference_low_pct"]) == (2.0, -0.2)
    assert r"\emph{by math-verify} & $71.0 \pm 1.0$ & $73.0 \pm" in text
    assert r"$+2.0$ $[-0.2, 4.2]$" in text and "below it math-verify's own verdict" in text
    assert "(12, 5.2, 7 " in text and "11.2, 5.2, 6 points" in text
    check_latex(text, 8)


def test_table2_with_one_seed_has_no_interval(tmp_path):
    make_table("table2", TIER, peft_runs(tmp_path, [0.5], [0.4]), tmp_path / "out")
    row = pd.read_csv(tmp_path / "out" / "table2.csv").iloc[0]
    assert (
        row["difference_pct"] == -10.0 and math.isnan(row["difference_low"]) and math.isnan(row["alone_sd"])
    )
    text = (tmp_path / "out" / "table2.tex").read_text()
    assert "nan" not in text and "[" not in text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    check_latex(text, 8)


def test_table2_of_scores_without_math_verify_is_ours_alone(tmp_path):
    """As published tables were made before its verdict was kept."""
    scores = load_scores(peft_runs(tmp_path, [0.5, 0.6], [0.4, 0.7]), TIER)
    for old in (scores.drop(columns="math_verify"), scores.assign(math_verify=math.nan)):
        table = table2(old)
        assert not [column for column in table if "math_verify" in column]
        assert "math-verify" not in table2_tex(table, TIER)


def test_scores_from_before_math_verifys_verdict_say_how_to_grade_again(tmp_path):
    runs = peft_runs(tmp_path, [0.5], [0.4])
    path = runs[0] / "scores.json"
    path.write_text(path.read_text().replace("math_verify", "something_else"))
    with pytest.raises(UserError, match=r"lacks 'math_verify'; delete it and make it with `snakemake"):
        load_scores(runs, TIER)


def test_table2_pairs_by_seed(tmp_path):
    runs = peft_runs(tmp_path, [0.40, 0.90], [0.45, 0.95])
    table = table2(load_scores([run for run in runs if run.name != "alone-base_small-s1"], TIER))
    assert table["seeds"].tolist() == [1, 2]
    assert table.loc[0, "ftis"] == pytest.approx(0.45)


def test_table2_rows_are_in_the_papers_order(tmp_path):
    runs = [
        write_run(tmp_path, run.slug, lambda *_: 0.5)
        for run in reversed(Suite.load().artefact_runs("table2", TIER, 1))
    ]
    table = table2(load_scores(runs, TIER))
    assert table["setup"].tolist() == [s for s in Suite.load().grid.setups for _ in range(2)]
    assert table["paper_alone"].tolist() == [
        *(0.406, 0.575, 0.410, 0.478, 0.406, 0.410),
        *(0.575, 0.478, 0.406, 0.412, 0.575, 0.500),
    ]
    assert table["paper_ftis"].tolist() == [
        *(0.470, 0.540, 0.470, 0.590, 0.403, 0.410),
        *(0.520, 0.530, 0.430, 0.430, 0.513, 0.560),
    ]


def test_headline_gains_are_recorded_as_stated_and_as_in_table2():
    values = paper_values()
    headline = values[values["artefact"] == "headline"]
    stated = headline.loc[headline["quantity"] == "gain_stated", "value"].astype(float)
    assert stated.tolist() == [0.12, 0.052, 0.07]
    numbers = values.set_index(["artefact", "pair", "role", "quantity"])["value"]
    for row in headline[headline["quantity"] == "gain_in_table2"].itertuples():
        alone, ftis = (float(numbers["table2", row.pair, row.role, name]) for name in ("alone", "ftis"))
        assert float(row.value) == pytest.approx(ftis - alone)


def test_percent_is_rounded_as_a_reader_would():
    assert [pct(x) for x in (0.4065, 0.406, -0.0005, -0.00049, 1.0, math.nan)] == [
        *("40.7", "40.6", "-0.1", "0.0", "100.0", ""),
    ]


def test_table1_reads_the_runs_settings(size_pair, tmp_path):
    make_table("table1", TIER, size_pair, tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "table1.csv").set_index("setting")
    assert list(table) == ["paper", "source", "ours"]
    assert table.loc["completions a prompt, G", "paper"] == "12"
    assert table.loc["completions a prompt, G", "ours"] == "12"
    assert table.loc["seeds", "ours"] == "1, 42"
    # No run of the two methods here filters.
    assert table.loc["filter threshold, g", "ours"] == table.loc["learning rate, LoRA", "ours"] == "-"
    assert table.loc["learning rate, full", "paper"] == "1e-6"
    check_latex((tmp_path / "out" / "table1.tex").read_text(), 4)


def test_table1_without_runs_shows_those_of_the_tier(tmp_path):
    for tier in ("tiny", "paper"):
        make_table("table1", tier, [], tmp_path / tier)
        check_latex((tmp_path / tier / "table1.tex").read_text(), 4)
    table = pd.read_csv(tmp_path / "paper" / "table1.csv").set_index("setting")["ours"]
    assert table["filter threshold, g"] == "5, 10, 50, 100"
    assert "Qwen/Qwen2.5-1.5B" in table["models"]


def test_every_row_of_table1_reads_a_setting():
    config = Suite.load().resolve(TIER, Suite.load().run("peft_small-ftis-g50-vertical-s42"))
    values = paper_values()
    assert set(values.loc[values["artefact"] == "table1", "quantity"]) == set(settings_of(config))


def test_settings_that_differ_name_their_runs():
    values = {
        "alone-base_small-s42": "16",
        "alone-base_small-s1": "16",
        "size_base-ftis-g50-vertical-s42": "24",
        "size_base-ftis-g50-horizontal-s42": "16",
    }
    assert over_runs(values, listed=False) == "24 (size_base vertical); 16 (otherwise)"
    assert rate(1e-6) == "1e-6" and rate(1.5e-4) == "1.5e-4"


def check_latex(text: str, columns: int) -> None:
    """Braces and environments close, every row has its columns, nothing is left unescaped."""
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    opened = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    assert not re.search(r"(?<!\\)[#_~^<>]", re.sub(r"\$[^$]*\$|\\begin\{tabular\}.*", "", text))
    assert not re.search(r"(?<!\\)%", text.split("\n", 1)[1])
    body = text.split(r"\midrule")[1].split(r"\bottomrule", maxsplit=1)[0]
    cells = {
        len(re.findall(r"(?<!\\)&", line)) for line in body.splitlines() if line and not line.startswith("\\")
    }
    assert cells == {columns - 1}


def test_escape():
    assert escape(r"50 % & a_b #1 {x} \ <") == (r"50 \% \& a\_b \#1 \{x\} \textbackslash{} \textless{}")


def test_missing_scores_name_the_path_and_the_target(tmp_path):
    runs = peft_runs(tmp_path, [0.4], [0.5])
    (runs[2] / "scores.json").unlink()
    with pytest.raises(UserError, match=r"snakemake -c1 results/tiny/runs/peft_small-ftis-.*/scores\.json"):
        make_table("table2", TIER, runs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_thresholds_do_not_fit_table2(tmp_path):
    runs = peft_runs(tmp_path, [0.4], [0.5])
    runs.append(write_run(tmp_path, "peft_small-ftis-g5-vertical-s42", lambda *_: 0.5))
    with pytest.raises(UserError, match="g = 5, 50"):
        make_table("table2", TIER, runs, tmp_path / "out")


def test_unknown_table(tmp_path):
    with pytest.raises(UserError, match="unknown table 'table9'"):
        make_table("table9", TIER, [], tmp_path)
