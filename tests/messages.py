"""A good message, by hand, and why a bad one is refused."""

import numpy as np
import pytest

from ftis.swarm.message import Message, MessageError, pack

RUN = b"\x00\x01abcdef"
STOP, VOCAB = 9, 10
MESSAGE = Message(
    RUN, 7, 3,
    # Completions of 3, 1 and 2 tokens; the last reached its budget without a stop token.
    pack(
        [0, 0, 2], [1, 4, 0],
        [np.array([5, 6, STOP]), np.array([STOP]), np.array([7, 8])],
        [np.array([-0.5, -1.25, 0.0]), np.array([-3.0]), np.array([-0.125, -80.0])],
        [1.0, 0.0, 0.0], [True, True, False],
    ),
)  # fmt: skip


def reason(call, *args) -> str:
    with pytest.raises(MessageError) as error:
        call(*args)
    return error.value.reason
