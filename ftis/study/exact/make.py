"""The exact study as files: tables, findings, figures, and what they were made with."""

from __future__ import annotations

import json
import math
from pathlib import Path

import matplotlib

from ftis.files import write_files
from ftis.provenance import provenance
from ftis.study.exact.figures import FIGURES
from ftis.study.exact.findings import findings, standard_errors
from ftis.study.exact.tables import TABLES, over_problems
from ftis.study.style import STYLE, rendered


def make_exact(out: Path) -> None:
    """Write the means over problems of each of TABLES, exact_findings.csv (`findings`, and se, their standard
    errors over problems), the figures and provenance.json, what they were made with, into `out`."""
    made = json.dumps(provenance(), indent=1) + "\n"  # at the start: of the code that runs
    rows = {name: compute() for name, (compute, *_) in TABLES.items()}
    tables = {name: over_problems(rows[name], keys, spread) for name, (_, keys, spread) in TABLES.items()}
    found = findings(tables)
    errors = [f"{error:.2g}" if math.isfinite(error) else "" for error in standard_errors(rows, found)]
    tables["exact_findings"] = found.assign(se=errors)
    files = {
        f"{name}.csv": table.to_csv(index=False, float_format="%.4g", lineterminator="\n").encode()
        for name, table in tables.items()
    }
    with matplotlib.rc_context(STYLE):
        for name, (draw, source) in FIGURES.items():
            files |= rendered(name, draw(tables[source]))
    files["provenance.json"] = made.encode()
    write_files({Path(out) / name: content for name, content in files.items()})
