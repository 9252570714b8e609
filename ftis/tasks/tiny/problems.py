"""Generated word problems in GSM8K's format: "Tom has 7 pens, buys 5, doubles them. How many pens now?"

Neither torch nor transformers is needed here.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ftis.errors import UserError
from ftis.settings import settings

NAMES = ("Tom", "Ann", "Sam", "Mia", "Ben", "Eva", "Leo", "Zoe", "Max", "Ida", "Kim", "Jan")
OBJECTS = ("pens", "books", "cards", "cups", "coins", "eggs", "apples", "balls", "keys", "toys", "nuts",
           "stamps", "rings", "hats", "boxes", "stones")  # fmt: skip
PHRASES = {
    "+": ("buys {}", "finds {}", "gets {}", "wins {}"),
    "-": ("loses {}", "sells {}", "drops {}", "gives away {}"),
    "*2": ("doubles them",),
    "*3": ("triples them",),
    "/2": ("halves them",),
}
FORMS = {"how_many": "How many {} now?", "count": "Count the {}."}
"""The two ways to ask. The one used decides the mix of solutions in the warm start
(`ftis.tasks.tiny.models.MIX`)."""
LARGEST = 60
"""Every number on the way, and so every answer, is between 0 and this."""
LARGEST_OPERAND = 9
"""Of sums and differences."""


@dataclass(frozen=True)
class TinyProblem:
    """A chain of steps on a number of things."""

    question: str
    form: str
    """Key of `FORMS`."""
    steps: tuple[tuple[int, str, int, int], ...]
    """(before, operator, operand, after) of each step."""

    @property
    def gold(self) -> int:
        return self.steps[-1][3]

    @property
    def answer(self) -> str:
        """Worked lines and the result, as GSM8K writes it."""
        lines = [f"{a} {op} {b} = <<{a}{op}{b}={c}>>{c}" for a, op, b, c in self.steps]
        return "\n".join([*lines, f"#### {self.gold}"])


def make_problem(rng: random.Random, n_steps: int) -> TinyProblem:
    """Draw a problem of `n_steps` steps whose numbers stay within 0..`LARGEST`."""
    thing, form = rng.choice(OBJECTS), rng.choice(tuple(FORMS))
    value = first = rng.randint(2, 20)
    phrases, steps = [], []
    for _ in range(n_steps):
        options = [kind for kind, possible in (
            ("+", value < LARGEST), ("+", value < LARGEST), ("-", value > 0), ("-", value > 0),
            ("*2", 0 < 2 * value <= LARGEST), ("*3", 0 < 3 * value <= LARGEST),
            ("/2", value > 0 and value % 2 == 0),
        ) if possible]  # fmt: skip
        kind = rng.choice(options)
        if kind in "+-":
            room = LARGEST - value if kind == "+" else value
            op, operand = kind, rng.randint(1, min(LARGEST_OPERAND, room))
        else:
            op, operand = kind[0], int(kind[1])
        after = {"+": value + operand, "-": value - operand, "*": value * operand, "/": value // operand}[op]
        phrases.append(rng.choice(PHRASES[kind]).format(operand))
        steps.append((value, op, operand, after))
        value = after
    question = f"{rng.choice(NAMES)} has {first} {thing}, {', '.join(phrases)}. {FORMS[form].format(thing)}"
    return TinyProblem(question, form, tuple(steps))


@settings
class DataSettings:
    """Sizes of the generated problem sets."""

    seed: int = Field(default=42, ge=0)
    train: int = Field(default=4096, ge=1)
    validation: int = Field(default=1024, ge=1)
    ood: int = Field(default=1024, ge=1)
    steps: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(2, 3), min_length=1)
    """Lengths of the chains in train and validation."""
    ood_steps: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(4,), min_length=1)
    """Lengths of the chains in the out-of-distribution set."""


def make_data(out: Path, data: DataSettings) -> None:
    """Write train, validation and ood JSONL of {"question", "answer"}; no question occurs twice in the
    three."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"tiny-data-{data.seed}")
    seen: set[str] = set()
    for name, n, lengths in (
        ("validation", data.validation, data.steps),
        ("ood", data.ood, data.ood_steps),
        ("train", data.train, data.steps),
    ):
        lines, draws = [], 0
        while len(lines) < n:
            draws += 1
            if draws > 1000 + 5 * n:
                raise UserError(f"data.{name}: {n} different problems are more than there are; ask for fewer")
            problem = make_problem(rng, rng.choice(lengths))
            if problem.question not in seen:
                seen.add(problem.question)
                lines.append(json.dumps({"question": problem.question, "answer": problem.answer}))
        partial = out / f".{name}.jsonl.partial"
        partial.write_text("\n".join(lines) + "\n")
        partial.replace(out / f"{name}.jsonl")
