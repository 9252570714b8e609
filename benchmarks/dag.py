"""Seconds and memory of a dry run at 100, 1,000 and 10,000 training runs.

    python benchmarks/dag.py                                    # about 3 CPU minutes
    python benchmarks/dag.py --runs 100 1000 --targets runs     # about half of one

The smoke tier in a copy of the workflow whose list of seeds is long enough: as many seeds of grid=paper as it
takes, or of grid=full where that has fewer runs than are wanted. Targets: `runs` (training alone), and `all`,
the default (training, answers, grades, figures, report: about three jobs a run). Puts its rows into
benchmarks/results/dag.json.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import measures
import record

from ftis.suite.suite import Suite

ROOT = Path(__file__).parent.parent
TARGETS = ("runs", "all")


def dry_run(folder: Path, which: str, seeds: int, target: str) -> dict:
    command = [sys.executable, "-m", "snakemake", "-n", "--quiet", "all", "--config", "tier=smoke"]
    command += [f"grid={which}", f"seeds={seeds}", "--", target]
    env = os.environ | {"PYTHONPATH": str(folder)}
    with tempfile.TemporaryFile("w+") as told:
        done = measures.run(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=told)
        if done.pop("status"):
            told.seek(0)
            raise SystemExit(told.read()[-3000:])
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", nargs="+", type=int, default=[100, 1000, 10_000])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS)
    args = parser.parse_args()
    sizes = {which: len(Suite.load().runs("smoke", which, 1)) for which in ("full", "paper")}
    rows = []
    print(f"{'runs':>7}{'target':>8}{'s':>9}{'CPU s':>9}{'MiB':>7}{'ms a run':>10}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for part in ("workflow", "ftis"):
            shutil.copytree(ROOT / part, folder / part)
        config = folder / "workflow/config/grid.yaml"
        for wanted in args.runs:
            which = "full" if wanted >= sizes["full"] else "paper"
            seeds = max(1, round(wanted / sizes[which]))
            text, found = re.subn(
                r"^seeds: \[.*\]",
                f"seeds: {list(range(1, seeds + 1))}",
                config.read_text(),
                flags=re.MULTILINE,
            )
            assert found == 1, "the list of seeds has moved"
            config.write_text(text)
            for target in args.targets:
                count = seeds * sizes[which]
                row = {"wanted": wanted, "target": target, "grid": which, "runs": count}
                row |= dry_run(folder, which, seeds, target)
                rows.append(row)
                print(
                    f"{count:7}{target:>8}{row['seconds']:9.1f}{row['cpu_seconds']:9.1f}{row['peak_mib']:7}"
                    f"{1000 * row['cpu_seconds'] / count:10.2f}",
                    flush=True,
                )
    for row in (
        rows
    ):  # at the end: it takes torch, and a process's peak isn't below what the one that started it held
        record.add("dag", row, "wanted", "target")


if __name__ == "__main__":
    main()
