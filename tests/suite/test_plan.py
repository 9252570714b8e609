"""What `ftis plan` says, against hand-worked numbers and a run that was really made."""

import errno
import fcntl
import importlib.util
import json
import shutil
from dataclasses import replace

import pytest
import torch
import yaml
from safetensors.torch import save_file

import ftis.config
from ftis.cli import main as cli
from ftis.errors import UserError
from ftis.model.loading import load_policy
from ftis.suite import cost
from ftis.suite.check import _engines, check
from ftis.suite.memory import GIB
from ftis.suite.plan import (
    WITH_CUDA,
    _disk_bytes,
    answer_batches,
    completion_count,
    most_bytes,
    place,
    plan_run,
    plan_runs,
)
from ftis.suite.plan_text import as_dict, as_text, plan
from ftis.suite.suite import Suite
from ftis.swarm.loop import Swarm
from ftis.swarm.state import pack_node
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
    line = Swarm(config).iteration(1)
    sent = sum(node.bytes_sent for node in line.nodes)
    assert 0 < sent <= most_bytes(config)


def test_plan_lists_every_run_and_the_sum():
    text = plan("smoke", Suite.load().runs("smoke"))
    assert text.count("\nsize_") == 11 and text.count("\nalone-") == 6
    assert "21 runs of tier smoke" in text and "sent by all nodes of all runs: at most" in text


@pytest.fixture
def installed(monkeypatch):
    """Whether vLLM is installed, for what `backend: auto` comes to."""

    resolve = Suite.resolve  # a test may put another one in its place

    def decide(there):
        monkeypatch.setattr(ftis.config, "find_spec", lambda _name: "there" if there else None)
        resolve.cache_clear()

    yield decide
    resolve.cache_clear()


def planned(tier, *cells, **options):
    return plan_runs(tier, [Suite.load().run(f"{cell}-s42") for cell in cells], **options)


@pytest.mark.parametrize("vllm", [True, False])
def test_the_paper_s_runs_fit_on_80_gb_cards(installed, vllm):
    installed(vllm)
    ablations = {
        run
        for name in Suite.load().ablations("paper")
        for run in Suite.load().ablation_runs(name, "paper", 1)
    }
    for run in plan_runs(
        "paper", [*Suite.load().runs("paper", "full", 1), *sorted(ablations, key=lambda r: r.slug)]
    ):
        assert all(
            run.config.backend(k) == ("vllm" if vllm else "transformers") for k in range(len(run.nodes))
        )
        # A GPU and a process a node.
        assert [n.gpu for n in run.nodes] == list(range(run.gpus)) and run.config.transport == "processes"
        assert max(run.gpu_bytes) < 0.9 * cost.GPU.gib * GIB, run.slug
        assert max(n.generate_bytes for n in run.nodes) < run.generate_limit == 79.1 * GIB, run.slug
        assert run.host_bytes < run.host_limit, run.slug
    (large,) = planned("paper", "expertise_large-ftis-g50-vertical")
    # 16 bytes a parameter: weights, gradient and two moments.
    assert min(large.gpu_bytes) > 55 * GIB
    three = large.nodes[0].memory
    assert three.weights + three.gradients + three.optimizer == 16 * 3_085_938_688


def test_the_size_pair_shares_an_80_gb_card_in_one_process_without_vllm(monkeypatch, installed):
    """What docs/paper_tier.md offers to who has one card: 1.5B + 3B, one after the other."""
    installed(False)
    run = Suite.load().run("size_base-ftis-g50-vertical-s42")
    config = replace(Suite.load().resolve("paper", run), transport="local")
    monkeypatch.setattr(Suite, "resolve", lambda *_: config)
    with_one_gpu(monkeypatch)
    (peak,) = plan_run("paper", run).gpu_bytes
    assert 70 * GIB < peak < 79.1 * GIB


def with_one_gpu(monkeypatch):
    resources = Suite.resources
    monkeypatch.setattr(Suite, "resources", lambda *given: replace(resources(*given), gpus=1))


def test_the_small_tiers_train_and_answer_on_a_16_gb_card():
    for tier in ("small", "small_qwen"):
        for run in plan_runs(tier, Suite.load().runs(tier, "full"), cost.GPUS["t4"]):
            assert run.generate_limit == 14.56 * GIB
            assert max(*run.gpu_bytes, *(n.generate_bytes for n in run.nodes)) < 14.1 * GIB, run.slug
    # The longest of MATH-500's prompts makes answering larger than training, for the smaller model.
    (alone,) = planned("small", "alone-base_small")
    assert alone.nodes[0].generate_bytes > 1.1 * alone.gpu_bytes[0]


def test_what_is_decoded_together_for_the_tests():
    """A problem's greedy answer and its eight samples share its prompt."""
    config = Suite.load().resolve("tiny", Suite.load().run("alone-base_small-s42"))
    config = replace(config, rollout=replace(config.rollout, max_batch=100))
    batches = {
        (b.sequences, b.prompts, b.prompt_tokens, b.new_tokens) for b in answer_batches("tiny", config)
    }
    assert batches == {(99, 11, 32, new) for new in (64, 80)}
    config = Suite.load().resolve("small", Suite.load().run("alone-base_small-s42"))
    assert {(b.prompts, b.prompt_tokens) for b in answer_batches("small", config)} == {(72, 275), (72, 965)}


def test_engines_and_what_they_take_of_the_machine(installed):
    """3B in bfloat16: two bytes a parameter in the engine, and on the machine while it sleeps."""
    run, weights = Suite.load().run("alone-base_large-s42"), 2 * 3_085_938_688
    installed(False)
    plain = plan_run("paper", run)
    installed(True)
    planned = plan_run("paper", run)
    training, tests = planned.nodes[0].engines
    assert plain.nodes[0].engines == () and training.weights == tests.weights == weights
    assert (training.tokens, tests.tokens) == (275 + 768, 965 + 768)
    assert training.given == 0.4 * 79.1 * GIB and tests.given == 0.92 * 79.1 * GIB
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
        Suite.load().tier("paper").models["base_small"].revision,
    )
    assert full.completions == lora.completions == 50 * 12 * 12
    assert run.kept_bytes == 4 * (full.parameters + lora.trained)
    # One checkpoint, after the 25th of 50 iterations, and beside it what the run leaves.
    assert run.disk_bytes == (12 + 4) * (full.parameters + lora.trained)
    assert run.gpu_hours > 0 and run.wire_bytes == most_bytes(run.config)
    again = as_dict("paper", [run])
    assert json.loads(json.dumps(again))["runs"][0]["nodes"][0]["memory"]["peak"] == full.memory.peak
    # Twice the iterations take almost twice as long.
    slower = plan_run("tiny", Suite.load().run("size_base-ftis-g50-vertical+b2-s42"))
    assert (
        slower.nodes[0].completions
        == 2 * planned("tiny", "size_base-ftis-g50-vertical")[0].nodes[0].completions
    )


def test_disk_by_the_number_of_checkpoints():
    """Two are kept while a third is written; a run that makes fewer has fewer."""
    config = Suite.load().resolve("paper", Suite.load().run("alone-base_small-s42"))
    for every, made, most in ((50, 0, 4), (25, 1, 12 + 4), (20, 2, 24 + 4), (10, 4, 36), (49, 1, 12 + 4)):
        changed = replace(config, checkpoint_every=every)
        assert cost.checkpoint_count(changed) == made
        assert _disk_bytes(changed, 12, 4) == most
        assert cost.saving_seconds(12e9, 4e9, changed) == 12 * made + 4


def test_hours_by_hand(installed):
    """3B alone: 192 completions of an iteration in one batch, 36 ms a step for the 760 - 112 tokens that a
    mean prompt leaves; 11 validations of 512 problems in three batches of 768 steps; one checkpoint."""
    installed(False)
    (run,) = planned("paper", "alone-base_large")
    (node,) = run.nodes
    p = 3_085_938_688
    assert node.seconds.sampling == pytest.approx(50 * 648 * 0.036)
    assert node.seconds.validation == pytest.approx(11 * 3 * 768 * 0.036)
    assert node.seconds.start == pytest.approx(2 * p / 1e9) and node.seconds.push == 0
    # GSM8K in six batches of 256 and MATH-500 in two, of 768 steps each.
    assert node.answer_seconds == pytest.approx(4 * p / 1e9 + (6 + 2) * 768 * 0.036)
    assert run.saving_seconds == pytest.approx((12 + 4) * p / 1e9)
    training = node.seconds.training + run.saving_seconds + cost.START_SECONDS
    assert run.train_hours == pytest.approx(training / 3600)
    assert run.gpu_hours == pytest.approx((training + cost.START_SECONDS + node.answer_seconds) / 3600)
    installed(True)
    (fast,) = planned("paper", "alone-base_large")
    assert fast.nodes[0].seconds.push == pytest.approx(50 * 2 * p / 1e9)
    assert fast.nodes[0].seconds.start == pytest.approx(cost.ENGINE_SECONDS + 2 * p / 1e9)
    assert fast.gpu_hours < 0.6 * run.gpu_hours and fast.nodes[0].seconds.update == node.seconds.update


def test_processes_work_at_the_same_time(monkeypatch, installed):
    installed(False)
    large = Suite.load().run("expertise_large-ftis-g50-vertical-s42")
    pair = Suite.load().run("size_base-ftis-g50-vertical-s42")
    resolve = Suite.resolve

    def plans(transport):
        monkeypatch.setattr(Suite, "resolve", lambda *given: replace(resolve(*given), transport=transport))
        return [plan_run("paper", run) for run in (large, pair)]

    turns, own = plans("local"), plans("processes")
    for one, other in zip(turns, own):
        # On GPUs of their own they take as long as the slower of them.
        assert one.gpu_bytes == other.gpu_bytes and one.nodes == other.nodes
        quicker = min(n.seconds.training for n in one.nodes)
        assert other.train_hours == pytest.approx(one.train_hours - quicker / 3600)
        assert one.gpu_hours - other.gpu_hours == pytest.approx(2 * quicker / 3600)
        assert other.host_bytes - one.host_bytes == WITH_CUDA
    # On one GPU both have their work there at once.
    with_one_gpu(monkeypatch)
    shared, turns = plans("processes")[1], plans("local")[1]
    assert shared.gpu_bytes[0] > turns.gpu_bytes[0] + 10 * GIB and shared.train_hours == turns.train_hours


def test_a_plan_says_what_samples(installed):
    for there, says, step in (
        (True, "auto is vllm here", "0.14 ms"),
        (False, "auto is transformers here", "1 ms"),
    ):
        installed(there)
        text = as_text("paper", planned("paper", "alone-base_small"))
        assert f"rollout.backend: {says}" in text and f"{step} a layer and decoding step of" in text
    assert "rollout.backend" not in plan("smoke", Suite.load().runs("smoke"))


def test_a_checkpoint_is_as_large_as_planned(make_config):
    swarm = Swarm(make_config(iterations=1))
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
    assert len(data["runs"]) == 21 and data["gpu"]["gib"] == 79.1
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
    assert data["runs"][0]["nodes"][0]["generate_bytes"] < data["runs"][0]["generate_limit"] == 79.1 * GIB
    assert data["node_hours"].keys() == {
        "start", "sampling", "update", "push", "validation", "answers", "checkpoints",
    }  # fmt: skip
    assert data["total"]["gpu_hours"] == pytest.approx(sum(run["gpu_hours"] for run in data["runs"]))
    assert cli.main(["plan", "--tier", "paper", "--check", "--gpu-memory", "40"]) == 2
    assert "3B need " in capsys.readouterr().err
    for options, gib in ((["--gpu", "L4"], 22.0), (["--gpu", "l4", "--gpu-memory", "40"], 40)):
        assert cli.main(["plan", "--tier", "small", "--json", *options]) == 0
        gpu = json.loads(capsys.readouterr().out)["gpu"]
        assert (gpu["name"], gpu["gib"]) == ("L4, 24 GB", gib)


@pytest.fixture
def tier(tmp_path, monkeypatch, tiny):
    """Write a tier of two local models, with changes, and check one run of it: the problems that are
    found."""
    (tmp_path / "tiers").mkdir()
    (tmp_path / "grid.yaml").write_text((Suite.load().folder / "grid.yaml").read_text())
    monkeypatch.setenv("FTIS_SUITE", str(tmp_path))
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


def test_disk_for_what_trains_at_the_same_time(monkeypatch, tmp_path):
    """Runs of 10, 30 and 20 GB at most, of which 1 GB each stays."""
    (run,) = planned("smoke", "alone-base_small")
    runs = [replace(run, disk_bytes=n * 1e9, kept_bytes=1e9) for n in (10, 30, 20)]
    for free, jobs, need in ((31e9, 1, 32), (50e9, 2, 51), (59e9, 3, 60), (59e9, 99, 60), (59e9, None, 60)):
        usage = shutil.disk_usage("/")._replace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        found = [
            line for line in check("smoke", runs, results=tmp_path, jobs=jobs) if line.startswith("disk")
        ]
        only(found, f"leave 3 GB and need {need} GB in all with {min(jobs or 3, 3)} training", "--jobs N")
    usage = shutil.disk_usage("/")._replace(free=51e9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert not any(line.startswith("disk") for line in check("smoke", runs, results=tmp_path, jobs=2))


def test_check_finds_a_file_system_without_locks(tier, monkeypatch):
    def refuse(_file, _kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    only(tier(), "this file system has no locks (No locks available)", "Lustre mounted with -o flock")


def test_check_finds_products_that_are_forced_to_three_digits(tier, monkeypatch):
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")
    assert tier() == []  # on the CPU
    gpu = {"train": {"gpus": 1, "mem_mb": 8000}}
    only(tier(resources=gpu), "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE: is 1", "unset it")
    assert tier(resources=gpu, node={"compute_dtype": "bfloat16"}) == []


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_check_finds_that_vllm_is_missing(tier):
    run = tier.base["run"] | {"rollout": tier.base["run"]["rollout"] | {"backend": "vllm"}}
    only(tier(run=run), "rollout.backend: vLLM can't be imported (it isn't installed)")
    only(tier(node={"backend": "vllm"}), "rollout.backend: vLLM can't be imported")


def test_two_engines_on_a_card_must_take_turns(installed):
    installed(True)
    (pair,) = planned("paper", "size_base-ftis-g50-vertical")
    assert not list(_engines("paper", [pair]))
    crowded = replace(pair, gpus=1, nodes=tuple(replace(node, gpu=0) for node in pair.nodes))
    only(
        _engines("paper", [crowded]),
        "resources.train.gpus: size_base",
        "has 1 for 2 nodes",
        "transport to local",
    )
    assert not list(_engines("paper", [replace(crowded, config=replace(pair.config, transport="local"))]))


def test_two_engines_and_two_nodes_on_a_card(tier):
    """Two engines with 49 % of a card each leave no room for the nodes; with 30 % each they do."""
    resources = {"train": {"gpus": 1, "mem_mb": 16000}}
    for share, fits in ((0.49, False), (0.3, True)):
        rollout = tier.base["run"]["rollout"] | {"backend": "vllm", "gpu_memory_utilization": share}
        found = tier(gib=10.0, run=tier.base["run"] | {"rollout": rollout}, resources=resources)
        assert ("need" not in " ".join(found)) == fits, found
