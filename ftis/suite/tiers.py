"""Tiers: the models and sizes that the grid is run with, as `tiers/TIER.yaml` of a suite's folder lists
them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from ftis.config import NodeConfig, RunConfig
from ftis.errors import UserError, unknown
from ftis.model.lora import Lora
from ftis.runs.warm_start import WarmStart
from ftis.settings import settings
from ftis.suite.memory import Shape
from ftis.tasks.problems import Dataset
from ftis.tasks.tiny.models import DataSettings, TinyModel

RULES = Literal["warm_start", "train", "generate"]


@settings
class Model:
    """The model behind a role: exactly one of `tiny`, `model` and `of`."""

    label: str
    """Name in figures."""
    tiny: TinyModel | None = None
    """A model that the workflow makes: its size, style and warm start."""
    model: str | None = None
    """Hugging Face hub name or local folder."""
    revision: str | None = None
    """Hub commit."""
    of: str | None = None
    """The role whose model this one shares (LoRA)."""
    lora: Lora | None = None
    """None: full fine-tuning."""
    warm: WarmStart | None = None
    """Supervised steps before training, of a real model."""
    shape: Shape | None = None
    """Architecture, for `ftis plan` where the model's config.json isn't at hand."""

    @model_validator(mode="after")
    def _one_source(self) -> Model:
        if sum(source is not None for source in (self.tiny, self.model, self.of)) != 1:
            raise ValueError("give exactly one of tiny, model and of")
        for field in ("warm", "shape"):
            if getattr(self, field) is not None and self.model is None:
                raise ValueError(f"{field}: goes with `model`; remove it")
        return self

    @property
    def made(self) -> bool:
        """Whether the workflow makes its weights: a tiny model, or a real one after its warm start."""
        return self.tiny is not None or self.warm is not None


@settings
class LearningRate:
    """By how a node is trained."""

    full: float = Field(gt=0)
    lora: float = Field(gt=0)


@settings
class Benchmark:
    """A test of trained models."""

    data: Dataset
    prompt: str | None = None
    """Key of `ftis.tasks.prompts.PROMPTS`; None: the one that training used."""
    max_new_tokens: int = Field(ge=1)
    samples: int = Field(default=0, ge=0)
    """Besides the greedy one, completions a problem sampled at T = 1."""


@settings
class Resources:
    """What a job may use."""

    threads: int = Field(default=1, ge=1)
    mem_mb: PositiveInt | dict[str, PositiveInt] = 2000
    """Of the machine's memory; or by pattern, as `gpus`."""
    runtime: int = Field(default=60, ge=1)
    """Minutes."""
    gpus: NonNegativeInt | dict[str, NonNegativeInt] = 0
    """GPUs a job; or, of train and generate, by pattern over run names without their seed, the first that
    matches."""


SET_HERE = {
    "run": (RunConfig, {"name", "nodes", "method", "threshold", "split", "seed", "prompts", "threads"}),
    "node": (NodeConfig, {"name", "model", "revision", "label", "lora", "learning_rate"}),
}
"""Parts of a tier that hold settings of a run: the same fields, less those that the grid and the tier set."""


@settings
class Tier:
    """`workflow/config/tiers/T.yaml`: the models and sizes that the grid is run with."""

    about: str
    """One line for people."""
    seeds: int = Field(ge=1)
    """Seeds when the config doesn't say."""
    ablation_seeds: int | None = Field(default=None, ge=1)
    """The same for ablations; None: `seeds`."""
    models: dict[str, Model]
    """By role; a tier has the runs whose roles are here."""
    data: DataSettings | None = None
    """Problems that the workflow makes; None where they are real."""
    learning_rate: LearningRate
    prompts: dict[str, int]
    """B by pattern over run names without their seed; the first that matches counts."""
    node: dict[str, Any] = Field(default_factory=dict)
    """Fields of `Node` that all nodes share."""
    run: dict[str, Any]
    """Fields of `RunConfig` that all runs share."""
    benchmarks: dict[Literal["id", "ood"], Benchmark]
    """id: like the training questions; ood: not like them."""
    answers_batch: int | None = Field(default=None, ge=1)
    """Sequences decoded at a time when the tests are answered, for which a model has the card to itself;
    None: as many as in training (rollout.max_batch)."""
    resources: dict[RULES, Resources] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_roles(self) -> Tier:
        for field, (kind, set_here) in SET_HERE.items():
            allowed = set(kind.__dataclass_fields__) - set_here
            for key in getattr(self, field):
                if key in set_here:
                    raise ValueError(f"{field}.{key}: the grid and the tier set this; remove it")
                if key not in allowed:
                    raise ValueError(f"{field}: {unknown('key', key, allowed)}")
        for role, model in self.models.items():
            if model.of is not None and (model.of not in self.models or self.models[model.of].of):
                raise ValueError(f"models.{role}.of: {unknown('model', model.of, set(self.models) - {role})}")
        if self.data is None and any(model.tiny for model in self.models.values()):
            raise ValueError("data: tiny models learn from made problems; say which")
        return self


def source_of(model: Model) -> tuple[str, str | None]:
    """Folder or hub name that a real model is read from, and the hub's revision."""
    assert model.model is not None, "neither made nor shared"
    where = local_models().get(model.model, model.model)
    return where, model.revision if where == model.model else None


def local_models() -> dict[str, str]:
    """Local copies of hub models by hub name: $FTIS_MODELS, a JSON object; the workflow sets it from its
    config."""
    text = os.environ.get("FTIS_MODELS") or "{}"
    try:
        given = json.loads(text)
    except json.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        raise UserError(f'FTIS_MODELS: not a JSON object like {{"hub/name": "/local/folder"}}: {text}')
    return existing(given)


def existing(models: dict[str, str]) -> dict[str, str]:
    for name, path in models.items():
        if not Path(path).expanduser().exists():
            raise UserError(f"models: {name}: {path} does not exist; name a folder or file with that model")
    return models
