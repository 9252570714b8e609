"""What `ftis plan` says, against hand-worked numbers and a run that was really made."""

from ftis import grid
from ftis.plan import completion_count, most_bytes, plan
from ftis.train import Swarm


def test_counts_and_bytes_by_hand(make_config):
    config = make_config(
        prompts=7, group_size=5, iterations=3, rollout={"prompt": "tiny-v1", "max_new_tokens": 10}
    )
    # Seven prompts dealt to two nodes: 4 and 3 groups of 5.
    assert [completion_count(config, k) for k in (0, 1)] == [20, 15]
    # 3 iterations x 1 peer x (35 completions x (17 + 8 x 10) + 2 messages x 32).
    assert most_bytes(config) == 3 * (35 * 97 + 64)
    assert most_bytes(make_config(nodes=("base",))) == 0


def test_the_bound_holds_for_a_real_iteration(make_config):
    config = make_config(iterations=1)
    line = Swarm(config, "0" * 12).iteration(1)
    sent = sum(node["bytes_sent"] for node in line["nodes"])
    assert 0 < sent <= most_bytes(config)


def test_plan_lists_every_run_and_the_sum():
    text = plan("smoke", grid.runs("smoke"))
    assert text.count("\nsize_") == 11 and text.count("\nalone-") == 6
    assert "21 runs of tier smoke" in text and "sent by all nodes of all runs: at most" in text
