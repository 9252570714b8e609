"""One node of a run in a process of its own.

Its checkpoints and metrics lie in state/node{k}/ of the run's folder, which all nodes of the run share. It
trains as in `ftis.runs.train`, with peers that may be lost; the first of those that remain publishes the run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ftis.config import RunConfig, recipe_hash
from ftis.errors import UserError
from ftis.files import write_json
from ftis.orphans import die_with
from ftis.runs import state
from ftis.runs.folder import RunFolder
from ftis.runs.processes.membership import Roll, agree
from ftis.runs.processes.rendezvous import Facts, address_file, join
from ftis.runs.processes.sockets import SocketTransport
from ftis.runs.train import begin, claimed, kept_iterations, save
from ftis.swarm.loop import Swarm
from ftis.swarm.message import Message, encode, most_bytes, pack
from ftis.swarm.share import assignment

log = logging.getLogger(__name__)

JOIN_S = 1800.0
"""Seconds that a node waits for all others at the start, while they load their models."""


def train_launched(config: RunConfig, out: Path, node: int, launcher: int, reports: int) -> None:
    """`train_node` in a process that `ftis.runs.processes.launch` started: it ends with the process
    `launcher`, which holds the run's lock and reads JSON lines from the descriptor `reports`."""
    die_with(launcher)
    with open(reports, "w") as pipe:

        def report(**facts) -> None:
            print(json.dumps(facts), file=pipe, flush=True)

        train_node(config, out, node, "127.0.0.1", report)


def train_alone(config: RunConfig, out: Path, node: int, host: str, job: bool = False) -> None:
    """`train_node` in a process that was started singly, by hand, srun or torchrun. `job`: a run of the grid,
    which starts over checkpoints of other settings."""
    with state.run_lock(out / "state", shared=True):
        train_node(config, out, node, host, job=job)


def train_node(
    config: RunConfig,
    out: Path,
    node: int,
    host: str,
    report: Callable[..., None] = lambda **_: None,
    job: bool = False,
) -> None:
    """Train node `node` of `config` in the run's folder `out`, together with the processes of the other
    nodes.

    `host` is the address under which the others reach this process. `report` is called with what a launcher
    may show: first=N when all have met, then step=, reward= and lost= after each iteration. The caller holds
    the run's lock. Raises LeftOut where the others went on without this node.
    """
    run = RunFolder(out)
    shared, kept = run.state, run.node_state(node)
    with state.run_lock(kept):
        address_file(shared, node).unlink(missing_ok=True)
        if not run.finished:
            _refuse_late(run, node, len(config.nodes))
        if not claimed(run, config, kept, "processes", job):
            return
        roll_file = shared / "lost"
        with open(roll_file, "a") as roll:  # opened, so that a network's file system looks at how long it is
            roll_bytes = roll.tell()
        swarm = Swarm(config, [node])
        checkpoints = {c.step: c for c in state.sound_checkpoints(kept, recipe_hash(config))}
        policy = swarm.nodes[0].policy
        facts = Facts(
            _digest(policy.tokenizer.get_vocab()),
            tuple(sorted(policy.stop_ids)),
            tuple((c.step, dict(c.lost)) for c in checkpoints.values()),
            roll_bytes,
        )
        met = join(shared, node, len(config.nodes), swarm.run_id, facts, host, JOIN_S)
        with contextlib.ExitStack() as undo:
            undo.enter_context(state.in_training(kept))
            for connection, _ in met.values():
                undo.callback(connection.close)
            everyone = {node: facts} | {peer: theirs for peer, (_, theirs) in met.items()}
            _check_same_tokenizer(everyone, config)
            swarm.stop_at(frozenset().union(*(f.stop_ids for f in everyone.values())))
            done, before = agree({k: f.checkpoints for k, f in everyone.items()})
            if not done and checkpoints:
                log.warning(
                    "node %d: no iteration has a checkpoint of every node; %d are removed, and the run "
                    "starts over",
                    node, len(checkpoints),
                )  # fmt: skip
            report(first=done)
            if node in before:
                log.info("node %d was lost at iteration %d and stays out", node, before[node])
                return
            # The least: a node that was started again while all met may have seen what they have added since.
            earlier = min(f.roll_bytes for f in everyone.values())
            roll = Roll(roll_file, node, before, earlier)
            swarm.transport = SocketTransport(
                node,
                {k: connection for k, (connection, _) in met.items()},
                roll,
                largest_message(config, policy.vocab_size),
            )
            if node == min(everyone.keys() - before.keys()):
                run.write_config(config)
            begin(swarm, kept, checkpoints.get(done))
            for line in kept_iterations(swarm, kept, done):
                report(step=line.step, reward=line.nodes[0].reward, lost=dict(swarm.transport.lost))
            _finish(swarm, run, roll, report)


def _refuse_late(run: RunFolder, node: int, nodes: int) -> None:
    """Raise UserError where other nodes train already, which they don't before they have met every node: they
    have lost an earlier process of this one, and wait for none."""
    if any(state.is_training(run.node_state(k)) for k in range(nodes) if k != node):
        raise UserError(
            f"{run.path}: the run goes on without node {node}; wait for its end, or stop the other nodes and "
            "then start "
            "all nodes again"
        )


def _finish(swarm: Swarm, run: RunFolder, roll: Roll, report: Callable[..., None]) -> None:
    """Save this node, wait until the others have, and publish the run if this node is the first of them."""
    config, node = swarm.config, swarm.nodes[0].index
    roll.read()  # who was left out leaves no model
    (saved,) = save(swarm, run)
    write_json(run.node_state(node) / "saved.json", saved)
    end = config.iterations + 1
    nothing = Message(swarm.run_id, end, node, pack([], [], [], [], [], []))
    swarm.transport.post(end, node, encode(nothing, swarm.nodes[0].policy.vocab_size))
    swarm.transport.collect(end, node, config.deadline)
    lost = swarm.transport.lost
    report(lost=dict(lost))
    here = [k for k in range(len(config.nodes)) if k not in lost]
    if node == here[0]:
        nodes = [json.loads((run.node_state(k) / "saved.json").read_text()) for k in here]
        run.publish(config, nodes, merge_metrics(run.state, len(config.nodes), lost), lost)


def merge_metrics(shared: Path, nodes: int, lost: Mapping[int, int]) -> str:
    """The nodes' metrics as one file: a line an iteration, with those that were there; seconds are of the
    slowest.

    A line without all of them says who is `lost`.
    """
    lines: dict[int, dict[str, Any]] = {}
    for k in range(nodes):
        path = shared / f"node{k}" / "metrics.jsonl"
        for text in path.read_text().splitlines(keepends=True) if path.exists() else []:
            if not text.endswith("\n"):
                continue  # cut off when its writer died
            line = json.loads(text)
            step = line["step"]
            if step >= lost.get(k, step + 1):
                continue
            merged = lines.setdefault(step, {"step": step, "seconds": 0.0, "nodes": []})
            merged["seconds"] = max(merged["seconds"], line["seconds"])
            merged["nodes"] += line["nodes"]
    for step, line in lines.items():
        if gone := sorted(k for k, since in lost.items() if since <= step):
            line["lost"] = gone
    return "".join(json.dumps(lines[step], allow_nan=False) + "\n" for step in sorted(lines))


def _digest(vocabulary: Mapping[str, int]) -> str:
    return hashlib.sha256(json.dumps(sorted(vocabulary.items())).encode()).hexdigest()


def _check_same_tokenizer(everyone: Mapping[int, Facts], config: RunConfig) -> None:
    """Token ids are exchanged, so all nodes must read them alike."""
    for k in sorted(everyone):
        if everyone[k].tokenizer != everyone[0].tokenizer:
            raise UserError(
                f"nodes.{k}.model: the tokenizer of {config.nodes[k].model} differs from that of nodes.0; "
                "nodes "
                "exchange token ids and must share one"
            )


def largest_message(config: RunConfig, vocab_size: int) -> int:
    """Bytes of the largest message that any node of the run may send."""
    shares = [
        assignment(config.split, config.prompts, config.group_size, len(config.nodes), k)
        for k in range(len(config.nodes))
    ]
    completions = max(sum(len(samples) for _, samples in share) for share in shares)
    return most_bytes(vocab_size, completions, completions * config.rollout.max_new_tokens)
