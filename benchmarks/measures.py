"""What several benchmarks measure with."""

import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from ftis.provenance import versions


def peak_mib() -> float:
    """Most memory that this process has held. (ru_maxrss would also count what its parent held when it was
    started.)"""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def spread(values: Sequence[float], digits: int = 2) -> list[float]:
    """Lowest, median and highest."""
    return [round(f(values), digits) for f in (min, statistics.median, max)]


def run(command: list, **options) -> dict[str, float]:
    """Run a command to its end: its exit status, and seconds, CPU seconds and peak memory of it and all that
    it waits for. The peak isn't below what this process has held."""
    began = time.perf_counter()
    process = subprocess.Popen(command, **options)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "status": process.returncode, "seconds": round(time.perf_counter() - began, 3),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 3), "peak_mib": round(used.ru_maxrss / 1024),
    }  # fmt: skip


def trl_version() -> str | None:
    """None where TRL isn't installed."""
    return versions(("trl",)).get("trl")
