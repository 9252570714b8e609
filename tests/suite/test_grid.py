"""The grid and the tiers: names, counts, and settings of every run."""

import itertools
import json
import shutil
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import validate
from pydantic import TypeAdapter

from ftis.config import recipe_hash
from ftis.errors import UserError
from ftis.method.methods import METHODS
from ftis.settings import parse
from ftis.suite.grid import Grid, Run
from ftis.suite.made import answers_hash, made_hash, made_inputs, warm_inputs
from ftis.suite.suite import Suite
from ftis.suite.workflow import load_config, schemas

PAPER_RUNS = {
    *(f"alone-{size}" for size in ("base_small", "base_large", "coder_small", "coder_large")),
    *("alone-base_small_lora", "alone-base_large_lora"),
    *(f"size_base-{method}-vertical" for method in ("nois", "vis", "tis", "fnois-g50", "fvis-g50")),
    *(f"size_base-ftis-g{g}-vertical" for g in (5, 10, 50, 100)),
    "size_base-ftis-g50-horizontal",
    *(f"{pair}-ftis-g50-vertical" for pair in ("size_coder", "expertise_small", "expertise_large")),
    *(f"{pair}-ftis-g50-vertical" for pair in ("peft_small", "peft_large")),
}


def test_paper_grid_is_what_the_artefacts_need():
    assert {run.cell for run in Suite.load().runs("smoke", "paper", 1)} == PAPER_RUNS


def test_counts():
    assert len(Suite.load().runs("paper", "paper", 1)) == 21
    # 6 alone + 6 set-ups x 2 splits x (3 unfiltered + 3 filtered x 4 thresholds)
    assert len(Suite.load().runs("paper", "full", 1)) == 6 + 6 * 2 * (3 + 3 * 4) == 186
    runs = Suite.load().runs("paper", "full", 5)
    assert len(runs) == len({run.slug for run in runs}) == 930
    assert {run.seed for run in runs} == {42, 1, 2, 3, 4}
    assert set(Suite.load().runs("tiny", "paper", 3)) <= set(Suite.load().runs("tiny", "full", 3))


def test_each_artefact_needs_its_own_runs_only():
    needs = {
        name: {run.cell for run in Suite.load().artefact_runs(name, "tiny", 1)}
        for name in Suite.load().artefacts("tiny")
    }
    assert list(needs) == [*(f"fig{n}" for n in range(1, 13)), "table1", "table2"]
    assert needs["fig1"] == {"alone-base_small", "alone-base_large", "size_base-nois-vertical"}
    assert needs["fig2"] == needs["fig1"] | {"size_base-vis-vertical", "size_base-tis-vertical"}
    assert needs["fig10"] == {f"size_base-ftis-g{g}-vertical" for g in (5, 10, 50, 100)}
    assert needs["fig12"] == {"size_base-ftis-g50-vertical", "size_base-ftis-g50-horizontal"}
    assert needs["table1"] == set()
    assert len(needs["table2"]) == 12
    assert [Suite.load().reads(name) for name in ("fig4", "table2")] == ["metrics.jsonl", "scores.json"]


def test_every_listed_slug_round_trips():
    for run in Suite.load().runs("paper", "full", 2):
        assert Suite.load().run(run.slug) == run


@given(
    st.sampled_from(["size_base", "expertise_large", "peft_small"]),
    st.sampled_from([m for m in METHODS if m != "alone"]),
    st.one_of(st.integers(1, 10**6).map(float), st.floats(0.001, 1000)),
    st.sampled_from(["vertical", "horizontal"]),
    st.integers(0, 10**9),
    st.sampled_from(["", "code", "mini4_stale4"]),
)
def test_slugs_round_trip(setup, method, g, split, seed, variant):
    run = Run(setup, method, g if METHODS[method].filtered else None, split, seed, variant)
    assert Suite.load().run(run.slug) == run


def test_slugs_as_written():
    assert Run("size_base", "ftis", 5, "vertical", 42).slug == "size_base-ftis-g5-vertical-s42"
    assert Run("size_base", "ftis", 2.5, "vertical", 1).slug == "size_base-ftis-g2.5-vertical-s1"
    assert Run("base_large_lora", "alone", None, "vertical", 1).slug == "alone-base_large_lora-s1"
    assert Run("base_small", "start", None, "vertical", 1).slug == "start-base_small-s1"
    assert Run("base_small", "alone", None, "vertical", 1, "b2").slug == "alone-base_small+b2-s1"
    assert Run("size_base", "tis", None, "vertical", 1, "c1").slug == "size_base-tis-vertical+c1-s1"


@pytest.mark.parametrize(
    ("slug", "message"),
    [
        ("nonsense", "not a run's name"),
        ("size_bass-nois-vertical-s42", "unknown set-up 'size_bass': choose one of .*size_base"),
        ("size_base-gepo-vertical-s42", "unknown method 'gepo': choose one of .*ftis"),
        ("size_base-nois-diagonal-s42", "unknown split 'diagonal': choose one of horizontal, vertical"),
        ("size_base-alone-vertical-s42", "unknown method 'alone'"),
        ("alone-base_medium-s42", "unknown model 'base_medium': choose one of .*base_small"),
        ("size_base-ftis-vertical-s42", "needs its threshold"),
        ("size_base-tis-vertical+c3-s42", "unknown variant 'c3': choose one of .*c1"),
        ("start-base_small+c1-s42", "unknown variant 'c1'"),
        ("size_base-nois-g5-vertical-s42", "doesn't filter"),
        ("size_base-ftis-g05-vertical-s42", "write it size_base-ftis-g5-vertical-s42"),
        ("size_base-ftis-g1.2.3-vertical-s42", "not a number"),
        ("size_base-ftis-g5-vertical-s042", "write it size_base-ftis-g5-vertical-s42"),
    ],
)
def test_bad_slugs_say_what_exists(slug, message):
    with pytest.raises(UserError, match=message):
        Suite.load().run(slug)


@pytest.mark.parametrize("tier", Suite.load().tiers)
def test_every_run_of_a_tier_has_settings(tier):
    runs = Suite.load().runs(tier, "full", 2)
    hashes = set()
    for run in runs:
        config = Suite.load().resolve(tier, run)
        assert config.name == run.slug and config.seed == run.seed and config.threshold == run.threshold
        assert tuple(node.name for node in config.nodes) == Suite.load().roles(run)
        assert all((node.lora is not None) == node.name.endswith("_lora") for node in config.nodes)
        hashes.add(recipe_hash(config))
    assert len(hashes) == len(runs)


@pytest.mark.parametrize(
    ("cell", "prompts"),
    [
        ("alone-base_large", 16),
        ("size_base-ftis-g50-vertical", 24),
        ("size_coder-nois-vertical", 24),
        ("peft_large-ftis-g50-vertical", 24),
        ("expertise_small-ftis-g50-vertical", 16),
        ("expertise_large-ftis-g50-vertical", 16),
        ("size_base-ftis-g50-horizontal", 16),
    ],
)
def test_paper_batch_sizes(cell, prompts):
    assert Suite.load().resolve("paper", Suite.load().run(f"{cell}-s42")).prompts == prompts


def test_paper_settings():
    config = Suite.load().resolve("paper", Suite.load().run("peft_small-ftis-g50-vertical-s42"))
    full, lora = config.nodes
    assert (full.learning_rate, lora.learning_rate) == (1e-6, 1e-4)
    assert (lora.lora.r, lora.lora.alpha) == (128, 256)
    assert (full.model, full.revision) == (lora.model, lora.revision)
    assert (config.group_size, config.cap, config.eps, config.iterations) == (12, 2.0, 0.2, 50)
    assert config.validation.data.limit == 512 and config.validation.every == 5


def test_a_lora_node_starts_from_its_role_s_model():
    run = Suite.load().run("peft_small-ftis-g50-vertical-s7")
    assert [node.model for node in Suite.load().resolve("tiny", run).nodes] == [
        "results/tiny/models/base_small-s7"
    ] * 2
    assert made_inputs(Suite.load(), "tiny", run) == [
        "results/tiny/models/base_small-s7/warm.json",
        "results/tiny/data/train.jsonl",
        "results/tiny/data/validation.jsonl",
    ]
    assert made_inputs(Suite.load(), "paper", run) == []


def test_a_made_model_s_recipe_says_how_it_is_made():
    base, lora = Suite.load().resolve("tiny", Suite.load().run("peft_small-ftis-g50-vertical-s7")).nodes
    (coder,) = Suite.load().resolve("tiny", Suite.load().run("alone-coder_small-s7")).nodes
    (smoke,) = Suite.load().resolve("smoke", Suite.load().run("alone-base_small-s7")).nodes
    assert base.revision == lora.revision
    assert len({base.revision, coder.revision, smoke.revision}) == 3


def test_labels_are_not_part_of_the_recipe():
    config = Suite.load().resolve("smoke", Suite.load().run("alone-base_small-s42"))
    relabelled = replace(config, nodes=(replace(config.nodes[0], label="Extra small"),))
    slower = replace(config, nodes=(replace(config.nodes[0], learning_rate=1e-9),))
    assert recipe_hash(relabelled) == recipe_hash(config) != recipe_hash(slower)


def test_a_tier_has_the_runs_that_it_has_models_for():
    """The small tier has no coders."""
    assert {run.cell for run in Suite.load().runs("small", "paper", 1)} == {
        cell for cell in PAPER_RUNS if "coder" not in cell and "expertise" not in cell
    }
    assert Suite.load().artefacts("small") == (
        *(f"fig{n}" for n in (1, 2, 3, 4, 8, 9, 10, 11, 12)), "table1", "table2"
    )  # fmt: skip
    with pytest.raises(
        UserError, match="tier small has no model coder_small and no coder_large; it has base_small, "
                         "base_large, "
    ):  # fmt: skip
        Suite.load().resolve("small", Suite.load().run("size_coder-nois-vertical-s42"))
    with pytest.raises(UserError, match="fig5: tier small has no models for .*fig8"):
        Suite.load().artefact_runs("fig5", "small")
    with pytest.raises(UserError, match="unknown figure or table 'fig13'"):
        Suite.load().artefact_runs("fig13", "tiny")


def test_a_warm_started_model_is_made_once_a_seed_and_its_recipe_says_how(monkeypatch):
    full, lora = Suite.load().resolve("small", Suite.load().run("peft_small-ftis-g50-vertical-s7")).nodes
    assert full.model == lora.model == "results/small/models/base_small-s7"
    assert full.revision == lora.revision == made_hash(Suite.load(), "small", "base_small")
    assert made_hash(Suite.load(), "small", "base_small") != made_hash(Suite.load(), "small", "base_large")
    assert made_inputs(Suite.load(), "small", Suite.load().run("alone-base_large_lora-s1")) == [
        "results/small/models/base_large-s1/warm.json"
    ]
    assert warm_inputs(Suite.load(), "small", "base_small") == []
    assert warm_inputs(Suite.load(), "tiny", "base_small") == [
        "results/tiny/models/tokenizer/tokenizer.json",
        "results/tiny/data/validation.jsonl",
        "results/tiny/data/ood.jsonl",
    ]
    assert {run.slug for run in Suite.load().start_runs("small", 2)} == {
        f"start-base_{size}-s{seed}" for size in ("small", "large") for seed in (42, 1)
    }


NUMBERS = itertools.count()
"""What a tier's name stands for is read once a process."""


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Makes a tier of one that is there: `changed("small", node={...})` is its name, with those fields set
    anew."""
    shutil.copytree(Suite.load().folder, tmp_path / "config")
    monkeypatch.setenv("FTIS_SUITE", str(tmp_path / "config"))

    def make(tier, **fields):
        folder, name = tmp_path / "config/tiers", f"{tier}_changed{next(NUMBERS)}"
        given = yaml.safe_load((folder / f"{tier}.yaml").read_text())
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**given, **fields}))
        return name

    return make


def test_a_warm_start_s_precision_counts_where_it_is_not_the_default(changed):
    plain = made_hash(Suite.load(), "small", "base_small")
    assert (
        made_hash(Suite.load(), changed("small", node={"gradient_checkpointing": True}), "base_small")
        == plain
    )
    assert made_hash(Suite.load(), changed("small", node={"compute_dtype": "float32"}), "base_small") == plain
    assert (
        made_hash(Suite.load(), changed("small", node={"compute_dtype": "bfloat16"}), "base_small") != plain
    )
    # Tiny models are made in float32, whatever they are trained in.
    tiny = changed("tiny", node={"compute_dtype": "bfloat16"})
    assert made_hash(Suite.load(), tiny, "base_small") == made_hash(Suite.load(), "tiny", "base_small")


def test_answers_of_a_model_before_training_know_what_they_come_from(changed, monkeypatch, tmp_path):
    """Those of a trained run know it through its training."""

    def answers(tier, cell):
        return answers_hash(Suite.load(), tier, Suite.load().run(f"{cell}-s42"))

    def models(**fields):
        return {**paper["models"], "base_small": {**paper["models"]["base_small"], **fields}}

    paper = yaml.safe_load((Suite.load().folder / "tiers/paper.yaml").read_text())
    run, rollout = paper["run"], paper["run"]["rollout"]
    here = Suite.load().resolve("paper", Suite.load().run("alone-base_small-s42")).rollout.backend
    other_backend = {"transformers": "vllm", "vllm": "transformers"}[here]
    before = answers("paper", "start-base_small")
    for fields in (
        {"models": models(revision="0" * 40)},
        {"models": models(model="Qwen/Qwen2.5-0.5B")},
        {"node": {**paper["node"], "compute_dtype": "float32"}},
        {"run": {**run, "reward": "boxed"}},
        {"run": {**run, "rollout": {**rollout, "prompt": "tiny-v1"}}},
        {"run": {**run, "rollout": {**rollout, "backend": other_backend}}},
    ):
        tier = changed("paper", **fields)
        assert answers(tier, "start-base_small") != before, fields
        assert answers(tier, "alone-base_small") == answers("paper", "alone-base_small"), "its recipe differs"
        assert recipe_hash(
            Suite.load().resolve(tier, Suite.load().run("alone-base_small-s42"))
        ) != recipe_hash(Suite.load().resolve("paper", Suite.load().run("alone-base_small-s42")))
        if "models" in fields:
            assert answers(tier, "start-base_large") == answers("paper", "start-base_large")
    for fields in (
        {"models": models(label="Small")},
        {"node": {**paper["node"], "gradient_checkpointing": False}},
        {"run": {**run, "iterations": 3, "rollout": {**rollout, "max_batch": 7}}},
    ):
        assert answers(changed("paper", **fields), "start-base_small") == before, fields
    monkeypatch.setenv("FTIS_MODELS", json.dumps({"Qwen/Qwen2.5-1.5B": str(tmp_path)}))
    assert answers(changed("paper"), "start-base_small") != before
    named = {name: {**test, "prompt": "chat-v1"} for name, test in paper["benchmarks"].items()}
    other = {**run, "rollout": {**rollout, "prompt": "tiny-v1"}}
    monkeypatch.delenv("FTIS_MODELS")
    assert answers(changed("paper", benchmarks=named, run=other), "start-base_small") == answers(
        changed("paper", benchmarks=named), "start-base_small"
    ), "the tests have a prompt of their own"


def test_gpus_and_memory_by_pattern():
    def of(cell):
        found = Suite.load().resources("paper", "train", Suite.load().run(f"{cell}-s42"))
        return found.gpus, found.mem_mb

    assert of("alone-base_large") == (1, 60000)
    assert of("size_base-ftis-g50-vertical") == of("expertise_large-ftis-g50-vertical") == (2, 110000)
    assert of("size_base-tis-vertical+n3") == (3, 120000) and of("size_base-tis-vertical+n4") == (4, 180000)
    generate = Suite.load().resources("paper", "generate", Suite.load().run("alone-base_large-s42"))
    assert (generate.gpus, generate.mem_mb) == (1, 32000)


def test_tests_are_answered_in_batches_of_their_own():
    for tier, batch in (("paper", 256), ("small", 72), ("smoke", 1024)):
        assert (
            Suite.load().answers_batch(
                tier, Suite.load().resolve(tier, Suite.load().run("alone-base_small-s42"))
            )
            == batch
        )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tier": "huge"}, "unknown tier 'huge': choose one of paper, small, small_qwen, smoke, tiny"),
        ({"grid": "half"}, "grid: Input should be 'paper' or 'full'"),
        ({"seeds": 99}, "seeds: 99 asked for; choose 1 to 10"),
        ({"seeds": 0}, "seeds: .*greater than or equal to 1"),
        ({"seed": 1}, "seed: unknown key; the keys here are .*seeds"),
        (
            {"models": {"Qwen/Qwen2.5-3B": "/does/not/exist"}},
            "models: Qwen/Qwen2.5-3B: /does/not/exist does not exist",
        ),
        (
            {"models": {"Qwen/Qwen9": "/"}},
            "models: unknown hub model 'Qwen/Qwen9': choose one of .*Qwen/Qwen2.5-3B",
        ),
    ],
)
def test_bad_configs_say_what_exists(config, message):
    with pytest.raises(UserError, match=message):
        load_config(config)


def test_a_tier_s_name_becomes_part_of_paths(tmp_path, monkeypatch):
    (tmp_path / "tiers").mkdir()
    (tmp_path / "tiers/my tier.yaml").write_text((Suite.load().folder / "tiers/smoke.yaml").read_text())
    monkeypatch.setenv("FTIS_SUITE", str(tmp_path))
    for name in ("my tier", "a/b", "a;b", ""):
        with pytest.raises(UserError, match=f"tier '{name}': use letters, digits"):
            Suite.load().tier(name)


def test_local_models_replace_hub_models(tmp_path, monkeypatch):
    run = Suite.load().run("alone-base_small_lora-s42")
    monkeypatch.setenv("FTIS_MODELS", json.dumps({"Qwen/Qwen2.5-1.5B": str(tmp_path)}))
    Suite.resolve.cache_clear()
    (node,) = Suite.load().resolve("paper", run).nodes
    assert (node.model, node.revision) == (str(tmp_path), None)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FTIS_MODELS", '{"Qwen/Qwen2.5-1.5B": "~"}')
    Suite.resolve.cache_clear()
    assert Suite.load().resolve("paper", run).nodes[0].model == "~", "which the loading expands"
    monkeypatch.setenv("FTIS_MODELS", "not json")
    Suite.resolve.cache_clear()
    with pytest.raises(UserError, match="FTIS_MODELS: not a JSON object"):
        Suite.load().resolve("paper", run)
    monkeypatch.delenv("FTIS_MODELS")
    Suite.resolve.cache_clear()
    (node,) = Suite.load().resolve("paper", run).nodes
    assert node.model == "Qwen/Qwen2.5-1.5B" and len(node.revision) == 40


def test_a_tier_s_mistakes_are_named(tmp_path, monkeypatch):
    tier = yaml.safe_load((Suite.load().folder / "tiers" / "smoke.yaml").read_text())
    (tmp_path / "tiers").mkdir()
    (tmp_path / "grid.yaml").write_text((Suite.load().folder / "grid.yaml").read_text())
    monkeypatch.setenv("FTIS_SUITE", str(tmp_path))
    run = Suite.load().run("alone-base_small-s42")

    def message(name, **changes):
        (tmp_path / "tiers" / f"{name}.yaml").write_text(yaml.safe_dump({**tier, **changes}))
        with pytest.raises(UserError) as caught:
            Suite.load().resolve(name, run)
        return str(caught.value)

    assert "run: unknown key 'iteration': choose one of" in message("a", run={**tier["run"], "iteration": 3})
    assert "run.seed: the grid and the tier set this" in message("f", run={**tier["run"], "seed": 3})
    assert "models: unknown role 'base_tiny': choose one of" in message(
        "b", models={"base_tiny": {"label": "x", "model": "y"}}
    )
    assert "exactly one of tiny, model and of" in message("c", models={"base_small": {"label": "x"}})
    assert "prompts: no pattern matches alone-base_small" in message("d", prompts={"size_*": 8})
    assert "resources.trian" in message("e", resources={"trian": {"threads": 2}})
    model = {"label": "x", "model": "y/z"}
    assert "base_small: warm: goes with `model`" in message(
        "g",
        models={
            "base_small": {"label": "x", "tiny": tier["models"]["base_small"]["tiny"], "warm": {"steps": 1}}
        },
    )
    few = {"train": {"gpus": {"size_*": 1}}}
    (tmp_path / "tiers" / "h.yaml").write_text(
        yaml.safe_dump({**tier, "models": {"base_small": model}, "resources": few})
    )
    with pytest.raises(UserError, match="resources.train.gpus: no pattern matches alone-base_small"):
        Suite.load().resources("h", "train", run)


def test_schemas_are_those_of_the_classes():
    folder = Suite.load().folder.parent / "schemas"
    for name, text in schemas().items():
        assert (folder / name).read_text() == text, f"{name} is old: make schemas"


def test_settings_files_fit_their_schemas():
    def schema(name):
        return yaml.safe_load(schemas()[f"{name}.schema.yaml"])

    validate(yaml.safe_load((Suite.load().folder / "grid.yaml").read_text()), schema("grid"))
    for name in Suite.load().tiers:
        validate(yaml.safe_load((Suite.load().folder / "tiers" / f"{name}.yaml").read_text()), schema("tier"))


def test_an_ablation_changes_what_it_says_and_nothing_else():
    changed = Suite.load().resolve("tiny", Suite.load().run("size_base-tis-vertical+c5-s42"))
    plain = Suite.load().resolve("tiny", Suite.load().run("size_base-tis-vertical-s42"))
    assert replace(changed, name=plain.name, cap=2.0) == plain and changed.cap == 5
    code = Suite.load().resolve("tiny", Suite.load().run("alone-base_small+code-s42"))
    assert code.readings.preset == "code" and code.readings.advantage_scale == "none"
    doubled = Suite.load().resolve("paper", Suite.load().run("size_base-ftis-g50-vertical+b2-s42"))
    assert doubled.prompts == 48
    three = Suite.load().resolve("tiny", Suite.load().run("size_base-nois-vertical+n3-s42"))
    assert [node.name for node in three.nodes] == ["base_small", "base_large", "coder_small"]


@pytest.mark.parametrize("ablation", Suite.load().grid.ablations)
def test_every_variant_changes_its_run(ablation):
    runs = Suite.load().ablation_runs(ablation, "tiny", 1)
    hashes = [recipe_hash(Suite.load().resolve("tiny", run)) for run in runs]
    assert len(set(hashes)) == len(runs) > 3
    cells = {run.cell for run in runs}
    for run in runs:
        # What it is compared with is there: the run without the variant, and each of its models alone.
        assert replace(run, variant="").cell in cells
        assert {f"alone-{role}" for role in Suite.load().roles(run)} <= cells


def test_what_concerns_foreign_samples_only_is_not_run_alone():
    cells = {run.cell for run in Suite.load().ablation_runs("readings", "tiny", 1)}
    assert {c for c in cells if c.startswith("alone-base_small+")} == {
        f"alone-base_small+{v}" for v in ("code", "seed", "no_std", "literal_clip")
    }


def test_models_before_training():
    assert len(Suite.load().start_runs("tiny", 2)) == 8
    # One seed stands for all where a model comes from the hub.
    assert {run.slug for run in Suite.load().start_runs("paper", 3)} == {
        f"start-{role}-s42" for role in ("base_small", "base_large", "coder_small", "coder_large")
    }


def test_bad_variants_are_refused():
    text = (Suite.load().folder / "grid.yaml").read_text()
    for change, message in [
        (
            ("nodes: [base_small, coder_large]", "nodes: [base_small, coder_huge]"),
            "unknown role 'coder_huge'",
        ),
        (("      apart:", "      c5:"), "two variants are named 'c5'"),
        (("      apart:", "      Far-Apart:"), "use a-z, 0-9 and _"),
    ]:
        broken = yaml.safe_load(text.replace(*change))
        with pytest.raises(UserError, match=message):
            parse(TypeAdapter(Grid), broken, "grid.yaml")
