"""What the tiny models learn and what it costs on one core.

    python benchmarks/learning.py

Alone on XS base in three seeds (greedy accuracy before and after 50 iterations of 16 prompts x 12), and
the CPU seconds of a 50-iteration XS + XS pair with 16 prompts a node, after imports. One thread.
Writes benchmarks/results/learning.json.
"""

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import one_thread  # noqa: F401
import record
import torch

from ftis.config import Validation
from ftis.runs.train import train
from ftis.suite.suite import Suite
from ftis.tasks.problems import Dataset
from ftis.tasks.tiny.models import make_data, make_model, make_tokenizer

SEEDS = (42, 1, 2)


def main() -> None:
    torch.set_num_threads(1)
    tier = Suite.load().tier("tiny")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        make_tokenizer(root / "tok")
        make_data(root / "data", tier.data)
        data = Dataset(name="tiny", path=str(root / "data/train.jsonl"))
        test = Dataset(name="tiny", path=str(root / "data/validation.jsonl"), split="test")
        base = Suite.load().resolve("tiny", Suite.load().run("alone-base_small-s42"))
        rows = []
        for seed in SEEDS:
            began = time.process_time()
            make_model(tier.models["base_small"].tiny, seed, root / "tok", root / "data", root / f"m{seed}")
            warm = time.process_time() - began
            node = replace(base.nodes[0], model=str(root / f"m{seed}"), revision=None, device="cpu")
            config = replace(
                base,
                iterations=50,
                seed=seed,
                nodes=(node,),
                train=data,
                validation=Validation(data=test, every=50, max_new_tokens=64),
            )
            began = time.process_time()
            train(config, root / f"alone{seed}")
            lines = [
                json.loads(line) for line in (root / f"alone{seed}/metrics.jsonl").read_text().splitlines()
            ]
            before, after = (lines[i]["nodes"][0]["validation"]["greedy"]["accuracy"] for i in (0, -1))
            row = {
                "seed": seed,
                "before": before,
                "after": after,
                "warm_cpu_s": round(warm, 1),
                "alone_cpu_s": round(time.process_time() - began, 1),
            }
            rows.append(row)
            print(
                f"seed {seed}: greedy {before:.3f} -> {after:.3f} ({100 * (after - before):+.1f} points), "
                f"warm start {row['warm_cpu_s']} CPU s, 50 iterations with two validations "
                f"{row['alone_cpu_s']} CPU s",
                flush=True,
            )
        nodes = tuple(
            replace(base.nodes[0], name=n, model=str(root / "m42"), revision=None, device="cpu")
            for n in ("a", "b")
        )
        pair = replace(
            base,
            iterations=50,
            nodes=nodes,
            method="ftis",
            threshold=50.0,
            prompts=32,
            train=data,
            validation=Validation(),
        )
        began = time.process_time()
        train(pair, root / "pair")
        seconds = round(time.process_time() - began, 1)
        print(f"XS + XS, 32 prompts x 12, 50 iterations: {seconds} CPU s after imports")
        record.write("learning", alone=rows, pair_cpu_s=seconds)


if __name__ == "__main__":
    main()
