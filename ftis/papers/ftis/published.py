"""The numbers that the paper and its sources give."""

from __future__ import annotations

import pandas as pd

from ftis.errors import UserError
from ftis.suite.suite import Suite


def paper_values() -> pd.DataFrame:
    """The published numbers, all columns as text: artefact, pair, role, quantity, value, source.

    Sources: notes (public reading notes of the paper), code (the first author's public repository),
    seed (the summary this project started from). Table 2's numbers are fractions. `headline` holds
    the gains stated in the summary beside what Table 2 gives for the row whose gain is nearest.
    """
    path = Suite.load().folder / "paper_values.csv"
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; it is part of the suite: copy it from the repository"
        ) from None
