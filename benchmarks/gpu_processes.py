"""Stages 7 and 8 of `gpu_proof.py`: several processes on one card, and vLLM's engine beside a trainer."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import yaml
from gpu_models import draw_prompts, free, log_ratio, policy_of, run_config
from gpu_stages import NotHere, Report, Size

from ftis.model.policy import Policy
from ftis.model.sampler import Request, SamplingParams
from ftis.model.vllm.sampler import VllmSampler, changed_weights
from ftis.suite.memory import GIB
from ftis.tasks.tiny.models import DataSettings, build_model, make_data, make_tokenizer

ROOT = Path(__file__).resolve().parents[1]
NOTHING_RAN = 5
"""pytest's exit code where it collected no test; here also where none passed."""
GPU_SHARE = 0.3
"""Of the card, for the engine."""


def processes(size: Size, device: torch.device, report: Report) -> None:
    """7: a run with a process a node on one card, and the tests that need a GPU. The tests make their own
    tiny models first, a minute on a CPU."""
    if device.type != "cuda":
        raise NotHere("it is about two processes on one GPU")
    with tempfile.TemporaryDirectory() as folder:
        report.add(**launch_two(Path(folder)))
    ended = _run(["-m", "pytest", "-m", "gpu", "tests/model/test_gpu.py", "-q", "-p", "no:cacheprovider"])
    passed = re.search(r"(\d+) passed", ended.stdout)
    report.add(
        gpu_tests=ended.stdout.strip().splitlines()[-1:],
        gpu_tests_exit_code=ended.returncode if passed else ended.returncode or NOTHING_RAN,
    )


def launch_two(folder: Path) -> dict[str, int]:
    """Two tiny nodes with random weights, each in a process of its own; its exit code, and whether it is
    finished."""
    make_tokenizer(folder / "tok")
    make_data(folder / "data", DataSettings(train=16, validation=4, ood=4))
    for k in range(2):
        torch.manual_seed(k)
        build_model("xs").save_pretrained(folder / f"node{k}")
        make_tokenizer(folder / f"node{k}")
    settings = folder / "run.yaml"
    settings.write_text(yaml.safe_dump({
        "name": "proof", "method": "tis", "transport": "processes", "iterations": 2, "prompts": 4,
        "group_size": 4,
        "nodes": [{"name": f"node{k}", "model": str(folder / f"node{k}")} for k in range(2)],
        "train": {"name": "tiny", "path": str(folder / "data/train.jsonl")},
        "rollout": {"prompt": "tiny-v1", "max_new_tokens": 24},
    }))  # fmt: skip
    ended = _run(["-m", "ftis.cli", "train", str(settings), "--out", str(folder / "run")])
    exchanged = 0
    if ended.returncode == 0:
        lines = (folder / "run/metrics.jsonl").read_text().splitlines()
        exchanged = min(n["bytes_received"] for n in json.loads(lines[-1])["nodes"])
    return {"launch_exit_code": ended.returncode, "bytes_received": exchanged}


def _run(arguments: list[str]) -> subprocess.CompletedProcess:
    """Python with these arguments in the checkout; what it says goes to this stage's log."""
    ended = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    print(ended.stdout, ended.stderr, sep="\n", flush=True)
    return ended


def engine(size: Size, device: torch.device, report: Report) -> None:
    """8: an engine of vLLM on the trainer's card: its log-probs before an update and after it, what it holds
    while it sleeps, and how long it takes to take up new weights."""
    if importlib.util.find_spec("vllm") is None:
        raise NotHere("vLLM isn't installed")
    config = run_config(size, device)
    policy = policy_of(size.small, size, config, device)
    with tempfile.TemporaryDirectory() as folder:
        policy.save(Path(folder))
        free(device)
        before = _free_bytes(device)
        began = time.perf_counter()
        sampler = VllmSampler(
            folder, None, policy.tokenizer, "bfloat16", size.total_tokens, size.rows, policy, GPU_SHARE
        )
        report.add(start_s=time.perf_counter() - began)
        try:
            first = _mismatch(sampler, policy, size, run=0)
            report.add(before=first, mismatch_mean=first["mismatch_mean"])
            with sampler.updating():
                free(device)
                report.add(asleep_gib=(before - _free_bytes(device)) / GIB)
                _change(policy)
                pushing = time.perf_counter()
            seconds = time.perf_counter() - pushing
            pushed = sum(t.numel() for _, t in changed_weights(policy)) * policy.compute_dtype.itemsize
            second = _mismatch(sampler, policy, size, run=1)
            report.add(
                push_s=seconds, pushed_gb=pushed / 1e9, push_gb_per_s=pushed / 1e9 / seconds, after=second,
                # Weights that weren't taken up, or graphs that still read the old ones, would be far off.
                mismatch_mean=max(first["mismatch_mean"], second["mismatch_mean"]),
            )  # fmt: skip
        finally:
            del sampler  # ends its process


def _free_bytes(device: torch.device) -> int:
    """Of the card, for all processes; 0 on a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


@torch.no_grad()
def _change(policy: Policy) -> None:
    """All matrices of the layers become others of the same size."""
    for weight in policy.trainable().values():
        if weight.ndim == 2:
            weight.copy_(weight.flip(0))


def _mismatch(sampler: VllmSampler, policy: Policy, size: Size, run: int) -> dict[str, float]:
    prompts = draw_prompts(size, 4, seed=run)
    requests = [Request(p, [(run, i, s) for s in range(4)]) for i, p in enumerate(prompts)]
    found = sampler.sample(requests, SamplingParams(min(64, size.total_tokens - size.prompt_tokens[1])))
    rows = [(r.prompt, c) for r, cs in zip(requests, found) for c in cs]
    with torch.no_grad():
        logp, _, mask = policy.token_logprobs([p for p, _ in rows], [c.tokens for _, c in rows])
    said = torch.from_numpy(np.concatenate([c.logprobs for _, c in rows]))
    return log_ratio(logp[mask].cpu(), said)
