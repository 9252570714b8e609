"""Who is still in a run whose nodes are processes, as they all agree.

Two nodes that lose sight of each other must not both go on as the survivor, so a node is left out by an entry
in a file of the run's folder, made under a lock, and no entry is made by a node that has one itself.
"""

from __future__ import annotations

import fcntl
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftis.errors import Interrupted
from ftis.swarm.transport import Lost


class LeftOut(Interrupted):
    """This process's node was left out by the others."""


class Roll:
    """The nodes that were left out since the run was (re)started, and those that were out `before`.

    Entries are only ever added to the file: those in its first `earlier` bytes are of earlier starts. Nobody
    removes them, since a node that starts can't be sure that no other is reading them.
    """

    def __init__(self, path: Path, node: int, before: Lost, earlier: int = 0):
        self.path, self.node, self.before, self.earlier = path, node, before, earlier

    def read(self) -> dict[int, int]:
        """Everyone who is out. Raises LeftOut if this node is among them."""
        with open(self.path, "a+") as handle:
            return self._read(handle)

    def strike(self, peer: int, iteration: int) -> dict[int, int]:
        """Leave a peer out from an iteration on, unless it is out already; as `read`."""
        with open(self.path, "a+") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            lost = self._read(handle)
            if peer not in lost:
                handle.write(f"{peer} {iteration}\n")
                lost[peer] = iteration
        return lost

    def _read(self, handle) -> dict[int, int]:
        handle.seek(self.earlier)
        lines = [line.split() for line in handle if line.endswith("\n")]  # not one that is being written
        lost = {**self.before, **{int(peer): int(iteration) for peer, iteration in lines}}
        if self.node in lost:
            raise LeftOut(
                f"node {self.node} was left out by the others from iteration {lost[self.node]}: it kept them "
                "waiting longer than `deadline`, or they could not reach it"
            )
        return lost


def agree(offers: Mapping[int, Sequence[tuple[int, Lost]]]) -> tuple[int, dict[int, int]]:
    """Where to go on from: the iteration and who is out by then.

    `offers` holds for each node its checkpoints as (iteration, who was out when it was made). An iteration
    will do when every node offers it, apart from those that were out. Most nodes count first, then the newest
    iteration: a loss just before the end of everything is undone by going back to before it. Where none will
    do, everybody begins anew, at iteration 0.
    """
    best: tuple[int, int, dict[int, int]] = (0, 0, {})
    for step in {step for saved in offers.values() for step, _ in saved}:
        made = {node: lost for node, saved in offers.items() for at, lost in saved if at == step}
        out: dict[int, int] = {}
        for lost in made.values():
            for node, since in lost.items():
                if since <= step:
                    out[node] = min(since, out.get(node, since))
        staying = offers.keys() - out.keys()
        if staying <= made.keys() and (len(staying), step) > best[:2]:
            best = (len(staying), step, out)
    return best[1:]
