"""What several tests need."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

DATA = os.environ.get("FTIS_DATA")
needs_data = pytest.mark.skipif(
    not DATA or not Path(DATA).is_dir(), reason="FTIS_DATA names no folder with gsm8k/ and math500/"
)

ROOT = Path(__file__).parents[1]

# Of torch in each process. One, as several files of tests run at a time; two where the tests of another order
# of summation say so.
THREADS = int(os.environ.get("FTIS_TEST_THREADS", "1"))


def copy_checkout(folder: Path) -> Path:
    """This checkout without results, to which a test may add tiers and in which it may run the workflow."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\0"
    ):
        source = ROOT / name
        if name and not name.startswith("paper_figures/") and os.path.lexists(source):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name, follow_symlinks=False)
    return folder


def said(log: Path) -> str:
    """What a log holds; nothing while it isn't there, since Snakemake removes it before each attempt."""
    try:
        return log.read_text()
    except FileNotFoundError:
        return ""


def with_swapped_ids(model: Path, out: Path) -> Path:
    """A copy of a tiny model whose tokenizer reads two tokens the other way round."""
    shutil.copytree(model, out)
    path = out / "tokenizer.json"
    text = json.loads(path.read_text())
    vocab = text["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    path.write_text(json.dumps(text))
    return out
