"""Comparing what two ways of computing give, with the same verdict on every processor.

A processor's vector width and its number of threads decide in which order a sum is taken, and with it the
last bits. Two ways that must agree are therefore computed in float64 (`in_double`), where the order changes a
thousandth of what is allowed (`assert_same`) at most. What float32 itself gives is compared with that, and
may be off by roundings of what was summed (`assert_rounded`), not by a fixed number.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ftis.model.policy import Policy

# Of the largest term: 4e5 roundings of float64, of which at most 15 have been seen.
SAME = 1e-10
# Of float32, of the largest term: hundreds of operations stand one behind the other in a tiny model, and a
# layer may make more of what the one before it rounded. At most 28 have been seen.
ROUNDINGS = 128


class _Double(TorchDispatchMode):
    """What asks for float32 gets float64: norms, rotations, softmaxes and our own log-probs do, whatever they
    read."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        def double(argument):
            return torch.float64 if argument is torch.float32 else argument

        return function(*map(double, arguments), **{k: double(v) for k, v in (keywords or {}).items()})


@contextmanager
def in_double() -> Iterator[None]:
    """Within it, a model whose weights are float64 (`doubled`) computes in float64 from end to end."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Double():
            yield
    finally:
        torch.set_default_dtype(before)


def doubled(policy: Policy) -> Policy:
    """A copy in float64, with the same numbers as weights."""
    return replace(policy, model=copy.deepcopy(policy.model).double())


def summed(policy: Policy, prompts, completions, temperature: float = 1.0) -> float:
    """The largest sum of absolute terms of a logit among those that predict the completions: sum |hidden|
    |head|."""
    with torch.no_grad():
        hidden, _, _ = policy._predicting(prompts, completions)
        return float((hidden.abs() @ policy.head().abs().T).max()) / temperature


def assert_same(actual, expected, terms: float | None = None) -> None:
    """Both were computed in float64; `terms` is the largest term that was summed, by default of
    `expected`."""
    assert actual.dtype == expected.dtype == torch.float64
    _assert_within(actual, expected, SAME, terms)


def assert_rounded(actual, expected, terms: float | None = None) -> None:
    """`actual` was computed in float32; `terms` as in `assert_same`."""
    _assert_within(actual, expected, ROUNDINGS * torch.finfo(torch.float32).eps, terms)


def _assert_within(actual, expected, allowed: float, terms: float | None) -> None:
    actual, expected = (torch.as_tensor(t).detach().double() for t in (actual, expected))
    assert actual.shape == expected.shape
    off, terms = (
        float((actual - expected).abs().max()),
        float(expected.abs().max()) if terms is None else terms,
    )
    assert off <= allowed * terms, f"off by {off:.2e}; {allowed:.2e} of {terms:.3g} is allowed"
