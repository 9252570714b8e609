"""Forward and backward of completions' log-probs: packed, packed with each row's own prompt, and in padded
rows.

    python benchmarks/packing.py

16 prompts x 12 completions of 5 to 48 tokens on fresh XS and S models, one thread; CPU seconds, medians of 7
with lowest and highest, the paths in turn. Padded rows go through transformers' own forward with SDPA, a
prompt in each; the log-prob head is the same. Writes benchmarks/results/packing.json.
"""

import one_thread  # noqa: F401  # isort: skip

import tempfile
import time
from pathlib import Path

import numpy as np
import record
import torch
from measures import spread
from transformers import AutoModelForCausalLM

from ftis.model.loading import load_policy
from ftis.model.logprobs import TokenLogprob
from ftis.tasks.tiny.models import build_model, make_tokenizer


def padded(model, prompts, completions) -> torch.Tensor:
    """The sum of log-probs, of rows padded on the right."""
    rows = [[*p, *c] for p, c in zip(prompts, completions)]
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    predicts = torch.zeros(ids.shape, dtype=torch.bool)
    for i, (row, prompt) in enumerate(zip(rows, prompts)):
        ids[i, : len(row)] = torch.tensor(row)
        predicts[i, len(prompt) - 1 : len(row) - 1] = True
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[predicts]
    logp, _ = TokenLogprob.apply(hidden, model.lm_head.weight, ids.roll(-1, 1)[predicts], 1.0)
    return logp.sum()


def main() -> None:
    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    groups = [draw.integers(4, 70, draw.integers(15, 24)).tolist() for _ in range(16)]
    shared = [prompt for prompt in groups for _ in range(12)]
    own = [[4 + i % 64, 4 + i // 64, *prompt[2:]] for i, prompt in enumerate(shared)]
    completions = [draw.integers(4, 70, draw.integers(5, 49)).tolist() for _ in shared]
    ranges = {}
    with tempfile.TemporaryDirectory() as scratch:
        for size in ("xs", "s"):
            folder = Path(scratch) / size
            make_tokenizer(folder)
            build_model(size).save_pretrained(folder)
            policy = load_policy(str(folder), device="cpu")
            plain = AutoModelForCausalLM.from_pretrained(folder)
            paths = {
                "packed": lambda policy=policy: policy.token_logprobs(shared, completions)[0].sum(),
                "own_prompts": lambda policy=policy: policy.token_logprobs(own, completions)[0].sum(),
                "padded": lambda plain=plain: padded(plain, own, completions),
            }
            times = {name: [] for name in paths}
            for turn in range(8):
                for name, path in paths.items():
                    began = time.process_time()
                    path().backward()
                    if turn:  # the first warms up
                        times[name].append(time.process_time() - began)
            ranges[size] = {name: spread(values, 4) for name, values in times.items()}
            print(f"{size}: " + ", ".join(f"{name} {found} CPU s" for name, found in ranges[size].items()))
    record.write("packing", cpu_seconds=ranges)


if __name__ == "__main__":
    main()
