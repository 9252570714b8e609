"""What a resolver makes of the extras on each Python that the project supports: metadata alone, nothing is
installed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

uv = pytest.importorskip("uv", reason="uv, which resolves, is not installed here (extra test)")

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")


def resolve(python, *arguments):
    """Versions by package of what uv would install on Linux, or what it says where nothing fits."""
    command = [
        uv.find_uv_bin(),
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "--no-annotate",
        "--python",
        sys.executable,
    ]
    command += ["--python-version", python, "--python-platform", "x86_64-unknown-linux-gnu", *arguments]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        return " ".join(done.stderr.split())
    return dict(line.split("==") for line in done.stdout.split() if "==" in line)


@pytest.fixture(scope="module", autouse=True)
def index(tmp_path_factory):
    one = tmp_path_factory.mktemp("probe") / "requirements.txt"
    one.write_text("vllm==0.32.0\n")
    found = resolve("3.13", "--no-deps", str(one))
    if isinstance(found, str) and re.search("network|Failed to fetch|request", found):
        pytest.skip(f"no package index can be reached: {found[:100]}")
    assert found == {"vllm": "0.32.0"}


def pinned():
    return dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())


def test_vllm_beside_the_slurm_plugin():
    """On Python 3.13, and with the pinned packages, torch among them."""
    found = resolve("3.13", "--extra", "slurm", "--extra", "vllm", "-c", "constraints.txt", "pyproject.toml")
    assert isinstance(found, dict), found
    assert found["vllm"] == "0.32.0"
    pins = pinned()
    for name in ("torch", "transformers", "numpy", "snakemake", "snakemake-executor-plugin-slurm"):
        assert found[name] == pins[name], name


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_older_pythons_are_told(python):
    """vLLM keeps numpy below 2.4 there and the plugin above: no other vLLM is taken, and none is left out in
    silence."""
    found = resolve(python, "--extra", "slurm", "--extra", "vllm", "pyproject.toml")
    if isinstance(found, dict):  # once vLLM's own dependencies allow it
        assert found["vllm"] == "0.32.0"
    else:
        assert re.search("numpy.* are incompatible", found) and "snakemake-executor-plugin-slurm" in found, (
            found
        )


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_vllm_without_the_plugin(python):
    found = resolve(python, "--extra", "vllm", "pyproject.toml")
    assert isinstance(found, dict), found
    assert found["vllm"] == "0.32.0" and found["torch"] == pinned()["torch"]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_pinned_packages_fit_everywhere(python):
    found = resolve(python, "--extra", "test", "-c", "constraints.txt", "pyproject.toml")
    assert isinstance(found, dict), found
    assert found["torch"] == pinned()["torch"] and "vllm" not in found
