"""The verdicts on the paper's ten claims as files: `claims.csv`, `claims_components.csv` and `claims.tex` of
a tier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from ftis import stats
from ftis.files import write_files
from ftis.papers.ftis.claims import CLAIMS
from ftis.papers.ftis.measures import filtered_shares, values
from ftis.papers.ftis.traffic import TRAFFIC, traffic
from ftis.study.latex import escape, latex_table
from ftis.study.tidy import primary_decoding
from ftis.study.verdicts import (
    ALPHA,
    MARGIN,
    SD_FLOOR,
    Component,
    cheaper,
    decide,
    decisive,
    needed_seeds,
    verdict,
)

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
    """What is missing, what a failure means, and how much the filter of the runs dropped
    (`filtered_shares`)."""
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
        "10: bytes a token, range over nodes), t-interval over paired seeds, at 95 % for all of a claim's "
        "tests; verdicts by "
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
