"""Who samples what."""

import pytest

from ftis.swarm.share import assignment, owner


@pytest.mark.parametrize("nodes", [2, 3, 4, 5])
@pytest.mark.parametrize("prompts", [1, 5, 7, 16])
@pytest.mark.parametrize("group_size", [1, 5, 7, 12])
@pytest.mark.parametrize("split", ["vertical", "horizontal"])
def test_every_completion_has_exactly_one_owner(split, prompts, group_size, nodes):
    dealt = []
    for node in range(nodes):
        share = assignment(split, prompts, group_size, nodes, node)
        pairs = [(p, s) for p, samples in share for s in samples]
        assert all(samples for _, samples in share)
        assert all(owner(split, p, s, nodes) == node for p, s in pairs)
        assert len(share) == len({p for p, _ in share})
        dealt += pairs
    assert sorted(dealt) == [(p, s) for p in range(prompts) for s in range(group_size)]


@pytest.mark.parametrize("nodes", [2, 3, 4, 5])
def test_shares_differ_by_one_at_most(nodes):
    vertical = [assignment("vertical", 16, 7, nodes, k) for k in range(nodes)]
    assert max(map(len, vertical)) - min(map(len, vertical)) <= 1
    assert all(samples == list(range(7)) for share in vertical for _, samples in share)  # whole groups
    horizontal = [assignment("horizontal", 3, 7, nodes, k) for k in range(nodes)]
    assert all([p for p, _ in share] == [0, 1, 2] for share in horizontal)  # every node, every prompt
    sizes = [len(samples) for share in horizontal for _, samples in share]
    assert max(sizes) - min(sizes) <= 1


def test_assignment_by_hand():
    assert assignment("vertical", 5, 2, 2, 0) == [(0, [0, 1]), (2, [0, 1]), (4, [0, 1])]
    assert assignment("vertical", 5, 2, 2, 1) == [(1, [0, 1]), (3, [0, 1])]
    assert assignment("horizontal", 2, 5, 2, 0) == [(0, [0, 2, 4]), (1, [0, 2, 4])]
    assert assignment("horizontal", 2, 5, 2, 1) == [(0, [1, 3]), (1, [1, 3])]
    assert assignment("vertical", 2, 3, 1, 0) == assignment("horizontal", 2, 3, 1, 0)  # one node: all of it
