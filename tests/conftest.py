"""Shared parts: a tokenizer, problems and briefly trained tiny models, made once a session."""

import os
import re

from tests.parts import THREADS

os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pathlib import Path

import pytest

# Other tiny models, which nothing that a test expects may hang on: a processor that rounds otherwise makes
# others too.
SEED = int(os.environ.get("FTIS_TINY_SEED", "1"))


def pytest_configure(config):
    """Tests are written for CPUs: there is no GPU unless the run selects those that need one (-m gpu). This
    is before any test imports torch."""
    if not re.search(r"(?<!not )\bgpu\b", config.option.markexpr):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(autouse=True)
def _said():
    """What the library logs is shown as the command line shows it, so that `capsys` sees it."""
    from ftis import logs

    logs.show()


# The longest first: tests are dealt out a file at a time, in this order, and none that takes minutes may
# begin last.
LONGEST = ("tests/slurm/", "tests/runs/", "tests/whole/", "tests/swarm/", "tests/tasks/")


def pytest_collection_modifyitems(items):
    def place(item):
        return next((k for k, folder in enumerate(LONGEST) if item.nodeid.startswith(folder)), len(LONGEST))

    items.sort(key=place)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A folder with tok/, data/ and two XS models: base/, trained long enough that a share of its sampled
    answers is right, and coder/, which writes the format. Both are another processor's own."""
    import torch

    from ftis.tasks.tiny.models import DataSettings, TinyModel, make_data, make_model, make_tokenizer

    torch.set_num_threads(THREADS)
    root = tmp_path_factory.mktemp("tiny")
    make_tokenizer(root / "tok")
    make_data(root / "data", DataSettings(train=256, validation=64, ood=32))
    for style, steps in (("base", 700), ("coder", 200)):
        make_model(
            TinyModel(size="xs", style=style, steps=steps), SEED, root / "tok", root / "data", root / style
        )
    return root


@pytest.fixture
def make_config(tiny):
    """Build a small RunConfig; keyword arguments override its fields."""
    from ftis.config import RUN_CONFIG
    from ftis.settings import parse

    def build(nodes=("base", "coder"), **changes):
        method = changes.pop("method", "ftis" if len(nodes) > 1 else "alone")
        fields = {
            "name": "test",
            "nodes": [
                n
                if isinstance(n, dict)
                else {"name": f"{n}{k}", "model": str(tiny / n), "learning_rate": 3e-4}
                for k, n in enumerate(nodes)
            ],
            "train": {"name": "tiny", "path": str(tiny / "data" / "train.jsonl")},
            "method": method,
            "threshold": 5.0 if method.startswith("f") else None,
            "iterations": 4,
            "prompts": 6,
            "group_size": 6,
            "checkpoint_every": 2,
            "threads": THREADS,
            "rollout": {"prompt": "tiny-v1", "max_new_tokens": 48},
            "optim": {"name": "adamw", "micro_batch_tokens": 1024},
        }
        return parse(RUN_CONFIG, fields | changes, "test config")

    return build
