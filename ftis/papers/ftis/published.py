"""The numbers that the paper and its sources give."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ftis.errors import UserError

PAPER_VALUES = Path(__file__).parents[3] / "workflow" / "config" / "paper_values.csv"


def paper_values() -> pd.DataFrame:
    """The published numbers, all columns as text: artefact, pair, role, quantity, value, source.

    Sources: notes (public reading notes of the paper), code (the first author's public repository),
    seed (the summary this project started from). Table 2's numbers are fractions. `headline` holds
    the gains stated in the summary beside what Table 2 gives for the row whose gain is nearest.
    """
    try:
        return pd.read_csv(PAPER_VALUES, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise UserError(
            f"{PAPER_VALUES}: no such file; it is part of the repository: `git checkout -- {PAPER_VALUES}`"
        ) from None
