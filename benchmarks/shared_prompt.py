"""Forward and backward of completions' log-probs with a group's prompt read once, against the plain path.

    python benchmarks/shared_prompt.py

16 prompts x 12 completions on fresh XS and S models, one thread; medians of 7, the two paths in turn.
Writes benchmarks/results/shared_prompt.json.
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import record
import torch

from ftis.policy import load_policy
from ftis.tiny import build_model, make_tokenizer


def main() -> None:
    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    groups = [draw.integers(4, 70, draw.integers(15, 24)).tolist() for _ in range(16)]
    shared = [prompt for prompt in groups for _ in range(12)]
    plain = [list(prompt) for prompt in shared]
    completions = [draw.integers(4, 70, draw.integers(27, 35)) for _ in shared]
    rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        for size in ("xs", "s"):
            folder = Path(scratch) / size
            make_tokenizer(folder)
            build_model(size).save_pretrained(folder)
            policy = load_policy(str(folder))
            times = {"shared": [], "plain": []}
            for turn in range(8):
                for name, prompts in (("shared", shared), ("plain", plain)):
                    policy.model.zero_grad()
                    began = time.process_time()
                    policy.token_logprobs(prompts, completions)[0].sum().backward()
                    if turn:  # the first warms up
                        times[name].append(time.process_time() - began)
            rows[size] = {name: round(statistics.median(values), 4) for name, values in times.items()}
            print(f"{size}: shared {rows[size]['shared']} CPU s, plain {rows[size]['plain']} CPU s")
    record.write("shared_prompt", cpu_seconds=rows)


if __name__ == "__main__":
    main()
