"""Two tiny language models and arithmetic problems for the examples, made in a minute of one CPU core; no
network.

    python examples/make_models.py            # writes examples/made/

`base` and `coder` have 0.1M parameters each and Qwen2's architecture, share a tokenizer, and write in styles
of their own.
"""

import sys
from pathlib import Path

from ftis.tasks.tiny.models import DataSettings, TinyModel, make_data, make_model, make_tokenizer

MADE = Path("examples/made")


def make_models(out: Path = MADE, steps: int = 700) -> None:
    """Make what isn't there; `steps` of supervised training a model (a fifth of its answers is right after
    700)."""
    if not (out / "tokenizer").exists():
        make_tokenizer(out / "tokenizer")
    if not (out / "data").exists():
        make_data(out / "data", DataSettings(train=256, validation=64, ood=32))
    for style in ("base", "coder"):
        if not (out / style).exists():
            model = TinyModel(size="xs", style=style, steps=steps)
            make_model(model, 1, out / "tokenizer", out / "data", out / style)


if __name__ == "__main__":
    make_models(Path(sys.argv[1]) if len(sys.argv) > 1 else MADE)
