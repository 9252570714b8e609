"""What `ftis plan` says, against hand-worked numbers and a run that was really made."""

import importlib.util
import json
import shutil
from dataclasses import replace

import pytest
import torch
import yaml
from safetensors.torch import save_file

from ftis.cli import main as cli
from ftis.errors import UserError
from ftis.model.loading import load_policy
from ftis.runs.state import pack_node
from ftis.suite import cost, grid
from ftis.suite.check import _engines, check
from ftis.suite.memory import GIB
from ftis.suite.plan import (
    WITH_CUDA,
    answer_batches,
    as_dict,
    completion_count,
    most_bytes,
    place,
    plan,
    plan_run,
    plan_runs,
)
from ftis.swarm.loop import Swarm
from tests.parts import with_swapped_ids


def test_counts_and_bytes_by_hand(make_config):
    config = make_config(
        prompts=7, group_size=5, iterations=3, rollout={"prompt": "tiny-v1", "max_new_tokens": 10}
    )
    # Seven prompts dealt to two nodes: 4 and 3 groups of 5.
    assert [completion_count(config, k) for k in (0, 1)] == [20, 15]
    # 3 iterations x 1 peer x (35 completions x (17 + 8 x 10) + 2 messages x 32).
    assert most_bytes(config) == 3 * (35 * 97 + 64)
    assert most_bytes(make_config(nodes=("base",))) == 0


def test_the_bound_holds_for_a_real_iteration(make_config):
    config = make_config(iterations=1)
    line = Swarm(config, "0" * 12).iteration(1)
    sent = sum(node["bytes_sent"] for node in line["nodes"])
    assert 0 < sent <= most_bytes(config)


def test_plan_lists_every_run_and_the_sum():
    text = plan("smoke", grid.runs("smoke"))
    assert text.count("\nsize_") == 11 and text.count("\nalone-") == 6
    assert "21 runs of tier smoke" in text and "sent by all nodes of all runs: at most" in text


def planned(tier, *cells, **options):
    return plan_runs(tier, [grid.Run.from_slug(f"{cell}-s42") for cell in cells], **options)


def test_the_paper_s_runs_fit_on_80_gb_cards_and_not_on_40():
    runs = plan_runs("paper", grid.runs("paper", "full", 1))
    ablations = {run for name in grid.ablations("paper") for run in grid.ablation_runs(name, "paper", 1)}
    for run in (*runs, *plan_runs("paper", sorted(ablations, key=lambda r: r.slug))):
        assert max(run.gpu_bytes) < 80 * GIB, run.slug
        assert run.host_bytes < run.host_limit, run.slug
    pair, large = planned("paper", "size_base-ftis-g50-vertical", "expertise_large-ftis-g50-vertical")
    assert len(pair.gpu_bytes) == 1 and max(pair.gpu_bytes) > 70 * GIB
    assert len(large.gpu_bytes) == 2 and [n.gpu for n in large.nodes] == [0, 1]
    # 16 bytes a parameter: weights, gradient and two moments.
    three = large.nodes[0].memory
    assert three.weights + three.gradients + three.optimizer == 16 * 3_085_938_688


def test_the_small_tiers_train_and_answer_on_a_16_gb_card():
    for tier in ("small", "small_qwen"):
        for run in plan_runs(tier, grid.runs(tier, "full"), cost.GPUS["t4"]):
            assert run.generate_limit == 15 * GIB
            assert max(*run.gpu_bytes, *(n.generate_bytes for n in run.nodes)) < 14.1 * GIB, run.slug
    # The longest of MATH-500's prompts makes answering larger than training, for the smaller model.
    (alone,) = planned("small", "alone-base_small")
    assert alone.nodes[0].generate_bytes > 1.1 * alone.gpu_bytes[0]


def test_what_is_decoded_together_for_the_tests():
    """A problem's greedy answer and its eight samples share its prompt."""
    config = grid.resolve("tiny", grid.Run.from_slug("alone-base_small-s42"))
    config = replace(config, rollout=replace(config.rollout, max_batch=100))
    batches = {
        (b.sequences, b.prompts, b.prompt_tokens, b.new_tokens) for b in answer_batches("tiny", config)
    }
    assert batches == {(99, 11, 32, new) for new in (64, 80)}
    config = grid.resolve("small", grid.Run.from_slug("alone-base_small-s42"))
    assert {(b.prompts, b.prompt_tokens) for b in answer_batches("small", config)} == {(72, 275), (72, 965)}


def test_engines_and_what_they_take_of_the_machine(monkeypatch):
    """3B in bfloat16: two bytes a parameter in the engine, and on the machine while it sleeps."""
    run, weights = grid.Run.from_slug("alone-base_large-s42"), 2 * 3_085_938_688
    plain = plan_run("paper", run)
    config = grid.resolve("paper", run)
    monkeypatch.setattr(
        grid, "resolve", lambda *_: replace(config, rollout=replace(config.rollout, backend="vllm"))
    )
    planned = plan_run("paper", run)
    training, tests = planned.nodes[0].engines
    assert plain.nodes[0].engines == () and training.weights == tests.weights == weights
    assert (training.tokens, tests.tokens) == (275 + 768, 965 + 768)
    assert training.given == 0.4 * 80 * GIB and tests.given == 0.92 * 80 * GIB
    assert planned.host_bytes - plain.host_bytes == WITH_CUDA + weights
    assert planned.nodes[0].generate_bytes == GIB + tests.given
    assert not list(_engines("paper", [planned]))
    # 40 % of 14 GiB are less than the weights.
    (line,) = _engines("paper", [plan_run("paper", run, replace(cost.GPU, gib=14))])
    assert "rollout.gpu_memory_utilization is 5.6 GiB for 3B: vLLM needs 5.8 for its weights and one" in line


def test_what_a_plan_holds():
    (run,) = planned("paper", "peft_small-ftis-g50-vertical")
    full, lora = run.nodes
    assert (full.model, full.revision) == (
        "Qwen/Qwen2.5-1.5B",
        grid.load_tier("paper").models["base_small"].revision,
    )
    assert full.completions == lora.completions == 50 * 12 * 12
    assert run.kept_bytes == 4 * (full.parameters + lora.trained)
    assert run.disk_bytes == 3 * 12 * (full.parameters + lora.trained)
    assert run.gpu_hours > 0 and run.wire_bytes == most_bytes(run.config)
    again = as_dict("paper", [run])
    assert json.loads(json.dumps(again))["runs"][0]["nodes"][0]["memory"]["peak"] == full.memory.peak
    # Twice the iterations take almost twice as long.
    slower = plan_run("tiny", grid.Run.from_slug("size_base-ftis-g50-vertical+b2-s42"))
    assert (
        slower.nodes[0].completions
        == 2 * planned("tiny", "size_base-ftis-g50-vertical")[0].nodes[0].completions
    )


def test_processes_work_at_the_same_time(monkeypatch):
    large = grid.Run.from_slug("expertise_large-ftis-g50-vertical-s42")
    pair = grid.Run.from_slug("size_base-ftis-g50-vertical-s42")
    turns = [plan_run("paper", run) for run in (large, pair)]
    resolved = {run: replace(grid.resolve("paper", run), transport="processes") for run in (large, pair)}
    monkeypatch.setattr(grid, "resolve", lambda _, run: resolved[run])
    own, shared = (plan_run("paper", run) for run in (large, pair))
    # On GPUs of their own they take as long as one of them, on one GPU both have their work there at once.
    assert own.gpu_bytes == turns[0].gpu_bytes and own.gpu_hours == pytest.approx(
        turns[0].gpu_hours / 2, rel=0.02
    )
    assert shared.gpu_bytes[0] > turns[1].gpu_bytes[0] + 10 * GIB and shared.gpu_hours == turns[1].gpu_hours


def test_a_checkpoint_is_as_large_as_planned(make_config):
    swarm = Swarm(make_config(iterations=1), "0" * 12)
    swarm.iteration(1)
    held = sum(
        t.numel() * t.element_size() for n in swarm.nodes for t in pack_node(n.params, n.optimizer).values()
    )
    steps = sum(4 * len(n.params) for n in swarm.nodes)  # Adam's counts
    (run,) = planned("smoke", "expertise_small-ftis-g50-vertical")  # two XS models, as in make_config
    assert held - steps == sum(12 * n.trained for n in run.nodes)


def test_nodes_are_placed_as_the_trainer_places_them(make_config):
    config = make_config(nodes=("base", "coder", "base"))
    assert place(config, 0) == [None] * 3 and place(config, 2) == [0, 1, 0]
    nodes = tuple(replace(n, device=d) for n, d in zip(config.nodes, ("cuda:1", "cpu", "cuda")))
    assert place(replace(config, nodes=nodes), 1) == [1, None, 0]


def test_plan_as_json_and_with_another_gpu(capsys):
    assert cli.main(["plan", "--tier", "paper", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert len(data["runs"]) == 21 and data["gpu"]["gib"] == 80
    parts = {
        "weights",
        "gradients",
        "optimizer",
        "casts",
        "activations",
        "head",
        "kv_cache",
        "sampler",
        "engine",
        "peak",
    }
    assert data["runs"][0]["nodes"][0]["memory"].keys() == parts
    assert data["runs"][0]["nodes"][0]["generate_bytes"] < data["runs"][0]["generate_limit"] == 80 * GIB
    assert data["total"]["gpu_hours"] == pytest.approx(sum(run["gpu_hours"] for run in data["runs"]))
    assert cli.main(["plan", "--tier", "paper", "--check", "--gpu-memory", "40"]) == 2
    assert "1.5B + 3B need " in capsys.readouterr().err
    for options, gib in ((["--gpu", "L4"], 22.5), (["--gpu", "l4", "--gpu-memory", "40"], 40)):
        assert cli.main(["plan", "--tier", "small", "--json", *options]) == 0
        gpu = json.loads(capsys.readouterr().out)["gpu"]
        assert (gpu["name"], gpu["gib"]) == ("L4, 24 GB", gib)


@pytest.fixture
def tier(tmp_path, monkeypatch, tiny):
    """Write a tier of two local models, with changes, and check one run of it: the problems that are found."""
    (tmp_path / "tiers").mkdir()
    (tmp_path / "grid.yaml").write_text((grid.CONFIG / "grid.yaml").read_text())
    monkeypatch.setattr(grid, "CONFIG", tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = {"name": "tiny", "path": str(tiny / "data/train.jsonl")}
    base = {
        "about": "a test", "seeds": 1, "learning_rate": {"full": 1e-4, "lora": 1e-3}, "prompts": {"*": 4},
        "models": {r: {"label": r, "model": str(tiny / "base")} for r in ("base_small", "coder_small")},
        "run": {"train": data, "iterations": 2, "rollout": {"prompt": "tiny-v1", "max_new_tokens": 20}},
        "benchmarks": {"id": {"data": data, "max_new_tokens": 20}},
    }  # fmt: skip
    # Tiers are cached by name.
    names = (f"{tmp_path.name}-{i}" for i in range(9))

    def problems(gib=80.0, **changes):
        name = next(names)
        (tmp_path / "tiers" / f"{name}.yaml").write_text(yaml.safe_dump({**base, **changes}))
        gpu = replace(cost.GPU, gib=gib)
        return check(name, planned(name, "expertise_small-ftis-g50-vertical", gpu=gpu), gpu, tmp_path)

    problems.base = base
    return problems


def only(found, *words):
    (line,) = found
    assert all(word in line for word in words), line


def test_check_finds_nothing_wrong_with_a_sound_tier(tier):
    assert tier() == []


def test_check_finds_a_model_that_is_nowhere(tier, tmp_path):
    shape = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 192, "vocab_size": 93,
    }  # fmt: skip
    models = tier.base["models"]
    hub = models["coder_small"] | {"model": "nobody/nothing", "shape": shape}
    only(
        tier(models=models | {"coder_small": hub}),
        "models.coder_small: model nobody/nothing: no local copy",
        "HF_HOME",
    )
    with pytest.raises(
        UserError, match="models.coder_small: nobody/nothing: no config.json here; give its `shape`"
    ):
        tier(models=models | {"coder_small": models["coder_small"] | {"model": "nobody/nothing"}})


def test_check_finds_data_that_are_nowhere(tier, monkeypatch, tmp_path):
    monkeypatch.setenv("FTIS_DATA", str(tmp_path))
    benchmarks = {"id": {"data": {"name": "math500", "split": "test"}, "max_new_tokens": 20}}
    # Long questions in batches that a job without a GPU has room for.
    run = tier.base["run"] | {"rollout": tier.base["run"]["rollout"] | {"max_batch": 32}}
    found = tier(benchmarks=benchmarks, run=run)
    only(found, "dataset math500", "no local copy", "math500/test.jsonl")
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{}\n")
    only(
        tier(benchmarks={"id": {"data": {"name": "tiny", "path": str(broken)}, "max_new_tokens": 20}}),
        "'question'",
    )
    # Once, though the questions would be read again for their length.
    broken.write_text('{"question": "q", "answer": "#### 5 or 6"}\n')
    rollout = tier.base["run"]["rollout"] | {"max_total_tokens": 60}
    data = {"name": "tiny", "path": str(broken)}
    only(tier(run=tier.base["run"] | {"train": data, "rollout": rollout}), str(broken), "row 1", "'5 or 6'")


def test_check_finds_tokenizers_that_differ(tier, tiny, tmp_path):
    odd = with_swapped_ids(tiny / "coder", tmp_path / "odd")
    models = tier.base["models"]
    found = tier(models=models | {"coder_small": models["coder_small"] | {"model": str(odd)}})
    only(found, "models.coder_small and models.base_small", "different tokenizers", "token 'a' is")


def test_an_id_beyond_the_vocabulary_is_found_before_and_at_loading(tier, tiny, tmp_path):
    shutil.copytree(tiny / "coder", tmp_path / "cut")
    config = json.loads((tmp_path / "cut/config.json").read_text()) | {"vocab_size": 90}
    (tmp_path / "cut/config.json").write_text(json.dumps(config))
    model = load_policy(str(tiny / "coder")).model
    model.resize_token_embeddings(90)
    save_file(
        {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"},
        tmp_path / "cut/model.safetensors",
    )
    models = tier.base["models"]
    found = tier(models=models | {"coder_small": models["coder_small"] | {"model": str(tmp_path / "cut")}})
    only(found, "models.coder_small", "ids up to 92, its embedding 90 rows")
    with pytest.raises(UserError, match="ids up to 92, its embedding 90 rows"):
        load_policy(str(tmp_path / "cut"))


def test_check_finds_prompts_without_room(tier):
    run = tier.base["run"]
    rollout = run["rollout"] | {"max_total_tokens": 16}
    only(
        tier(run=run | {"rollout": rollout}),
        "rollout.max_total_tokens: prompt 'tiny-v1' takes",
        "only 15 fit",
    )


def test_check_finds_what_does_not_fit(tier, monkeypatch):
    train = {"gpus": 1, "mem_mb": 8000}
    assert tier(resources={"train": train}) == []
    only(
        tier(gib=0.5, resources={"train": train}),
        "base_small + coder_small need 1.",
        "of a GPU's 0.5",
        "raise resources.train.gpus",
    )
    only(tier(resources={"train": {"gpus": 0, "mem_mb": 100}}), "resources.train.mem_mb", "the job has 0.1")
    found = tier(resources={"train": train}, node={"device": "cuda:1"})
    assert len(found) == 2 and all("is on GPU 1, but the job has 1" in line for line in found)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    only(
        tier(resources={"train": train | {"gpus": 2}}),
        "resources.train.gpus: expertise_small",
        "takes 2, this machine has 1",
    )


def test_check_finds_tests_that_do_not_fit(tier):
    found = tier(gib=0.5, resources={"generate": {"gpus": 1}})
    assert len(found) == 2 and all("answering the tests with" in line for line in found)
    assert "base_small needs 1.1 GiB, its job (resources.generate) has 0.5 in expertise_small" in found[0]
    found = tier(resources={"generate": {"mem_mb": 100}})  # on the CPU
    assert len(found) == 2 and all("needs 0.5 GiB, its job" in line and "has 0.1" in line for line in found)


def test_check_finds_a_context_beyond_the_model_s(tier):
    rollout = tier.base["run"]["rollout"] | {"backend": "vllm"}
    tests = {"id": tier.base["benchmarks"]["id"] | {"max_new_tokens": 500}}
    found = tier(run=tier.base["run"] | {"rollout": rollout}, benchmarks=tests)
    found = [line for line in found if "vLLM can't be imported" not in line]
    assert len(found) == 2 and "models.base_small" in found[0] and "reads 256 tokens" in found[0]
    assert "vLLM is to read up to 532" in found[0]


def test_check_finds_a_full_disk(tier, monkeypatch):
    free = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    only(tier(), "disk: the runs leave 0 GB", "0 GB free")


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_check_finds_that_vllm_is_missing(tier):
    run = tier.base["run"] | {"rollout": tier.base["run"]["rollout"] | {"backend": "vllm"}}
    only(tier(run=run), "rollout.backend: vLLM can't be imported (it isn't installed)")
    only(tier(node={"backend": "vllm"}), "rollout.backend: vLLM can't be imported")


def test_two_engines_and_two_nodes_on_a_card(tier):
    """Two engines with 49 % of a card each leave no room for the nodes; with 30 % each they do."""
    resources = {"train": {"gpus": 1, "mem_mb": 16000}}
    for share, fits in ((0.49, False), (0.3, True)):
        rollout = tier.base["run"]["rollout"] | {"backend": "vllm", "gpu_memory_utilization": share}
        found = tier(gib=10.0, run=tier.base["run"] | {"rollout": rollout}, resources=resources)
        assert ("need" not in " ".join(found)) == fits, found
