"""The paper's ten claims as tests: `claims.csv`, `claims_components.csv` and `claims.tex` of a tier.

Each claim is a function of the measures in the tidy tables (`values`) that lists its component tests;
`ftis.study.verdicts` makes verdicts of them. Windows and claims are fixed here, the margin and levels there;
nothing sets them from outside. docs/claims.md explains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd

from ftis import stats
from ftis.method.methods import METHODS
from ftis.study.paper import escape, latex_table, write_files
from ftis.study.tidy import primary_decoding
from ftis.study.verdicts import (
    ALPHA,
    MARGIN,
    SD_FLOOR,
    Component,
    Measure,
    Values,
    cheaper,
    component,
    decide,
    decisive,
    needed_seeds,
    verdict,
)
from ftis.suite.grid import Run
from ftis.suite.suite import Suite

WINDOWS = {"early": (0, 1 / 4), "middle": (1 / 2, 3 / 4), "last": (3 / 4, 1)}
"""Validation checkpoints that are averaged, as shares of a run's iterations, the left end excluded. `middle`
and `last` are as long as each other and chosen before any curve is seen; a fall from a run's peak would be
there without any fall, since a peak is picked for its noise."""


def _frame(tables: Mapping[str, pd.DataFrame], name: str, columns: Sequence[str]) -> pd.DataFrame:
    return tables.get(name, pd.DataFrame()).reindex(columns=list(columns))


def grid_runs(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The table `runs` without variants and untrained models, and with the column cell."""
    columns = ["run", "setup", "method", "g", "split", "variant", "seed", "node", "role", "iterations"]
    runs = _frame(tables, "runs", [*columns, "tokens_generated", "bytes_sent"])
    runs = runs[(runs["variant"].isna() | runs["variant"].eq("")) & runs["method"].isin(METHODS)].copy()
    thresholds = pd.to_numeric(runs["g"], errors="coerce")
    runs["cell"] = [
        Run(row.setup, row.method, None if math.isnan(g) else g, row.split, row.seed).cell
        for row, g in zip(runs.itertuples(), thresholds, strict=True)
    ]
    return runs


def values(tables: Mapping[str, pd.DataFrame], decoding: str = "sampled") -> Values:
    """Every measure of the tables under a decoding (sampled: at T = 1; greedy), by seed."""
    keys = ["run", "node"]
    runs = grid_runs(tables)[[*keys, "cell", "role", "seed", "iterations"]]
    scores = _frame(tables, "scores", [*keys, "benchmark", "decoding", "accuracy"])
    scores = scores[(scores["decoding"] == decoding) & scores["benchmark"].isin(["id", "ood"])]
    parts = [scores.assign(what=scores["benchmark"].replace("id", "end")).merge(runs, on=keys)]
    curves = _frame(tables, "validation", [*keys, "step", decoding]).merge(runs, on=keys)
    for what, (after, until) in WINDOWS.items():
        inside = curves["step"].between(after * curves["iterations"], until * curves["iterations"], "right")
        parts.append(curves[inside].assign(what=what, accuracy=curves[decoding]))
    found: dict[Measure, dict[int, float]] = {}
    for part in parts:
        means = part.dropna(subset="accuracy").groupby(["cell", "role", "what", "seed"])["accuracy"].mean()
        for (cell, role, what, seed), value in means.items():
            found.setdefault((cell, role, what), {})[int(seed)] = float(value)
    return found


def filtered_shares(tables: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """By cell with a filter: the mean share of foreign samples that it dropped, over iterations, nodes and seeds."""
    steps = _frame(tables, "training", ["run", "node", "filtered_foreign"]).dropna(subset="filtered_foreign")
    runs = grid_runs(tables)
    runs = runs[runs["method"].isin([name for name, method in METHODS.items() if method.filtered])]
    steps = steps.merge(runs[["run", "node", "cell"]], on=["run", "node"])
    return steps.groupby("cell")["filtered_foreign"].mean().to_dict()


# ---------------------------------------------------------------- the claims

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
TRAFFIC = (10, "8 bytes a token", "about 8 bytes a token: id and log-prob")


def traffic(tables: Mapping[str, pd.DataFrame]) -> dict[str, object]:
    """Claim 10, exact: 8 bytes a token for each of a node's peers are enough, in every run.

    The effect is bytes sent / (tokens generated x peers) over all runs, low and high its range over nodes. With
    compressed messages it is below 8 with everything, and the claim holds. Plain ones are above it by what a
    message and a completion cost whatever their length. That part is the same in each iteration of a run, so
    the slope of bytes over tokens is the cost of a token, which may then be 8, within 0.01. Where iterations
    don't tell (their table is missing), an effect up to 10 % above 8 has to do.
    """
    runs = grid_runs(tables)
    runs["peers"] = runs.groupby("run")["node"].transform("count") - 1
    runs = runs[(runs["peers"] > 0) & (runs["tokens_generated"] > 0)].copy()
    row = {"effect": math.nan, "low": math.nan, "high": math.nan, "verdict": "undecided", "needed_seeds": "1"}
    row |= {"n_seeds": runs["seed"].nunique(), "n_runs": runs["run"].nunique(), "test": "exact"}
    row |= {"unit": "bytes a token", "note": "missing: runs of a pair"}
    if runs.empty:
        return row
    runs["tokens"] = runs["tokens_generated"] * runs["peers"]
    average = runs["bytes_sent"] / runs["tokens"]
    row["effect"] = runs["bytes_sent"].sum() / runs["tokens"].sum()
    row["low"], row["high"] = average.min(), average.max()
    if row["high"] <= 8:
        row["verdict"], row["note"] = "holds", "with what messages and completions cost"
        return row
    steps = _frame(tables, "training", ["run", "node", "step", "tokens_generated", "bytes_sent"])
    steps = steps.merge(runs[["run", "node", "peers"]], on=["run", "node"])
    steps["x"], steps["y"] = steps["tokens_generated"], steps["bytes_sent"] / steps["peers"]
    steps[["x", "y"]] -= steps.groupby(["run", "node"])[["x", "y"]].transform("mean")
    sums = (steps.assign(xy=steps["x"] * steps["y"], xx=steps["x"] ** 2)).groupby(["run", "node"])[
        ["xy", "xx"]
    ]
    slopes = sums.sum().query("xx > 0").eval("xy / xx")
    overhead = f"overhead of messages and completions {100 * (row['effect'] / 8 - 1):.1f} %"
    if slopes.empty:
        row["verdict"] = "holds" if row["effect"] / 8 - 1 <= 0.1 else "fails"
        row["note"] = f"{overhead}; missing: iterations with different numbers of tokens"
    else:
        row["verdict"] = "holds" if slopes.max() <= 8.01 else "fails"
        row["note"] = f"a further token {slopes.min():.4g} to {slopes.max():.4g} bytes; {overhead}"
    return row


# ---------------------------------------------------------------- tables

COLUMNS = [
    *("claim", "statement", "paper", "verdict", "effect", "low", "high", "n_seeds", "n_runs", "needed_seeds"),
    *("unit", "test", "component", "setup", "role", "low_simultaneous", "high_simultaneous", "needed_for"),
    *("p", "p_holm", "p_against", "p_against_holm", "decoding", "greedy_effect", "greedy_low", "greedy_high"),
    "note",
]
COMPONENT_COLUMNS = [
    *("claim", "component", "setup", "role", "effect", "low", "high", "p", "p_holm", "verdict", "n_seeds"),
    *("needed_seeds", "needed_for", "test", "p_against", "p_against_holm"),
    *("greedy_effect", "greedy_low", "greedy_high", "note"),
]


def _note(parts: Sequence[Component], chosen: Component, found: str, shares: Mapping[str, float]) -> str:
    """What is missing, what a failure means, and how much the filter of the runs dropped (`filtered_shares`)."""
    missing = list(dict.fromkeys(text for part in parts for text in part.missing))
    said = []
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        said.append(f"missing: {', '.join(missing[:4])}{more}")
    if any(len(part.values) == 1 for part in parts):
        said.append("one seed: an interval needs two")
    if found == "fails" and chosen.kind == "above":
        opposite = stats.p_below(chosen.values, 0, SD_FLOOR) <= ALPHA
        of = "" if len(parts) == 1 else f" of {_named(chosen)}"
        said.append(
            f"the opposite{of} is seen" if opposite else f"a difference of {MARGIN:g} or more is excluded"
        )
    if found == "fails" and chosen.kind == "level":
        said.append(f"{'above' if chosen.effect > 0 else 'below'} by more than {MARGIN:g}")
    used = sorted({100 * shares[run] for part in parts for _, (run, _, _) in part.terms if run in shares})
    if used:
        span = f"{used[0]:.2g}" + (f" to {used[-1]:.2g}" if len(used) > 1 else "")
        said.append(f"the filter dropped {span} % of foreign samples")
    return "; ".join(said)


def _named(part: Component) -> str:
    return f"“{part.name}” ({part.role})"


def _holding(rule: str, parts: Sequence[Component], verdicts: Sequence[str]) -> str:
    """For the note of a claim about every part that doesn't hold: the parts that do."""
    hold = [_named(part) for part, found in zip(parts, verdicts, strict=True) if found == "holds"]
    if rule != "every" or not hold or len(hold) == len(parts):
        return ""
    few = f": {', '.join(hold)}" if len(hold) <= 4 else ""
    return f"{len(hold)} of its {len(parts)} parts {'holds' if len(hold) == 1 else 'hold'}{few}"


def _effects(part: Component, greedy: Component) -> dict[str, object]:
    low, high = part.interval()
    greedy_low, greedy_high = greedy.interval()
    return {
        "component": part.name,
        "setup": part.setup,
        "role": part.role,
        "n_seeds": len(part.values),
        "effect": part.effect,
        "low": low,
        "high": high,
        "greedy_effect": greedy.effect,
        "greedy_low": greedy_low,
        "greedy_high": greedy_high,
    }


def claim_tables(tables: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables `claims` (a row a claim) and `claims_components` (a row a test), by the accuracies of
    `primary_decoding`.

    Components are corrected on their own, by Holm over all of them: each of those verdicts may be quoted by
    itself. A claim can be decided where its components aren't, since it's tested as one.
    """
    decoding, shares = primary_decoding(tables), filtered_shares(tables)
    data, greedy_data = values(tables, decoding), values(tables, "greedy")
    claims = {number: (rule, test(data)) for number, (_, _, rule, test) in CLAIMS.items()}
    greedy = {number: test(greedy_data) for number, (_, _, _, test) in CLAIMS.items()}
    found = decide(list(claims.values()))
    family = max(1, sum(not math.isnan(result["p"]) for result in found))
    single = [
        (number, part, other)
        for number, (_, parts) in claims.items()
        for part, other in zip(parts, greedy[number], strict=True)
    ]
    ps, against = ([getattr(part, side) for _, part, _ in single] for side in ("p", "p_against"))
    components, tested = [], max(1, sum(not math.isnan(p) for p in ps))
    for (number, part, other), p, q, p_holm, q_holm in zip(
        single, ps, against, stats.holm(ps), stats.holm(against), strict=True
    ):
        result = verdict(p_holm, q_holm)
        needed = ("", "") if math.isnan(part.sd) else cheaper(*part.needed(ALPHA / tested))
        components.append(
            {
                "claim": number,
                **_effects(part, other),
                "test": part.kind,
                "verdict": result,
                "p": p,
                "p_holm": p_holm,
                "p_against": q,
                "p_against_holm": q_holm,
                "needed_seeds": needed[0],
                "needed_for": needed[1],
                "note": _note([part], part, result, shares),
            }
        )
    rows = []
    for (number, (rule, parts)), result in zip(claims.items(), found, strict=True):
        chosen = decisive(rule, parts, result["verdict"])
        low, high = chosen.interval(1 - 0.05 / len(parts))
        needed = needed_seeds(rule, parts, family)
        alone = [part["verdict"] for part in components if part["claim"] == number]
        notes = [_note(parts, chosen, result["verdict"], shares)]
        if result["verdict"] != "holds":
            notes.append(_holding(rule, parts, alone))
        rows.append(
            {
                "claim": number,
                "statement": CLAIMS[number][0],
                "paper": CLAIMS[number][1],
                **_effects(chosen, greedy[number][parts.index(chosen)]),
                "low_simultaneous": low,
                "high_simultaneous": high,
                "unit": "accuracy",
                **result,
                "n_runs": len({(run, seed) for c in parts for _, (run, _, _) in c.terms for seed in c.seeds}),
                "needed_seeds": needed[0],
                "needed_for": needed[1],
                "decoding": decoding,
                "test": f"{rule} of {len(parts)}, {chosen.kind}" if len(parts) > 1 else chosen.kind,
                "note": "; ".join(filter(None, notes)),
            }
        )
    rows.append(dict(zip(("claim", "statement", "paper"), TRAFFIC, strict=True)) | traffic(tables))
    return pd.DataFrame(rows, columns=COLUMNS), pd.DataFrame(components, columns=COMPONENT_COLUMNS)


def claims_tex(claims: pd.DataFrame, tier: str) -> str:
    """The claims as LaTeX: effects in points, with the simultaneous interval of the decisive component."""

    def number(value: float) -> str:
        return "" if math.isnan(value) else f"{value:.1f}"

    body = []
    for row in claims.itertuples():
        scale = 100 if row.unit == "accuracy" else 1
        shown = (row.effect, row.low, row.high)
        if row.unit == "accuracy":
            shown = (row.effect, row.low_simultaneous, row.high_simultaneous)
        effect, low, high = (number(scale * value) for value in shown)
        where = row.component if isinstance(row.component, str) else row.unit
        node = f" ({row.setup}, {row.role})" if isinstance(row.setup, str) else ""
        cells = [
            *(
                str(row.claim),
                escape(row.statement),
                row.verdict,
                escape(f"{where}{node}").replace(" - ", " $-$ "),
            ),
            (f"${effect}$" if effect else "--") + (f" $[{low}, {high}]$" if low else ""),
            str(row.n_seeds),
            (f"${row.needed_seeds}$" if row.needed_seeds else "--")
            + (f" ({row.needed_for})" if isinstance(row.needed_for, str) and row.needed_for else ""),
        ]
        body.append(" & ".join(cells) + r" \\")
    how = "sampled at T=1" if "sampled" in set(claims["decoding"]) else "of greedy decoding"
    caption = (
        f"The paper's claims, tier {tier}. Accuracy {how}; effect of the decisive component in points (claim "
        "10: bytes a token, range over nodes), t-interval over paired seeds, at 95 % for all of a claim's tests; verdicts by "
        f"Holm over the claims at familywise 5 %; level: within {100 * MARGIN:g} points; needed: seeds "
        "for that verdict with 80 % power at the observed effect and spread."
    )
    head = [r"& Claim & Verdict & Decisive component & Effect & Seeds & Needed \\"]
    columns = "".join(
        rf">{{\raggedright\arraybackslash}}p{{{width}\linewidth}}" if width else "l"
        for width in (0, 0.21, 0, 0.17, 0, 0, 0)
    )
    text = latex_table(caption, f"{tier}-claims", columns, head, body, r"\footnotesize\tabcolsep=3pt")
    return text.replace(r"\usepackage{booktabs}.", r"\usepackage{array,booktabs}.", 1)


def make_claims(tables: Mapping[str, pd.DataFrame], tier: str, out: Path) -> None:
    """Write `claims.csv`, `claims_components.csv` and `claims.tex` of a tier into the folder `out`."""
    claims, components = claim_tables(tables)
    to_csv = partial(pd.DataFrame.to_csv, index=False, lineterminator="\n")
    write_files(
        {
            Path(out) / "claims.csv": to_csv(claims).encode(),
            Path(out) / "claims_components.csv": to_csv(components).encode(),
            Path(out) / "claims.tex": claims_tex(claims, tier).encode(),
        }
    )
