"""How messages reach the other nodes: in one process, over sockets, and how processes find each other."""

import json
import os
import socket
import stat
import struct
import threading
import time
import tracemalloc

import numpy as np
import pytest

from ftis.errors import UserError
from ftis.runs.processes import rendezvous
from ftis.runs.processes.membership import LeftOut, Roll, agree
from ftis.runs.processes.rendezvous import Facts, address_file, join
from ftis.runs.processes.sockets import SocketTransport
from ftis.swarm.message import HEADER_BYTES, Message, encode, pack
from ftis.swarm.transport import LocalTransport

RUN = b"\x01run\x00\x00id"
LIMIT = 1 << 24


def message(step: int, node: int, tokens: int = 3) -> bytes:
    draws = np.random.default_rng(node)  # what doesn't compress
    ids, logprobs = draws.integers(0, 1 << 18, tokens), draws.standard_normal(tokens)
    return encode(Message(RUN, step, node, pack([0], [0], [ids], [logprobs], [0.0], [True])), 1 << 18)


def facts(node: int) -> Facts:
    return Facts("digest", (node, 7), ((4, {}), (2, {5: 1})), 0)


def in_threads(calls: list) -> list:
    """Run the calls at the same time; what each returned, or the exception that it raised."""
    results = [None] * len(calls)

    def run(k):
        try:
            results[k] = calls[k]()
        except Exception as error:
            results[k] = error

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


def meet(folder, nodes: int, run=RUN, timeout: float = 30.0):
    for k in range(nodes):
        (folder / f"node{k}").mkdir(parents=True, exist_ok=True)
    return [lambda k=k: join(folder, k, nodes, run, facts(k), "127.0.0.1", timeout) for k in range(nodes)]


@pytest.fixture
def mesh(tmp_path):
    """Build the transports of n nodes that have met."""
    made = []

    def build(nodes: int) -> list[SocketTransport]:
        for k, met in enumerate(in_threads(meet(tmp_path, nodes))):
            roll = Roll(tmp_path / "lost", k, {})
            made.append(SocketTransport(k, {peer: c for peer, (c, _) in met.items()}, roll, LIMIT))
        return made

    yield build
    for transport in made:
        transport.close()


def exchange(transports, step, messages, deadline=30.0):
    """Every node posts and collects; what each collected, or its exception."""

    def one(k):
        transports[k].post(step, k, messages[k])
        return transports[k].collect(step, k, deadline)

    return in_threads([lambda k=k: one(k) for k in messages])


# ------------------------------------------------------------------------------------------- in one process


def test_local_transport_gives_each_node_the_others_messages_by_sender():
    transport = LocalTransport()
    for node in (2, 0, 1):
        transport.post(5, node, bytes([node]))
    assert transport.collect(5, 1) == [(0, b"\x00"), (2, b"\x02")]
    assert transport.collect(5, 0, 1.0) == [(1, b"\x01"), (2, b"\x02")]
    assert transport.sent(5, 1) == 2, "a copy for each of the others"
    assert transport.collect(6, 0) == []
    transport.post(6, 0, b"new")
    assert transport.collect(6, 1) == [(0, b"new")]  # nothing of iteration 5 is left


# ------------------------------------------------------------------------------------------- over sockets


def test_sockets_carry_the_messages_and_nothing_else(mesh):
    """Messages larger than any socket buffer, both ways at once; what went out is what the messages hold."""
    transports = mesh(3)
    for step, tokens in ((1, 3), (2, 1_000_000)):
        messages = {k: message(step, k, tokens + k) for k in range(3)}
        for k, got in enumerate(exchange(transports, step, messages)):
            assert got == [(j, messages[j]) for j in range(3) if j != k]
            assert transports[k].sent(step, k) == 2 * len(messages[k])
            assert transports[k].lost == {}


def test_a_peer_that_ends_is_left_out_after_its_last_message(mesh):
    transports = mesh(3)
    transports[2].post(1, 2, message(1, 2))
    transports[2].close()
    messages = {k: message(1, k) for k in range(2)}
    assert [len(got) for got in exchange(transports, 1, messages, None)] == [2, 2]
    messages = {k: message(2, k) for k in range(2)}
    assert exchange(transports, 2, messages, None) == [[(1, messages[1])], [(0, messages[0])]]
    assert [t.lost for t in transports[:2]] == [{2: 2}, {2: 2}]
    assert transports[0].sent(2, 0) <= 2 * len(messages[0])
    messages = {k: message(3, k) for k in range(2)}
    assert exchange(transports, 3, messages, None) == [[(1, messages[1])], [(0, messages[0])]]
    assert transports[0].sent(3, 0) == len(messages[0]), "nothing goes to who is out"


def test_a_silent_peer_is_left_out_at_the_deadline_and_learns_of_it(mesh):
    transports = mesh(3)
    messages = {k: message(1, k) for k in range(2)}
    began = time.monotonic()
    assert exchange(transports, 1, messages, 1.0) == [[(1, messages[1])], [(0, messages[0])]]
    assert 0.9 < time.monotonic() - began < 30
    assert transports[0].lost == transports[1].lost == {2: 1}
    transports[2].post(1, 2, message(1, 2))
    with pytest.raises(LeftOut, match="node 2 was left out by the others from iteration 1"):
        transports[2].collect(1, 2, 5.0)


def test_a_peer_that_takes_nothing_is_left_out_too(mesh):
    transports = mesh(2)
    small, large = message(1, 1), message(1, 0, 3_000_000)
    transports[1].post(1, 1, small)  # and never reads
    transports[0].post(1, 0, large)
    assert transports[0].collect(1, 0, 1.0) == [(1, small)], "what it has sent still counts"
    assert transports[0].lost == {1: 2}
    assert 0 < transports[0].sent(1, 0) < len(large), "only what went out is counted"


@pytest.mark.parametrize("case", ["not a message", "another version", "too large", "cut off"])
def test_what_is_not_a_message_costs_a_peer_its_place(mesh, case, capsys):
    transports = mesh(3)
    good = message(1, 2)
    bad = {
        "not a message": b"\x80\x04" + b"pickle" * 20,
        "another version": good[:4] + struct.pack("<H", 99) + good[6:],
        "too large": good[: HEADER_BYTES - 4] + struct.pack("<I", LIMIT),
        "cut off": good[:-1],
    }[case]
    transports[2]._peers[0].connection.sendall(bad)
    transports[2]._peers[1].connection.sendall(good)
    if case == "cut off":
        transports[2].close()
    messages = {k: message(1, k) for k in range(2)}
    tracemalloc.start()
    try:
        first, second = exchange(transports, 1, messages)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000, "no memory for what a header claims"
    finally:
        tracemalloc.stop()
    assert first == [(1, messages[1])] and transports[0].lost == {2: 1}
    assert (0, messages[0]) in second
    assert "node 2 is left out from iteration 1: " in capsys.readouterr().err


# ------------------------------------------------------------------------------------------- who is out


def test_of_two_nodes_that_lose_sight_of_each_other_one_goes_on(tmp_path):
    rolls = [Roll(tmp_path / "lost", k, {}) for k in range(2)]
    outcomes = in_threads([lambda k=k: rolls[k].strike(1 - k, 3 + k) for k in range(2)])
    assert sorted(isinstance(o, LeftOut) for o in outcomes) == [False, True]
    stays = next(k for k in range(2) if not isinstance(outcomes[k], LeftOut))
    assert outcomes[stays] == rolls[stays].read() == {1 - stays: 3 + stays}
    with pytest.raises(LeftOut):
        rolls[1 - stays].read()


def test_the_first_entry_stands_and_those_before_are_kept(tmp_path):
    rolls = [Roll(tmp_path / "lost", k, {3: 2}) for k in range(2)]
    assert rolls[0].strike(2, 5) == {3: 2, 2: 5}
    assert rolls[1].strike(2, 6) == {3: 2, 2: 5}
    with open(tmp_path / "lost", "a") as handle:
        handle.write("0 ")  # half an entry
    assert rolls[0].read() == {3: 2, 2: 5}


def test_who_was_out_at_an_earlier_start_is_not_out_now(tmp_path):
    path = tmp_path / "lost"
    path.write_text("1 6\n0 ")  # and half an entry, cut off by a kill
    rolls = [Roll(path, k, {}, path.stat().st_size) for k in range(2)]
    assert rolls[0].read() == rolls[1].read() == {}
    assert rolls[1].strike(2, 9) == rolls[0].read() == {2: 9}
    assert path.read_text().startswith("1 6\n"), "who reads an earlier one still finds it"


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        ({0: [], 1: []}, (0, {})),
        ({0: [(4, {}), (2, {})], 1: [(4, {}), (2, {})]}, (4, {})),
        ({0: [(4, {}), (2, {})], 1: [(2, {})]}, (2, {})),  # one is ahead, or the other's newest is damaged
        ({0: [(4, {}), (2, {})], 1: []}, (0, {})),
        # One was lost: the others' newest, unless all still have one from before.
        ({0: [(8, {2: 5}), (6, {2: 5})], 1: [(8, {2: 5}), (6, {2: 5})], 2: [(4, {})]}, (8, {2: 5})),
        ({0: [(6, {2: 5}), (4, {})], 1: [(6, {2: 5}), (4, {})], 2: [(4, {}), (2, {})]}, (4, {})),
        # One had noticed and the other not yet.
        ({0: [(6, {2: 6})], 1: [(6, {})], 2: []}, (6, {2: 6})),
        ({0: [(6, {2: 7})], 1: [(6, {})], 2: [(6, {})]}, (6, {})),  # lost after its checkpoint
        ({0: [(8, {1: 5, 2: 5})], 1: [], 2: []}, (8, {1: 5, 2: 5})),
        ({0: [(8, {2: 5})], 1: [], 2: []}, (0, {})),
    ],
)
def test_where_to_go_on_from(offers, expected):
    assert agree(offers) == expected


# ------------------------------------------------------------------------------------------- finding each
# other


def test_nodes_meet_in_pairs_and_leave_no_secret(tmp_path):
    met = in_threads(meet(tmp_path, 4))
    for k, peers in enumerate(met):
        assert {peer: told for peer, (_, told) in peers.items()} == {j: facts(j) for j in range(4) if j != k}
    for k in range(4):
        for peer, (connection, _) in met[k].items():
            assert connection.getpeername() == met[peer][k][0].getsockname()
    for peers in met:
        for connection, _ in peers.values():
            connection.close()
    assert not list(tmp_path.rglob("address*"))


def test_an_address_is_for_its_owner_only_and_a_stale_one_is_tried_again(tmp_path):
    calls = meet(tmp_path, 2)
    with socket.create_server(("127.0.0.1", 0)) as stranger:  # took the port over, and says nothing
        stale = {"host": "127.0.0.1", "port": stranger.getsockname()[1], "secret": "00" * 32}
        address_file(tmp_path, 0).write_text(json.dumps(stale))

        def late():
            time.sleep(1.0)
            return calls[0]()

        seen = []

        def look():
            while not seen or json.loads(address_file(tmp_path, 0).read_text()) == stale:
                seen.append(True)
                time.sleep(0.01)
            return stat.S_IMODE(os.stat(address_file(tmp_path, 0)).st_mode)

        first, second, mode = in_threads([late, calls[1], look])
    assert set(first) == {1} and set(second) == {0}
    assert mode == 0o600 or isinstance(mode, FileNotFoundError)  # they may have met before the look
    for met in (first, second):
        for connection, _ in met.values():
            connection.close()


@pytest.mark.parametrize("case", ["silent", "noise", "another run", "no secret", "not awaited", "huge facts"])
def test_strangers_are_refused_and_the_node_still_comes(tmp_path, monkeypatch, capsys, case):
    monkeypatch.setattr(rendezvous, "ANSWER_S", 0.5)
    calls = meet(tmp_path, 2)

    def stranger():
        while not address_file(tmp_path, 0).exists():
            time.sleep(0.01)
        address = json.loads(address_file(tmp_path, 0).read_text())
        with socket.create_connection((address["host"], address["port"]), timeout=20) as connection:
            if case == "silent":
                return connection.recv(1)
            if case == "noise":
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return connection.recv(1)
            run = b"otherrun" if case == "another run" else RUN
            node = 5 if case == "not awaited" else 1
            hello = rendezvous._HELLO.pack(rendezvous.MAGIC, rendezvous.VERSION, run, node, bytes(16))
            connection.sendall(hello)
            if case == "another run":
                return connection.recv(1)
            challenge = connection.recv(48, socket.MSG_WAITALL)[:16]
            secret = bytes(32) if case == "no secret" else bytes.fromhex(address["secret"])
            connection.sendall(rendezvous._proof(secret, b"caller", hello, challenge))
            if case == "huge facts":
                connection.sendall(struct.pack("<I", 2**31))
            return connection.recv(1)

    def second():
        time.sleep(0.3)
        return calls[1]()

    first, second, answer = in_threads([calls[0], second, stranger])
    assert set(first) == {1} and set(second) == {0}
    assert answer == b"" or isinstance(answer, ConnectionResetError)
    why = {
        "silent": "timed out", "noise": "doesn't speak this "
                                        "protocol", "another run": "belongs to another run",
        "no secret": "proof is wrong", "not awaited": "node 5 isn't awaited", "huge facts": "facts of 2147483648 bytes",
    }[case]  # fmt: skip
    assert (
        f"node 0 refused a caller: {'it ' * (case in ('noise', 'another run'))}"
        in (err := capsys.readouterr().err)
        and why in err
    )
    for met in (first, second):
        for connection, _ in met.values():
            connection.close()


def test_a_node_that_does_not_come_is_named(tmp_path):
    with pytest.raises(UserError, match=r"node 1 hasn't come within 0 s; start one process for each node"):
        meet(tmp_path, 2, timeout=0.3)[0]()
    with pytest.raises(UserError, match="node 0 hasn't come"):
        meet(tmp_path, 2, timeout=0.3)[1]()
    with pytest.raises(UserError, match="--host: can't listen on '203.0.113.1'"):
        join(tmp_path, 0, 2, RUN, facts(0), "203.0.113.1", 1.0)
