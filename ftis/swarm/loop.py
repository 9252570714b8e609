"""GRPO in a swarm: sample, grade, exchange, learn.

One iteration: every node samples its share of the prompts with its own policy, grades it and posts it;
every node checks what it receives, computes advantages over whole groups, weights and filters foreign
samples, and takes its own optimizer steps. All random draws are keyed by (seed, step, node, prompt,
sample), so that a run resumes bit for bit and does not depend on how it is batched.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ftis.config import Node, RunConfig, differences, load_run, recipe_hash
from ftis.errors import UserError
from ftis.method.methods import METHODS
from ftis.method.objective import Objective, group_advantages, grpo_loss
from ftis.model.check import attach
from ftis.model.loading import load_policy, require_context
from ftis.model.policy import Policy
from ftis.model.sampler import Completion, Request, Sampler, SamplingParams, TransformersSampler
from ftis.model.vllm.sampler import VllmSampler, require_vllm
from ftis.provenance import provenance, sha256, write_atomic, write_json
from ftis.runs import state
from ftis.runs.answers import complete, completion_text, summary
from ftis.settings import to_dict
from ftis.swarm.evidence import save_evidence
from ftis.swarm.inbox import Expected, Inbox
from ftis.swarm.message import Message, Rollouts, encode, most_bytes, pack
from ftis.swarm.metrics import Samples, update_metrics
from ftis.swarm.share import assignment
from ftis.swarm.transport import LocalTransport, Transport
from ftis.tasks.grading.verdict import Verdict, grade_many, is_fault
from ftis.tasks.problems import Problem, iteration_problems, load_problems
from ftis.tasks.prompts import encode_prompt

# Purposes that keep random draws apart; part of every key.
ROLLOUT, VALIDATION, MINI_BATCH, ADAPTER = range(4)


def train(config: RunConfig, out: Path, job: bool = False) -> None:
    """Run `config` in the folder `out`, all nodes in this process, going on from its newest checkpoint if there
    is one. (`ftis.runs.processes.launch` runs a process for each node; the result is the same.)

    Another process that trains it, or checkpoints of other settings, are an error. A `job` of the workflow waits
    for the one and starts over the others, since Snakemake asks for it where a recipe has changed.
    Writes config.yaml at the start, and at the end node{k}/, metrics.jsonl and, last of all, final.json.
    """
    recipe = recipe_hash(config)
    fresh = not out.exists()
    folder = out / "state"
    with state.run_lock(folder, wait=job):
        if is_finished(out, config):
            return
        refuse_other_settings(out, config, job)
        state.remove_partial(out)
        state.refuse_other_transport(folder, recipe, "local")
        if config.threads:
            torch.set_num_threads(config.threads)
        try:
            swarm = Swarm(config, recipe)
        except BaseException:
            if fresh:  # nothing was trained: leave nothing behind
                shutil.rmtree(out)
            raise
        write_config(config, out)
        first = swarm.begin(folder, next(state.sound_checkpoints(folder, recipe), None))
        # disable=None: a bar on a terminal, silence in a log.
        with tqdm(desc=config.name, total=config.iterations, initial=first, disable=None) as bar:
            for line in swarm.iterations(folder, first):
                bar.set_postfix_str(
                    ", ".join(f"{n['label']}: reward {n['reward']:.2f}" for n in line["nodes"])
                )
                bar.update()
        publish(config, out, swarm.save(out), (folder / "metrics.jsonl").read_text(), {})


def is_finished(out: Path, config: RunConfig) -> bool:
    """Whether the folder holds this run, finished. Raises UserError where it holds another."""
    if not (out / "final.json").exists():
        return False
    if other := _other_settings(out, config):
        raise UserError(
            f"{out}: holds a finished run with other settings ({other}); choose another --out, or remove it to start over"
        )
    lost = json.loads((out / "final.json").read_text()).get("lost", ())
    without = "".join(f", without {node['name']} from iteration {node['iteration']}" for node in lost)
    print(f"{out}: this run is finished{without}; nothing to do", file=sys.stderr)
    return True


def refuse_other_settings(out: Path, config: RunConfig, job: bool) -> None:
    """Raise UserError where the folder holds checkpoints of other settings; for a `job` of the workflow remove them,
    and say so."""
    folders = [out / "state", *(out / "state").glob("node*")]
    others = [path for folder in folders for path in state.of_other_settings(folder, recipe_hash(config))]
    if not others:
        return
    other = _other_settings(out, config) or "made by another version of ftis"
    holds = f"{out}: holds checkpoints of an unfinished run with other settings ({other})"
    if not job:
        raise UserError(f"{holds}; choose another --out, or remove it to start over")
    print(f"warning: {holds}; they are removed, and the run starts over", file=sys.stderr)
    for path in others:
        shutil.rmtree(path, ignore_errors=True)  # another node may be at it, too


def _other_settings(out: Path, config: RunConfig) -> str:
    """How the run in the folder `out` differs, in words; empty where it has these settings."""
    try:
        return differences(load_run(out / "config.yaml"), config)
    except UserError:
        return "its config.yaml can't be read"


def write_config(config: RunConfig, out: Path) -> None:
    """The run's settings, as `load_run` reads them."""
    write_atomic(out / "config.yaml", yaml.safe_dump(to_dict(config), sort_keys=False))


def publish(
    config: RunConfig, out: Path, nodes: list[dict[str, Any]], metrics: str, lost: Mapping[int, int]
) -> None:
    """Publish the run of saved `nodes`. final.json comes last, so that it stands for everything that it lists."""
    write_atomic(out / "metrics.jsonl", metrics)
    write_json(out / "final.json", {
        "run": config.name, "recipe": recipe_hash(config), "seed": config.seed, "method": config.method,
        "iterations": config.iterations, "nodes": nodes,
        "lost": [
            {"node": k, "name": config.nodes[k].name, "label": config.nodes[k].label or config.nodes[k].name,
             "iteration": iteration}
            for k, iteration in sorted(lost.items())
        ],
        "files": {"metrics.jsonl": sha256(out / "metrics.jsonl")},
        "provenance": provenance(),
        "seconds": round(sum(json.loads(line)["seconds"] for line in metrics.splitlines()), 1),
    })  # fmt: skip
    # Adam's moments are twice the model: a finished run doesn't need them.
    for folder in (out / "state", *(out / "state").glob("node*")):
        for path in state.checkpoints(folder):
            shutil.rmtree(path)


class Swarm:
    """The nodes that live in this process, all unless `members` says which, and the transport to all nodes."""

    def __init__(self, config: RunConfig, recipe: str, members: Iterable[int] | None = None):
        self.config, self.recipe = config, recipe
        self.transport: Transport = LocalTransport()
        self._drawn: dict[int, tuple[list[Problem], list[list[int]]]] = {}
        members = list(range(len(config.nodes)) if members is None else members)
        if any(config.backend(k) == "vllm" for k in members):
            require_vllm()
        self.problems = load_problems(config.train)
        self.validation = load_problems(config.validation.data) if config.validation.data else []
        self.nodes = [
            Participant(k, config, _load_policy(config.nodes[k], _adapter_seed(config, k), k))
            for k in members
        ]
        _check_same_tokenizer(self.nodes)
        stop = frozenset().union(*(n.policy.stop_ids for n in self.nodes))
        self.stop_at(stop)
        longest = self._longest()
        for node in self.nodes:
            require_context(node.settings.model, node.policy.causal_lm.config, longest)
        for node in self.nodes:
            if config.backend(node.index) == "vllm":
                node.sampler = attach(node.policy, lambda _, node=node: _vllm_sampler(node, longest))

    def stop_at(self, ids: frozenset[int]) -> None:
        """All nodes of a run end a completion at the same tokens: those that any of them ends at."""
        for node in self.nodes:
            node.policy.stop_ids = ids

    def begin(self, folder: Path, checkpoint: state.Checkpoint | None) -> int:
        """Take up a checkpoint, or start; the number of iterations that are done. `folder` holds the checkpoints
        and the metrics: what is newer than the checkpoint, or of other settings, is removed."""
        if self.config.readings.top_k is not None and self.nodes[0].index == 0:
            print(
                f"warning: readings.top_k: completions are drawn from the {self.config.readings.top_k} likeliest tokens, "
                "but their log-probs are those of the full softmax, so importance ratios are not those of the "
                "distribution that was sampled (docs/design.md)",
                file=sys.stderr,
            )
        for node in self.nodes:
            node.evidence = folder / "nonfinite"
        metrics = folder / "metrics.jsonl"
        for path in state.checkpoints(folder):
            if checkpoint is None or path.name > checkpoint.path.name:
                shutil.rmtree(path)
        if checkpoint is None:
            state.truncate_metrics(metrics, -1)
            state.append_metrics(metrics, {"step": 0, "seconds": 0.0, "nodes": self.validate(0)})
            return 0
        print(f"{folder.parent}: going on after iteration {checkpoint.step}", file=sys.stderr)
        self.restore(checkpoint)
        state.truncate_metrics(metrics, checkpoint.step)
        return checkpoint.step

    def iterations(self, folder: Path, first: int) -> Iterator[dict[str, Any]]:
        """The iterations after the `first`, each kept in `folder`; yields their lines of metrics."""
        for step in range(first + 1, self.config.iterations + 1):
            line = self.iteration(step)
            state.append_metrics(folder / "metrics.jsonl", line)
            if step % self.config.checkpoint_every == 0 and step < self.config.iterations:
                self.checkpoint(folder, step)
            yield line

    def save(self, out: Path) -> list[dict[str, Any]]:
        """Write the nodes' models; what final.json says of each."""
        saved = []
        for node in self.nodes:
            folder = out / f"node{node.index}"
            shutil.rmtree(folder, ignore_errors=True)
            node.policy.save(folder)
            saved.append({
                "node": node.index, "name": node.settings.name, "label": node.settings.label or node.settings.name,
                "path": folder.name, "sha256": sha256(folder),
                "distrusted": [
                    {"node": k, "name": self.config.nodes[k].name, "iteration": first}
                    for k, first in sorted(node.inbox.distrusted.items())
                ],
            })  # fmt: skip
        return saved

    def iteration(self, step: int) -> dict[str, Any]:
        """One iteration of every node; returns its line of metrics."""
        began = time.perf_counter()
        alone = len(self.config.nodes) == 1
        for node in self.nodes:
            node.seconds = {}
            node.inbox.begin()
            node.fresh = node.sample(step, *self._prompts(step))
            if not alone:
                message = Message(self.run_id, step, node.index, node.fresh)
                with node.phase("exchange"):
                    self.transport.post(step, node.index, encode(message, node.policy.vocab_size))
        lines = []
        for node in self.nodes:
            with node.phase("wait"):
                received = [] if alone else self.transport.collect(step, node.index, self.config.deadline)
            node.inbox.put(step, received)
            batch = [(step, node.index, node.fresh), *self._accept(node, step)]
            line = node.learn(step, batch, {s: self._prompts(s)[1] for s, _, _ in batch})
            line["bytes_sent"] = 0 if alone else self.transport.sent(step, node.index)
            line["bytes_received"] = sum(len(data) for _, data in received)
            line["refused"], line["dropped"] = dict(node.inbox.refused), node.inbox.dropped
            line["distrusted"] = sorted(node.inbox.distrusted)
            lines.append(line)
        if self.validation and (step % self.config.validation.every == 0 or step == self.config.iterations):
            for line, validated in zip(lines, self.validate(step)):
                line |= validated
        for node, line in zip(self.nodes, lines):
            line["seconds"] = {phase: round(s, 4) for phase, s in node.seconds.items()}
        return {"step": step, "seconds": round(time.perf_counter() - began, 4), "nodes": lines}

    @property
    def run_id(self) -> bytes:
        return bytes.fromhex(self.recipe[:12]).ljust(8, b"\0")

    def _prompts(self, step: int) -> tuple[list[Problem], list[list[int]]]:
        """An iteration's problems and their prompts as token ids, the same on every node."""
        if step in self._drawn:
            return self._drawn[step]
        chosen = iteration_problems(len(self.problems), self.config.prompts, self.config.seed, step)
        rollout = self.config.rollout
        room = rollout.max_total_tokens - 1 if rollout.max_total_tokens else None
        problems = [self.problems[i] for i in chosen]
        tokenizer = self.nodes[0].policy.tokenizer
        ids = [encode_prompt(rollout.prompt, p.question, tokenizer, room) for p in problems]
        self._drawn = {s: d for s, d in self._drawn.items() if s >= step - self.config.staleness}
        self._drawn[step] = problems, ids
        return problems, ids

    def _longest(self) -> int:
        """Tokens of the longest prompt with its completion, in training and validation."""
        rollout, budget = self.config.rollout, sampling_params(self.config).budget
        tokenizer = self.nodes[0].policy.tokenizer

        def lengths(problems: Sequence[Problem]) -> list[int]:
            return [len(encode_prompt(rollout.prompt, p.question, tokenizer)) for p in problems]

        needed = [n + budget(n) for n in lengths(self.problems)]
        needed += [n + self.config.validation.max_new_tokens for n in lengths(self.validation)]
        return max(needed)

    def _accept(self, node: Participant, step: int) -> list[tuple[int, int, Rollouts]]:
        """Foreign rollouts whose time has come, as far as they pass every check."""
        accepted = []
        for sent, sender, data in node.inbox.due(step - self.config.staleness):
            problems = self._prompts(sent)[0]
            grade = (
                (lambda r, problems=problems: node.rewards(r, problems))
                if self.config.verify_rewards
                else None
            )
            with node.phase("exchange"):
                expected = self._expected(node.policy, sent, sender)
                rollouts = node.inbox.open(step, data, expected, grade)
            if rollouts is not None:
                accepted.append((sent, sender, rollouts))
        return accepted

    def _expected(self, policy: Policy, step: int, sender: int) -> Expected:
        config = self.config
        prompts = self._prompts(step)[1]
        share = assignment(config.split, config.prompts, config.group_size, len(config.nodes), sender)
        params = sampling_params(config)
        budgets = {(p, s): params.budget(len(prompts[p])) for p, samples in share for s in samples}
        return Expected(self.run_id, step, sender, budgets, policy.vocab_size, policy.stop_ids)

    def validate(self, step: int) -> list[dict[str, Any]]:
        """Each node's name and validation scores."""
        return [
            {"node": n.index, "name": n.settings.name, "label": n.settings.label or n.settings.name,
             "validation": n.validate(step, self.validation) if self.validation else None}
            for n in self.nodes
        ]  # fmt: skip

    def checkpoint(self, folder: Path, step: int) -> None:
        tensors = {n.index: state.pack_node(n.params, n.optimizer) for n in self.nodes}
        mail = {f"mail-{n.index}-{s}-{k}": data for n in self.nodes for s, k, data in n.inbox.mail}
        memory = {n.index: n.memory() for n in self.nodes}
        state.save_checkpoint(folder, step, self.recipe, tensors, mail, self.transport.lost, memory)

    def restore(self, checkpoint: state.Checkpoint) -> None:
        tensors, mail = state.load_checkpoint(checkpoint)
        for node in self.nodes:
            with node.sampler.updating():
                state.unpack_node(tensors[node.index], node.params, node.optimizer)
            if node.index in checkpoint.memory:  # those of earlier versions hold none
                node.remember(checkpoint.memory[node.index])
            for name, data in sorted(mail.items()):
                k, sent, sender = map(int, name.split("-")[1:])
                if k == node.index:
                    node.inbox.mail.append((sent, sender, data))


def largest_message(config: RunConfig, vocab_size: int) -> int:
    """Bytes of the largest message that any node of the run may send."""
    shares = [
        assignment(config.split, config.prompts, config.group_size, len(config.nodes), k)
        for k in range(len(config.nodes))
    ]
    completions = max(sum(len(samples) for _, samples in share) for share in shares)
    return most_bytes(vocab_size, completions, completions * config.rollout.max_new_tokens)


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


def _vllm_sampler(node: Participant, longest: int) -> VllmSampler:
    """An engine that follows a node's policy."""
    settings, rollout = node.settings, node.config.rollout
    return VllmSampler(
        settings.model,
        settings.revision,
        node.policy.tokenizer,
        settings.compute_dtype,
        longest,
        rollout.max_batch,
        node.policy,
        rollout.gpu_memory_utilization,
    )


def _load_policy(node: Node, seed: int, index: int) -> Policy:
    """The policy of one of a run's nodes; `seed` draws its adapter, `index` is its place among the nodes."""
    return load_policy(
        node.model,
        node.revision,
        node.lora,
        node.device,
        node.compute_dtype,
        node.gradient_checkpointing,
        seed,
        index,
    )


def _adapter_seed(config: RunConfig, node: int) -> int:
    return int(np.random.SeedSequence((ADAPTER, config.seed, node)).generate_state(1)[0])


def _check_same_tokenizer(nodes: Sequence[Participant]) -> None:
    """Token ids are exchanged, so all nodes must read them alike: compared by content."""
    for node in nodes[1:]:
        difference = tokenizer_difference(nodes[0].policy.tokenizer, node.policy.tokenizer)
        if difference:
            raise UserError(
                f"nodes.{node.index}.model: its tokenizer differs from that of nodes.0 ({difference}); nodes exchange "
                "token ids and must share one"
            )


def tokenizer_difference(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> str | None:
    """A token that two tokenizers give different ids, in words; None where they agree on all."""
    first, second = one.get_vocab(), other.get_vocab()
    if first == second:
        return None
    token = min(t for t in first.keys() | second.keys() if first.get(t) != second.get(t))
    return f"token {token!r} is {first.get(token)} there and {second.get(token)} here"


@dataclass
class Participant:
    """One node: its policy, its optimizer, and what it has received."""

    index: int
    config: RunConfig
    policy: Policy
    sampler: Sampler = field(init=False)
    inbox: Inbox = field(init=False)
    seconds: dict[str, float] = field(default_factory=dict)
    evidence: Path | None = None
    """Folder for what explains updates that were left out; None: it isn't kept."""
    stopped: int = 0
    """Updates that were left out so far, for a loss or gradient that isn't finite."""

    def __post_init__(self) -> None:
        optim = self.config.optim
        self.settings = self.config.nodes[self.index]
        self.inbox = Inbox(self.index, self.config.patience)
        self.sampler = attach(self.policy, TransformersSampler)
        self.params = self.policy.trainable()
        kind = torch.optim.AdamW if optim.name == "adamw" else torch.optim.Adam
        # One pass over weights, gradients and moments; torch's default takes several, with temporaries.
        self.optimizer = kind(
            self.params.values(),
            self.settings.learning_rate,
            optim.betas,
            optim.eps,
            optim.weight_decay,
            fused=True,
        )
        # Adam's moments, taken before the first forward: taken after the first backward, as torch would, they lie
        # scattered among freed activations, whose memory then fits little else.
        for p in self.params.values():
            self.optimizer.state[p] = {
                "step": torch.zeros((), device=p.device),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
        readings = self.config.readings
        method = METHODS[self.config.method]
        self.objective = Objective(
            method.weighting, self.config.threshold, self.config.eps, self.config.cap, readings
        )

    def phase(self, name: str) -> _Phase:
        return _Phase(self.seconds, name)

    def memory(self) -> dict[str, Any]:
        """What a checkpoint keeps of this node besides tensors and mail, as JSON."""
        return {"inbox": self.inbox.opinion(), "stopped": self.stopped}

    def remember(self, memory: dict[str, Any]) -> None:
        """Put back what `memory` gave."""
        self.inbox.restore(memory["inbox"])
        self.stopped = memory["stopped"]

    def sample(self, step: int, problems: Sequence[Problem], prompts: Sequence[list[int]]) -> Rollouts:
        """This node's share of an iteration, graded."""
        config = self.config
        share = assignment(config.split, config.prompts, config.group_size, len(config.nodes), self.index)
        requests = [
            Request(prompts[p], [(ROLLOUT, config.seed, step, self.index, p, s) for s in samples])
            for p, samples in share
        ]
        with self.phase("sample"):
            groups = self.sampler.sample(requests, sampling_params(config))
        places = [(p, s) for p, samples in share for s in samples]
        completions = [c for group in groups for c in group]
        with self.phase("grade"):
            self.verdicts = self.grade(completions, [problems[p] for p, _ in places])
        return pack(
            [p for p, _ in places],
            [s for _, s in places],
            [c.tokens for c in completions],
            [c.logprobs for c in completions],
            [v.reward for v in self.verdicts],
            [c.finished for c in completions],
        )

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

    def learn(
        self, step: int, batch: Sequence[tuple[int, int, Rollouts]], prompts: dict[int, list[list[int]]]
    ) -> dict[str, Any]:
        """Optimizer steps on the (step, sender, rollouts) of an iteration; returns the node's metrics."""
        samples = Samples.gather(batch, prompts, self.index)
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
        collected: list[dict[str, Any]] = []
        norms = []
        stopped = self.stopped
        with self.phase("update"), self.sampler.updating():
            start = (
                self._logprobs_now(samples, np.flatnonzero(used))
                if readings.clip_reference == "iteration_start"
                else None
            )
            for k, mini in enumerate(np.array_split(shuffled, optim.mini_batches)):
                unseen = int(skipped[mini].sum())
                found: list[dict[str, Any]] = []
                norm = self._update((step, k), samples, advantages, mini[used[mini]], unseen, start, found)
                if norm is not None:
                    collected += [c | {"updates": len(norms)} for c in found]
                    norms.append(norm)
        own = next(rollouts for _, sender, rollouts in batch if sender == self.index)
        verdicts = self.verdicts
        return {
            "node": self.index,
            "name": self.settings.name,
            "label": self.settings.label or self.settings.name,
            "validation": None,
            "reward": float(own.reward.mean()),
            "accuracy": sum(v.answer for v in verdicts) / len(verdicts),
            "format_rate": sum(v.format for v in verdicts) / len(verdicts),
            "length": float(own.length.mean()),
            "truncated": float(1 - own.finished.mean()),
            "grader_faults": sum(map(is_fault, verdicts)),
            "zero_advantage": float((advantages == 0).float().mean()),
            "grad_norm": float(np.mean(norms)) if norms else 0.0,
            "nonfinite": self.stopped - stopped,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "tokens_generated": len(own.tokens),
            "tokens_trained": int(samples.length[used].sum()),
            **update_metrics(collected, self.objective, samples),
        }

    def _micro_batches(self, samples: Samples, index: np.ndarray) -> list[np.ndarray]:
        """Completions of a group together, since they share their prompt's pass, and groups of like length
        together; each batch within the budget of padded tokens, prompts counted once."""
        budget = self.settings.micro_batch_tokens or self.config.optim.micro_batch_tokens
        prompt_length = np.array([len(p) for p in samples.prompts])
        ordered = index[np.lexsort((samples.length[index], samples.group[index], samples.group_width[index]))]
        batches, first = [], 0
        groups, longest, longest_prompt = set(), 0, 0
        for i, row in enumerate(ordered):
            groups.add(samples.group[row])
            longest = max(longest, samples.length[row])
            longest_prompt = max(longest_prompt, prompt_length[row])
            tokens = len(groups) * longest_prompt + (i + 1 - first) * longest
            if i > first and tokens > budget:
                batches.append(ordered[first:i])
                first, groups = i, {samples.group[row]}
                longest, longest_prompt = samples.length[row], prompt_length[row]
        return [*batches, ordered[first:]] if len(ordered) else []

    @torch.no_grad()
    def _logprobs_now(self, samples: Samples, index: np.ndarray) -> dict[int, np.ndarray]:
        """Log-probs of each completion before the iteration's first step."""
        found = {}
        for rows in self._micro_batches(samples, index):
            logp, _, _ = self.policy.token_logprobs(
                [samples.prompts[i] for i in rows],
                [samples.tokens[i] for i in rows],
                self.config.rollout.temperature,
            )
            logp = logp.cpu().numpy()
            found |= {int(i): row[: samples.length[i]] for i, row in zip(rows, logp)}
        return found

    def _update(self, where, samples: Samples, advantages, index, unseen, start, collected) -> float | None:
        """One optimizer step on the completions `index`; returns the gradient norm before clipping, None where
        the step was left out because a number isn't finite.

        `where` is the (iteration, update). `unseen` completions of advantage 0 count in the mean without having
        been computed. What is computed of the others is added to `collected`.
        """
        count = unseen
        for batch in self._micro_batches(samples, index):

            def loss_of(part: slice, logp, entropy, mask, batch=batch) -> torch.Tensor:
                nonlocal count
                rows, device = batch[part], logp.device
                logp_gen = _padded([samples.logprobs[i] for i in rows], logp)
                loss = grpo_loss(
                    self.objective,
                    logp,
                    logp_gen,
                    mask,
                    advantages[rows].to(device),
                    torch.from_numpy(samples.own[rows]).to(device),
                    torch.from_numpy(samples.group_width[rows]).to(device),
                    _padded([start[int(i)] for i in rows], logp) if start is not None else None,
                )
                count += int(loss.count)
                collected.append({
                    "rows": rows,
                    "logp": logp.detach().cpu(), "logp_gen": logp_gen.cpu(), "mask": mask.cpu(),
                    "entropy": entropy.cpu(), "loss": float(loss.total.detach()),
                    "filtered": loss.filtered.cpu(), "bad": loss.bad.cpu(), "far": loss.far.cpu(),
                })  # fmt: skip
                return loss.total

            self.policy.accumulate_gradient(
                [samples.prompts[i] for i in batch],
                [samples.tokens[i] for i in batch],
                loss_of,
                self.config.rollout.temperature,
            )
        if unseen:  # their gradient is 0, which isn't none: Adam's momentum still moves
            for p in self.params.values():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        params = [p for p in self.params.values() if p.grad is not None]
        # The mean's denominator is known only now: what is filtered may leave it.
        for p in params:
            p.grad /= max(1.0, count)
        norm = torch.nn.utils.get_total_norm([p.grad for p in params]) if params else torch.zeros(())
        losses = [c["loss"] for c in collected]
        broken = next((f"loss is {x}" for x in losses if not math.isfinite(x)), "")
        if not broken and not norm.isfinite():
            broken = f"gradient norm is {norm}"
        if broken:
            self._stop(where, broken, samples, advantages, collected)
        else:
            if params:
                torch.nn.utils.clip_grads_with_norm_(params, self.config.optim.clip, norm)
            self.optimizer.step()
            weights = torch.nn.utils.get_total_norm(list(self.params.values()))
            if not weights.isfinite():  # nothing to go back to but the checkpoint
                self._stop(where, f"weights' norm is {weights}", samples, advantages, collected, fatal=True)
        # Freed at once: while this node samples, or another one trains, their memory is wanted elsewhere.
        self.optimizer.zero_grad(set_to_none=True)
        return None if broken else float(norm)

    def _stop(self, where, what, samples: Samples, advantages, collected, fatal: bool = False) -> None:
        """Keep what explains a number that isn't finite; raises UserError when that was once too often."""
        step, update = where
        self.stopped += 1
        told = f"iteration {step}, node {self.index} ({self.settings.name}): the {what}"
        if self.evidence is not None:
            stem = self.evidence / f"iteration-{step:06d}-node{self.index}-update{update}"
            facts = {
                "iteration": step, "node": self.index, "name": self.settings.name, "update": update, "what": what,
                "learning_rate": self.optimizer.param_groups[0]["lr"],
                "gradient_norms": {k: float(p.grad.norm()) for k, p in self.params.items() if p.grad is not None},
                "weight_norms": {k: float(p.detach().norm()) for k, p in self.params.items()},
            }  # fmt: skip
            save_evidence(stem, facts, samples, advantages, collected)
            told += f" (explained in {stem}.json)"
        if fatal or self.stopped >= self.config.nonfinite_updates:
            raise UserError(
                f"{told}; lower learning_rate or cap. The run can go on from its last checkpoint with the same "
                "command" + ("" if fatal else ", and with a larger nonfinite_updates leaves such updates out")
            )
        print(f"warning: {told}; this update is left out", file=sys.stderr)

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


def _padded(values: Sequence[np.ndarray], like: torch.Tensor) -> torch.Tensor:
    """Rows of floats in the shape (N, T) and on the device of `like`, padded with 0."""
    out = np.zeros(like.shape, np.float32)
    for line, value in zip(out, values):
        line[: len(value)] = value
    return torch.from_numpy(out).to(like.device)


class _Phase:
    """Adds the seconds of a `with` block to a node's account of an iteration."""

    def __init__(self, account: dict[str, float], name: str):
        self.account, self.name = account, name

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *_) -> None:
        self.account[self.name] = self.account.get(self.name, 0.0) + time.perf_counter() - self.began
