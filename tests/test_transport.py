"""How messages reach the other nodes."""

from ftis.transport import LocalTransport


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
