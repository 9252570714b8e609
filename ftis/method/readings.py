"""How the paper is read where its sources disagree."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import ArgsKwargs

from ftis.method.filters import FILTER_RULES
from ftis.method.kl import KL_ESTIMATORS, KL_REDUCTIONS
from ftis.settings import OneOf, settings

FilterRule = Annotated[str, OneOf("filter rule", FILTER_RULES)]
KlEstimator = Annotated[str, OneOf("KL estimator", KL_ESTIMATORS)]
KlReduction = Annotated[str, OneOf("reduction", KL_REDUCTIONS)]


@settings
class Readings:
    """How the paper is read where its sources disagree. A preset names a choice of all of them."""

    preset: Literal["paper", "code", "seed"] = "paper"
    """Where the choices below come from unless one is set: paper (reading notes), code (the authors'
    public repository), seed (the summary that this project started from)."""
    filter_rule: FilterRule = "negative_and_far"
    """A sample is filtered when A < 0 and KL > g | A <= 0 and KL > g | A <= 0 or KL > g."""
    kl_estimator: KlEstimator = "gen_theta"
    """Which per-token estimator the filter compares with g (see `ftis.method.kl.KL_ESTIMATORS`)."""
    kl_reduction: KlReduction = "sum"
    """Over a completion's tokens: sum, mean, or mean over the width of its padded group."""
    advantage_scale: Literal["std", "none"] = "std"
    """Divide centred rewards by the group's standard deviation, or not (Dr. GRPO)."""
    std: Literal["sample", "population"] = "sample"
    """Standard deviation over G - 1 (torch's default) or over G."""
    filtered_denominator: Literal["stay", "leave"] = "stay"
    """Whether filtered samples still count in the mean over the samples of an update."""
    filter_scope: Literal["all", "foreign"] = "all"
    """Whether a node filters its own samples too."""
    weight_level: Literal["token", "sequence"] = "token"
    """Importance ratio per token, or one per completion (the product over its tokens)."""
    detach_weight: bool = True
    """TIS: no gradient through min(r, C)."""
    clip: Literal["ratio", "literal"] = "ratio"
    """ratio: VIS clips r to 1 +- eps and nothing else is clipped; literal: the formula as printed,
    min(x A, clip(x A, 1 - eps, 1 + eps)) in every method, which kills the gradient for A > 1 + eps."""
    clip_reference: Literal["generation", "iteration_start"] = "generation"
    """generation: nothing bounds a step but the method itself; iteration_start: PPO's clipped ratio
    against the iteration's first policy is added (it matters with several mini-batches)."""
    top_k: int | None = Field(default=None, ge=1)
    """Sample from the k likeliest tokens only; exchanged log-probs stay those of the full softmax."""

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, data: Any) -> Any:
        values = data if isinstance(data, dict) else getattr(data, "kwargs", None)
        if values is None and not isinstance(data, ArgsKwargs):
            return data  # not a mapping: pydantic says so
        values = values or {}
        preset = values.get("preset", "paper")
        return {**(PRESETS.get(preset, {}) if isinstance(preset, str) else {}), **values}


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "code": {
        "filter_rule": "nonpositive_and_far",
        "kl_estimator": "k3_code",
        "kl_reduction": "padded_mean",
        "advantage_scale": "none",
        "filtered_denominator": "leave",
        "top_k": 50,
    },
    "seed": {"filter_rule": "nonpositive_or_far"},
}
