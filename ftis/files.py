"""Writing files so that they are wholly there or not at all, whatever ends the process in between."""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ftis.errors import UserError


def write_atomic(path: Path, text: str) -> None:
    """Write a file so that it is either wholly there or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically; NaN is an error, not a token that other readers refuse."""
    write_atomic(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write all files or none: each under a temporary name beside its own, renamed when all are there."""
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in files}
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary[path].write_bytes(content)
        for path in files:
            os.replace(temporary[path], path)
    except OSError as error:
        raise UserError(
            f"{error.filename or path}: can't be written ({error.strerror}); choose another --out"
        ) from None
    finally:
        for path in temporary.values():
            with suppress(OSError):
                path.unlink()


@contextmanager
def write_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which then replaces `out` by a rename: a folder named `out` is always whole.

    Half a folder is removed after an error, and by the next call on this machine after a kill.
    """
    stem = f".{out.name}.{os.uname().nodename}-"
    for left in out.parent.glob(f"{glob.escape(stem)}*.partial"):
        if _has_ended(left.name.removeprefix(stem).removesuffix(".partial")):
            shutil.rmtree(left, ignore_errors=True)
    partial = out.parent / f"{stem}{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        shutil.rmtree(out, ignore_errors=True)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _has_ended(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, ValueError):  # another user's; no process
        pass
    return False
