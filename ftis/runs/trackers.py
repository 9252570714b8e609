"""Metrics sent to a tracker as they come: TensorBoard, Weights & Biases, or trackio; off unless a run's
setting names one.

metrics.jsonl stays the record: a tracker sees the numbers of each line under `NODE/METRIC` with the iteration
as step, and what it does with them is its own business. docs/metrics.md says what the metrics are.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from ftis.config import RunConfig
from ftis.errors import UserError
from ftis.runs.folder import RunFolder
from ftis.settings import to_dict
from ftis.swarm.metrics import Line

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}
"""What has to be installed for each."""


class Tracker(Protocol):
    """Takes the metrics of one run."""

    def log(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run's state/tensorboard."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder.state / "tensorboard"))

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Hosted:
    """wandb and trackio, whose calls are the same: a run by its name in the project `ftis`."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self._module = importlib.import_module(PACKAGES[config.tracker])
        self._module.init(project="ftis", name=config.name, config=to_dict(config))

    def log(self, values: dict[str, float], step: int) -> None:
        self._module.log(values, step=step)

    def close(self) -> None:
        self._module.finish()


class Tracking:
    """A context manager that sends lines to the tracker that a run names, or nowhere.

    Raises UserError, before anything is trained, where the tracker's package isn't installed.
    """

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self._tracker: Tracker | None = None
        if config.tracker == "none":
            return
        package = PACKAGES[config.tracker]
        try:
            importlib.import_module(package)
            self._tracker = (TensorBoard if config.tracker == "tensorboard" else Hosted)(config, folder)
        except ImportError as error:
            raise UserError(
                f"tracker: {config.tracker} can't be imported ({error}); install it with `pip install "
                f"{package}`, or "
                "set tracker: none"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tracker is not None:
            self._tracker.close()

    def log(self, line: Line) -> None:
        """Send the numbers of an iteration's line."""
        if self._tracker is None:
            return
        values = {
            f"{node['name']}/{name}": value
            for node in line.as_dict()["nodes"]
            for name, value in numbers({k: v for k, v in node.items() if k not in ("node", "name", "label")})
        }
        self._tracker.log({"seconds": line.seconds, **values}, line.step)


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in nested metrics by their paths, e.g. filtered/foreign; lists, None and text are left
    out."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from numbers(part, f"{name}/{key}".strip("/"))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)
