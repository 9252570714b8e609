"""How far a run is: a bar on a terminal, a line an iteration in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Self

from tqdm import tqdm

log = logging.getLogger(__name__)


class Progress:
    """A context manager that shows how many of `total` iterations are done. None: the first call of `show`
    says it."""

    def __init__(self, name: str, total: int, done: int | None = None) -> None:
        self._name, self._total, self._done, self._since = name, total, done, time.monotonic()
        self._bar = tqdm(desc=name, total=total, initial=done or 0, disable=None)  # None: disabled in a log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def show(self, done: int, rewards: Mapping[str, float]) -> None:
        """`done` iterations are done, and the last one's mean rewards are these, by the nodes' labels. In a
        log it is a line if there are more than before, with the seconds since then."""
        before, self._done = self._done, done
        each = ", ".join(f"{label}: reward {reward:.2f}" for label, reward in rewards.items())
        self._bar.set_postfix_str(each)
        self._bar.update(done - self._bar.n)
        if done == before:
            return
        since, self._since = self._since, time.monotonic()
        if before is not None and self._bar.disable:
            seconds = self._since - since
            log.info("%s: iteration %d/%d, %.1f s, %s", self._name, done, self._total, seconds, each)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.write(line, file=sys.stderr)
