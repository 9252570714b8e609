"""Where a benchmark's results go."""

import json
import os
from pathlib import Path
from typing import Any

from ftis.provenance import provenance


def write(name: str, **facts: Any) -> None:
    """results/NAME.json: the facts, the load, and the commit, machine and packages that they are of."""
    where = {k: v for k, v in provenance().items() if k in ("git", "cpu", "cpus", "packages")}
    out = Path(__file__).parent / f"results/{name}.json"
    out.write_text(json.dumps({**facts, "load": os.getloadavg(), **where}, indent=1) + "\n")
