"""The registry of methods: what it takes, and what it says of the rest."""

from dataclasses import dataclass

import pytest

import ftis
from ftis.errors import UserError


@dataclass(frozen=True)
class Half:
    def __call__(self, t):
        return t.surrogate(t.x) / 2


class Bare:
    def __call__(self, t):
        return t.surrogate(t.x)


@pytest.mark.parametrize(
    "given", [3, ftis.Method("M", Half), ftis.Method("M", Bare()), ftis.Method("M", Half(), ftis.Far)]
)
def test_what_is_no_method_is_refused_when_it_is_registered(given):
    with pytest.raises(
        UserError, match=r"method 'mine': .* is given; it takes ftis.Method\(LABEL, WEIGHTING\(\)"
    ):
        ftis.register("mine", given)
    assert "mine" not in ftis.METHODS


@pytest.mark.parametrize("name", ["Mine", "1st", "a-b", ""])
def test_a_name_must_be_able_to_stand_in_a_runs_name(name):
    with pytest.raises(UserError, match="a name is lower-case letters"):
        ftis.register(name, ftis.Method("M", Half()))
