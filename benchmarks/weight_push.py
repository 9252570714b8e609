"""Weights into another process: through the shared block that vLLM's engines have, against a pickling pipe.

    python benchmarks/weight_push.py                       # a minute
    .venv-vllm/bin/python benchmarks/weight_push.py --engine        # a real engine's push beside it, loading
    included

The tensors are those of SmolLM2-135M (random), kept in float32 and handed over as float32 or bfloat16. The
other process copies each tensor once, as an engine's does before vLLM takes it, and answers at the end. The
pipe is how it was done before: each tensor cast, then its bytes sent. The sides take turns; the first turn,
in which the block is made, is a number of its own. GB are 10^9 bytes of what arrives, CPU seconds those of
both processes. Puts its rows into benchmarks/results/weight_push.json.
"""

import one_thread  # noqa: F401  # isort: skip

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import record
import torch
from measures import spread
from sampler import cpu_of
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from ftis.model.vllm.push import Reader, Writer

SMOLLM2 = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}  # fmt: skip
Weights = dict[str, Tensor]


def from_pipe(pipe: Connection) -> Iterator[tuple[str, Tensor]]:
    while (head := pipe.recv()) is not None:
        name, dtype, shape = head
        data = bytearray(pipe.recv_bytes())
        yield name, torch.frombuffer(data, dtype=getattr(torch, dtype)).view(shape)


def into_pipe(pipe: Connection, weights: Weights, dtype: torch.dtype) -> None:
    for name, tensor in weights.items():
        sent = tensor.detach().to(dtype).contiguous()
        pipe.send((name, str(dtype).removeprefix("torch."), tuple(sent.shape)))
        pipe.send_bytes(memoryview(sent.flatten().view(torch.uint8).numpy()))
    pipe.send(None)


def receive(pipe: Connection, side: str, count: int) -> None:
    """The other process: takes `count` tensors a push until the pipe is closed."""
    torch.set_num_threads(1)
    pipe.send((True, None))
    read = Reader(pipe).read if side == "block" else lambda: from_pipe(pipe)
    try:
        while True:
            assert sum(1 for _ in read()) == count
            pipe.send((True, None))
    except EOFError:
        pass


@dataclass(frozen=True)
class Side:
    push: Callable[[], None]
    """All weights, once."""
    process: int
    """The id of the one that they go to."""
    end: Callable[[], None] = lambda: None


def sender(side: str, weights: Weights, dtype: torch.dtype) -> Side:
    """Pushes to a process beside this one, which is ready."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=receive, args=(theirs, side, len(weights)), daemon=True)
    process.start()
    theirs.close()
    assert pipe.recv() == (True, None)
    writer = Writer(pipe, process.pid)

    def push() -> None:
        if side == "block":
            writer.write(weights.items(), dtype, pipe.recv)
        else:
            into_pipe(pipe, weights, dtype)
        assert pipe.recv() == (True, None)

    def end() -> None:
        pipe.close()
        process.join()

    return Side(push, process.pid, end)


def rates(sides: dict[str, Side], size: int, turns: int) -> dict:
    """Each side's pushes of `size` bytes, the sides in turn."""
    gb = size / 1e9
    rate: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, float] = {}
    for turn in range(turns + 1):
        for name, side in sides.items():
            used, began = time.process_time() + cpu_of(side.process), time.perf_counter()
            side.push()
            rate[name].append(gb / (time.perf_counter() - began))
            if turn:
                used = time.process_time() + cpu_of(side.process) - used
                cpu[name] = cpu.get(name, 0) + used / (turns * gb)
    row: dict = {}
    for name, values in rate.items():
        row[name] = {
            "first": round(values[0], 3),
            "gb_a_second": spread(values[1:], 3),
            "cpu_seconds_a_gb": round(cpu[name], 2),
        }
    if len(sides) == 2:
        row["ratio"] = spread([a / b for a, b in zip(rate["block"][1:], rate["pipe"][1:])])
        row["cpu_ratio"] = round(cpu["pipe"] / cpu["block"], 2)
    return row


def engine(model: LlamaForCausalLM, dtype: str, turns: int) -> dict:
    """Pushes into vLLM: its loading of them, fusing and packing included."""
    from ftis.model.loading import load_policy
    from ftis.model.vllm.sampler import VllmSampler
    from ftis.tasks.tiny import models as tiny

    with tempfile.TemporaryDirectory() as folder:
        tiny.make_tokenizer(Path(folder))
        model.save_pretrained(folder)
        policy = load_policy(folder, device="cpu", compute_dtype=dtype)
        sampler = VllmSampler(folder, None, policy.tokenizer, dtype, 64, 4, policy)

        def push() -> None:
            with sampler.updating():
                pass

        return rates(
            {"engine": Side(push, sampler.engine.process.pid)}, bytes_of(model, getattr(torch, dtype)), turns
        )


def bytes_of(model: LlamaForCausalLM, dtype: torch.dtype) -> int:
    return sum(p.numel() for p in model.parameters()) * dtype.itemsize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--engine", action="store_true", help="push into vLLM, which must be installed")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SMOLLM2))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    for dtype in ("float32", "bfloat16"):
        size = bytes_of(model, getattr(torch, dtype))
        row = {"dtype": dtype, "mb": round(size / 1e6), "sides": "engine" if args.engine else "block, pipe"}
        row["turns"] = args.turns
        if args.engine:
            row |= engine(model, dtype, args.turns)
        else:
            sides = {name: sender(name, weights, getattr(torch, dtype)) for name in ("block", "pipe")}
            row |= rates(sides, size, args.turns)
            for side in sides.values():
                side.end()
        print(row, flush=True)
        record.add("weight_push", row, "dtype", "sides")


if __name__ == "__main__":
    main()
