"""What the workflow makes itself, and the hashes that say when it must be made again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from ftis.errors import UserError
from ftis.suite.grid import Run
from ftis.suite.tiers import Model
from ftis.tasks.tiny.models import DataSettings

if TYPE_CHECKING:
    from ftis.suite.suite import Suite


def made_models(suite: Suite, tier: str, run: Run) -> list[str]:
    """Models a run starts from that the workflow makes."""
    return list(
        dict.fromkeys(f"{n.model}/warm.json" for n in suite.resolve(tier, run).nodes if _is_made(n.model))
    )


def made_inputs(suite: Suite, tier: str, run: Run) -> list[str]:
    """Files a run is trained from that the workflow makes: warm starts and problems; none of the real
    ones."""
    config = suite.resolve(tier, run)
    sets = [config.train, config.validation.data]
    return made_models(suite, tier, run) + [d.path for d in sets if d and _is_made(d.path)]


def made_model(suite: Suite, tier: str, role: str) -> Model:
    """A model that the workflow makes: a tiny one, or a real one with a warm start."""
    models = suite.tier(tier).models
    made = [name for name, model in models.items() if model.made]
    if role not in made:
        raise UserError(f"tier {tier} makes no model {role!r}; it makes {', '.join(made) or 'none'}")
    return models[role]


def warm_inputs(suite: Suite, tier: str, role: str) -> list[str]:
    """Files that a warm start reads and that the workflow makes; none of the real ones."""
    if made_model(suite, tier, role).tiny is None:
        return []
    folder = f"results/{tier}"
    return [
        f"{folder}/models/tokenizer/tokenizer.json",
        *(f"{folder}/data/{n}.jsonl" for n in ("validation", "ood")),
    ]


def made_data(suite: Suite, tier: str) -> DataSettings:
    """Settings of the problems that the workflow makes."""
    data = suite.tier(tier).data
    if data is None:
        made = [name for name in suite.tiers if suite.tier(name).data]
        raise UserError(f"tier {tier} makes no problems, it uses real ones; tiers that do: {', '.join(made)}")
    return data


@cache
def made_hash(suite: Suite, tier: str, role: str) -> str:
    """What decides a made model besides its seed; it stands where a hub model has its commit."""
    model, run = made_model(suite, tier, role), suite.tier(tier).run
    if model.tiny is not None:
        return settings_hash(model.tiny, made_data(suite, tier))
    # Left out where it is the default: models from before it counted keep their hash.
    dtype = [d for d in [suite.tier(tier).node.get("compute_dtype")] if d not in (None, "float32")]
    return settings_hash(
        model.warm, model.model, model.revision, run["train"], run.get("rollout", {}).get("prompt"), *dtype
    )


@cache
def answers_hash(suite: Suite, tier: str, run: Run) -> str:
    """What decides a run's answers to the benchmarks besides its training. That stands for all else of a
    trained run; of a model before training, this does."""
    tests = suite.benchmarks(tier)
    if run.method != "start":
        return settings_hash(tests)
    config = suite.resolve(tier, run)
    (node,) = config.nodes
    prompts = [test.prompt or config.rollout.prompt for test in tests.values()]
    return settings_hash(
        tests, node.model, node.revision, node.compute_dtype, prompts, config.reward, config.rollout.backend
    )


def made_benchmarks(suite: Suite, tier: str) -> list[str]:
    return [b.data.path for b in suite.benchmarks(tier).values() if _is_made(b.data.path)]


def _is_made(path: str | None) -> bool:
    return path is not None and path.startswith("results/")


def settings_hash(*parts: Any) -> str:
    """12 hex digits over settings, for what must be redone when they change."""
    text = json.dumps(parts, sort_keys=True, default=asdict)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
