"""Where an iteration's time goes, by phase and model size, against what the machine can do at most.

    python benchmarks/step_time.py                       # XS, S and a 10M Qwen2 shape, one thread

16 prompts x 12 completions of at most 48 tokens, one model alone, float32. The peaks are measured first: a
float32 product of 1,024 x 1,024 matrices, and copying 256 MiB. Products are counted as 2 FLOP a weight and
token in a forward, 6 in an update (forward, gradients of inputs and of weights), attention and elementwise
passes not counted: the part of the peak that a phase reaches is what it would take if nothing but its
products took time. Beside it stands what an update's traffic would take at the copy's bandwidth, at least:
what autograd keeps for the backward is written once and read once. Much of that stays in caches, so this says
when memory could be the limit, not that it is. Puts its rows into benchmarks/results/step_time.json.
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
from measures import spread

from ftis.swarm.loop import Swarm
from ftis.swarm.node import Node

PHASES = ("sample", "grade", "update")


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


class Kept:
    """Bytes that autograd keeps for the backward in a `with` block, weights apart."""

    def __init__(self, model: torch.nn.Module):
        self.bytes = 0
        self.weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.count, lambda tensor: tensor)

    def count(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.weights:
            self.bytes += min(tensor.nbytes, storage.nbytes())  # an expanded tensor is read from less
        return tensor

    def __enter__(self):
        self.hooks.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self.hooks.__exit__(*error)


def measure(folder: str, scratch: Path, iterations: int, peak: dict[str, float]) -> dict:
    config = run_config(folder, TINY | {"iterations": iterations}, scratch)
    swarm = Swarm(config)
    lines, totals = [], []
    for step in range(1, iterations + 2):
        began = time.process_time()
        lines.append(swarm.iteration(step).nodes[0])
        totals.append(time.process_time() - began)
    kept, model = lines[1:], swarm.nodes[0].policy.model
    prompt_tokens = sum(map(len, swarm.asked(1).prompts))
    generated = statistics.median(line.tokens_generated for line in kept)
    weights = sum(p.numel() for p in model.parameters())
    tokens = generated + prompt_tokens
    ranges = {phase: spread([line.seconds.get(phase, 0.0) for line in kept], 4) for phase in PHASES}
    ranges["cpu_seconds"] = spread(totals[1:], 4)
    seconds = {name: found[1] for name, found in ranges.items()}
    with Kept(model) as for_backward:  # an iteration that isn't timed
        swarm.iteration(iterations + 2)
    return {
        "parameters": weights, "tokens": int(generated), **seconds,
        "rest": round(seconds["cpu_seconds"] - sum(seconds[phase] for phase in PHASES), 4),
        "sample_gflops": round(2 * weights * tokens / seconds["sample"] / 1e9, 1),
        "update_gflops": round(6 * weights * tokens / seconds["update"] / 1e9, 1),
        "kept_mib": round(for_backward.bytes / 2**20),
        "update_traffic": round(2 * for_backward.bytes / peak["gb_a_second"] / 1e9 / seconds["update"], 3),
        "range": ranges, "peaks": peak,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", nargs="+", default=["xs", "s", "10m"])
    parser.add_argument("--iterations", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    # CPU seconds, which other work on the machine changes less than wall time.
    Node.clock = staticmethod(time.process_time)
    top = peaks()
    print(f"peaks: {top['gflops']} GFLOP/s in products, {top['gb_a_second']} GB/s copied")
    names = ("model", "CPU s", *PHASES, "rest", "sample: of peak", "update: of peak", "update: traffic")
    print("".join(f"{n:>17}" for n in names))
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.model:
            row = measure(shaped(name, Path(scratch) / name), Path(scratch), args.iterations, top)
            parts = [row[k] for k in ("cpu_seconds", *PHASES, "rest")]
            shares = [f"{row[f'{k}_gflops'] / top['gflops']:.0%}" for k in ("sample", "update")]
            shares.append(f"{row['update_traffic']:.0%}")
            print("".join(f"{v:>17}" for v in (name, *parts, *shares)), flush=True)
            record.add("step_time", {"model": name, **row}, "model")


if __name__ == "__main__":
    main()
