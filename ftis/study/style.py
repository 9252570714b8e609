"""How all drawings look, and how they become files: fonts, titles and notes, shades, bytes that stay the
same."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

STYLE = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.9",
    "legend.frameon": False,
    # TrueType, so that text stays text in every PDF reader and journal check.
    "pdf.fonttype": 42,
}
DPI = 160


def rendered(name: str, figure: Figure) -> dict[str, bytes]:
    """{`name`.pdf, `name`.png: content}, without a creation date, so that the same data gives the same
    bytes."""
    files = {}
    for suffix, metadata in (("pdf", {"CreationDate": None}), ("png", {"Software": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, dpi=DPI, metadata=metadata)
        files[f"{name}.{suffix}"] = buffer.getvalue()
    return files


def shade(colour: str, depth: float) -> str:
    """`colour` mixed half with white at depth 0, itself near 0.5, two thirds to black at 1."""
    white, black = max(0.0, 0.5 - depth), max(0.0, depth - 0.5) * 4 / 3
    mixed = [(channel * (1 - white) + white) * (1 - black) for channel in to_rgb(colour)]
    return to_hex(mixed)


def finish(figure: Figure, axis: Axes, title: str, note: str) -> None:
    """Title above, legend and note below the panels, each in room of its own."""
    handles, labels = axis.get_legend_handles_labels()
    rows = -(-len(labels) // 5)
    columns = -(-len(labels) // rows)
    height = figure.get_figheight()
    fit(figure.suptitle(title, x=0.01, ha="left", y=1 - 0.06 / height, va="top", size=10.5, weight="bold"))
    figure.legend(
        handles,
        labels,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.3 / height),
        ncols=columns,
        handlelength=2.4,
        columnspacing=1.2,
        handletextpad=0.5,
        borderaxespad=0,
    )
    fit(figure.text(0.01, 0.06 / height, note, size=7, color="0.3", va="bottom", ha="left"))
    figure.tight_layout(rect=(0, (0.35 + 0.22 * rows) / height, 1, 1))


def fit(text: Text) -> None:
    """Make a line of text as small as the width of its figure asks for (long labels, many seeds)."""
    share = text.get_window_extent().width / (0.98 * text.get_figure().bbox.width)
    text.set_fontsize(text.get_fontsize() / max(1.0, share))
