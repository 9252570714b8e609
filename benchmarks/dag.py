"""Seconds and memory of a dry run at 100, 1,000 and 10,000 training runs.

    python benchmarks/dag.py

grid=full of the smoke tier with as many seeds as it takes, in a copy of the workflow whose list of seeds is long enough;
for the target `runs` (training alone) and up to 1,000 runs for the default target (training, answers, grades, figures,
report: about three jobs a run). Writes benchmarks/results/dag.json.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import record

from ftis import grid

ROOT = Path(__file__).parent.parent


def dry_run(folder: Path, seeds: int, target: str) -> dict:
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "-n",
        "--quiet",
        "all",
        "--config",
        "tier=smoke",
        "grid=full",
    ]
    command += [f"seeds={seeds}", "--", target]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = os.times().elapsed
    env = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, check=False, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = sum(getattr(after, k) - getattr(before, k) for k in ("ru_utime", "ru_stime"))
    # The largest child so far: sizes only grow from one dry run to the next.
    return {
        "target": target, "seconds": round(os.times().elapsed - began, 1), "cpu_seconds": round(cpu, 1),
        "peak_mib": round(after.ru_maxrss / 1024),
    }  # fmt: skip


def main() -> None:
    rows = []
    each = len(grid.runs("smoke", "full", 1))
    print(f"{'runs':>7}{'target':>8}{'s':>8}{'CPU s':>8}{'MiB':>7}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for part in ("Snakefile", "workflow", "ftis"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, folder / part)
        config = folder / "workflow/config/grid.yaml"
        text, found = re.subn(
            r"^seeds: \[.*\]", f"seeds: {list(range(1, 101))}", config.read_text(), flags=re.MULTILINE
        )
        assert found == 1, "the list of seeds has moved"
        config.write_text(text)
        for wanted, targets in ((100, ("runs", "all")), (1000, ("runs", "all")), (10_000, ("runs",))):
            seeds = max(1, round(wanted / each))
            for target in targets:
                rows.append({"runs": seeds * each, **dry_run(folder, seeds, target)})
                r = rows[-1]
                print(
                    f"{r['runs']:7}{target:>8}{r['seconds']:8}{r['cpu_seconds']:8}{r['peak_mib']:7}",
                    flush=True,
                )
    record.write("dag", rows=rows)


if __name__ == "__main__":
    main()
