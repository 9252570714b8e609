"""How the processes of a run find each other and make sure who is who.

Each node listens, and puts its address and a fresh secret into the run's folder, readable by its owner only.
A node calls those before it and answers those after it, so that every pair ends with one TCP connection. Both
sides prove that they can read the folder: the caller by an HMAC under the secret over the other's challenge,
the called by one over the caller's. The run's id is part of both. Then each tells the facts that all must
agree on, as JSON. Connections are neither encrypted nor signed afterwards: use a network that you trust.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import secrets
import socket
import struct
import time
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ftis.errors import Interrupted, UserError

MAGIC, VERSION = b"FTIH", 2
_HELLO = struct.Struct("<4sH8sH16s")  # magic, version, run, node, challenge
_LENGTH = struct.Struct("<I")
_PROOF_BYTES = 32
MOST_FACTS = 1 << 16
"""Bytes of a node's facts."""
ANSWER_S = 10.0
"""Seconds for each answer of a caller; a stranger who says nothing holds nobody up for longer."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Facts:
    """What a node tells the others before it trains with them."""

    tokenizer: str
    """Digest of its vocabulary; must be the same everywhere."""
    stop_ids: tuple[int, ...]
    checkpoints: tuple[tuple[int, dict[int, int]], ...]
    """(iteration, who was out by then) of its sound checkpoints."""
    roll_bytes: int
    """Size of the roll (`ftis.runs.processes.membership`) when it started: what is there is of earlier
    starts."""


_FACTS = TypeAdapter(Facts)


class _Refused(Exception):
    """The other side isn't the node that it should be."""


def address_file(folder: Path, node: int) -> Path:
    """Where a node's address is found, in the run's state."""
    return folder / f"node{node}" / "address.json"


def join(
    folder: Path, node: int, nodes: int, run: bytes, facts: Facts, host: str, timeout: float
) -> dict[int, tuple[socket.socket, Facts]]:
    """Meet the other `nodes` - 1 nodes of the run whose state is in `folder`: a connection and the facts of
    each.

    `host` is the address under which the others reach this process; `run` the run's id, 8 bytes. Raises
    UserError where a node doesn't come within `timeout` seconds, or this one can't listen on `host`.
    """
    end = time.monotonic() + timeout
    secret = secrets.token_bytes(32)
    met: dict[int, tuple[socket.socket, Facts]] = {}
    try:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        server = socket.create_server((host, 0), family=family, backlog=nodes)
    except OSError as error:
        raise UserError(
            f"--host: can't listen on {host!r} ({error.strerror}); give an address of this machine that the "
            "other "
            "nodes can reach"
        ) from None
    file = address_file(folder, node)
    with server, contextlib.ExitStack() as undo:
        undo.callback(lambda: [connection.close() for connection, _ in met.values()])
        _announce(file, host, server.getsockname()[1], secret)
        try:
            for peer in range(node):
                met[peer] = _call(address_file(folder, peer), node, peer, run, facts, end)
            while missing := sorted(set(range(nodes)) - {node} - met.keys()):
                server.settimeout(max(0.01, end - time.monotonic()))
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    raise _absent(missing[0], timeout) from None
                _answer(connection, set(missing), node, run, secret, facts, met)
        finally:
            file.unlink(missing_ok=True)
        undo.pop_all()
    return met


def _absent(peer: int, timeout: float) -> UserError:
    return Interrupted(f"node {peer} hasn't come within {timeout:.0f} s; start one process for each node")


def _announce(path: Path, host: str, port: int, secret: bytes) -> None:
    """Write the address in one step, readable by the owner alone from the start."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as handle:
        json.dump({"host": host, "port": port, "secret": secret.hex()}, handle)
    os.replace(partial, path)


def _call(
    path: Path, node: int, peer: int, run: bytes, facts: Facts, end: float
) -> tuple[socket.socket, Facts]:
    """Connect to a node that answers; its address may be that of an earlier life, and is then tried again."""
    began = time.monotonic()
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), contextlib.ExitStack() as undo:
            written = path.read_bytes()
            address = json.loads(written)
            secret = bytes.fromhex(address["secret"])
            connection = socket.create_connection((address["host"], address["port"]), timeout=ANSWER_S)
            undo.callback(connection.close)
            try:
                hello = _HELLO.pack(MAGIC, VERSION, run, node, secrets.token_bytes(16))
                connection.sendall(hello)
                # It answers once it has met those before it; until then it must still be there.
                connection.settimeout(1.0)
                while True:
                    try:
                        challenge = _receive(connection, 1)
                        break
                    except TimeoutError:
                        if path.read_bytes() != written or time.monotonic() > end:
                            raise
                connection.settimeout(ANSWER_S)
                challenge += _receive(connection, 15)
                if not hmac.compare_digest(
                    _receive(connection, _PROOF_BYTES), _proof(secret, b"called", hello, challenge)
                ):
                    raise _Refused("its proof is wrong")
                connection.sendall(_proof(secret, b"caller", hello, challenge))
                _tell(connection, facts)
                theirs = _listen(connection)
                undo.pop_all()
                return connection, theirs
            except _Refused as error:
                log.info("node %d at %s is refused: %s", peer, address["host"], error)
                time.sleep(1.0)
        time.sleep(0.1)
    raise _absent(peer, end - began)


def _answer(
    connection: socket.socket, missing: set[int], node: int, run: bytes, secret: bytes, facts: Facts,
    met: dict[int, tuple[socket.socket, Facts]],
) -> None:  # fmt: skip
    """Let a caller in if it is one of the nodes that are `missing`; else close, and say why."""
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)
        try:
            connection.settimeout(ANSWER_S)
            hello = _receive(connection, _HELLO.size)
            magic, version, theirs, peer, _challenge = _HELLO.unpack(hello)
            if magic != MAGIC or version != VERSION:
                raise _Refused("it doesn't speak this protocol")
            if theirs != run:
                raise _Refused("it belongs to another run")
            challenge = secrets.token_bytes(16)
            connection.sendall(challenge + _proof(secret, b"called", hello, challenge))
            if not hmac.compare_digest(
                _receive(connection, _PROOF_BYTES), _proof(secret, b"caller", hello, challenge)
            ):
                raise _Refused("its proof is wrong")
            if peer not in missing:
                raise _Refused(f"node {peer} isn't awaited")
            told = _listen(connection)
            _tell(connection, facts)
            met[peer] = connection, told
            undo.pop_all()
        except (_Refused, OSError) as error:
            log.info("node %d refused a caller: %s", node, error)


def _proof(secret: bytes, role: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.digest(secret, role + hello + challenge, "sha256")


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return data


def _tell(connection: socket.socket, facts: Facts) -> None:
    data = _FACTS.dump_json(facts)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _listen(connection: socket.socket) -> Facts:
    (size,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
    if size > MOST_FACTS:
        raise _Refused(f"facts of {size} bytes")
    try:
        return _FACTS.validate_json(_receive(connection, size))
    except ValidationError as error:
        raise _Refused(f"its facts are not valid: {error.errors()[0]['msg']}") from None
