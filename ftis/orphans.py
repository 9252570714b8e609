"""No process outlives the one that it works for."""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def die_with(parent: int) -> None:
    """Linux: SIGKILL for this process when the thread that started it ends (PR_SET_PDEATHSIG, prctl(2))."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
