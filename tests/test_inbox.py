"""What a node refuses from a peer."""

from dataclasses import fields, replace

import numpy as np
import pytest

from ftis.inbox import Expected, check, receive
from ftis.message import Message, Rollouts, decode, encode, pack

from .test_message import MESSAGE, RUN, STOP, VOCAB, reason

EXPECTED = Expected(
    run=RUN, step=7, node=3, share={(0, 1): 5, (0, 4): 5, (2, 0): 2}, vocab_size=VOCAB,
    stop_ids=frozenset({STOP}), rewards=frozenset({0.0, 1.0}),
)  # fmt: skip


def changed(**arrays) -> Message:
    """The good message with some of its arrays replaced, as it arrives."""
    given = {k: np.asarray(v, getattr(MESSAGE.rollouts, k).dtype) for k, v in arrays.items()}
    return decode(
        encode(replace(MESSAGE, rollouts=replace(MESSAGE.rollouts, **given)), VOCAB), VOCAB, 10, 100
    )


REFUSED = {
    "lengths that miss a token": ({"length": [3, 1, 1]}, "lengths"),
    "lengths beyond the tokens": ({"length": [3, 1, 3]}, "lengths"),
    "an empty completion": ({"length": [4, 0, 2]}, "lengths"),
    "a negative length": ({"length": [7, -3, 2]}, "lengths"),
    "lengths that overflow 32 bits to the right sum": ({"length": [2**31 - 1, 2**31 - 1, 8]}, "lengths"),
    "a completion sent twice": ({"sample": [1, 1, 0]}, "duplicate"),
    "another node's prompt": ({"prompt": [0, 0, 1]}, "assignment"),
    "a sample beyond the group": ({"sample": [1, 12, 0]}, "assignment"),
    "a negative prompt": ({"prompt": [0, 0, -1]}, "assignment"),
    "an id at the vocabulary's end": ({"tokens": [5, 10, 9, 9, 7, 8]}, "token_id"),
    "the largest id that the width holds": ({"tokens": [5, 15, 9, 9, 7, 8]}, "token_id"),
    "a NaN log-prob": ({"logprobs": [-1, np.nan, -1, -1, -1, -1]}, "logprob"),
    "an infinite log-prob": ({"logprobs": [-1, -np.inf, -1, -1, -1, -1]}, "logprob"),
    "a log-prob whose sums overflow": ({"logprobs": [-1, -1e38, -1, -1, -1, -1]}, "logprob"),
    "a positively infinite log-prob": ({"logprobs": [-1, np.inf, -1, -1, -1, -1]}, "logprob"),
    "a probability above 1": ({"logprobs": [-1, -1, -1, -1, -1, 1e-3]}, "logprob"),
    "a reward that the grader can't give": ({"reward": [2, 0, 0]}, "reward"),
    "a negative reward": ({"reward": [-1, 0, 0]}, "reward"),
    "a NaN reward": ({"reward": [np.nan, 0, 0]}, "reward"),
    "a stop token inside": ({"tokens": [STOP, 6, 9, 9, 7, 8]}, "stop_token"),
    "a stop token inside an unfinished one": ({"tokens": [5, 6, 9, 9, STOP, 8]}, "stop_token"),
    "finished without a stop token": ({"tokens": [5, 6, 8, 9, 7, 8]}, "stop_token"),
    "unfinished with a stop token at its end": ({"tokens": [5, 6, 9, 9, 7, STOP]}, "stop_token"),
    "stop tokens that only add up": ({"tokens": [STOP, 6, 8, 9, 7, 8]}, "stop_token"),
    "unfinished before its budget": (
        {"finished": [True, False, False], "tokens": [5, 6, 9, 4, 7, 8]},
        "truncation",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_check_refuses(case):
    arrays, expected = REFUSED[case]
    assert reason(check, changed(**arrays), EXPECTED) == expected


def test_check_refuses_the_wrong_run_step_and_sender():
    for name, value in (("run", b"otherrun"), ("step", 6), ("node", 2)):
        assert reason(check, replace(MESSAGE, **{name: value}), EXPECTED) == f"other_{name}"


def test_check_refuses_a_share_that_is_not_whole():
    r = MESSAGE.rollouts
    part = pack(
        [0, 2], [1, 0], [r.tokens[:3], r.tokens[4:]], [r.logprobs[:3], r.logprobs[4:]], [1, 0], [True, False]
    )
    assert reason(check, replace(MESSAGE, rollouts=part), EXPECTED) == "assignment"
    nothing = Rollouts(*(getattr(r, f.name)[:0] for f in fields(Rollouts)))
    assert reason(check, replace(MESSAGE, rollouts=nothing), EXPECTED) == "lengths"


def test_check_refuses_a_completion_beyond_its_budget():
    for budget in ({(0, 1): 2, (0, 4): 5, (2, 0): 2}, {(0, 1): 5, (0, 4): 5, (2, 0): 1}):
        assert reason(check, MESSAGE, replace(EXPECTED, share=budget)) == "too_long"


def test_check_takes_any_order_and_the_edges():
    # A completion may end on the last token of its budget; probability 1 and id 0 are possible.
    check(MESSAGE, replace(EXPECTED, share={(2, 0): 2, (0, 4): 1, (0, 1): 3}))
    check(changed(tokens=[0, 0, 9, 9, 0, 0], logprobs=[0, 0, 0, -0.0, 0, 0]), EXPECTED)
    check(changed(tokens=[5, 6, 9, 4, 7, 8]), replace(EXPECTED, stop_ids=frozenset({4, 9})))  # any stop token


def test_receive_reads_and_checks():
    assert receive(encode(MESSAGE, VOCAB), EXPECTED).length.tolist() == [3, 1, 2]
    assert reason(receive, encode(MESSAGE, VOCAB), replace(EXPECTED, step=6)) == "other_step"
    assert reason(receive, encode(MESSAGE, VOCAB), replace(EXPECTED, share={(0, 1): 5})) == "too_large"
    assert reason(receive, b"", EXPECTED) == "too_short"
