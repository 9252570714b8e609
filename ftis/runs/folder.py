"""A run's folder: the one place that knows where a run keeps what, and what state it is in."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ftis.config import RunConfig, differences, load_run, recipe_hash
from ftis.errors import UserError
from ftis.files import write_atomic, write_json
from ftis.provenance import provenance, sha256
from ftis.runs import state
from ftis.settings import to_dict

if TYPE_CHECKING:
    import pandas as pd

    from ftis.model.policy import Policy

log = logging.getLogger(__name__)


class RunFolder:
    """Where a run lies: config.yaml, metrics.jsonl, node{k}/, generations.jsonl, scores.json, final.json, and
    state/.

    final.json is written last of the training, so that it stands for everything that it lists.

    >>> ftis.RunFolder("results/pair").finished
    False
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.state = self.path / "state"
        """What a killed run goes on from; a node that is a process has a folder of its own in it."""
        self.config_file = self.path / "config.yaml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.final_file = self.path / "final.json"
        self.answers_file = self.path / "generations.jsonl"
        self.scores_file = self.path / "scores.json"

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    # --- What is there ------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether its training has ended and is published whole."""
        return self.final_file.exists()

    @property
    def config(self) -> RunConfig:
        """The settings that it was made with."""
        return load_run(self.config_file)

    @property
    def final(self) -> dict[str, Any]:
        """What final.json says: seed, commit, checksums. Raises UserError where the run isn't finished."""
        return self._json(self.final_file, "is not finished; train it first")

    @property
    def scores(self) -> dict[str, Any]:
        """Its models' scores. Raises UserError where it isn't scored."""
        return self._json(self.scores_file, "has no scores; generate and score its answers first")

    def metrics(self) -> pd.DataFrame:
        """A row an iteration and node: the columns of metrics.jsonl's node entries, nested ones dotted, and
        `step`."""
        import pandas as pd

        lines = [json.loads(line) for line in self.metrics_file.read_text().splitlines()]
        return pd.json_normalize([{"step": line["step"], **node} for line in lines for node in line["nodes"]])

    def policy(self, node: int = 0, device: str = "cpu") -> Policy:
        """A node's trained model. Raises UserError where the run isn't finished, or the node was lost."""
        from ftis.model.loading import load_policy

        saved = {entry["node"]: entry["path"] for entry in self.final["nodes"]}
        if node not in saved:
            raise UserError(
                f"{self.path}: has no model of node {node}; it has those of {', '.join(map(str, saved))}"
            )
        return load_policy(str(self.path / saved[node]), device=device)

    def differs_from(self, config: RunConfig) -> str:
        """How the run that it holds differs from `config`, in words; empty where it has these settings."""
        try:
            return differences(self.config, config)
        except UserError:
            return "its config.yaml can't be read"

    def states(self) -> list[Path]:
        """The folders of checkpoints: that of a run in one process, and those of nodes that are processes."""
        return [self.state, *sorted(self.state.glob("node*"))]

    def node_state(self, node: int) -> Path:
        """Where a node that is a process keeps its own."""
        return self.state / f"node{node}"

    def _json(self, path: Path, otherwise: str) -> dict[str, Any]:
        if not path.exists():
            raise UserError(f"{self.path}: {otherwise}")
        return json.loads(path.read_text())

    # --- The life of a run: those who train it hold its lock ------------------------------------------------

    def locked(self, wait: bool = False, shared: bool = False) -> AbstractContextManager[int]:
        """Hold the run (see `ftis.runs.state.run_lock`)."""
        return state.run_lock(self.state, wait, shared)

    def is_done(self, config: RunConfig) -> bool:
        """Whether it holds this run, finished. Raises UserError where it holds another."""
        if not self.finished:
            return False
        if other := self.differs_from(config):
            raise UserError(
                f"{self.path}: holds a finished run with other settings ({other}); choose another --out, or "
                f"remove it "
                "to start over"
            )
        lost = self.final.get("lost", ())
        without = "".join(f", without {node['name']} from iteration {node['iteration']}" for node in lost)
        log.info("%s: this run is finished%s; nothing to do", self.path, without)
        return True

    def clear_for(self, config: RunConfig, transport: str, job: bool) -> None:
        """Refuse what can't be gone on from: state that another `transport` left, and checkpoints of other
        settings. A `job` of the workflow starts over the latter, since Snakemake asks for it where a recipe
        has changed."""
        recipe = recipe_hash(config)
        others = [path for folder in self.states() for path in state.of_other_settings(folder, recipe)]
        if others:
            other = self.differs_from(config) or "made by another version of ftis"
            holds = f"{self.path}: holds checkpoints of an unfinished run with other settings ({other})"
            if not job:
                raise UserError(f"{holds}; choose another --out, or remove it to start over")
            log.warning("%s; they are removed, and the run starts over", holds)
            for path in others:
                shutil.rmtree(path, ignore_errors=True)  # another node may be at it, too
        state.refuse_other_transport(self.state, recipe, transport)

    def write_config(self, config: RunConfig) -> None:
        """The run's settings, as `load_run` reads them."""
        write_atomic(self.config_file, yaml.safe_dump(to_dict(config), sort_keys=False))

    def publish(
        self, config: RunConfig, nodes: list[dict[str, Any]], metrics: str, lost: Mapping[int, int]
    ) -> None:
        """Publish the run of saved `nodes`; final.json comes last."""
        write_atomic(self.metrics_file, metrics)
        write_json(
            self.final_file,
            {
                "run": config.name,
                "recipe": recipe_hash(config),
                "seed": config.seed,
                "method": config.method,
                "iterations": config.iterations,
                "nodes": nodes,
                "lost": [
                    {
                        "node": k,
                        "name": config.nodes[k].name,
                        "label": config.nodes[k].label or config.nodes[k].name,
                        "iteration": iteration,
                    }
                    for k, iteration in sorted(lost.items())
                ],
                "files": {"metrics.jsonl": sha256(self.metrics_file)},
                "provenance": provenance(),
                "seconds": round(sum(json.loads(line)["seconds"] for line in metrics.splitlines()), 1),
            },
        )
        # Adam's moments are twice the model: a finished run doesn't need them.
        for folder in self.states():
            for path in state.checkpoints(folder):
                shutil.rmtree(path)

    def remove(self) -> None:
        """Leave nothing behind of a run of which nothing was trained."""
        shutil.rmtree(self.path)
