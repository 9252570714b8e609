"""F-TIS: collaborative GRPO between different language models, and the suite that measures it (arXiv
2605.22537).

Nothing is imported before it is asked for: `import ftis` takes milliseconds, torch comes with the first name
that needs it. `docs/architecture.md` says which room each name lives in.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ftis.config import RunConfig, load_run
    from ftis.errors import UserError
    from ftis.method.filters import FILTER_RULES, Far
    from ftis.method.kl import KL_ESTIMATORS
    from ftis.method.methods import METHODS, Method, register
    from ftis.method.objective import Objective, group_advantages, grpo_loss
    from ftis.method.readings import Readings
    from ftis.method.weightings import TIS, VIS, NoWeight, Terms
    from ftis.model.loading import load_policy
    from ftis.model.policy import Policy
    from ftis.runs.ask import sample
    from ftis.runs.evaluate import evaluate
    from ftis.runs.folder import RunFolder
    from ftis.runs.train import train
    from ftis.study.tidy import read_tidy
    from ftis.suite.suite import Suite
    from ftis.swarm.loop import Swarm
    from ftis.tasks.grading.verdict import Verdict, grade

_ROOMS = {
    "config": ("RunConfig", "load_run"),
    "errors": ("UserError",),
    "method.filters": ("FILTER_RULES", "Far"),
    "method.kl": ("KL_ESTIMATORS",),
    "method.methods": ("METHODS", "Method", "register"),
    "method.objective": ("Objective", "group_advantages", "grpo_loss"),
    "method.readings": ("Readings",),
    "method.weightings": ("TIS", "VIS", "NoWeight", "Terms"),
    "model.loading": ("load_policy",),
    "model.policy": ("Policy",),
    "runs.evaluate": ("evaluate",),
    "runs.folder": ("RunFolder",),
    "runs.train": ("train",),
    "study.tidy": ("read_tidy",),
    "suite.suite": ("Suite",),
    "runs.ask": ("sample",),
    "swarm.loop": ("Swarm",),
    "tasks.grading.verdict": ("Verdict", "grade"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "FILTER_RULES",
    "KL_ESTIMATORS",
    "METHODS",
    "TIS",
    "VIS",
    "Far",
    "Method",
    "NoWeight",
    "Objective",
    "Policy",
    "Readings",
    "RunConfig",
    "RunFolder",
    "Suite",
    "Swarm",
    "Terms",
    "UserError",
    "Verdict",
    "evaluate",
    "grade",
    "group_advantages",
    "grpo_loss",
    "load_policy",
    "load_run",
    "read_tidy",
    "register",
    "sample",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ftis' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"ftis.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        from ftis.errors import missing

        raise (missing(error) or error) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
