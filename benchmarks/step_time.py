"""Where an iteration's time goes, by phase and model size, against what the machine can do at most.

    python benchmarks/step_time.py                       # XS, S and a 10M Qwen2 shape, one thread

16 prompts x 12 completions of at most 48 tokens, one model alone, float32. The peaks are measured first: a float32
product of 1,024 x 1,024 matrices, and copying 256 MiB. Products are counted as 2 FLOP a weight and token in a forward,
6 in an update (forward, gradients of inputs and of weights), attention and elementwise passes not counted: the part of
the peak that a phase reaches is what it would take if nothing but its products took time. Writes
benchmarks/results/step_time.json.
"""

import one_thread  # noqa: F401  # isort: skip

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import record
import torch
from grpo_step import TINY, run_config, shaped

from ftis import train
from ftis.config import recipe_hash

PHASES = ("sample", "grade", "update")


class CpuPhase(train._Phase):
    """Counts CPU seconds, which other work on the machine changes less than wall time."""

    def __enter__(self) -> None:
        self.began = time.process_time()

    def __exit__(self, *_) -> None:
        self.account[self.name] = self.account.get(self.name, 0.0) + time.process_time() - self.began


def rate(amount: float, once, turns: int = 7) -> float:
    """Amount a CPU second, the best of several: a peak."""
    once()
    times = []
    for _ in range(turns):
        began = time.process_time()
        once()
        times.append(time.process_time() - began)
    return amount / min(times)


def peaks() -> dict[str, float]:
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    source = torch.ones(64 << 20)
    target = torch.empty_like(source)
    return {
        "gflops": round(rate(2 * 1024**3, lambda: a @ b) / 1e9, 1),
        "gb_a_second": round(rate(2 * source.nbytes, lambda: target.copy_(source)) / 1e9, 1),
    }


def measure(folder: str, scratch: Path, iterations: int) -> dict:
    config = run_config(folder, TINY | {"iterations": iterations}, scratch)
    swarm = train.Swarm(config, recipe_hash(config))
    lines, totals = [], []
    for step in range(1, iterations + 2):
        began = time.process_time()
        lines.append(swarm.iteration(step)["nodes"][0])
        totals.append(time.process_time() - began)
    kept, model = lines[1:], swarm.nodes[0].policy.model
    prompt_tokens = sum(map(len, swarm._prompts(1)[1]))
    generated = statistics.median(line["tokens_generated"] for line in kept)
    weights = sum(p.numel() for p in model.parameters())
    tokens = generated + prompt_tokens
    seconds = {phase: statistics.median(line["seconds"].get(phase, 0.0) for line in kept) for phase in PHASES}
    total = statistics.median(totals[1:])
    return {
        "parameters": weights, "tokens": int(generated), "cpu_seconds": round(total, 4),
        **{phase: round(s, 4) for phase, s in seconds.items()},
        "rest": round(total - sum(seconds.values()), 4),
        "sample_gflops": round(2 * weights * tokens / seconds["sample"] / 1e9, 1),
        "update_gflops": round(6 * weights * tokens / seconds["update"] / 1e9, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", nargs="+", default=["xs", "s", "10m"])
    parser.add_argument("--iterations", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    train._Phase = CpuPhase
    top, rows = peaks(), []
    print(f"peaks: {top['gflops']} GFLOP/s in products, {top['gb_a_second']} GB/s copied")
    names = ("model", "CPU s", *PHASES, "rest", "sample: of peak", "update: of peak")
    print("".join(f"{n:>17}" for n in names))
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.model:
            row = measure(shaped(name, Path(scratch) / name), Path(scratch), args.iterations)
            parts = [row[k] for k in ("cpu_seconds", *PHASES, "rest")]
            shares = [f"{row[f'{k}_gflops'] / top['gflops']:.0%}" for k in ("sample", "update")]
            print("".join(f"{v:>17}" for v in (name, *parts, *shares)), flush=True)
            rows.append({"model": name, **row})
    record.write("step_time", peaks=top, rows=rows)


if __name__ == "__main__":
    main()
