"""One node's iterations on a model with random weights: seconds, tokens a second, MFU, and peak memory beside
the estimate.

    python benchmarks/gpu_step.py --shape 3b                 # Qwen2.5-3B's shape on one GPU, bfloat16 compute
    python benchmarks/gpu_step.py --shape 1.5b --lora
    python benchmarks/gpu_step.py --shape toy --prompts 2 --group 4 --new-tokens 24    # seconds on a CPU

No model or data is downloaded: the weights and the prompts are random, so nothing is learned, and all
completions run to their full length. It has run on a CPU at the toy size; on a GPU it has not run yet. Two
iterations are made, since Adam's moments are there from the first update on; the second is reported. On a CPU
the peak is that of the process's resident memory over what it was before the model was made.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path

RETURN_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
if __name__ == "__main__" and any(os.environ.get(k) != v for k, v in RETURN_AT_ONCE.items()):
    # Freed memory then goes back to the system, so that resident memory is what is really held.
    os.environ.update(RETURN_AT_ONCE)
    os.execv(sys.executable, [sys.executable, *sys.argv])  # malloc reads its settings when a process starts

import numpy as np
import torch

from ftis.config import RUN_CONFIG
from ftis.errors import UserError
from ftis.model.adapter import add_lora
from ftis.model.loading import pick_device
from ftis.model.policy import Policy
from ftis.settings import parse
from ftis.suite import cost, memory
from ftis.swarm.node import Asked, Node
from ftis.swarm.samples import Sampled, Samples, Share
from ftis.tasks.problems import Problem

SHAPES = {
    # arXiv 2409.12186, table 1; the padded vocabulary is that of the checkpoints.
    "1.5b": {
        "hidden_size": 1536,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "intermediate_size": 8960,
    },
    "3b": {
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "intermediate_size": 11008,
    },
    "toy": {"hidden_size": 128, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 512},
}
VOCABULARY = {"1.5b": (151936, 151665), "3b": (151936, 151665), "toy": (50304, 50000)}
"""Rows of the embedding, and ids of the tokenizer."""
PROMPT_TOKENS = 112  # the mean of GSM8K under chat-v1


def main() -> None:
    given = options().parse_args()
    try:
        result = measure(given)
    except UserError as error:
        sys.exit(f"error: {error}")
    print(json.dumps(result) if given.json else "\n".join(f"{k:24} {v}" for k, v in result.items()))


def options() -> argparse.ArgumentParser:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("--shape", choices=SHAPES, default="1.5b")
    about.add_argument("--lora", action="store_true", help="train an adapter (r 128) instead of all weights")
    about.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="of compute (default: bfloat16 on a GPU)"
    )
    about.add_argument("--no-checkpointing", action="store_true", help="keep all activations")
    about.add_argument("--prompts", type=int, default=16)
    about.add_argument("--group", type=int, default=12)
    about.add_argument("--new-tokens", type=int, default=300)
    about.add_argument("--micro-batch-tokens", type=int, default=4096)
    about.add_argument("--device", default="auto")
    about.add_argument("--json", action="store_true", help="print one JSON object")
    return about


def measure(given: argparse.Namespace) -> dict:
    device = pick_device(given.device)
    # What MFU is a share of; None where the table lacks it.
    card = cost.gpu_of_device(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    rows, ids = VOCABULARY[given.shape]
    shape = memory.Shape(**SHAPES[given.shape], num_key_value_heads=2, vocab_size=rows)
    config = parse(RUN_CONFIG, {
        "name": "step", "method": "alone", "iterations": 2, "prompts": given.prompts,
        "group_size": given.group,
        "train": {"name": "gsm8k"},
        "rollout": {"prompt": "tiny-v1", "max_new_tokens": given.new_tokens, "max_batch": 144},
        "optim": {"micro_batch_tokens": given.micro_batch_tokens},
        "nodes": [{
            "name": "node", "model": "random", "lora": {} if given.lora else None, "device": str(device),
            "compute_dtype": given.dtype or ("bfloat16" if device.type == "cuda" else "float32"),
            "gradient_checkpointing": not given.no_checkpointing,
        }],
    }, "gpu_step")  # fmt: skip
    warm_libraries(device)
    before = peak_memory(device, reset=True)
    node = Node(0, config, random_policy(shape, ids, config, device))
    draw = np.random.default_rng(0)
    prompts = [draw.integers(5, ids, PROMPT_TOKENS).tolist() for _ in range(given.prompts)]
    problems = [Problem(str(i), "", "1", "gsm8k") for i in range(given.prompts)]
    for step in (1, 2):
        node.seconds = {}
        sampled = node.sample(step, Asked(problems, prompts))
        # Half of each group is rewarded, so that every completion has an advantage and a gradient.
        rollouts = dataclasses.replace(
            sampled.rollouts, reward=(sampled.rollouts.sample % 2).astype(np.float32)
        )
        samples = Samples.gather([Share(step, 0, rollouts)], {step: prompts}, 0)
        began = time.perf_counter()
        line = node.learn(step, samples, Sampled(rollouts, sampled.verdicts))
        synchronize(device)
        node.seconds["update"] = time.perf_counter() - began
    peak = peak_memory(device) - before
    (batch,) = memory.batches_of(config, given.prompts * given.group, 0, PROMPT_TOKENS)
    estimate = memory.node_memory(shape, config.nodes[0], given.micro_batch_tokens, given.group, [batch], ids)
    trained = line.tokens_trained + given.prompts * PROMPT_TOKENS  # each prompt is read once
    flops = cost.update_flops(shape, config.nodes[0], trained, line.tokens_trained)
    seconds = {k: round(node.seconds[k], 3) for k in ("sample", "update")}
    return {
        "shape": given.shape, "parameters": shape.parameters,
        "trained": sum(p.numel() for p in node.params.values()),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "compute": config.nodes[0].compute_dtype,
        "gradient_checkpointing": not given.no_checkpointing, "lora": given.lora, "grad_norm": line.grad_norm,
        "seconds": seconds,
        "sampled_tokens_per_s": round(line.tokens_generated / seconds["sample"], 1),
        "trained_tokens_per_s": round(trained / seconds["update"], 1),
        "update_tflops_per_s": round(flops / seconds["update"] / 1e12, 3),
        "mfu": round(flops / seconds["update"] / card.flops, 4) if card else None,
        "peak_bytes": peak, "estimated_bytes": int(estimate.peak),
        "measured_over_estimated": round(peak / estimate.peak, 3),
        "estimate": {k: int(v) for k, v in dataclasses.asdict(estimate).items()},
    }  # fmt: skip


def random_policy(shape: memory.Shape, ids: int, config, device: torch.device) -> Policy:
    """A Qwen2 model of that shape, made on the device, with a tokenizer of `ids` made-up words."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    node = config.nodes[0]
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(ids)}, unk_token="w1"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0")
    kept = {
        f.name: getattr(shape, f.name)
        for f in dataclasses.fields(shape)
        if f.name != "attention_bias" and getattr(shape, f.name) is not None
    }
    torch.manual_seed(0)
    with torch.device(device):
        lm = Qwen2ForCausalLM(
            Qwen2Config(**kept, max_position_embeddings=4096, eos_token_id=0, dtype="float32")
        )
    lm.eval()
    if node.lora:
        lm = add_lora(lm, node.lora, 0, None)
    if node.gradient_checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        lm.train()
    return Policy(lm, tokenizer, frozenset({0}), device, getattr(torch, node.compute_dtype))


def warm_libraries(device: torch.device) -> None:
    """Load what the first use of torch, transformers and PEFT loads, so that it isn't counted as the
    model's."""
    import peft  # noqa: F401
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=8,
        vocab_size=16
    )  # fmt: skip
    lm = Qwen2ForCausalLM(config).to(device)
    lm(input_ids=torch.zeros(1, 4, dtype=torch.int64, device=device)).logits.sum().backward()
    torch.optim.Adam(lm.parameters(), fused=device.type == "cuda" or None).step()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device, reset: bool = False) -> int:
    """Bytes at the highest so far; `reset` starts anew from what is held now."""
    if device.type == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.max_memory_allocated(device)
    if reset:
        Path("/proc/self/clear_refs").write_text("5")  # the process's high-water mark, proc(5)
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
