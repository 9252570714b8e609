"""A suite: many runs, told by two kinds of files in a folder. `Suite.load()` is the one in force.

`grid.yaml` names the set-ups, methods and artefacts; `tiers/TIER.yaml` says which models and sizes stand
behind them. The workflow, the command line and the studies read them through this object alone, so a run's
name decides its settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter

from ftis.config import RUN_CONFIG, RunConfig
from ftis.errors import UserError, unknown
from ftis.method.methods import METHODS, PAPER
from ftis.settings import parse, read_yaml, replaced
from ftis.suite.grid import SINGLE, Grid, Run, Variant, matches, parse_slug
from ftis.suite.made import made_hash
from ftis.suite.tiers import RULES, Benchmark, Resources, Tier, source_of

if TYPE_CHECKING:
    from ftis.suite.plan import RunPlan

FOLDER = "FTIS_SUITE"
"""Variable that names the folder of the suite in force."""
FOREIGN_ONLY = (
    "staleness", "cap", "readings.filter_rule", "readings.filter_scope", "readings.filtered_denominator",
    "readings.kl_estimator", "readings.kl_reduction", "readings.weight_level", "readings.detach_weight",
)  # fmt: skip
"""Settings that say how foreign samples are weighted and filtered: a model alone has none."""


def default_folder() -> Path:
    """$FTIS_SUITE; else workflow/config here or in the checkout that ftis is imported from; else the suite
    that the package carries."""
    if given := os.environ.get(FOLDER):
        return Path(given)
    package = Path(__file__).resolve().parents[1]
    candidates = [Path("workflow/config").absolute(), package.parent / "workflow" / "config"]
    found = next((folder for folder in candidates if (folder / "grid.yaml").is_file()), None)
    return found or package / "default_suite" / "config"


@cache
def _loaded(folder: Path) -> Suite:
    return Suite(folder)


@dataclass(frozen=True)
class Suite:
    """The runs, tiers, artefacts and ablations that a folder describes. Runs are named, and resolved by tier.

    >>> suite = ftis.Suite.load()
    >>> len(suite.runs("tiny", seeds=1)), suite.resolve("tiny", "size_base-ftis-g50-vertical-s42").threshold
    (21, 50.0)
    """

    folder: Path
    """Holds grid.yaml and tiers/."""

    @classmethod
    def load(cls, folder: str | Path | None = None) -> Suite:
        """The suite of a folder, read once; None: the one in force (`default_folder`).

        Raises UserError that names the file and field in error.
        """
        return _loaded(Path(folder) if folder is not None else default_folder())

    # --- What is listed -----------------------------------------------------------------------------------

    @cached_property
    def grid(self) -> Grid:
        path = self.folder / "grid.yaml"
        return parse(TypeAdapter(Grid), read_yaml(path), str(path))

    @property
    def tiers(self) -> tuple[str, ...]:
        return tuple(sorted(path.stem for path in (self.folder / "tiers").glob("*.yaml")))

    @cache  # noqa: B019  a suite is read once and stays
    def tier(self, name: str) -> Tier:
        """A tier by name, validated down to the settings of a run."""
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise UserError(
                f"tier {name!r}: use letters, digits, _, . and - alone; it becomes part of paths and of "
                f"shell commands"
            )
        if name not in self.tiers:
            raise unknown("tier", name, self.tiers)
        path = self.tier_file(name)
        tier = parse(TypeAdapter(Tier), read_yaml(path), str(path))
        for role in tier.models:
            if role not in self.grid.roles:
                raise UserError(f"{path} is not valid:\n  models: {unknown('role', role, self.grid.roles)}")
        return tier

    def tier_file(self, name: str) -> Path:
        return self.folder / "tiers" / f"{name}.yaml"

    @property
    def methods(self) -> tuple[str, ...]:
        """Of the grid's product: those that it lists, and those that others have added."""
        return (*self.grid.methods, *(name for name in METHODS if name not in PAPER))

    def seed_list(self, tier: str, seeds: int | None = None) -> tuple[int, ...]:
        """The first `seeds` of the fixed list; None: as many as the tier is made for."""
        count, listed = self.tier(tier).seeds if seeds is None else seeds, self.grid.seeds
        if not 1 <= count <= len(listed):
            raise UserError(
                f"seeds: {count} asked for; choose 1 to {len(listed)} (the list is "
                f"{', '.join(map(str, listed))})"
            )
        return listed[:count]

    def labels(self, tier: str) -> dict[str, str]:
        """What models are called in figures, by role. Files of a run have the labels that it was made
        with."""
        return {role: model.label or role for role, model in self.tier(tier).models.items()}

    def benchmarks(self, tier: str) -> Mapping[Literal["id", "ood"], Benchmark]:
        """The tests of trained models, by role id and ood."""
        return self.tier(tier).benchmarks

    # --- Runs ---------------------------------------------------------------------------------------------

    def run(self, slug: str) -> Run:
        """The run of that name; any threshold and seed, but a known set-up and method, else `UserError`."""
        return parse_slug(slug, self.grid)

    def change(self, run: Run) -> Variant:
        """What the variant of a run changes."""
        return self.grid.variants[run.variant] if run.variant else Variant(label="")

    def roles(self, run: Run) -> tuple[str, ...]:
        """Whose models train in a run."""
        if run.method in SINGLE:
            return (run.setup,)
        return self.change(run).nodes or self.grid.setups[run.setup].nodes

    @cache  # noqa: B019
    def runs(self, tier: str, grid: str = "paper", seeds: int | None = None) -> tuple[Run, ...]:
        """Every run of a grid, ordered by seed: paper is what the artefacts need, full the whole product."""
        if grid not in ("paper", "full"):
            raise unknown("grid", grid, ("paper", "full"))
        chosen = self._product(tier)
        if grid == "paper":
            needed = {run.cell for name in self.artefacts(tier) for run in self.artefact_runs(name, tier, 1)}
            chosen = tuple(run for run in chosen if run.cell in needed)
        return tuple(replace(run, seed=seed) for seed in self.seed_list(tier, seeds) for run in chosen)

    def start_runs(self, tier: str, seeds: int | None = None) -> tuple[Run, ...]:
        """Every model as it is before training; one seed stands for all where the model comes from
        outside."""
        listed = self.seed_list(tier, seeds)
        return tuple(
            Run(role, "start", None, "vertical", seed)
            for role, model in self.tier(tier).models.items()
            if model.of is None
            for seed in (listed if model.made else listed[:1])
        )

    @cache  # noqa: B019
    def artefacts(self, tier: str) -> tuple[str, ...]:
        """The figures and tables that a tier has the models for."""
        return tuple(name for name in self.grid.artefacts if self._missing(name, tier) is None)

    @cache  # noqa: B019
    def artefact_runs(self, artefact: str, tier: str, seeds: int | None = None) -> tuple[Run, ...]:
        """The runs that a figure or table is made from."""
        known = self.grid.artefacts
        if artefact not in known:
            raise unknown("figure or table", artefact, known)
        if missing := self._missing(artefact, tier):
            raise UserError(
                f"{artefact}: tier {tier} has no models for {missing}; it has "
                f"{', '.join(self.artefacts(tier))}"
            )
        patterns, others = known[artefact].runs, known[artefact].others
        return tuple(
            run
            for run in self.runs(tier, "full", seeds)
            if matches(run.cell, patterns) or (others and self._stands_beside(run, patterns))
        )

    @cache  # noqa: B019
    def ablations(self, tier: str) -> tuple[str, ...]:
        """The ablations that a tier has the models for."""
        have, cells = set(self.tier(tier).models), [run.cell for run in self._product(tier)]
        return tuple(
            name
            for name, ablation in self.grid.ablations.items()
            if all(set(v.nodes or ()) <= have for v in ablation.variants.values())
            and all(any(matches(cell, [p]) for cell in cells) for p in ablation.patterns)
        )

    @cache  # noqa: B019
    def ablation_runs(self, ablation: str, tier: str, seeds: int | None = None) -> tuple[Run, ...]:
        """The runs that an ablation compares: each run it starts from, and that run with each variant."""
        known = self.ablations(tier)
        if ablation not in known:
            raise unknown("ablation", ablation, known)
        table = self.grid.ablations[ablation]
        chosen = [run for run in self._product(None) if matches(run.cell, table.runs)]
        changed = [replace(run, variant=v) for run in chosen for v in table.variants if self._differs(run, v)]
        listed = self.seed_list(tier, seeds or self.tier(tier).ablation_seeds)
        return tuple(replace(run, seed=seed) for seed in listed for run in (*chosen, *changed))

    def reads(self, artefact: str) -> str:
        """The file of a run that a figure or table is made from."""
        return {"metrics": "metrics.jsonl", "scores": "scores.json"}[self.grid.artefacts[artefact].reads]

    @cache  # noqa: B019
    def _product(self, tier: str | None) -> tuple[Run, ...]:
        """Every role alone, then set-ups x methods (x thresholds) x splits, with a placeholder seed of 0;
        those that a tier has the models for, None: all."""
        grid = self.grid
        runs = [Run(role, "alone", None, "vertical", 0) for role in grid.roles]
        for setup, method, split in product(grid.setups, self.methods, grid.splits):
            thresholds = grid.thresholds if METHODS[method].filtered else (None,)
            runs += [Run(setup, method, g, split, 0) for g in thresholds]
        return tuple(
            run for run in runs if tier is None or set(self.roles(run)) <= set(self.tier(tier).models)
        )

    def _missing(self, artefact: str, tier: str) -> str | None:
        """The first pattern for which the tier has no run."""
        cells = [run.cell for run in self._product(tier)]
        patterns = self.grid.artefacts[artefact].patterns
        return next((p for p in patterns if not any(matches(cell, [p]) for cell in cells)), None)

    def _stands_beside(self, run: Run, patterns: Sequence[str]) -> bool:
        """Whether a run of a method that others have added is drawn: where one of the paper's methods would
        be that filters, or doesn't, as it does."""
        if run.method in PAPER or run.method in SINGLE:
            return False
        alike = [name for name in PAPER if METHODS[name].filtered == METHODS[run.method].filtered]
        return any(matches(replace(run, method=name).cell, patterns) for name in alike)

    def _differs(self, run: Run, variant: str) -> bool:
        """Whether a variant changes a run; a model alone has no other nodes and no foreign samples."""
        change = self.grid.variants[variant]
        return run.method != "alone" or bool(change.times) or any(s not in FOREIGN_ONLY for s in change.set)

    # --- What a run is in a tier --------------------------------------------------------------------------

    @cache  # noqa: B019
    def resolve(self, tier: str, run: Run | str) -> RunConfig:
        """The settings of a run, or of the run of that name, in a tier."""
        run = self.run(run) if isinstance(run, str) else run
        table, roles = self.tier(tier), self.roles(run)
        if missing := [role for role in roles if role not in table.models]:
            raise UserError(
                f"run {run.slug!r}: tier {tier} has no model {' and no '.join(missing)}; "
                f"it has {', '.join(table.models)}"
            )
        prompts = next((b for pattern, b in table.prompts.items() if fnmatchcase(run.cell, pattern)), None)
        if prompts is None:
            raise UserError(
                f"{self.tier_file(tier)}: prompts: no pattern matches {run.cell}; add '*': 16, say"
            )
        given: dict[str, Any] = {
            **table.run,
            "name": run.slug,
            "nodes": [{**table.node, **self._node(tier, role, run.seed)} for role in roles],
            "method": "alone" if run.method in SINGLE else run.method,
            "threshold": run.threshold,
            "split": run.split,
            "seed": run.seed,
            "prompts": prompts,
            "threads": self.resources(tier, "train").threads,
        }
        change = self.change(run)
        for field, factor in change.times.items():
            given[field] = factor * given.get(field, RunConfig.__dataclass_fields__[field].default)
        for path, value in change.set.items():
            given = replaced(given, path, value)
        return parse(RUN_CONFIG, given, f"{self.tier_file(tier)}, run {run.slug}")

    def _node(self, tier: str, role: str, seed: int) -> dict[str, Any]:
        table = self.tier(tier)
        model = table.models[role]
        source = table.models[model.of] if model.of else model
        if source.made:
            # How it is made belongs to the recipe, so that a new warm start never goes on from an old
            # checkpoint.
            made = model.of or role
            where = f"results/{tier}/models/{made}-s{seed}"
            revision: str | None = made_hash(self, tier, made)
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

    def resources(self, tier: str, rule: RULES, run: Run | None = None) -> Resources:
        """What a rule's jobs may use; with `run` the job of that run, whose GPUs and memory may be its
        own."""
        found = self.tier(tier).resources.get(rule, Resources())
        own: dict[str, Any] = {}
        for field in ("gpus", "mem_mb"):
            by_pattern = getattr(found, field)
            if isinstance(by_pattern, int) or run is None:
                continue
            own[field] = next(
                (n for pattern, n in by_pattern.items() if fnmatchcase(run.cell, pattern)), None
            )
            if own[field] is None:
                raise UserError(
                    f"{self.tier_file(tier)}: resources.{rule}.{field}: no pattern matches {run.cell}; add "
                    f"'*', say"
                )
        return replace(found, **own)

    def answers_batch(self, tier: str, config: RunConfig) -> int:
        """Sequences decoded at a time when a run's models answer the tests."""
        return self.tier(tier).answers_batch or config.rollout.max_batch

    def backend_note(self, tier: str) -> str | None:
        """What a tier's `rollout.backend: auto` comes to here, as a line; None where the tier names the
        backend."""
        if self.tier(tier).run.get("rollout", {}).get("backend") != "auto":
            return None
        if self.resolve(tier, self.runs(tier, "full", 1)[0]).rollout.backend == "vllm":
            return "rollout.backend: auto is vllm here, where it is installed"
        return (
            "rollout.backend: auto is transformers here, since vLLM isn't installed; vLLM is several times "
            "as fast "
            "(docs/paper_tier.md). It is part of a recipe: once vLLM is installed, the tier's runs are made "
            "anew"
        )

    def plan(
        self, tier: str, grid: str = "paper", seeds: int | None = None, gpu: str | None = None
    ) -> list[RunPlan]:
        """What each run of a grid would take: GPU memory and hours, traffic, disk. `gpu`: a name of `ftis
        plan --gpu`."""
        from ftis.suite import cost
        from ftis.suite.plan import plan_runs

        return plan_runs(tier, self.runs(tier, grid, seeds), cost.gpu_named(gpu) if gpu else cost.GPU)
