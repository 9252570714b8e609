"""Forward and backward of log-probs under a vocabulary of 151,936: memory and time, of the head and of a
whole model.

    python benchmarks/logprob_memory.py            # the head at 4,096, 16,384 and 65,536 tokens; a 43M model
    python benchmarks/logprob_memory.py --what head --tokens 16384 --trl-tokens 16384

Each measurement is a process of its own with one thread, the paths in turn: peak memory above what it held
before (the weights and hidden states), and CPU seconds of one pass after a small one that warms up; median
and range. Paths: `plain` (log_softmax of the whole logits), `recompute` (chunks computed again in the
backward), `ours` (ftis.model.logprobs.accumulate), and `trl` (its chunked head, where TRL is installed; on a
CPU its tiles of 4,096 tokens by 32,768 ids keep several temporaries of 512 MiB). A path that would not fit in
memory is left out, and so are `trl` and `recompute` at more tokens than --trl-tokens, since they take long.
Puts its rows into benchmarks/results/logprob_memory.json.
"""

import one_thread  # noqa: F401  # isort: skip

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import record
import torch
from measures import peak_mib, spread, trl_version

from ftis.model.logprobs import TokenLogprob, accumulate

VOCABULARY, WIDTH, LENGTH = 151_936, 256, 256
PATHS = ("plain", "trl", "recompute", "ours")


def trl_head(hidden, weight, target):
    from trl.kernels import ChunkedLogProbFunction

    return ChunkedLogProbFunction.apply(
        hidden, weight, None, target, 1.0, 32_768, None, 1.0, ("log_probs", "entropy")
    )[0]


LOGPROBS = {
    "plain": lambda h, w, t: torch.log_softmax(h @ w.T, -1).gather(-1, t[:, None]).squeeze(-1),
    "trl": trl_head,
    "recompute": lambda h, w, t: TokenLogprob.apply(h, w, t, 1.0)[0],
}


def head(path: str, tokens: int) -> dict:
    """The head alone, given hidden states that want a gradient."""
    torch.manual_seed(0)
    weight = (0.05 * torch.randn(VOCABULARY, WIDTH)).requires_grad_()

    def once(count: int) -> float:
        hidden = torch.randn(count, WIDTH, requires_grad=True)
        target, scale = torch.randint(VOCABULARY, (count,)), torch.randn(count)
        weight.grad = None
        began = time.process_time()
        if path == "ours":
            weight.grad = torch.zeros_like(weight)
            lengths = [LENGTH] * (count // LENGTH)
            accumulate(
                hidden, weight.detach(), weight.grad, target, lengths, 1.0,
                lambda part, logp, _: logp @ scale[part.start * LENGTH : part.stop * LENGTH],
            )  # fmt: skip
        else:
            (LOGPROBS[path](hidden, weight, target) * scale).sum().backward()
        return time.process_time() - began

    return measured(once, tokens)


def model(path: str, tokens: int) -> dict:
    """A Qwen2-shaped model of 43M parameters, completions of 256 tokens without a prompt's cost."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    lm = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=5, intermediate_size=704,
        num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, attn_implementation="sdpa", dtype="float32",
    ))  # fmt: skip
    weight = lm.get_output_embeddings().weight

    def once(count: int) -> float:
        ids = torch.randint(VOCABULARY, (count // LENGTH, LENGTH))
        target, scale = ids.roll(-1, 1).flatten(), torch.randn(count)
        lm.zero_grad()
        began = time.process_time()
        hidden = lm.model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
        if path == "ours":
            weight.grad = torch.zeros_like(weight)
            gradient = accumulate(
                hidden, weight.detach(), weight.grad, target, [LENGTH] * len(ids), 1.0,
                lambda part, logp, _: logp @ scale[part.start * LENGTH : part.stop * LENGTH],
            )  # fmt: skip
            hidden.backward(gradient)
        else:
            (LOGPROBS[path](hidden, weight, target) * scale).sum().backward()
        return time.process_time() - began

    return measured(once, tokens) | {"parameters": sum(p.numel() for p in lm.parameters())}


def measured(once, tokens: int) -> dict:
    # Warms up with one completion; its gradients are the weights' own, and stay out of what is measured.
    once(LENGTH)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    before = peak_mib()
    seconds = once(tokens)
    return {"cpu_seconds": round(seconds, 2), "peak_mib": round(peak_mib() - before)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16_384, 65_536])
    parser.add_argument("--what", nargs="+", choices=["head", "model"], default=["head", "model"])
    parser.add_argument("--turns", type=int, default=3, help="processes a path")
    parser.add_argument("--trl-tokens", type=int, default=4096, help="most tokens for trl and recompute")
    parser.add_argument("--one", nargs=3, metavar=("WHAT", "PATH", "TOKENS"), help="one measurement, as JSON")
    args = parser.parse_args()
    if args.one:
        what, path, tokens = args.one
        print(json.dumps({"head": head, "model": model}[what](path, int(tokens))))
        return
    print(f"{'':8}{'tokens':>8}{'path':>11}{'CPU s':>9}{'peak MiB':>10}")
    for what in args.what:
        for tokens in args.tokens if what == "head" else (4096,):
            measure(what, tokens, [p for p in PATHS if possible(p, tokens, args.trl_tokens)], args.turns)


def possible(path: str, tokens: int, most: int) -> bool:
    if path == "plain":  # logits, their log-softmax, and a gradient
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return 3 * tokens * VOCABULARY * 4 < 0.7 * memory
    return path == "ours" or (tokens <= most and (path != "trl" or trl_version() is not None))


def measure(what: str, tokens: int, paths: list[str], turns: int) -> None:
    """The paths in turn; prints and keeps a row of each."""
    runs: dict[str, list[dict]] = {path: [] for path in paths}
    for _ in range(turns):
        for path in paths:
            command = [sys.executable, __file__, "--one", what, path, str(tokens)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            runs[path].append(json.loads(done.stdout))
    for path, found in runs.items():
        ranges = {k: spread([f[k] for f in found]) for k in ("cpu_seconds", "peak_mib")}
        row = {
            "what": what,
            "tokens": tokens,
            "path": path,
            **found[0],
            **{k: r[1] for k, r in ranges.items()},
        }
        row |= {"range": ranges, "turns": turns} | ({"version": trl_version()} if path == "trl" else {})
        settings = {"vocabulary": VOCABULARY, "width": WIDTH, "completion": LENGTH}
        record.add("logprob_memory", row, "what", "tokens", "path", **settings)
        print(
            f"{what:8}{tokens:8}{path:>11}{row['cpu_seconds']:9.2f}{row['peak_mib']:10}  {ranges}", flush=True
        )


if __name__ == "__main__":
    main()
