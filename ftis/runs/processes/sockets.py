"""Messages between processes, over TCP.

Why TCP and not torch.distributed: messages are bytes on the CPU, each goes to every other node once, and
nodes may be lost. A gloo or nccl group is lost with any of its members, and its collectives need every size
in advance; a connection a pair loses one peer and nothing else, as soon as that peer's process ends.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ftis.runs.processes.membership import Roll
from ftis.swarm.message import HEADER_BYTES, MessageError, message_size
from ftis.swarm.transport import Lost

log = logging.getLogger(__name__)


@dataclass
class _Peer:
    node: int
    connection: socket.socket
    outbox: bytes | memoryview = b""
    """What hasn't gone out yet."""
    inbox: bytearray = field(default_factory=bytearray)
    size: int | None = None
    """Of the message that is coming in, once its header has come."""

    @property
    def complete(self) -> bool:
        return len(self.inbox) == self.size


class SocketTransport:
    """One node in this process, a TCP connection to each other.

    Nothing but messages goes over a connection, so a header, which tells its message's size, follows each
    message. Bytes move during `post` and `collect` only: a node that computes lets the others wait, which
    they do anyway, and holds no more than one message of each. `most_bytes` bounds a message before it is
    read. A peer that closes its connection, sends what isn't a message or lets a deadline pass is left out
    for good.
    """

    def __init__(
        self, node: int, connections: Mapping[int, socket.socket], roll: Roll, most_bytes: int
    ) -> None:
        self.node, self.roll, self.most_bytes = node, roll, most_bytes
        self.lost: Lost = roll.read()
        self._step, self._sent = -1, 0
        self._peers = {}
        for peer, connection in connections.items():
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._peers[peer] = _Peer(peer, connection)
        self._leave(self.lost)

    def post(self, step: int, node: int, data: bytes) -> None:
        self._step, self._sent = step, 0
        for peer in list(self._peers.values()):
            peer.outbox = memoryview(data)
            self._write(peer)

    def collect(self, step: int, node: int, deadline: float | None = None) -> list[tuple[int, bytes]]:
        end = time.monotonic() + (float("inf") if deadline is None else deadline)
        self.lost = self.roll.read()
        self._leave(self.lost)
        received = {}
        while busy := [p for p in self._peers.values() if p.outbox or not p.complete]:
            left = end - time.monotonic()
            if left <= 0:
                for peer in busy:
                    what = "didn't take a message" if peer.complete else "sent no message"
                    self._lose(peer, f"it {what} within {deadline:g} s")
                break
            # A new selector each time: few peers, and what is awaited of each changes.
            with selectors.DefaultSelector() as selector:
                for peer in busy:
                    events = (selectors.EVENT_WRITE if peer.outbox else 0) | (
                        selectors.EVENT_READ if not peer.complete else 0
                    )
                    selector.register(peer.connection, events, peer)
                ready = selector.select(min(left, 60.0))
            for key, events in ready:
                if events & selectors.EVENT_WRITE:
                    self._write(key.data)
                if events & selectors.EVENT_READ:
                    self._read(key.data)
                if key.data.complete:
                    received[key.data.node] = bytes(key.data.inbox)
        for peer in self._peers.values():
            peer.inbox, peer.size = bytearray(), None
        return sorted(received.items())

    def sent(self, step: int, node: int) -> int:
        """What the connections took."""
        return self._sent if step == self._step else 0

    def close(self) -> None:
        for peer in self._peers.values():
            peer.connection.close()
        self._peers = {}

    def _write(self, peer: _Peer) -> None:
        while peer.outbox:
            try:
                count = peer.connection.send(peer.outbox)
            except BlockingIOError:
                return
            except OSError:  # it takes nothing more; what it has sent is still there to be read, then its end
                peer.outbox = b""
                return
            self._sent += count
            peer.outbox = peer.outbox[count:]

    def _read(self, peer: _Peer) -> None:
        try:
            while not peer.complete:
                part = peer.connection.recv(min((peer.size or HEADER_BYTES) - len(peer.inbox), 1 << 20))
                if not part:
                    raise ConnectionError("closed by the other side")
                peer.inbox += part
                if peer.size is None and len(peer.inbox) == HEADER_BYTES:
                    peer.size = message_size(peer.inbox)
                    if peer.size > self.most_bytes:
                        raise MessageError(
                            "size", f"{peer.size} bytes, at most {self.most_bytes} are possible"
                        )
        except BlockingIOError:
            pass
        except MessageError as error:
            self._lose(peer, f"it sent what is not a message of this run ({error})")
        except OSError as error:
            self._lose(peer, f"its connection ended ({error.strerror or error})")

    def _lose(self, peer: _Peer, why: str) -> None:
        """Without it from the first iteration whose message it hasn't sent."""
        if peer.node not in self._peers:  # another node has left it out, as was seen a moment ago
            return
        first = self._step + peer.complete
        self.lost = self.roll.strike(peer.node, first)
        log.info("node %d is left out from iteration %d: %s", peer.node, first, why)
        self._leave(self.lost)

    def _leave(self, lost: Lost) -> None:
        for node in lost.keys() & self._peers.keys():
            with contextlib.suppress(OSError):
                self._peers.pop(node).connection.close()
