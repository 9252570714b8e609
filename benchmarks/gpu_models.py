"""Stages 3 to 6 of `gpu_proof.py`: whole models with random weights, sampled from and trained."""

from __future__ import annotations

import dataclasses
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from gpu_kernels import busiest
from gpu_stages import Report, Size, card_of
from gpu_step import peak_memory, random_policy, synchronize, warm_libraries
from torch import Tensor

from ftis.config import RUN_CONFIG, RunConfig
from ftis.model import sampler
from ftis.model.policy import Policy
from ftis.model.sampler import Request, SamplingParams, TransformersSampler
from ftis.runs import state
from ftis.settings import parse
from ftis.suite import cost, memory
from ftis.suite.memory import GIB, Shape
from ftis.swarm.message import pack
from ftis.swarm.metrics import NodeLine
from ftis.swarm.node import Asked, Node
from ftis.swarm.samples import Sampled, Samples, Share
from ftis.swarm.state import State, pack_node, unpack_node
from ftis.tasks.grading.verdict import grade
from ftis.tasks.problems import Problem

PEAK = 8.0
"""What the last norm is multiplied with where completions should share beginnings: random weights alone
choose among all tokens alike."""
BATCHES = (144, 192)
"""max_batch of the paper tier, and the one that is to be tried."""


def run_config(
    size: Size, device: torch.device, nodes: int = 1, lora: bool = False, **changes: Any
) -> RunConfig:
    """A run of nodes alike; none of its data is read."""
    node = {
        "model": "random", "lora": {} if lora else None, "device": str(device), "compute_dtype": "bfloat16",
        "gradient_checkpointing": True, "learning_rate": 1e-5,
    }  # fmt: skip
    return parse(RUN_CONFIG, {
        "name": "proof", "method": "tis" if nodes > 1 else "alone", "iterations": 2,
        "prompts": size.prompts * nodes,
        "group_size": size.group, "train": {"name": "gsm8k"},
        "rollout": {
            "prompt": "tiny-v1", "max_new_tokens": size.total_tokens, "max_total_tokens": size.total_tokens,
            "max_batch": size.rows, **changes,
        },
        "optim": {"micro_batch_tokens": size.micro_batch_tokens},
        "nodes": [node | {"name": f"node{k}"} for k in range(nodes)],
    }, "gpu_proof")  # fmt: skip


def policy_of(shape: Shape, size: Size, config: RunConfig, device: torch.device) -> Policy:
    """A model with random weights, whose completions end by chance."""
    policy = random_policy(shape, size.ids, config, device)
    policy.stop_ids = frozenset(range(0, size.ids, size.ends))
    return policy


def draw_prompts(size: Size, count: int, seed: int) -> list[list[int]]:
    """Of different lengths, one of them the longest."""
    draw = np.random.default_rng(seed)
    shortest, longest = size.prompt_tokens
    mean = (shortest + longest) // 3  # most are short, as in GSM8K
    lengths = [longest, *draw.integers(shortest, 2 * mean - shortest + 1, count - 1)]
    return [draw.integers(0, size.ids, n).tolist() for n in lengths]


def free(device: torch.device) -> None:
    """What nothing refers to any more goes back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


# ------------------------------------------------------------------------------------------ mismatch


def mismatch(size: Size, device: torch.device, report: Report) -> None:
    """3: what the sampler says of a completion's tokens against what the trainer computes of them."""
    policy = policy_of(size.small, size, run_config(size, device), device)
    policy.stop_ids = frozenset({0})
    with torch.no_grad():
        policy.causal_lm.base_model.norm.weight.mul_(PEAK)
    prompts = draw_prompts(size, 8, seed=0)
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        found = _mismatch(dataclasses.replace(policy, compute_dtype=dtype), prompts)
        report.add(**{f"{key}_{name}": value for key, value in found.items()})


def _mismatch(
    policy: Policy, prompts: list[list[int]], tokens: int = 64, samples: int = 8
) -> dict[str, float]:
    """Of completions that are decoded together, and of a few that are decoded one by one."""
    requests = [Request(p, [(i, s) for s in range(samples)]) for i, p in enumerate(prompts)]
    few = [Request(p, [(i, 0)]) for i, p in enumerate(prompts[:4])]
    together = TransformersSampler(policy).sample(requests, SamplingParams(tokens))
    alone = TransformersSampler(policy).sample(few, SamplingParams(tokens, max_batch=1))
    rows = [(r.prompt, c) for r, cs in zip([*requests, *few], [*together, *alone]) for c in cs]
    with torch.no_grad():
        logp, entropy, mask = policy.token_logprobs([p for p, _ in rows], [c.tokens for _, c in rows])
    said = torch.from_numpy(np.concatenate([c.logprobs for _, c in rows]))
    told = log_ratio(logp[mask].cpu(), said)
    alike = [one[0].tokens.tolist() == other[0].tokens.tolist() for one, other in zip(together, alone)]
    return {
        **told,
        "entropy": float(entropy[mask].mean()),
        "alike_alone_and_together": sum(alike) / len(alike),
    }


def log_ratio(trainer: Tensor, sampler: Tensor) -> dict[str, float]:
    """Of tokens' log-probs (M,): mean and largest absolute difference, and k3, the KL divergence's
    estimate."""
    d = trainer.double() - sampler.double()
    return {
        "mismatch_mean": float(d.abs().mean()), "mismatch_max": float(d.abs().max()),
        "mismatch_k3": float((d.exp() - d - 1).mean()),
    }  # fmt: skip


# ------------------------------------------------------------------------------------------ iterations


def iterations(size: Size, device: torch.device, report: Report) -> None:
    """4: two iterations of the large model trained whole, one of it with an adapter: time and memory beside
    what the plan says of them."""
    warm_libraries(device)
    if card_of(device) is None:
        for quantity in ("mfu", "step_over_plan"):
            report.skip(quantity, "this card isn't in the table of ftis.suite.cost")
    report.add(**_iterate(size, device, False, (size.ends // 4, size.ends)))
    free(device)
    report.add(**{f"lora_{k}": value for k, value in _iterate(size, device, True, (size.ends // 8,)).items()})


def _iterate(size: Size, device: torch.device, lora: bool, lengths: tuple[int, ...]) -> dict[str, Any]:
    """An iteration for each of `lengths`, about the mean of its completions. All of its shapes are new."""
    config = run_config(size, device, lora=lora)
    before = peak_memory(device, reset=True)
    node = Node(0, config, policy_of(size.large, size, config, device))
    shape, settings, card = size.large, config.nodes[0], card_of(device)
    found: dict[str, Any] = {"gpu": card.name if card else None, "iterations": []}
    for step, length in enumerate(lengths, start=1):
        node.policy.stop_ids = frozenset(range(0, size.ids, max(2, length)))
        prompts = draw_prompts(size, config.prompts, seed=step)
        with stepping(device) as steps:
            sampled = _sampled(node, step, prompts)
        synchronize(device)
        began = time.perf_counter()
        line = _learned(node, step, [sampled], prompts)
        synchronize(device)
        seconds = time.perf_counter() - began
        trained = line.tokens_trained + sum(map(len, prompts))  # each prompt is read once
        flops = cost.update_flops(shape, settings, trained, line.tokens_trained)
        found["iterations"].append({
            "steps": len(steps) + 1, "step_ms": _percentiles(steps), "sample_s": node.seconds["sample"],
            "tokens_generated": line.tokens_generated, "update_s": seconds,
            "tokens_trained": line.tokens_trained,
            "tflops_per_s": flops / seconds / 1e12, "grad_norm": line.grad_norm,
            "mismatch": line.statistics.mismatch,
        })  # fmt: skip
    peak = peak_memory(device) - before
    (batch,) = memory.batches_of(config, config.prompts * config.group_size, 0, size.prompt_tokens[1])
    planned = memory.node_memory(
        shape, settings, size.micro_batch_tokens, config.group_size, [batch], size.ids
    )
    last = found["iterations"][-1]
    found |= {
        "peak_gib": peak / GIB, "planned_peak_gib": planned.peak / GIB, "peak_over_plan": peak / planned.peak,
        "planned_card_gib": memory.gpu_memory([planned]) / GIB,
    }  # fmt: skip
    if device.type == "cuda":
        free_bytes, total = torch.cuda.mem_get_info(device)
        found |= {
            "reserved_gib": torch.cuda.max_memory_reserved(device) / GIB,
            # CUDA's own, and what other processes hold.
            "not_torch_gib": (total - free_bytes - torch.cuda.memory_reserved(device)) / GIB,
            "retries": torch.cuda.memory_stats(device)["num_alloc_retries"],
        }  # fmt: skip
    if card:
        planned_ms = (
            cost.decode_seconds(shape, settings, batch, "transformers", gpu=card) / batch.new_tokens * 1e3
        )
        found |= {
            "planned_step_ms": planned_ms, "step_over_plan": last["step_ms"]["p50"] / planned_ms,
            "mfu": last["tflops_per_s"] * 1e12 / card.flops,
        }  # fmt: skip
    found["busiest"] = busiest(lambda: _a_little(node.policy, size), device)
    return found


def _sampled(node: Node, step: int, prompts: list[list[int]]) -> Sampled:
    """A node's share, of which every completion has an advantage and a gradient: half of each group is
    rewarded."""
    node.seconds = {}
    problems = [Problem(str(i), "", "1", "gsm8k") for i in range(len(prompts))]
    sampled = node.sample(step, Asked(problems, prompts))
    reward = (sampled.rollouts.sample % 2).astype(np.float32)
    return Sampled(dataclasses.replace(sampled.rollouts, reward=reward), sampled.verdicts)


def _learned(node: Node, step: int, sampled: list[Sampled], prompts: list[list[int]]) -> NodeLine:
    """An update on what the nodes, in their order, have sampled."""
    shares = [Share(step, k, each.rollouts) for k, each in enumerate(sampled)]
    return node.learn(step, Samples.gather(shares, {step: prompts}, node.index), sampled[node.index])


@contextmanager
def stepping(device: torch.device) -> Iterator[list[float]]:
    """Seconds from one choice of tokens to the next, filled in at the end: the sampler waits for each."""
    moments: list[list[float]] = []
    seconds: list[float] = []
    choose, batch = sampler.choose, TransformersSampler._batch

    def timed(*args):
        chosen = choose(*args)
        synchronize(device)
        moments[-1].append(time.perf_counter())
        return chosen

    def begun(*args):
        moments.append([])
        return batch(*args)

    with mock.patch.object(sampler, "choose", timed), mock.patch.object(TransformersSampler, "_batch", begun):
        yield seconds
    for of in moments:
        seconds += np.diff(of).tolist()


def _percentiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{q}": float(np.quantile(seconds, q / 100)) * 1e3 for q in (50, 90)}


def _a_little(policy: Policy, size: Size) -> None:
    """A few decoding steps, and a group's forward and backward."""
    prompt = draw_prompts(size, 1, seed=9)[0]
    request = Request(prompt, [(0, s) for s in range(size.group)])
    (completions,) = TransformersSampler(policy).sample([request], SamplingParams(8))

    def loss_of(_rows: slice, logp: Tensor, *_: Tensor) -> Tensor:
        return logp.sum()

    policy.accumulate_gradient([prompt] * len(completions), [c.tokens for c in completions], loss_of)
    policy.model.zero_grad(set_to_none=True)


# ------------------------------------------------------------------------------------------ pair


def pair(size: Size, device: torch.device, report: Report) -> None:
    """5: the small and the large model in one process, held to the memory of an 80 GB card: completions
    sampled at full batches, in training and in validation, and updates on completions as long as they may
    be."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        allowed = cost.GPUS["h100"].gib * GIB - memory.CONTEXT
        # What the limit counts is torch's own.
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total), device)
        report.add(allowed_gib=min(allowed, total) / GIB)
    config = run_config(size, device, nodes=2)
    estimates, nodes = [], []
    for k, shape in enumerate((size.small, size.large)):
        nodes.append(Node(k, config, _soon_ended(policy_of(shape, size, config, device), size)))
        batches = memory.batches_of(config, size.rows, 4 * size.rows, size.prompt_tokens[1])
        estimates.append(
            memory.node_memory(
                shape, config.nodes[k], size.micro_batch_tokens, config.group_size, batches, size.ids
            )
        )
    report.add(planned_card_gib=memory.gpu_memory(estimates) / GIB)
    failed = ""
    for rows in (size.rows, size.rows * BATCHES[1] // BATCHES[0]):
        label = BATCHES[0] if rows == size.rows else BATCHES[1]
        if not failed:
            peak_memory(device, reset=True)
            failed = _out_of_memory(lambda rows=rows: _together(size, nodes, rows))
        report.add(
            **{f"out_of_memory_{label}": int(bool(failed)), f"peak_gib_{label}": peak_memory(device) / GIB}
        )
        if device.type == "cuda":
            report.add(**{f"reserved_gib_{label}": torch.cuda.max_memory_reserved(device) / GIB})
    report.add(failed=failed)


def _soon_ended(policy: Policy, size: Size) -> Policy:
    """Caches are taken for completions at full length at the start; so that is shown after a few dozen
    steps."""
    policy.stop_ids = frozenset(range(0, size.ids, 10))
    return policy


def _out_of_memory(call: Callable[[], None]) -> str:
    """The allocator's words, empty where it had enough."""
    try:
        call()
    except torch.cuda.OutOfMemoryError as error:
        return str(error).splitlines()[0]
    return ""


def _together(size: Size, nodes: list[Node], rows: int) -> None:
    """An iteration of each node, as far as it decides about memory."""
    validation = SamplingParams(size.total_tokens, max_batch=rows)
    prompts = draw_prompts(size, rows, seed=rows)
    for node in nodes:
        rollout = dataclasses.replace(node.config.rollout, max_batch=rows)
        node.config = dataclasses.replace(node.config, rollout=rollout)
        _sampled(node, 1, draw_prompts(size, node.config.prompts, seed=1))
        node.sampler.sample([Request(p, [(i,)]) for i, p in enumerate(prompts)], validation)
    few = draw_prompts(size, 4, seed=2)
    for node in nodes:
        _learned(node, 1, [_longest(size, few, k) for k in range(len(nodes))], few)


def _longest(size: Size, prompts: list[list[int]], node: int) -> Sampled:
    """A node's completions of every other prompt, each as long as it may be; what the tokens are doesn't
    matter."""
    draw = np.random.default_rng(node)
    places = [(p, s) for p in range(node, len(prompts), 2) for s in range(size.group)]
    tokens = [draw.integers(0, size.ids, size.total_tokens - len(prompts[p])) for p, _ in places]
    logprobs = [np.full(len(t), -np.log(size.ids)) for t in tokens]
    reward = [float(s % 2) for _, s in places]
    rollouts = pack(
        [p for p, _ in places], [s for _, s in places], tokens, logprobs, reward, [True] * len(places)
    )
    return Sampled(rollouts, [grade("", "1", "gsm8k")] * len(places))


# ------------------------------------------------------------------------------------------ resume


def resume(size: Size, device: torch.device, report: Report) -> None:
    """6: a checkpoint written, checked and taken up again; the iteration after it comes out as it did
    without."""
    config = run_config(size, device)
    node = Node(0, config, policy_of(size.small, size, config, device))
    node.policy.stop_ids = frozenset(
        range(0, size.ids, max(2, size.ends // 16))
    )  # short: it's not about time
    _iteration(node, size, 1)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        tensors = {0: pack_node(node.params, node.optimizer)}
        state.save_checkpoint(Path(folder), "proof", State(1, tensors, {}, {0: node.memory()}, {}))
        written = time.perf_counter()
        start = {name: p.detach().clone() for name, p in node.params.items()}
        tokens = _iteration(node, size, 2)
        ended = {name: p.detach().clone() for name, p in node.params.items()}
        reading = time.perf_counter()
        checkpoint = next(state.sound_checkpoints(Path(folder), "proof"))
        checked = time.perf_counter()
        unpack_node(state.load_checkpoint(checkpoint).tensors[0], node.params, node.optimizer)
        synchronize(device)
        size_gb = sum(f.stat().st_size for f in checkpoint.path.iterdir()) / 1e9
        report.add(
            checkpoint_gb=size_gb, write_and_hash_s=written - began, check_s=checked - reading,
            load_s=time.perf_counter() - checked,
        )  # fmt: skip
    again = _iteration(node, size, 2)
    differ = sum(a.tolist() != b.tolist() for a, b in zip(tokens, again, strict=True))
    report.add(
        completions=len(tokens), completions_differ=differ,
        update_apart=apart(start, ended, {n: p.detach() for n, p in node.params.items()}),
        bitwise=all(torch.equal(p, ended[name]) for name, p in node.params.items()),
        largest_difference=max(float((p.detach() - ended[n]).abs().max()) for n, p in node.params.items()),
    )  # fmt: skip


def _iteration(node: Node, size: Size, step: int) -> list[np.ndarray]:
    """Sample and learn; the tokens of the completions."""
    prompts = draw_prompts(size, node.config.prompts, seed=step)
    sampled = _sampled(node, step, prompts)
    _learned(node, step, [sampled], prompts)
    return sampled.rollouts.split(sampled.rollouts.tokens)


def apart(start: dict[str, Tensor], one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """How far two updates from one start are from each other, over the size of the first: 0 where they are
    equal, about 1 where one forgot Adam's moments. Adam's steps have the learning rate's size whatever the
    gradient, so that the weights' own difference would be small in any case."""
    difference = sum(float((one[n].double() - other[n].double()).square().sum()) for n in start) ** 0.5
    update = sum(float((one[n].double() - start[n].double()).square().sum()) for n in start) ** 0.5
    return difference / update if update else float("nan")
