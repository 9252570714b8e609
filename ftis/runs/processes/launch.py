"""One command that runs a process for each node on this machine, and watches them.

The nodes' messages don't pass through here. This process holds the run's lock, hands it down, shows what the
nodes say, and reports how each of them ended. A node dies with this process, however that ends; the run dies
with a node only before all nodes have met, or when none is left to publish it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from ftis.config import RunConfig
from ftis.errors import Interrupted, UserError
from ftis.runs.folder import RunFolder
from ftis.runs.progress import Progress
from ftis.runs.train import claimed

log = logging.getLogger(__name__)

SHOWN = 20
"""Last lines of a node's output that are kept for the report of its end."""


@dataclass
class _Child:
    """The process of a node, its output and its reports."""

    node: int
    name: str
    process: subprocess.Popen
    reports: int
    """Descriptor to read JSON lines from."""
    said: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN))
    first: int | None = None
    """Iterations done when it had met the others; None before."""
    step: int = 0
    reward: float = 0.0
    stopped: str = ""
    """Why it was ended from here."""

    def ending(self) -> str:
        """How it ended, in a few words and its own."""
        code = self.process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        how = self.stopped or how
        return "\n  ".join([f"node {self.node} ({self.name}) {how}", *self.said])


def launch(config: RunConfig, out: str | Path, job: bool = False) -> RunFolder:
    """Run `config` in the folder `out` with a process for each node, going on from the newest iteration that
    all have a checkpoint of. Leaves the same files as `ftis.runs.train.train`.

    `job` is as in `ftis.runs.train.train`.
    Raises UserError with the nodes' own words where the run isn't finished. A node that is lost on the way
    doesn't end the run: final.json and a warning say which, and from which iteration.
    """
    folder = RunFolder(out)
    fresh = not folder.path.exists()
    with folder.locked(wait=job) as lock:
        if not claimed(folder, config, folder.path, "processes", job):
            return folder
        folder.write_config(config)
        children: list[_Child] = []
        try:
            for k, node in enumerate(config.nodes):
                children.append(_start(folder, k, node.name, lock))
            _watch(config, children)
        finally:
            for child in children:
                child.process.kill()
                child.process.wait()
            if fresh and not _begun(children):  # nothing was trained: leave nothing behind
                folder.remove()
        failed = [child for child in children if child.process.returncode != 0]
        if not folder.finished:
            why = (
                "no node was left to publish it" if _begun(children) else "it ended before all nodes had met"
            )
            raise _unfinished(why, failed)
        for child in failed:
            log.warning(child.ending())
        for node in folder.final["lost"]:
            log.warning(
                "the run went on without node %d (%s) from iteration %d",
                node["node"],
                node["name"],
                node["iteration"],
            )
    return folder


def _unfinished(why: str, failed: list[_Child]) -> UserError:
    """The error of a run that its nodes didn't finish. It is bad input where each that ended by itself says
    so; one that was killed or broke off may live another time."""
    ended = [child.process.returncode for child in failed if not child.stopped]
    kind = UserError if ended and set(ended) == {UserError.exit_code} else Interrupted
    return kind("\n".join([f"the run is not finished: {why}", *(child.ending() for child in failed)]))


def _begun(children: list[_Child]) -> bool:
    return any(child.first is not None for child in children)


def _start(folder: RunFolder, node: int, name: str, lock: int) -> _Child:
    reports, theirs = os.pipe()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "ftis.cli", "train", str(folder.config_file), "--out", str(folder.path)),
            *("--node", str(node), "--launched", str(os.getpid()), str(theirs)),
        ],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=(theirs, lock),  # the run stays locked for as long as one of its nodes lives
    )
    os.close(theirs)
    return _Child(node, name, process, reports)


def _watch(config: RunConfig, children: list[_Child]) -> None:
    """Follow the nodes until each has ended and all that they said is read. Those that still run are stopped
    where one fails before all have met, and where they have been left out by all that have ended."""
    lost: set[int] = set()
    unread: dict[int, bytes] = {}
    with contextlib.ExitStack() as undo:
        progress = undo.enter_context(Progress(config.name, config.iterations))
        selector = undo.enter_context(selectors.DefaultSelector())
        for child in children:
            undo.callback(os.close, child.reports)
            stderr = undo.enter_context(child.process.stderr)
            selector.register(child.reports, selectors.EVENT_READ, (child, True))
            selector.register(stderr.fileno(), selectors.EVENT_READ, (child, False))
        while selector.get_map():
            ready = selector.select(0.2)
            for key, _ in ready:
                child, told = key.data
                if not (data := os.read(key.fd, 1 << 16)):
                    selector.unregister(key.fd)
                *lines, unread[key.fd] = (unread.get(key.fd, b"") + data).split(b"\n")
                for line in lines:
                    if told:
                        lost |= _take(child, json.loads(line))
                    else:
                        child.said.append(line.decode(errors="replace"))
                        progress.say(f"node {child.node}: {child.said[-1]}")
            there = [child for child in children if child.node not in lost]
            if there and all(child.first is not None for child in there):
                done = min(max(child.first, child.step) for child in there)
                progress.show(done, {child.name: child.reward for child in there})
            running = [child for child in children if child.process.poll() is None]
            if not running and not ready:
                break  # something that a node started may still hold its pipes
            if all(child.node in lost for child in running):
                _stop(running, "was left out by the others, and stopped when they had ended")
            met = all(child.first is not None for child in children)
            if not met and any(child.process.returncode for child in children):
                _stop(running, "was stopped since not all nodes had come")


def _take(child: _Child, report: dict) -> set[int]:
    """Note what a node reports; returns the nodes that it has lost."""
    child.first = report.get("first", child.first)
    child.step, child.reward = report.get("step", child.step), report.get("reward", child.reward)
    return {int(node) for node in report.get("lost", ())}


def _stop(children: list[_Child], why: str) -> None:
    for child in children:
        child.stopped = why
        child.process.kill()
