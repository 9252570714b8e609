"""A real language model through warm start and GRPO on a CPU: SmolLM2-135M, full and LoRA, on easy GSM8K
questions.

    python workflow/scripts/smollm2.py models/smollm2
    FTIS_DATA=/data python benchmarks/small_pair.py models/smollm2

A demonstration that the small tier's parts work, cut to what a CPU core does in a quarter of an hour: warm
start and training both use the 32 training questions whose texts are shortest, so rewards say nothing about
other questions. Writes benchmarks/results/small_pair.json.
"""

import one_thread  # noqa: F401  isort: skip

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from ftis.config import RUN_CONFIG
from ftis.files import write_json
from ftis.provenance import provenance
from ftis.runs.train import train
from ftis.runs.warm_start import WarmStart, warm_start
from ftis.settings import parse
from ftis.tasks.problems import Dataset, load_problems

QUESTIONS = 32
WARM = WarmStart(steps=24, batch=8, learning_rate=1e-4, micro_batch=8)
PAIR = {
    "method": "ftis",
    "threshold": 50,
    "iterations": 3,
    "prompts": 12,
    "group_size": 6,
    "threads": 1,
    "rollout": {"prompt": "chat-v1", "max_new_tokens": 96},
    "optim": {"micro_batch_tokens": 2048, "skip_zero_advantage": True},
}
RATES = {"full": 1e-6, "lora": 1e-4}
LORA = {"r": 128, "alpha": 256}


def main(model: str) -> None:
    easy = sorted(
        load_problems(Dataset(name="gsm8k")), key=lambda p: (len(p.question) + len(p.solution), p.id)
    )
    seconds = {}
    with tempfile.TemporaryDirectory() as scratch:
        data, warm, run = (Path(scratch) / name for name in ("easy.jsonl", "warm", "run"))
        data.write_text(
            "".join(
                json.dumps({"question": p.question, "answer": f"{p.solution}#### {p.gold}"}) + "\n"
                for p in easy[:QUESTIONS]
            )
        )
        questions = Dataset(name="gsm8k", path=str(data))
        began = time.process_time()
        facts = warm_start(
            WARM, 42, model, None, PAIR["rollout"]["prompt"], questions, warm, device="cpu",
            progress=lambda step, steps, loss: print(f"warm start {step}/{steps}: loss {loss:.3f}",
            flush=True),
        )  # fmt: skip
        seconds["warm_start"] = round(time.process_time() - began)
        nodes = [
            {
                "name": kind,
                "model": str(warm),
                "learning_rate": rate,
                "lora": LORA if kind == "lora" else None,
                "device": "cpu",
            }
            for kind, rate in RATES.items()
        ]
        train_on = {"name": "gsm8k", "path": str(data)}
        config = parse(RUN_CONFIG, PAIR | {"name": "pair", "nodes": nodes, "train": train_on}, "small_pair")
        began = time.process_time()
        train(config, run)
        seconds["training"] = round(time.process_time() - began)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][1:]
    keys = (
        "label",
        "reward",
        "accuracy",
        "format_rate",
        "length",
        "truncated",
        "zero_advantage",
        "grad_norm",
    )
    rows = [
        {"step": line["step"]}
        | {k: round(node[k], 4) if isinstance(node[k], float) else node[k] for k in keys}
        | {
            "reward_variance": round(node["reward"] * (1 - node["reward"]), 4),
            "mismatch_max": node["mismatch"] and node["mismatch"]["max"],
        }
        for line in lines
        for node in line["nodes"]
    ]
    for row in rows:
        print(row)
    write_json(Path(__file__).parent / "results/small_pair.json", {
        "model": "SmolLM2-135M-Instruct, weights unpacked from 4 bits", "questions": QUESTIONS,
        "warm_start": {k: facts[k] for k in ("settings", "loss", "problems")},
        "training": PAIR | {"learning_rate": RATES, "lora": LORA}, "iterations": rows, "cpu_seconds": seconds,
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        **{k: v for k, v in provenance().items() if k in ("git", "cpu", "packages")},
    })  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
