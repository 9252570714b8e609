"""Tidy tables, ablations and what is read back, from small runs that were really trained and graded."""

import json
import math
import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest

from ftis.config import RUN_CONFIG
from ftis.errors import UserError
from ftis.papers.ftis.claim_tables import make_claims
from ftis.runs.answers import BenchmarkSpec, Sampling, generate, run_subjects, start_subjects
from ftis.runs.scores import score
from ftis.runs.train import train
from ftis.settings import parse
from ftis.study import ablation
from ftis.study.answers import DIFFERING, disagreements
from ftis.study.economics import make_economics
from ftis.study.runs import load_scores, run_columns
from ftis.study.tidy import make_tidy, read_tidy
from ftis.suite.suite import Suite
from ftis.tasks.problems import Dataset

SLUGS = (
    "start-base_small-s42",
    "alone-base_small-s42",
    "size_base-tis-vertical-s42",
    "size_base-ftis-g50-vertical-s42",
    "size_base-tis-vertical+c1-s42",
    "size_base-ftis-g50-vertical+c1-s42",
)
MODELS = {"base_small": "base", "base_large": "coder"}


@pytest.fixture(scope="module")
def root(tiny, tmp_path_factory):
    """A results folder of the tiny tier with the runs SLUGS: two iterations, a few problems."""
    root = tmp_path_factory.mktemp("tidy")
    shutil.copytree(tiny / "data", root / "results/tiny/data")
    for slug in SLUGS:
        run, folder = Suite.load().run(slug), root / "results/tiny/runs" / slug
        config = parse(RUN_CONFIG, {
            "name": slug, "seed": run.seed, "method": "alone" if run.method == "start" else run.method,
            "threshold": run.threshold, "iterations": 2, "prompts": 4, "group_size": 4, "threads": 1,
            "cap": 1 if run.variant else 2,
            "nodes": [{"name": r, "model": str(tiny / MODELS[r]), "label": r.upper()} for r in Suite.load().roles(run)],
            "train": {"name": "tiny", "path": str(tiny / "data/train.jsonl")},
            "validation": {
                "data": {"name": "tiny", "path": str(tiny / "data/validation.jsonl"), "limit": 8},
                "every": 1, "max_new_tokens": 40, "samples": 2,
            },
            "rollout": {"max_new_tokens": 40},
        }, slug)  # fmt: skip
        if run.method == "start":
            subjects, facts = start_subjects(config)
        else:
            train(config, folder)
            subjects, facts = run_subjects(folder)
        greedy = BenchmarkSpec(
            Dataset(name="tiny", path=str(tiny / "data/ood.jsonl"), split="test", limit=6), "tiny-v1", 40
        )
        tests = {"ood": greedy, "ood_sampled": replace(greedy, samples=3, temperature=1.0)}
        tests |= {"id": replace(greedy, data=replace(greedy.data, path=str(tiny / "data/validation.jsonl")))}
        tests |= {"id_sampled": replace(tests["id"], samples=3, temperature=1.0)}
        generate(subjects, tests, folder / "generations.jsonl", Sampling(1), facts=facts)
        score(folder / "generations.jsonl", folder / "scores.json")
    return root


@pytest.fixture
def folders(root, monkeypatch):
    monkeypatch.chdir(root)
    return {slug: root / "results/tiny/runs" / slug for slug in SLUGS}


@pytest.fixture
def tables(folders, root):
    chosen = [folders[slug] for slug in SLUGS if "+" not in slug]
    make_tidy("tiny", chosen, root / "out")
    return read_tidy(root / "out/tidy")


def test_tables_hold_what_the_runs_wrote(folders, tables):
    slug = "size_base-ftis-g50-vertical-s42"
    lines = [json.loads(line) for line in (folders[slug] / "metrics.jsonl").read_text().splitlines()]
    large = [line["nodes"][1] for line in lines]
    runs = tables["runs"].set_index(["run", "node"])
    row = runs.loc[slug, 1]
    assert (row["setup"], row["method"], row["g"], row["split"], row["variant"]) == (
        "size_base", "ftis", "50", "vertical", "",
    )  # fmt: skip
    assert (row["role"], row["label"], row["seed"], row["iterations"]) == ("base_large", "S base", 42, 2)
    assert row["tokens_generated"] == sum(node["tokens_generated"] for node in large[1:])
    assert row["bytes_sent"] == sum(node["bytes_sent"] for node in large[1:]) > 0
    assert row["seconds_sample"] == pytest.approx(sum(n["seconds"]["sample"] for n in large[1:]), abs=2e-3)
    training = tables["training"].set_index(["run", "node", "step"])
    assert list(training.loc[slug, 1].index) == [1, 2]
    assert training.loc[(slug, 1, 2), "reward"] == pytest.approx(large[2]["reward"], abs=1e-4)
    assert training.loc[(slug, 1, 1), "filtered_foreign"] == pytest.approx(
        large[1]["filtered"]["foreign"], abs=1e-4
    )
    validation = tables["validation"].set_index(["run", "node", "step"])
    assert list(validation.loc[slug, 0].index) == [0, 1, 2]
    assert validation.loc[(slug, 1, 0), "greedy"] == pytest.approx(
        large[0]["validation"]["greedy"]["accuracy"], abs=1e-4
    )
    assert tuple(validation.loc[(slug, 0, 0), ["problems", "samples"]]) == (8, 2)
    # One column of accuracy, two decodings of each benchmark; a model before training has scores alone.
    scores = tables["scores"].set_index(["run", "node", "benchmark", "decoding"])
    stored = json.loads((folders[slug] / "scores.json").read_text())["nodes"][1]["benchmarks"]
    sampled = scores.loc[slug, 1, "ood", "sampled"]
    assert sampled["accuracy"] == pytest.approx(stored["ood_sampled"]["accuracy"], abs=1e-5)
    assert (sampled["problems"], sampled["samples"]) == (6, 3)
    other = stored["ood_sampled"]["math_verify"]
    assert sampled["math_verify"] == pytest.approx(other["accuracy"], abs=1e-5)
    assert (sampled["only_ours"], sampled["only_math_verify"]) == (
        other["only_ours"],
        other["only_math_verify"],
    )
    start = tables["runs"][tables["runs"]["method"] == "start"]
    assert list(start["role"]) == ["base_small"] and list(start["iterations"]) == [0]
    # Models are called what the tier calls them now.
    assert set(tables["runs"]["label"]) == set(tables["completions"]["label"]) == {"XS base", "S base"}
    assert "start-base_small-s42" not in set(tables["validation"]["run"])
    assert len(scores.loc["start-base_small-s42"]) == 4


def test_tables_of_too_few_runs_are_tables_still(folders, root):
    make_tidy("tiny", [folders["start-base_small-s42"]], root / "few")
    tables = read_tidy(root / "few/tidy")
    assert tables["training"].empty and len(tables["scores"]) == 4
    make_claims(tables, "tiny", root / "few")
    assert set(pd.read_csv(root / "few/claims.csv")["verdict"]) == {"undecided"}
    (root / "few/tidy/scores.csv").write_text("run,node\n")
    with pytest.raises(UserError, match="lacks the column 'benchmark'"):
        read_tidy(root / "few/tidy")


def test_completions_are_the_same_questions_for_all(tables):
    shown = tables["completions"]
    assert set(shown["method"]) == {"start", "alone", "tis", "ftis"}
    for _, same in shown.groupby(["benchmark", "id"]):
        assert same["question"].nunique() == 1 and len(same) == 2 + 2 * 2
    assert shown.groupby("benchmark")["id"].nunique().tolist() == [3, 3]
    assert all(str(row.gold) in row.text for row in shown.itertuples() if row.correct)
    assert shown["math_verify"].isin([True, False]).all()


def test_disagreements_are_the_answers_that_one_grader_accepts(folders, tables):
    """Counted over all completions; a few of each kind are kept, each as it stands in its run's
    graded.jsonl."""
    scores, kept = tables["scores"], tables["disagreements"]
    kinds = kept.drop_duplicates(["benchmark", "ours", "math_verify", "reason"])
    for ours, column in ((True, "only_ours"), (False, "only_math_verify")):
        assert kinds.loc[kinds["ours"] == ours, "kind_rows"].sum() == scores[column].sum()
    assert len(kept) and (kept["ours"] != kept["math_verify"]).all()
    assert (kept.groupby(["benchmark", "ours", "math_verify", "reason"]).size() <= DIFFERING).all()
    for row in kept.itertuples():
        lines = [json.loads(line) for line in (folders[row.run] / "graded.jsonl").read_text().splitlines()]
        here = {"node": row.node, "test": row.test, "id": row.id, "sample": row.sample}
        (line,) = [line for line in lines if here.items() <= line.items()]
        assert (line["answer"], line["math_verify"], line["reason"]) == (
            row.ours,
            row.math_verify,
            row.reason,
        )
        assert (line["gold"], line["extracted"] or "", line["read"]) == (row.gold, row.extracted, row.read)


def test_the_most_frequent_answers_of_a_kind_are_kept(tmp_path):
    """Seven answers of one kind, the last seen twice as often; a fault counts as one grader's rejection."""
    row = {
        "node": 0,
        "test": "ood",
        "sample": 0,
        "gold": "5",
        "answer": True,
        "format": True,
        "reason": "equal",
    }
    lines = [{**row, "id": f"q{n}", "extracted": "5", "math_verify": False, "read": ""} for n in range(7)]
    lines += [
        lines[-1] | {"test": "ood_sampled"},
        lines[0] | {"math_verify": None},
        lines[0] | {"math_verify": True},
    ]
    (tmp_path / "graded.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    kept = disagreements([tmp_path])
    assert [(row["id"], row["rows"], row["kind_rows"]) for row in kept if row["math_verify"] is False] == [
        *(("q6", 2, 8), ("q0", 1, 8), ("q1", 1, 8), ("q2", 1, 8), ("q3", 1, 8)),
    ]
    assert [(row["id"], row["kind_rows"]) for row in kept if row["math_verify"] is None] == [("q0", 1)]
    (tmp_path / "graded.jsonl").write_text('{"node": 0}\n')
    with pytest.raises(UserError, match="graded.jsonl: lacks 'answer'; delete it and make it with"):
        disagreements([tmp_path])


def test_unfinished_runs_are_named(folders, root):
    (root / "results/tiny/runs/alone-base_small-s1").mkdir(exist_ok=True)
    with pytest.raises(UserError, match=r"alone-base_small-s1/final.json: no such file; make it with"):
        make_tidy("tiny", [root / "results/tiny/runs/alone-base_small-s1"], root / "none")
    assert not (root / "none").exists()


def test_a_node_that_was_lost_is_reported_and_the_rest_of_its_run_read(folders, root, tmp_path):
    slug = "size_base-ftis-g50-vertical-s42"
    run = tmp_path / slug
    shutil.copytree(folders[slug], run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[2]["lost"] = [lines[2]["nodes"].pop()["node"]]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("final.json", "scores.json"):
        written = json.loads((run / name).read_text())
        written["nodes"].pop()
        if name == "final.json":
            written["lost"] = [{"node": 1, "name": "base_large", "label": "BASE_LARGE", "iteration": 2}]
            written["nodes"][0]["distrusted"] = [{"node": 1, "name": "base_large", "iteration": 2}]
        (run / name).write_text(json.dumps(written))
    chosen = [folders["alone-base_small-s42"], folders["start-base_small-s42"], run]
    make_tidy("tiny", chosen, tmp_path / "out")
    tables = read_tidy(tmp_path / "out/tidy")
    runs = tables["runs"].set_index(["run", "node"])
    assert runs.loc[slug, "iterations"].to_list() == [2, 1]
    facts = json.loads((tmp_path / "out/provenance.json").read_text())
    assert facts["lost_nodes"] == f"{slug}: base_large from iteration 2"
    assert facts["distrusted_nodes"] == f"{slug}: base_large by base_small from iteration 2"
    make_claims(tables, "tiny", tmp_path / "out")
    make_economics(tables, "tiny", tmp_path / "out")


def test_provenance_lists_what_the_runs_were_made_with(folders, tables, root):
    facts = json.loads((root / "out/provenance.json").read_text())
    final = json.loads((folders["alone-base_small-s42"] / "final.json").read_text())
    assert facts["torch"] == final["provenance"]["packages"]["torch"]
    assert facts["seeds"] == "42" and "tier=tiny" in facts["command"]
    assert re.search(r"math-verify 0\.9\.\d+, ", facts["graded_with"])


def test_an_ablation_compares_seed_by_seed(folders):
    runs = [folder for slug, folder in folders.items() if not slug.startswith("start")]
    data = ablation.ablation_data("cap", "tiny", runs).set_index(["method", "variant", "role"])
    scores = load_scores(runs, "tiny")
    scores = scores[scores["benchmark"] == "id_sampled"].set_index(["run", "role"])["accuracy"]
    changed = scores["size_base-tis-vertical+c1-s42", "base_small"]
    row = data.loc["tis", "c1", "base_small"]
    assert row["accuracy"] == changed and (row["label"], row["model"]) == ("C = 1", "XS base")
    assert row["difference"] == pytest.approx(changed - scores["size_base-tis-vertical-s42", "base_small"])
    assert row["over_alone"] == pytest.approx(changed - scores["alone-base_small-s42", "base_small"])
    assert math.isnan(row["difference_low"]), "one seed has no interval"
    assert math.isnan(data.loc["tis", "", "base_small"]["difference"])
    assert math.isnan(data.loc["tis", "c1", "base_large"]["over_alone"]), "that model alone is not there"
    assert 0 <= data.loc["ftis", "c1", "base_large"]["filtered"] <= 1
    assert math.isnan(row["filtered"])
    final = json.loads((runs[0] / "final.json").read_text())
    assert row["commit"].startswith((final["provenance"]["git"]["commit"] or "")[:12])
    assert row["processor"] == final["provenance"]["cpu"]


MADE = {"commit": "0123abc", "processor": "a CPU"}


def test_more_prompts_are_held_against_alone_as_it_would_train(folders, monkeypatch):
    """Doubling what the swarm deals out gives a node what it would have alone; alone with twice that is a
    row."""
    rows = []
    for slug, value in (
        ("alone-base_small-s1", 0.5),
        ("alone-base_small+b2-s1", 0.7),
        ("size_base-nois-vertical-s1", 0.4),
        ("size_base-nois-vertical+b2-s1", 0.6),
    ):
        row = {**run_columns(slug), "node": 0, "role": "base_small", "label": "XS", "benchmark": "id"}
        rows.append({**row, "accuracy": value})
    monkeypatch.setattr(ablation, "load_scores", lambda *_: pd.DataFrame(rows))
    monkeypatch.setattr(ablation, "load_curves", lambda *_: pd.DataFrame(columns=["run", "node", "value"]))
    monkeypatch.setattr(ablation, "_made", lambda _: dict.fromkeys((row["run"] for row in rows), MADE))
    data = ablation.ablation_data("batch", "tiny", [folders[SLUGS[1]]]).set_index(["method", "variant"])
    assert data.loc["nois", "b2"]["over_alone"] == pytest.approx(0.1)
    assert data.loc["alone", "b2"]["over_alone"] == pytest.approx(0.2)


def test_paired_intervals_by_hand(folders, monkeypatch):
    """Differences of 0.02, 0.04, 0.06 over three seeds: mean 0.04, t(2) = 4.3027, half 4.3027 x 0.02 / sqrt
    3."""
    rows = []
    for seed, alone, tis, capped in ((1, 0.5, 0.50, 0.52), (2, 0.6, 0.58, 0.62), (3, 0.7, 0.69, 0.75)):
        for slug, value in (
            (f"alone-base_small-s{seed}", alone),
            (f"size_base-tis-vertical-s{seed}", tis),
            (f"size_base-tis-vertical+c1-s{seed}", capped),
        ):
            row = {**run_columns(slug), "node": 0, "role": "base_small", "label": "XS", "benchmark": "id"}
            rows.append({**row, "accuracy": value})
    monkeypatch.setattr(ablation, "load_scores", lambda *_: pd.DataFrame(rows))
    empty = pd.DataFrame(columns=["run", "node", "value"])
    monkeypatch.setattr(ablation, "load_curves", lambda *_: empty)
    monkeypatch.setattr(ablation, "_made", lambda _: dict.fromkeys((row["run"] for row in rows), MADE))
    data = ablation.ablation_data("cap", "tiny", [folders[SLUGS[1]]]).set_index(["method", "variant"])
    row = data.loc["tis", "c1"]
    half = 4.302653 * 0.02 / math.sqrt(3)
    assert row["difference"] == pytest.approx(0.04)
    assert row["difference_low"] == pytest.approx(0.04 - half, abs=1e-6)
    assert row["difference_high"] == pytest.approx(0.04 + half, abs=1e-6)
    assert row["over_alone"] == pytest.approx(0.03)
    assert data.loc["tis", ""]["over_alone"] == pytest.approx(-0.01)


def test_an_ablation_is_drawn(folders, tmp_path):
    runs = [folder for slug, folder in folders.items() if not slug.startswith("start")]
    ablation.make_ablation("cap", "tiny", runs, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"ablation-cap.{end}" for end in ("csv", "pdf", "png")
    ]
    # Without variants there is nothing to tell a line's runs apart by but method and g.
    data = ablation.ablation_data("cap", "tiny", runs)
    # A model that is in no swarm of the ablation, only alone, has no panel: it would be empty.
    bystander = data[data["method"] == "alone"].iloc[:1].assign(role="coder_small", model="XS coder")
    figure = ablation.draw(pd.concat([data, bystander], ignore_index=True))
    assert all(axis.lines for axis in figure.axes) and "XS coder" not in {a.get_title() for a in figure.axes}
    assert {t.get_text() for t in figure.axes[0].get_yticklabels()} >= {"TIS: as in the grid", "TIS: C = 1"}
    plain = [folder for folder in runs if "+" not in folder.name]
    figure = ablation.draw(ablation.ablation_data("filter", "tiny", plain))
    assert "TIS" in {t.get_text() for t in figure.axes[0].get_yticklabels()}
    with pytest.raises(UserError, match="unknown ablation 'caps'"):
        ablation.make_ablation("caps", "tiny", runs, tmp_path)
    with pytest.raises(UserError, match="no model alone to compare with"):
        ablation.make_ablation("cap", "tiny", [folders["size_base-tis-vertical-s42"]], tmp_path)


def test_ablations_are_of_this_grid():
    assert set(Suite.load().ablations("tiny")) == set(Suite.load().grid.ablations)
