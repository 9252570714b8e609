"""Tidy tables of a tier: what finished runs say, as a few CSV files that every claim and figure can be made
from.

runs: one row a (run, node): what it is and what it cost in all. training: one row a (run, node, iteration).
validation: one row a (run, node, validated iteration); 0 is before training. scores: one row a (run, node,
benchmark, decoding), after training; runs named start-... are before it. completions: answers of several runs
to the same questions, to be read. disagreements: answers that only one of our grader and math-verify accepts,
a few of each kind. Accuracies are fractions; `math_verify` is by math-verify's own verdict, every other one
by ours. `run` and `node` join the tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ftis.errors import UserError
from ftis.files import write_files
from ftis.study.answers import completions, disagreements
from ftis.study.runs import RUN_COLUMNS, make_target, named, parse_json, read_text, run_columns
from ftis.suite.suite import Suite

Tables = dict[str, pd.DataFrame]

COLUMNS = {
    "runs": [
        *RUN_COLUMNS,
        "node",
        "role",
        "label",
        "iterations",
        "tokens_generated",
        "tokens_trained",
        "bytes_sent",
        "bytes_received",
        "seconds_sample",
        "seconds_grade",
        "seconds_exchange",
        "seconds_update",
        "commit",
        "recipe",
    ],
    "training": [
        "run",
        "node",
        "step",
        "reward",
        "accuracy",
        "entropy",
        "tokens_generated",
        "bytes_sent",
        "filtered_foreign",
        "kl_foreign",
        "grad_norm",
        "seconds",
    ],
    "validation": [
        "run",
        "node",
        "step",
        "greedy",
        "sampled",
        "format_greedy",
        "format_sampled",
        "problems",
        "samples",
    ],
    "scores": [
        "run",
        "node",
        "benchmark",
        "decoding",
        "dataset",
        "accuracy",
        "format_rate",
        "truncated",
        "problems",
        "samples",
        "math_verify",
        "math_verify_faults",
        "only_ours",
        "only_math_verify",
    ],
    "completions": [
        "run",
        "method",
        "setup",
        "role",
        "label",
        "seed",
        "benchmark",
        "id",
        "question",
        "gold",
        "sample",
        "text",
        "correct",
        "format",
        "math_verify",
    ],
    "disagreements": [
        "benchmark",
        "ours",
        "math_verify",
        "reason",
        "kind_rows",
        "rows",
        "id",
        "gold",
        "extracted",
        "read",
        "run",
        "node",
        "test",
        "sample",
    ],
}
UNPUBLISHED = {"scores": ("math_verify", "math_verify_faults", "only_ours", "only_math_verify"),
               "completions": ("math_verify",), "disagreements": tuple(COLUMNS["disagreements"])}  # fmt: skip
"""What tables lack that were published before math-verify's verdict was kept: they are read with these
empty."""
TEXTS = {
    *RUN_COLUMNS,
    "role",
    "label",
    "commit",
    "recipe",
    "benchmark",
    "decoding",
    "dataset",
    "id",
    "question",
    "gold",
    "text",
    "reason",
    "extracted",
    "read",
    "test",
} - {"seed"}
ORDER = {
    "runs": ["run", "node"],
    "training": ["run", "node", "step"],
    "validation": ["run", "node", "step"],
    "scores": ["run", "node", "benchmark", "decoding"],
    "completions": ["benchmark", "id", "role", "run"],
    "disagreements": ["benchmark", "ours", "reason", "id", "extracted", "read"],
}
COUNTS = ("tokens_generated", "tokens_trained", "bytes_sent", "bytes_received")
PHASES = ("sample", "grade", "exchange", "update")


def tidy(run_dirs: Sequence[Path], tier: str) -> Tables:
    """The tables of runs by name; raises `UserError` for a run that isn't finished."""
    rows: dict[str, list[dict]] = {name: [] for name in COLUMNS}
    called = Suite.load().labels(tier)
    for folder in run_dirs:
        if Suite.load().run(folder.name).method != "start":
            _add_training(folder, called, rows)
        _add_scores(folder, called, rows)
    rows["completions"] = completions(run_dirs, tier)
    rows["disagreements"] = disagreements(run_dirs)
    tables = {
        name: pd.DataFrame(rows[name], columns=columns).sort_values(ORDER[name], ignore_index=True)
        for name, columns in COLUMNS.items()
    }
    # Whole numbers though a model before training has none.
    tables["runs"] = tables["runs"].astype(dict.fromkeys(COUNTS, "Int64"))
    return tables


def _add_training(folder: Path, called: Mapping[str, str], rows: dict[str, list[dict]]) -> None:
    final = parse_json(read_text(folder / "final.json"), str(folder / "final.json"), folder / "final.json")
    path = folder / "metrics.jsonl"
    totals: dict[int, dict[str, Any]] = {}
    lines = read_text(path).splitlines()
    for number, line in enumerate(lines, start=1):
        record = parse_json(line, f"{path}, line {number}", path)
        try:
            for node in record["nodes"]:
                where = {"run": folder.name, "node": node["node"], "step": record["step"]}
                if node.get("validation"):
                    rows["validation"].append({**where, **_validation(node["validation"])})
                if record["step"] == 0:
                    continue
                foreign = node["kl"].get("foreign", {})
                rows["training"].append({
                    **where,
                    "reward": round(node["reward"], 4),
                    "accuracy": round(node["accuracy"], 4),
                    "entropy": None if node["entropy"] is None else round(node["entropy"], 4),
                    "tokens_generated": node["tokens_generated"],
                    "bytes_sent": node["bytes_sent"],
                    "filtered_foreign": _rounded(node["filtered"].get("foreign")),
                    "kl_foreign": round(foreign["gen_theta_sum"][2], 2) if foreign else None,
                    "grad_norm": round(node["grad_norm"], 4),
                    "seconds": round(sum(node["seconds"].get(phase, 0.0) for phase in PHASES), 2),
                })  # fmt: skip
                total = totals.setdefault(node["node"], named(node, called))
                total["iterations"] = total.get("iterations", 0) + 1  # fewer for a node that was lost
                for key in COUNTS:
                    total[key] = total.get(key, 0) + node[key]
                for phase in PHASES:
                    key = f"seconds_{phase}"
                    total[key] = total.get(key, 0.0) + node["seconds"].get(phase, 0.0)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}, line {number}: lacks {error}; delete it and {make_target(path)}"
            ) from None
    for total in totals.values():
        rows["runs"].append({
            **run_columns(folder.name),
            **{key: round(value, 3) if isinstance(value, float) else value for key, value in total.items()},
            "commit": commit_of(final),
            "recipe": final["recipe"],
        })  # fmt: skip


def commit_of(final: Mapping[str, Any]) -> str:
    """Of a run's `final.json`: twelve digits, + where files were changed."""
    git = final["provenance"]["git"] or {}
    return (git.get("commit") or "")[:12] + ("+" if git.get("dirty") else "")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _validation(scores: Mapping[str, Any]) -> dict[str, Any]:
    greedy, sampled = scores["greedy"] or {}, scores["sampled"] or {}
    problems = greedy.get("n", 0)
    return {
        "greedy": _rounded(greedy.get("accuracy")),
        "sampled": _rounded(sampled.get("accuracy")),
        "format_greedy": _rounded(greedy.get("format_rate")),
        "format_sampled": _rounded(sampled.get("format_rate")),
        "problems": problems,
        "samples": sampled.get("n", 0) // problems if problems else 0,
    }


def _add_scores(folder: Path, called: Mapping[str, str], rows: dict[str, list[dict]]) -> None:
    path = folder / "scores.json"
    scores = parse_json(read_text(path), str(path), path)
    try:
        for node in scores["nodes"]:
            for name, score in node["benchmarks"].items():
                other = score["math_verify"]
                rows["scores"].append({
                    "run": folder.name,
                    "node": node["node"],
                    "benchmark": name.removesuffix("_sampled"),
                    "decoding": "sampled" if name.endswith("_sampled") else "greedy",
                    "dataset": score["dataset"],
                    **{key: round(score[key], 5) for key in ("accuracy", "format_rate", "truncated")},
                    "problems": score["problems"],
                    "samples": score["samples"],
                    "math_verify": round(other["accuracy"], 5),
                    "math_verify_faults": other["faults"],
                    **{key: other[key] for key in ("only_ours", "only_math_verify")},
                })  # fmt: skip
            if Suite.load().run(folder.name).method == "start":
                rows["runs"].append({**run_columns(folder.name), **named(node, called), "iterations": 0})
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: lacks {error}; delete it and {make_target(path)}") from None


def make_tidy(tier: str, run_dirs: Sequence[Path], out: Path) -> None:
    """Write each table to `out`/tidy/NAME.csv, and `out`/provenance.json: what all of it comes from."""
    tables = tidy(run_dirs, tier)
    files = {
        Path(out) / "tidy" / f"{name}.csv": table.to_csv(index=False, lineterminator="\n").encode()
        for name, table in tables.items()
    }
    facts = json.dumps(sources(tier, run_dirs), indent=1) + "\n"
    write_files({**files, Path(out) / "provenance.json": facts.encode()})


def sources(tier: str, run_dirs: Sequence[Path]) -> dict[str, Any]:
    """Commits, packages and hardware that the runs were made with; several of one kind are listed."""
    found: dict[str, set[str]] = {}
    for folder in run_dirs:
        path = folder / "scores.json"
        graders = parse_json(read_text(path), str(path), path)["graders"]
        found.setdefault("graded_with", set()).add(
            ", ".join(f"{name} {version}" for name, version in graders.items())
        )
        if Suite.load().run(folder.name).method == "start":
            continue
        path = folder / "final.json"
        final = parse_json(read_text(path), str(path), path)
        made = final["provenance"]
        for node in final.get("lost", ()):
            found.setdefault("lost_nodes", set()).add(
                f"{folder.name}: {node['name']} from iteration {node['iteration']}"
            )
        for node in final["nodes"]:
            for peer in node.get("distrusted", ()):
                found.setdefault("distrusted_nodes", set()).add(
                    f"{folder.name}: {peer['name']} by {node['name']} from iteration {peer['iteration']}"
                )
        git = made["git"] or {}
        found.setdefault("commit", set()).add(
            (git.get("commit") or "none") + (" with changes" if git.get("dirty") else "")
        )
        found.setdefault("python", set()).add(made["python"])
        found.setdefault("processor", set()).add(f"{made['cpu']} x {made['cpus']}")
        found.setdefault("gpus", set()).add(", ".join(made["gpus"]) or "none")
        for package, version in made["packages"].items():
            found.setdefault(package, set()).add(version)
    seeds = sorted({Suite.load().run(folder.name).seed for folder in run_dirs})
    return {
        "tier": tier,
        "command": f"snakemake -c2 --config tier={tier} seeds={len(seeds)}",
        "settings": f"workflow/config/tiers/{tier}.yaml, workflow/config/grid.yaml",
        "seeds": ", ".join(map(str, seeds)),
        **{name: "; ".join(sorted(values)) for name, values in found.items()},
    }


def primary_decoding(tables: Mapping[str, pd.DataFrame]) -> str:
    """The decoding that claims and economics go by: sampled at T = 1 where the tier does that, else
    greedy."""
    for name, column in (("validation", "sampled"), ("scores", "decoding")):
        found = tables.get(name, pd.DataFrame()).get(column, pd.Series(dtype=object)).dropna()
        if len(found) and (name == "validation" or found.eq("sampled").any()):
            return "sampled"
    return "greedy"


def read_tidy(folder: Path) -> Tables:
    """Tables that `make_tidy` wrote, by name. g is text; an empty field of text is "". Raises UserError for
    one that is missing.

    >>> tables = ftis.read_tidy("paper_figures/published/tiny/tidy")
    >>> tables["runs"]["method"].nunique()  # seven, and models as they were before
    8
    """
    tables = {}
    for name, columns in COLUMNS.items():
        path = Path(folder) / f"{name}.csv"
        later = UNPUBLISHED.get(name, ())
        if list(later) == columns and not path.exists():
            tables[name] = pd.DataFrame(columns=columns)
            continue
        if not path.exists():
            raise UserError(f"{path}: no such file; make it with `snakemake -c1 {path}`")
        texts = [column for column in columns if column in TEXTS]
        table = pd.read_csv(path, dtype=dict.fromkeys(texts, str))
        if missing := [column for column in columns if column not in table and column not in later]:
            raise UserError(
                f"{path}: lacks the column {missing[0]!r}; make it again with `snakemake -c1 {path}`"
            )
        table = table.reindex(columns=list(dict.fromkeys([*table, *columns])))
        table[texts] = table[texts].fillna("")
        tables[name] = table
    return tables
