"""Economics of joining, on small tables whose numbers are worked by hand."""

import math

import pandas as pd
import pytest

from ftis.errors import UserError
from ftis.study.economics import (
    break_even,
    curve,
    curves,
    economics,
    gain_at_equal,
    make_economics,
    paper_scale,
    tokens_to,
)

# Alone a node samples 100 tokens an iteration, in the pair 50; ten iterations, validated at 0, 5 and 10.
ALONE = {42: (0.2, 0.5, 0.6), 43: (0.2, 0.4, 0.6)}
SWARM = {42: (0.2, 0.5, 0.7), 43: (0.2, 0.4, 0.6)}


def add(
    tables,
    run,
    setup,
    method,
    role,
    seed,
    node,
    accuracies,
    tokens,
    seconds,
    sent,
    received,
    exchange=0.0,
    **other,
):
    fields = {"g": "", "split": "", "variant": "", "label": role.upper(), **other}
    tables["runs"].append(
        {"run": run, "setup": setup, "method": method, "seed": seed, "node": node, "role": role, "iterations": 10,
         "tokens_generated": 10 * tokens, "tokens_trained": 1000, "bytes_sent": 10 * sent,
         "bytes_received": 10 * received, "seconds_sample": 10 * seconds, "seconds_grade": 1.0,
         "seconds_exchange": 10 * exchange, "seconds_update": 5.0, "commit": "", "recipe": "", **fields}
    )  # fmt: skip
    for step in range(1, 11):
        tables["training"].append(
            {
                "run": run,
                "node": node,
                "step": step,
                "tokens_generated": tokens,
                "bytes_sent": sent,
                "seconds": seconds + 0.5,
            }
        )
    for step, accuracy in zip((0, 5, 10), accuracies, strict=True):
        tables["validation"].append(
            {"run": run, "node": node, "step": step, "sampled": accuracy, "greedy": 0.9}
        )


def tables(seeds=(42, 43), variant=False):
    found = {"runs": [], "training": [], "validation": []}
    for seed in seeds:
        for node, role in enumerate(("base_small", "base_large")):
            add(found, f"alone-{role}-s{seed}", role, "alone", role, seed, 0, ALONE[seed], 100, 4.0, 0, 0)
            add(
                found, f"size_base-ftis-g50-vertical-s{seed}", "size_base", "ftis", role, seed, node, SWARM[seed],
                50, 2.5, 400, 600, exchange=0.3, g="50", split="vertical",
            )  # fmt: skip
    if variant:
        add(found, "v", "size_base", "ftis", "base_small", 42, 0, (0, 0, 0), 1, 9.0, 1, 1, g="50", split="vertical",
            variant="cap5")  # fmt: skip
    return {name: pd.DataFrame(rows) for name, rows in found.items()}


def test_curve_and_interpolation():
    lone = curve(tables(), "alone-base_small-s42", 0)
    spent = {"tokens": [0, 500, 1000], "seconds": [0, 22.5, 45], "bytes": [0, 0, 0]}
    assert lone.to_dict("list") == {"step": [0, 5, 10], **spent, "accuracy": [0.2, 0.5, 0.6]}
    # 0.56 lies six tenths of the way from 0.5 to 0.6.
    assert tokens_to(lone, 0.56) == pytest.approx(800)
    assert tokens_to(lone, 0.2) == 0
    assert math.isnan(tokens_to(lone, 0.61))


def test_gain_at_equal_reads_both_where_the_first_ends():
    found = tables()
    lone, swarm = curve(found, "alone-base_small-s42", 0), curve(found, "size_base-ftis-g50-vertical-s42", 0)
    # After 500 tokens the swarm has ended at 0.7, Alone is at its second validation, 0.5.
    assert gain_at_equal(swarm, lone, "tokens") == pytest.approx(0.7 - 0.5)
    # A node that takes twice as long (60 s) is read where Alone ends (45 s), half way from 0.5 to 0.7.
    slow = swarm.assign(seconds=2 * swarm["seconds"])
    assert gain_at_equal(slow, lone, "seconds") == pytest.approx(0.6 - 0.6)
    assert gain_at_equal(lone, slow, "seconds") == pytest.approx(0)


def test_every_seed_counts_at_equal_seconds():
    found = tables()
    slow = found["training"]["run"] == "size_base-ftis-g50-vertical-s43"
    found["training"].loc[slow, "seconds"] *= 2
    # Seed 43 takes 60 s: at Alone's 45 it is half way from 0.4 to 0.6, and Alone at 0.6.
    expected = ((0.7 - (0.5 + 0.1 / 3)) + (0.5 - 0.6)) / 2
    assert economics(found)["gain_equal_seconds"].tolist() == pytest.approx([expected, expected])


def test_break_even():
    assert break_even(600, 1.5) == 400
    assert break_even(600, 0) == break_even(600, -1) == math.inf


def test_economics_by_hand():
    table = economics(tables(variant=True))
    assert list(table["role"]) == ["base_small", "base_large"]
    row = table.iloc[0]
    assert (row["setup"], row["method"], row["g"], row["split"]) == ("size_base", "ftis", "50", "vertical")
    assert row["seeds"] == row["reached"] == 2
    assert row["alone_accuracy"] == pytest.approx(0.6) and row["swarm_accuracy"] == pytest.approx(0.65)
    # Differences 0.1 and 0: mean 0.05, standard error 0.05, t with one degree of freedom 12.706.
    assert row["gain"] == pytest.approx(0.05)
    assert row["gain_high"] == pytest.approx(0.05 + 12.7062 * 0.05, abs=1e-4)
    assert row["alone_tokens"] == 100 and row["swarm_tokens"] == 50
    # The swarm's node ends at 500 own tokens, where Alone has 0.5 and 0.4.
    assert row["gain_equal_tokens"] == pytest.approx(((0.7 - 0.5) + (0.6 - 0.4)) / 2)
    # It ends after 30 s, a third of the way from Alone's 22.5 to 45.
    assert row["gain_equal_seconds"] == pytest.approx(((0.7 - (0.5 + 0.1 / 3)) + (0.6 - (0.4 + 0.2 / 3))) / 2)
    # 90 % of 0.2 -> 0.6 is 0.56. Alone: 500 + 0.6 * 500 and 500 + 0.8 * 500; swarm, with 250 tokens between
    # validations: 250 + 0.3 * 250 and 250 + 0.8 * 250.
    assert row["alone_tokens_to_level"] == pytest.approx((800 + 900) / 2)
    assert row["swarm_tokens_to_level"] == pytest.approx((325 + 450) / 2)
    # 1.5 s of sampling saved an iteration, 0.3 s spent on the exchange; the larger direction carries 600
    # bytes.
    assert row["alone_seconds_collect"] == pytest.approx(4.1) and row["seconds_saved"] == pytest.approx(1.2)
    assert row["bytes_sent"] == 400 and row["traffic"] == 600
    assert row["break_even"] == pytest.approx(500)


def test_one_seed_has_no_interval():
    row = economics(tables(seeds=(42,))).iloc[0]
    assert row["gain"] == pytest.approx(0.1) and math.isnan(row["gain_low"])


def test_a_level_that_is_never_reached():
    found = tables(seeds=(42,))
    swarm = found["validation"]["run"].str.startswith("size_base")
    found["validation"].loc[swarm, "sampled"] = 0.3
    row = economics(found).iloc[0]
    assert row["reached"] == 0 and math.isnan(row["swarm_tokens_to_level"])
    assert math.isnan(row["alone_tokens_to_level"])


def test_without_validation_costs_remain():
    found = tables()
    row = economics({**found, "validation": pd.DataFrame()}).iloc[0]
    assert row["break_even"] == pytest.approx(500)
    assert math.isnan(row["gain"]) and row["reached"] == 0


def test_greedy_stands_in_where_nothing_was_sampled():
    found = tables()
    greedy = found["validation"].assign(greedy=found["validation"]["sampled"], sampled=None)
    pd.testing.assert_frame_equal(economics({**found, "validation": greedy}), economics(found))


def test_missing_runs(tmp_path):
    found = tables()
    with pytest.raises(UserError, match="no runs"):
        economics({**found, "runs": pd.DataFrame()})
    swarm_only = {**found, "runs": found["runs"][found["runs"]["method"] == "ftis"]}
    assert economics(swarm_only).empty
    with pytest.raises(UserError, match="run alone"):
        make_economics(swarm_only, "tiny", tmp_path)
    with pytest.raises(UserError, match=r"validation\.data"):
        make_economics({**found, "validation": pd.DataFrame()}, "tiny", tmp_path)
    assert not list(tmp_path.iterdir())


def test_points_of_the_figure():
    points = curves(tables())
    one = points[(points["role"] == "base_small") & (points["step"] == 10)].set_index("series")
    shown = ["tokens", "seconds", "bytes", "accuracy", "low", "high"]
    assert one.loc["ftis", shown].tolist() == pytest.approx([500, 30, 4000, 0.65, 0.6, 0.7])
    assert one.loc["alone", "tokens"] == 1000


def test_make_economics(tmp_path):
    make_economics(tables(), "tiny", tmp_path)
    pictures = {f"economics{cost}.{end}" for cost in ("", "_seconds", "_bytes") for end in ("pdf", "png")}
    names = {"economics.csv", "economics_paper.csv", *pictures}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert len(pd.read_csv(tmp_path / "economics.csv")) == 2


def test_paper_scale():
    # 24 x 12 completions, half of them received: 144 of 300 tokens; 8 bytes a token and 17 a completion.
    row = paper_scale(rates=[2000]).iloc[0]
    assert row["tokens_saved"] == 144 * 300
    assert row["seconds_saved"] == pytest.approx(21.6)
    assert row["traffic"] == 144 * (2400 + 17)
    assert row["break_even"] == pytest.approx(2000 * (8 + 17 / 300))
