"""Stages 0 to 2 of `gpu_proof.py`: the machine, and attention and the log-prob head by themselves."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from gpu_stages import NotHere, Report, Size, card_of
from gpu_step import synchronize
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ftis.model import logprobs
from ftis.model.attention import Packing, grouped_attention, packed_attention
from ftis.suite.memory import GIB

MASSIVE = 100.0
"""Size of the scores of the head whose scores are all far below 0, as trained models have some: those of
random weights never are."""
SHAPES = 12
"""New shapes in the stage of first calls."""
HALF, SINGLE = torch.bfloat16, torch.float32


def machine(size: Size, device: torch.device, report: Report) -> None:
    """0: what is here, and whether torch can use it."""
    driver = _driver()
    report.add(
        python=platform.python_version(), torch=torch.__version__, cuda=torch.version.cuda, driver=driver,
        cudnn=torch.backends.cudnn.version(), compiler=shutil.which("gcc") or shutil.which("cc"),
        python_h=Path(sysconfig.get_path("include"), "Python.h").is_file(), cpus=os.cpu_count(),
        tf32=torch.backends.cuda.matmul.allow_tf32, alloc_conf=os.environ.get("PYTORCH_ALLOC_CONF"),
        attention={
            "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
            "flash": torch.backends.cuda.flash_sdp_enabled(),
            "efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
            "math": torch.backends.cuda.math_sdp_enabled(),
        },
    )  # fmt: skip
    seen = device.type == "cuda"
    if not seen and os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        raise NotHere("CUDA_VISIBLE_DEVICES hides every GPU")
    if not (seen or driver):
        raise NotHere("no NVIDIA driver answers here, and torch sees no GPU")
    # 0 where the driver shows a GPU: mostly a driver that is older than the CUDA that torch was built with.
    report.add(torch_sees_gpu=int(seen), cudnn_attention_on=int(torch.backends.cuda.cudnn_sdp_enabled()))
    if not seen:
        report.skip("memory_off_table", "torch sees no GPU")
        return
    facts = torch.cuda.get_device_properties(device)
    gib, card = facts.total_memory / GIB, card_of(device)
    report.add(name=facts.name, capability=f"{facts.major}.{facts.minor}", gib=round(gib, 2))
    if card is None:
        report.skip("memory_off_table", f"{facts.name} isn't in the table of ftis.suite.cost")
    else:
        report.add(table_gib=card.gib, memory_off_table=abs(gib / card.gib - 1))


def _driver() -> list[str]:
    """Name, driver and memory of each GPU, as the driver's own tool says; empty where there is none."""
    ask = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        told = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return told.strip().splitlines()


# ------------------------------------------------------------------------------------------ exactness


def exactness(size: Size, device: torch.device, report: Report) -> None:
    """1: attention and the log-prob head, forward and backward, against float64."""
    own = _attention_errors(size, device, HALF)
    single = _attention_errors(size, device, SINGLE)
    report.add(
        attention_not_finite=own.not_finite + single.not_finite,
        attention_error_bfloat16=max(own.plain, own.massive),
        # In float32 the massive head's scores are only exact to MASSIVE times the rounding: reported, not
        # judged.
        attention_error_float32=single.plain, massive_error_float32=single.massive,
    )  # fmt: skip
    if device.type == "cuda":
        report.add(kernels=_kernels(size, device))
        with _cudnn_on():
            other = _attention_errors(size, device, HALF)
        report.add(cudnn_not_finite=other.not_finite, cudnn_error_bfloat16=max(other.plain, other.massive))
    for dtype in (HALF, SINGLE):
        report.add(**{f"head_error_{str(dtype).removeprefix('torch.')}": _head_error(size, device, dtype)})


@contextmanager
def _cudnn_on() -> Iterator[None]:
    """cuDNN's attention is among the choices, as torch has it where nothing is said."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@dataclass
class Errors:
    """Largest relative errors of a head, of plain scores and of massive ones, and how many tensors weren't
    finite."""

    plain: float = 0.0
    massive: float = 0.0
    not_finite: int = 0

    def take(self, found: Tensor, true: Tensor, massive: bool) -> None:
        """found and true (heads, ...)."""
        if not found.isfinite().all():
            self.not_finite += 1
            return  # counted there; what is left of the error would say less
        error = max(relative_errors(found, true))
        if massive:
            self.massive = max(self.massive, error)
        else:
            self.plain = max(self.plain, error)


def relative_errors(found: Tensor, true: Tensor) -> list[float]:
    """Of each head (heads, ...): norm of the difference over the norm."""
    found, true = found.double().flatten(1), true.flatten(1)
    return ((found - true).norm(dim=1) / true.norm(dim=1)).tolist()


def _attention_errors(size: Size, device: torch.device, dtype: torch.dtype) -> Errors:
    """Over numbers of keys that kernels treat differently, with plain scores and with a massive head."""
    errors = Errors()
    for more in (0, 1, 64, 65):
        for massive in (False, True):
            generator = torch.Generator(device).manual_seed(more)
            keys = size.keys[0] + more
            packing, parts = packed(size.keys[1], keys - size.keys[1], 8, device, seed=more)
            q, k, v = _states(size, packing.ids.shape[1], dtype, generator, massive)
            out = packed_attention(packing, q, k, v, size.attention[2] ** -0.5)[0].transpose(0, 1)
            upstream = torch.randn(out.shape, generator=generator, device=device).to(dtype)
            grads = torch.autograd.grad(out, (q, k, v), upstream)
            exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
            true = _reference(*exact, parts, size.attention[2] ** -0.5)
            true_grads = torch.autograd.grad(true, exact, upstream.double())
            errors.take(out.detach(), true.detach(), massive)
            for grad, true_grad in zip(grads, true_grads):
                errors.take(grad[0], true_grad[0], massive)
            _decode_errors(size, keys, dtype, generator, massive, errors)
    return errors


def packed(
    width: int, longest: int, completions: int, device: torch.device, seed: int
) -> tuple[Packing, list[tuple[range, range]]]:
    """Completions of up to `longest` tokens of half as many prompts, of which up to `width` tokens are read;
    and for each part of the sequence the tokens before it that it sees, and its own."""
    draw = np.random.default_rng(seed)
    prompts = [[0] * int(n) for n in (width + 1, *draw.integers(2, width + 2, completions // 2 - 1))]
    lengths = [longest, *map(int, draw.integers(1, longest + 1, completions - 1))]
    owners = [n // 2 for n in range(completions)]
    packing = Packing.of([prompts[p] for p in owners], [[0] * n for n in lengths], device)
    parts, at = [], 0
    for prompt in prompts:
        parts.append((range(0), range(at, at + len(prompt) - 1)))
        at += len(prompt) - 1
    for owner, length in zip(owners, lengths):
        parts.append((parts[owner][1], range(at, at + length)))
        at += length
    return packing, parts


def _states(
    size: Size, tokens: int, dtype: torch.dtype, generator: torch.Generator, massive: bool
) -> list[Tensor]:
    """Queries, keys and values (1, heads, tokens, D), the first key head's scores about -MASSIVE where
    `massive`."""
    heads, kv_heads, width = size.attention
    q, k, v = (
        torch.randn(1, n, tokens, width, generator=generator, device=generator.device)
        for n in (heads, kv_heads, kv_heads)
    )
    if massive:
        q[:, : heads // kv_heads, :, 0] = -MASSIVE
        k[:, 0, :, 0] = width**0.5
    return [t.to(dtype).requires_grad_() for t in (q, k, v)]


def _reference(q: Tensor, k: Tensor, v: Tensor, parts: Sequence[tuple[range, range]], scale: float) -> Tensor:
    """Attention as its definition has it, part by part: (heads, tokens, D)."""
    ratio = q.shape[1] // k.shape[1]
    k, v = (t[0].repeat_interleave(ratio, 0) for t in (k, v))
    outs = []
    for before, own in parts:
        seen = torch.tensor([*before, *own], device=q.device)
        scores = q[0][:, own.start : own.stop] @ k[:, seen].mT * scale
        visible = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).tril(len(before))
        outs.append(scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v[:, seen])
    return torch.cat(outs, 1)


def _decode_errors(
    size: Size, keys: int, dtype: torch.dtype, generator: torch.Generator, massive: bool, errors: Errors
) -> None:
    """Of one new token in each of 8 rows, whose first keys are padding."""
    heads, _, width = size.attention
    q, k, v = (
        torch.cat([t.detach() for t in states])
        for states in zip(*(_states(size, keys, dtype, generator, massive) for _ in range(8)))
    )
    q = q[:, :, -1:]
    device = generator.device
    visible = torch.arange(keys, device=device) >= 3 * torch.arange(8, device=device)[:, None]
    mask = visible[:, None, None]
    found = grouped_attention(q, k, v, mask, width**-0.5)[:, 0]
    exact = [t.double().repeat_interleave(heads // t.shape[1], 1) for t in (q, k, v)]
    scores = (exact[0] @ exact[1].mT * width**-0.5).masked_fill(~mask, -torch.inf)
    errors.take(found.transpose(0, 1), (scores.softmax(-1) @ exact[2])[:, :, 0].transpose(0, 1), massive)


def _kernels(size: Size, device: torch.device) -> list[str]:
    """What packed attention runs on the GPU, forward and backward, in bfloat16; the longest first."""
    packing, _ = packed(size.keys[1], size.keys[0] - size.keys[1], 8, device, seed=0)
    generator = torch.Generator(device).manual_seed(0)
    states = _states(size, packing.ids.shape[1], HALF, generator, False)
    return [name for name, _, _ in busiest(lambda: _forward_and_backward(packing, states, size), device)]


def busiest(call: Callable[[], None], device: torch.device, count: int = 10) -> list[tuple[str, float, int]]:
    """Kernels (on a CPU: operators) that take most of a call's time: name, milliseconds, launches."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        call()
        synchronize(device)
    events = profile.key_averages()
    if device.type == "cuda":  # a kernel's time stands at its operator too
        events = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
        times = [(e.key, e.self_device_time_total, e.count) for e in events]
    else:
        times = [(e.key, e.self_cpu_time_total, e.count) for e in events]
    times.sort(key=lambda row: -row[1])
    return [(name[:120], round(us / 1e3, 3), calls) for name, us, calls in times[:count]]


def _head_error(size: Size, device: torch.device, dtype: torch.dtype) -> float:
    """Largest relative error of log-probs and both gradients, at lengths on either side of where the head
    turns from one chunk to several, and from logits that are kept to those that are computed twice."""
    generator = torch.Generator(device).manual_seed(0)
    width = size.large.hidden_size
    weight = torch.randn(size.ids, width, generator=generator, device=device).mul_(3 * width**-0.5).to(dtype)
    chunk, longest = size.logits or (logprobs.CHUNK_LOGITS, logprobs.LONGEST_LOGITS)
    worst = 0.0
    with mock.patch.multiple(logprobs, CHUNK_LOGITS=chunk, LONGEST_LOGITS=longest):
        for edge in (chunk // size.ids, longest // size.ids):
            for tokens in (edge, edge + 1):
                worst = max(worst, _head_error_at(weight, tokens, generator))
    return worst


def _head_error_at(weight: Tensor, tokens: int, generator: torch.Generator) -> float:
    device, dtype = weight.device, weight.dtype
    hidden = torch.randn(tokens, weight.shape[1], generator=generator, device=device).to(dtype)
    target = torch.randint(len(weight), (tokens,), generator=generator, device=device)
    wanted = torch.randn(tokens, generator=generator, device=device)
    grad_weight = torch.zeros(weight.shape, device=device)  # float32, as a trained embedding's is
    kept = []

    def loss_of(_rows: slice, logp: Tensor, _entropy: Tensor) -> Tensor:
        kept.append(logp.detach())
        return (wanted * logp).sum()

    grad = logprobs.accumulate(hidden, weight, grad_weight, target, [tokens], 1.0, loss_of)
    exact_hidden, exact_weight = (t.double().requires_grad_() for t in (hidden, weight))
    true = (exact_hidden @ exact_weight.T).log_softmax(-1).gather(1, target[:, None])[:, 0]
    true_grads = torch.autograd.grad(true, (exact_hidden, exact_weight), wanted.double())
    pairs = zip((torch.cat(kept), grad, grad_weight), (true.detach(), *true_grads))
    return max(relative_errors(found[None], exact[None])[0] for found, exact in pairs)


# ------------------------------------------------------------------------------------------ first calls


def first_calls(size: Size, device: torch.device, report: Report) -> None:
    """2: what a shape that hasn't been seen costs when it comes first. Micro-batches and decoding steps have
    new shapes all the time, so a kernel that is built for each is slow every time."""
    if device.type == "cuda":  # so that the allocator asks the driver for nothing more
        torch.empty(4 * GIB, dtype=torch.uint8, device=device)
    own = _both(size, device)
    report.add(
        packed_first_over_second=_ratio(own["packed"]), decode_first_over_second=_ratio(own["decode"]),
        milliseconds=own,
    )  # fmt: skip
    if device.type != "cuda":
        return
    for backend in (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION):
        try:
            with sdpa_kernel(backend):
                report.add(**{backend.name.lower(): _both(size, device)})
        except RuntimeError as error:  # it has no kernel for this card or these shapes
            report.add(**{backend.name.lower(): str(error).splitlines()[0][:200]})


def _ratio(times: dict[str, float]) -> float:
    return times["first"] / times["second"]


def _both(size: Size, device: torch.device) -> dict[str, dict[str, float]]:
    """Medians in milliseconds over new shapes, the first call's and the second's: packed attention forward
    and backward, and a decoding step, whose keys grow by one."""
    generator = torch.Generator(device).manual_seed(0)
    draw = np.random.default_rng(0)
    heads, kv_heads, width = size.attention
    packed_times, decode_times = [], []
    for n in range(SHAPES + 1):
        prompt = int(draw.integers(size.keys[1] // 2, size.keys[1]))
        longest = int(draw.integers(size.keys[0] // 2, size.keys[0]))
        packing, _ = packed(prompt, longest, 8, device, seed=n)
        q, k, v = _states(size, packing.ids.shape[1], SINGLE, generator, False)
        packed_times.append(
            _twice(
                lambda packing=packing, states=(q, k, v): _forward_and_backward(packing, states, size), device
            )
        )
        keys = size.keys[0] + n
        query, key, value = (
            torch.randn(size.rows, h, length, width, generator=generator, device=device)
            for h, length in ((heads, 1), (kv_heads, keys), (kv_heads, keys))
        )
        mask = torch.ones(size.rows, 1, 1, keys, dtype=torch.bool, device=device)

        def step(query=query, key=key, value=value, mask=mask) -> None:
            with torch.no_grad(), torch.autocast(device.type, HALF):
                grouped_attention(query, key, value, mask, width**-0.5)

        decode_times.append(_twice(step, device))

    def medians(times: list[tuple[float, float]]) -> dict[str, float]:
        # The first shape of all loads libraries.
        first, second = (statistics.median(t) * 1e3 for t in zip(*times[1:]))
        return {"first": round(first, 4), "second": round(second, 4)}

    return {"packed": medians(packed_times), "decode": medians(decode_times)}


def _forward_and_backward(packing: Packing, states: Sequence[Tensor], size: Size) -> None:
    """As the trainer has it: rotary embeddings leave queries and keys in float32, which autocast turns."""
    with torch.autocast(states[0].device.type, HALF):
        out = packed_attention(packing, *states, size.attention[2] ** -0.5)
    torch.autograd.grad(out.float().sum(), states)


def _twice(call: Callable[[], None], device: torch.device) -> tuple[float, float]:
    """Seconds of a first call and of a second."""
    found = []
    for _ in range(2):
        synchronize(device)
        began = time.perf_counter()
        call()
        synchronize(device)
        found.append(time.perf_counter() - began)
    return found[0], found[1]
