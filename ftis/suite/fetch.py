"""What a tier takes from the Hugging Face hub, brought here beforehand: compute nodes often have no
network."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from ftis.errors import UserError
from ftis.hub import has_model, load_model
from ftis.suite.suite import Suite
from ftis.suite.tiers import local_models
from ftis.tasks.problems import Dataset, fetched_file, load_problems, local_file

log = logging.getLogger(__name__)

Model = tuple[str, str | None]
"""Hub name and revision."""


def fetch(tier: str) -> None:
    """Bring a tier's models and problems into the cache (HF_HOME), as far as they aren't there or local."""
    for model, revision in _models(tier):
        log.info("%s: %s", model, load_model(model, revision))
    for dataset in _datasets(tier):
        log.info("%s, %s: %s problems", dataset.name, dataset.split, len(load_problems(dataset)))


def require_fetched(tiers: Iterable[str]) -> None:
    """Raise UserError where jobs of these tiers would need the network."""
    for tier in sorted(tiers):
        absent = [model for model, revision in _models(tier) if not has_model(model, revision)]
        absent += [f"{d.name} ({d.split})" for d in _datasets(tier) if not fetched_file(d).is_file()]
        if absent:
            from huggingface_hub.constants import HF_HOME

            raise UserError(
                f"tier {tier}: {', '.join(absent)}: not in the cache ({HF_HOME}, which HF_HOME sets), and "
                "compute "
                "nodes may have no network. Bring them here first: snakemake -c1 fetch --config "
                f"tier={tier}; "
                "or name local copies (README.md, On a cluster)"
            )


def _models(tier: str) -> list[Model]:
    """Models that are neither made by the workflow nor local."""
    local = local_models()
    models = Suite.load().tier(tier).models.values()
    named = [(m.model, m.revision) for m in models if m.model and m.model not in local]
    return [(model, revision) for model, revision in named if not Path(model).expanduser().is_dir()]


def _datasets(tier: str) -> list[Dataset]:
    """Sets of problems that are neither made by the workflow nor local, whole."""
    config = Suite.load().resolve(tier, Suite.load().runs(tier, "full")[0])
    used = [config.train, config.validation.data, *(b.data for b in Suite.load().benchmarks(tier).values())]
    whole = {Dataset(name=d.name, split=d.split) for d in used if d and d.path is None}
    return sorted((d for d in whole if local_file(d) is None), key=lambda d: (d.name, d.split))
