"""Testing one causal language model on GSM8K and MATH-500: generate, then score."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftis.errors import UserError, unknown
from ftis.runs.answers import BenchmarkSpec, Sampling, Subject, generate
from ftis.runs.scores import score
from ftis.tasks.grading.verdict import FORMATS
from ftis.tasks.problems import Dataset

BENCHMARKS = ("gsm8k", "math500")


def evaluate(
    model: str,
    benchmarks: str | Sequence[str] = BENCHMARKS,
    *,
    revision: str | None = None,
    prompt: str = "chat-v1",
    limit: int | None = None,
    max_new_tokens: int = 768,
    max_batch: int = 32,
    samples: int = 1,
    temperature: float = 0.0,
    shape: str = "strict",
    seed: int = 42,
    backend: str = "transformers",
    device: str = "auto",
    resume: bool = False,
    out: str | Path | None = None,
) -> dict[str, dict[str, Any]]:
    """The scores of a model, a folder or hub name, by benchmark: accuracy with its 95 % interval ("low",
    "high"), format rate, share truncated, pass@k, math-verify's accuracy beside ours; all as fractions.

    `limit`: the first so many problems. `samples` completions a problem at a `temperature` (0 is greedy).
    `shape`: the format that is counted. `out` keeps generations.jsonl and scores.json, and `resume` goes on
    from them; None: nothing is kept. Raises UserError that names what is wrong and what exists.

    >>> scores = ftis.evaluate("examples/made/base", "gsm8k", prompt="tiny-v1", limit=4, max_new_tokens=48)
    >>> scores["gsm8k"]["problems"]
    4
    """
    names = (benchmarks,) if isinstance(benchmarks, str) else tuple(benchmarks)
    if shape not in FORMATS:
        raise unknown("format", shape, FORMATS)
    if samples > 1 and temperature == 0:
        raise UserError("--samples: several need --temperature above 0, since greedy decoding repeats itself")
    tests = {}
    for name in names:
        if name not in BENCHMARKS:
            raise unknown("benchmark", name, BENCHMARKS)
        data = Dataset(name=name, split="test", limit=limit)
        tests[name] = BenchmarkSpec(data, prompt, max_new_tokens, samples, temperature)
    subject = Subject(0, "model", model, model, revision)
    sampling = Sampling(seed, max_batch, shape, backend)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(out or scratch)
        generations = folder / "generations.jsonl"
        generate([subject], tests, generations, sampling, device, resume=resume)
        return score(generations, folder / "scores.json")["nodes"][0]["benchmarks"]
