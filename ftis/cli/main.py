"""The command line. Each command imports what it needs when it runs, so that --help and errors come at once."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from ftis import __version__, logs
from ftis.errors import UserError

if TYPE_CHECKING:
    from ftis.config import RunConfig

PASSING = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ENOTCONN, errno.EHOSTDOWN}
"""Errors of a file system on a network that may be gone when the job is tried again."""

ABOUT = """\
F-TIS (arXiv 2605.22537) reproduction and benchmark suite: GRPO post-training in a swarm of different models.

The whole grid runs through Snakemake (see README.md); these commands are its jobs, and work on their own:
  ftis train my_run.yaml --out my_run             train a swarm from one settings file
  ftis train --tier tiny --run size_base-ftis-g50-vertical-s42
  ftis evaluate --model FOLDER_OR_HUB_NAME --benchmark gsm8k,math500 --limit 100
  ftis plan --tier paper                          what a grid will run, and how big it is
"""


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 well, 1 what may go well another time, 2 bad input, which won't, 130
    interrupted. The workflow doesn't try a job again that ended with 2."""
    arguments = parser().parse_args(argv)
    logs.show()
    try:
        arguments.command(arguments)
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        # A full disk or a folder that can't be written is for the user to mend; a traceback doesn't help.
        if error.filename is None and error.errno is None:
            raise
        print(
            f"error: {error.filename or ''}: {error.strerror}; check the path, its permissions and the disk",
            file=sys.stderr,
        )
        return 1 if error.errno in PASSING else 2
    except SafetensorError as error:  # what it makes of an OSError, too
        print(
            f"error: weights can't be written or read: {error}; check the path and the disk", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _whole(text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number from {least}, given {text!r}")
    return int(text)


def _positive(text: str) -> int:
    return _whole(text, least=1)


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number from 0, given {text!r}")
    return value


def _temperature(text: str) -> float:
    value = _not_negative(text)
    if 0 < value < 1e-6:
        raise argparse.ArgumentTypeError(f"must be 0 (greedy) or from 1e-6, given {text!r}")
    return value


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = argparse.ArgumentParser(
        prog="ftis", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--version", action="version", version=f"ftis {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run, about: str, *options) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        for names, settings in options:
            sub.add_argument(*names, **settings)
        sub.set_defaults(command=run)
        return sub

    def option(*names: str, **settings):
        return names, settings

    tier = option(
        "--tier",
        required=True,
        help="smoke, tiny, small, paper or a tier of your own in workflow/config/tiers",
    )
    run = option(
        "--run", required=True, metavar="NAME", help="a run of the grid, e.g. size_base-ftis-g50-vertical-s42"
    )
    runs = option("--run", action="append", default=[], metavar="NAME", help="a run to read; repeat it")
    runs_dir = option(
        "--runs-dir", type=Path, metavar="DIR", help="where the runs lie (default: results/TIER/runs)"
    )
    out = option("--out", type=Path, required=True, metavar="DIR", help="folder to write to")

    command(
        "train", _train, "train a swarm, from a settings file or a run of the grid; a killed run goes on where it was",
        option("config", nargs="?", type=Path, metavar="CONFIG.yaml", help="settings of one run (`ftis settings` lists the fields)"),
        option("--tier", help="with --run: take the settings from the grid"),
        option("--run", metavar="NAME", help="e.g. size_base-ftis-g50-vertical-s42 or alone-base_small-s42"),
        option("--out", type=Path, metavar="DIR", help="run folder (default: results/TIER/runs/NAME)"),
        option("--transport", choices=("local", "processes"), help="all nodes in one process, or a process for each (default: as the settings say)"),
        option("--node", metavar="K", help="run only node K, from 0, beside one such process for each other node; auto: $SLURM_PROCID or $RANK"),
        option("--host", metavar="ADDRESS", help="with --node: where the others reach this process (default: this machine's address, see docs/cluster.md)"),
        option("--launched", nargs=2, type=int, help=argparse.SUPPRESS),
    )  # fmt: skip
    command("settings", _settings, "list every setting of a run with its type, default and meaning")
    command(
        "evaluate", _evaluate, "test any causal language model on GSM8K and MATH-500: generate, score, print",
        option("--model", required=True, help="folder or hub name"),
        option("--revision", help="hub commit"),
        option("--benchmark", default="gsm8k,math500", help="comma-separated: gsm8k, math500 (default: both)"),
        option("--prompt", default="chat-v1", help="key of ftis.prompts.PROMPTS (default: %(default)s)"),
        option("--limit", type=_positive, metavar="N", help="first N problems of each (default: all)"),
        option("--max-new-tokens", type=_positive, default=768, metavar="N", help="(default: %(default)s)"),
        option("--max-batch", type=_positive, default=32, metavar="N", help="sequences at a time (default: %(default)s)"),
        option("--samples", type=_positive, default=1, metavar="K", help="completions a problem: avg@K and pass@k (default: 1)"),
        option("--temperature", type=_temperature, default=0.0, help="0 is greedy (default: %(default)s)"),
        option("--shape", default="strict", help="format that is counted: strict, code, open, tag, boxed, any (default: %(default)s)"),
        option("--seed", type=_whole, default=42, help="of the sampling (default: %(default)s)"),
        option("--backend", default="transformers", help="transformers or vllm; vLLM must be installed (default: %(default)s)"),
        option("--resume", action="store_true", help="go on from what an interrupted call left in --out"),
        option("--device", default="auto", help="cpu, cuda, ... (default: %(default)s)"),
        option("--out", type=Path, default=Path("results/evaluate"), metavar="DIR", help="(default: %(default)s)"),
    )  # fmt: skip
    command(
        "plan", _plan, "list a grid's runs with their models, memory, GPU-hours, bytes and disk, without running them",
        tier,
        option("--grid", choices=("paper", "full"), default="paper", help="(default: %(default)s)"),
        option("--seeds", type=_positive, metavar="N", help="first N of the fixed list (default: the tier's number)"),
        option("--gpu", metavar="NAME", help="GPU that the jobs run on: t4, l4, a100, h100 or h200 (default: h100)"),
        option("--gpu-memory", type=_not_negative, metavar="GIB", help="memory of each GPU (default: that GPU's)"),
        option("--check", action="store_true", help="look for what would fail before it costs a GPU minute"),
        option("--jobs", type=_positive, metavar="N", help="runs that train at the same time, for the disk that --check asks for (default: all)"),
        option("--json", action="store_true", help="print one JSON object"),
    )  # fmt: skip
    command(
        "grade", _grade, "grade JSON lines of task, gold and completion",
        option("file", metavar="FILE.jsonl", help="'-' reads standard input"),
    )  # fmt: skip
    command(
        "generate",
        _generate,
        "sample a finished run's models on the tier's benchmarks (start-ROLE-sSEED: before training)",
        tier,
        run,
        runs_dir,
    )
    command("score", _score, "grade what generate sampled", tier, run, runs_dir)
    command(
        "figure", _figure, "draw a figure of the paper from runs: PDF, PNG and CSV",
        option("figure", metavar="FIG", help="fig1 ... fig12"), tier, out, runs, runs_dir,
    )  # fmt: skip
    command(
        "table", _table, "make a table of the paper from runs: CSV and LaTeX",
        option("table", metavar="TABLE", help="table1 or table2"), tier, out, runs, runs_dir,
    )  # fmt: skip
    command("tidy", _tidy, "gather runs into tidy tables: CSV", tier, out, runs, runs_dir)
    command(
        "ablation", _ablation, "compare an ablation's runs: PDF, PNG and CSV",
        option("ablation", metavar="NAME", help="a key of `ablations` in workflow/config/grid.yaml"),
        tier, out, runs, runs_dir,
    )  # fmt: skip
    tables = option("--tables", type=Path, required=True, metavar="DIR", help="folder of `ftis tidy`")
    command("claims", _claims, "test the paper's claims on tidy tables: CSV and LaTeX", tier, tables, out)
    command(
        "economics",
        _economics,
        "what a node gains by joining, from tidy tables: CSV and figure",
        tier,
        tables,
        out,
    )
    command("exact", _exact, "the exact study of methods on an enumerable policy: figures and CSV", out)
    command(
        "report", _report, "one HTML file of all that a tier shows", tier,
        option("--artefacts", type=Path, metavar="DIR", help="its figures and tables (default: paper_figures/TIER)"),
        option("--exact", type=Path, default=Path("paper_figures/exact"), metavar="DIR", help="folder of `ftis exact` (default: %(default)s)"),
        option("--out", type=Path, metavar="FILE", help="(default: results/TIER/report.html)"),
    )  # fmt: skip
    command("fetch", _fetch, "download a tier's models and problems, for machines without a network", tier)
    command("tokenizer", _tokenizer, "make the tiny models' tokenizer", out)
    command("tiny-data", _tiny_data, "make a tier's arithmetic problems", tier, out)
    command(
        "warm-start", _warm_start, "train a tiny model that it makes, or a real one, on worked solutions",
        tier,
        option("--model", required=True, metavar="ROLE", help="base_small, base_large, coder_small or coder_large"),
        option("--seed", type=_whole, required=True),
        option("--tokenizer", type=Path, metavar="DIR", help="of tiny models (default: results/TIER/models/tokenizer)"),
        option("--data", type=Path, metavar="DIR", help="problems of tiny models (default: results/TIER/data)"),
        out,
    )  # fmt: skip
    return top


def _grid_run(arguments: argparse.Namespace):
    from ftis.suite.suite import Suite

    if note := Suite.load().backend_note(arguments.tier):
        print(note, file=sys.stderr)
    return Suite.load().resolve(arguments.tier, Suite.load().run(arguments.run))


def _run_folder(arguments: argparse.Namespace) -> Path:
    return (arguments.runs_dir or Path("results", arguments.tier, "runs")) / arguments.run


def _train(arguments: argparse.Namespace) -> None:
    from ftis.config import load_run

    from_grid = bool(arguments.tier), bool(arguments.run)
    if from_grid != ((True, True) if arguments.config is None else (False, False)):
        raise UserError("train takes either CONFIG.yaml or --tier and --run")
    if arguments.config is not None:
        if arguments.out is None:
            raise UserError("--out: name the run's folder, e.g. --out results/my_run")
        config, out = load_run(arguments.config), arguments.out
    else:
        config = _grid_run(arguments)
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
                require_gpu(_gpu_count(arguments, "train", config))
            train_alone(config, out, node, reachable_host(arguments.host), job)
        return
    # The grid's runs are jobs of the workflow. One may find its run in the hands of a process that nobody waits for
    # any more, left by a killed Snakemake or on a lost node: it lets that finish, and trains what is left to train.
    # And it starts over what has been trained with a recipe that has changed since.
    with _gpus(arguments, "train", config):
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
                    f"--node: the run has {nodes} nodes and ${size} is {os.environ[size]}; start a task a node"
                )
            return int(os.environ[rank])
    raise UserError("--node: 'auto' needs $SLURM_PROCID (srun) or $RANK (torchrun); give the node's number")


def _settings(_arguments: argparse.Namespace) -> None:
    from ftis.config import describe

    print(describe())


def _generate(arguments: argparse.Namespace) -> None:
    from ftis.runs.answers import BenchmarkSpec, Sampling, generate, run_subjects, start_subjects
    from ftis.suite.suite import Suite

    run = Suite.load().run(arguments.run)
    config = _grid_run(arguments)
    folder = _run_folder(arguments)
    subjects, facts = start_subjects(config) if run.method == "start" else run_subjects(folder)
    subjects = [replace(s, compute_dtype=config.nodes[s.node].compute_dtype) for s in subjects]
    tests = {}
    for role, b in Suite.load().benchmarks(arguments.tier).items():
        tests[role] = BenchmarkSpec(b.data, b.prompt or config.rollout.prompt, b.max_new_tokens)
        if b.samples:
            tests[f"{role}_sampled"] = replace(tests[role], samples=b.samples, temperature=1.0)
    _use_threads(Suite.load().resources(arguments.tier, "generate").threads)
    batch = Suite.load().answers_batch(arguments.tier, config)
    sampling = Sampling(config.seed, batch, config.reward, config.rollout.backend)
    with _gpus(arguments, "generate", config):
        # As in _train: what a process that nobody waits for has begun is taken over.
        generate(subjects, tests, folder / "generations.jsonl", sampling, facts=facts, resume=True, wait=True)


def _gpus(arguments: argparse.Namespace, rule: str, config: RunConfig):
    """A lease of as many GPUs as the tier gives a job of that rule; without a tier nothing is leased or hidden."""
    from ftis.suite.gpus import lease

    return lease(_gpu_count(arguments, rule, config)) if arguments.tier else contextlib.nullcontext()


def _gpu_count(arguments: argparse.Namespace, rule: str, config: RunConfig) -> int:
    """GPUs that the tier gives a job of that rule; none where the settings say that all nodes are on the CPU."""
    from ftis.suite.suite import Suite

    run = Suite.load().run(arguments.run) if getattr(arguments, "run", None) else None
    on_cpu = all(node.device == "cpu" for node in config.nodes)
    return 0 if on_cpu else Suite.load().resources(arguments.tier, rule, run).gpus


def _use_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)


def _score(arguments: argparse.Namespace) -> None:
    from ftis.runs.scores import score

    folder = _run_folder(arguments)
    score(folder / "generations.jsonl", folder / "scores.json")


def _evaluate(arguments: argparse.Namespace) -> None:
    from ftis.errors import unknown
    from ftis.runs.answers import BenchmarkSpec, Sampling, Subject, generate
    from ftis.runs.scores import score
    from ftis.tasks.grading.verdict import FORMATS
    from ftis.tasks.problems import Dataset

    if arguments.shape not in FORMATS:
        raise unknown("format", arguments.shape, FORMATS)
    if arguments.samples > 1 and arguments.temperature == 0:
        raise UserError("--samples: several need --temperature above 0, since greedy decoding repeats itself")
    tests = {}
    for name in arguments.benchmark.split(","):
        if name not in ("gsm8k", "math500"):
            raise unknown("benchmark", name, ("gsm8k", "math500"))
        data = Dataset(name=name, split="test", limit=arguments.limit)
        tests[name] = BenchmarkSpec(
            data, arguments.prompt, arguments.max_new_tokens, arguments.samples, arguments.temperature
        )
    subject = Subject(0, "model", arguments.model, arguments.model, arguments.revision)
    generations, scores = arguments.out / "generations.jsonl", arguments.out / "scores.json"
    sampling = Sampling(arguments.seed, arguments.max_batch, arguments.shape, arguments.backend)
    generate([subject], tests, generations, sampling, arguments.device, resume=arguments.resume)
    for name, result in score(generations, scores)["nodes"][0]["benchmarks"].items():
        print(
            f"{name}: accuracy {result['accuracy']:.1%} (95 % interval {result['low']:.1%} to {result['high']:.1%}, "
            f"{result['problems']} problems x {result['samples']}), format {result['format_rate']:.1%}, truncated {result['truncated']:.1%}; "
            f"by math-verify {result['math_verify']['accuracy']:.1%}"
        )
    print(f"written: {generations}, {scores}, {scores.with_name('graded.jsonl')}")


def _plan(arguments: argparse.Namespace) -> None:
    import json
    from dataclasses import replace

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
            f"tier {arguments.tier}, {len(runs)} runs: models, data, tokenizers, prompts, GPUs, memory and disk are in order"
        )


def _grade(arguments: argparse.Namespace) -> None:
    from ftis.tasks.grading.verdict import grade_file

    grade_file(arguments.file)


def _artefact(arguments: argparse.Namespace) -> tuple[str, list[Path], Path]:
    folder = arguments.runs_dir or Path("results", arguments.tier, "runs")
    return arguments.tier, [folder / run for run in arguments.run], arguments.out


def _figure(arguments: argparse.Namespace) -> None:
    from ftis.study.plots import make_figure

    make_figure(arguments.figure, *_artefact(arguments))


def _table(arguments: argparse.Namespace) -> None:
    from ftis.papers.ftis.tables import make_table

    make_table(arguments.table, *_artefact(arguments))


def _tidy(arguments: argparse.Namespace) -> None:
    from ftis.study.tidy import make_tidy

    make_tidy(*_artefact(arguments))


def _ablation(arguments: argparse.Namespace) -> None:
    from ftis.study.ablation import make_ablation

    make_ablation(arguments.ablation, *_artefact(arguments))


def _claims(arguments: argparse.Namespace) -> None:
    from ftis.papers.ftis.claim_tables import make_claims
    from ftis.study.tidy import read_tidy

    make_claims(read_tidy(arguments.tables), arguments.tier, arguments.out)


def _economics(arguments: argparse.Namespace) -> None:
    from ftis.study.economics import make_economics
    from ftis.study.tidy import read_tidy

    make_economics(read_tidy(arguments.tables), arguments.tier, arguments.out)


def _exact(arguments: argparse.Namespace) -> None:
    from ftis.study.exact.make import make_exact

    _use_threads(1)
    make_exact(arguments.out)


def _report(arguments: argparse.Namespace) -> None:
    from ftis.papers.ftis.report import make_report

    tier = arguments.tier
    out = arguments.out or Path("results", tier, "report.html")
    make_report(tier, arguments.artefacts or Path("paper_figures", tier), arguments.exact, out)


def _fetch(arguments: argparse.Namespace) -> None:
    from ftis.suite.fetch import fetch

    fetch(arguments.tier)


def _tokenizer(arguments: argparse.Namespace) -> None:
    from ftis.tasks.tiny.models import make_tokenizer

    make_tokenizer(arguments.out)


def _tiny_data(arguments: argparse.Namespace) -> None:
    from ftis.suite.made import made_data
    from ftis.suite.suite import Suite
    from ftis.tasks.tiny import models as tiny

    tiny.make_data(arguments.out, made_data(Suite.load(), arguments.tier))


def _warm_start(arguments: argparse.Namespace) -> None:
    from tqdm import tqdm

    from ftis.runs import state
    from ftis.runs import warm_start as sft
    from ftis.suite.grid import Run
    from ftis.suite.made import made_model
    from ftis.suite.suite import Suite
    from ftis.suite.tiers import source_of
    from ftis.tasks.tiny import models as tiny

    tier, seed, out = arguments.tier, arguments.seed, arguments.out
    model = made_model(Suite.load(), tier, arguments.model)
    config = Suite.load().resolve(tier, Run(arguments.model, "alone", None, "vertical", seed))
    settings = model.tiny or model.warm
    with tqdm(desc=f"warm start {arguments.model}", total=settings.steps, disable=None) as bar:

        def show(step: int, _steps: int, loss: float) -> None:
            bar.update(step - bar.n)
            bar.set_postfix_str(f"loss {loss:.3f}")

        with _gpus(arguments, "warm_start", config), state.only_writer(out, wait=True):
            if model.tiny is not None:
                tokenizer = arguments.tokenizer or Path("results", tier, "models", "tokenizer")
                data = arguments.data or Path("results", tier, "data")
                tiny.warm_start(settings, seed, tokenizer, data, out, show)
                return
            _use_threads(Suite.load().resources(tier, "warm_start").threads)
            where, revision = source_of(model)
            sft.warm_start(
                settings, seed, where, revision, config.rollout.prompt, config.train, out,
                config.nodes[0].compute_dtype, progress=show,
            )  # fmt: skip
