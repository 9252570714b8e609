"""Import first: one thread, idle threads sleep, and freed memory stays with the process, as the workflow sets
it."""

import os
import sys

WANTED = {
    "OMP_NUM_THREADS": "1",
    # Where more threads are asked for: two that spin while they wait take each other's core on a shared
    # machine.
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
if missing := WANTED.keys() - os.environ.keys():
    os.environ.update({name: WANTED[name] for name in missing})
    os.execv(sys.executable, [sys.executable, *sys.argv])  # OpenMP and malloc read them when a process starts
