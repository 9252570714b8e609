"""One node of the swarm: its policy and optimizer, what it samples, what it takes of others, what it
learns."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ftis.config import RunConfig
from ftis.errors import UserError
from ftis.method.methods import METHODS
from ftis.method.objective import Objective, group_advantages
from ftis.model.attention import sdpa_backends
from ftis.model.check import attach
from ftis.model.policy import Policy
from ftis.model.sampler import Completion, Request, Sampler, SamplingParams, TransformersSampler
from ftis.swarm.asking import complete, completion_text, summary
from ftis.swarm.inbox import Inbox
from ftis.swarm.message import Rollouts, pack
from ftis.swarm.metrics import NodeLine, statistics
from ftis.swarm.samples import Sampled, Samples
from ftis.swarm.share import assignment
from ftis.swarm.update import Broken, Pass, Update, logprobs_now, update
from ftis.tasks.grading.verdict import Verdict, grade_many, is_fault
from ftis.tasks.problems import Problem

log = logging.getLogger(__name__)

# Purposes that keep random draws apart; part of every key.
ROLLOUT, VALIDATION, MINI_BATCH, ADAPTER = range(4)


@dataclass(frozen=True)
class Asked:
    """An iteration's problems and their prompts as token ids, the same on every node."""

    problems: list[Problem]
    prompts: list[list[int]]


@dataclass(frozen=True)
class BrokenUpdate:
    """An update that was left out, and all that it takes to compute it again."""

    step: int
    node: int
    name: str
    update: int
    """Which of the iteration's."""
    learning_rate: float
    broken: Broken
    samples: Samples
    advantages: Tensor
    passes: tuple[Pass, ...]


@dataclass
class Node:
    """A policy that samples and learns."""

    index: int
    config: RunConfig
    policy: Policy
    sampler: Sampler = field(init=False)
    inbox: Inbox = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    seconds: dict[str, float] = field(default_factory=dict)
    """Of the iteration, by phase."""
    stopped: int = 0
    """Updates that were left out so far, for a loss or gradient that isn't finite."""
    explain: Callable[[BrokenUpdate], str] | None = None
    """Keeps an update that was left out, and says where; None: it isn't kept."""

    def __post_init__(self) -> None:
        self.settings = self.config.nodes[self.index]
        self.label = self.settings.label or self.settings.name
        self.inbox = Inbox(self.index, self.config.patience)
        self.sampler = attach(self.policy, TransformersSampler)
        self.params = self.policy.trainable()
        self.optimizer = adam(self.config, self.settings.learning_rate, self.params)
        self.objective = Objective.of(
            METHODS[self.config.method],
            self.config.readings,
            threshold=self.config.threshold,
            eps=self.config.eps,
            cap=self.config.cap,
            parameters=self.config.parameters,
        )

    clock = staticmethod(time.perf_counter)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to the iteration's account."""
        began = self.clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.clock() - began

    def memory(self) -> dict[str, Any]:
        """What a checkpoint keeps of this node besides tensors and mail, as JSON."""
        return {"inbox": self.inbox.opinion(), "stopped": self.stopped}

    def remember(self, memory: dict[str, Any]) -> None:
        """Put back what `memory` gave."""
        self.inbox.restore(memory["inbox"])
        self.stopped = memory["stopped"]

    def sample(self, step: int, asked: Asked) -> Sampled:
        """This node's share of an iteration, graded."""
        config = self.config
        share = assignment(config.split, config.prompts, config.group_size, len(config.nodes), self.index)
        requests = [
            Request(asked.prompts[p], [(ROLLOUT, config.seed, step, self.index, p, s) for s in samples])
            for p, samples in share
        ]
        with self.phase("sample"):
            groups = self.sampler.sample(requests, sampling_params(config))
        places = [(p, s) for p, samples in share for s in samples]
        completions = [c for group in groups for c in group]
        with self.phase("grade"):
            verdicts = self.grade(completions, [asked.problems[p] for p, _ in places])
        rollouts = pack(
            [p for p, _ in places],
            [s for _, s in places],
            [c.tokens for c in completions],
            [c.logprobs for c in completions],
            [v.reward for v in verdicts],
            [c.finished for c in completions],
        )
        return Sampled(rollouts, verdicts)

    def grade(self, completions: Sequence[Completion], problems: Sequence[Problem]) -> list[Verdict]:
        """The verdict on each completion as an answer to its problem."""
        texts = [completion_text(self.policy.tokenizer, c) for c in completions]
        items = [(text, p.gold, p.task) for text, p in zip(texts, problems)]
        return grade_many(items, shape=self.config.reward)

    def rewards(self, r: Rollouts, problems: Sequence[Problem]) -> list[float | None]:
        """The rewards of another node's completions as graded here, None where the grader gave up."""
        columns = zip(r.split(r.tokens), r.split(r.logprobs), r.finished)
        with self.phase("verify"):
            verdicts = self.grade([Completion(*c) for c in columns], [problems[p] for p in r.prompt])
        return [None if is_fault(v) else v.reward for v in verdicts]

    def learn(self, step: int, samples: Samples, sampled: Sampled) -> NodeLine:
        """Optimizer steps on an iteration's samples, of which `sampled` are this node's own; what it came
        to."""
        readings, optim = self.config.readings, self.config.optim
        advantages = group_advantages(
            torch.tensor(samples.reward, dtype=torch.float64),
            torch.tensor(samples.group),
            readings.advantage_scale,
            readings.std,
        ).float()
        # Advantages are over whole groups; truncated completions may then leave the update, and those
        # whose advantage is 0 may stay out of its forward pass.
        counted = samples.finished | (self.config.rollout.truncated == "train")
        skipped = counted & (advantages.numpy() == 0) & optim.skip_zero_advantage
        used = counted & ~skipped
        shuffled = np.flatnonzero(counted)
        if optim.mini_batches > 1:
            key = np.random.SeedSequence((MINI_BATCH, self.config.seed, step, self.index))
            shuffled = np.random.default_rng(key).permutation(shuffled)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * min(1.0, step / max(1, optim.warmup))
        passes: list[Pass] = []
        norms: list[float] = []
        stopped = self.stopped
        temperature = self.config.rollout.temperature
        budget = self.settings.micro_batch_tokens or optim.micro_batch_tokens
        with self.phase("update"), self.sampler.updating():
            start = (
                logprobs_now(self.policy, samples, np.flatnonzero(used), temperature, budget)
                if readings.clip_reference == "iteration_start"
                else None
            )
            for k, mini in enumerate(np.array_split(shuffled, optim.mini_batches)):
                made = update(
                    self.policy, self.optimizer, self.objective, samples, advantages, mini[used[mini]],
                    temperature=temperature, budget=budget, clip=optim.clip, unseen=int(skipped[mini].sum()),
                    start=start,
                )  # fmt: skip
                if made.broken is not None:
                    self._leave_out(step, k, made, samples, advantages)
                    continue
                passes += [replace(one, before=len(norms)) for one in made.passes]
                norms.append(made.norm)
        own, verdicts = sampled.rollouts, sampled.verdicts
        return NodeLine(
            self.index,
            self.settings.name,
            self.label,
            reward=float(own.reward.mean()),
            accuracy=sum(v.answer for v in verdicts) / len(verdicts),
            format_rate=sum(v.format for v in verdicts) / len(verdicts),
            length=float(own.length.mean()),
            truncated=float(1 - own.finished.mean()),
            grader_faults=sum(map(is_fault, verdicts)),
            zero_advantage=float((advantages == 0).float().mean()),
            grad_norm=float(np.mean(norms)) if norms else 0.0,
            nonfinite=self.stopped - stopped,
            learning_rate=self.optimizer.param_groups[0]["lr"],
            tokens_generated=len(own.tokens),
            tokens_trained=int(samples.length[used].sum()),
            statistics=statistics(passes, self.config.cap, samples),
            sampled=sampled,
        )

    def _leave_out(self, step: int, k: int, made: Update, samples: Samples, advantages: Tensor) -> None:
        """Count and explain an update that wasn't made; raises UserError when that was once too often."""
        assert made.broken is not None
        self.stopped += 1
        told = f"iteration {step}, node {self.index} ({self.settings.name}): the {made.broken.what}"
        if self.explain is not None:
            rate = self.optimizer.param_groups[0]["lr"]
            left_out = BrokenUpdate(
                step, self.index, self.settings.name, k, rate, made.broken, samples, advantages, made.passes
            )
            told += f" (explained in {self.explain(left_out)})"
        if made.broken.fatal or self.stopped >= self.config.nonfinite_updates:
            raise UserError(
                f"{told}; lower learning_rate or cap, or on a GPU suspect the SDPA backend (torch chooses "
                "from "
                f"{sdpa_backends()}; torch.backends.cuda turns each off). The run can go on from its last "
                "checkpoint with the same "
                "command"
                + (
                    ""
                    if made.broken.fatal
                    else ", and with a larger nonfinite_updates leaves such updates out"
                )
            )
        log.warning("%s; this update is left out", told)

    def validate(self, step: int, problems: Sequence[Problem]) -> dict[str, Any]:
        """Scores on the validation problems: greedy, and sampled at T = 1 where asked for."""
        config, rollout = self.config.validation, self.config.rollout
        with self.phase("validate"):
            rows = list(complete(
                self.policy.tokenizer, self.sampler, problems, rollout.prompt, config.max_new_tokens,
                (VALIDATION, self.config.seed, step, self.index), config.samples, greedy=True,
                max_batch=rollout.max_batch,
            ))  # fmt: skip
            items = [(text, problems[i].gold, problems[i].task) for i, _, _, text in rows]
            graded = list(zip(rows, grade_many(items, shape=self.config.reward), strict=True))
            scores: dict[str, Any] = {}
            for kind, greedy in (("greedy", True), ("sampled", False)):
                of = [(c, verdict) for (_, s, c, _), verdict in graded if (s is None) == greedy]
                scores[kind] = summary([v for _, v in of], [not c.finished for c, _ in of]) if of else None
        return scores


def adam(config: RunConfig, learning_rate: float, params: dict[str, Tensor]) -> torch.optim.Optimizer:
    """Adam or AdamW over a policy's trainable weights, its moments in place."""
    optim = config.optim
    kind = torch.optim.AdamW if optim.name == "adamw" else torch.optim.Adam
    # One pass over weights, gradients and moments; torch's default takes several, with temporaries.
    optimizer = kind(params.values(), learning_rate, optim.betas, optim.eps, optim.weight_decay, fused=True)
    # The moments, taken before the first forward: taken after the first backward, as torch would, they lie
    # scattered among freed activations, whose memory then fits little else.
    for p in params.values():
        optimizer.state[p] = {
            "step": torch.zeros((), device=p.device),
            "exp_avg": torch.zeros_like(p),
            "exp_avg_sq": torch.zeros_like(p),
        }
    return optimizer


def sampling_params(config: RunConfig) -> SamplingParams:
    """How a run's completions are sampled."""
    rollout = config.rollout
    return SamplingParams(
        rollout.max_new_tokens,
        rollout.temperature,
        config.readings.top_k,
        rollout.max_batch,
        rollout.max_total_tokens,
    )
