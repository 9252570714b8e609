"""What a completion gives as its answer, and whether it has the asked shape."""

import re
from collections.abc import Callable

from ftis.tasks.grading.clean import MAX_CHARS

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
    elif content is not None and len(content) <= MAX_CHARS and "boxed" in content:
        boxed = last_box(content)
        content = content if boxed is None else boxed
    if content is None:
        opened = "<answer>" in completion or "\\boxed" in completion or "\\fbox" in completion
        return None, "unclosed" if opened else "no_answer"
    content = content.strip(" \t\r\n\x00")
    if len(content) > MAX_CHARS:
        return None, "too_long"
    return (content, "") if content else (None, "empty")


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
