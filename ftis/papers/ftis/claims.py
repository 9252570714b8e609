"""The paper's first nine claims as tests: functions of measures (`ftis.papers.ftis.measures`) that list
components.

`ftis.study.verdicts` makes verdicts of them. Claims are fixed here, windows with the measures, the margin and
levels with the verdicts; nothing sets them from outside. docs/claims.md explains.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ftis.method.methods import METHODS
from ftis.study.verdicts import Component, Values, component
from ftis.suite.grid import Run
from ftis.suite.suite import Suite

SMALL, LARGE = "base_small", "base_large"
SIZE = "size_base"


def cell(method: str, setup: str = SIZE, g: float = 50, split: str = "vertical") -> str:
    return Run(setup, method, g if METHODS[method].filtered else None, split, 0).cell


def difference(
    data: Values, kind: str, better: str, worse: str, role: str, what: str = "end", setup: str = SIZE
) -> Component:
    """`better` - `worse`, two methods on one node; alone is the same node by itself."""
    first, second = (cell(m, role if m == "alone" else setup) for m in (better, worse))
    name = f"{METHODS[better].label} - {METHODS[worse].label}, {what}"
    return component(data, kind, name, setup, role, (1, (first, role, what)), (-1, (second, role, what)))


def nois_hurts(data: Values) -> list[Component]:
    """Claim 1, every: after training, each node of the size pair under NoIS is below the same model alone."""
    return [difference(data, "above", "alone", "nois", role) for role in (SMALL, LARGE)]


def tis_beats_vis(data: Values) -> list[Component]:
    """Claim 2: after training, the size pair's larger model is better under TIS than under VIS."""
    return [difference(data, "above", "tis", "vis", LARGE)]


def tis_below_alone(data: Values) -> list[Component]:
    """Claim 3, every: after training, each node of the size pair under TIS is below the same model alone."""
    return [difference(data, "above", "alone", "tis", role) for role in (SMALL, LARGE)]


def filter_alone(data: Values) -> list[Component]:
    """Claim 4, every: of what NoIS loses against alone, F-NoIS wins back more than half, on each node.

    (F-NoIS - NoIS) - (Alone - NoIS) / 2 > 0, since a ratio has no mean when the loss comes near 0. That
    there is a loss is a premise: unless it's shown, the claim neither holds nor fails.
    """
    found = []
    for role in (SMALL, LARGE):
        loss = difference(data, "premise", "alone", "nois", role)
        terms = [
            (weight, (run, role, "end"))
            for weight, run in ((1, cell("fnois")), (-0.5, cell("nois")), (-0.5, f"alone-{role}"))
        ]
        won_back = component(data, "ratio", "(F-NoIS - NoIS) - (Alone - NoIS) / 2, end", SIZE, role, *terms)
        found += [loss, replace(won_back, premise=loss)]
    return found


def ftis_level(data: Values) -> list[Component]:
    """Claim 5, every: F-TIS ends within MARGIN of alone on every node of every pair, and starts below it.

    The slower start is said of F-TIS in general, so it is one test: the mean over all nodes and pairs.
    """
    nodes = [(name, role) for name, setup in Suite.load().grid.setups.items() for role in setup.nodes]
    found = [difference(data, "level", "ftis", "alone", role, setup=setup) for setup, role in nodes]
    terms = []
    for setup, role in nodes:
        terms += [(1 / len(nodes), (f"alone-{role}", role, "early"))]
        terms += [(-1 / len(nodes), (cell("ftis", setup), role, "early"))]
    return [*found, component(data, "above", "Alone - F-TIS, early, mean", "all", "all", *terms)]


def ood_gain(data: Values) -> list[Component]:
    """Claim 6, some: out of distribution, F-TIS is above alone on at least one node of a pair."""
    return [
        difference(data, "above", "ftis", "alone", role, "ood", name)
        for name, setup in Suite.load().grid.setups.items()
        for role in setup.nodes
    ]


def threshold_trend(data: Values) -> list[Component]:
    """Claim 7, every: under F-TIS, accuracy falls with g early on the small model and rises with g at the end
    on the large one.

    The effect is a seed's least-squares slope over log g, times log(largest g / smallest g): the change of
    accuracy across the grid's thresholds.
    """
    x = [math.log(g) for g in Suite.load().grid.thresholds]
    centre = sum(x) / len(x)
    scale = (max(x) - min(x)) / sum((v - centre) ** 2 for v in x)
    found = []
    for sign, role, what, name in ((-1, SMALL, "early", "falls"), (1, LARGE, "end", "rises")):
        terms = [
            (sign * scale * (v - centre), (cell("ftis", g=g), role, what))
            for v, g in zip(x, Suite.load().grid.thresholds, strict=True)
        ]
        found.append(component(data, "above", f"F-TIS {name} with log g, {what}", SIZE, role, *terms))
    return found


def fvis_falls_back(data: Values) -> list[Component]:
    """Claim 8, every: on each node of the size pair F-VIS is above F-TIS early and then falls from its third
    quarter to its last, and F-TIS doesn't by more than MARGIN.

    Both windows are validation: the end's benchmark may hold other problems.
    """
    found = []
    for role in (SMALL, LARGE):
        found.append(difference(data, "above", "fvis", "ftis", role, "early"))
        for kind, method, sign in (("above", "fvis", -1), ("within", "ftis", 1)):
            terms = ((sign, (cell(method), role, "last")), (-sign, (cell(method), role, "middle")))
            order = "last - middle" if sign > 0 else "middle - last"
            found.append(component(data, kind, f"{METHODS[method].label}, {order}", SIZE, role, *terms))
    return found


def horizontal_hurts(data: Values) -> list[Component]:
    """Claim 9, every: after training, the size pair's larger model is below alone and below vertical F-TIS
    under horizontal F-TIS, and not below alone by more than MARGIN under vertical F-TIS."""
    horizontal = (-1, (cell("ftis", split="horizontal"), LARGE, "end"))
    alone, vertical = ((1, (run, LARGE, "end")) for run in (f"alone-{LARGE}", cell("ftis")))
    return [
        component(data, "above", "Alone - F-TIS horizontal, end", SIZE, LARGE, alone, horizontal),
        component(data, "above", "F-TIS vertical - horizontal, end", SIZE, LARGE, vertical, horizontal),
        difference(data, "within", "ftis", "alone", LARGE),
    ]


CLAIMS = {
    1: ("NoIS leaves both nodes worse than alone", "Fig 1", "every", nois_hurts),
    2: ("TIS beats VIS on the larger model", "Fig 2", "every", tis_beats_vis),
    3: ("TIS without the filter stays below alone", "Fig 2", "every", tis_below_alone),
    4: ("The filter alone (F-NoIS) removes most of NoIS's loss", "Fig 3", "every", filter_alone),
    5: ("F-TIS ends level with alone in every pair, more slowly at first", "Fig 4-9", "every", ftis_level),
    6: (
        "Out of distribution F-TIS beats alone for some models",
        "Table 2: 7 of 12 models",
        "some",
        ood_gain,
    ),
    7: (
        "Small g helps the small model early; large g the large model late",
        "Fig 10",
        "every",
        threshold_trend,
    ),
    8: ("F-VIS starts faster and falls back late; F-TIS doesn't", "Fig 11", "every", fvis_falls_back),
    9: ("Horizontal hurts the larger model; vertical doesn't", "Fig 12", "every", horizontal_hurts),
}
