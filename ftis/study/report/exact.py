"""The report's section on the exact study."""

from __future__ import annotations

from ftis.study.report.parts import Block, Fold, Missing, Source, Text, any_table, attempt

# Of each figure of the exact study: the topics of its findings, and where to look.
EXACT = {
    "exact_bias": (
        (),
        "how each method's expected update turns from the true gradient as the other node gets further away.",
    ),
    "exact_progress": (
        ("noise", "distance", "learning rate"),
        "up to which distance a step is worth more than one on the node's own half of the prompts (dotted).",
    ),
    "exact_filter": (
        ("filter",),
        "at which distance and threshold g the filter makes a step worth more (orange) or less (violet).",
    ),
    "exact_halves": (
        ("halves",),
        "whether foreign successes or foreign failures point the right way, and what leaving the others out "
        "loses.",
    ),
    "exact_cap": (
        ("cap",),
        "what a larger cap C wins in direction (top), costs in noise (middle), and what is left (bottom).",
    ),
    "exact_kl": (
        ("KL",),
        "whether an estimator finds the true KL (1 in the left panel), how it scatters, when it exceeds g.",
    ),
    "exact_training": (
        ("training",),
        "the learner's expected reward, and below it the learner's and the stronger node's, less alone's.",
    ),
}


def exact_study(study: Source | None) -> list[Block]:
    if study is None:
        return [Missing("No folder of the exact study was given.")]
    about = Text(
        "A policy small enough to enumerate: what each method's update is on average and how much it "
        "scatters, computed and not sampled. Problems are drawn at random: se is the standard error over "
        "them. "
        "docs/exact.md says what it can show."
    )
    others = {path.stem for path in study.folder.glob("*.png")} - set(EXACT)
    there, missing = study.split([*EXACT, *sorted(others)], "{}.png")
    blocks = [block for name in there for block in attempt(exact_figure, study, name)]
    return [about, *blocks, *attempt(exact_findings, study, None), *(missing if there else [])]


def exact_figure(study: Source, name: str) -> list[Block]:
    topics, what = EXACT.get(name, ((), ""))
    title = name.removeprefix("exact_").replace("_", " ").capitalize()
    caption = [Text(what, "What to see:")] if what else []
    image = study.image(
        f"{name}.png", title, f"{title}, a figure of the exact study. {what}".strip(), caption
    )
    return [image, *(attempt(exact_findings, study, topics) if topics else [])]


def exact_findings(study: Source, topics: tuple[str, ...] | None) -> list[Block]:
    """The findings on `topics`; None: those that no figure has."""
    table = study.csv("exact_findings.csv", ["topic", "finding", "value"])
    if topics is None:
        shown = {topic for with_figure, _ in EXACT.values() for topic in with_figure}
        topics = tuple(topic for topic in table["topic"].unique() if topic not in shown)
    table = table[table["topic"].isin(topics)]
    if table.empty:
        return []
    return [Fold(f"Numbers: {', '.join(topics)}", [any_table(table.drop(columns="topic"))])]
