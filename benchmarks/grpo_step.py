"""One GRPO iteration, ours against TRL's GRPOTrainer, in turn on the same machine.

    pip install trl==1.16.0
    python benchmarks/grpo_step.py                       # XS, S and a 10M Qwen2 shape, one thread and two
    python benchmarks/grpo_step.py --model smollm2=DIR --threads 2 --turns 2 --iterations 3
    python benchmarks/grpo_step.py --model xs s --trl-rows 24                  # TRL in micro-batches too
    python benchmarks/grpo_step.py --model xs s --micro-batch-tokens 8192      # ours as it is by default

Both sides: the same model folder, prompts, completions a prompt, longest completion, float32, AdamW, reward
function (ours), one update an iteration, no reference model, no checkpoint, and the same settings of malloc
and OpenMP. XS and S are briefly warmed up first, so that groups have unequal rewards; the 10M shape has
random weights, and its rewards are
0. TRL takes an iteration's completions in one batch unless --trl-rows cuts it up; ours in micro-batches of
2,048 tokens, a quarter of the default. Each measurement is a process of its own, A B A B; an iteration's time
is the median without the first, memory is the peak above what the process held after its imports. On a CPU
TRL's log-prob head keeps several temporaries of a tile, up to 4,096 tokens by 32,768 ids in float32: 512 MiB
each where the vocabulary is that large, 1.5 MiB under the tiny models' 93 ids. Puts its rows into
benchmarks/results/grpo_step.json.
"""

import one_thread  # isort: skip

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record
from measures import peak_mib, spread, trl_version

SIDES = ("ours", "trl")
TINY = {"prompts": 16, "group": 12, "tokens": 48, "iterations": 6, "micro_batch_tokens": 2048}
SMALL = {"prompts": 2, "group": 4, "tokens": 64, "iterations": 4, "micro_batch_tokens": 2048}


def questions(count: int) -> list[dict]:
    import random

    from ftis.tasks.tiny.problems import make_problem

    rng = random.Random(0)
    problems = [make_problem(rng, rng.choice((2, 3))) for _ in range(count)]
    return [
        {"id": str(i), "question": p.question, "answer": f"#### {p.gold}"} for i, p in enumerate(problems)
    ]


def run_config(model: str, size: dict, scratch: Path):
    """Settings of our side: one model alone, an iteration more than are counted."""
    from ftis.config import RUN_CONFIG
    from ftis.settings import parse

    data = scratch / "train.jsonl"
    data.write_text("".join(json.dumps(q) + "\n" for q in questions(64)))
    return parse(RUN_CONFIG, {
        "name": "benchmark", "method": "alone",
        "nodes": [{"name": "a", "model": model, "learning_rate": 1e-5, "device": "cpu"}],
        "train": {"name": "tiny", "path": str(data)}, "prompts": size["prompts"], "group_size": size["group"],
        "rollout": {"prompt": "tiny-v1", "max_new_tokens": size["tokens"]},
        "optim": {"name": "adamw", "micro_batch_tokens": size["micro_batch_tokens"]},
        "iterations": size["iterations"] + 1,
    }, "benchmark")  # fmt: skip


def ours(model: str, size: dict, threads: int, scratch: Path) -> dict:
    began = time.perf_counter()
    import torch

    from ftis.swarm.loop import Swarm

    torch.set_num_threads(threads)
    held = peak_mib()
    config = run_config(model, size, scratch)
    swarm = Swarm(config)
    started = time.perf_counter() - began
    wall, cpu, tokens, rewards = [], [], [], []
    for step in range(1, config.iterations + 1):
        wall_0, cpu_0 = time.perf_counter(), time.process_time()
        line = swarm.iteration(step)
        wall.append(time.perf_counter() - wall_0)
        cpu.append(time.process_time() - cpu_0)
        (node,) = line.nodes
        tokens.append(node.tokens_generated)
        rewards.append((node.reward, node.zero_advantage))
    return report(wall, cpu, tokens, rewards, held, started)


def trl(model: str, size: dict, threads: int, scratch: Path) -> dict:
    began = time.perf_counter()
    import logging

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from ftis.tasks.grading.verdict import grade_many

    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    held = peak_mib()
    tokens: list[int] = []
    rewards: list[tuple[float, float]] = []

    def reward(prompts, completions, completion_ids, gold, **_):
        tokens.append(sum(map(len, completion_ids)))
        found = [v.reward for v in grade_many([(c, a, "tiny") for c, a in zip(completions, gold)])]
        groups = [set(found[i : i + size["group"]]) for i in range(0, len(found), size["group"])]
        rewards.append((statistics.mean(found), statistics.mean(len(group) == 1 for group in groups)))
        return found

    marks: list[tuple[float, float]] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            if not marks:
                marks.append((time.perf_counter(), time.process_time()))

        def on_step_end(self, *_, **__):
            marks.append((time.perf_counter(), time.process_time()))

    batch = size["prompts"] * size["group"]
    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        reward,
        GRPOConfig(
            output_dir=str(scratch), per_device_train_batch_size=size["trl_rows"],
            gradient_accumulation_steps=batch // size["trl_rows"], num_generations=size["group"],
            max_completion_length=size["tokens"], temperature=1.0, top_k=0, beta=0.0, num_iterations=1,
            loss_type="grpo", learning_rate=1e-5, optim="adamw_torch", max_steps=size["iterations"] + 1,
            gradient_checkpointing=False, bf16=False, use_cpu=True, save_strategy="no", report_to="none",
            logging_strategy="no", disable_tqdm=True, seed=0,
        ),
        train_dataset=Dataset.from_list([{"prompt": q["question"],
        "gold": q["answer"].split()[-1]} for q in questions(64)]),
        processing_class=PreTrainedTokenizerFast.from_pretrained(model, padding_side="left"),
        callbacks=[Clock()],
    )  # fmt: skip
    started = time.perf_counter() - began
    trainer.train()
    wall, cpu = ([b[i] - a[i] for a, b in itertools.pairwise(marks)] for i in (0, 1))
    return report(wall, cpu, tokens, rewards, held, started) | {"version": trl_version()}


def report(wall, cpu, tokens, rewards, held: float, started: float) -> dict:
    """Medians without the first iteration, which warms up; means of the reward and of the share of groups
    whose advantages are all 0."""
    seconds = statistics.median(wall[1:])
    return {
        "seconds": round(seconds, 4), "cpu_seconds": round(statistics.median(cpu[1:]), 4),
        "tokens_a_second": round(statistics.median(tokens[1:]) / seconds),
        "cpu_token": statistics.median(c / t for c, t in zip(cpu[1:], tokens[1:], strict=True)),
        "completion_tokens": int(statistics.median(tokens[1:])),
        "peak_mib": round(peak_mib() - held), "start_seconds": round(started, 2),
        "reward": round(statistics.mean(r for r, _ in rewards[1:]), 3),
        "zero_advantage": round(statistics.mean(z for _, z in rewards[1:]), 3),
    }  # fmt: skip


def shaped(name: str, folder: Path, warm_steps: int = 0) -> str:
    """A model of a tiny size, fresh or warmed up, or a fresh one of 10M parameters, with the tiny
    tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from ftis.tasks.tiny.models import EOS, TinyModel, build_model, make_model, make_tokenizer, vocabulary

    if (folder / "warm.json").exists():
        return str(folder)
    torch.manual_seed(0)
    make_tokenizer(folder)
    if warm_steps and name != "10m":
        held_out = folder.with_name(f"{name}-held-out")
        held_out.mkdir(exist_ok=True)
        for part in ("validation", "ood"):
            (held_out / f"{part}.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions(64)))
        make_model(TinyModel(size=name, style="base", steps=warm_steps), 0, folder, held_out, folder)
        return str(folder)
    if name != "10m":
        build_model(name).save_pretrained(folder)
        return str(folder)
    tokens = vocabulary()
    Qwen2ForCausalLM(Qwen2Config(
        hidden_size=256, num_hidden_layers=10, intermediate_size=1024, num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(tokens), tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokens.index(EOS),
        max_position_embeddings=512, dtype="float32",
    )).save_pretrained(folder)  # fmt: skip
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", nargs="+", default=["xs", "s", "10m"], help="xs, s, 10m, or NAME=FOLDER")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--turns", type=int, default=3, help="processes a side")
    parser.add_argument(
        "--iterations", type=int, help="that count, in a process (default: 6; 4 of NAME=FOLDER)"
    )
    parser.add_argument("--micro-batch-tokens", type=int, default=2048, help="of ours")
    parser.add_argument("--trl-rows", type=int, help="TRL's micro-batch (default: all completions at once)")
    parser.add_argument("--warm-steps", type=int, default=500, help="of XS and S before (0: random weights)")
    parser.add_argument("--work", type=Path, help="folder that keeps the warm models for the next call")
    parser.add_argument("--one", nargs=4, metavar=("SIDE", "FOLDER", "SIZE", "THREADS"))
    args = parser.parse_args()
    if args.one:
        side, model, size, threads = args.one
        with tempfile.TemporaryDirectory() as scratch:
            found = {"ours": ours, "trl": trl}[side](model, json.loads(size), int(threads), Path(scratch))
        print(json.dumps(found))
        return
    environment = {k: os.environ[k] for k in one_thread.WANTED if k != "OMP_NUM_THREADS"}
    print(
        f"{'model':10}{'threads':>8}{'side':>6}{'s/iter':>9}{'CPU s':>9}{'tok/s':>8}{'MiB':>7}{'start s':>9}"
        f"{'reward':>8}{'A = 0':>7}"
    )
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.model:
            label, _, folder = name.partition("=")
            size = (SMALL if folder else TINY) | {"micro_batch_tokens": args.micro_batch_tokens}
            size["iterations"] = args.iterations or size["iterations"]
            completions = size["prompts"] * size["group"]
            size["trl_rows"] = args.trl_rows or completions
            if completions % size["trl_rows"]:
                parser.error(f"--trl-rows: {label} has {completions} completions, which it must divide")
            size["warm_steps"] = 0 if folder or name == "10m" else args.warm_steps
            steps = size["warm_steps"]
            folder = folder or shaped(name, (args.work or Path(scratch)) / f"{name}-{steps}", steps)
            for threads in args.threads:
                measure(label, folder, size, threads, args.turns, environment)
    print("A = 0: share of groups whose advantages are all 0. MiB: see the head of this file on TRL's.")


def measure(label: str, folder: str, size: dict, threads: int, turns: int, environment: dict) -> None:
    """Both sides in turn; prints and keeps the row."""
    runs: dict[str, list[dict]] = {side: [] for side in SIDES}
    env = os.environ | {"OMP_NUM_THREADS": str(threads)}
    for _ in range(turns):
        for side in SIDES:
            command = [sys.executable, __file__, "--one", side, folder, json.dumps(size), str(threads)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env)
            runs[side].append(json.loads(done.stdout.splitlines()[-1]))
    row = {"model": label, "threads": threads, **size, "turns": turns, "environment": environment}
    for side in SIDES:
        numbers = [k for k in runs[side][0] if k != "version"]
        row[side] = s = {k: statistics.median(r[k] for r in runs[side]) for k in numbers}
        s["range"] = {
            k: spread([r[k] for r in runs[side]], 4) for k in ("seconds", "cpu_seconds", "peak_mib")
        }
        print(
            f"{label:10}{threads:8}{side:>6}{s['seconds']:9.3f}{s['cpu_seconds']:9.3f}{s['tokens_a_second']:8.0f}"
            f"{s['peak_mib']:7.0f}{s['start_seconds']:9.2f}{s['reward']:8.3f}{s['zero_advantage']:7.2f}",
            flush=True
        )  # fmt: skip
    row["trl"]["version"] = runs["trl"][0]["version"]
    pairs = list(zip(runs["ours"], runs["trl"]))
    row["throughput_ratio"] = spread([a["tokens_a_second"] / b["tokens_a_second"] for a, b in pairs])
    row["cpu_ratio"] = spread([b["cpu_token"] / a["cpu_token"] for a, b in pairs])
    row["memory_ratio"] = spread([a["peak_mib"] / b["peak_mib"] for a, b in pairs])
    print(
        f"{'':18}x {row['throughput_ratio']}, by CPU x {row['cpu_ratio']}, memory x {row['memory_ratio']}",
        flush=True,
    )
    record.add("grpo_step", row, "model", "threads", "micro_batch_tokens", "trl_rows", "warm_steps")


if __name__ == "__main__":
    main()
