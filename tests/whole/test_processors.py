"""The numerical tests as another processor would run them: other instructions and threads, hence other orders
of summation, other tiny models and other draws of theirs."""

import os
import subprocess
import sys

import pytest
import torch

from ftis.swarm.loop import Swarm
from tests.parts import ROOT, THREADS

# In which a tolerance, a draw or a lesson learnt could hang on the processor.
NUMERICAL = (
    "tests/method", "tests/model", "tests/study/test_exact.py", "tests/swarm/test_guards.py", "tests/swarm/test_hostile.py",
    "tests/swarm/test_metrics.py", "tests/runs/test_answers.py", "tests/runs/test_train.py",
    "tests/runs/test_warm_start.py", "tests/tasks/test_tiny.py", "tests/whole/test_processors.py",
)  # fmt: skip
# What torch, oneDNN and MKL call the same instructions; MKL heeds its variable on Intel's processors alone.
INSTRUCTIONS = {"default": ("SSE41", "SSE4_2"), "avx2": ("AVX2", "AVX2"), "avx512": ("AVX512_CORE", "AVX512")}


def test_the_setting_is_in_force(make_config):
    """In each of the runs below: else they would all try the same."""
    asked = os.environ.get("ATEN_CPU_CAPABILITY")
    assert asked is None or torch.backends.cpu.get_cpu_capability() == asked.upper()
    Swarm(make_config())
    assert torch.get_num_threads() == THREADS


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 2], ids="{} threads".format)
@pytest.mark.parametrize("capability", INSTRUCTIONS)
def test_the_numerical_tests_pass_with(capability, threads):
    if capability == "avx512" and not torch.cpu._is_avx512_supported():
        pytest.skip("this processor has no AVX-512")
    onednn, mkl = INSTRUCTIONS[capability]
    setting = {
        "ATEN_CPU_CAPABILITY": capability, "ONEDNN_MAX_CPU_ISA": onednn, "MKL_ENABLE_INSTRUCTIONS": mkl,
        "FTIS_TEST_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), "FTIS_TINY_SEED": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait for each other leave a core to what else runs
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *NUMERICAL],
        check=False, capture_output=True, text=True, cwd=ROOT, env=os.environ | setting,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
