"""GRPO in a swarm: sample, grade, exchange, check, learn.

One iteration: every node samples its share of the prompts with its own policy, grades it and posts it;
every node checks what it receives, computes advantages over whole groups, weights and filters foreign
samples, and takes its own optimizer steps. All random draws are keyed by (seed, step, node, prompt,
sample), so that a run resumes bit for bit and does not depend on how it is batched.

Nothing here knows a folder: `ftis.runs` puts a swarm on disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ftis.config import NodeConfig, Rollout, RunConfig, recipe_hash
from ftis.errors import UserError
from ftis.model.check import attach
from ftis.model.loading import load_policy, require_context, tokenizer_difference
from ftis.model.policy import Policy
from ftis.model.vllm.sampler import VllmSampler, require_vllm
from ftis.swarm.attacks import ATTACKS, Scene, refuse_unknown_attacks
from ftis.swarm.inbox import Expected
from ftis.swarm.message import Message, Rollouts, encode
from ftis.swarm.metrics import Line, NodeLine
from ftis.swarm.node import ADAPTER, Asked, Node, sampling_params
from ftis.swarm.samples import Sampled, Samples, Share
from ftis.swarm.share import assignment
from ftis.swarm.state import State, pack_node, unpack_node
from ftis.swarm.transport import LocalTransport, Transport
from ftis.tasks.problems import Problem, iteration_problems, load_problems
from ftis.tasks.prompts import encode_prompt

log = logging.getLogger(__name__)


class Swarm:
    """The nodes that live in this process, all unless `members` says which, and the transport to all nodes.

    Iterating over a swarm trains it: `for line in Swarm(config)` yields each iteration's `Line`, in memory
    and without a trace on disk. Raises UserError for models, data or tokenizers that are missing or don't go
    together.

    >>> quick = {"validation.data": None, "iterations": 2, "prompts": 2, "group_size": 2}
    >>> run = ftis.load_run("examples/pair.yaml", quick)
    >>> [(line.step, line.nodes[1].name) for line in ftis.Swarm(run)]
    [(1, 'coder'), (2, 'coder')]
    """

    def __init__(self, config: RunConfig, members: Iterable[int] | None = None):
        self.config = config
        self.transport: Transport = LocalTransport()
        self._asked: dict[int, Asked] = {}
        members = list(range(len(config.nodes)) if members is None else members)
        refuse_unknown_attacks(config)
        if any(config.backend(k) == "vllm" for k in members):
            require_vllm()
        self.problems = load_problems(config.train)
        self.validation = load_problems(config.validation.data) if config.validation.data else []
        self.nodes = [Node(k, config, load_node(config, k)) for k in members]
        _check_same_tokenizer(self.nodes)
        self.stop_at(frozenset().union(*(n.policy.stop_ids for n in self.nodes)))
        longest = self._longest()
        for node in self.nodes:
            require_context(node.settings.model, node.policy.causal_lm.config, longest)
            if config.backend(node.index) == "vllm":
                node.sampler = attach(
                    node.policy,
                    partial(_vllm_sampler, settings=node.settings, rollout=config.rollout, longest=longest),
                )
        if config.readings.top_k is not None and self.nodes[0].index == 0:
            log.warning(
                "readings.top_k: completions are drawn from the %d likeliest tokens, but their log-probs "
                "are those of "
                "the full softmax, so importance ratios are not those of the distribution that was sampled "
                "(docs/design.md)",
                config.readings.top_k,
            )

    def __iter__(self) -> Iterator[Line]:
        return self.iterations()

    @property
    def run_id(self) -> bytes:
        """What marks the messages of this run, 8 bytes."""
        return bytes.fromhex(recipe_hash(self.config)).ljust(8, b"\0")

    def stop_at(self, ids: frozenset[int]) -> None:
        """All nodes of a run end a completion at the same tokens: those that any of them ends at."""
        for node in self.nodes:
            node.policy.stop_ids = ids

    def before(self) -> Line:
        """The line of iteration 0: the nodes' scores before any training."""
        return Line(
            0,
            0.0,
            tuple(self._validated(NodeLine(n.index, n.settings.name, n.label), n, 0) for n in self.nodes),
        )

    def iterations(self, done: int = 0) -> Iterator[Line]:
        """Train through the iterations after the first `done`; yields each one's line."""
        for step in range(done + 1, self.config.iterations + 1):
            yield self.iteration(step)

    def iteration(self, step: int) -> Line:
        """One iteration of every node: sample, grade, exchange, check, learn."""
        began = time.perf_counter()
        asked = self.asked(step)
        own: list[Sampled] = []
        for node in self.nodes:
            node.seconds = {}
            node.inbox.begin()
            own.append(node.sample(step, asked))
            self._post(step, node, own[-1].rollouts)
        lines = []
        for node, sampled in zip(self.nodes, own, strict=True):
            received = self._collect(step, node)
            shares = [Share(step, node.index, sampled.rollouts), *self._accepted(step, node)]
            samples = Samples.gather(shares, {s.step: self.asked(s.step).prompts for s in shares}, node.index)
            line = node.learn(step, samples, sampled)
            lines.append(self._exchanged(step, node, line, received))
        if self.validation and (step % self.config.validation.every == 0 or step == self.config.iterations):
            lines = [self._validated(line, node, step) for line, node in zip(lines, self.nodes, strict=True)]
        lines = [
            replace(line, seconds={phase: round(s, 4) for phase, s in node.seconds.items()})
            for line, node in zip(lines, self.nodes, strict=True)
        ]
        return Line(step, round(time.perf_counter() - began, 4), tuple(lines))

    def asked(self, step: int) -> Asked:
        """An iteration's problems and their prompts, the same on every node."""
        if step not in self._asked:
            chosen = iteration_problems(len(self.problems), self.config.prompts, self.config.seed, step)
            rollout = self.config.rollout
            room = rollout.max_total_tokens - 1 if rollout.max_total_tokens else None
            problems = [self.problems[i] for i in chosen]
            tokenizer = self.nodes[0].policy.tokenizer
            prompts = [encode_prompt(rollout.prompt, p.question, tokenizer, room) for p in problems]
            self._asked = {s: a for s, a in self._asked.items() if s >= step - self.config.staleness}
            self._asked[step] = Asked(problems, prompts)
        return self._asked[step]

    @property
    def _alone(self) -> bool:
        return len(self.config.nodes) == 1

    def _post(self, step: int, node: Node, rollouts: Rollouts) -> None:
        """Offer a node's rollouts to the others, or what it makes of them where it is an attacker."""
        if self._alone:
            return
        if node.settings.attack is not None:
            scene = Scene(
                step, node.index, self.config.seed, self.asked(step).problems, node.policy.tokenizer
            )
            rollouts = ATTACKS[node.settings.attack](rollouts, scene)
        with node.phase("exchange"):
            message = Message(self.run_id, step, node.index, rollouts)
            self.transport.post(step, node.index, encode(message, node.policy.vocab_size))

    def _collect(self, step: int, node: Node) -> int:
        """Take in the others' messages; their bytes."""
        with node.phase("wait"):
            received = [] if self._alone else self.transport.collect(step, node.index, self.config.deadline)
        node.inbox.put(step, received)
        return sum(len(data) for _, data in received)

    def _accepted(self, step: int, node: Node) -> list[Share]:
        """Foreign rollouts whose time has come, as far as they pass every check."""
        accepted = []
        for sent, sender, data in node.inbox.due(step - self.config.staleness):
            problems = self.asked(sent).problems
            grade = (
                (lambda r, problems=problems: node.rewards(r, problems))
                if self.config.verify_rewards
                else None
            )
            with node.phase("exchange"):
                expected = self._expected(node.policy, sent, sender)
                rollouts = node.inbox.open(step, data, expected, grade)
            if rollouts is not None:
                accepted.append(Share(sent, sender, rollouts))
        return accepted

    def _expected(self, policy: Policy, step: int, sender: int) -> Expected:
        config = self.config
        prompts = self.asked(step).prompts
        share = assignment(config.split, config.prompts, config.group_size, len(config.nodes), sender)
        params = sampling_params(config)
        budgets = {(p, s): params.budget(len(prompts[p])) for p, samples in share for s in samples}
        return Expected(self.run_id, step, sender, budgets, policy.vocab_size, policy.stop_ids)

    def _exchanged(self, step: int, node: Node, line: NodeLine, received: int) -> NodeLine:
        """A node's line with what the exchange came to."""
        return replace(
            line,
            bytes_sent=0 if self._alone else self.transport.sent(step, node.index),
            bytes_received=received,
            refused=dict(node.inbox.refused),
            dropped=node.inbox.dropped,
            distrusted=sorted(node.inbox.distrusted),
        )

    def _validated(self, line: NodeLine, node: Node, step: int) -> NodeLine:
        return replace(line, validation=node.validate(step, self.validation)) if self.validation else line

    def _longest(self) -> int:
        """Tokens of the longest prompt with its completion, in training and validation."""
        rollout, budget = self.config.rollout, sampling_params(self.config).budget
        tokenizer = self.nodes[0].policy.tokenizer

        def lengths(problems: Sequence[Problem]) -> list[int]:
            return [len(encode_prompt(rollout.prompt, p.question, tokenizer)) for p in problems]

        needed = [n + budget(n) for n in lengths(self.problems)]
        needed += [n + self.config.validation.max_new_tokens for n in lengths(self.validation)]
        return max(needed)

    def state(self, step: int) -> State:
        """What it takes to go on after iteration `step`; tensors are the live ones."""
        return State(
            step,
            {n.index: pack_node(n.params, n.optimizer) for n in self.nodes},
            {(n.index, sent, sender): data for n in self.nodes for sent, sender, data in n.inbox.mail},
            {n.index: n.memory() for n in self.nodes},
            self.transport.lost,
        )

    def load_state(self, state: State) -> None:
        """Put back what `state` gave."""
        for node in self.nodes:
            with node.sampler.updating():
                unpack_node(state.tensors[node.index], node.params, node.optimizer)
            if node.index in state.memory:  # those of earlier versions hold none
                node.remember(state.memory[node.index])
            mail = [
                (sent, sender, data)
                for (k, sent, sender), data in sorted(state.mail.items())
                if k == node.index
            ]
            node.inbox.mail += mail


def _vllm_sampler(policy: Policy, settings: NodeConfig, rollout: Rollout, longest: int) -> VllmSampler:
    """An engine that follows a node's policy, with room for `longest` tokens."""
    return VllmSampler(
        settings.model, settings.revision, policy.tokenizer, settings.compute_dtype, longest,
        rollout.max_batch, policy, rollout.gpu_memory_utilization,
    )  # fmt: skip


def load_node(config: RunConfig, k: int) -> Policy:
    """The policy of node `k` of a run, whose seed draws its adapter."""
    node = config.nodes[k]
    seed = int(np.random.SeedSequence((ADAPTER, config.seed, k)).generate_state(1)[0])
    return load_policy(
        node.model,
        node.revision,
        node.lora,
        node.device,
        node.compute_dtype,
        node.gradient_checkpointing,
        seed,
        k,
    )


def _check_same_tokenizer(nodes: Sequence[Node]) -> None:
    """Token ids are exchanged, so all nodes must read them alike: compared by content."""
    for node in nodes[1:]:
        difference = tokenizer_difference(nodes[0].policy.tokenizer, node.policy.tokenizer)
        if difference:
            raise UserError(
                f"nodes.{node.index}.model: its tokenizer differs from that of nodes.0 ({difference}); "
                f"nodes exchange "
                "token ids and must share one"
            )
