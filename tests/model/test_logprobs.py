"""Log-probs without the logits tensor, and their gradients, against autograd of the plain path."""

import pytest
import torch

from ftis.model import logprobs as logprob_head
from ftis.model.loading import load_policy
from ftis.model.logprobs import TokenLogprob, accumulate
from ftis.model.lora import Lora
from tests.numerics import assert_rounded, assert_same, doubled, in_double


def test_token_logprob_by_hand():
    # logits are hidden @ weight.T = [ln 1, ln 3]: probabilities 1/4 and 3/4.
    with in_double():
        hidden = torch.tensor([[1.0]])
        weight = torch.log(torch.tensor([[1.0], [3.0]]))
        logp, entropy = TokenLogprob.apply(hidden, weight, torch.tensor([1]), 1.0)
        # At temperature 1/2 the logits double: probabilities 1/10 and 9/10.
        halved, _ = TokenLogprob.apply(hidden, weight, torch.tensor([1]), 0.5)
    assert logp.item() == pytest.approx(-0.2876820724, abs=1e-10)  # ln 3/4
    assert entropy.item() == pytest.approx(0.5623351446, abs=1e-10)  # -(1/4 ln 1/4 + 3/4 ln 3/4)
    assert halved.item() == pytest.approx(-0.1053605157, abs=1e-10)  # ln 9/10


@pytest.mark.parametrize("rows_a_chunk", [1, 3, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_logprob_is_autograd_of_the_plain_path(monkeypatch, rows_a_chunk, temperature):
    monkeypatch.setattr(logprob_head, "CHUNK_LOGITS", 11 * rows_a_chunk)
    torch.manual_seed(0)
    hidden = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    target = torch.randint(11, (7,))
    scale = torch.randn(7, dtype=torch.float64)

    with in_double():
        logp, entropy = TokenLogprob.apply(hidden, weight, target, temperature)
        ours = torch.autograd.grad((logp * scale).sum(), (hidden, weight))
    plain = torch.log_softmax(hidden @ weight.T / temperature, -1)
    expected = plain.gather(-1, target[:, None]).squeeze(-1)
    theirs = torch.autograd.grad((expected * scale).sum(), (hidden, weight))

    assert_same(logp, expected)
    assert_same(entropy, -(plain.exp() * plain).sum(-1))
    for a, b in zip(ours, theirs, strict=True):
        assert_same(a, b)


LENGTHS = [3, 1, 5, 2]


def plain_loss(logp, lengths):
    """Not linear in logp, different for each completion, and of its own tokens alone."""
    parts = logp.split(lengths)
    return sum((k + 1) * part.exp().sum() * part.mean() for k, part in zip(range(len(parts)), parts))


@pytest.mark.parametrize("chunk", [1, 4, 6, 100], ids=lambda n: f"{n} tokens")
@pytest.mark.parametrize("longest", [2, 100], ids=["some recomputed", "all kept"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_accumulate_is_autograd_of_the_plain_path(monkeypatch, chunk, longest, temperature):
    monkeypatch.setattr(logprob_head, "CHUNK_LOGITS", 11 * chunk)
    monkeypatch.setattr(logprob_head, "LONGEST_LOGITS", 11 * longest)
    monkeypatch.setattr(logprob_head, "BLOCK_LOGITS", 11 * 2)
    torch.manual_seed(0)
    hidden, weight, earlier = torch.randn(3, 11, 5)
    target = torch.randint(11, (11,))
    seen = {}

    def loss_of(part, logp, entropy):
        seen.update(dict.fromkeys(range(part.start, part.stop), True))
        parts = logp.split(LENGTHS[part])
        return sum((k + 1) * p.exp().sum() * p.mean() for k, p in zip(range(part.start, part.stop), parts))

    exact = [t.double() for t in (hidden, weight, earlier)]
    inputs = [t.clone().requires_grad_() for t in exact[:2]]
    logits = inputs[0] @ inputs[1].T / temperature
    logp = torch.log_softmax(logits, -1).gather(-1, target[:, None]).squeeze(-1)
    loss = plain_loss(logp, LENGTHS)
    expected = torch.autograd.grad(loss, inputs, retain_graph=True)
    # What is summed: (1 at the target) and softmax of the logits, which cancel where one of them is likely.
    (slope,) = torch.autograd.grad(loss, logp)
    parts = (
        logits.detach().softmax(-1).scatter_add(-1, target[:, None], torch.ones(11, 1, dtype=torch.float64))
    )
    parts *= slope.abs()[:, None] / temperature
    terms = [float(t.max()) for t in (parts @ exact[1].abs(), exact[2].abs() + parts.T @ exact[0].abs())]

    def check(hidden, weight, earlier, agree):
        seen.clear()
        grad_weight = earlier.clone()
        grad_hidden = accumulate(hidden, weight, grad_weight, target, LENGTHS, temperature, loss_of)
        assert list(seen) == [0, 1, 2, 3]
        agree(grad_hidden, expected[0], terms[0])
        agree(grad_weight, exact[2] + expected[1], terms[1])

    with in_double():
        check(*exact, assert_same)
    check(hidden, weight, earlier, assert_rounded)


@pytest.mark.parametrize(
    "lora", [None, Lora(r=4, alpha=8, target_modules="all-linear")], ids=["full", "lora"]
)
@pytest.mark.parametrize("tokens", [3, 100])
def test_a_policys_accumulated_gradient_is_that_of_its_logprobs(tiny, monkeypatch, lora, tokens):
    policy = doubled(load_policy(str(tiny / "base"), lora=lora))
    monkeypatch.setattr(logprob_head, "CHUNK_LOGITS", policy.vocab_size * tokens)
    ids = policy.tokenizer("Tom has 15 pens. How many pens", add_special_tokens=False).input_ids
    prompts, completions = [ids, ids[:3], ids, ids], [ids[1:5], ids[3:5], ids[2:9], ids[:1]]

    def loss_of(rows, logp, entropy, mask):
        assert not entropy.requires_grad and (logp[~mask] == 0).all()
        return (logp.exp() * mask).sum(-1) @ torch.arange(1.0, 5.0, dtype=logp.dtype)[rows]

    with in_double():
        policy.accumulate_gradient(prompts, completions, loss_of, temperature=0.8)
        ours = {name: p.grad.clone() for name, p in policy.trainable().items()}
        policy.model.zero_grad()
        logp, entropy, mask = policy.token_logprobs(prompts, completions, temperature=0.8)
        loss_of(slice(0, 4), logp, entropy, mask).backward()
    theirs = {name: p.grad for name, p in policy.trainable().items()}
    # The largest of all is the measure of each: those of an adapter's A are 0, since its B is.
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    for name, gradient in theirs.items():
        assert_same(ours[name], gradient, largest)


def test_in_half_precision_gradients_add_up_in_float32(tiny, monkeypatch):
    policy = load_policy(str(tiny / "base"), compute_dtype="bfloat16")
    ids = policy.tokenizer("Tom has 15 pens. How many pens", add_special_tokens=False).input_ids
    gradients = []
    for tokens in (1, 1000):
        monkeypatch.setattr(logprob_head, "CHUNK_LOGITS", policy.vocab_size * tokens)
        policy.model.zero_grad()
        policy.accumulate_gradient([ids] * 3, [ids[:4], ids[2:6], ids[4:8]], lambda r, logp, *_: logp.sum())
        gradients.append(torch.cat([p.grad.flatten() for p in policy.trainable().values()]))
    assert gradients[0].dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(*(g.double() for g in gradients), dim=0) > 0.9999
