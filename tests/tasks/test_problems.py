"""Datasets, prompts and what is said when they are wrong."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ftis.errors import UserError
from ftis.model.loading import load_tokenizer
from ftis.tasks.grading.verdict import grade
from ftis.tasks.problems import SOURCES, Dataset, iteration_problems, load_problems
from ftis.tasks.prompts import EXAMPLES, PROMPTS, encode_prompt
from tests.parts import needs_data


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@needs_data
def test_real_datasets_in_full():
    train = load_problems(Dataset(name="gsm8k", split="train"))
    test = load_problems(Dataset(name="gsm8k", split="test"))
    math = load_problems(Dataset(name="math500", split="test"))
    assert (len(train), len(test), len(math)) == (7473, 1319, 500)
    assert test[0].gold == "18" and test[0].question.startswith("Janet")
    assert math[0].gold == r"\left( 3, \frac{\pi}{2} \right)"
    assert math[0].id == "test/precalculus/807.json" and math[0].meta == {
        "subject": "Precalculus",
        "level": 2,
    }
    assert len({p.id for p in train}) == 7473


def test_local_file_shuffle_and_limit(tmp_path):
    path = write(tmp_path / "x.jsonl", *({"question": f"q{i}", "answer": f"so\n#### {i}"} for i in range(9)))
    plain = load_problems(Dataset(name="gsm8k", path=path))
    assert [p.gold for p in plain] == [str(i) for i in range(9)]
    mixed = load_problems(Dataset(name="gsm8k", path=path, shuffle_seed=1, limit=4))
    again = load_problems(Dataset(name="gsm8k", path=path, shuffle_seed=1))
    assert (
        mixed == again[:4]
        and again != plain
        and Counter(again_p.id for again_p in again).most_common(1)[0][1] == 1
    )


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"question": "q"}], "row 1 has no text in the field 'answer'"),
        (
            [{"question": "q", "answer": "#### 3"}, {"answer": "#### 3"}],
            "row 2 has no text in the field 'question'",
        ),
        ([{"question": "q", "answer": "3"}], "must end with '#### ANSWER'"),
        ([{"question": 5, "answer": "#### 3"}], "field 'question'"),
        (
            [{"question": "q", "answer": "#### 3"}, {"question": "q", "answer": "#### 5 or 6"}],
            "row 2: the field 'answer': gold '5 or 6' is no number, .*; correct the answer or remove",
        ),
        (["text"], "field 'question'"),
        ([], "holds no problem"),
    ],
)
def test_bad_rows_are_named(tmp_path, rows, says):
    path = write(tmp_path / "x.jsonl", *rows)
    with pytest.raises(UserError, match=says) as error:
        load_problems(Dataset(name="gsm8k", path=path))
    assert path in str(error.value)


@pytest.mark.parametrize(
    ("gold", "reason"),
    [("4=5", "contradiction"), (".", "empty"), ("(" * 40, "too_deep"), ("1" * 2001, "too_long")],
)
def test_a_math_gold_that_nothing_can_equal_is_named(tmp_path, gold, reason):
    path = write(tmp_path / "x.jsonl", {"problem": "q", "answer": "x^2"}, {"problem": "q", "answer": gold})
    with pytest.raises(UserError, match=rf"row 2: the field 'answer': gold .* can't be read \({reason}\)"):
        load_problems(Dataset(name="math500", split="test", path=path))


def test_other_bad_input(tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_text('{"question": "q", "answer": "#### 1"}\n{oops\n')
    with pytest.raises(UserError, match="line 2 is not JSON"):
        load_problems(Dataset(name="gsm8k", path=str(tmp_path / "x.jsonl")))
    with pytest.raises(UserError, match="no file"):
        load_problems(Dataset(name="gsm8k", path=str(tmp_path / "absent.jsonl")))
    path = write(tmp_path / "y.jsonl", {"question": "q", "answer": "#### 1"})
    with pytest.raises(UserError, match="limit is 5, but there are 1"):
        load_problems(Dataset(name="gsm8k", path=path, limit=5))
    with pytest.raises(UserError, match="give `path`"):
        load_problems(Dataset(name="tiny"))


def test_rows_need_ids_of_their_own(tmp_path):
    bare = [{"problem": f"q{i}", "answer": str(i)} for i in range(4)]
    path = write(tmp_path / "m.jsonl", *bare)
    problems = load_problems(Dataset(name="math500", path=path, split="test"))
    assert [p.id for p in problems] == ["test/0", "test/1", "test/2", "test/3"]
    path = write(tmp_path / "t.jsonl", *(row | {"unique_id": "same"} for row in bare))
    with pytest.raises(UserError, match="'unique_id' must differ between rows; 'same' stands twice"):
        load_problems(Dataset(name="math500", path=path, split="test"))


def test_without_network_and_local_copy_one_error_names_both_ways(monkeypatch):
    monkeypatch.delenv("FTIS_DATA", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="no local copy") as error:
        load_problems(Dataset(name="gsm8k"))
    for way_out in ("network", "local path", "path: FILE.jsonl", "FTIS_DATA=FOLDER with gsm8k/train.jsonl"):
        assert way_out in str(error.value)


def test_revisions_are_pinned():
    for source in SOURCES.values():
        assert not source.repo or len(source.revision) == 40


def test_every_problem_once_a_pass_and_by_seed_and_step_alone():
    steps = [iteration_problems(10, 4, seed=3, step=t) for t in range(1, 11)]
    flat = [i for step in steps for i in step]
    for epoch in range(4):
        assert sorted(flat[10 * epoch : 10 * epoch + 10]) == list(range(10))
    assert flat[:10] != flat[10:20]
    assert iteration_problems(10, 4, seed=3, step=7) == steps[6]
    assert iteration_problems(10, 4, seed=4, step=7) != steps[6]
    assert len(iteration_problems(3, 8, seed=1, step=1)) == 8


def test_worked_examples_earn_the_reward_they_teach():
    for _, answered in EXAMPLES:
        gold = answered.split("<answer>")[1].split("</answer>")[0].strip()
        assert grade(answered, gold, "gsm8k").reward == 1.0


def test_prompt_texts_are_pinned():
    """A changed text must get a new key: runs record the key."""
    import hashlib

    digests = {key: hashlib.sha256(render("Q?").encode()).hexdigest()[:12] for key, render in PROMPTS.items()}
    assert digests == PINNED


PINNED = {
    "tiny-v1": "c1ce7ac69e62",
    "chat-v1": "5d52b1545ca3",
    "chat-fewshot-v1": "5de1184c73de",
    "chat-fewshot-think-v1": "73eaef06b074",
}


def test_a_prompt_that_does_not_fit_is_refused(tiny):
    tokenizer = load_tokenizer(str(tiny / "tok"))
    question = "Tom has 7 pens, buys 5. How many pens now?"
    ids = encode_prompt("tiny-v1", question, tokenizer)
    assert tokenizer.decode(ids) == question
    assert encode_prompt("tiny-v1", question, tokenizer, room=len(ids)) == ids
    with pytest.raises(UserError, match=f"takes {len(ids)} tokens"):
        encode_prompt("tiny-v1", question, tokenizer, room=len(ids) - 1)
    with pytest.raises(UserError, match="has no token for"):
        encode_prompt("tiny-v1", "Zoë has 7 kiwis.", tokenizer)
    with pytest.raises(UserError, match="unknown prompt 'nope': choose one of chat-"):
        encode_prompt("nope", question, tokenizer)


TINY_IDS = [40, 81, 20, 17, 52, 22, 68, 20, 15, 23, 82, 83, 52, 84, 24]


def test_token_ids_of_a_prompt_are_pinned(tiny):
    """Of the tokenizer that comes with the tiny tier; Qwen2.5's and SmolLM2's add nothing to a text
    either."""
    ids = encode_prompt(
        "tiny-v1", "Tom has 7 pens, buys 5. How many pens now?", load_tokenizer(str(tiny / "tok"))
    )
    assert ids == TINY_IDS


def byte_level(template: str | None) -> PreTrainedTokenizerFast:
    """A tokenizer of single bytes, ChatML's tags and other special tokens, which reads a text as the template
    says."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "</s>", "<pre>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    core = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    if template:
        core.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[(token, vocabulary[token]) for token in special[:3]]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", extra_special_tokens=special[2:]
    )


@pytest.mark.parametrize(
    "template, begins",
    [(None, []), ("<s> $A", [0]), ("<s> $A </s>", [0]), ("$A </s>", []), ("<pre> <s> $A", [2, 0])],
)
@pytest.mark.parametrize("prompt", ["tiny-v1", "chat-fewshot-think-v1"])
def test_a_prompt_begins_as_the_tokenizer_begins_a_text(tmp_path, template, begins, prompt):
    """With a BOS where it adds one, and never with an end that it adds."""
    byte_level(template).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    text = PROMPTS[prompt]("What is 2 + 3?")
    ids = encode_prompt(prompt, "What is 2 + 3?", tokenizer)
    assert ids == begins + byte_level(None)(text, add_special_tokens=False).input_ids
    assert encode_prompt(prompt, "What is 2 + 3?", tokenizer, room=len(ids)) == ids
    with pytest.raises(UserError, match=f"takes {len(ids)} tokens"):
        encode_prompt(prompt, "What is 2 + 3?", tokenizer, room=len(ids) - 1)


def test_a_tokenizer_that_reads_a_text_otherwise_beside_special_tokens_is_refused():
    def odd(text, add_special_tokens=True):
        return SimpleNamespace(input_ids=[0, 5, 7] if add_special_tokens else [5, 6])

    with pytest.raises(UserError, match="the tokenizer reads a text otherwise where it adds special tokens"):
        encode_prompt("tiny-v1", "a", odd)
