"""The paper's tables as files, made from run folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ftis.config import load_run
from ftis.errors import UserError, unknown
from ftis.files import write_files
from ftis.papers.ftis.table1 import table1, table1_tex
from ftis.papers.ftis.table2 import table2, table2_tex
from ftis.study.runs import load_scores, make_target
from ftis.suite.suite import Suite


def make_table(table_id: str, tier: str, run_dirs: Sequence[Path], out: Path) -> None:
    """Write `{table_id}.csv` and `{table_id}.tex` into the folder `out`.

    Table 1 given no runs shows the settings that the tier's runs would have.
    """
    if table_id not in TABLES:
        raise unknown("table", table_id, TABLES)
    table, tex = TABLES[table_id](list(dict.fromkeys(map(Path, run_dirs))), tier)
    write_files(
        {
            Path(out) / f"{table_id}.csv": table.to_csv(index=False, lineterminator="\n").encode(),
            Path(out) / f"{table_id}.tex": tex.encode(),
        }
    )


def _make_table1(run_dirs: Sequence[Path], tier: str) -> tuple[pd.DataFrame, str]:
    # Without runs, those that the tier would make: the table asks for settings and needs no training.
    configs = (
        {} if run_dirs else {run.slug: Suite.load().resolve(tier, run) for run in Suite.load().runs(tier)}
    )
    for folder in run_dirs:
        path = folder / "config.yaml"
        if not path.exists():
            raise UserError(f"{path}: no such file; {make_target(path.with_name('final.json'))}")
        configs[folder.name] = load_run(path)
    table = table1(configs)
    return table, table1_tex(table, tier)


def _make_table2(run_dirs: Sequence[Path], tier: str) -> tuple[pd.DataFrame, str]:
    if not run_dirs:
        raise UserError(
            f"table2: no runs given; name them with --run, or `snakemake -c1 paper_figures/{tier}/table2.csv`"
        )
    table = table2(load_scores(run_dirs, tier))
    return table, table2_tex(table, tier)


TABLES = {"table1": _make_table1, "table2": _make_table2}
