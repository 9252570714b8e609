"""What a node refuses from a peer."""

import json
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

from ftis.swarm.inbox import Expected, Inbox, check, faults, receive
from ftis.swarm.message import Message, Rollouts, decode, encode, pack
from tests.messages import MESSAGE, RUN, STOP, VOCAB, reason

EXPECTED = Expected(
    run=RUN, step=7, node=3, share={(0, 1): 5, (0, 4): 5, (2, 0): 2}, vocab_size=VOCAB,
    stop_ids=frozenset({STOP}),
)  # fmt: skip


def changed(**arrays) -> Message:
    """The good message with some of its arrays replaced, as it arrives."""
    given = {k: np.asarray(v, getattr(MESSAGE.rollouts, k).dtype) for k, v in arrays.items()}
    return decode(
        encode(replace(MESSAGE, rollouts=replace(MESSAGE.rollouts, **given)), VOCAB), VOCAB, 10, 100
    )


# A message refused whole.
WHOLE = {
    "lengths that miss a token": ({"length": [3, 1, 1]}, "lengths"),
    "lengths beyond the tokens": ({"length": [3, 1, 3]}, "lengths"),
    "an empty completion": ({"length": [4, 0, 2]}, "lengths"),
    "a negative length": ({"length": [7, -3, 2]}, "lengths"),
    "lengths that overflow 32 bits to the right sum": ({"length": [2**31 - 1, 2**31 - 1, 8]}, "lengths"),
    "a completion sent twice": ({"sample": [1, 1, 0]}, "duplicate"),
    "another node's prompt": ({"prompt": [0, 0, 1]}, "assignment"),
    "a sample beyond the group": ({"sample": [1, 12, 0]}, "assignment"),
    "a negative prompt": ({"prompt": [0, 0, -1]}, "assignment"),
}

# What is wrong with a completion: the reasons for the three of them.
FAULTY = {
    "an id at the vocabulary's end": ({"tokens": [5, 10, 9, 9, 7, 8]}, ["token_id", "", ""]),
    "the largest id that the width holds": ({"tokens": [5, 6, 9, 9, 7, 15]}, ["", "", "token_id"]),
    "a NaN log-prob": ({"logprobs": [-1, np.nan, -1, -1, -1, -1]}, ["logprob", "", ""]),
    "an infinite log-prob": ({"logprobs": [-1, -1, -1, -np.inf, -1, -1]}, ["", "logprob", ""]),
    "a log-prob whose sums overflow": ({"logprobs": [-1, -1, -1, -1, -1e38, -1]}, ["", "", "logprob"]),
    "a positively infinite log-prob": ({"logprobs": [-1, np.inf, -1, -1, -1, -1]}, ["logprob", "", ""]),
    "a probability above 1": ({"logprobs": [-1, -1, -1, -1, -1, 1e-3]}, ["", "", "logprob"]),
    "a reward that the grader can't give": ({"reward": [2, 0, 0]}, ["reward", "", ""]),
    "a negative reward": ({"reward": [0, -1, 0]}, ["", "reward", ""]),
    "a NaN reward": ({"reward": [1, 0, np.nan]}, ["", "", "reward"]),
    "a stop token inside": ({"tokens": [STOP, 6, 9, 9, 7, 8]}, ["stop_token", "", ""]),
    "a stop token inside an unfinished one": ({"tokens": [5, 6, 9, 9, STOP, 8]}, ["", "", "stop_token"]),
    "finished without a stop token": ({"tokens": [5, 6, 8, 9, 7, 8]}, ["stop_token", "", ""]),
    "unfinished with a stop token at its end": ({"tokens": [5, 6, 9, 9, 7, STOP]}, ["", "", "stop_token"]),
    "stop tokens that only add up": ({"tokens": [STOP, 6, 8, 9, 7, 8]}, ["stop_token", "", ""]),
    "unfinished before its budget": (
        {"finished": [True, False, False], "tokens": [5, 6, 9, 4, 7, 8]},
        ["", "truncation", ""],
    ),
    "two that fail": ({"reward": [1, 3, 0], "tokens": [5, 6, 9, 9, 7, 15]}, ["", "reward", "token_id"]),
    "the first of two reasons": ({"reward": [5, 0, 0], "tokens": [15, 6, 9, 9, 7, 8]}, ["token_id", "", ""]),
    "nothing": ({}, ["", "", ""]),
}


@pytest.mark.parametrize("case", WHOLE)
def test_a_message_is_refused_whole(case):
    arrays, expected = WHOLE[case]
    assert reason(check, changed(**arrays), EXPECTED) == expected
    assert reason(receive, encode(changed(**arrays), VOCAB), EXPECTED) == expected


@pytest.mark.parametrize("case", FAULTY)
def test_a_faulty_completion_takes_its_group_with_it_and_nothing_else(case):
    arrays, reasons = FAULTY[case]
    message = changed(**arrays)
    check(message, EXPECTED)
    assert faults(message.rollouts, EXPECTED).tolist() == reasons
    taken, counted = receive(encode(message, VOCAB), EXPECTED)
    assert counted == Counter(r for r in reasons if r)
    kept = [] if any(reasons[:2]) else [(0, 1), (0, 4)]  # the first two are of one group
    kept += [] if reasons[2] else [(2, 0)]
    assert list(zip(taken.prompt.tolist(), taken.sample.tolist())) == kept
    lengths = {(0, 1): 3, (0, 4): 1, (2, 0): 2}
    assert taken.length.tolist() == [lengths[pair] for pair in kept]
    assert len(taken.tokens) == len(taken.logprobs) == sum(lengths[pair] for pair in kept)


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
    for budget, wrong in (({(0, 1): 2, (0, 4): 5, (2, 0): 2}, 0), ({(0, 1): 5, (0, 4): 5, (2, 0): 1}, 2)):
        found = faults(MESSAGE.rollouts, replace(EXPECTED, share=budget)).tolist()
        assert found == ["too_long" if k == wrong else "" for k in range(3)]


def test_the_edges_are_possible():
    # A completion may end on the last token of its budget; probability 1 and id 0 are possible.
    shares = {(2, 0): 2, (0, 4): 1, (0, 1): 3}
    for message, expected in (
        (MESSAGE, replace(EXPECTED, share=shares)),
        (changed(tokens=[0, 0, 9, 9, 0, 0], logprobs=[0, 0, 0, -0.0, 0, 0]), EXPECTED),
        (changed(tokens=[5, 6, 9, 4, 7, 8]), replace(EXPECTED, stop_ids=frozenset({4, 9}))),  # any stop token
    ):
        taken, counted = receive(encode(message, VOCAB), expected)
        assert len(taken) == 3 and not counted


def test_receive_reads_and_checks():
    assert reason(receive, encode(MESSAGE, VOCAB), replace(EXPECTED, step=6)) == "other_step"
    assert reason(receive, encode(MESSAGE, VOCAB), replace(EXPECTED, share={(0, 1): 5})) == "too_large"
    assert reason(receive, b"", EXPECTED) == "too_short"


def test_rewards_are_graded_again():
    data = encode(MESSAGE, VOCAB)
    graded = []

    def grade(*rewards):
        def call(r):
            graded.append(r.split(r.tokens))
            return rewards

        return call

    taken, counted = receive(data, EXPECTED, grade(1.0, 0.0, 0.0))
    assert len(taken) == 3 and not counted
    assert [t.tolist() for t in graded[0]] == [[5, 6, 9], [9], [7, 8]]
    taken, counted = receive(data, EXPECTED, grade(0.0, 0.0, 0.0))
    assert taken.prompt.tolist() == [2] and counted == {"reward_differs": 1}
    taken, counted = receive(data, EXPECTED, grade(1.0, 0.0, None))
    assert taken.prompt.tolist() == [0, 0] and counted == {"unverified": 1}
    # What is refused anyway isn't graded.
    receive(encode(changed(reward=[2, 0, 0]), VOCAB), EXPECTED, grade(0.0))
    assert [t.tolist() for t in graded[-1]] == [[7, 8]]


# ------------------------------------------------------------------------------------------- over iterations


GOOD, BAD = encode(MESSAGE, VOCAB), encode(changed(reward=[2, 0, 0]), VOCAB)


def opened(inbox, step, data, grade=None):
    inbox.begin()
    inbox.put(step, [(3, data)])
    return [inbox.open(step, d, EXPECTED, grade) for _, _, d in inbox.due(step)]


def test_a_peer_that_keeps_failing_is_distrusted(capsys):
    inbox = Inbox(0, patience=3)
    for step, data in enumerate([BAD, b"junk", GOOD, b"junk", BAD], 1):  # never three in a row
        opened(inbox, step, data)
    assert inbox.failing == {3: 2} and not inbox.distrusted
    assert (inbox.refused, inbox.dropped) == ({"reward": 1}, 2)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "iteration 1: node 0 refuses completions of node 3: 1 x reward; 1 of 3 are used"
    assert said[1] == "iteration 2: node 0 refuses the message of node 3: too_short: 4 bytes; 0 of 3 are used"
    (taken,) = opened(inbox, 6, BAD)
    assert len(taken) == 1, "what is sound is used even in the last iteration"
    assert inbox.distrusted == {3: 7}
    assert "node 0 takes nothing of node 3 from iteration 7 on" in capsys.readouterr().err
    assert opened(inbox, 7, GOOD) == [] and not inbox.mail
    assert (inbox.refused, inbox.dropped) == ({}, 0)


def test_mail_that_waits_is_void_once_its_sender_is_distrusted():
    inbox = Inbox(0, patience=1)
    for step in (1, 2, 3):
        inbox.put(step, [(3, BAD), (5, GOOD)])
    due = inbox.due(2)
    assert [(step, sender) for step, sender, _ in due] == [(1, 3), (1, 5), (2, 3), (2, 5)]
    assert len(inbox.open(4, due[0][2], EXPECTED, None)) == 1
    assert inbox.open(4, due[2][2], EXPECTED, None) is None
    assert [(step, sender) for step, sender, _ in inbox.mail] == [(3, 5)]


def test_nobody_is_blamed_for_the_local_grader():
    inbox = Inbox(0, patience=1)
    opened(inbox, 1, GOOD, lambda r: [None] * len(r))
    assert inbox.refused == {"unverified": 3} and inbox.dropped == 3 and not inbox.distrusted


def test_an_opinion_survives_as_json():
    inbox, again = Inbox(0, patience=2), Inbox(0, patience=2)
    opened(inbox, 1, BAD)
    again.restore(json.loads(json.dumps(inbox.opinion())))
    opened(again, 2, BAD)
    assert again.distrusted == {3: 3}
    inbox.restore(again.opinion())
    assert (inbox.failing, inbox.distrusted) == ({3: 2}, {3: 3})
