"""Settings of a run: the one place where a default lives.

A run is described by one file (YAML or JSON) with the fields of `RunConfig`. Unknown keys and
wrong types are errors that name the field; `recipe_hash` is what decides whether a finished run
may be reused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from ftis.errors import UserError
from ftis.method.methods import METHODS, refuse_unknown
from ftis.method.readings import Readings
from ftis.model.lora import Lora
from ftis.settings import OneOf, parse, read_yaml, replaced, resolve_reference, settings, to_dict
from ftis.tasks.grading.verdict import FORMATS
from ftis.tasks.problems import Dataset
from ftis.tasks.prompts import PROMPTS

MethodName = Annotated[str, OneOf("method", METHODS)]
PromptName = Annotated[str, OneOf("prompt", PROMPTS)]
RewardShape = Annotated[str, OneOf("format", FORMATS)]


@settings
class NodeConfig:
    """One participant of the swarm: a model and how it is trained."""

    name: str
    """Role in the grid, e.g. base_small."""
    model: str
    """Folder or Hugging Face hub name."""
    label: str = ""
    """Name in figures; empty: `name`."""
    revision: str | None = None
    """Hub revision (commit) of `model`."""
    lora: Lora | None = None
    """None: full fine-tuning."""
    learning_rate: float = Field(default=1e-6, gt=0, allow_inf_nan=False)
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: forward and backward under autocast; weights and Adam's moments stay float32."""
    device: str = "auto"
    """auto: the GPUs that are visible, dealt out to the nodes in turn; cpu where there is none."""
    gradient_checkpointing: bool = False
    """Keep only the layers' inputs and compute the rest again in backward."""
    micro_batch_tokens: int | None = Field(default=None, ge=1)
    """None: that of `optim`; a node on a smaller device takes a smaller one."""
    backend: Literal["transformers", "vllm"] | None = None
    """What samples for this node; None: that of `rollout`."""
    attack: str | None = None
    """What the node makes of its rollouts before it sends them (key of `ftis.swarm.attacks.ATTACKS`); None:
    it is honest."""


def _what_samples(backend: str) -> str:
    """`auto` as what it comes to in this environment."""
    return ("vllm" if find_spec("vllm") else "transformers") if backend == "auto" else backend


@settings
class Rollout:
    """How completions are sampled."""

    prompt: PromptName = "tiny-v1"
    """Key of `ftis.tasks.prompts.PROMPTS`."""
    max_new_tokens: int = Field(default=760, ge=1)
    """Completion budget; a completion that reaches it without eos is marked truncated."""
    max_total_tokens: int | None = Field(default=None, ge=2)
    """Budget for prompt and completion together, where the paper's code sets one (760)."""
    temperature: float = Field(default=1.0, ge=1e-6, allow_inf_nan=False)
    """Log-probs are those of the distribution at this temperature, in the sampler and in the trainer."""
    truncated: Literal["train", "drop"] = "train"
    """What the objective does with truncated completions; dropped ones leave numerator and denominator."""
    max_batch: int = Field(default=1024, ge=1)
    """Sequences decoded at a time."""
    backend: Annotated[Literal["auto", "transformers", "vllm"], AfterValidator(_what_samples)] = (
        "transformers"
    )
    """What samples: the trainer's own model, or an engine of vLLM a node, which must be installed. auto: vLLM
    where it is installed; the settings of a run hold what that came to, and so do its recipe and its
    config.yaml."""
    gpu_memory_utilization: float = Field(default=0.4, gt=0, lt=1)
    """vllm on a GPU: the engine's share of the card that it has in common with the trainer, for its weights
    and key-value cache; it gives them up during the update."""


Beta = Annotated[float, Field(ge=0, lt=1)]


@settings
class Optim:
    """Adam and how an iteration's samples are cut up."""

    name: Literal["adam", "adamw"] = "adam"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    warmup: int = Field(default=0, ge=0)
    """Iterations of linear warm-up."""
    clip: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""
    mini_batches: int = Field(default=1, ge=1)
    """Updates an iteration."""
    micro_batch_tokens: int = Field(default=8192, ge=1)
    """Tokens in one forward and backward, at most, completions counted with padding and a group's prompt
    once; changes memory and speed, never the result."""
    skip_zero_advantage: bool = False
    """Leave completions of advantage 0 out of the forward pass. Weights come out the same; the statistics
    of ratios and KL are then over the others alone. Real models have many groups of equal rewards."""


@settings
class Validation:
    """Scores of the nodes during training."""

    data: Dataset | None = None
    """None: no validation."""
    every: int = Field(default=5, ge=1)
    """Iterations between validations; the first model and the last are validated in any case."""
    max_new_tokens: int = Field(default=768, ge=1)
    samples: int = Field(default=0, ge=0)
    """Besides the greedy one, completions a problem sampled at T = 1."""


@settings
class RunConfig:
    """One training run."""

    name: str
    """Label; not part of the recipe."""
    nodes: tuple[NodeConfig, ...] = Field(min_length=1)
    train: Dataset
    validation: Validation = Validation()
    method: MethodName = "ftis"
    """Key of `ftis.method.methods.METHODS`."""
    parameters: dict[str, float | bool | str] = Field(default_factory=dict)
    """Of the method's weighting and filter, beside `threshold`, `eps`, `cap` and the readings."""
    threshold: float | None = Field(default=None, gt=0)
    """g, the filter's KL threshold; filtered methods need it, the others refuse it."""
    split: Literal["vertical", "horizontal"] = "vertical"
    """vertical: prompts are dealt out; horizontal: each prompt's group is."""
    seed: int = Field(default=42, ge=0)
    iterations: int = Field(default=50, ge=1)
    prompts: int = Field(default=16, ge=1)
    """B, prompts an iteration over the whole swarm."""
    group_size: int = Field(default=12, ge=1)
    """G, completions a prompt."""
    eps: float = Field(default=0.2, gt=0, lt=1)
    """Clip range of VIS."""
    cap: float = Field(default=2.0, gt=0)
    """C, where TIS truncates the importance ratio; .inf: never."""
    staleness: int = Field(default=0, ge=0)
    """Age in iterations of the foreign completions that a node trains on."""
    verify_rewards: bool = True
    """Grade the completions of other nodes again, and refuse those whose reward comes out otherwise."""
    patience: int = Field(default=3, ge=1)
    """Iterations in a row with something of a node refused, after which the others take nothing of it."""
    nonfinite_updates: int = Field(default=1, ge=1)
    """Updates of a node with NaN or infinity in the loss or gradient, after which the run ends. Each is left
    out and explained in state/nonfinite; weights that aren't finite end the run at once."""
    readings: Readings = Readings()
    reward: RewardShape = "strict"
    """Key of `ftis.tasks.grading.verdict.FORMATS`: what shape a completion must have to earn a reward."""
    rollout: Rollout = Rollout()
    optim: Optim = Optim()
    checkpoint_every: int = Field(default=10, ge=1)
    """Iterations between resumable states."""
    threads: int | None = Field(default=None, ge=1, le=4096)
    """torch CPU threads of a process; None: torch's default."""
    tracker: Literal["none", "tensorboard", "wandb", "trackio"] = "none"
    """Where metrics are sent besides metrics.jsonl; the package must be installed."""
    transport: Literal["local", "processes"] = "local"
    """local: all nodes in one process; processes: a process for each node, which exchange over TCP. The
    result is the same, unless a node is lost: then the others finish without it."""
    deadline: float = Field(default=1800.0, gt=0)
    """Seconds that a node waits for another's samples, when transport is processes, before it goes on without
    it for good. A node whose process ends is noticed at once."""

    def backend(self, node: int) -> str:
        """What samples for a node."""
        return self.nodes[node].backend or self.rollout.backend

    @property
    def needs_vllm(self) -> bool:
        """Whether vLLM samples for any node."""
        return any(self.backend(k) == "vllm" for k in range(len(self.nodes)))

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        method = METHODS[self.method]
        filtered = method.filtered
        try:
            refuse_unknown(method, self.parameters)
        except UserError as error:
            raise ValueError(str(error)) from None
        if filtered and self.threshold is None:
            raise ValueError(f"threshold: method {self.method!r} filters and needs one, e.g. 50")
        if not filtered and self.threshold is not None:
            raise ValueError(f"threshold: method {self.method!r} doesn't filter; remove it")
        if self.method == "alone" and len(self.nodes) != 1:
            raise ValueError(f"nodes: method 'alone' takes exactly 1 node, {len(self.nodes)} given")
        names = [node.name for node in self.nodes]
        if len(set(names)) < len(names):
            raise ValueError(f"nodes: names must differ, given {', '.join(names)}")
        if self.tracker != "none" and self.transport == "processes":
            raise ValueError(
                "tracker: a run with a process a node has none; use 'none', or transport 'local'"
            )
        if self.split == "horizontal" and self.staleness:
            raise ValueError(
                "staleness: a horizontal group mixes the samples of one iteration, so it can't hold stale "
                "ones; use 0"
            )
        if self.readings.clip == "literal" and self.readings.clip_reference == "iteration_start":
            raise ValueError(
                "readings: clip 'literal' and clip_reference 'iteration_start' are two clips; choose one"
            )
        if self.optim.skip_zero_advantage and self.readings.filtered_denominator == "leave":
            raise ValueError(
                "optim.skip_zero_advantage: with filtered_denominator 'leave' a sample of advantage 0 may "
                "leave the "
                "mean by its KL, which must then be computed; set it to false"
            )
        if self.split == "vertical" and self.prompts < len(self.nodes):
            raise ValueError(f"prompts: {self.prompts} can't be dealt to {len(self.nodes)} nodes; raise it")
        if self.split == "horizontal" and self.group_size < len(self.nodes):
            raise ValueError(
                f"group_size: {self.group_size} can't be split over {len(self.nodes)} nodes; raise it"
            )
        return self


RUN_CONFIG = TypeAdapter(RunConfig)
KEPT = 2
"""Checkpoints that a run keeps. Here, since a plan of its disk goes without torch."""

# Fields that change where, how fast or under what name a run happens, but not its result.
_NOT_RECIPE = {
    "run": {
        *("name", "threads", "checkpoint_every", "transport", "deadline", "tracker"),
        # What is done about peers and numbers that are broken: a sound run never comes to it.
        *("verify_rewards", "patience", "nonfinite_updates"),
    },
    "node": {"label", "device", "micro_batch_tokens"},
}


def load_run(
    source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None, **changes: Any
) -> RunConfig:
    """A run's settings from a YAML or JSON file, or a mapping of them.

    `overrides` replaces settings by their dotted names, list entries by their index (`{"optim.warmup": 5,
    "nodes.0.learning_rate": 1e-6}`), and `changes` those at the top. Raises UserError that names every field
    in error.

    >>> run = ftis.load_run("examples/pair.yaml", {"optim.warmup": 5}, cap=1.0)
    >>> isinstance(run, ftis.RunConfig), run.threshold, run.optim.warmup, run.cap
    (True, 50.0, 5, 1.0)
    """
    data, where = (source, "settings") if isinstance(source, Mapping) else (read_yaml(source), str(source))
    for name, value in {**(overrides or {}), **changes}.items():
        data = replaced(data, name, value)
    return parse(RUN_CONFIG, data, where)


def recipe(config: RunConfig) -> dict[str, Any]:
    """What of a run decides its result: the settings without labels and placement."""
    # Settings that came later count where they are set; runs from before them keep their recipes.
    plain = {
        k: v
        for k, v in to_dict(config).items()
        if k not in _NOT_RECIPE["run"] and (k, v) != ("parameters", {})
    }
    plain["nodes"] = [
        {
            k: v
            for k, v in node.items()
            if k not in _NOT_RECIPE["node"] and (k, v) not in (("backend", None), ("attack", None))
        }
        for node in plain["nodes"]
    ]
    return plain


def recipe_hash(config: RunConfig) -> str:
    """12 hex digits over `recipe`."""
    return hashlib.sha256(json.dumps(recipe(config), sort_keys=True).encode()).hexdigest()[:12]


def differences(one: RunConfig, other: RunConfig) -> str:
    """The settings that decide a result in which two runs differ: `seed: 1 there, 2 here`."""
    there, here = _flat(recipe(one)), _flat(recipe(other))
    return "; ".join(
        f"{name}: {there.get(name, 'absent')} there, {here.get(name, 'absent')} here"
        for name in {**there, **here}
        if name not in there or name not in here or there[name] != here[name]
    )


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {name: value}
    return {k: v for key, part in value.items() for k, v in _flat(part, f"{name}.{key}".strip(".")).items()}


def describe() -> str:
    """Every setting of a run with its type, default and meaning, as text read off the JSON schema."""
    schema = RUN_CONFIG.json_schema()
    lines: list[str] = []

    def walk(node: dict[str, Any], indent: str) -> None:
        for name, entry in node["properties"].items():
            inner = resolve_reference(entry.get("items", entry), schema["$defs"])
            needed = name in node.get("required", ())
            default = (
                "required" if needed else "" if "properties" in inner else f"default {entry.get('default')!r}"
            )
            kind = "list of:" if "properties" in inner and "items" in entry else _kind(entry)
            about = " ".join(entry.get("description", inner.get("description", "")).split())
            head = "; ".join(part for part in (kind if "properties" not in inner else "", default) if part)
            lines.append(
                f"{indent}{name}" + (f"  ({head})" if head else "") + (f"  {about}" if about else "")
            )
            if "properties" in inner:
                walk(inner, indent + "    ")

    walk(schema, "")
    return "\n".join(lines)


def _kind(entry: dict[str, Any]) -> str:
    """A type in few words: `number`, `a | b | c`, `integer or null`."""
    if "enum" in entry:
        return " | ".join(map(str, entry["enum"]))
    if "anyOf" in entry:
        return " or ".join(_kind(option) for option in entry["anyOf"])
    return entry.get("const") or entry.get("type", "")
