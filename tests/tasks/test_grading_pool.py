"""The worker pool: hangs are killed, deaths counted, order kept, threads share it, nothing is left behind."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from ftis.errors import UserError
from ftis.tasks.grading.pool import MEMORY_BYTES, Pool, shared_pool
from ftis.tasks.grading.verdict import grade_many, is_fault

HANG = (r"5", r"\cos(10^{10^{10}})")
ALGEBRA = [(rf"\sqrt{{{n}}}", rf"\sqrt{{{n * 4}}}/2") for n in range(2, 10)]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids, within_s=5):
    deadline = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids))


@pytest.fixture
def pool():
    made = Pool(1)
    yield made
    made.close()


def test_a_hang_is_killed_and_the_order_kept(pool):
    since = time.monotonic()
    outcomes = pool.run([ALGEBRA[0], HANG, ALGEBRA[1], (r"\pi", r"2\pi")], limit_s=2)
    assert [(o.same, o.reason) for o in outcomes] == [
        (True, "equal"),
        (None, "timeout"),
        (True, "equal"),
        (False, "different"),
    ]
    assert 2 <= outcomes[1].seconds < 3 and time.monotonic() - since < 30


def test_a_death_is_counted_and_the_worker_restarted(pool):
    assert pool.run([ALGEBRA[0]], 5)[0].same
    pid = pool.workers[0].process.pid
    threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
    outcomes = pool.run([HANG, ALGEBRA[1]], limit_s=30)
    assert (outcomes[0].same, outcomes[0].reason) == (None, "died") and outcomes[1].same
    assert pool.workers[0].process.pid != pid
    pool.workers[0].process.kill()  # dead while idle: the next job gets a new one
    pool.workers[0].process.wait()
    assert pool.run([ALGEBRA[2]], 5)[0].same


def test_memory_is_bounded_and_errors_have_their_own_reason(pool):
    outcomes = pool.run([("5", r"\sin(e^{e^{e^{10}}})"), ALGEBRA[0]], limit_s=10)
    assert outcomes[0].same is None and outcomes[0].reason.startswith("error: ")
    assert outcomes[1].same
    if sys.platform == "linux":
        with open(f"/proc/{pool.workers[0].process.pid}/limits") as limits:
            assert re.search(rf"Max address space +{MEMORY_BYTES}", limits.read())


def test_faults_are_no_silent_zero():
    hang, right = grade_many(
        [(rf"\boxed{{{HANG[1]}}}", "5", "math500"), (r"\boxed{\sqrt4}", "2", "math500")], limit_s=1
    )
    assert hang.reason == "timeout" and is_fault(hang) and not hang.answer and hang.seconds >= 1
    assert right.answer and not is_fault(right)


def test_threads_share_the_pool():
    results = {}

    def work(k):
        items = [(rf"\boxed{{{a}}}", g, "math500") for g, a in [*ALGEBRA[k:], (r"\pi", rf"{k + 2}\pi")]]
        results[k] = [v.answer for v in grade_many(items)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {k: [True] * (len(ALGEBRA) - k) + [False] for k in range(4)}
    assert len([w for w in shared_pool().workers if w.process]) <= shared_pool().size


def test_a_worker_outlives_the_thread_that_needed_it(pool):
    thread = threading.Thread(target=pool.run, args=([ALGEBRA[0]], 5))
    thread.start()
    thread.join()
    pid = pool.workers[0].process.pid
    time.sleep(0.3)
    assert alive(pid) and pool.run([ALGEBRA[1]], 5)[0].same and pool.workers[0].process.pid == pid


def test_works_with_an_alarm_set_and_leaves_it(pool):
    fired = []
    before = signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 60)
        assert pool.run([ALGEBRA[0]], 5)[0].same
        assert signal.setitimer(signal.ITIMER_REAL, 0)[0] > 0 and not fired
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_worker_that_cannot_start_says_so(pool, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(UserError, match="math-verify is installed"):
        pool.run([ALGEBRA[0]], 5)


PARENT = r"""
import signal, sys, threading, time
# As in a terminal: a shell that starts the tests in the background has Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
from ftis.tasks.grading import pool as grading_pool
from ftis.tasks.grading.verdict import grade_many
def report():
    pool = grading_pool.shared_pool(2)
    while sum(w.ready for w in pool.workers) < 2: time.sleep(0.02)
    time.sleep(0.3)
    print(*[w.process.pid for w in pool.workers], flush=True)
threading.Thread(target=report, daemon=True).start()
hang = (r"\boxed{\cos(10^{10^{10}})}", "5", "math500")
grade_many([hang, (r"\boxed{\cos(10^{10^{11}})}", "5", "math500")], limit_s=60, workers=2)
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="a parent's SIGKILL reaches a computing worker on Linux only"
)
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_orphan_is_left(end):
    """Ctrl-C (which reaches the whole group), SIGTERM or SIGKILL of the parent, amid two hangs."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(map(alive, pids))
        os.killpg(parent.pid, end) if end == signal.SIGINT else parent.send_signal(end)
        assert parent.wait(10) != 0
        assert gone(pids)
        if end == signal.SIGINT:
            assert parent.stderr.read().rstrip().endswith("KeyboardInterrupt")
    finally:
        parent.kill()
        parent.communicate()


def test_workers_end_with_a_normal_exit():
    code = (
        "from ftis.tasks.grading.verdict import grade; from ftis.tasks.grading.pool import shared_pool\n"
        r"assert grade(r'\boxed{\sqrt4}', '2', 'math500').answer" + "\n"
        "print(*[w.process.pid for w in shared_pool().workers if w.process])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stderr == "" and gone([int(word) for word in out.stdout.split()])
