"""What must not change unless somebody means it: every run's recipe, and the smoke tier's numbers.

`python -m tests.whole.pins recipes` writes the recipes anew, `python -m tests.whole.pins smoke` the numbers
of the smoke tier that lies in results/. Both go into a commit that says why they changed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"
RECIPES, SMOKE = GOLDEN / "recipes.json", GOLDEN / "smoke.json"


def recipes() -> dict[str, Any]:
    """By tier: the recipe of each run of the paper's grid and of the ablations with the first seed; one
    digest over the whole grid with all seeds; what the answers and the warm starts depend on."""
    from ftis.config import recipe_hash
    from ftis.suite.grid import Run
    from ftis.suite.made import answers_hash, made_hash
    from ftis.suite.suite import Suite

    def recipe(tier: str, run: Run) -> str:
        return recipe_hash(Suite.load().resolve(tier, run))

    found = {}
    for tier in Suite.load().tiers:
        first = [*Suite.load().runs(tier, "paper", 1)]
        first += [
            run for name in Suite.load().ablations(tier) for run in Suite.load().ablation_runs(name, tier, 1)
        ]
        everything = Suite.load().runs(tier, "full", None)
        models = Suite.load().tier(tier).models
        found[tier] = {
            "runs": {run.slug: recipe(tier, run) for run in sorted(set(first), key=lambda run: run.slug)},
            "full_grid": {
                "runs": len(everything),
                "sha256": _digest([recipe(tier, run) for run in everything]),
            },
            "answers": {
                run.slug: answers_hash(Suite.load(), tier, run)
                for run in (*Suite.load().start_runs(tier, 1), *Suite.load().runs(tier, "paper", 1))
            },
            "made": {
                role: made_hash(Suite.load(), tier, role) for role, model in models.items() if model.made
            },
        }
    return found


def smoke(results: Path) -> dict[str, Any]:
    """Of each run of the smoke tier in `results`: digests of its metrics without times, and of its models'
    weights."""
    runs = {}
    for final in sorted((results / "runs").glob("*/final.json")):
        lines = [json.loads(line) for line in (final.parent / "metrics.jsonl").read_text().splitlines()]
        facts = json.loads(final.read_text())
        runs[final.parent.name] = {
            "metrics": _digest(_timeless(lines)),
            "weights": [
                _sha256(next((final.parent / n["path"]).glob("*model.safetensors"))) for n in facts["nodes"]
            ],
        }
    return {"processor": processor(), "runs": runs}


def processor() -> str:
    """What the numbers of a run depend on besides its recipe: another one rounds otherwise."""
    import torch

    model = "unknown"
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        fields = dict(line.partition(":")[::2] for line in lines if ":" in line)
        fields = {key.strip(): value.strip() for key, value in fields.items()}
        model = " ".join(fields.get(k, "") for k in ("vendor_id", "cpu family", "model"))
    return (
        f"{platform.machine()} {model}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
    )


def _timeless(value: Any) -> Any:
    """Metrics without what a clock said."""
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k != "seconds"}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    if sys.argv[1] == "recipes":
        RECIPES.write_text(json.dumps(recipes(), indent=1) + "\n")
    else:
        SMOKE.write_text(json.dumps(smoke(Path("results/smoke")), indent=1) + "\n")
