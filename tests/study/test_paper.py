"""Figures and tables, drawn from run folders that the test writes with numbers worked by hand."""

import json
import math
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from ftis.errors import UserError
from ftis.method.methods import METHODS
from ftis.study import paper, plots
from ftis.suite.suite import Suite
from tests.written_runs import TIER, write_run

FIGURES = [name for name in Suite.load().grid.artefacts if name.startswith("fig")]


def learning_curve(slug: str, step_count: int = 50):
    """A plausible curve for drawings: rises, levels off, wobbles; keyed by the run's name."""
    run = Suite.load().run(slug)
    rng = np.random.default_rng([run.seed, *map(ord, run.cell)])
    level = {"nois": 0.62, "vis": 0.68, "tis": 0.76, "fnois": 0.79, "fvis": 0.77, "ftis": 0.83, "alone": 0.85}
    top = level[run.method] + 0.01 * math.log10(run.threshold or 50) + rng.normal(0, 0.02)
    noise = rng.normal(0, 0.012, size=(len(Suite.load().roles(run)), step_count + 1))

    def accuracy(role: str, step: int) -> float:
        start = 0.5 + 0.04 * ("large" in role)
        mean = start + (top - start) * (1 - math.exp(-step / 12)) - (run.split == "horizontal") * step / 1500
        return min(1.0, mean + float(noise[Suite.load().roles(run).index(role), step]))

    return accuracy


def write_figure_runs(root: Path, artefact: str, seeds: int, **options) -> list[Path]:
    return [
        write_run(root, run.slug, learning_curve(run.slug), steps=range(0, 51, 5), **options)
        for run in Suite.load().artefact_runs(artefact, TIER, seeds)
    ]


@pytest.fixture
def size_pair(tmp_path):
    """Alone and NoIS on the size pair, two seeds: role and step decide the accuracy, seed 1 adds 0.1."""

    def made(slug, base):
        extra = 0.1 if slug.endswith("-s1") else 0.0
        return write_run(
            tmp_path, slug, lambda role, step: base + step / 100 + 0.05 * (role == "base_large") + extra
        )

    return [
        made(f"{cell}-s{seed}", base)
        for cell, base in (
            ("alone-base_small", 0.3),
            ("alone-base_large", 0.3),
            ("size_base-nois-vertical", 0.2),
        )
        for seed in (42, 1)
    ]


def sample_too(folder: Path) -> str:
    """Give a run's validation samples half as good as the greedy answers; what it held before."""
    before = (folder / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in before.splitlines()]
    for node in (n for line in lines for n in line["nodes"] if n["validation"]):
        greedy = node["validation"]["greedy"]
        node["validation"]["sampled"] = {**greedy, "accuracy": greedy["accuracy"] / 2, "n": 2048}
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return before


def test_sampled_accuracy_is_drawn_below_greedy_where_every_run_has_it(size_pair, tmp_path):
    data = paper.figure_data("fig1", TIER, size_pair)
    assert set(data["decoding"]) == {"greedy"} and set(data["samples"]) == {1}
    before = [sample_too(folder) for folder in size_pair]
    data = paper.figure_data("fig1", TIER, size_pair)
    at = data.set_index(["decoding", "run", "node", "step"])["value"]
    assert list(at["sampled"]) == pytest.approx([value / 2 for value in at["greedy"]])
    assert set(data.loc[data["decoding"] == "sampled", "samples"]) == {2}
    figure = plots.draw("fig1", data)
    panels = [axis for axis in figure.axes if axis.get_lines()]
    assert [axis.get_ylabel() for axis in panels][::2] == [
        "Greedy validation accuracy (%)",
        "T = 1 validation accuracy (%)",
    ]
    several = write_figure_runs(tmp_path / "more", "fig10", 2)  # lines named at their ends
    for folder in several:
        sample_too(folder)
    assert set(paper.figure_data("fig10", TIER, several)["decoding"]) == {"greedy", "sampled"}
    plots.make_figure("fig10", TIER, several, tmp_path)
    # One run without samples: a row of some of the curves would mislead.
    (size_pair[0] / "metrics.jsonl").write_text(before[0])
    assert set(paper.figure_data("fig1", TIER, size_pair)["decoding"]) == {"greedy"}


# ---------------------------------------------------------------- tidy tables


def test_curves_are_tidy(size_pair):
    curves = paper.load_curves(size_pair, TIER)
    row = curves.query(
        "run == 'size_base-nois-vertical-s1' and node == 1 and step == 10 and metric == 'greedy.accuracy'"
    )
    assert row.to_dict("records") == [
        {
            "run": "size_base-nois-vertical-s1",
            "setup": "size_base",
            "method": "nois",
            "g": "",
            "split": "vertical",
            "variant": "",
            "seed": 1,
            "node": 1,
            "role": "base_large",
            "label": Suite.load().tier(TIER).models["base_large"].label,
            "step": 10,
            "metric": "greedy.accuracy",
            "value": pytest.approx(0.45),
        }
    ]
    foreign = curves[curves["metric"] == "filtered.foreign"]
    # 2 seeds x (1 + 1 + 2 nodes) x steps 1..10
    assert len(foreign) == 80 and set(foreign["value"]) == {0.25}
    assert set(paper.load_curves(size_pair, TIER, {"reward"})["metric"]) == {"reward"}


def test_scores_are_tidy(size_pair):
    scores = paper.load_scores(size_pair, TIER)
    assert len(scores) == 2 * 4 * 2
    assert set(scores["benchmark"]) == {"id", "ood"}
    assert set(scores.loc[scores["benchmark"] == "id", "accuracy"]) == {0.9}


def test_t_interval_by_hand():
    # mean 2, sd 1, n 3: 2 +- 4.3027 / sqrt(3)
    low, high = paper.t_interval([1.0, 2.0, 3.0])
    assert (low, high) == (pytest.approx(2 - 2.48416, abs=1e-4), pytest.approx(2 + 2.48416, abs=1e-4))
    assert all(map(math.isnan, paper.t_interval([1.0])))


def test_band_is_the_range_below_five_seeds_and_t_from_five_on():
    def curve(values):
        return pd.DataFrame(
            {"series": "F-TIS", "role": "base_small", "step": 5, "seed": range(len(values)), "value": values}
        )

    three = paper.summarise(curve([0.1, 0.2, 0.6])).iloc[0]
    assert (three["seeds"], three["low"], three["high"]) == (3, 0.1, 0.6)
    assert three["mean"] == pytest.approx(0.3)
    # mean 0.3, sd sqrt(0.1 / 4), n 5, t 2.7764: half width 0.19632
    five = paper.summarise(curve([0.1, 0.2, 0.3, 0.4, 0.5])).iloc[0]
    assert (five["mean"], five["low"], five["high"]) == (
        pytest.approx(0.3),
        pytest.approx(0.10368, abs=1e-5),
        pytest.approx(0.49632, abs=1e-5),
    )


def test_a_step_that_one_seed_lacks_is_left_out():
    data = pd.DataFrame(
        {"series": "NoIS", "role": "r", "step": [0, 5, 0], "seed": [1, 1, 2], "value": [0.1, 0.9, 0.3]}
    )
    assert paper.summarise(data)["step"].tolist() == [0]


def test_series_are_named_by_what_varies():
    def names(*rows):
        return paper.series_names(pd.DataFrame(rows, columns=["method", "g", "split"])).tolist()

    alone, nois = ("alone", "", ""), ("nois", "", "vertical")
    assert names(alone, nois, ("ftis", "50", "vertical")) == ["Alone", "NoIS", "F-TIS"]
    assert names(nois, ("ftis", "50", "vertical"), ("ftis", "50", "horizontal")) == [
        "NoIS",
        "F-TIS, vertical",
        "F-TIS, horizontal",
    ]
    assert names(alone, ("ftis", "5", "vertical"), ("ftis", "50", "vertical")) == [
        "Alone",
        "F-TIS, g = 5",
        "F-TIS, g = 50",
    ]


# ---------------------------------------------------------------- figures


def test_the_csv_holds_what_the_runs_hold(size_pair, tmp_path):
    plots.make_figure("fig1", TIER, size_pair, tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "fig1.csv")
    asked = {"run", "seed", "role", "label", "method", "g", "split", "step", "metric", "value"}
    assert asked <= set(table)
    assert len(table) == 2 * 4 * 3
    assert set(table["series"]) == {"Alone", "NoIS"} and set(table["problems"]) == {1024}
    means = table.groupby(["series", "role", "step"])["value"].mean()
    assert means["Alone", "base_small", 0] == pytest.approx(0.35)
    assert means["Alone", "base_large", 10] == pytest.approx(0.5)
    assert means["NoIS", "base_large", 5] == pytest.approx(0.35)
    summary = paper.summarise(table).set_index(["series", "role", "step"])
    assert tuple(summary.loc[("NoIS", "base_small", 10), ["low", "high"]]) == pytest.approx((0.3, 0.4))


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_written_whole(figure, tmp_path):
    seeds = 2 if figure == "fig2" else 1
    runs = write_figure_runs(tmp_path, figure, seeds)
    out = tmp_path / "out"
    plots.make_figure(figure, TIER, runs, out)
    assert sorted(path.name for path in out.iterdir()) == [
        f"{figure}.{kind}" for kind in ("csv", "pdf", "png")
    ]
    with Image.open(out / f"{figure}.png") as image:
        assert image.info["dpi"][0] >= 149 and image.width > 1000
    pdf = (out / f"{figure}.pdf").read_bytes()
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf and b"CreationDate" not in pdf
    assert len(pd.read_csv(out / f"{figure}.csv")) == sum(
        11 * len(Suite.load().roles(Suite.load().run(folder.name))) for folder in runs
    )


def test_the_same_runs_give_the_same_bytes(size_pair, tmp_path):
    # Nor does it matter in which order, and how often, the runs are named.
    plots.make_figure("fig1", TIER, size_pair, tmp_path / "a")
    plots.make_figure("fig1", TIER, size_pair[::-1] + size_pair, tmp_path / "b")
    for kind in ("csv", "pdf", "png"):
        assert len({(tmp_path / out / f"fig1.{kind}").read_bytes() for out in "ab"}) == 1


@pytest.mark.parametrize("figure", ["fig2", "fig10", "fig12"])
def test_the_legend_lists_every_line_and_hides_none(figure, tmp_path):
    runs = write_figure_runs(tmp_path, figure, 2)
    if figure == "fig10":  # further curves of the pair are welcome: five in all
        runs += [
            write_run(tmp_path, f"alone-{role}-s42", lambda *_: 0.7) for role in ("base_small", "base_large")
        ]
    data = paper.figure_data(figure, TIER, runs)
    if figure == "fig2":  # long names shrink the title instead of running out of the picture
        data["label"] = "Some-Model-With-A-Long-Name-" + data["label"]
    drawing = plots.draw(figure, data)
    drawing.draw_without_rendering()
    (legend,) = drawing.legends
    assert [text.get_text() for text in legend.get_texts()] == list(data["series"].unique())
    box = legend.get_window_extent()
    bounds = drawing.bbox
    assert bounds.x0 <= box.x0 and box.x1 <= bounds.x1 and bounds.y0 <= box.y0
    for axis in drawing.axes:
        assert axis.get_tightbbox().y0 >= box.y1 and axis.get_xlabel() == "GRPO iteration"
    (note,) = [text for text in drawing.texts if text.get_text().startswith("Tier")]
    assert note.get_window_extent().y1 <= box.y0
    for text in drawing.texts:
        assert text.get_window_extent().x1 <= bounds.x1
    assert "%" in drawing.axes[0].get_ylabel()


def test_lines_of_a_figure_can_be_told_apart(tmp_path):
    for figure in ("fig2", "fig10", "fig12"):
        looks = plots.series_looks(
            paper.figure_data(figure, TIER, write_figure_runs(tmp_path / figure, figure, 1))
        )
        for kinds in (("color", "linestyle"), ("marker", "markerfacecolor")):
            assert len({tuple(look[k] for k in kinds) for look in looks.values()}) == len(looks), figure


def test_one_colour_and_one_marker_a_method():
    assert len({m.marker for m in METHODS.values()}) == len(METHODS)
    for one, other in combinations([m.colour for m in METHODS.values()], 2):
        assert math.dist(to_rgb(one), to_rgb(other)) > 0.25, (one, other)
    shades = [plots.shade(METHODS["ftis"].colour, k / 3) for k in range(4)]
    assert plots.shade(METHODS["ftis"].colour, 0.5).upper() == METHODS["ftis"].colour
    for one, other in combinations(shades, 2):
        assert math.dist(to_rgb(one), to_rgb(other)) > 0.15


def test_labels_move_apart_and_stay_inside():
    assert plots.spread([10.0, 10.0, 50.0], 4, 0, 100) == [10, 14, 50]
    assert plots.spread([98.0, 99.0, 99.5], 4, 0, 100) == [90, 94, 98]
    assert plots.spread([0.0, 1.0], 4, 0, 100) == [2, 6]


def test_y_axis_never_magnifies_noise():
    def limits(low, high):
        return plots.y_limits(pd.DataFrame({"mean": [low, high], "low": [low, high], "high": [low, high]}))

    assert limits(50.0, 51.0) == (45.5, 55.5)
    assert limits(0.0, 100.0) == (-2.0, 102.0)


def test_note_names_tier_seeds_and_band(size_pair):
    data = paper.figure_data("fig1", TIER, size_pair)
    note = paper.figure_note(data, paper.summarise(data))
    assert note == (
        "Tier tiny; 2 seeds (1, 42); line: mean, band: min to max over seeds; "
        "1024 validation problems (s.e. of a greedy point up to 1.6 points)."
    )
    one = data[data["seed"] == 42]
    assert "1 seed (42);" in (text := paper.figure_note(one, paper.summarise(one))) and "band" not in text


# ---------------------------------------------------------------- tables


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
    paper.make_table("table2", TIER, runs, tmp_path / "out")
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
    paper.make_table("table2", TIER, peft_runs(tmp_path, [0.5], [0.4]), tmp_path / "out")
    row = pd.read_csv(tmp_path / "out" / "table2.csv").iloc[0]
    assert (
        row["difference_pct"] == -10.0 and math.isnan(row["difference_low"]) and math.isnan(row["alone_sd"])
    )
    text = (tmp_path / "out" / "table2.tex").read_text()
    assert "nan" not in text and "[" not in text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    check_latex(text, 8)


def test_table2_of_scores_without_math_verify_is_ours_alone(tmp_path):
    """As published tables were made before its verdict was kept."""
    scores = paper.load_scores(peft_runs(tmp_path, [0.5, 0.6], [0.4, 0.7]), TIER)
    for old in (scores.drop(columns="math_verify"), scores.assign(math_verify=math.nan)):
        table = paper.table2(old)
        assert not [column for column in table if "math_verify" in column]
        assert "math-verify" not in paper.table2_tex(table, TIER)


def test_scores_from_before_math_verifys_verdict_say_how_to_grade_again(tmp_path):
    runs = peft_runs(tmp_path, [0.5], [0.4])
    path = runs[0] / "scores.json"
    path.write_text(path.read_text().replace("math_verify", "something_else"))
    with pytest.raises(UserError, match=r"lacks 'math_verify'; delete it and make it with `snakemake"):
        paper.load_scores(runs, TIER)


def test_table2_pairs_by_seed(tmp_path):
    runs = peft_runs(tmp_path, [0.40, 0.90], [0.45, 0.95])
    table = paper.table2(paper.load_scores([run for run in runs if run.name != "alone-base_small-s1"], TIER))
    assert table["seeds"].tolist() == [1, 2]
    assert table.loc[0, "ftis"] == pytest.approx(0.45)


def test_table2_rows_are_in_the_papers_order(tmp_path):
    runs = [
        write_run(tmp_path, run.slug, lambda *_: 0.5)
        for run in reversed(Suite.load().artefact_runs("table2", TIER, 1))
    ]
    table = paper.table2(paper.load_scores(runs, TIER))
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
    values = paper.paper_values()
    headline = values[values["artefact"] == "headline"]
    stated = headline.loc[headline["quantity"] == "gain_stated", "value"].astype(float)
    assert stated.tolist() == [0.12, 0.052, 0.07]
    numbers = values.set_index(["artefact", "pair", "role", "quantity"])["value"]
    for row in headline[headline["quantity"] == "gain_in_table2"].itertuples():
        alone, ftis = (float(numbers["table2", row.pair, row.role, name]) for name in ("alone", "ftis"))
        assert float(row.value) == pytest.approx(ftis - alone)


def test_percent_is_rounded_as_a_reader_would():
    assert [paper._pct(x) for x in (0.4065, 0.406, -0.0005, -0.00049, 1.0, math.nan)] == [
        *("40.7", "40.6", "-0.1", "0.0", "100.0", ""),
    ]


def test_table1_reads_the_runs_settings(size_pair, tmp_path):
    paper.make_table("table1", TIER, size_pair, tmp_path / "out")
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
        paper.make_table("table1", tier, [], tmp_path / tier)
        check_latex((tmp_path / tier / "table1.tex").read_text(), 4)
    table = pd.read_csv(tmp_path / "paper" / "table1.csv").set_index("setting")["ours"]
    assert table["filter threshold, g"] == "5, 10, 50, 100"
    assert "Qwen/Qwen2.5-1.5B" in table["models"]


def test_every_row_of_table1_reads_a_setting():
    config = Suite.load().resolve(TIER, Suite.load().run("peft_small-ftis-g50-vertical-s42"))
    values = paper.paper_values()
    assert set(values.loc[values["artefact"] == "table1", "quantity"]) == set(paper.settings_of(config))


def test_settings_that_differ_name_their_runs():
    values = {
        "alone-base_small-s42": "16",
        "alone-base_small-s1": "16",
        "size_base-ftis-g50-vertical-s42": "24",
        "size_base-ftis-g50-horizontal-s42": "16",
    }
    assert paper._over_runs(values, listed=False) == "24 (size_base vertical); 16 (otherwise)"
    assert paper._rate(1e-6) == "1e-6" and paper._rate(1.5e-4) == "1.5e-4"


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
    assert paper.escape(r"50 % & a_b #1 {x} \ <") == (r"50 \% \& a\_b \#1 \{x\} \textbackslash{} \textless{}")


# ---------------------------------------------------------------- errors


def test_missing_metrics_name_the_path_and_the_target(size_pair, tmp_path):
    (size_pair[0] / "metrics.jsonl").unlink()
    with pytest.raises(UserError) as error:
        plots.make_figure("fig1", TIER, size_pair, tmp_path / "out")
    assert str(size_pair[0] / "metrics.jsonl") in str(error.value)
    assert f"snakemake -c1 results/{TIER}/runs/alone-base_small-s42/metrics.jsonl" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_missing_scores_name_the_path_and_the_target(tmp_path):
    runs = peft_runs(tmp_path, [0.4], [0.5])
    (runs[2] / "scores.json").unlink()
    with pytest.raises(UserError, match=r"snakemake -c1 results/tiny/runs/peft_small-ftis-.*/scores\.json"):
        paper.make_table("table2", TIER, runs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("figure", "kept", "message"),
    [
        (
            "fig2",
            ["alone-base_small-s42", "alone-base_large-s42", "size_base-nois-vertical-s42"],
            "size_base-vis",
        ),
        ("fig1", ["size_base-nois-vertical-s42"], "alone-base_small"),
        ("fig99", ["size_base-nois-vertical-s42"], "unknown figure 'fig99'.*fig1"),
        (
            "fig4",
            ["size_base-nois-vertical-s42", "size_coder-ftis-g50-vertical-s42"],
            "shows the pair size_base",
        ),
        ("fig1", [], "no runs given"),
    ],
)
def test_runs_that_do_not_fit_a_figure(tmp_path, figure, kept, message):
    runs = [write_run(tmp_path, slug, lambda *_: 0.5) for slug in kept]
    with pytest.raises(UserError, match=message):
        plots.make_figure(figure, TIER, runs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_malformed_metrics_name_the_line(size_pair, tmp_path):
    with (size_pair[0] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "nodes"')
    with pytest.raises(UserError, match="metrics.jsonl, line 12: not valid JSON"):
        paper.load_curves(size_pair, TIER)


def test_two_thresholds_do_not_fit_table2(tmp_path):
    runs = peft_runs(tmp_path, [0.4], [0.5])
    runs.append(write_run(tmp_path, "peft_small-ftis-g5-vertical-s42", lambda *_: 0.5))
    with pytest.raises(UserError, match="g = 5, 50"):
        paper.make_table("table2", TIER, runs, tmp_path / "out")


def test_unknown_table_and_unwritable_folder(size_pair, tmp_path):
    with pytest.raises(UserError, match="unknown table 'table9'"):
        paper.make_table("table9", TIER, size_pair, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="can't be written"):
        plots.make_figure("fig1", TIER, size_pair, tmp_path / "file")


def test_nothing_is_left_half_written(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError):
        paper.write_files({tmp_path / "a": b"1", tmp_path / "b" / "c": b"2", tmp_path / "a" / "d": b"3"})
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []
