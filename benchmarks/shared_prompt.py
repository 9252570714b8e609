"""Forward and backward of completions' log-probs with a group's prompt read once, against the plain path.

    python benchmarks/shared_prompt.py

16 prompts x 12 completions on fresh XS and S models, one thread; CPU seconds, medians of 7 with lowest and highest, the
two paths in turn. Writes benchmarks/results/shared_prompt.json.
"""

import one_thread  # noqa: F401  # isort: skip

import tempfile
import time
from pathlib import Path

import numpy as np
import record
import torch
from measures import spread

from ftis.policy import load_policy
from ftis.tiny import build_model, make_tokenizer


def main() -> None:
    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    groups = [draw.integers(4, 70, draw.integers(15, 24)).tolist() for _ in range(16)]
    shared = [prompt for prompt in groups for _ in range(12)]
    plain = [list(prompt) for prompt in shared]
    completions = [draw.integers(4, 70, draw.integers(27, 35)) for _ in shared]
    rows, ranges = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        for size in ("xs", "s"):
            folder = Path(scratch) / size
            make_tokenizer(folder)
            build_model(size).save_pretrained(folder)
            policy = load_policy(str(folder), device="cpu")
            times = {"shared": [], "plain": []}
            for turn in range(8):
                for name, prompts in (("shared", shared), ("plain", plain)):
                    policy.model.zero_grad()
                    began = time.process_time()
                    policy.token_logprobs(prompts, completions)[0].sum().backward()
                    if turn:  # the first warms up
                        times[name].append(time.process_time() - began)
            ranges[size] = {name: spread(values, 4) for name, values in times.items()}
            rows[size] = {name: found[1] for name, found in ranges[size].items()}
            print(f"{size}: shared {ranges[size]['shared']} CPU s, plain {ranges[size]['plain']} CPU s")
    record.write("shared_prompt", cpu_seconds=rows, range=ranges)


if __name__ == "__main__":
    main()
