"""The sampler: what it samples, the log-probs it reports, and what its draws depend on."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ftis.errors import UserError
from ftis.model.decode import decoder
from ftis.model.loading import load_policy
from ftis.model.lora import Lora
from ftis.model.sampler import Request, SamplingParams, TransformersSampler, choose, draws
from ftis.model.vllm.sampler import VllmSampler
from ftis.tasks.problems import Dataset, load_problems
from tests.numerics import assert_rounded, doubled, in_double, summed


@pytest.fixture(scope="module")
def policy(tiny):
    policy = load_policy(str(tiny / "base"))
    # Of different lengths, so that padding is at work.
    problems = load_problems(Dataset(name="tiny", path=str(tiny / "data"), split="train"))
    encoded = [policy.tokenizer(p.question, add_special_tokens=False).input_ids for p in problems]
    policy.prompts = [min(encoded, key=len), encoded[0], max(encoded, key=len)]
    return policy


def requests(policy, samples=8, seed=0):
    return [Request(p, [(seed, i, s) for s in range(samples)]) for i, p in enumerate(policy.prompts)]


@pytest.fixture
def exact(policy):
    """The policy in float64, in which the test computes. Two ways to sample choose the same tokens on every
    processor then: in float32, one draw in some hundred thousand falls between their distribution
    functions."""
    with in_double():
        yield with_prompts(doubled(policy), policy)


def with_prompts(policy, other):
    policy.prompts = other.prompts
    return policy


def logprobs(groups):
    """Of all completions, one behind the other."""
    return np.concatenate([c.logprobs for group in groups for c in group])


def assert_fresh(policy, asked, groups, temperature=1.0):
    """What the sampler says are the log-probs of its completions comes out of a forward in float64 as well.
    It stores float32, whatever it computes in."""
    policy = doubled(policy)
    prompts = [r.prompt for r, group in zip(asked, groups) for _ in group]
    completions = [c.tokens.tolist() for group in groups for c in group]
    with torch.no_grad(), in_double():
        logp, _, mask = policy.token_logprobs(prompts, completions, temperature)
        terms = summed(policy, prompts, completions, temperature)
    assert_rounded(logprobs(groups), logp[mask], terms)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_agree_with_a_fresh_forward(policy, temperature):
    asked = requests(policy)
    groups = TransformersSampler(policy).sample(asked, SamplingParams(48, temperature))
    assert_fresh(policy, asked, groups, temperature)


def test_logprobs_agree_with_lora(tiny, policy):
    lora = Lora(r=4, alpha=8, target_modules="all-linear")
    policy = with_prompts(load_policy(str(tiny / "base"), lora=lora), policy)
    with torch.no_grad():
        for p in policy.trainable().values():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    asked = requests(policy)
    assert_fresh(policy, asked, TransformersSampler(policy).sample(asked, SamplingParams(48)))


def test_sampling_works_while_activation_checkpointing_is_on(tiny, policy):
    plain, checkpointing = (
        doubled(policy),
        doubled(load_policy(str(tiny / "base"), gradient_checkpointing=True)),
    )
    with in_double():
        theirs = TransformersSampler(checkpointing).sample(requests(policy), SamplingParams(20))
        assert checkpointing.model.training, "training goes on with checkpointing"
        ours = TransformersSampler(plain).sample(requests(policy), SamplingParams(20))
    for a, b in zip([c for g in ours for c in g], [c for g in theirs for c in g]):
        np.testing.assert_array_equal(a.tokens, b.tokens)


def test_stop_token_is_kept_and_truncation_flagged(exact):
    groups = TransformersSampler(exact).sample(requests(exact), SamplingParams(48))
    completions = [c for g in groups for c in g]
    assert any(c.finished for c in completions)
    for c in completions:
        stops = np.isin(c.tokens, list(exact.stop_ids))
        assert c.finished == stops[-1] and not stops[:-1].any()
        assert c.finished or len(c.tokens) == 48
        assert len(c.logprobs) == len(c.tokens)
    cut = TransformersSampler(exact).sample(requests(exact), SamplingParams(3))
    for short, full in zip([c for g in cut for c in g], completions):
        assert len(short.tokens) == min(3, len(full.tokens))
        assert short.finished == (full.finished and len(full.tokens) <= 3)
        np.testing.assert_array_equal(short.tokens, full.tokens[:3])


def test_a_total_budget_counts_the_prompt(policy):
    asked = requests(policy, samples=2)
    longest = max(len(r.prompt) for r in asked)
    groups = TransformersSampler(policy).sample(asked, SamplingParams(48, max_total_tokens=longest + 2))
    for request, group in zip(asked, groups):
        for c in group:
            assert len(c.tokens) == longest + 2 - len(request.prompt) or c.finished


def test_draws_belong_to_the_completion_not_to_the_batch(exact):
    sampler = TransformersSampler(exact)
    asked = requests(exact, samples=7)
    whole = sampler.sample(asked, SamplingParams(40))
    pieces = sampler.sample(asked, SamplingParams(40, max_batch=5))
    backwards = sampler.sample(asked[::-1], SamplingParams(40))[::-1]
    alone = [
        sampler.sample([Request(r.prompt, [k])], SamplingParams(40))[0][0] for r in asked for k in r.keys
    ]
    for a, b, c, d in zip(*([x for g in groups for x in g] for groups in (whole, pieces, backwards)), alone):
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_array_equal(a.tokens, c.tokens)
        np.testing.assert_array_equal(a.tokens, d.tokens)
    other = sampler.sample(requests(exact, samples=7, seed=1), SamplingParams(40))
    assert any(a.tokens.tolist() != b.tokens.tolist() for g, h in zip(whole, other) for a, b in zip(g, h))
    assert len({tuple(c.tokens) for c in whole[0]}) > 1, "samples of one prompt must differ"


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "the model's forward"])
def test_what_completions_share_is_decoded_once(exact, fused, monkeypatch):
    monkeypatch.setattr("ftis.model.decode.can_fuse", lambda _: fused)
    fed = []

    def counted(*args):
        made = decoder(*args)
        step = made.step
        made.step = lambda tokens: fed.append(len(tokens)) or step(tokens)
        return made

    monkeypatch.setattr("ftis.model.sampler.decoder", counted)
    asked = requests(exact, samples=16)
    groups = TransformersSampler(exact).sample(asked, SamplingParams(40))
    assert all(len({tuple(c.tokens) for c in group}) > 1 for group in groups)
    # A completion's last token is never fed.
    prefixes = sum(len({tuple(c.tokens[:n]) for c in g for n in range(1, len(c.tokens))}) for g in groups)
    every = sum(len(c.tokens) - 1 for g in groups for c in g)
    # Branches that are done are fed until they are dropped, at 15 % of them.
    assert prefixes <= sum(fed) <= prefixes / 0.85
    assert sum(fed) < 0.9 * every
    # A greedy completion shares with the others too, and changes none of them.
    fed.clear()
    mixed = [replace(r, keys=[None, *r.keys, None]) for r in asked]
    beside = TransformersSampler(exact).sample(mixed, SamplingParams(40))
    for group, (first, *others, last) in zip(groups, beside, strict=True):
        assert first.tokens.tolist() == last.tokens.tolist()
        for one, other in zip(group, others, strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)
    assert sum(fed) < 0.9 * every


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "the model's forward"])
def test_requests_may_share_a_prompt(exact, fused, monkeypatch):
    monkeypatch.setattr("ftis.model.decode.can_fuse", lambda _: fused)
    # So hot that all completions part at once, and so many prompts that none is dropped for being done.
    sampler, params = TransformersSampler(exact), SamplingParams(40, temperature=4.0)
    prompts = [list(exact.prompts[i % 3]) for i in range(10)]
    asked = [Request(p, [(0, i, s) for s in range(2)]) for i, p in enumerate([*prompts, prompts[0]])]
    shared = sampler.sample(asked, params)
    apart = sampler.sample([Request(list(r.prompt), r.keys) for r in asked], params)
    for one, other in zip([c for g in shared for c in g], [c for g in apart for c in g], strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
    assert_rounded(logprobs(shared), logprobs(apart))


def test_greedy_is_generate(exact):
    """Against transformers' own greedy decoding."""
    asked = [Request(p, [None]) for p in exact.prompts]
    groups = TransformersSampler(exact).sample(asked, SamplingParams(40, temperature=0.6))
    assert_fresh(exact, asked, groups)
    for request, (completion,) in zip(asked, groups):
        theirs = exact.model.generate(
            torch.tensor([request.prompt]), attention_mask=torch.ones(1, len(request.prompt)), do_sample=False,
            max_new_tokens=40, eos_token_id=sorted(exact.stop_ids),
        )  # fmt: skip
        assert completion.tokens.tolist() == theirs[0, len(request.prompt) :].tolist()


def test_choose_inverts_the_distribution_function():
    # Probabilities 0.1, 0.2, 0, 0.7: the draw falls into [0, .1), [.1, .3), [.3, 1).
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.0, 0.7], [0.0, 1.0, 0.0, 0.0]], dtype=torch.float64))
    branch = torch.tensor([0, 0, 1, 0, 0, 0])
    uniforms = torch.tensor([0.0, 0.0999, 0.5, 0.15, 0.31, 1 - 2**-24])
    tokens, logp = choose(logits, branch, uniforms, SamplingParams(1))
    assert tokens.tolist() == [0, 0, 1, 1, 3, 3]
    np.testing.assert_allclose(logp.exp(), [0.1, 0.1, 1, 0.2, 0.7, 0.7], rtol=1e-12)
    # Without a draw the likeliest, at temperature 1 whatever the others'.
    uniforms[[1, 3]] = torch.nan
    tokens, logp = choose(logits, branch, uniforms, SamplingParams(1))
    assert tokens.tolist() == [0, 3, 1, 3, 3, 3]
    np.testing.assert_allclose(logp.exp(), [0.1, 0.7, 1, 0.7, 0.7, 0.7], rtol=1e-12)
    tokens, logp = choose(logits, branch, uniforms, SamplingParams(1, temperature=0.5))
    # The squares are 0.01, 0.04, 0, 0.49 of 0.54.
    assert tokens.tolist() == [0, 3, 1, 3, 3, 3]
    np.testing.assert_allclose(logp.exp(), [1 / 54, 0.7, 1, 0.7, 49 / 54, 49 / 54], rtol=1e-12)
    tokens, logp = choose(logits, branch, torch.full((6,), torch.nan), SamplingParams(1, temperature=0.5))
    assert tokens.tolist() == [3, 3, 1, 3, 3, 3]
    np.testing.assert_allclose(logp.exp(), [0.7, 0.7, 1, 0.7, 0.7, 0.7], rtol=1e-12)


@pytest.mark.parametrize("key", [(0,), None], ids=["sampled", "greedy"])
@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
def test_logits_that_are_not_finite_are_an_error_that_names_the_model(tiny, policy, key, value):
    broken = load_policy(str(tiny / "base"))
    with torch.no_grad():
        broken.model.get_output_embeddings().weight[5, 0] = value
    # The prompt's logits, those of later tokens, and a sound completion in the same batch.
    asked = [Request(p, [key, (1,)]) for p in policy.prompts]
    with pytest.raises(UserError, match=rf"model {tiny / 'base'}: its logits are NaN or infinite"):
        TransformersSampler(broken).sample(asked, SamplingParams(8))


def test_one_broken_branch_is_enough():
    logits = torch.zeros(2, 4)
    logits[1, 2] = torch.nan
    branch = torch.tensor([0, 1, 1])
    for uniforms in ([0.3, 0.0, 0.9], [torch.nan] * 3, [0.3, torch.nan, 0.9]):
        for params in (SamplingParams(1), SamplingParams(1, top_k=2)):
            tokens, logp = choose(logits, branch, torch.tensor(uniforms), params)
            assert logp.isfinite().tolist() == [True, False, False] and tokens.max() < 4


def test_vllm_s_log_probs_must_be_finite_too():
    sampler = object.__new__(VllmSampler)
    sampler.model, sampler.policy, sampler._stop_ids, sampler.bias = "m", None, frozenset({1}), {}
    answer = np.array([3, 1], np.int32), np.array([-1.0, np.nan], np.float32), True
    sampler.engine = SimpleNamespace(sample=lambda *_: [answer])
    with pytest.raises(UserError, match="model m: its logits are NaN or infinite"):
        sampler.sample([Request([2], [None])], SamplingParams(8))


def test_choose_frequencies_and_top_k():
    probabilities = torch.tensor([0.05, 0.5, 0.15, 0.3], dtype=torch.float64)
    n = 20000
    logits, branch = probabilities.log()[None], torch.zeros(n, dtype=torch.int64)
    uniforms = torch.from_numpy(draws((3,), n))
    tokens, _ = choose(logits, branch, uniforms, SamplingParams(1))
    np.testing.assert_allclose(np.bincount(tokens, minlength=4) / n, probabilities, atol=0.015)
    # top_k renormalises what is sampled; the log-probs stay those of the full softmax.
    tokens, logp = choose(logits, branch, uniforms, SamplingParams(1, top_k=2))
    np.testing.assert_allclose(np.bincount(tokens, minlength=4) / n, [0, 0.625, 0, 0.375], atol=0.015)
    np.testing.assert_allclose(logp.exp(), probabilities[tokens], rtol=1e-12)
    # Temperature 1/2 squares the odds: .0025, .25, .0225, .09 over .365.
    tokens, logp = choose(logits, branch, uniforms, SamplingParams(1, temperature=0.5))
    expected = torch.tensor([0.0025, 0.25, 0.0225, 0.09], dtype=torch.float64) / 0.365
    np.testing.assert_allclose(np.bincount(tokens, minlength=4) / n, expected, atol=0.015)
    np.testing.assert_allclose(logp.exp(), expected[tokens], rtol=1e-12)


def test_ids_beyond_the_tokenizer_are_never_sampled(tiny, policy):
    policy = with_prompts(load_policy(str(tiny / "base")), policy)
    policy.model.resize_token_embeddings(len(policy.tokenizer) + 35)
    policy.model.get_input_embeddings().weight.data[len(policy.tokenizer) :] = 100.0
    groups = TransformersSampler(policy).sample(requests(policy), SamplingParams(20))
    assert max(c.tokens.max() for g in groups for c in g) < policy.vocab_size
