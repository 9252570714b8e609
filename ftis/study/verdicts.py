"""From contrasts between runs to a verdict: component tests, claims made of them, multiple testing.

A component is a contrast: a weighted sum of measures of runs, formed seed by seed, so that whatever a seed
does to every method (its warm start, its prompts) cancels. It's oriented so that a positive effect speaks
for the claim, except in tests of being level, which have two sides. Effects are accuracies as fractions:
0.02 is 2 points. docs/claims.md says how a verdict comes about and what was measured about it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ftis import stats

MARGIN = 0.02
"""Differences of accuracy up to this are level: a convention, fixed before the tiny tier was run."""
ALPHA = 0.025
"""One-sided, for the whole family of claims: false "holds" and false "fails" together in at most 5 %."""
POWER = 0.8
SD_FLOOR = 0.001
"""A smaller spread of the differences counts as this: scores are shares of a few thousand samples, and seeds
that agree to the last digit are luck."""
MAX_SEEDS = 1000

Measure = tuple[str, str, str]
"""Cell (a run's name without its seed), role, and one of end, ood (scores after training) or WINDOWS."""
Values = Mapping[Measure, Mapping[int, float]]
"""Accuracy of a measure by seed."""


# Shown to hold when the effect is above the first number, to fail when it's below the second.
# above, the claim of a difference: any difference will do. It fails where one of MARGIN is excluded, unless
# the interval by itself lies above 0: a small difference isn't none.
# within: no harm, up to MARGIN. ratio: a boundary by itself. premise: what the claim takes for granted,
# without which there is nothing to test: it can't make the claim fail.
BOUNDS = {
    "above": (0.0, MARGIN),
    "within": (-MARGIN, -MARGIN),
    "ratio": (0.0, 0.0),
    "premise": (0.0, -math.inf),
}


@dataclass(frozen=True)
class Component:
    """One test: an effect by seed, and the p of the claim (p) and of its contrary (p_against)."""

    kind: str
    """A key of BOUNDS, or level: within MARGIN on both sides."""
    name: str = ""
    setup: str = ""
    role: str = ""
    terms: tuple[tuple[float, Measure], ...] = ()
    seeds: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    missing: tuple[str, ...] = ()
    premise: Component | None = None
    """What has to be shown besides before this can fail."""

    @property
    def effect(self) -> float:
        return math.fsum(self.values) / len(self.values) if self.values else math.nan

    @property
    def sd(self) -> float:
        """Over seeds, at least SD_FLOOR; nan for fewer than two."""
        if len(self.values) < 2:
            return math.nan
        squares = math.fsum((v - self.effect) ** 2 for v in self.values)
        return max(SD_FLOOR, math.sqrt(squares / (len(self.values) - 1)))

    @property
    def p(self) -> float:
        if self.kind == "level":
            return stats.p_level(self.values, MARGIN, SD_FLOOR)
        return stats.p_above(self.values, BOUNDS[self.kind][0], SD_FLOOR)

    @property
    def p_against(self) -> float:
        if self.kind == "premise":
            return math.nan
        if self.kind == "level":
            return stats.p_not_level(self.values, MARGIN, SD_FLOOR)
        if self.kind == "above" and self.p <= ALPHA:
            return 1.0
        p = stats.p_below(self.values, BOUNDS[self.kind][1], SD_FLOOR)
        return p if self.premise is None else max(p, self.premise.p)

    @property
    def distances(self) -> tuple[list[float], list[float]]:
        """How far the observed effect is beyond the bounds of holding and of failing (negative: short)."""
        if self.kind == "level":
            return [MARGIN - self.effect, MARGIN + self.effect], [abs(self.effect) - MARGIN]
        hold, fail = BOUNDS[self.kind]
        return [self.effect - hold], [fail - self.effect]

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Paired t-interval of the effect."""
        return stats.t_interval(self.values, level, SD_FLOOR)

    def needed(self, alpha: float = ALPHA, power: float = POWER) -> tuple[float, float]:
        """Seeds to show that it holds, and that it fails, at the observed effect and spread; inf: over
        MAX_SEEDS, or no number: an effect above 0, however small, is with enough seeds no failure of
        `above`."""
        found = []
        for distances, share in zip(self.distances, (1, 2 if self.kind == "level" else 1), strict=True):
            n = stats.needed_n(distances, self.sd, alpha / share, power, MAX_SEEDS)
            found.append(math.inf if n is None else n)
        hold, fail = found
        if self.kind == "above" and self.effect > 0:
            fail = math.inf
        if self.premise is not None:
            fail = max(fail, self.premise.needed(alpha, power)[0])
        return hold, fail


def component(
    data: Values, kind: str, name: str, setup: str, role: str, *terms: tuple[float, Measure]
) -> Component:
    """The contrast `terms` over the seeds that have all of its measures."""
    measured = [data.get(measure, {}) for _, measure in terms]
    missing = [
        f"{cell} ({role}, {what})"
        for (_, (cell, role, what)), by_seed in zip(terms, measured, strict=True)
        if not by_seed
    ]
    seeds = sorted(set.intersection(*map(set, measured)))
    if not seeds and not missing:
        missing = [f"a seed in common ({name})"]
    effects = tuple(
        sum(weight * by_seed[seed] for (weight, _), by_seed in zip(terms, measured, strict=True))
        for seed in seeds
    )
    return Component(kind, name, setup, role, terms, tuple(seeds), effects, tuple(missing))


def combine(rule: str, ps: Sequence[float], against: Sequence[float]) -> tuple[float, float]:
    """A claim's p, and that of its contrary, from its components'; nan where a part that it needs is missing.

    every: the claim needs all components, so its p is the largest (intersection-union: no correction), and
    one failure refutes it (Bonferroni over those that can fail). some: the other way round.
    """

    def all_of(values: Sequence[float]) -> float:
        return math.nan if any(map(math.isnan, values)) else max(values)

    def any_of(values: Sequence[float]) -> float:
        return min((min(1.0, len(values) * v) for v in values if not math.isnan(v)), default=math.nan)

    if rule == "some":
        return any_of(ps), all_of(against)
    return all_of(ps), any_of(against)


def verdict(p: float, p_against: float) -> str:
    """From adjusted p-values."""
    return "holds" if p <= ALPHA else "fails" if p_against <= ALPHA else "undecided"


def decide(claims: Sequence[tuple[str, Sequence[Component]]]) -> list[dict[str, float | str]]:
    """Verdicts on claims, each given by its rule and components: Holm over the claims, once for holding and
    once for failing, each at familywise ALPHA."""
    found = []
    for rule, parts in claims:
        can_fail = [part.p_against for part in parts if part.kind != "premise"]
        found.append(combine(rule, [part.p for part in parts], can_fail))
    adjusted = zip(stats.holm([p for p, _ in found]), stats.holm([q for _, q in found]), strict=True)
    return [
        {"verdict": verdict(*both), "p": p, "p_holm": both[0], "p_against": q, "p_against_holm": both[1]}
        for (p, q), both in zip(found, adjusted, strict=True)
    ]


def decisive(rule: str, parts: Sequence[Component], found: str) -> Component:
    """The component that the verdict hangs on. Of `every`: the weakest, or the clearest failure if the claim
    fails; of `some`: the strongest, or the mildest failure."""
    tested = [part for part in parts if len(part.values) > 1]
    if not tested:  # one seed: by the effect alone
        pick = max if rule == "some" else min
        computed = [part for part in parts if part.values and part.kind != "premise"] or parts
        return pick(computed, key=lambda part: min(part.distances[0]))
    if found == "fails":
        can_fail = [part for part in tested if part.kind != "premise"]
        return (max if rule == "some" else min)(can_fail, key=lambda part: part.p_against)
    return (min if rule == "some" else max)(tested, key=lambda part: part.p)


def needed_seeds(rule: str, parts: Sequence[Component], family: int) -> tuple[str, str]:
    """Seeds for a verdict at the observed effects, with POWER, when `family` claims are tested, and which
    verdict that is: the one that takes fewer.

    Levels are those of the verdict: ALPHA / family, and over a claim's components as `combine` takes them;
    where all components must succeed, each is given that share of the chance to miss.
    """
    if any(math.isnan(part.sd) for part in parts):
        return "", ""
    can_fail = [part for part in parts if part.kind != "premise"]
    alpha, routes = ALPHA / family, []
    for side, needed in ((0, parts), (1, can_fail)):
        if (rule == "some") == (side == 0):  # one component is enough
            routes.append(min(part.needed(alpha / len(needed))[side] for part in needed))
        else:
            routes.append(max(part.needed(alpha, 1 - (1 - POWER) / len(needed))[side] for part in needed))
    return cheaper(*routes)


def cheaper(holds: float, fails: float) -> tuple[str, str]:
    """The smaller of two numbers of seeds as it's written, and the verdict that it leads to."""
    if math.isnan(holds) or math.isinf(min(holds, fails)):
        return count(holds), ""
    return (count(holds), "holds") if holds <= fails else (count(fails), "fails")


def count(seeds: float) -> str:
    """A number of seeds as it's written."""
    return "" if math.isnan(seeds) else f"> {MAX_SEEDS}" if math.isinf(seeds) else f"{seeds:.0f}"
