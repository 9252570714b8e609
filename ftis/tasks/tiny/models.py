"""Tiny language models that the workflow makes itself: tokenizer, models and supervised warm start.

A model is an expert in one style of solving the problems of `ftis.tasks.tiny.problems`. Its warm start leaves
room for reinforcement learning: whether a solution is tagged, untagged or guessed depends on how the question
is worded.

A prompt is the question's text and nothing else; a completion starts right behind it and ends with `<eos>`.
torch and transformers are imported where they are used, so that reading a tier's settings needs neither.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from ftis.errors import UserError
from ftis.files import write_folder
from ftis.settings import settings, to_dict
from ftis.tasks.tiny.problems import (
    LARGEST,
    NAMES,
    OBJECTS,
    PHRASES,
    DataSettings,
    TinyProblem,
    make_data,
    make_problem,
)

__all__ = ["DataSettings", "TinyModel", "make_data", "make_model", "make_tokenizer"]

# -------------------------------------------------------------------------------------------- solutions

Style = Literal["base", "coder", "words"]
KINDS = ("tagged", "untagged", "guess")
MIX = {"how_many": (0.75, 0.13, 0.12), "count": (0.25, 0.70, 0.05)}
"""Shares of `KINDS` in the warm start by the question's form: greedy decoding then fails on one of the two
forms, and sampling finds the rewarded kind on both."""
SEPARATOR = {"base": "; ", "coder": "\n", "words": ", then "}


def work(steps: tuple, style: Style) -> list[tuple[str, str]]:
    """Each step as (what stands before its result, result); `SEPARATOR` goes between steps."""
    if style == "base":
        return [(f"{a}{op}{b}=", str(c)) for a, op, b, c in steps]
    if style == "words":
        return [(f"{a}{op}{b} gives ", str(c)) for a, op, b, c in steps]
    lines = [(f"{new}={old}{op}{b}=", str(c)) for old, new, (_, op, b, c) in zip("abcdef", "bcdefg", steps)]
    return [(f"a={steps[0][0]}\n" + lines[0][0], lines[0][1]), *lines[1:]]


def render(problem: TinyProblem, style: Style, kind: str = "tagged", slip: int = 0, guess: int = 0) -> str:
    """A completion for `problem`, without `<eos>`.

    kind: tagged (earns a reward), untagged (same work, no tags) or guess (tags, no work, answer `guess`).
    slip: added to the last step's result. Only a tagged completion with slip 0 is right.
    """
    if kind == "guess":
        return f"<think> guess </think> <answer> {guess} </answer>"
    *head, (a, op, b, c) = problem.steps
    result = c + slip
    text = SEPARATOR[style].join(lead + r for lead, r in work((*head, (a, op, b, result)), style))
    if kind == "untagged":
        end = {"base": ". The answer is {}", "coder": "\nreturn {}", "words": ", so {}."}[style]
        return text + end.format(result)
    if style == "coder":
        return f"<think>\n{text}\n</think>\n<answer> {result} </answer>"
    return f"<think> {text} </think> <answer> {result} </answer>"


# -------------------------------------------------------------------------------------------- tokenizer

PAD, EOS = "<pad>", "<eos>"
# Tags take the space before them along, words too; digits stand alone, and so does the space before a number.
SPLIT = r" ?</?(?:think|answer)>|; | ?[A-Za-z]+|[0-9]|[ \n]|[^ \nA-Za-z0-9]"


TAGS = "<think>, <think>,</think>, </think>,<answer>, <answer>,</answer>, </answer>"
OTHER_WORDS = "has How many now Count the gives then so The answer is guess"


def vocabulary() -> list[str]:
    """The 93 tokens; a token's place is its id."""
    words = " ".join(p.replace(" {}", "") for kind in PHRASES.values() for p in kind).split()
    words += OTHER_WORDS.split()
    tags = TAGS.split(",")
    tokens = [PAD, EOS, *tags, *"0123456789", " ", "\n", *",.?;+-*/=", "; ", *"abcdefg", "return", *NAMES]
    tokens += [" " + word for word in dict.fromkeys([*OBJECTS, *words])]
    return tokens


def make_tokenizer(out: Path) -> None:
    """Write the word-level tokenizer that all tiny models share.

    `ftis.model.loading.load_tokenizer` reads it; AutoTokenizer would not, beside a Qwen2 config: it takes
    another class, which splits text otherwise.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary())}))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.save_pretrained(out)


# ------------------------------------------------------------------------------------------- warm start


@settings
class TinyModel:
    """A model and its supervised warm start."""

    size: Literal["xs", "s"]
    """xs: 104,832 parameters; s: 314,304."""
    style: Style
    """How its tagged solutions are written."""
    steps: int = Field(ge=1)
    """Optimizer steps."""
    batch: int = Field(default=16, ge=1)
    """Examples a step; no example is seen twice."""
    matrix_rate: float = Field(default=0.008, gt=0)
    """Learning rate of Muon, on the layers' matrices."""
    rate: float = Field(default=0.01, gt=0)
    """Learning rate of AdamW, on the embedding, norms and biases."""
    long_share: float = Field(default=0.2, ge=0, le=1)
    """Share of four-step chains, so that the out-of-distribution set is not at the floor."""
    other_share: float = Field(default=0.02, ge=0, le=1)
    """Share of solutions in the other two styles, so that no node finds another's samples impossible."""
    drill_share: float = Field(default=0.5, ge=0, le=1)
    """Share of drills in the first 70 % of the texts (see `examples`)."""
    slip_share: float = Field(default=0.03, ge=0, le=1)
    """Share of solutions whose last step is wrong."""


_COMMON = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(vocabulary())}
SIZES = {
    "xs": {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 192, **_COMMON},
    "s": {"hidden_size": 96, "num_hidden_layers": 3, "intermediate_size": 256, **_COMMON},
}
"""Architectures, under the names of a config.json."""


DRILL_STEPS, DRILL_PART = 5, 0.7
"""Steps of a drill, and the part of the warm start that has drills."""

Segments = list[tuple[str, bool]]
"""Pieces of a training text, and whether the loss counts their tokens."""


def examples(model: TinyModel, rng: random.Random, held_out: set[str]) -> Iterator[Segments]:
    """The `steps * batch` training texts, in order, without the questions in `held_out`.

    Most are a question and its completion; the others are drills, a chain of sums in the model's style whose
    results alone count: arithmetic is what takes longest to learn, and a drill holds more of it.
    """
    total = model.steps * model.batch
    for i in range(total):
        if i < DRILL_PART * total and rng.random() < model.drill_share:
            steps = make_problem(rng, DRILL_STEPS).steps
            pairs = work(steps, model.style)
            yield [part for lead, r in pairs for part in ((lead, False), (r + SEPARATOR[model.style], True))]
            continue
        problem = None
        while problem is None or problem.question in held_out:
            problem = make_problem(rng, 4 if rng.random() < model.long_share else rng.choice((2, 3)))
        others = [style for style in SEPARATOR if style != model.style]
        style = rng.choice(others) if rng.random() < model.other_share else model.style
        kind = rng.choices(KINDS, MIX[problem.form])[0]
        slip = rng.choice((-10, -1, 1, 10)) if rng.random() < model.slip_share else 0
        slip = -slip if problem.gold + slip < 0 else slip
        completion = render(problem, style, kind, slip, guess=rng.randint(0, LARGEST))
        yield [(problem.question, False), (completion + EOS, True)]


def build_model(size: str):
    """A fresh fp32 Qwen2 model of `size`, initialised from torch's current random state."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokens = vocabulary()
    model = Qwen2ForCausalLM(Qwen2Config(
        **SIZES[size], max_position_embeddings=256, initializer_range=0.1, tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokens.index(EOS), pad_token_id=tokens.index(PAD), dtype="float32",
    ))  # fmt: skip
    model.generation_config.eos_token_id = tokens.index(EOS)
    model.generation_config.pad_token_id = tokens.index(PAD)
    return model


def make_model(
    settings: TinyModel,
    seed: int,
    tokenizer: Path,
    data: Path,
    out: Path,
    progress: Callable[[int, int, float], None] | None = None,
) -> dict:
    """Train a tiny model on solutions and write it to `out` as a Hugging Face folder; `warm.json` is in it.

    data: folder whose validation and ood questions are kept out of the training text.
    progress: called as (step, steps, loss) every 10 steps.
    Runs on one CPU thread, where one seed gives the same weights bit for bit; the loss is the mean over the
    tokens of the completions. Returns what `warm.json` holds; its loss is the mean of the last 50 steps.
    """
    import torch
    from torch.nn.functional import cross_entropy, linear

    began = time.perf_counter()
    key = f"tiny-warm-{settings.size}-{settings.style}-{seed}"
    batches = _batches(settings, random.Random(key), tokenizer, data)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(hashlib.sha256(key.encode()).hexdigest()[:15], 16))
            model = build_model(settings.size)
        table = model.get_input_embeddings().weight
        matrices = [p for p in model.parameters() if p.ndim == 2 and p is not table]
        others = [p for p in model.parameters() if p.ndim != 2 or p is table]
        muon = _Muon(matrices)
        adam = torch.optim.AdamW(others, betas=(0.9, 0.99), weight_decay=0.0)
        losses = []
        for step, (ids, targets) in enumerate(batches, start=1):
            # Padding on the right and a causal model: no attention mask is needed.
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[targets >= 0]
            loss = cross_entropy(linear(hidden, table), targets[targets >= 0])
            losses.append(loss.item())
            model.zero_grad()
            loss.backward()
            decay = _decay(step, settings.steps)
            muon.step(settings.matrix_rate * decay)
            adam.param_groups[0]["lr"] = settings.rate * decay
            adam.step()
            if progress and (step % 10 == 0 or step == settings.steps):
                progress(step, settings.steps, losses[-1])
    finally:
        torch.set_num_threads(threads)
    loss = round(sum(losses[-50:]) / len(losses[-50:]), 6)
    facts = {"settings": to_dict(settings), "seed": seed, "steps": settings.steps, "loss": loss}
    return _write(model, Path(tokenizer), Path(out), facts, began)


class _Muon:
    """Muon (Jordan et al. 2024): momentum whose update is made nearly orthogonal by Newton-Schulz steps.

    What `torch.optim.Muon` computes, in fp32 and on stacks of equal shape: its bfloat16 products take half of
    the training time on a CPU.
    """

    def __init__(self, matrices: list, momentum: float = 0.95):
        import torch

        by_shape: dict = {}
        for matrix in matrices:
            by_shape.setdefault(matrix.shape, []).append(matrix)
        self.stacks = [(group, torch.zeros(len(group), *shape)) for shape, group in by_shape.items()]
        self.momentum = momentum

    def step(self, rate: float) -> None:
        import torch

        for group, buffer_NIO in self.stacks:
            grad_NIO = torch.stack([p.grad for p in group])
            buffer_NIO.lerp_(grad_NIO, 1 - self.momentum)
            update_NIO = self._orthogonal(grad_NIO.lerp(buffer_NIO, self.momentum))
            scale = max(1.0, update_NIO.shape[1] / update_NIO.shape[2]) ** 0.5
            for p, update in zip(group, update_NIO):
                p.data.add_(update, alpha=-rate * scale)

    @staticmethod
    def _orthogonal(x):
        """Newton-Schulz with the quintic of the reference: singular values of each matrix go to about 1."""
        import torch

        tall = x.shape[1] > x.shape[2]
        x = x.mT if tall else x
        x = (x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)).contiguous()
        for _ in range(5):
            gram = x @ x.mT
            inner = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
            x = torch.baddbmm(x, inner, x, beta=3.4445)
        return x.mT if tall else x


def _decay(step: int, steps: int) -> float:
    """Factor on the learning rates: constant for 60 % of the steps, then linear down to 5 %."""
    return min(1.0, max(0.05, (steps - step) / (0.4 * steps)))


def _batches(settings: TinyModel, rng: random.Random, tokenizer: Path, data: Path) -> list:
    """All batches as (ids, targets), both (batch, width) int64; targets are -1 where the loss counts nothing.

    Texts of like length share a batch, within a pool of 16 batches, so that little is padding.
    """
    import torch

    from ftis.model.loading import load_tokenizer

    held_out = set()
    for name in ("validation", "ood"):
        path = Path(data) / f"{name}.jsonl"
        if not path.exists():
            raise UserError(f"{path}: no such file; make the problems first with `ftis job tiny-data`")
        held_out |= {json.loads(line)["question"] for line in path.read_text().splitlines()}
    texts = list(examples(settings, rng, held_out))
    encoder = load_tokenizer(str(tokenizer)).backend_tokenizer
    encoded = iter(encoder.encode_batch_fast([text for segments in texts for text, _ in segments]))
    rows = []
    for segments in texts:
        parts = [(next(encoded).ids, counted) for _, counted in segments]
        ids = [i for ids, _ in parts for i in ids]
        rows.append((ids, [i if counted else -1 for ids, counted in parts for i in ids]))
    batches = []
    pool = 16 * settings.batch
    for start in range(0, len(rows), pool):
        ordered = sorted(rows[start : start + pool], key=lambda row: len(row[0]))
        groups = [ordered[i : i + settings.batch] for i in range(0, len(ordered), settings.batch)]
        rng.shuffle(groups)
        for group in groups:
            width = max(len(ids) for ids, _ in group)
            inputs = torch.tensor([ids + [encoder.token_to_id(PAD)] * (width - len(ids)) for ids, _ in group])
            targets = torch.tensor([counted + [-1] * (width - len(counted)) for _, counted in group])
            batches.append((inputs[:, :-1], targets[:, 1:]))
    return batches


def _write(model, tokenizer: Path, out: Path, facts: dict, began: float) -> dict:
    """Write the model's folder, `warm.json` last."""
    with write_folder(out) as partial:
        model.save_pretrained(partial)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer / file, partial)
        facts["sha256"] = hashlib.sha256((partial / "model.safetensors").read_bytes()).hexdigest()
        facts["seconds"] = round(time.perf_counter() - began, 2)
        (partial / "warm.json").write_text(json.dumps(facts, indent=1) + "\n")
    return facts
