"""Progress with an estimate of the time left, on a terminal; silence anywhere else."""

from __future__ import annotations

import sys
import time
from typing import Self


class Progress:
    """A line that rewrites itself: `with Progress("train", 50) as bar: bar.update(3, "reward 0.41")`."""

    def __init__(self, what: str, total: int, done: int = 0):
        self.what, self.total, self.first = what, total, done
        self.began = time.monotonic()
        self.shown = sys.stderr.isatty()

    def update(self, done: int, note: str = "") -> None:
        if not self.shown:
            return
        took = time.monotonic() - self.began
        fresh = done - self.first
        left = f"{took / fresh * (self.total - done):.0f} s left" if fresh > 0 else "..."
        sys.stderr.write(f"\r\x1b[K{self.what} {done}/{self.total}, {left}  {note}")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        self.update(self.first)
        return self

    def __exit__(self, *_) -> None:
        if self.shown:
            sys.stderr.write("\n")
