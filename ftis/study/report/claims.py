"""The report's sections on a paper's claims: their verdicts, the tests behind them, those that don't hold."""

from __future__ import annotations

import math

import pandas as pd

from ftis.study.report.parts import (
    Absent,
    Block,
    Fold,
    Points,
    Source,
    Table,
    Text,
    Tiles,
    Words,
    attempt,
    count,
    number,
    points,
)


def glance(source: Source) -> list[Block]:
    """The verdicts, counted; nothing before there are any."""
    try:
        verdicts = source.csv("claims.csv", ["verdict"])["verdict"]
    except Absent:
        return []
    words = {"holds": f"of {count(len(verdicts), 'claim')} hold", "fails": "fail", "undecided": "undecided"}
    return [Tiles([(number(int((verdicts == verdict).sum())), word) for verdict, word in words.items()])]


def read_claims(
    source: Source, file: str = "claims.csv", more: tuple[str, ...] = ("statement",)
) -> pd.DataFrame:
    """Claims or their components, effects as text in `measured`, `range` (the simultaneous interval where
    there is one) and `greedy`, accuracies in points; `needed`: how many seeds for which verdict."""
    table = source.csv(file, ["claim", "verdict", "effect", "low", "high", *more])
    unit = table["unit"].fillna("") if "unit" in table else pd.Series("accuracy", index=table.index)
    for name in ("low", "high"):
        if (wide := f"{name}_simultaneous") in table:
            table[name] = table[wide].fillna(table[name])
    shown = {
        name: [points(x) if u == "accuracy" else number(x) for x, u in zip(table[name], unit, strict=True)]
        for name in ("effect", "low", "high")
    }
    table["greedy"] = [points(x) for x in table.get("greedy_effect", pd.Series(math.nan, index=table.index))]
    table["measured"] = [
        text if u in ("", "accuracy") or text == "–" else f"{text} {u}"
        for text, u in zip(shown["effect"], unit, strict=True)
    ]
    ranges = zip(shown["low"], shown["high"], strict=True)
    table["range"] = ["–" if "–" in ends else " to ".join(ends) for ends in ranges]
    for name in ("component", "setup", "role", "note", "paper", "needed_seeds", "needed_for"):
        table[name] = (
            table[name].astype(object).fillna("").map(number).replace("–", "") if name in table else ""
        )
    verdict = table["needed_for"].where(table["needed_for"] == "", " (" + table["needed_for"] + ")")
    table["needed"] = (table["needed_seeds"] + verdict).where(table["needed_seeds"] != "", "–")
    where = (table["setup"] + ", " + table["role"]).where(table["setup"] != table["role"], table["role"])
    where = where.str.strip(", ")
    table["test"] = table["component"] + (" (" + where + ")").where(where != "", "")
    return table


def claims(source: Source, words: Words) -> list[Block]:
    table = read_claims(source)
    rows: list[list[str] | str] = []
    for row in table.itertuples():
        statement = row.statement + (f" ({row.paper})" if row.paper else "")
        seeds = number(getattr(row, "n_seeds", None))
        test = row.test and f"\n{row.test}"
        effects = (row.measured, row.range, row.greedy)
        rows.append([number(row.claim), statement + test, row.verdict, *effects, seeds])
    heads = ["", "Claim, and the test that decides it", "Verdict", "Effect", "95 % interval", "Greedy"]
    how = "sampled at T = 1" if "sampled" in set(table.get("decoding", ())) else "of greedy decoding"
    caption = (
        f"Effects in points of accuracy {how}, over paired seeds, where no unit stands; a positive one "
        f"speaks for "
        f"the claim, except in a test of being level. Intervals hold for all tests of a claim together; "
        f"{words.claims}. "
        "Greedy: the same effect under greedy decoding, which decides nothing. docs/claims.md says how a "
        "verdict comes about."
    )
    notes = [Text(f"{row.note}.", f"Claim {number(row.claim)}:") for row in table.itertuples() if row.note]
    blocks: list[Block] = [Table([*heads, "Seeds"], rows, caption)]
    if notes:
        blocks.append(Points(notes))
    return [*blocks, *attempt(components, source)]


def components(source: Source) -> list[Block]:
    table = read_claims(source, "claims_components.csv", ("component",))
    rows: list[list[str] | str] = [
        [number(row.claim), row.test, row.verdict, row.measured, row.range, row.greedy, row.needed]
        for row in table.itertuples()
    ]
    heads = ["Claim", "Test", "Verdict", "Effect", "95 % interval", "Greedy", "Needed"]
    caption = (
        "Effects in points of accuracy. Each test's own interval; verdicts and needed seeds by a correction "
        "over "
        "all tests of this table, so that each may be quoted by itself. Needed: seeds for that verdict with "
        "a chance of "
        "80 %, at this effect and spread."
    )
    return [Fold("Every test behind the claims", [Table(heads, rows, caption)])]


def claims_that_differ(source: Source) -> list[Block]:
    table = read_claims(source)
    listed = []
    for verdict, word in (("fails", "fails"), ("undecided", "is undecided")):
        for row in table[table["verdict"] == verdict].itertuples():
            parts = [f"{row.statement}."]
            if row.measured != "–":
                ends = f" ({row.range})" if row.range != "–" else ""
                parts.append(f"{row.test or 'Effect'}: {row.measured}{ends}.")
            if row.note:
                parts.append(f"{row.note[:1].upper()}{row.note[1:]}.")
            if verdict == "undecided" and row.needed_seeds:
                parts.append(f"Seeds that would decide it, at this effect and spread: {row.needed}.")
            listed.append(Text(" ".join(parts), f"Claim {number(row.claim)} {word}."))
    if not listed:
        return [Text(f"All of {count(len(table), 'claim')} hold.")]
    return [
        Text("Claims that fail or stay undecided; effects in points, with 95 % intervals:"),
        Points(listed),
    ]
