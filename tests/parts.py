"""What several tests need."""

import os
from pathlib import Path

import pytest

DATA = os.environ.get("FTIS_DATA")
needs_data = pytest.mark.skipif(
    not DATA or not Path(DATA).is_dir(), reason="FTIS_DATA names no folder with gsm8k/ and math500/"
)
