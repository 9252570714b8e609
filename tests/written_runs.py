"""Folders of finished runs that no run has made: their numbers are worked by hand."""

import json
from pathlib import Path

import yaml

from ftis.settings import to_dict
from ftis.suite.suite import Suite

TIER = "tiny"


def write_run(root: Path, slug: str, accuracy, ood=None, steps=(0, 5, 10)) -> Path:
    """A finished run with `accuracy(role, step)` in validation and `ood(role)` on the benchmark."""
    run = Suite.load().run(slug)
    folder = root / "results" / TIER / "runs" / slug
    folder.mkdir(parents=True)
    names = [
        {"node": k, "name": role, "label": f"{role} as it was called then"}
        for k, role in enumerate(Suite.load().roles(run))
    ]
    lines = []
    for step in range(max(steps) + 1):
        nodes = []
        for name in names:
            score = {
                "accuracy": accuracy(name["name"], step),
                "format_rate": 0.9,
                "truncated": 0.0,
                "n": 1024,
            }
            validation = {"greedy": score, "sampled": None} if step in steps else None
            training = {"reward": 0.5, "filtered": {"own": 0.0, "foreign": 0.25}} if step else {}
            nodes.append({**name, "validation": validation, **training})
        lines.append(json.dumps({"step": step, "seconds": 0.1, "nodes": nodes}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    scores = []
    for name in names:
        rest = {"low": 0.0, "high": 1.0, "n": 500, "format_rate": 1.0, "truncated": 0.0}
        value = 0.5 if ood is None else ood(name["name"])
        # Another grader that accepts half of what ours rejects.
        rest["math_verify"] = {"accuracy": (1 + value) / 2}
        benchmarks = {
            "id": {"dataset": "tiny", "accuracy": 0.9, **rest},
            "ood": {"dataset": "tiny", "accuracy": value, **rest},
        }
        scores.append({**name, "benchmarks": benchmarks})
    (folder / "scores.json").write_text(json.dumps({"run": slug, "nodes": scores, "graders": {}}))
    (folder / "config.yaml").write_text(yaml.safe_dump(to_dict(Suite.load().resolve(TIER, run))))
    (folder / "final.json").write_text(json.dumps({"run": slug}))
    return folder


def write_size_pair(root: Path) -> list[Path]:
    """Alone and NoIS on the size pair, two seeds: role and step decide the accuracy, seed 1 adds 0.1."""

    def made(slug, base):
        extra = 0.1 if slug.endswith("-s1") else 0.0
        return write_run(
            root, slug, lambda role, step: base + step / 100 + 0.05 * (role == "base_large") + extra
        )

    return [
        made(f"{cell}-s{seed}", base)
        for cell, base in (
            ("alone-base_small", 0.3),
            ("alone-base_large", 0.3),
            ("size_base-nois-vertical", 0.2),
        )
        for seed in (42, 1)
    ]
