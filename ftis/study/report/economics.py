"""The report's section on what a node gains and pays by joining."""

from __future__ import annotations

from ftis.study.report.parts import (
    Block,
    Fold,
    Source,
    Table,
    Text,
    any_table,
    attempt,
    interval,
    method_name,
    points,
    setup_title,
    short,
)

# Of each figure of economics: the cost, and where a node gains.
ECONOMICS = {
    "economics": ("own tokens", "at the same number of tokens that it sampled itself"),
    "economics_seconds": ("seconds", "after the same time of its own"),
    "economics_bytes": ("bytes sent", "in the end, and for how many bytes"),
}


def economics(source: Source) -> list[Block]:
    pictures = [block for name in ECONOMICS for block in attempt(economics_figure, source, name)]
    return [*pictures, *attempt(joining, source), *attempt(paper_scale, source)]


def economics_figure(source: Source, name: str) -> list[Block]:
    cost, when = ECONOMICS[name]
    where = f"whether a node is higher in the swarm than alone {when}."
    alt = f"Validation accuracy over {cost}, a panel a pair. Look at {where}"
    return [source.image(f"{name}.png", f"Accuracy for {cost}", alt, [Text(where, "What to see:")])]


def joining(source: Source) -> list[Block]:
    """What a node gains and pays by joining, per set-up; the meaning of columns is in
    `ftis.study.economics`."""
    gains = ("gain", "gain_equal_tokens", "gain_equal_seconds")
    spans = [f"{name}{end}" for name in gains for end in ("", "_low", "_high")]
    costs = ["alone_tokens", "swarm_tokens", "seconds_saved", "seconds_saved_low", "traffic", "break_even"]
    needs = ["setup", "method", "g", "split", "label", *spans, *costs]
    table = source.csv("economics.csv", needs, dtype={"g": str}).fillna({"g": "", "split": ""})
    rows: list[list[str] | str] = []
    for setup, nodes in table.groupby("setup", sort=False):
        rows.append(setup_title("", setup))
        for row in nodes.itertuples():
            details = ", ".join(filter(None, [row.g and f"g = {row.g}", row.split]))
            rows.append(
                [
                    f"{row.label}\n{method_name(row.method)}, {details}",
                    points(row.gain),
                    interval(row.gain_low, row.gain_high) or "–",
                    points(row.gain_equal_tokens),
                    interval(row.gain_equal_tokens_low, row.gain_equal_tokens_high) or "–",
                    points(row.gain_equal_seconds),
                    interval(row.gain_equal_seconds_low, row.gain_equal_seconds_high) or "–",
                    f"{short(row.swarm_tokens)} / {short(row.alone_tokens)}",
                    short(row.traffic, "B"),
                    short(row.break_even, "B/s") if row.seconds_saved_low > 0 else "–",
                ]
            )
    heads = ["Model", "Gain", "95 % interval", "Gain, equal tokens", "95 % interval"]
    heads += ["Gain, equal seconds", "95 % interval"]
    heads += ["Own tokens / alone", "Traffic", "Break-even"]
    caption = (
        "Gains over alone in points of validation accuracy: at the end, when both had sampled as many "
        "tokens, and "
        "when both had worked as long (where the first of the two ends). Tokens and traffic an iteration. "
        "Break-even: "
        "the bandwidth above which moving the bytes takes less time than joining saves here in sampling, "
        "grading and "
        "checking; a dash where a saving isn't established (its 95 % interval reaches 0)."
    )
    return [Table(heads, rows, caption), Fold("All columns of economics.csv", [any_table(table)])]


def paper_scale(source: Source) -> list[Block]:
    table = any_table(source.csv("economics_paper.csv"), "Seconds, bytes and bytes a second, an iteration.")
    return [Fold("The same at the paper's scale, computed from stated assumptions", [table])]
