"""How nodes' messages reach each other: the protocol, and its form in one process.

`ftis.runs.processes.sockets` has the one between processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Lost = Mapping[int, int]
"""Nodes that were left out: node -> the first iteration without it."""


class Transport(Protocol):
    """How a node's messages reach the others. A slow or dead peer is a message that doesn't come."""

    lost: Lost
    """Peers that are gone, with the first iteration without them."""

    def post(self, step: int, node: int, data: bytes) -> None:
        """Offer a node's message of an iteration to all others."""

    def collect(self, step: int, node: int, deadline: float | None) -> list[tuple[int, bytes]]:
        """The others' messages of an iteration, (sender, bytes) by sender, as far as they came within
        `deadline` seconds (None: wait for all)."""

    def sent(self, step: int, node: int) -> int:
        """Bytes that a node's message of an iteration took to reach the others; known once it has
        collected."""


class LocalTransport:
    """All nodes in this process; every node has posted before the first collects."""

    def __init__(self) -> None:
        self.lost: Lost = {}
        self._step = -1
        self._posted: dict[int, bytes] = {}

    def post(self, step: int, node: int, data: bytes) -> None:
        if step != self._step:
            self._step, self._posted = step, {}
        self._posted[node] = data

    def collect(self, step: int, node: int, deadline: float | None = None) -> list[tuple[int, bytes]]:
        if step != self._step:
            return []
        return [(sender, data) for sender, data in sorted(self._posted.items()) if sender != node]

    def sent(self, step: int, node: int) -> int:
        """What it would take: one copy for each other node."""
        return (len(self._posted) - 1) * len(self._posted[node]) if step == self._step else 0
