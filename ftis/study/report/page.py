"""A tier's report: one HTML file that holds everything it shows and opens without a network.

A section is a list of the blocks of `ftis.study.report.parts`; `report.html.jinja` escapes their text and
decides how they look. Which sections there are, and what they say of a paper, is that paper's:
`ftis.papers.ftis.report`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ftis.errors import UserError
from ftis.files import write_files
from ftis.study.report.parts import Block
from ftis.suite.suite import Suite

Section = tuple[str, str, list[Block]]
"""Its anchor, its title and what it holds."""


def write_report(tier: str, glance: Sequence[Block], sections: Sequence[Section], out: Path) -> None:
    """Write the page of `sections`, with `glance` above them, to `out`: the same blocks give the same
    bytes."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    page = environment.get_template("report.html.jinja").render(
        tier=tier, about=about(tier), glance=glance, sections=sections
    )
    write_files({Path(out): page.encode()})


def about(tier: str) -> str:
    """The tier's own line about itself; nothing for a tier that isn't in the workflow."""
    try:
        text = Suite.load().tier(tier).about
    except UserError:
        return ""
    return f"{text[:1].upper()}{text[1:]}."
