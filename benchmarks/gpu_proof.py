"""Does what was written for GPUs hold on this one? Nine stages, thresholds fixed beforehand, PASS, FAIL or
SKIP.

    python benchmarks/gpu_proof.py --out proof.json                   # 12 minutes at most, the paper tier's
    shapes python benchmarks/gpu_proof.py --out proof.json --stages 0,1,2    # those that decide about
    attention python benchmarks/gpu_proof.py --out proof.json --toy             # seconds, on a CPU too: shows
    that this works

No model or data is downloaded: weights and prompts are random. Each stage runs in a process of its own within
a time limit, so that one which hangs or crashes costs its own lines only, and the file is written anew after
each. Exit code: 0 where something passed and nothing failed, 1 where something failed, 3 where nothing could
be checked, and 2 for a wrong call. docs/performance.md says what each stage shows and what a FAIL means.

It hasn't run on a GPU yet.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# The repository, where ftis isn't installed.
PATHS = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
sys.path[:0] = PATHS

try:
    import gpu_stages
    from gpu_stages import STAGES

    from ftis.files import write_json
    from ftis.provenance import git_commit, versions
except ModuleNotFoundError as missing:
    print(
        f"error: {missing.name} can't be imported; docs/performance.md lists what the proof needs",
        file=sys.stderr,
    )
    sys.exit(2)


@dataclass(frozen=True)
class Limit:
    """What a number of a stage must be for a PASS: from `low` to `high`, both included."""

    stage: str
    quantity: str
    low: float
    high: float
    gpu: bool
    """Whether it says something on a GPU only."""


# Fixed before the first run on a GPU. What lies between the two of a row is a PASS.
LIMITS = (
    Limit("machine", "torch_sees_gpu", 1, 1, False),
    Limit("machine", "memory_off_table", 0, 0.01, True),
    Limit("machine", "cudnn_attention_on", 0, 0, True),
    Limit("exactness", "attention_not_finite", 0, 0, False),
    Limit("exactness", "attention_error_bfloat16", 0, 0.02, False),
    Limit("exactness", "attention_error_float32", 0, 1e-5, False),
    Limit("exactness", "head_error_bfloat16", 0, 0.02, False),
    Limit("exactness", "head_error_float32", 0, 1e-5, False),
    Limit("first_calls", "packed_first_over_second", 0, 3, True),
    Limit("first_calls", "decode_first_over_second", 0, 3, True),
    Limit("mismatch", "mismatch_mean_float32", 0, 1e-4, False),
    Limit("mismatch", "mismatch_mean_bfloat16", 0, 0.02, False),
    Limit("mismatch", "mismatch_max_bfloat16", 0, 0.3, False),
    Limit("mismatch", "mismatch_k3_bfloat16", 0, 1e-3, False),
    Limit("iterations", "peak_over_plan", 0.6, 1, True),
    Limit("iterations", "mfu", 0.15, 1, True),
    Limit("iterations", "step_over_plan", 0, 1.5, True),
    Limit("iterations", "lora_peak_over_plan", 0.6, 1, True),
    Limit("pair", "out_of_memory_144", 0, 0, True),
    Limit("pair", "out_of_memory_192", 0, 0, True),
    Limit("resume", "completions_differ", 0, 0, False),
    Limit("resume", "update_apart", 0, 0.05, False),
    Limit("processes", "launch_exit_code", 0, 0, True),
    Limit("processes", "gpu_tests_exit_code", 0, 0, True),
    Limit("engine", "mismatch_mean", 0, 0.02, False),
    Limit("engine", "asleep_gib", 0, 3, True),
    Limit("engine", "push_s", 0, 10, True),
)
SECONDS = {
    "machine": 60, "exactness": 90, "first_calls": 120, "mismatch": 150, "iterations": 240, "pair": 150,
    "resume": 180,
    "processes": 240, "engine": 300,
}  # fmt: skip
"""After which a stage is ended."""
LOG_LINES = 30
"""Of a stage's output that are kept where it didn't come to its end."""


def main(arguments: list[str] | None = None) -> int:
    given = options().parse_args(arguments)
    numbers = list(range(len(STAGES))) if given.stages is None else given.stages
    facts: dict[str, Any] = {
        "size": "toy" if given.toy else "full", "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "git": git_commit(), "python": sys.version.split()[0],
        "packages": versions(("torch", "transformers", "peft", "vllm", "numpy", "pydantic", "safetensors",
        "nvidia-cudnn-cu13")),
        "limits": [asdict(limit) for limit in LIMITS], "stages": [], "verdict": None,
    }  # fmt: skip
    try:
        write_json(given.out, facts)
    except OSError as error:
        options().error(f"--out: {given.out} can't be written ({error.strerror})")
    _set_environment()
    until = time.monotonic() + 60 * given.minutes
    print(f"{facts['size']} size, " + ", ".join(f"{k} {v}" for k, v in facts["packages"].items()), flush=True)
    for number in numbers:
        name = list(STAGES)[number]
        left = until - time.monotonic()
        if left > 5:
            told = in_a_process(name, given.toy, min(SECONDS[name], left))
        else:
            told = {"ended": "skipped", "why": f"the {given.minutes:g} minutes were over", "seconds": 0.0}
        on_gpu = told.get("measured", {}).get("device", "cpu") != "cpu"
        checks = judge(name, told, on_gpu, LIMITS)
        facts["stages"].append({"number": number, "name": name, **told, "checks": checks})
        facts["verdict"] = verdict([c for stage in facts["stages"] for c in stage["checks"]])
        write_json(given.out, facts)
        for check in checks:
            print(line(number, name, check), flush=True)
    print(f"{facts['verdict']}: {given.out}")
    return {"PASS": 0, "FAIL": 1, "NOTHING CHECKED": 3}[facts["verdict"]]


def _set_environment() -> None:
    """What the stages' processes have from this one, which leaves CUDA to them."""
    # Shapes vary, and memory that lies in pieces would be lost.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    given = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *([given] if given else [])])


def options() -> argparse.ArgumentParser:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("--out", type=Path, required=True, metavar="FILE.json", help="where the numbers go")
    about.add_argument("--stages", type=_stages, metavar="0,1,2", help="in this order (default: all)")
    about.add_argument("--toy", action="store_true", help="tiny shapes, on a CPU where there is no GPU")
    about.add_argument(
        "--minutes", type=float, default=12, help="after which no stage goes on (default: %(default)s)"
    )
    return about


def _stages(text: str) -> list[int]:
    last = len(STAGES) - 1
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1]
    if not all(0 <= n <= last for n in numbers):
        raise argparse.ArgumentTypeError(
            f"must be numbers from 0 to {last} with commas between, given {text!r}"
        )
    return numbers


def in_a_process(name: str, toy: bool, limit: float) -> dict[str, Any]:
    """What a stage measured in a process of its own, and how that ended: done, skipped, raised, died or
    hung."""
    # At full size a fresh interpreter a stage, since a CUDA that was touched before a fork would be broken;
    # at toy size the imports, which take longer than the stages, are made once.
    context = multiprocessing.get_context("forkserver" if toy else "spawn")
    context.set_forkserver_preload(["gpu_models", "gpu_processes"])
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "numbers.json"), Path(folder, "log")
        began = time.perf_counter()
        process = context.Process(target=gpu_stages.run, args=(name, toy, out, log))
        process.start()
        try:
            process.join(limit)
            hung = process.is_alive()
        finally:  # an interrupt reaches this process alone
            _end_group(process)
        told = gpu_stages.read(out)
        told["seconds"] = round(time.perf_counter() - began, 1)
        if hung:
            told |= {"ended": "hung", "why": f"ended after {limit:.0f} s"}
        elif told["ended"] is None:
            told |= {"ended": "died", "why": f"its process died (exit code {process.exitcode})"}
        if told["ended"] not in ("done", "skipped") and log.exists():
            told["log"] = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return told


def _end_group(process: multiprocessing.Process) -> None:
    """End the stage and what it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()  # it hadn't come to leading a group yet
    process.join()


def judge(name: str, told: dict[str, Any], on_gpu: bool, limits: tuple[Limit, ...]) -> list[dict[str, Any]]:
    """A stage's checks. One that didn't come to its end fails, whatever it had measured before."""
    if told["ended"] == "skipped":
        return [{"quantity": "", "verdict": "SKIP", "why": told["why"]}]
    checks = []
    measured, skipped = told.get("measured", {}), told.get("skipped", {})
    for limit in (limit for limit in limits if limit.stage == name):
        found = {
            "quantity": limit.quantity,
            "value": measured.get(limit.quantity),
            "low": limit.low,
            "high": limit.high,
        }
        if limit.quantity in skipped:
            checks.append(found | {"verdict": "SKIP", "why": skipped[limit.quantity]})
        elif limit.gpu and not on_gpu:
            checks.append(found | {"verdict": "SKIP", "why": "says nothing on a CPU"})
        elif limit.quantity in measured:
            checks.append(found | {"verdict": "PASS" if within(limit, found["value"]) else "FAIL", "why": ""})
        elif told["ended"] == "done":
            checks.append(found | {"verdict": "FAIL", "why": "not measured"})
    if told["ended"] != "done":
        checks.append({"quantity": "", "verdict": "FAIL", "why": f"{told['ended']}: {told['why']}"})
    return checks


def within(limit: Limit, value: Any) -> bool:
    """NaN and infinity, which the file holds as words, are within nothing."""
    return isinstance(value, (int, float)) and math.isfinite(value) and limit.low <= value <= limit.high


def verdict(checks: list[dict[str, Any]]) -> str:
    """Of all checks together."""
    found = {check["verdict"] for check in checks}
    return "FAIL" if "FAIL" in found else "PASS" if "PASS" in found else "NOTHING CHECKED"


def line(number: int, name: str, check: dict[str, Any]) -> str:
    """A check in the table."""
    said = f"{check['verdict']}  {number} {name:12} "
    if check["quantity"]:
        said += f"{check['quantity']:26}"
        if check["verdict"] != "SKIP" and check["value"] is not None:
            value = check["value"]
            said += f"{value:<11.4g}" if isinstance(value, (int, float)) else f"{value:<11}"
            said += f"must be {_between(check['low'], check['high'])}"
    return f"{said} {check['why']}".rstrip()


def _between(low: float, high: float) -> str:
    if low == high:
        return f"{low:g}"
    return f"at most {high:g}" if low == 0 else f"{low:g} to {high:g}"


if __name__ == "__main__":
    sys.exit(main())
