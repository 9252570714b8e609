"""The grid: which runs there are, what each figure and table needs, and the settings of a run in a tier.

`workflow/config/grid.yaml` names the set-ups, methods and artefacts; `workflow/config/tiers/T.yaml` says
which models and sizes stand behind them. Both are read here, by the workflow and by the CLI alike, so a run's
name alone decides its settings.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, NonNegativeInt, TypeAdapter, model_validator

from ftis.config import RUN_CONFIG, Node, RunConfig
from ftis.errors import UserError, unknown
from ftis.method.methods import METHODS
from ftis.model.lora import Lora
from ftis.runs.warm_start import WarmStart
from ftis.settings import parse, read_yaml, settings
from ftis.suite.memory import Shape
from ftis.tasks.problems import Dataset
from ftis.tasks.tiny.models import DataSettings, TinyModel

CONFIG = Path(__file__).resolve().parents[2] / "workflow" / "config"
RULES = Literal["warm_start", "train", "generate"]
SINGLE = ("alone", "start")
"""Runs of one model: trained alone, and as it is before any training (answers and scores only)."""


# --- The definition -------------------------------------------------------------------------------------


@settings
class Setup:
    """Nodes that train together."""

    nodes: tuple[str, ...] = Field(min_length=2)
    """Roles: keys of a tier's `models`."""
    title: str
    """Name in figures."""


@settings
class Artefact:
    """A figure or a table."""

    title: str
    runs: tuple[str, ...]
    """Patterns over run names without their seed: * and {a,b} as in a shell."""
    reads: Literal["metrics", "scores"] = "metrics"
    """metrics: curves during training; scores: benchmarks after it."""


@settings
class Variant:
    """One change to a run."""

    label: str
    """Name in figures."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings of a run by dotted name, e.g. readings.preset."""
    times: dict[Literal["prompts", "iterations", "group_size"], int] = Field(default_factory=dict)
    """Factors on settings whose value the tier decides."""
    nodes: tuple[str, ...] | None = Field(default=None, min_length=2)
    """Roles that train together in place of the set-up's."""


@settings
class Ablation:
    """Runs beside the same runs with one thing changed; each is a target of its own."""

    title: str
    question: str
    """What it answers, in a sentence."""
    runs: tuple[str, ...]
    """Patterns over run names without their seed: what the variants start from and are compared with."""
    variants: dict[str, Variant] = Field(default_factory=dict)
    """By name; none where runs of the grid are compared that grid=paper lacks."""

    @model_validator(mode="after")
    def _names(self) -> Ablation:
        for name in self.variants:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
                raise ValueError(f"variants: {name!r}: use a-z, 0-9 and _; it becomes part of a run's name")
        return self


@settings
class Grid:
    """`workflow/config/grid.yaml`."""

    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    """The first N are used."""
    setups: dict[str, Setup]
    methods: tuple[str, ...]
    thresholds: tuple[float, ...]
    """g, of the filtered methods."""
    splits: tuple[Literal["vertical", "horizontal"], ...]
    artefacts: dict[str, Artefact]
    ablations: dict[str, Ablation] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_names(self) -> Grid:
        for method in self.methods:
            if method not in METHODS:
                raise ValueError(f"methods: {unknown('method', method, METHODS)}")
        names = [name for ablation in self.ablations.values() for name in ablation.variants]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"ablations: two variants are named {name!r}; a run's name says which it is")
        for name, variant in self.variants.items():
            for role in variant.nodes or ():
                if role not in self.roles:
                    raise ValueError(f"ablations: variant {name}: {unknown('role', role, self.roles)}")
        return self

    @property
    def variants(self) -> dict[str, Variant]:
        return {name: v for ablation in self.ablations.values() for name, v in ablation.variants.items()}

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(role for setup in self.setups.values() for role in setup.nodes))


@cache
def load_grid() -> Grid:
    path = CONFIG / "grid.yaml"
    return parse(TypeAdapter(Grid), read_yaml(path), str(path))


# --- Runs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One training run, known by its name in every tier. `Run.from_slug(run.slug) == run`."""

    setup: str
    """Key of `setups`; the role when the method is alone."""
    method: str
    threshold: float | None
    """g; None where the method doesn't filter."""
    split: str
    seed: int
    variant: str = ""
    """Key of an ablation's `variants`; empty in the grid itself."""

    @property
    def cell(self) -> str:
        """The name without its seed, e.g. size_base-ftis-g50-vertical, alone-base_small or alone-base_small+mini4."""
        variant = f"+{self.variant}" if self.variant else ""
        if self.method in SINGLE:
            return f"{self.method}-{self.setup}{variant}"
        g = "" if self.threshold is None else f"-g{_plain(self.threshold)}"
        return f"{self.setup}-{self.method}{g}-{self.split}{variant}"

    @property
    def slug(self) -> str:
        return f"{self.cell}-s{self.seed}"

    @property
    def roles(self) -> tuple[str, ...]:
        if self.method in SINGLE:
            return (self.setup,)
        return self.change.nodes or load_grid().setups[self.setup].nodes

    @property
    def change(self) -> Variant:
        """What its variant changes."""
        return load_grid().variants[self.variant] if self.variant else Variant(label="")

    @classmethod
    def from_slug(cls, slug: str) -> Run:
        """The run of that name; any threshold and seed, but a known set-up and method, else `UserError`."""
        grid = load_grid()
        if match := re.fullmatch(r"(alone|start)-(\w+)(?:\+(\w+))?-s(\d+)", slug):
            method, role, variant, seed = match.groups()
            if role not in grid.roles:
                raise UserError(f"run {slug!r}: {unknown('model', role, grid.roles)}")
            run = cls(role, method, None, "vertical", int(seed), variant or "")
        elif match := re.fullmatch(r"(\w+)-([a-z]\w*)(?:-g([\d.]+))?-([a-z]+)(?:\+(\w+))?-s(\d+)", slug):
            setup, method, g, split, variant, seed = match.groups()
            for kind, given, known in [
                ("set-up", setup, grid.setups),
                ("method", method, [m for m in METHODS if m != "alone"]),
                ("split", split, grid.splits),
            ]:
                if given not in known:
                    raise UserError(f"run {slug!r}: {unknown(kind, given, known)}")
            if METHODS[method].filtered != (g is not None):
                needs = "needs its threshold, e.g. -g50" if g is None else "doesn't filter: leave out -g"
                raise UserError(f"run {slug!r}: method {method} {needs}")
            try:
                threshold = None if g is None else float(g)
            except ValueError:
                raise UserError(f"run {slug!r}: threshold g{g} is not a number") from None
            run = cls(setup, method, threshold, split, int(seed), variant or "")
        else:
            raise UserError(
                f"run {slug!r}: not a run's name; they read "
                "{setup}-{method}[-g{threshold}]-{split}[+{variant}]-s{seed}, "
                "e.g. size_base-ftis-g50-vertical-s42, or alone-{model}-s{seed}"
            )
        if run.variant and (run.variant not in grid.variants or method == "start"):
            raise UserError(f"run {slug!r}: {unknown('variant', run.variant, grid.variants)}")
        if run.slug != slug:
            raise UserError(f"run {slug!r}: write it {run.slug}")
        return run


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(float(number))


@cache
def _product() -> tuple[Run, ...]:
    """Every role alone, then set-ups x methods (x thresholds) x splits; with a placeholder seed of 0."""
    grid = load_grid()
    runs = [Run(role, "alone", None, "vertical", 0) for role in grid.roles]
    for setup, method, split in product(grid.setups, grid.methods, grid.splits):
        thresholds = grid.thresholds if METHODS[method].filtered else (None,)
        runs += [Run(setup, method, g, split, 0) for g in thresholds]
    return tuple(runs)


def _braces(pattern: str) -> list[str]:
    """a{b,c} -> ab, ac."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    parts = match[1].split(",")
    return [p for part in parts for p in _braces(pattern[: match.start()] + part + pattern[match.end() :])]


def seed_list(tier: str, seeds: int | None = None) -> tuple[int, ...]:
    """The first `seeds` of the fixed list; None: as many as the tier is made for."""
    count, listed = load_tier(tier).seeds if seeds is None else seeds, load_grid().seeds
    if not 1 <= count <= len(listed):
        raise UserError(
            f"seeds: {count} asked for; choose 1 to {len(listed)} (the list is {', '.join(map(str, listed))})"
        )
    return listed[:count]


def artefacts(tier: str) -> tuple[str, ...]:
    """The figures and tables that a tier has the models for."""
    return tuple(name for name in load_grid().artefacts if _missing(name, tier) is None)


def _missing(artefact: str, tier: str) -> str | None:
    """The first pattern for which the tier has no run."""
    patterns = [p for text in load_grid().artefacts[artefact].runs for p in _braces(text)]
    return next((p for p in patterns if not any(fnmatchcase(cell, p) for cell in _cells(tier))), None)


@cache
def _cells(tier: str) -> tuple[str, ...]:
    return tuple(run.cell for run in _product() if set(run.roles) <= set(load_tier(tier).models))


@cache
def ablations(tier: str) -> tuple[str, ...]:
    """The ablations that a tier has the models for."""
    have = set(load_tier(tier).models)
    return tuple(
        name
        for name, ablation in load_grid().ablations.items()
        if all(set(v.nodes or ()) <= have for v in ablation.variants.values())
        and all(any(fnmatchcase(c, p) for c in _cells(tier)) for text in ablation.runs for p in _braces(text))
    )


@cache
def ablation_runs(ablation: str, tier: str, seeds: int | None = None) -> tuple[Run, ...]:
    """The runs that an ablation compares: each run it starts from, and that run with each variant."""
    known = ablations(tier)
    if ablation not in known:
        raise unknown("ablation", ablation, known)
    table = load_grid().ablations[ablation]
    patterns = [p for text in table.runs for p in _braces(text)]
    chosen = [run for run in _product() if any(fnmatchcase(run.cell, p) for p in patterns)]
    changed = [replace(run, variant=v) for run in chosen for v in table.variants if _differs(run, v)]
    listed = seed_list(tier, seeds or load_tier(tier).ablation_seeds)
    return tuple(replace(run, seed=seed) for seed in listed for run in (*chosen, *changed))


FOREIGN_ONLY = (
    "staleness", "cap", "readings.filter_rule", "readings.filter_scope", "readings.filtered_denominator",
    "readings.kl_estimator", "readings.kl_reduction", "readings.weight_level", "readings.detach_weight",
)  # fmt: skip
"""Settings that say how foreign samples are weighted and filtered: a model alone has none."""


def _differs(run: Run, variant: str) -> bool:
    """Whether a variant changes a run; a model alone has no other nodes and no foreign samples."""
    change = load_grid().variants[variant]
    return run.method != "alone" or bool(change.times) or any(s not in FOREIGN_ONLY for s in change.set)


@cache
def start_runs(tier: str, seeds: int | None = None) -> tuple[Run, ...]:
    """Every model as it is before training; one seed stands for all where the model comes from outside."""
    listed = seed_list(tier, seeds)
    return tuple(
        Run(role, "start", None, "vertical", seed)
        for role, model in load_tier(tier).models.items()
        if model.of is None
        for seed in (listed if model.made else listed[:1])
    )


@cache
def artefact_runs(artefact: str, tier: str, seeds: int | None = None) -> tuple[Run, ...]:
    """The runs that a figure or table is made from."""
    known = load_grid().artefacts
    if artefact not in known:
        raise unknown("figure or table", artefact, known)
    if missing := _missing(artefact, tier):
        raise UserError(
            f"{artefact}: tier {tier} has no models for {missing}; it has {', '.join(artefacts(tier))}"
        )
    patterns = [p for text in known[artefact].runs for p in _braces(text)]
    return tuple(run for run in runs(tier, "full", seeds) if any(fnmatchcase(run.cell, p) for p in patterns))


@cache
def runs(tier: str, grid: str = "paper", seeds: int | None = None) -> tuple[Run, ...]:
    """Every run of a grid, ordered by seed: paper is what the artefacts need, full the whole product."""
    if grid not in ("paper", "full"):
        raise unknown("grid", grid, ("paper", "full"))
    chosen = [run for run in _product() if set(run.roles) <= set(load_tier(tier).models)]
    if grid == "paper":
        needed = {run.cell for name in artefacts(tier) for run in artefact_runs(name, tier, 1)}
        chosen = [run for run in chosen if run.cell in needed]
    listed = seed_list(tier, seeds)
    return tuple(Run(r.setup, r.method, r.threshold, r.split, seed) for seed in listed for r in chosen)


# --- Tiers ----------------------------------------------------------------------------------------------


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
    mem_mb: int = Field(default=2000, ge=1)
    runtime: int = Field(default=60, ge=1)
    """Minutes."""
    gpus: NonNegativeInt | dict[str, NonNegativeInt] = 0
    """GPUs a job; or, of train and generate, by pattern over run names without their seed, the first that matches."""


SET_HERE = {
    "run": (RunConfig, {"name", "nodes", "method", "threshold", "split", "seed", "prompts", "threads"}),
    "node": (Node, {"name", "model", "revision", "label", "lora", "learning_rate"}),
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
            if role not in load_grid().roles:
                raise ValueError(f"models: {unknown('role', role, load_grid().roles)}")
            if model.of is not None and (model.of not in self.models or self.models[model.of].of):
                raise ValueError(f"models.{role}.of: {unknown('model', model.of, set(self.models) - {role})}")
        if self.data is None and any(model.tiny for model in self.models.values()):
            raise ValueError("data: tiny models learn from made problems; say which")
        return self


def tiers() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (CONFIG / "tiers").glob("*.yaml")))


@cache
def load_tier(name: str) -> Tier:
    """A tier by name, validated down to the settings of a run."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise UserError(
            f"tier {name!r}: use letters, digits, _, . and - alone; it becomes part of paths and of shell commands"
        )
    if name not in tiers():
        raise unknown("tier", name, tiers())
    path = CONFIG / "tiers" / f"{name}.yaml"
    return parse(TypeAdapter(Tier), read_yaml(path), str(path))


def labels(tier: str) -> dict[str, str]:
    """What models are called in figures, by role. Files of a run have the labels that it was made with."""
    return {role: model.label or role for role, model in load_tier(tier).models.items()}


@cache
def resolve(tier: str, run: Run) -> RunConfig:
    """The settings of a run in a tier."""
    table = load_tier(tier)
    if missing := [role for role in run.roles if role not in table.models]:
        raise UserError(
            f"run {run.slug!r}: tier {tier} has no model {' and no '.join(missing)}; "
            f"it has {', '.join(table.models)}"
        )
    prompts = next((b for pattern, b in table.prompts.items() if fnmatchcase(run.cell, pattern)), None)
    if prompts is None:
        raise UserError(
            f"{CONFIG / 'tiers' / tier}.yaml: prompts: no pattern matches {run.cell}; add '*': 16, say"
        )
    given: dict[str, Any] = {
        **table.run,
        "name": run.slug,
        "nodes": [{**table.node, **_node(tier, role, run.seed)} for role in run.roles],
        "method": "alone" if run.method in SINGLE else run.method,
        "threshold": run.threshold,
        "split": run.split,
        "seed": run.seed,
        "prompts": prompts,
        "threads": resources(tier, "train").threads,
    }
    for field, factor in run.change.times.items():
        given[field] = factor * given.get(field, RunConfig.__dataclass_fields__[field].default)
    for path, value in run.change.set.items():
        given = _with(given, path.split("."), value)
    return parse(RUN_CONFIG, given, f"{CONFIG / 'tiers' / tier}.yaml, run {run.slug}")


def _with(settings: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """`settings` with the value at a nested path replaced."""
    first, *rest = path
    return {**settings, first: _with(settings.get(first, {}), rest, value) if rest else value}


def _node(tier: str, role: str, seed: int) -> dict[str, Any]:
    table = load_tier(tier)
    model = table.models[role]
    source = table.models[model.of] if model.of else model
    if source.made:
        # How it is made belongs to the recipe, so that a new warm start never goes on from an old checkpoint.
        where, revision = (
            f"results/{tier}/models/{model.of or role}-s{seed}",
            made_hash(tier, model.of or role),
        )
    else:
        where, revision = source_of(source)
    return {
        "name": role,
        "model": where,
        "revision": revision,
        "label": model.label,
        "lora": model.lora,
        "learning_rate": table.learning_rate.lora if model.lora else table.learning_rate.full,
    }


def source_of(model: Model) -> tuple[str, str | None]:
    """Folder or hub name that a real model is read from, and the hub's revision."""
    where = local_models().get(model.model, model.model)
    return where, model.revision if where == model.model else None


def local_models() -> dict[str, str]:
    """Local copies of hub models by hub name: $FTIS_MODELS, a JSON object; the workflow sets it from its config."""
    text = os.environ.get("FTIS_MODELS") or "{}"
    try:
        given = json.loads(text)
    except json.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        raise UserError(f'FTIS_MODELS: not a JSON object like {{"hub/name": "/local/folder"}}: {text}')
    return _existing(given)


def _existing(models: dict[str, str]) -> dict[str, str]:
    for name, path in models.items():
        if not Path(path).expanduser().exists():
            raise UserError(f"models: {name}: {path} does not exist; name a folder or file with that model")
    return models


def resources(tier: str, rule: str, run: Run | None = None) -> Resources:
    """What a rule's jobs may use; with `run` the job of that run, whose number of GPUs may be its own."""
    found = load_tier(tier).resources.get(rule, Resources())
    if isinstance(found.gpus, int) or run is None:
        return found
    gpus = next((n for pattern, n in found.gpus.items() if fnmatchcase(run.cell, pattern)), None)
    if gpus is None:
        raise UserError(
            f"{CONFIG / 'tiers' / tier}.yaml: resources.{rule}.gpus: no pattern matches {run.cell}; add '*': 1, say"
        )
    return replace(found, gpus=gpus)


def benchmarks(tier: str) -> dict[str, Benchmark]:
    """The tests of trained models, by role id and ood."""
    return load_tier(tier).benchmarks


def made_models(tier: str, run: Run) -> list[str]:
    """Models a run starts from that the workflow makes."""
    return list(dict.fromkeys(f"{n.model}/warm.json" for n in resolve(tier, run).nodes if _is_made(n.model)))


def made_inputs(tier: str, run: Run) -> list[str]:
    """Files a run is trained from that the workflow makes: warm starts and problems; none of the real ones."""
    config = resolve(tier, run)
    sets = [config.train, config.validation.data]
    return made_models(tier, run) + [d.path for d in sets if d and _is_made(d.path)]


def made_model(tier: str, role: str) -> Model:
    """A model that the workflow makes: a tiny one, or a real one with a warm start."""
    models = load_tier(tier).models
    made = [name for name, model in models.items() if model.made]
    if role not in made:
        raise UserError(f"tier {tier} makes no model {role!r}; it makes {', '.join(made) or 'none'}")
    return models[role]


def warm_inputs(tier: str, role: str) -> list[str]:
    """Files that a warm start reads and that the workflow makes; none of the real ones."""
    if made_model(tier, role).tiny is None:
        return []
    folder = f"results/{tier}"
    return [
        f"{folder}/models/tokenizer/tokenizer.json",
        *(f"{folder}/data/{n}.jsonl" for n in ("validation", "ood")),
    ]


def made_data(tier: str) -> DataSettings:
    """Settings of the problems that the workflow makes."""
    data = load_tier(tier).data
    if data is None:
        made = [name for name in tiers() if load_tier(name).data]
        raise UserError(f"tier {tier} makes no problems, it uses real ones; tiers that do: {', '.join(made)}")
    return data


@cache
def made_hash(tier: str, role: str) -> str:
    """What decides a made model besides its seed; it stands where a hub model has its commit."""
    model, run = made_model(tier, role), load_tier(tier).run
    if model.tiny is not None:
        return settings_hash(model.tiny, made_data(tier))
    # Left out where it is the default: models from before it counted keep their hash.
    dtype = [d for d in [load_tier(tier).node.get("compute_dtype")] if d not in (None, "float32")]
    return settings_hash(
        model.warm, model.model, model.revision, run["train"], run.get("rollout", {}).get("prompt"), *dtype
    )


@cache
def answers_hash(tier: str, run: Run) -> str:
    """What decides a run's answers to the benchmarks besides its training. That stands for all else of a trained run;
    of a model before training, this does."""
    tests = benchmarks(tier)
    if run.method != "start":
        return settings_hash(tests)
    config = resolve(tier, run)
    (node,) = config.nodes
    prompts = [test.prompt or config.rollout.prompt for test in tests.values()]
    return settings_hash(
        tests, node.model, node.revision, node.compute_dtype, prompts, config.reward, config.rollout.backend
    )


def reads(artefact: str) -> str:
    """The file of a run that a figure or table is made from."""
    return {"metrics": "metrics.jsonl", "scores": "scores.json"}[load_grid().artefacts[artefact].reads]


def made_benchmarks(tier: str) -> list[str]:
    return [b.data.path for b in benchmarks(tier).values() if _is_made(b.data.path)]


def _is_made(path: str | None) -> bool:
    return path is not None and path.startswith("results/")


def settings_hash(*parts: Any) -> str:
    """12 hex digits over settings, for what must be redone when they change."""
    text = json.dumps(parts, sort_keys=True, default=asdict)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# --- The workflow's config and the schemas --------------------------------------------------------------


@settings
class Config:
    """`--config` of the workflow. It decides what the default target means; a path names its own tier."""

    tier: str = "smoke"
    """File in workflow/config/tiers."""
    grid: Literal["paper", "full"] = "paper"
    """paper: the runs that figures and tables need; full: the whole product."""
    seeds: int | None = Field(default=None, ge=1)
    """How many of the fixed list; None: the tier's own number."""
    ablations: Literal["none", "all"] | tuple[str, ...] = "none"
    """Names of ablations that the default target includes."""
    models: dict[str, str] = Field(default_factory=dict)
    """Local copies of hub models, by hub name."""


def load_config(given: dict[str, Any]) -> Config:
    config = parse(TypeAdapter(Config), given, "the workflow's config")
    seed_list(config.tier, config.seeds)
    for name in config.ablations if isinstance(config.ablations, tuple) else ():
        if name not in ablations(config.tier):
            raise UserError(f"ablations: {unknown('ablation', name, ablations(config.tier))}")
    hub = {model.model for tier in tiers() for model in load_tier(tier).models.values() if model.model}
    for name in _existing(config.models):
        if name not in hub:
            raise UserError(f"models: {unknown('hub model', name, hub)}")
    return config


def schemas() -> dict[str, str]:
    """JSON Schema of each settings file, by file name under workflow/schemas; written by `python -m ftis.suite.grid`."""
    found = {
        name: TypeAdapter(kind).json_schema()
        for name, kind in {"config": Config, "grid": Grid, "tier": Tier, "run": RunConfig}.items()
    }
    tier = found["tier"]
    for field, (kind, set_here) in SET_HERE.items():
        part = TypeAdapter(kind).json_schema()
        tier["$defs"] |= part.pop("$defs", {})
        kept = {k: v for k, v in part["properties"].items() if k not in set_here}
        tier["properties"][field] |= {"properties": kept, "additionalProperties": False}
    head = "# Made from the classes in ftis/suite/grid.py and ftis/config.py: make schemas\n"
    return {
        f"{name}.schema.yaml": head + yaml.safe_dump(schema, sort_keys=False)
        for name, schema in found.items()
    }


if __name__ == "__main__":
    for file, text in schemas().items():
        (CONFIG.parent / "schemas" / file).write_text(text)
