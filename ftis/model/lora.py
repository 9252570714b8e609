"""Settings of a low-rank adapter."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ftis.settings import settings


@settings
class Lora:
    """Low-rank adapter through PEFT, without dropout (log-probs must be those that were sampled)."""

    r: int = Field(default=128, ge=1)
    alpha: int = Field(default=256, ge=1)
    target_modules: tuple[str, ...] | Literal["all-linear"] | None = None
    """None: PEFT's default for the architecture (Qwen2: the q and v projections)."""
