"""The pins of `tests.whole.pins` hold: no recipe changes by accident, and no number of the smoke tier."""

import json

import pytest

from tests.parts import ROOT
from tests.whole import pins


def test_every_runs_recipe_is_the_pinned_one():
    assert pins.recipes() == json.loads(pins.RECIPES.read_text())


def test_the_smoke_tiers_numbers_are_the_pinned_ones():
    """Of a results/smoke that `make smoke` has made here; on another processor sampling gives other
    completions."""
    results, pinned = ROOT / "results" / "smoke", json.loads(pins.SMOKE.read_text())
    if not all((results / "runs" / run / "final.json").exists() for run in pinned["runs"]):
        pytest.skip("the smoke tier isn't in results/ whole: make smoke")
    if pins.processor() != pinned["processor"]:
        pytest.skip(f"pinned on another processor: {pinned['processor']}")
    found = pins.smoke(results)["runs"]  # ablations may be there, too
    assert {run: found[run] for run in pinned["runs"]} == pinned["runs"]
