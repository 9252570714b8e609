"""The jobs: what the workflow's rules call. Each imports what it needs when it runs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from ftis.cli.options import (
    OUT,
    RUN,
    RUNS,
    RUNS_DIR,
    TIER,
    Command,
    gpus,
    grid_run,
    option,
    run_folder,
    use_threads,
    whole,
)


def generate(arguments: argparse.Namespace) -> None:
    from ftis.runs.answers import BenchmarkSpec, Sampling, generate, run_subjects, start_subjects
    from ftis.suite.suite import Suite

    run = Suite.load().run(arguments.run)
    config = grid_run(arguments)
    folder = run_folder(arguments)
    subjects, facts = start_subjects(config) if run.method == "start" else run_subjects(folder)
    subjects = [replace(s, compute_dtype=config.nodes[s.node].compute_dtype) for s in subjects]
    tests = {}
    for role, b in Suite.load().benchmarks(arguments.tier).items():
        tests[role] = BenchmarkSpec(b.data, b.prompt or config.rollout.prompt, b.max_new_tokens)
        if b.samples:
            tests[f"{role}_sampled"] = replace(tests[role], samples=b.samples, temperature=1.0)
    use_threads(Suite.load().resources(arguments.tier, "generate").threads)
    batch = Suite.load().answers_batch(arguments.tier, config)
    sampling = Sampling(config.seed, batch, config.reward, config.rollout.backend)
    with gpus(arguments, "generate", config):
        # As in `train`: what a process that nobody waits for has begun is taken over.
        generate(subjects, tests, folder / "generations.jsonl", sampling, facts=facts, resume=True, wait=True)


def score(arguments: argparse.Namespace) -> None:
    from ftis.runs.scores import score

    folder = run_folder(arguments)
    score(folder / "generations.jsonl", folder / "scores.json")


def _artefact(arguments: argparse.Namespace) -> tuple[str, list[Path], Path]:
    folder = arguments.runs_dir or Path("results", arguments.tier, "runs")
    return arguments.tier, [folder / run for run in arguments.run], arguments.out


def figure(arguments: argparse.Namespace) -> None:
    from ftis.study.plots import make_figure

    make_figure(arguments.figure, *_artefact(arguments))


def table(arguments: argparse.Namespace) -> None:
    from ftis.papers.ftis.tables import make_table

    make_table(arguments.table, *_artefact(arguments))


def tidy(arguments: argparse.Namespace) -> None:
    from ftis.study.tidy import make_tidy

    make_tidy(*_artefact(arguments))


def ablation(arguments: argparse.Namespace) -> None:
    from ftis.study.ablation import make_ablation

    make_ablation(arguments.ablation, *_artefact(arguments))


def claims(arguments: argparse.Namespace) -> None:
    from ftis.papers.ftis.claim_tables import make_claims
    from ftis.study.tidy import read_tidy

    make_claims(read_tidy(arguments.tables), arguments.tier, arguments.out)


def economics(arguments: argparse.Namespace) -> None:
    from ftis.study.economics import make_economics
    from ftis.study.tidy import read_tidy

    make_economics(read_tidy(arguments.tables), arguments.tier, arguments.out)


def exact(arguments: argparse.Namespace) -> None:
    from ftis.study.exact.make import make_exact

    use_threads(1)
    make_exact(arguments.out)


def fetch(arguments: argparse.Namespace) -> None:
    from ftis.suite.fetch import fetch

    fetch(arguments.tier)


def tokenizer(arguments: argparse.Namespace) -> None:
    from ftis.tasks.tiny.models import make_tokenizer

    make_tokenizer(arguments.out)


def tiny_data(arguments: argparse.Namespace) -> None:
    from ftis.suite.made import made_data
    from ftis.suite.suite import Suite
    from ftis.tasks.tiny import models as tiny

    tiny.make_data(arguments.out, made_data(Suite.load(), arguments.tier))


def warm_start(arguments: argparse.Namespace) -> None:
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

        with gpus(arguments, "warm_start", config), state.only_writer(out, wait=True):
            if model.tiny is not None:
                tokenizer = arguments.tokenizer or Path("results", tier, "models", "tokenizer")
                data = arguments.data or Path("results", tier, "data")
                tiny.make_model(settings, seed, tokenizer, data, out, show)
                return
            use_threads(Suite.load().resources(tier, "warm_start").threads)
            where, revision = source_of(model)
            sft.warm_start(
                settings, seed, where, revision, config.rollout.prompt, config.train, out,
                config.nodes[0].compute_dtype, progress=show,
            )  # fmt: skip


TABLES = option("--tables", type=Path, required=True, metavar="DIR", help="folder of `ftis job tidy`")
COMMANDS = (
    Command(
        "generate",
        generate,
        "sample a finished run's models on the tier's benchmarks (start-ROLE-sSEED: before training)",
        (TIER, RUN, RUNS_DIR),
    ),
    Command("score", score, "grade what generate sampled", (TIER, RUN, RUNS_DIR)),
    Command(
        "figure",
        figure,
        "draw a figure of the paper from runs: PDF, PNG and CSV",
        (option("figure", metavar="FIG", help="fig1 ... fig12"), TIER, OUT, RUNS, RUNS_DIR),
    ),
    Command(
        "table",
        table,
        "make a table of the paper from runs: CSV and LaTeX",
        (option("table", metavar="TABLE", help="table1 or table2"), TIER, OUT, RUNS, RUNS_DIR),
    ),
    Command("tidy", tidy, "gather runs into tidy tables: CSV", (TIER, OUT, RUNS, RUNS_DIR)),
    Command(
        "ablation",
        ablation,
        "compare an ablation's runs: PDF, PNG and CSV",
        (
            option("ablation", metavar="NAME", help="a key of `ablations` in grid.yaml"),
            TIER,
            OUT,
            RUNS,
            RUNS_DIR,
        ),
    ),
    Command("claims", claims, "test the paper's claims on tidy tables: CSV and LaTeX", (TIER, TABLES, OUT)),
    Command(
        "economics",
        economics,
        "what a node gains by joining, from tidy tables: CSV and figure",
        (TIER, TABLES, OUT),
    ),
    Command("exact", exact, "the exact study of methods on an enumerable policy: figures and CSV", (OUT,)),
    Command("fetch", fetch, "download a tier's models and problems, for machines without a network", (TIER,)),
    Command("tokenizer", tokenizer, "make the tiny models' tokenizer", (OUT,)),
    Command("tiny-data", tiny_data, "make a tier's arithmetic problems", (TIER, OUT)),
    Command(
        "warm-start",
        warm_start,
        "train a tiny model that it makes, or a real one, on worked solutions",
        (
            TIER,
            option(
                "--model",
                required=True,
                metavar="ROLE",
                help="base_small, base_large, coder_small or coder_large",
            ),
            option("--seed", type=whole, required=True),
            option(
                "--tokenizer",
                type=Path,
                metavar="DIR",
                help="of tiny models (default: results/TIER/models/tokenizer)",
            ),
            option(
                "--data",
                type=Path,
                metavar="DIR",
                help="problems of tiny models (default: results/TIER/data)",
            ),
            OUT,
        ),
    ),
)
