"""Where a benchmark's results go, and the commit, load, machine and packages that they are of."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from ftis.provenance import git_commit, provenance

RESULTS = Path(__file__).parent / "results"


def _commit() -> dict[str, Any] | None:
    """The commit, `dirty` if anything but results was changed since: the last benchmark's lie there
    uncommitted."""
    git = git_commit()
    if git:
        command = [
            "git",
            "-C",
            RESULTS,
            "status",
            "--porcelain",
            "--",
            ":/",
            ":(exclude,top)benchmarks/results",
        ]
        git["dirty"] = bool(subprocess.run(command, capture_output=True, check=True).stdout)
    return git


COMMIT = _commit()  # at the start: what is changed during a long measurement isn't what was measured


def _machine() -> dict[str, Any]:
    return {k: v for k, v in provenance().items() if k in ("cpu", "cpus", "packages")}


def _put(name: str, facts: dict[str, Any]) -> None:
    (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")


def write(name: str, **facts: Any) -> None:
    """results/NAME.json, measured as a whole."""
    _put(name, {**facts, "load": os.getloadavg(), "git": COMMIT, **_machine()})


def add(name: str, row: dict[str, Any], *same: str, **facts: Any) -> None:
    """Put a row into results/NAME.json, in place of the one that agrees with it in the fields `same`.

    Rows are measured at different times, so that each has a commit and a load of its own. The file's top has
    the machine and the packages; a row has them only where they are others.
    """
    path, machine = RESULTS / f"{name}.json", _machine()
    top = json.loads(path.read_text()) if path.exists() else {}
    rows = [r for r in top.pop("rows", ()) if any(r.get(k) != row[k] for k in same)]
    top = {**machine, **(top if rows else {}), **facts}
    row = {**row, "load": round(os.getloadavg()[0], 1), "git": COMMIT}
    row |= {k: v for k, v in machine.items() if top[k] != v}
    _put(name, {"rows": [*rows, row], **top})
