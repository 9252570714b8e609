"""Testing models in two steps: `generate` samples completions and keeps them, `score` grades them.

Scoring never generates, so answers can be graded again without a GPU. A generations file is JSON lines:
a header that pins model, data, prompt and sampling, then one line a completion with its token ids.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftis.config import Dataset
from ftis.data import SOURCES, Problem, load_problems, local_file
from ftis.errors import UserError
from ftis.progress import Progress
from ftis.provenance import sha256, versions, write_atomic, write_json
from ftis.rewards import Verdict, grade_many, is_fault
from ftis.stats import wilson

if TYPE_CHECKING:
    from ftis.policy import Policy
    from ftis.rollout import Completion, Sampler

GRADERS = ("ftis", "math-verify", "latex2sympy2_extended", "sympy")


@dataclass(frozen=True)
class Subject:
    """A model under test: node, role and label in its run, and where its weights are."""

    node: int
    name: str
    label: str
    model: str
    revision: str | None = None


@dataclass(frozen=True)
class Test:
    """A benchmark with the prompt and budget that it is taken with."""

    data: Dataset
    prompt: str
    max_new_tokens: int


def completion_text(policy: Policy, completion: Completion) -> str:
    """What is graded: the decoded completion without its stop token."""
    tokens = completion.tokens[:-1] if completion.finished else completion.tokens
    return policy.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def complete(
    policy: Policy, sampler: Sampler, problems: Sequence[Problem], prompt: str, max_new_tokens: int,
    key: tuple[int, ...], samples: int = 1, temperature: float = 0.0, max_batch: int = 1024,
) -> Iterator[tuple[int, int, Completion, str]]:  # fmt: skip
    """(problem index, sample index, completion, its text) for each problem, in order.

    `key` decides the random draws together with the problem's and the sample's index.
    """
    from ftis.prompts import encode_prompt
    from ftis.rollout import Request, SamplingParams

    params = SamplingParams(max_new_tokens, temperature, max_batch=max_batch)
    step = max(1, max_batch // samples)
    for start in range(0, len(problems), step):
        chunk = problems[start : start + step]
        requests = [
            Request(
                encode_prompt(prompt, p.question, policy.tokenizer),
                [(*key, start + i, s) for s in range(samples)],
            )
            for i, p in enumerate(chunk)
        ]
        for i, group in enumerate(sampler.sample(requests, params)):
            for s, completion in enumerate(group):
                yield start + i, s, completion, completion_text(policy, completion)


def summary(verdicts: Sequence[Verdict], truncated: Sequence[bool]) -> dict[str, float]:
    """Accuracy (answer right, whatever its form), format rate and share truncated."""
    n = len(verdicts)
    return {
        "accuracy": sum(v.answer for v in verdicts) / n,
        "format_rate": sum(v.format for v in verdicts) / n,
        "truncated": sum(truncated) / n,
        "n": n,
    }


def generate(
    subjects: Sequence[Subject], tests: dict[str, Test], out: Path, seed: int, device: str = "auto",
    max_batch: int = 64, shape: str = "strict", facts: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write a generations file: one greedy completion a problem, for each model and test.

    `shape` (key of `ftis.rewards.FORMATS`) is what the format rate will count.
    """
    from ftis.policy import load_policy
    from ftis.rollout import TransformersSampler

    loaded = {role: load_problems(test.data) for role, test in tests.items()}
    header = {
        **(facts or {}),
        "seed": seed,
        "temperature": 0.0,
        "shape": shape,
        "subjects": [vars(s) for s in subjects],
        "tests": {
            role: {
                "dataset": test.data.name,
                "prompt": test.prompt,
                "max_new_tokens": test.max_new_tokens,
                "n": len(loaded[role]),
                "data": _data_facts(test.data),
            }
            for role, test in tests.items()
        },
    }
    lines = [json.dumps(header)]
    total, done = len(subjects) * sum(map(len, loaded.values())), 0
    with Progress("generate", total) as bar:
        for subject in subjects:
            policy = load_policy(subject.model, subject.revision, device=device)
            sampler = TransformersSampler(policy)
            for role, test in tests.items():
                for i, s, completion, text in complete(
                    policy,
                    sampler,
                    loaded[role],
                    test.prompt,
                    test.max_new_tokens,
                    (seed,),
                    max_batch=max_batch,
                ):
                    problem = loaded[role][i]
                    row = {
                        "node": subject.node, "test": role, "id": problem.id, "sample": s, "task": problem.task,
                        "gold": problem.gold, "meta": problem.meta, "finish": "stop" if completion.finished else "length",
                        "tokens": completion.tokens.tolist(), "text": text,
                    }  # fmt: skip
                    lines.append(json.dumps(row))
                    done += 1
                    bar.update(done)
    write_atomic(out, "\n".join(lines) + "\n")


def score(generations: Path, out: Path) -> dict[str, Any]:
    """Grade a generations file and write scores.json: accuracy with a 95 % interval by model and test."""
    try:
        header, *rows = [json.loads(line) for line in generations.read_text().splitlines()]
    except FileNotFoundError:
        raise UserError(f"{generations}: no such file; run generate first") from None
    except ValueError as error:
        raise UserError(f"{generations}: not a generations file ({error}); run generate again") from None
    verdicts = grade_many([(r["text"], r["gold"], r["task"]) for r in rows], shape=header["shape"])
    nodes = []
    for subject in header["subjects"]:
        tests = {}
        for role, test in header["tests"].items():
            mine = [
                (r, v) for r, v in zip(rows, verdicts) if (r["node"], r["test"]) == (subject["node"], role)
            ]
            result = summary([v for _, v in mine], [r["finish"] == "length" for r, _ in mine])
            low, high = wilson(sum(v.answer for _, v in mine), len(mine))
            tests[role] = {
                "dataset": test["dataset"], **result, "low": low, "high": high,
                "reasons": dict(Counter(v.reason for _, v in mine)),
                # Timeouts and dead workers are no wrong answers, though they count as such in the accuracy.
                "grader_faults": sum(is_fault(v) for _, v in mine),
            }  # fmt: skip
        nodes.append({k: subject[k] for k in ("node", "name", "label")} | {"benchmarks": tests})
    scores = {
        "run": header.get("run"),
        "nodes": nodes,
        "graders": versions(GRADERS),
        "generations": {
            **{k: v for k, v in header.items() if k != "subjects"},
            "sha256": sha256(generations),
        },
    }
    write_json(out, scores)
    return scores


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
    return subjects, {"run": final["run"], "recipe": final["recipe"]}


def _data_facts(data: Dataset) -> dict[str, Any]:
    path = local_file(data)
    if path is None:
        return {"hub": SOURCES[data.name].repo, "revision": SOURCES[data.name].revision}
    return {"file": path.name, "sha256": sha256(path)}
