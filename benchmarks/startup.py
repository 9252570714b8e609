"""Start-up: seconds until Python has torch, and until commands of ftis are done or have begun to train.

    python benchmarks/startup.py                          # about a CPU minute

Each is a process of its own, 5 times in turn, on one thread: importing torch alone; --help; an error (a
settings file that isn't there); and a run of one tiny model, ended where its first iteration would begin. CPU
and wall seconds, lowest, median and highest. Writes benchmarks/results/startup.json.
"""

import one_thread  # noqa: F401  # isort: skip

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import measures
import record
from grpo_step import TINY, run_config, shaped

from ftis.settings import to_dict

# What an iteration would do is left out: the process ends.
BEGIN = """
import os
from ftis.cli import main as cli
from ftis.swarm.loop import Swarm
Swarm.iteration = lambda *_: os._exit(0)
cli.main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    found: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        config = run_config(shaped("xs", root / "xs"), TINY | {"iterations": 1}, root)
        (root / "run.yaml").write_text(json.dumps(to_dict(config)))  # JSON is YAML
        for turn in range(args.turns):
            command = [sys.executable, "-m", "ftis.cli"]
            train = ["train", str(root / "run.yaml"), "--out", str(root / f"run-{turn}")]
            for name, arguments, status in (
                ("import torch", [sys.executable, "-c", "import torch"], 0),
                ("ftis --help", [*command, "--help"], 0),
                ("an error", [*command, "train", str(root / "none.yaml"), "--out", str(root / "none")], 2),
                ("up to the first iteration", [sys.executable, "-c", BEGIN, *train], 0),
            ):
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                env = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
                done = measures.run(arguments, env=env, **quiet)
                assert done["status"] == status, f"{name}: exit status {done['status']}, not {status}"
                found.setdefault(name, []).append(done)
    rows = {}
    print(f"{'':28}{'CPU s':>24}{'s':>24}")
    for name, runs in found.items():
        rows[name] = {k: measures.spread([r[k] for r in runs]) for k in ("cpu_seconds", "seconds")}
        print(f"{name:28}{rows[name]['cpu_seconds']!s:>24}{rows[name]['seconds']!s:>24}")
    last = [found[name] for name in ("up to the first iteration", "import torch")]
    over = {k: measures.spread([a[k] - b[k] for a, b in zip(*last)]) for k in ("cpu_seconds", "seconds")}
    print(f"{'a start over torch alone':28}{over['cpu_seconds']!s:>24}{over['seconds']!s:>24}")
    record.write("startup", turns=args.turns, rows=rows, over_torch=over)


if __name__ == "__main__":
    main()
