"""The literal text before each question. A prompt's key carries its version: a changed text gets a new key.

Chat templates are not read from checkpoints: base, Coder and Instruct models ship different ones with
different default system prompts, and then their nodes would not answer the same question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ftis.errors import UserError, unknown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

INSTRUCTION = (
    "Solve the problem. First reason step by step between <think> and </think>. Then write only the final "
    "result between <answer> and </answer>. Write nothing outside these tags."
)

# Four worked examples that show the format on one- and two-step questions.
EXAMPLES = (
    (
        "A box holds 6 pencils. How many pencils do 4 boxes hold?",
        "<think> Each box holds 6 pencils. 4 boxes hold 4 * 6 = 24 pencils. </think> <answer> 24 </answer>",
    ),
    (
        "Mia has 15 dollars. She buys a book for 7 dollars and a pen for 2 dollars. How much is left?",
        "<think> She spends 7 + 2 = 9 dollars. She has 15 - 9 = 6 dollars left. </think> "
        "<answer> 6 </answer>",
    ),
    (
        "A train covers 60 miles an hour. How far does it go in 3 hours?",
        "<think> In 3 hours it goes 3 * 60 = 180 miles. </think> <answer> 180 </answer>",
    ),
    (
        "Ben has twice as many stamps as Ann. Ann has 8 stamps. How many do they have together?",
        "<think> Ben has 2 * 8 = 16 stamps. Together they have 16 + 8 = 24. </think> <answer> 24 </answer>",
    ),
)


def _turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def _chat(question: str, examples: tuple[tuple[str, str], ...] = ()) -> str:
    turns = [_turn("system", INSTRUCTION)]
    for asked, answered in examples:
        turns += [_turn("user", asked), _turn("assistant", answered)]
    return "".join([*turns, _turn("user", question), "<|im_start|>assistant\n"])


PROMPTS: dict[str, Callable[[str], str]] = {
    # The tiny models' warm start goes straight from the question into the solution.
    "tiny-v1": lambda question: question,
    # ChatML, which Qwen2.5 and SmolLM2 share.
    "chat-v1": _chat,
    # The same with worked examples as earlier turns, for models that don't know the format.
    "chat-fewshot-v1": lambda question: _chat(question, EXAMPLES),
    # And with the opening tag written for the model: goes with the reward "open", which adds it back.
    "chat-fewshot-think-v1": lambda question: _chat(question, EXAMPLES) + "<think>",
}


def encode_prompt(
    key: str, question: str, tokenizer: PreTrainedTokenizerBase, room: int | None = None
) -> list[int]:
    """Token ids of a prompt, which begins as the tokenizer begins a text (with a BOS, where it adds one), in
    training, validation and tests alike. A prompt longer than `room` is refused, never cut."""
    if key not in PROMPTS:
        raise unknown("prompt", key, PROMPTS)
    text = PROMPTS[key](question)
    try:
        plain = tokenizer(text, add_special_tokens=False).input_ids
        # Most add nothing, as to no text; the others' long prompts are read twice.
        whole = tokenizer(text).input_ids if tokenizer("").input_ids else plain
    except Exception as error:  # noqa: BLE001  what tokenizers raises for a word that its vocabulary lacks
        raise UserError(
            f"prompt {key!r}: the tokenizer has no token for a part of {question!r} ({error})"
        ) from None
    ids = _begun(plain, whole)
    if room is not None and len(ids) > room:
        raise UserError(
            f"prompt {key!r} takes {len(ids)} tokens for {question[:60]!r}..., but only {room} fit; raise "
            "the "
            "token budget or leave the question out"
        )
    return ids


def _begun(plain: list[int], whole: list[int]) -> list[int]:
    """The tokens of a text behind those that its tokenizer begins every text with: a BOS in Llama 3, Gemma
    and Mistral, nothing in Qwen2.5 and SmolLM2. What it ends a text with, an eos say, would end the answer
    before it begins.
    """
    for first in range(len(whole) - len(plain) + 1):
        if whole[first : first + len(plain)] == plain:
            return whole[: first + len(plain)]
    raise UserError(
        "prompt: the tokenizer reads a text otherwise where it adds special tokens to it, so that it can't "
        "be told which are "
        "to stand before a prompt; take a model with another tokenizer"
    )
