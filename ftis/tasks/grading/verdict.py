r"""Verdicts on completions: is the answer right, is the format right, and the binary reward.

Three things are kept apart. `answer`: the last complete `<answer>` tag, or else the last complete
`\boxed{}`, holds the gold answer. `format`: the completion has the asked shape (FORMATS). `reward`: both.
The reward alone makes a model look worse than it is: base models know far more answers than they can
format.

GSM8K answers are compared here, as exact numbers. MATH answers go through `math_answers`, whose algebra
runs in workers that can be killed (`grading_pool`). Nothing here imports torch.
"""

import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ftis.errors import UserError, unknown
from ftis.tasks.grading import answers as math_answers

FAULTS = ("timeout", "died", "error")  # reasons that are no verdict on the answer: the grader gave up


@dataclass(frozen=True, slots=True)
class Verdict:
    """answer, format: right or not; reward: 1.0 if both; reason: why (docs/grading.md lists the codes).

    extracted: the text that was compared, None if there was none; seconds: time spent on this pair.
    """

    answer: bool
    format: bool
    reward: float
    reason: str
    extracted: str | None
    seconds: float


# --- extraction -----------------------------------------------------------------------------------

_TAG = re.compile(r"</?answer>")
_BOX_TOKEN = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s{0,9}(\{)?|\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"(-?\d[\d.,]*\d|-?\d|[a-zA-Z])(?=[\s$.,;])")


def last_tag(completion: str) -> str | None:
    """The text of the last complete `<answer>...</answer>`; None if there is none."""
    content = opened = None
    for match in _TAG.finditer(completion):
        if match[0] == "<answer>":
            opened = match.end()
        elif opened is not None:
            content, opened = completion[opened : match.start()], None
    return content


def last_box(completion: str) -> str | None:
    r"""The text of the `\boxed{}` (or `\fbox{}`) that closes last, braces matched; None if none is complete.

    `\boxed 5` counts when something follows the number, so that a cut one doesn't.
    """
    content = None
    stack: list[int | None] = []  # start of the text for a box, None for another group
    for match in _BOX_TOKEN.finditer(completion):
        token = match[0]
        if token == "{":
            stack.append(None)
        elif token == "}":
            if stack and (start := stack.pop()) is not None:
                content = completion[start : match.start()]
        elif match[1]:
            stack.append(match.end())
        elif token.startswith(("\\boxed", "\\fbox")) and (bare := _BARE_BOX.match(completion, match.end())):
            content = bare[1]
    return content


def extract(completion: str) -> tuple[str | None, str]:
    """(text of the answer, "") or (None, reason): a complete tag goes before a box; nothing else counts."""
    content = last_tag(completion) if "</answer>" in completion else None
    if content is None and ("\\boxed" in completion or "\\fbox" in completion):
        content = last_box(completion)
    elif content is not None and len(content) <= math_answers.MAX_CHARS and "boxed" in content:
        boxed = last_box(content)
        content = content if boxed is None else boxed
    if content is None:
        opened = "<answer>" in completion or "\\boxed" in completion or "\\fbox" in completion
        return None, "unclosed" if opened else "no_answer"
    content = content.strip(" \t\r\n\x00")
    if len(content) > math_answers.MAX_CHARS:
        return None, "too_long"
    return (content, "") if content else (None, "empty")


# --- format ---------------------------------------------------------------------------------------


def _once_in_order(completion: str, *marks: str) -> bool:
    """Each mark stands exactly once, in the order given."""
    places = [completion.find(mark) for mark in marks]
    return places[0] >= 0 and places == sorted(places) and all(completion.count(mark) == 1 for mark in marks)


def _strict(completion: str) -> bool:
    """One think pair, then one answer pair, then nothing but white space."""
    marks = ("<think>", "</think>", "<answer>", "</answer>")
    return _once_in_order(completion, *marks) and completion.rstrip().endswith("</answer>")


def _code(completion: str) -> bool:
    """`strict` with at most one character of white space at the end, as the public code has it."""
    return _strict(completion) and len(completion) - len(completion.rstrip()) <= 1


FORMATS: dict[str, Callable[[str], bool]] = {
    "strict": _strict,
    "code": _code,
    # the prompt itself may end with <think>
    "open": lambda text: _strict(text) or _strict("<think>" + text),
    "tag": lambda text: _once_in_order(text, "<answer>", "</answer>"),
    "boxed": lambda text: last_box(text) is not None,
    "any": lambda text: extract(text)[0] is not None,
}


# --- GSM8K: one exact number ----------------------------------------------------------------------

_PLAIN = re.compile(r"\$?(-?(?:\d{1,18}|[1-9]\d{0,2}(?:,\d{3}){1,5}))(?:\.0{0,4})?")
_CHARS = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2013\u2010\u2011\uff0d\ufe63", "-"),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
        **dict.fromkeys("\u00a0\u3000\t\r\f\v~`#\x00", " "),
        **dict.fromkeys("\u2009\u202f\u2007", "\u2009"),
        **dict.fromkeys("’‘", "'"),
        **dict.fromkeys("“”", '"'),
        **dict.fromkeys("≈≅≃", "="),
        "⁄": "/",
    }
)
_LATEX = [
    (re.compile(r"\\(?:\$|\{\$\})"), "$"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"^\s*\{(.*)\}[\s.]*$", re.DOTALL), r"\1"),
    (re.compile(r",\\!|\{,\}"), ","),
    (re.compile(r"\\[,!](?=\d{3}(?!\d))"), "\u2009"),
    (re.compile(r"\\[()\[\],;:! ]|\\(?:left|right|quad|displaystyle)(?![a-zA-Z])"), " "),
    (re.compile(r"\\(?:text|mbox|textbf|mathrm|mathbf|boxed|fbox)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\[dtc]?frac\s*\{(\d+)\}\s*\{(\d+)\}"), r" \1/\2 "),
    (re.compile(r"\\approx(?![a-zA-Z])"), "="),
    (re.compile(r"\^\s*(?:\{\s*)?\\circ\s*\}?"), "°"),
]
_SPACES = re.compile(r"\s+")
_DIGITS = re.compile(r"\.?\d(?:[\d.,\u2009]*\d)?(?:[eE][+-]?\d{1,2}(?!\w))?")
_GROUPED = re.compile(
    r"(?:[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,2}(?:\u2009\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,2})?|\.\d+"
)
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])(?:\^\{?[23]\}?|[²³])")
_LEAD = re.compile(  # what stands before the number: words, a sign, a currency
    r"(?P<words>.*?)(?P<space>\s*)(?P<minus>\b(?:negative|minus) +)?(?P<sign>[+-]?)(?P<gap> *)"
    r"(?P<money>(?:US|CA|AU)?[$£€¥₹] *|\b(?:USD|EUR|GBP|INR|Rs\.?) *|)(?P<inner>[+-]?)",
    re.IGNORECASE | re.DOTALL,
)
_BEFORE = re.compile(r"(?:[A-Za-z'\",.:()°\[\] ]|\n|(?<=[A-Za-z])-(?=[A-Za-z]))*")
_AFTER = re.compile(
    r"(?P<scale>[kK](?![\w])|[ -]?(?:hundred|thousand|million|billion|trillion)s?(?![a-z]))?"
    r"(?![XYZNxyzn](?![A-Za-z]))(?![MB](?![A-Za-z]))"
    r" *[%¢°$£€¥₹]?(?:[A-Za-z'\",.:;()°%¢$\[\] ]|\n"
    r"|(?<=[A-Za-z\d$%])(?:-(?=[A-Za-z]{2})|/(?=[A-Za-z])))*"
)
_SPOILER = re.compile(  # what makes one number no answer: alternatives, denials, bounds, further numbers
    rf"\b(?:or|nor|not|never|cannot|either|neither|maybe|perhaps|possibly|unless|between|unknown|"
    rf"{math_answers.NUMBER_WORDS})\b|n't\b|\band (?:a|one) |[<>≤≥≠!?^_]"
    r"|\b(?:than|at least|at most|up to|over|under|above|below|nearly|almost) [$£€]?\d"
    r"|\d (?:squared|cubed|factorial)\b",
    re.IGNORECASE,
)
_SCALE = {"k": 1000, **math_answers.SCALES}
_JOINTS = re.compile(r"[,;\n](?!\d{3}(?!\d))|\b(?:and|so|then)\b")
_BARE = re.compile(r"\s*(-?)\s*[$£€]?\s*(\d[\d,]*(?:\.\d+)?)\s*%?\s*")


@lru_cache(maxsize=8192)
def read_number(text: str) -> tuple[Fraction | int | None, str]:
    r"""(the one number that an answer states, "") or (None, reason).

    Reads a sign, a currency, thousands commas, decimals, a percent sign (dropped, as GSM8K's golds drop
    it), unit words, a phrase around the number, the end of an equation chain, and a fraction in lowest
    terms. Two numbers, an unevaluated operation, a bound ("at least 18"), a denial or an alternative state
    none. Examples: "$1,234.50" -> 1234.5; "9+9=18" -> 18; "18 eggs per day" -> 18; "9+9", "18 or 20",
    "1,23" -> none.
    """
    plain = _PLAIN.fullmatch(text)
    if plain:
        return int(plain[1].replace(",", "")), ""
    text = text.translate(_CHARS).replace("**", " ").strip(" *")
    if "\\" in text or "{" in text or "$" in text:
        for pattern, new in _LATEX:
            text = pattern.sub(new, text)
    if text.count("$") > 1:  # maths mode; money signs more than once change nothing either
        text = re.sub(r"(?<=\d)\$+(?=\d)", " ", text).replace("$", "")
    # Patterns below with several optional spaces in a row would try every way to share a long run among them.
    text = _SPACES.sub(_one_space, text)
    sides = re.split(r"==?", text)
    sides[-1] = _UNIT_POWER.sub("", sides[-1])
    if any(_SPOILER.search(side) for side in sides):
        return None, "hedged"
    if any(_JOINTS.search(side) or not side.strip() for side in sides[1:-1]):
        return None, "hedged"
    bare = [
        match and Fraction((match[1] + match[2]).replace(",", "")) for match in map(_BARE.fullmatch, sides)
    ]
    if any(
        left is not None and right is not None and left != right for left, right in itertools.pairwise(bare)
    ):
        return None, "contradiction"
    return _one_number(sides[-1].strip())


def _one_space(run: re.Match) -> str:
    """One character for a run of white space: a line's end, a thousands mark that stands alone, or a space."""
    return "\n" if "\n" in run[0] else run[0] if run[0] == "\u2009" else " "


def _one_number(text: str) -> tuple[Fraction | int | None, str]:
    """The number of a phrase that holds exactly one; `1 1/2` and `1/2` are one number, `36/2` is work."""
    runs = list(_DIGITS.finditer(text))
    if not runs:
        return None, "no_number"
    gaps = [text[a.end() : b.start()] for a, b in itertools.pairwise(runs)]
    fraction = bool(gaps) and gaps[-1].strip() == "/" and all(run[0].isdigit() for run in runs)
    if len(runs) > 1 and not (fraction and (len(runs) == 2 or len(runs) == 3 and gaps[0].isspace())):
        return None, "many_numbers"
    if not all(_GROUPED.fullmatch(run[0]) and len(run[0]) < 400 for run in runs):
        return None, "bad_number"
    if fraction:
        top, bottom = int(runs[-2][0]), int(runs[-1][0])
        if bottom < 2 or Fraction(top, bottom).denominator != bottom or len(runs) == 3 and top > bottom:
            return None, "work"
        value = Fraction(top, bottom) + (int(runs[0][0]) if len(runs) == 3 else 0)
    else:
        value = Fraction(runs[0][0].replace(",", "").replace("\u2009", ""))
    lead, tail = _LEAD.fullmatch(text[: runs[0].start()]), _AFTER.fullmatch(text, runs[-1].end())
    words, signs = lead["words"], (lead["minus"] or "")[:1] + lead["sign"] + lead["inner"]
    # "total - 18" may hold a dash or a minus, "x18" and "2-18" hold no number of their own
    apart = not words or lead["space"] or words[-1] in ":([\"'"
    dash = lead["sign"] and lead["gap"] and words and words[-1] not in ":("
    if tail is None or not apart or dash or len(signs) > 1 or not _BEFORE.fullmatch(words):
        return None, "work"
    if tail["scale"]:
        value *= _SCALE[tail["scale"].strip(" -").lower().removesuffix("s")]
    return (value if signs in ("", "+") else -value), ""


def _gold_number(gold: str) -> Fraction | int:
    value, _ = read_number(gold.rpartition("####")[2].strip())
    if value is None:
        raise ValueError(f"gold {gold[:60]!r} is no number, which a GSM8K gold must be")
    return value


def check_gold(gold: str, task: str) -> None:
    """Raise ValueError for a gold that no answer to the task can be compared with, as far as no algebra is needed."""
    if task in NUMERIC:
        _gold_number(gold)
        return
    try:
        math_answers.read_gold(gold)
    except math_answers.Unreadable as problem:
        raise ValueError(f"gold {gold[:60]!r} can't be read ({problem})") from None


# --- grading --------------------------------------------------------------------------------------

NUMERIC = ("gsm8k", "tiny")
TASKS = (*NUMERIC, "math500")


def grade(completion: str, gold: str, task: str, shape: str = "strict") -> Verdict:
    """The verdict on one completion; see `grade_many`."""
    return grade_many([(completion, gold, task)], shape)[0]


def grade_many(
    items: Iterable[tuple[str, str, str]],
    shape: str = "strict",
    limit_s: float = 5.0,
    workers: int | None = None,
) -> list[Verdict]:
    """Verdicts on (completion, gold, task), in order.

    shape: key of FORMATS; decides `format` and so `reward`, never `answer`. limit_s: seconds before a
    worker that compares one pair is killed. workers: processes, default one a core, at most 8; none is
    started unless a pair needs algebra. Raises UserError for an unknown task or shape, ValueError for a
    gold that is empty or, in GSM8K, no number, and grading_pool.WorkerCannotStart where math-verify is
    missing.
    """
    if shape not in FORMATS:
        raise unknown("format", shape, FORMATS)
    right_format = FORMATS[shape]
    verdicts: list[Verdict] = []
    # (gold, answer) -> where it is asked: the completions of a group repeat each other
    pending: dict[tuple[str, str], list[int]] = {}
    for completion, gold, task in items:
        since = time.perf_counter()
        formatted = right_format(completion)
        extracted, reason = extract(completion)
        correct = False
        if task in NUMERIC:
            target = _gold_number(gold)
            if extracted is not None:
                value, reason = read_number(extracted)
                correct = value is not None and value == target
                reason = reason or ("equal" if correct else "different")
        elif task == "math500":
            if not gold.strip():
                raise ValueError("gold is empty")
            if extracted is not None:
                try:
                    correct, reason = math_answers.compare(gold, extracted)
                except math_answers.NeedsAlgebra:
                    pending.setdefault((gold, extracted), []).append(len(verdicts))
        else:
            raise unknown("task", task, TASKS)
        reward = float(correct and formatted)
        verdicts.append(Verdict(correct, formatted, reward, reason, extracted, time.perf_counter() - since))
    if pending:
        from ftis.tasks.grading.pool import shared_pool

        outcomes = shared_pool(workers).run(list(pending), limit_s)
        for places, outcome in zip(pending.values(), outcomes, strict=True):
            for i in places:
                old, same = verdicts[i], bool(outcome.same)
                seconds = old.seconds + outcome.seconds
                verdicts[i] = Verdict(
                    same, old.format, float(same and old.format), outcome.reason, old.extracted, seconds
                )
    return verdicts


def is_fault(verdict: Verdict) -> bool:
    """Whether the grader gave no verdict (timeout, died, error: ...): count these apart from wrong ones."""
    return verdict.reason.partition(":")[0] in FAULTS


# --- ftis grade -----------------------------------------------------------------------------------


def grade_file(path: str, out=None, shape: str = "strict", limit_s: float = 5.0, batch: int = 256) -> int:
    """Grade the JSON lines of `path` ("-": stdin) to `out` (default stdout); returns how many.

    In: `task`, `gold`, `completion`, optional `id`. Out: `id`, `correct`, `format`, `reward`, `answer`,
    `reason`, `seconds`. Raises UserError naming the first invalid line; the lines before it have been
    written by then.
    """
    out = out or sys.stdout
    try:
        source = sys.stdin if path == "-" else open(path, encoding="utf-8")  # noqa: SIM115 - stdin stays open
    except OSError as problem:
        raise UserError(f"{path}: can't be read: {problem.strerror}") from None
    done = 0
    rows: list[dict] = []
    try:
        for number, line in enumerate(source, 1):
            if line.strip():
                rows.append(_row(line, f"{path}: line {number}", number))
            if len(rows) == batch:
                done, rows = done + _write(rows, out, shape, limit_s), []
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except UserError:
        _write(rows, out, shape, limit_s)
        raise
    finally:
        if source is not sys.stdin:
            source.close()
    return done + _write(rows, out, shape, limit_s)


def _row(line: str, where: str, number: int) -> dict:
    """A checked input line; its line number stands in for a missing id."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{where}: not JSON ({problem}); write one object a line") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: not a JSON object; write one object with task, gold and completion")
    for field in ("task", "gold", "completion"):
        if not isinstance(row.get(field), str):
            raise UserError(
                f"{where}: field {field!r} is missing or no text; give task, gold and completion as strings"
            )
    if row["task"] not in TASKS:
        raise UserError(f"{where}: unknown task {row['task']!r}: choose one of {', '.join(sorted(TASKS))}")
    try:
        _gold_number(row["gold"]) if row["task"] in NUMERIC else None
        if not row["gold"].strip():
            raise ValueError("gold is empty")
    except ValueError as problem:
        raise UserError(f"{where}: {problem}") from None
    return {"id": number, **row}


def _write(rows: list[dict], out, shape: str, limit_s: float) -> int:
    verdicts = grade_many([(r["completion"], r["gold"], r["task"]) for r in rows], shape, limit_s)
    for row, v in zip(rows, verdicts, strict=True):
        result = {"id": row["id"], "correct": v.answer, "format": v.format, "reward": v.reward}
        result |= {"answer": v.extracted, "reason": v.reason, "seconds": round(v.seconds, 6)}
        out.write(json.dumps(result) + "\n")
    out.flush()
    return len(rows)
