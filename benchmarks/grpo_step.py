"""One GRPO iteration, ours against TRL's GRPOTrainer, in turn on the same machine.

    pip install trl==1.16.0
    python benchmarks/grpo_step.py                       # XS, S and a 10M Qwen2 shape, one thread and two
    python benchmarks/grpo_step.py --model smollm2=DIR --threads 2

Both sides: the same model folder, prompts, completions a prompt, longest completion, float32, AdamW, reward function
(ours), one update an iteration, no reference model, no checkpoint, and the same malloc settings. TRL takes an
iteration's completions in one batch; ours in micro-batches of 2,048 tokens. Each measurement is a process of its own,
A B A B; an iteration's time is the median without the first, memory is the peak above what the process held after its
imports. Writes benchmarks/results/grpo_step.json.
"""

import one_thread  # isort: skip

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record

SIDES = ("ours", "trl")
TINY = {"prompts": 16, "group": 12, "tokens": 48, "iterations": 6}
SMALL = {"prompts": 2, "group": 4, "tokens": 64, "iterations": 4}


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def questions(count: int) -> list[dict]:
    import random

    from ftis.tiny_data import make_problem

    rng = random.Random(0)
    problems = [make_problem(rng, rng.choice((2, 3))) for _ in range(count)]
    return [
        {"id": str(i), "question": p.question, "answer": f"#### {p.gold}"} for i, p in enumerate(problems)
    ]


def run_config(model: str, size: dict, scratch: Path):
    """Settings of our side: one model alone, an iteration more than are counted."""
    from ftis.config import RUN_CONFIG, parse

    data = scratch / "train.jsonl"
    data.write_text("".join(json.dumps(q) + "\n" for q in questions(64)))
    return parse(RUN_CONFIG, {
        "name": "benchmark", "method": "alone", "nodes": [{"name": "a", "model": model, "learning_rate": 1e-5}],
        "train": {"name": "tiny", "path": str(data)}, "prompts": size["prompts"], "group_size": size["group"],
        "rollout": {"prompt": "tiny-v1", "max_new_tokens": size["tokens"]},
        "optim": {"name": "adamw", "micro_batch_tokens": 2048}, "iterations": size["iterations"] + 1,
    }, "benchmark")  # fmt: skip


def ours(model: str, size: dict, threads: int, scratch: Path) -> dict:
    began = time.perf_counter()
    import torch

    from ftis import train
    from ftis.config import recipe_hash

    torch.set_num_threads(threads)
    held = peak_mib()
    config = run_config(model, size, scratch)
    swarm = train.Swarm(config, recipe_hash(config))
    started = time.perf_counter() - began
    wall, cpu, tokens = [], [], []
    for step in range(1, config.iterations + 1):
        wall_0, cpu_0 = time.perf_counter(), time.process_time()
        line = swarm.iteration(step)
        wall.append(time.perf_counter() - wall_0)
        cpu.append(time.process_time() - cpu_0)
        tokens.append(line["nodes"][0]["tokens_generated"])
    return report(wall, cpu, tokens, held, started)


def trl(model: str, size: dict, threads: int, scratch: Path) -> dict:
    began = time.perf_counter()
    import logging

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from ftis.rewards import grade_many

    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    held = peak_mib()
    tokens: list[int] = []

    def reward(prompts, completions, completion_ids, gold, **_):
        tokens.append(sum(map(len, completion_ids)))
        return [v.reward for v in grade_many([(c, a, "tiny") for c, a in zip(completions, gold)])]

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
            output_dir=str(scratch), per_device_train_batch_size=batch, num_generations=size["group"],
            max_completion_length=size["tokens"], temperature=1.0, top_k=0, beta=0.0, num_iterations=1,
            loss_type="grpo", learning_rate=1e-5, optim="adamw_torch", max_steps=size["iterations"] + 1,
            gradient_checkpointing=False, bf16=False, use_cpu=True, save_strategy="no", report_to="none",
            logging_strategy="no", disable_tqdm=True, seed=0,
        ),
        train_dataset=Dataset.from_list([{"prompt": q["question"], "gold": q["answer"].split()[-1]} for q in questions(64)]),
        processing_class=PreTrainedTokenizerFast.from_pretrained(model, padding_side="left"),
        callbacks=[Clock()],
    )  # fmt: skip
    started = time.perf_counter() - began
    trainer.train()
    wall, cpu = ([b[i] - a[i] for a, b in itertools.pairwise(marks)] for i in (0, 1))
    return report(wall, cpu, tokens, held, started)


def report(wall: list[float], cpu: list[float], tokens: list[int], held: float, started: float) -> dict:
    """Medians without the first iteration, which warms up."""
    seconds = statistics.median(wall[1:])
    return {
        "seconds": round(seconds, 4), "cpu_seconds": round(statistics.median(cpu[1:]), 4),
        "tokens_a_second": round(statistics.median(tokens[1:]) / seconds),
        "cpu_token": statistics.median(c / t for c, t in zip(cpu[1:], tokens[1:], strict=True)),
        "completion_tokens": int(statistics.median(tokens[1:])),
        "peak_mib": round(peak_mib() - held), "start_seconds": round(started, 2),
    }  # fmt: skip


def shaped(name: str, folder: Path) -> str:
    """A fresh model of a tiny size or of 10M parameters, with the tiny tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from ftis.tiny import EOS, build_model, make_tokenizer, vocabulary

    torch.manual_seed(0)
    make_tokenizer(folder)
    if name != "10m":
        build_model(name).save_pretrained(folder)
        return str(folder)
    tokens = vocabulary()
    Qwen2ForCausalLM(Qwen2Config(
        hidden_size=256, num_hidden_layers=10, intermediate_size=1024, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=len(tokens), tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokens.index(EOS),
        max_position_embeddings=512, dtype="float32",
    )).save_pretrained(folder)  # fmt: skip
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", nargs="+", default=["xs", "s", "10m"], help="xs, s, 10m, or NAME=FOLDER")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--turns", type=int, default=3, help="processes a side")
    parser.add_argument("--one", nargs=4, metavar=("SIDE", "FOLDER", "SIZE", "THREADS"))
    args = parser.parse_args()
    if args.one:
        side, model, size, threads = args.one
        with tempfile.TemporaryDirectory() as scratch:
            found = {"ours": ours, "trl": trl}[side](model, json.loads(size), int(threads), Path(scratch))
        print(json.dumps(found))
        return
    from ftis.provenance import versions

    out = Path(__file__).parent / "results/grpo_step.json"
    malloc = {k: os.environ[k] for k in one_thread.WANTED if k.startswith("MALLOC")}
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    head = (
        f"{'model':10}{'threads':>8}{'side':>6}{'s/iter':>9}{'CPU s':>9}{'tok/s':>8}{'MiB':>7}{'start s':>9}"
    )
    print(head)
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.model:
            label, _, folder = name.partition("=")
            folder = folder or shaped(name, Path(scratch) / name)
            size = SMALL if "=" in name else TINY
            for threads in args.threads:
                runs: dict[str, list[dict]] = {side: [] for side in SIDES}
                for _ in range(args.turns):
                    for side in SIDES:
                        command = [
                            sys.executable,
                            __file__,
                            "--one",
                            side,
                            folder,
                            json.dumps(size),
                            str(threads),
                        ]
                        env = os.environ | {"OMP_NUM_THREADS": str(threads)}
                        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env)
                        runs[side].append(json.loads(done.stdout.splitlines()[-1]))
                row = {"model": label, "threads": threads, **size, "load": round(os.getloadavg()[0], 1)}
                for side in SIDES:
                    row[side] = {k: statistics.median(r[k] for r in runs[side]) for k in runs[side][0]}
                    s = row[side]
                    print(
                        f"{label:10}{threads:8}{side:>6}{s['seconds']:9.3f}{s['cpu_seconds']:9.3f}"
                        f"{s['tokens_a_second']:8.0f}{s['peak_mib']:7.0f}{s['start_seconds']:9.2f}", flush=True
                    )  # fmt: skip
                pairs = list(zip(runs["ours"], runs["trl"]))
                row["throughput_ratio"] = ratios(
                    [a["tokens_a_second"] / b["tokens_a_second"] for a, b in pairs]
                )
                row["cpu_ratio"] = ratios([b["cpu_token"] / a["cpu_token"] for a, b in pairs])
                row["memory_ratio"] = ratios([a["peak_mib"] / b["peak_mib"] for a, b in pairs])
                print(
                    f"{'':18}x {row['throughput_ratio']}, by CPU x {row['cpu_ratio']}, memory x {row['memory_ratio']}",
                    flush=True,
                )
                rows = [r for r in rows if (r["model"], r["threads"]) != (label, threads)] + [row]
                record.write("grpo_step", rows=rows, malloc=malloc, **versions(("trl",)))


def ratios(values: list[float]) -> list[float]:
    """Lowest, median and highest."""
    return [round(f(values), 2) for f in (min, statistics.median, max)]


if __name__ == "__main__":
    main()
