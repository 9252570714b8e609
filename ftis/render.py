"""Figures as bytes: the same drawing gives the same files."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

DPI = 200


def rendered(name: str, figure: Figure) -> dict[str, bytes]:
    """{`name`.pdf, `name`.png: content}, without a creation date, so that the same data gives the same bytes."""
    files = {}
    for suffix, metadata in (("pdf", {"CreationDate": None}), ("png", {"Software": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, dpi=DPI, metadata=metadata)
        files[f"{name}.{suffix}"] = buffer.getvalue()
    return files
