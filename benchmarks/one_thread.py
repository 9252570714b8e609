"""Import first: one thread, and freed memory stays with the process, as the workflow sets it for its jobs."""

import os
import sys

WANTED = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
if missing := WANTED.keys() - os.environ.keys():
    os.environ.update({name: WANTED[name] for name in missing})
    os.execv(sys.executable, [sys.executable, *sys.argv])  # malloc reads its settings when a process starts
