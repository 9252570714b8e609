"""What the library says while it works: loggers below "ftis", silent unless somebody listens.

A program that imports ftis decides with `logging` what to do with it; the command line shows it as plain
lines.
"""

from __future__ import annotations

import logging
import sys


class _Lines(logging.Handler):
    """Plain lines on standard error, warnings marked as such; the stream is looked up each time, so that it
    can be redirected."""

    def emit(self, record: logging.LogRecord) -> None:
        mark = "warning: " if record.levelno >= logging.WARNING else ""
        print(f"{mark}{self.format(record)}", file=sys.stderr, flush=True)


def show() -> None:
    """Show what ftis says on standard error."""
    logger = logging.getLogger("ftis")
    if not any(isinstance(handler, _Lines) for handler in logger.handlers):
        logger.addHandler(_Lines())
    logger.setLevel(logging.INFO)
