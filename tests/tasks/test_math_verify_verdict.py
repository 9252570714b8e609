"""math-verify's own verdict: what it is on known texts, that it is the library's, and that it can't hang."""

import os
import signal
import threading
import time

import pytest
from math_verify import parse, verify

from ftis.tasks.grading.math_verify_verdict import LONGEST, Theirs, math_verify_many
from ftis.tasks.grading.pool import Pool

HANG = r"\boxed{\cos(10^{10^{10}})}"
KNOWN = [
    # gold, completion, accepted, what was read; docs/grading.md lists the kinds
    ("18", "<think> 9*2=18 </think> <answer> 18 </answer>", True, "18"),
    ("18", "<answer>18</answer>", False, ""),
    ("18", "9*2 is 18 dollars. He gives 18", True, "18"),
    ("8", "We meet at 8:00 PM", True, "8"),
    ("18", "<answer> 9*2 </answer>", True, "9*2"),
    ("-5", "<answer> minus 5 </answer>", False, "5"),
    ("18000", "<answer>18k</answer>", False, ""),
    (r"\sqrt{18}", r"<answer>\sqrt{18}</answer>", False, ""),
    (r"\sqrt{18}", r"<answer>$3\sqrt{2}$</answer>", True, r"3\sqrt{2}"),
    (r"\frac{1}{3}", r"\boxed{0.3333333333333333}", True, "0.3333333333333333"),
    ("2516_8", r"\boxed{2516_7}", True, "2516_7"),
    ("1,234", r"\boxed{1234}", True, "1234"),
    ("5", "", False, ""),
    ("9", r"\boxed{x = 9}", True, "x = 9"),
    # The gold comes first: these two are told apart by the order alone.
    ("x > 3", r"\boxed{(3, \infty)}", True, r"(3, \infty)"),
    ("(3, \\infty)", r"\boxed{x > 3}", False, "x > 3"),
]


@pytest.fixture(scope="module")
def verdicts():
    return math_verify_many([(gold, text) for gold, text, _, _ in KNOWN])


def test_known_texts(verdicts):
    found = [(gold, text, v.accepts, v.read) for (gold, text, _, _), v in zip(KNOWN, verdicts, strict=True)]
    assert found == KNOWN


def test_it_is_the_librarys_verdict_with_every_default(verdicts):
    """The call as its users write it, alarms and all, in this process."""
    theirs = [verify(parse(f"${gold}$"), parse(text)) for gold, text, _, _ in KNOWN]
    assert theirs == [v.accepts for v in verdicts]


def test_giving_up_is_no_verdict_and_stops_nothing():
    since = time.monotonic()
    found = math_verify_many([("5", HANG), ("5", "it is 5"), ("5", HANG)], limit_s=2)
    assert found[0] == found[2] == Theirs(None, "", "timeout") and found[1] == Theirs(True, "5")
    assert time.monotonic() - since < 30


def test_a_death_is_no_verdict(monkeypatch):
    pool = Pool(1)
    monkeypatch.setattr("ftis.tasks.grading.pool.shared_pool", lambda: pool)
    try:
        assert math_verify_many([("5", "5")])[0].accepts
        threading.Timer(0.5, os.kill, (pool.workers[0].process.pid, signal.SIGKILL)).start()
        assert math_verify_many([("5", HANG)], limit_s=30) == [Theirs(None, "", "died")]
    finally:
        pool.close()


def test_from_a_thread_and_with_an_alarm_set():
    """Where the library itself refuses to work, and where it would cancel an alarm that isn't its own."""
    found, fired = [], []
    before = signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 60)
        thread = threading.Thread(target=lambda: found.extend(math_verify_many([("5", "so 5")])))
        thread.start()
        thread.join(60)
        assert found == [Theirs(True, "5")]
        assert signal.setitimer(signal.ITIMER_REAL, 0)[0] > 0 and not fired
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_was_read_is_cut_and_never_taken_for_a_fault():
    """A text may spell the words by which workers say that they failed."""
    golds = ["died", "timeout"]
    found = math_verify_many([(gold, f"so ${gold}$") for gold in golds] + [("5", f"${'x' * 999}$")])
    assert [v.read for v in found] == ["died", "timeout", "x" * LONGEST]
    assert all(v.accepts is not None and not v.reason for v in found)


def test_few_pairs_start_one_worker(monkeypatch):
    pool = Pool(2)
    monkeypatch.setattr("ftis.tasks.grading.pool.shared_pool", lambda: pool)
    try:
        math_verify_many([(str(n), f"so {n}") for n in range(20)])
        assert [worker.process is not None for worker in pool.workers].count(True) == 1
    finally:
        pool.close()
