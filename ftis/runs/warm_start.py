"""Supervised warm start of a real model on worked solutions, so that it writes the format that earns rewards.

A small model that has never seen the format is rewarded once in hundreds of completions, and GRPO learns
nothing from groups whose rewards are all 0. The tiny models have a warm start of their own
(`ftis.tasks.tiny.models`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from pydantic import Field

from ftis.errors import UserError
from ftis.files import write_folder, write_json
from ftis.provenance import sha256
from ftis.settings import settings
from ftis.tasks.problems import Dataset, Problem, load_problems
from ftis.tasks.prompts import encode_prompt


@settings
class WarmStart:
    """Supervised steps on the training problems' own solutions."""

    steps: int = Field(ge=1)
    """Optimizer steps (AdamW, the rate falling linearly to 0)."""
    batch: int = Field(default=16, ge=1)
    """Solutions a step; the set is shuffled anew each pass."""
    learning_rate: float = Field(default=2e-5, gt=0)
    max_tokens: int = Field(default=512, ge=2)
    """Problems that take more tokens, prompt and solution together, are left out."""
    micro_batch: int = Field(default=4, ge=1)
    """Solutions in one forward and backward; changes memory and speed only."""


def solution_text(problem: Problem) -> str:
    """A problem's solution as a completion that earns the reward: GSM8K's calculator notes (<<3*4=12>>) are
    taken out and the answer is put into its tag. UserError where the data has no solution."""
    if not problem.solution:
        raise UserError(
            f"problem {problem.id}: {problem.task} has no worked solution to learn from; use gsm8k"
        )
    work = re.sub(r"<<[^<>]*>>", "", problem.solution).strip()
    return f"<think>\n{work}\n</think>\n<answer> {problem.gold} </answer>"


def warm_start(
    settings: WarmStart, seed: int, model: str, revision: str | None, prompt: str, data: Dataset, out: Path,
    compute_dtype: str = "float32", device: str = "auto",
    progress: Callable[[int, int, float], None] | None = None,
) -> dict:  # fmt: skip
    """Train `model` on the solutions of `data` behind `prompt`, and write it to `out` as a Hugging Face
    folder.

    The loss is the mean over the solutions' tokens, stop token included. progress: called as
    (step, steps, loss) after each step. Returns what `warm.json`, the last file written, holds.
    """
    import torch

    from ftis.model.loading import load_policy

    began = time.perf_counter()
    policy = load_policy(model, revision, device=device, compute_dtype=compute_dtype)
    end = policy.tokenizer.eos_token_id
    if end is None:
        raise UserError(
            f"model {model}: its tokenizer names no eos token, with which a solution must end; set "
            f"eos_token in its "
            "tokenizer_config.json"
        )
    rows = []
    for problem in load_problems(data):
        asked = encode_prompt(prompt, problem.question, policy.tokenizer)
        text = policy.tokenizer(solution_text(problem), add_special_tokens=False).input_ids
        rows.append((asked, [*text, end]))
    kept = [row for row in rows if len(row[0]) + len(row[1]) <= settings.max_tokens]
    if not kept:
        raise UserError(
            f"warm.max_tokens: none of {len(rows)} problems fits into {settings.max_tokens} tokens"
        )
    draw = np.random.default_rng(seed)
    passes = -(-settings.steps * settings.batch // len(kept))
    order = np.concatenate([draw.permutation(len(kept)) for _ in range(passes)])
    params = list(policy.trainable().values())
    optimizer = torch.optim.AdamW(
        params, settings.learning_rate, weight_decay=0.0, fused=policy.device.type == "cuda" or None
    )
    losses = []
    for step in range(settings.steps):
        batch = [kept[i] for i in order[step * settings.batch : (step + 1) * settings.batch]]
        count = sum(len(completion) for _, completion in batch)
        loss = 0.0
        for first in range(0, len(batch), settings.micro_batch):
            prompts, completions = zip(*batch[first : first + settings.micro_batch])

            def loss_of(_rows, logp, *_, count=count) -> torch.Tensor:
                nonlocal loss
                part = -logp.sum() / count
                loss += part.item()
                return part

            policy.accumulate_gradient(prompts, completions, loss_of)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - step / settings.steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss)
        if progress:
            progress(step + 1, settings.steps, loss)
    facts = {
        "settings": asdict(settings), "seed": seed, "model": model, "revision": revision, "prompt": prompt,
        "data": asdict(data), "problems": len(kept), "left_out": len(rows) - len(kept),
        "loss": [round(float(np.mean(part)), 4) for part in np.array_split(losses, min(5, len(losses)))],
    }  # fmt: skip
    with write_folder(out) as partial:
        policy.save(partial)
        facts |= {"sha256": sha256(partial), "seconds": round(time.perf_counter() - began, 1)}
        write_json(partial / "warm.json", facts)
    return facts
