"""Figures, drawn from run folders that the test writes with numbers worked by hand."""

import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from ftis.errors import UserError
from ftis.method.methods import METHODS
from ftis.stats import t_interval
from ftis.study import plots
from ftis.study.figures import figure_data, figure_note, series_names, summarise
from ftis.study.runs import load_curves, load_scores
from ftis.study.style import shade
from ftis.suite.suite import Suite
from tests.written_runs import TIER, write_run, write_size_pair

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
    return write_size_pair(tmp_path)


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
    data = figure_data("fig1", TIER, size_pair)
    assert set(data["decoding"]) == {"greedy"} and set(data["samples"]) == {1}
    before = [sample_too(folder) for folder in size_pair]
    data = figure_data("fig1", TIER, size_pair)
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
    assert set(figure_data("fig10", TIER, several)["decoding"]) == {"greedy", "sampled"}
    plots.make_figure("fig10", TIER, several, tmp_path)
    # One run without samples: a row of some of the curves would mislead.
    (size_pair[0] / "metrics.jsonl").write_text(before[0])
    assert set(figure_data("fig1", TIER, size_pair)["decoding"]) == {"greedy"}


# ---------------------------------------------------------------- tidy tables


def test_curves_are_tidy(size_pair):
    curves = load_curves(size_pair, TIER)
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
    assert set(load_curves(size_pair, TIER, {"reward"})["metric"]) == {"reward"}


def test_scores_are_tidy(size_pair):
    scores = load_scores(size_pair, TIER)
    assert len(scores) == 2 * 4 * 2
    assert set(scores["benchmark"]) == {"id", "ood"}
    assert set(scores.loc[scores["benchmark"] == "id", "accuracy"]) == {0.9}


def test_t_interval_by_hand():
    # mean 2, sd 1, n 3: 2 +- 4.3027 / sqrt(3)
    low, high = t_interval([1.0, 2.0, 3.0])
    assert (low, high) == (pytest.approx(2 - 2.48416, abs=1e-4), pytest.approx(2 + 2.48416, abs=1e-4))
    assert all(map(math.isnan, t_interval([1.0])))


def test_band_is_the_range_below_five_seeds_and_t_from_five_on():
    def curve(values):
        return pd.DataFrame(
            {"series": "F-TIS", "role": "base_small", "step": 5, "seed": range(len(values)), "value": values}
        )

    three = summarise(curve([0.1, 0.2, 0.6])).iloc[0]
    assert (three["seeds"], three["low"], three["high"]) == (3, 0.1, 0.6)
    assert three["mean"] == pytest.approx(0.3)
    # mean 0.3, sd sqrt(0.1 / 4), n 5, t 2.7764: half width 0.19632
    five = summarise(curve([0.1, 0.2, 0.3, 0.4, 0.5])).iloc[0]
    assert (five["mean"], five["low"], five["high"]) == (
        pytest.approx(0.3),
        pytest.approx(0.10368, abs=1e-5),
        pytest.approx(0.49632, abs=1e-5),
    )


def test_a_step_that_one_seed_lacks_is_left_out():
    data = pd.DataFrame(
        {"series": "NoIS", "role": "r", "step": [0, 5, 0], "seed": [1, 1, 2], "value": [0.1, 0.9, 0.3]}
    )
    assert summarise(data)["step"].tolist() == [0]


def test_series_are_named_by_what_varies():
    def names(*rows):
        return series_names(pd.DataFrame(rows, columns=["method", "g", "split"])).tolist()

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
    summary = summarise(table).set_index(["series", "role", "step"])
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
    data = figure_data(figure, TIER, runs)
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
        looks = plots.series_looks(figure_data(figure, TIER, write_figure_runs(tmp_path / figure, figure, 1)))
        for kinds in (("color", "linestyle"), ("marker", "markerfacecolor")):
            assert len({tuple(look[k] for k in kinds) for look in looks.values()}) == len(looks), figure


def test_one_colour_and_one_marker_a_method():
    assert len({m.marker for m in METHODS.values()}) == len(METHODS)
    for one, other in combinations([m.colour for m in METHODS.values()], 2):
        assert math.dist(to_rgb(one), to_rgb(other)) > 0.25, (one, other)
    shades = [shade(METHODS["ftis"].colour, k / 3) for k in range(4)]
    assert shade(METHODS["ftis"].colour, 0.5).upper() == METHODS["ftis"].colour
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
    data = figure_data("fig1", TIER, size_pair)
    note = figure_note(data, summarise(data))
    assert note == (
        "Tier tiny; 2 seeds (1, 42); line: mean, band: min to max over seeds; "
        "1024 validation problems (s.e. of a greedy point up to 1.6 points)."
    )
    one = data[data["seed"] == 42]
    assert "1 seed (42);" in (text := figure_note(one, summarise(one))) and "band" not in text


# ---------------------------------------------------------------- errors


def test_missing_metrics_name_the_path_and_the_target(size_pair, tmp_path):
    (size_pair[0] / "metrics.jsonl").unlink()
    with pytest.raises(UserError) as error:
        plots.make_figure("fig1", TIER, size_pair, tmp_path / "out")
    assert str(size_pair[0] / "metrics.jsonl") in str(error.value)
    assert f"snakemake -c1 results/{TIER}/runs/alone-base_small-s42/metrics.jsonl" in str(error.value)
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
        load_curves(size_pair, TIER)


def test_an_unwritable_folder(size_pair, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="can't be written"):
        plots.make_figure("fig1", TIER, size_pair, tmp_path / "file")
