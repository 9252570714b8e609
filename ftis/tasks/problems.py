"""Problems and their gold answers: GSM8K, MATH-500 and the generated tiny sets, as one type."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from ftis.errors import UserError
from ftis.files import write_atomic
from ftis.hub import no_copy, require_hub
from ftis.settings import settings
from ftis.tasks.grading.verdict import check_gold


@settings
class Dataset:
    """A set of problems: a benchmark by name from the hub, or a local JSONL file."""

    name: Literal["gsm8k", "math500", "tiny"]
    """Decides the fields that are read and how answers are graded."""
    path: str | None = None
    """Local JSONL file or folder; None: the hub at the pinned revision (or $FTIS_DATA)."""
    split: Literal["train", "test"] = "train"
    limit: int | None = Field(default=None, ge=1)
    """Use this many problems."""
    shuffle_seed: int | None = Field(default=None, ge=0)
    """Shuffle before `limit`; None: file order."""


@dataclass(frozen=True)
class Source:
    """Where a benchmark comes from and which of its fields are read."""

    repo: str
    """Hub dataset."""
    revision: str
    config: str | None
    question: str
    answer: str
    meta: tuple[str, ...] = ()
    id: str | None = None


SOURCES = {
    "gsm8k": Source("openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866", "main", "question", "answer"),
    "math500": Source(
        "HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", None, "problem", "answer",
        ("subject", "level"), "unique_id",
    ),
    # Problems that the workflow makes, in GSM8K's format; there is no hub copy.
    "tiny": Source("", "", None, "question", "answer"),
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """One question. `gold` is the final answer alone; `task` decides how answers are compared."""

    id: str
    question: str
    gold: str
    task: str
    meta: dict[str, Any] = field(default_factory=dict)
    solution: str = ""
    """The worked solution, where the data has one."""


def load_problems(dataset: Dataset) -> list[Problem]:
    """Read a dataset: its `path`, else $FTIS_DATA/NAME/SPLIT.jsonl, else the hub at the pinned revision, of
    which a copy is kept for machines without a network.

    Raises UserError where none is there, a line isn't JSON, a field is missing or a gold can't be graded
    against.
    """
    rows, where = _rows(dataset)
    source = SOURCES[dataset.name]
    problems = []
    for i, row in enumerate(rows):
        for name in (source.question, source.answer):
            if not isinstance(row, dict) or not isinstance(row.get(name), str) or not row[name].strip():
                raise UserError(
                    f"{where}: row {i + 1} has no text in the field {name!r}, which {dataset.name} needs"
                )
        gold, solution = row[source.answer], ""
        if dataset.name != "math500":
            solution, mark, gold = gold.rpartition("####")
            if not mark or not gold.strip():
                raise UserError(f"{where}: row {i + 1}: the field 'answer' must end with '#### ANSWER'")
        try:
            check_gold(gold := gold.strip(), dataset.name)
        except ValueError as problem:  # said now and not when a completion is graded
            raise UserError(
                f"{where}: row {i + 1}: the field {source.answer!r}: {problem}; correct the answer or remove "
                "the row"
            ) from None
        identity = str(row.get(source.id) or f"{dataset.split}/{i}")
        meta = {name: row[name] for name in source.meta if name in row}
        problems.append(Problem(identity, row[source.question], gold, dataset.name, meta, solution))
    twice = [identity for identity, n in Counter(p.id for p in problems).items() if n > 1]
    if twice:
        raise UserError(
            f"{where}: the field {source.id!r} must differ between rows; {twice[0]!r} stands twice"
        )
    if not problems:
        raise UserError(f"{where}: holds no problem")
    if dataset.shuffle_seed is not None:
        order = np.random.default_rng(dataset.shuffle_seed).permutation(len(problems))
        problems = [problems[i] for i in order]
    if dataset.limit is not None and dataset.limit > len(problems):
        raise UserError(
            f"{where}: limit is {dataset.limit}, but there are {len(problems)} problems; lower it"
        )
    return problems[: dataset.limit]


def local_file(dataset: Dataset) -> Path | None:
    """The JSONL file that a dataset is read from, or None for the hub."""
    if dataset.path is not None:
        path = Path(dataset.path).expanduser()
        path = path / f"{dataset.split}.jsonl" if path.is_dir() else path
        if not path.is_file():
            raise UserError(f"data path: no file {path}")
        return path
    root = os.environ.get("FTIS_DATA")
    if root:
        path = Path(root) / dataset.name / f"{dataset.split}.jsonl"
        return path if path.is_file() else None
    return None


def fetched_file(dataset: Dataset) -> Path:
    """Where the copy of a hub dataset is kept, there or not: in the hub's cache, by revision. The libraries'
    own cache, asked without a network, gives the revision that was loaded last."""
    from huggingface_hub.constants import HF_HOME

    revision = SOURCES[dataset.name].revision
    return Path(HF_HOME) / "ftis" / f"{dataset.name}-{revision}" / f"{dataset.split}.jsonl"


def require_data(dataset: Dataset) -> None:
    """Raise UserError unless a dataset has a local file, or the hub's copy is cached or to be had."""
    if local_file(dataset) is None and not _fetched(dataset):
        _require_hub_copy(dataset)


def _fetched(dataset: Dataset) -> bool:
    return bool(SOURCES[dataset.name].repo) and fetched_file(dataset).is_file()


def _require_hub_copy(dataset: Dataset) -> tuple[str, str]:
    """What to call it, and how to name a local copy instead, for messages."""
    source = SOURCES[dataset.name]
    if not source.repo:
        raise UserError(f"data {dataset.name}: generated sets have no hub copy; give `path`")
    what = f"dataset {dataset.name}"
    file = f"{dataset.name}/{dataset.split}.jsonl"
    folder = os.environ.get("FTIS_DATA") or "FOLDER"
    local = f"`path: FILE.jsonl` in its settings, or FTIS_DATA={folder} with {file}"
    try:
        require_hub(source.repo, what, "README.md", source.revision, "dataset")
    except UserError as error:
        raise UserError(f"{error}: {local}") from None
    return what, local


def _rows(dataset: Dataset) -> tuple[Iterable[Any], str]:
    path = local_file(dataset)
    if path is not None:
        return _read_jsonl(path), str(path)
    source = SOURCES[dataset.name]
    if _fetched(dataset):
        return _read_jsonl(fetched_file(dataset)), source.repo
    what, local = _require_hub_copy(dataset)
    from datasets import load_dataset

    try:
        rows = load_dataset(source.repo, source.config, split=dataset.split, revision=source.revision)
    except Exception as error:  # noqa: BLE001  the library raises a different type for each way the hub can fail
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise UserError(f"{no_copy(what, source.repo, reason)}: {local}") from None
    rows = [dict(row) for row in rows]
    write_atomic(fetched_file(dataset), "".join(json.dumps(row) + "\n" for row in rows))
    return rows, source.repo


def _read_jsonl(path: Path) -> list[Any]:
    rows = []
    try:
        with open(path, encoding="utf-8") as handle:
            for number, line in enumerate(handle, 1):  # noqa: B007  said below
                if line.strip():
                    rows.append(json.loads(line))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: line {number} is not JSON ({error.msg})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: can't be read ({error})") from None
    return rows


def iteration_problems(count: int, per_iteration: int, seed: int, step: int) -> list[int]:
    """Indices of the problems of an iteration (steps count from 1): the set is shuffled anew each pass.

    Depends on (seed, step) alone, so a resumed run and every node see the same prompts.
    """
    start = (step - 1) * per_iteration
    order: dict[int, np.ndarray] = {}
    picked = []
    for position in range(start, start + per_iteration):
        epoch, place = divmod(position, count)
        if epoch not in order:
            order[epoch] = np.random.default_rng((seed, epoch)).permutation(count)
        picked.append(int(order[epoch][place]))
    return picked
