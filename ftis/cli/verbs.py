"""The verbs: what people call. Each imports what it needs when it runs, so that --help and errors come at
once."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import replace
from pathlib import Path

from ftis.cli.options import (
    SET,
    TIER,
    Command,
    gpu_count,
    gpus,
    grid_run,
    not_negative,
    option,
    positive,
    temperature,
    whole,
)
from ftis.errors import UserError


def train(arguments: argparse.Namespace) -> None:
    from ftis.config import load_run
    from ftis.settings import to_dict

    from_grid = bool(arguments.tier), bool(arguments.run)
    if from_grid != ((True, True) if arguments.config is None else (False, False)):
        raise UserError("train takes either CONFIG.yaml or --tier and --run")
    if arguments.config is not None:
        if arguments.out is None:
            raise UserError("--out: name the run's folder, e.g. --out results/my_run")
        config, out = load_run(arguments.config, dict(arguments.set)), arguments.out
    else:
        if arguments.set and arguments.out is None:
            raise UserError("--set: the run is then no longer that of its name; say where it goes with --out")
        config = load_run(to_dict(grid_run(arguments)), dict(arguments.set))
        out = arguments.out or Path("results", arguments.tier, "runs", arguments.run)
    if arguments.transport:
        config = replace(config, transport=arguments.transport)
    job = arguments.config is None
    if arguments.node is not None:
        node = _node(arguments.node, len(config.nodes))
        from ftis.runs.processes.host import reachable_host
        from ftis.runs.processes.node import train_alone, train_launched
        from ftis.suite.gpus import require_gpu

        if arguments.launched:
            train_launched(config, out, node, *arguments.launched)
        else:
            if arguments.tier:
                require_gpu(gpu_count(arguments, "train", config))
            train_alone(config, out, node, reachable_host(arguments.host), job)
        return
    # The grid's runs are jobs of the workflow. One may find its run in the hands of a process that nobody
    # waits for any more, left by a killed Snakemake or on a lost node: it lets that finish, and trains what
    # is left to train. And it starts over what has been trained with a recipe that has changed since.
    with gpus(arguments, "train", config):
        from ftis.runs.train import train

        train(config, out, job)


def _node(given: str, nodes: int) -> int:
    """The node that this process is, from --node; `auto` asks srun or torchrun."""
    if given.isdecimal() and int(given) < nodes:
        return int(given)
    if given != "auto":
        raise UserError(f"--node: must be a node's number, 0 to {nodes - 1}, or 'auto', given {given!r}")
    for rank, size in (("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("RANK", "WORLD_SIZE")):
        if rank in os.environ and size in os.environ:
            if int(os.environ[size]) != nodes:
                raise UserError(
                    f"--node: the run has {nodes} nodes and ${size} is {os.environ[size]}; start a task a "
                    "node"
                )
            return int(os.environ[rank])
    raise UserError("--node: 'auto' needs $SLURM_PROCID (srun) or $RANK (torchrun); give the node's number")


def settings(_arguments: argparse.Namespace) -> None:
    from ftis.config import describe

    print(describe())


def evaluate(arguments: argparse.Namespace) -> None:
    from ftis.runs.evaluate import evaluate

    names = tuple(arguments.benchmark.split(","))
    scores = evaluate(
        arguments.model, names, revision=arguments.revision, prompt=arguments.prompt, limit=arguments.limit,
        max_new_tokens=arguments.max_new_tokens, max_batch=arguments.max_batch, samples=arguments.samples,
        temperature=arguments.temperature, shape=arguments.shape, seed=arguments.seed,
        backend=arguments.backend,
        device=arguments.device, resume=arguments.resume, out=arguments.out,
    )  # fmt: skip
    for name, result in scores.items():
        print(
            f"{name}: accuracy {result['accuracy']:.1%} (95 % interval {result['low']:.1%} to "
            f"{result['high']:.1%}, "
            f"{result['problems']} problems x {result['samples']}), format {result['format_rate']:.1%}, "
            f"truncated {result['truncated']:.1%}; "
            f"by math-verify {result['math_verify']['accuracy']:.1%}"
        )
    files = ("generations.jsonl", "scores.json", "graded.jsonl")
    print(f"written: {', '.join(str(arguments.out / name) for name in files)}")


def plan(arguments: argparse.Namespace) -> None:
    import json

    from ftis.suite import cost
    from ftis.suite.plan import plan_runs
    from ftis.suite.plan_text import as_dict, as_text
    from ftis.suite.suite import Suite

    gpu = cost.gpu_named(arguments.gpu) if arguments.gpu else cost.GPU
    gpu = replace(gpu, gib=arguments.gpu_memory or gpu.gib)
    runs = plan_runs(arguments.tier, Suite.load().runs(arguments.tier, arguments.grid, arguments.seeds), gpu)
    if not arguments.check:
        print(
            json.dumps(as_dict(arguments.tier, runs, gpu))
            if arguments.json
            else as_text(arguments.tier, runs, gpu)
        )
        return
    from ftis.suite.check import check

    found = check(arguments.tier, runs, gpu, jobs=arguments.jobs)
    if arguments.json:
        print(json.dumps({"tier": arguments.tier, "problems": found}))
    if found:
        raise UserError(
            f"tier {arguments.tier} can't run as planned:\n" + "\n".join(f"  - {line}" for line in found)
        )
    if not arguments.json:
        print(
            f"tier {arguments.tier}, {len(runs)} runs: models, data, tokenizers, prompts, GPUs, memory and "
            "disk are in order"
        )


def grade(arguments: argparse.Namespace) -> None:
    from ftis.tasks.grading.verdict import grade_file

    grade_file(arguments.file)


def report(arguments: argparse.Namespace) -> None:
    from ftis.papers.ftis.report import make_report

    tier = arguments.tier
    out = arguments.out or Path("results", tier, "report.html")
    make_report(tier, arguments.artefacts or Path("paper_figures", tier), arguments.exact, out)


def suite_init(arguments: argparse.Namespace) -> None:
    from ftis.suite.copy import copy_suite

    for path in copy_suite(arguments.folder):
        print(path)
    there = "" if arguments.folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(arguments.folder))} && "
    print(f"next, the whole paper on tiny models, in minutes: {there}snakemake -c2")


COMMANDS = (
    Command(
        "train",
        train,
        "train a swarm, from a settings file or a run of the grid; a killed run goes on where it was",
        (
            option(
                "config",
                nargs="?",
                type=Path,
                metavar="CONFIG.yaml",
                help="settings of one run (`ftis settings` lists the fields)",
            ),
            option("--tier", help="with --run: take the settings from the grid"),
            option(
                "--run", metavar="NAME", help="e.g. size_base-ftis-g50-vertical-s42 or alone-base_small-s42"
            ),
            option("--out", type=Path, metavar="DIR", help="run folder (default: results/TIER/runs/NAME)"),
            SET,
            option(
                "--transport",
                choices=("local", "processes"),
                help="all nodes in one process, or a process for each (default: as the settings say)",
            ),
            option(
                "--node",
                metavar="K",
                help="run only node K, from 0, beside one such process for each other node; auto: "
                "$SLURM_PROCID or $RANK",
            ),
            option(
                "--host",
                metavar="ADDRESS",
                help="with --node: where the others reach this process (default: this machine's address, see "
                "docs/cluster.md)",
            ),
            option("--launched", nargs=2, type=int, help=argparse.SUPPRESS),
        ),
    ),
    Command("settings", settings, "list every setting of a run with its type, default and meaning"),
    Command(
        "evaluate",
        evaluate,
        "test any causal language model on GSM8K and MATH-500: generate, score, print",
        (
            option("--model", required=True, help="folder or hub name"),
            option("--revision", help="hub commit"),
            option(
                "--benchmark", default="gsm8k,math500", help="comma-separated: gsm8k, math500 (default: both)"
            ),
            option(
                "--prompt", default="chat-v1", help="key of ftis.tasks.prompts.PROMPTS (default: %(default)s)"
            ),
            option("--limit", type=positive, metavar="N", help="first N problems of each (default: all)"),
            option(
                "--max-new-tokens", type=positive, default=768, metavar="N", help="(default: %(default)s)"
            ),
            option(
                "--max-batch",
                type=positive,
                default=32,
                metavar="N",
                help="sequences at a time (default: %(default)s)",
            ),
            option(
                "--samples",
                type=positive,
                default=1,
                metavar="K",
                help="completions a problem: avg@K and pass@k (default: 1)",
            ),
            option("--temperature", type=temperature, default=0.0, help="0 is greedy (default: %(default)s)"),
            option(
                "--shape",
                default="strict",
                help="format that is counted: strict, code, open, tag, boxed, any (default: %(default)s)",
            ),
            option("--seed", type=whole, default=42, help="of the sampling (default: %(default)s)"),
            option(
                "--backend",
                default="transformers",
                help="transformers or vllm; vLLM must be installed (default: %(default)s)",
            ),
            option("--resume", action="store_true", help="go on from what an interrupted call left in --out"),
            option("--device", default="auto", help="cpu, cuda, ... (default: %(default)s)"),
            option(
                "--out",
                type=Path,
                default=Path("results/evaluate"),
                metavar="DIR",
                help="(default: %(default)s)",
            ),
        ),
    ),
    Command(
        "grade",
        grade,
        "grade JSON lines of task, gold and completion",
        (option("file", metavar="FILE.jsonl", help="'-' reads standard input"),),
    ),
    Command(
        "plan",
        plan,
        "list a grid's runs with their models, memory, GPU-hours, bytes and disk, without running them",
        (
            TIER,
            option("--grid", choices=("paper", "full"), default="paper", help="(default: %(default)s)"),
            option(
                "--seeds",
                type=positive,
                metavar="N",
                help="first N of the fixed list (default: the tier's number)",
            ),
            option(
                "--gpu",
                metavar="NAME",
                help="GPU that the jobs run on: t4, l4, a100, h100 or h200 (default: h100)",
            ),
            option(
                "--gpu-memory",
                type=not_negative,
                metavar="GIB",
                help="memory of each GPU (default: that GPU's)",
            ),
            option(
                "--check", action="store_true", help="look for what would fail before it costs a GPU minute"
            ),
            option(
                "--jobs",
                type=positive,
                metavar="N",
                help="runs that train at the same time, for the disk that --check asks for (default: all)",
            ),
            option("--json", action="store_true", help="print one JSON object"),
        ),
    ),
    Command(
        "report",
        report,
        "one HTML file of all that a tier shows",
        (
            TIER,
            option(
                "--artefacts",
                type=Path,
                metavar="DIR",
                help="its figures and tables (default: paper_figures/TIER)",
            ),
            option(
                "--exact",
                type=Path,
                default=Path("paper_figures/exact"),
                metavar="DIR",
                help="folder of `ftis job exact` (default: %(default)s)",
            ),
            option("--out", type=Path, metavar="FILE", help="(default: results/TIER/report.html)"),
        ),
    ),
    Command(
        "init",
        suite_init,
        "copy the workflow and its suite into a folder, to run it there and change it",
        (option("folder", nargs="?", type=Path, default=Path("."), metavar="DIR", help="(default: here)"),),
    ),
)
