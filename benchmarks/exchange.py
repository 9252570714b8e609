"""What the exchange costs: bytes a token against the paper's 8, and the speed of encode, decode and check.

    python benchmarks/exchange.py [MODEL]

An iteration's completions dealt out to 2, 4, 8 and 16 nodes: sampled from a briefly trained XS model (48
prompts x 12), the same with ids that have no pattern at all in the largest vocabulary (151,936), and, where
MODEL is given, from that model on GSM8K (16 prompts x 6 of at most 64 tokens; MODEL is a folder such as
workflow/scripts/smollm2.py makes, FTIS_DATA holds gsm8k/). One thread; CPU seconds, medians of 9 with lowest
and highest. Writes benchmarks/results/exchange.json.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import one_thread  # noqa: F401
import record
import torch
from measures import spread

from ftis.model.loading import load_policy
from ftis.model.sampler import Request, SamplingParams, TransformersSampler
from ftis.swarm.inbox import Expected, receive
from ftis.swarm.message import BYTES_A_TOKEN, Message, Rollouts, decode, encode, pack
from ftis.swarm.share import owner
from ftis.tasks.problems import Dataset, load_problems
from ftis.tasks.prompts import encode_prompt
from ftis.tasks.tiny.models import DataSettings, TinyModel, make_data, make_model, make_tokenizer

NODES = (2, 4, 8, 16)
RUN = bytes(8)


def sample(
    model: Path, data: Dataset, prompt: str, prompts: int, group: int, length: int
) -> tuple[Rollouts, int, frozenset[int]]:
    """An iteration's completions, the vocabulary's size and the stop tokens."""
    policy = load_policy(str(model), device="cpu")
    problems = load_problems(data)[:prompts]
    requests = [
        Request(encode_prompt(prompt, p.question, policy.tokenizer), [(0, i, s) for s in range(group)])
        for i, p in enumerate(problems)
    ]
    found = TransformersSampler(policy).sample(requests, SamplingParams(length))
    flat = [(i, s, c) for i, row in enumerate(found) for s, c in enumerate(row)]
    rollouts = pack(
        [i for i, _, _ in flat], [s for _, s, _ in flat], [c.tokens for _, _, c in flat],
        [c.logprobs for _, _, c in flat], [float(s % 3 == 0) for _, s, _ in flat],
        [c.finished for _, _, c in flat],
    )  # fmt: skip
    return rollouts, policy.vocab_size, policy.stop_ids


def without_pattern(r: Rollouts, vocab: int, stop: int) -> Rollouts:
    """The same completions with uniform ids, stop tokens apart."""
    tokens = np.random.default_rng(0).integers(stop + 1, vocab, len(r.tokens)).astype(np.int32)
    tokens[(np.cumsum(r.length) - 1)[r.finished]] = stop
    return replace(r, tokens=tokens)


def cpu_seconds(call: Callable[[], object]) -> list[float]:
    """Lowest, median and highest of 9, each long enough for the clock."""
    began, times = time.process_time(), []
    call()
    turns = max(1, int(0.02 / max(1e-6, time.process_time() - began)))
    for _ in range(9):
        began = time.process_time()
        for _ in range(turns):
            call()
        times.append((time.process_time() - began) / turns)
    return spread(times, 9)


def read_all(call: Callable, data: list[bytes], expected: list[Expected]) -> None:
    for one, what in zip(data, expected):
        call(one, what)


def only_decode(data: bytes, expected: Expected) -> Message:
    return decode(data, expected.vocab_size, len(expected.share), sum(expected.share.values()))


def measure(rollouts: Rollouts, vocab: int, stops: frozenset[int], length: int) -> list[dict[str, float]]:
    """One row for each number of nodes."""
    rows = []
    for nodes in NODES:
        dealt = [owner("vertical", int(p), 0, nodes) for p in rollouts.prompt]
        shares = [rollouts.only(np.flatnonzero(np.array(dealt) == k)) for k in range(nodes)]
        messages = [Message(RUN, 1, k, share) for k, share in enumerate(shares)]
        data = [encode(message, vocab) for message in messages]
        expected = [
            Expected(
                RUN, 1, k, {(int(p), int(s)): length for p, s in zip(r.prompt, r.sample)}, vocab, stops
            )
            for k, r in enumerate(shares)
        ]  # fmt: skip
        # A node encodes its own message, and reads and checks all others.
        own, others = len(shares[0].tokens), len(rollouts.tokens) - len(shares[0].tokens)
        encoding = cpu_seconds(partial(encode, messages[0], vocab))
        decoding = cpu_seconds(partial(read_all, only_decode, data[1:], expected[1:]))
        receiving = cpu_seconds(partial(read_all, receive, data[1:], expected[1:]))
        rows.append({
            "nodes": nodes, "tokens": len(rollouts.tokens), "completions": len(rollouts),
            "bytes_a_token": round(sum(map(len, data)) / len(rollouts.tokens), 3),
            "sent_a_node": round((nodes - 1) * sum(map(len, data)) / nodes),
            "received_a_node": round((nodes - 1) / nodes * sum(map(len, data))),
            "encode_tokens_a_second": round(own / encoding[1]),
            "decode_tokens_a_second": round(others / decoding[1]),
            "receive_tokens_a_second": round(others / receiving[1]),
            "cpu_ms_a_node": round(1000 * (encoding[1] + receiving[1]), 2),
            "range": {
                "encode_tokens_a_second": [round(own / s) for s in reversed(encoding)],
                "decode_tokens_a_second": [round(others / s) for s in reversed(decoding)],
                "receive_tokens_a_second": [round(others / s) for s in reversed(receiving)],
            },
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", type=Path, help="a model's folder, sampled on GSM8K")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        make_tokenizer(root / "tok")
        make_data(root / "data", DataSettings(train=256, validation=64, ood=32))
        make_model(TinyModel(size="xs", style="base", steps=400), 1, root / "tok", root / "data", root / "xs")
        tiny = Dataset(name="tiny", path=str(root / "data/train.jsonl"))
        rollouts, vocab, stops = sample(root / "xs", tiny, "tiny-v1", 48, 12, 48)
        results["XS"] = measure(rollouts, vocab, stops, 48)
        results["XS, ids without pattern in 151,936"] = measure(
            without_pattern(rollouts, 151_936, max(stops)), 151_936, stops, 48
        )
    if arguments.model:
        rollouts, vocab, stops = sample(
            arguments.model, Dataset(name="gsm8k"), "chat-fewshot-think-v1", 16, 6, 64
        )
        name = arguments.model.name
        results[f"{name} on GSM8K"] = measure(rollouts, vocab, stops, 64)
        results[f"{name}, ids without pattern in 151,936"] = measure(
            without_pattern(rollouts, 151_936, max(stops)), 151_936, stops, 64
        )
    heads = ("nodes", "bytes a token", f"of {BYTES_A_TOKEN}", "sent a node", "received a node")
    for name, rows in results.items():
        print(f"\n{name}: {rows[0]['completions']} completions, {rows[0]['tokens']} tokens")
        print(
            "  ".join(f"{head:>15}" for head in (*heads, "encode tok/s", "decode tok/s", "and check tok/s"))
        )
        for row in rows:
            cells = [row["nodes"], row["bytes_a_token"], f"{row['bytes_a_token'] / BYTES_A_TOKEN:.0%}"]
            cells += [f"{row[key]:,}" for key in ("sent_a_node", "received_a_node")]
            cells += [f"{row[f'{key}_tokens_a_second']:,}" for key in ("encode", "decode", "receive")]
            print("  ".join(f"{cell:>15}" for cell in cells))
    record.write("exchange", rows=results)


if __name__ == "__main__":
    main()
