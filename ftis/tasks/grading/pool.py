"""Worker processes that compare MATH answers and are killed when they hang.

No signal or thread stops a big-integer power in C, so each comparison runs in a process that can be killed:
started by `sys.executable -c` (never a fork of a parent that holds torch and threads), fed one JSON line at
a time, killed past its limit, restarted when next needed. A worker limits its own memory, and dies with its
parent: stdin ends, and the kernel sends SIGKILL (Linux) even in the middle of a computation.
"""

import atexit
import contextlib
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from ftis.errors import UserError
from ftis.orphans import die_with

MEMORY_BYTES = 2 * 2**30  # of address space of one worker
START_S = 120.0  # to import sympy, on a loaded machine
_ROOT = str(Path(__file__).resolve().parents[3])


class WorkerCannotStart(UserError):
    """The worker ended or went silent before it was ready: a broken installation, not a wrong answer."""


@dataclass(frozen=True)
class Outcome:
    """same: True or False, None if the worker gave no verdict; reason then is timeout, died or error."""

    same: bool | None
    reason: str
    seconds: float


# --- in the worker --------------------------------------------------------------------------------


def serve(parent: int) -> None:
    """Answer one JSON line `[gold, answer]` by one `[same, reason]`, until stdin ends.

    A line `[gold, completion, "math-verify"]` asks for math-verify's own verdict on the whole completion.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us
    die_with(parent)
    with contextlib.suppress(ImportError, ValueError, OSError):  # no such limit on some systems
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out, sys.stdout = sys.stdout, sys.stderr  # a library's print must not enter the protocol
    import logging

    from ftis.tasks.grading.algebra import sympy_algebra, warm_up
    from ftis.tasks.grading.answers import compare
    from ftis.tasks.grading.math_verify_verdict import judge

    logging.disable(logging.CRITICAL)
    warm_up()
    print('"ready"', file=out, flush=True)
    for line in sys.stdin:
        try:
            gold, text, *other = json.loads(line)
            reply = judge(gold, text) if other else compare(gold, text, algebra=sympy_algebra)
        except Exception as problem:  # noqa: BLE001 - any parser error is reported, counted and survived
            reply = (None, f"error: {type(problem).__name__}")
        print(json.dumps(reply), file=out, flush=True)


# --- in the parent --------------------------------------------------------------------------------


class _Worker:
    """One slot: a process that is started when needed, and killed."""

    def __init__(self):
        self.process = None
        self.ready = False

    def start(self) -> None:
        code = (
            f"import sys; sys.path.append({_ROOT!r}); import ftis.tasks.grading.pool as g; "
            f"g.serve({os.getpid()})"
        )
        self.ready = False
        self.buffer = b""
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                code,
            ],  # -P: a file of the working folder must not pass for a library
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def send(self, job: tuple[str, ...]) -> None:
        with contextlib.suppress(BrokenPipeError):  # a dead worker shows as the end of its output
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()

    def receive(self):
        """The next message, None while it is incomplete, EOFError at the end of the output."""
        data = os.read(self.process.stdout.fileno(), 65536)
        if not data:
            raise EOFError
        self.buffer += data
        if not self.buffer.endswith(b"\n"):
            return None
        message, self.buffer = json.loads(self.buffer), b""
        return message

    def kill(self) -> None:
        process, self.process, self.ready = self.process, None, False
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()


class Pool:
    """Up to `size` workers, shared by the threads of this process; they start at the first job."""

    def __init__(self, size: int):
        self.size = size
        self.workers = [_Worker() for _ in range(size)]
        self.idle: queue.LifoQueue[_Worker] = queue.LifoQueue()  # last in, first out: started ones are reused
        for worker in self.workers:
            self.idle.put(worker)
        # The kernel ties a worker's life to the thread that started it: this one lives as long as the pool.
        self.starts: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=_start_workers, args=(self.starts,), daemon=True).start()

    def run(self, jobs: list[tuple[str, ...]], limit_s: float, at_most: int | None = None) -> list[Outcome]:
        """An Outcome for each job (see `serve`), in order, from `at_most` workers at a time (default all).

        On any exception this call's workers are killed.
        """
        with selectors.DefaultSelector() as selector:
            call = _Call(self, jobs, limit_s, selector, at_most or self.size)
            try:
                call.work()
            finally:
                for worker in call.active:
                    worker.kill()
                    self.idle.put(worker)
        return call.outcomes

    def start(self, worker: _Worker) -> None:
        """Start a worker from the starter thread."""
        started = Future()
        self.starts.put((worker, started))
        started.result()

    def close(self) -> None:
        """Kill all workers; the pool is of no use any more. Of shared pools, see `close_pools`."""
        for worker in self.workers:
            worker.kill()
        self.starts.put(None)


@dataclass
class _Turn:
    """What a worker is at: the index of its job, since when, and until when it may take."""

    job: int
    since: float
    deadline: float


class _Call:
    """One call of `Pool.run`: a single loop that hands out jobs and waits for messages and deadlines."""

    def __init__(self, pool: Pool, jobs: list[tuple[str, ...]], limit_s: float, selector, at_most: int):
        self.pool, self.jobs, self.limit_s, self.selector = pool, jobs, limit_s, selector
        self.at_most = at_most
        self.outcomes: list[Outcome | None] = [None] * len(jobs)
        self.waiting = deque(range(len(jobs)))
        self.active: dict[_Worker, _Turn] = {}

    def work(self) -> None:
        while self.waiting or self.active:
            while self.waiting and len(self.active) < self.at_most:
                try:  # wait for a worker of another thread only if this call has none
                    worker = self.pool.idle.get(block=not self.active)
                except queue.Empty:
                    break
                self.begin(worker, self.waiting.popleft())
            pause = min(turn.deadline for turn in self.active.values()) - time.monotonic()
            for key, _ in self.selector.select(max(0.0, pause)):
                self.listen(key.data)
            for worker in [w for w, turn in self.active.items() if turn.deadline <= time.monotonic()]:
                if not worker.ready:
                    raise WorkerCannotStart(
                        f"the grading worker wasn't ready in {START_S:.0f} s: free some cores"
                    )
                self.settle(worker, (None, "timeout"))

    def begin(self, worker: _Worker, job: int) -> None:
        """Give the job to the worker, or start the worker: it gets the job once it says that it is ready."""
        self.active[worker] = _Turn(job, time.monotonic(), time.monotonic() + START_S)
        if worker.process is None or worker.process.poll() is not None:
            worker.kill()
            self.pool.start(worker)
        self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        if worker.ready:
            self.ask(worker)

    def ask(self, worker: _Worker) -> None:
        turn = self.active[worker]
        turn.since, turn.deadline = time.monotonic(), time.monotonic() + self.limit_s
        worker.send(self.jobs[turn.job])

    def listen(self, worker: _Worker) -> None:
        try:
            message = worker.receive()
        except EOFError:
            if not worker.ready:
                raise WorkerCannotStart(
                    "the grading worker ended while starting: check that math-verify is installed"
                ) from None
            message = (None, "died")
        if message == "ready":
            worker.ready = True
            self.ask(worker)
        elif message is not None:
            self.settle(worker, message)

    def settle(self, worker: _Worker, reply: tuple[bool | None, str]) -> None:
        """Note the outcome and free the worker; one that hangs or has died is killed."""
        turn = self.active[worker]
        self.outcomes[turn.job] = Outcome(*reply, time.monotonic() - turn.since)
        self.selector.unregister(worker.process.stdout)
        if reply[1] in ("timeout", "died"):
            worker.kill()
        del self.active[worker]
        self.pool.idle.put(worker)


def _start_workers(starts: queue.SimpleQueue) -> None:
    """The starter thread: start each worker asked for, and pass on what goes wrong."""
    while (request := starts.get()) is not None:
        worker, started = request
        try:
            started.set_result(worker.start())
        except OSError as problem:
            started.set_exception(problem)


_lock = threading.Lock()
_pools: dict[tuple[int, int], Pool] = {}  # (process id, size): a forked child must not use its parent's pipes


def default_size() -> int:
    """Workers by default: the cores this process may use, at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(8, cores))


def shared_pool(size: int | None = None) -> Pool:
    """The pool of this process with `size` workers; made once, closed at exit."""
    key = (os.getpid(), size or default_size())
    with _lock:
        if key not in _pools:
            _pools[key] = Pool(key[1])
        return _pools[key]


@atexit.register
def close_pools() -> None:
    """Close the pools of this process; a later `shared_pool` makes a new one."""
    with _lock:
        for key in [key for key in _pools if key[0] == os.getpid()]:
            _pools.pop(key).close()
