"""Forward and backward of log-probs under a vocabulary of 151,936: memory and time, of the head and of a whole model.

    python benchmarks/logprob_memory.py            # the head at 4,096, 16,384 and 65,536 tokens; a 43M model
    python benchmarks/logprob_memory.py --tokens 4096

Each measurement is a process of its own with one thread: peak memory above what it held before (the weights and hidden
states), and CPU seconds of one pass after a small one that warms up. Paths: `plain` (log_softmax of the whole logits),
`recompute` (chunks computed again in the backward), `ours` (ftis.logprob_head.accumulate), and `trl` (its chunked head,
where TRL is installed; on a CPU its tiles of 32,768 ids keep several 512 MiB temporaries). A path that would not fit
in memory is left out. Writes benchmarks/results/logprob_memory.json.
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

from ftis.logprob_head import TokenLogprob, accumulate
from ftis.provenance import versions

VOCABULARY, WIDTH, LENGTH = 151_936, 256, 256
PATHS = ("plain", "trl", "recompute", "ours")


def peak_mib() -> float:
    """Most memory that this process has held."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


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
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=5, intermediate_size=704, num_attention_heads=4,
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
    parser.add_argument("--one", nargs=3, metavar=("WHAT", "PATH", "TOKENS"), help="one measurement, as JSON")
    args = parser.parse_args()
    if args.one:
        what, path, tokens = args.one
        print(json.dumps({"head": head, "model": model}[what](path, int(tokens))))
        return
    fits = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 0.7
    rows = []
    print(f"{'':8}{'tokens':>8}{'path':>11}{'CPU s':>9}{'peak MiB':>10}")
    for what, tokens in [*(("head", t) for t in args.tokens), ("model", 4096)]:
        for path in PATHS:
            if path == "plain" and 3 * tokens * VOCABULARY * 4 > fits:
                continue
            if path == "trl" and (versions(("trl",)).get("trl") is None or tokens > 4096):
                continue
            if path == "recompute" and tokens > 4096:
                continue
            command = [sys.executable, __file__, "--one", what, path, str(tokens)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rows.append({"what": what, "tokens": tokens, "path": path, **json.loads(done.stdout)})
            row = rows[-1]
            print(f"{what:8}{tokens:8}{path:>11}{row['cpu_seconds']:9.2f}{row['peak_mib']:10}", flush=True)
    settings = {"vocabulary": VOCABULARY, "width": WIDTH, "completion": LENGTH}
    record.write("logprob_memory", **settings, rows=rows, **versions(("trl",)))


if __name__ == "__main__":
    main()
