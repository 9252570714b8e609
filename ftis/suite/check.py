"""What of a plan would fail, found without a GPU: each problem with the setting or the way out."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ftis.config import RunConfig
from ftis.errors import UserError
from ftis.locks import locked
from ftis.suite import cost
from ftis.suite.cost import Gpu
from ftis.suite.memory import GIB
from ftis.suite.plan import RunPlan, shape_of_role
from ftis.suite.suite import Suite
from ftis.suite.tiers import source_of
from ftis.tasks.problems import Dataset


def check(
    tier: str,
    runs: Sequence[RunPlan],
    gpu: Gpu = cost.GPU,
    results: Path = Path("results"),
    jobs: int | None = None,
) -> list[str]:
    """All problems of these runs, each once, as lines of text; none where all is in order.

    jobs: runs that train at the same time; None: all of them.
    """
    tokenizers: dict[str, object] = {}
    found: list[str] = []
    for part in (
        _models(tier, runs, tokenizers),
        _data(tier, runs),
        _tokenizers(tier, runs, tokenizers),
        _prompts(tier, runs, tokenizers),
        _gpus(runs),
        _tf32(runs),
        _memory(runs, gpu),
        _engines(tier, runs),
        _disk(runs, results, min(jobs or len(runs), len(runs))),
        _backends(runs),
    ):
        found += [line for line in part if line not in found]
    return found


def _says(call: Callable, *arguments) -> Iterator[str]:
    try:
        call(*arguments)
    except UserError as error:
        yield str(error)


def _sources(tier: str, config: RunConfig) -> list[tuple[str, str, str | None]]:
    """(role, folder or hub name, revision) of the models of a run that aren't made from nothing."""
    models = Suite.load().tier(tier).models
    real = [(node.name, models[models[node.name].of or node.name]) for node in config.nodes]
    return [(role, *source_of(model)) for role, model in real if model.tiny is None]


def _models(tier: str, runs: Sequence[RunPlan], tokenizers: dict) -> Iterator[str]:
    """Models that aren't here nor to be had, and tokenizers that can't be read or are wider than the
    embedding."""
    from ftis.model.loading import load_tokenizer, model_source
    from ftis.model.policy import vocabulary

    roles = {s[1:]: s[0] for run in reversed(runs) for s in reversed(_sources(tier, run.config))}
    for (where, revision), role in reversed(roles.items()):
        name = f"models.{role}: "
        try:
            source, _ = model_source(where, revision)
            if Path(source).is_dir():
                missing = [p for p in ("config.json", "*.safetensors") if not any(Path(source).glob(p))]
                if missing:
                    yield f"{name}{source} holds no {' and no '.join(missing)}; copy the whole model"
            tokenizers[where] = load_tokenizer(where, revision)
            shape = shape_of_role(tier, role)
        except UserError as error:
            yield name + str(error)
            continue
        ids = vocabulary(tokenizers[where])
        if ids > shape.vocab_size:
            yield (
                f"{name}the tokenizer of {where} has ids up to {ids - 1}, its embedding {shape.vocab_size} "
                "rows: not a "
                "pair; take the tokenizer that the model was trained with"
            )


def _data(tier: str, runs: Sequence[RunPlan]) -> Iterator[str]:
    from ftis.tasks.problems import load_problems, local_file, require_data

    for data in dict.fromkeys(d for run in runs for d in _datasets(tier, run.config)):
        if data.path is not None and data.path.startswith("results/"):
            continue  # the workflow makes it
        yield from _says(require_data, data)
        try:
            here = local_file(data) is not None
        except UserError:
            continue  # said already
        if here:
            yield from _says(load_problems, data)


def _datasets(tier: str, config: RunConfig) -> list[Dataset]:
    sets = [config.train, config.validation.data, *(b.data for b in Suite.load().benchmarks(tier).values())]
    return [data for data in sets if data is not None]


def _tokenizers(tier: str, runs: Sequence[RunPlan], tokenizers: dict) -> Iterator[str]:
    from ftis.model.loading import tokenizer_difference

    for run in runs:
        here = [(role, where) for role, where, _ in _sources(tier, run.config) if where in tokenizers]
        for role, where in here[1:]:
            first_role, first = here[0]
            difference = tokenizer_difference(tokenizers[first], tokenizers[where])
            if difference:
                yield (
                    f"models.{role} and models.{first_role}: {where} and {first} have different tokenizers "
                    f"({difference}); nodes exchange token ids and must share one"
                )


def _prompts(tier: str, runs: Sequence[RunPlan], tokenizers: dict) -> Iterator[str]:
    """Training questions that leave no room for a completion, counted with the models' own tokenizers."""
    from ftis.tasks.problems import load_problems, local_file
    from ftis.tasks.prompts import encode_prompt

    seen = set()
    for run in runs:
        rollout, data = run.config.rollout, run.config.train
        for _, where, _ in _sources(tier, run.config)[:1]:
            key = (where, rollout.prompt, rollout.max_total_tokens, data)
            if where not in tokenizers or rollout.max_total_tokens is None or key in seen:
                continue
            seen.add(key)
            try:
                problems = load_problems(data) if local_file(data) else []
            except UserError:
                continue  # said already
            try:
                for problem in problems:
                    encode_prompt(
                        rollout.prompt, problem.question, tokenizers[where], rollout.max_total_tokens - 1
                    )
            except UserError as error:
                yield f"rollout.max_total_tokens: {error}"


def _gpus(runs: Sequence[RunPlan]) -> Iterator[str]:
    import torch

    here = torch.cuda.device_count()
    for run in runs:
        for node in run.nodes:
            if node.gpu is not None and node.gpu >= run.gpus:
                yield (
                    f"node.device: {node.role} of {run.slug} is on GPU {node.gpu}, but the job has "
                    f"{run.gpus} "
                    "(resources.train.gpus); raise that, or set the device to auto"
                )
        if 0 < here < run.gpus:
            yield (
                f"resources.train.gpus: {run.slug} takes {run.gpus}, this machine has {here}; run it "
                "elsewhere or lower it"
            )


def _memory(runs: Sequence[RunPlan], gpu: Gpu) -> Iterator[str]:
    tight: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for i, need in enumerate(run.gpu_bytes):
            if need > gpu.gib * GIB:
                names = " + ".join(n.label or n.role for n in run.nodes if n.gpu == i)
                what = f"{names} need {need / GIB:.1f} GiB of a GPU's {gpu.gib:g}"
                how = (
                    "raise resources.train.gpus, lower rollout.max_batch, rollout.gpu_memory_utilization "
                    "(vllm) or "
                    "optim.micro_batch_tokens, or set node.gradient_checkpointing"
                )
                tight.setdefault((what, how), []).append(run.slug)
        for node in run.nodes:
            if node.generate_bytes > run.generate_limit:
                what = (
                    f"answering the tests with {node.label or node.role} needs "
                    f"{node.generate_bytes / GIB:.1f} GiB, its "
                    f"job (resources.generate) has {run.generate_limit / GIB:.1f}"
                )
                tight.setdefault(
                    (what, "lower answers_batch or rollout.max_batch, or give the job more"), []
                ).append(run.slug)
        if run.host_bytes > run.host_limit:
            yield (
                f"resources.train.mem_mb: {run.slug} may need {run.host_bytes / 1e9:.1f} GB of the machine's "
                "memory (a run "
                f"that was killed reads all nodes' states), the job has {run.host_limit / 1e9:.1f}; raise it"
            )
    for (what, how), slugs in tight.items():
        more = f" and {len(slugs) - 1} more" if len(slugs) > 1 else ""
        yield f"{what} in {slugs[0]}{more}; {how}"


def _engines(tier: str, runs: Sequence[RunPlan]) -> Iterator[str]:
    """Engines of vLLM that wouldn't start: two at a time on a card, a share that is too small, or a context
    beyond the model's."""
    for run in runs:
        cards = [node.gpu for node in run.nodes if node.memory.engine]
        if run.config.transport == "processes" and len(set(cards)) < len(cards):
            yield (
                f"resources.train.gpus: {run.slug} has {run.gpus} for {len(run.nodes)} nodes in processes of "
                "their own: "
                "an engine of vLLM measures its card when it starts and sleeps, and fails where another's "
                "memory changes "
                "meanwhile; give each node a GPU, or set transport to local"
            )
    for node in (node for run in runs for node in run.nodes):
        name = node.label or node.role
        for engine in node.engines:
            least = engine.weights + engine.sequence
            if 0 < engine.given < least:
                yield (
                    f"{engine.share} is {engine.given / GIB:.1f} GiB for {name}: vLLM needs "
                    f"{least / GIB:.1f} for its "
                    f"weights and one sequence of {engine.tokens} tokens; give it more, or take a larger GPU"
                )
            limit = shape_of_role(tier, node.role).max_position_embeddings
            if limit is not None and engine.tokens > limit:
                yield (
                    f"models.{node.role}: {node.model} reads {limit} tokens, and vLLM is to read up to "
                    f"{engine.tokens} with "
                    "a prompt and its completion; lower max_new_tokens"
                )


def _tf32(runs: Sequence[RunPlan]) -> Iterator[str]:
    """Containers of NVIDIA's set this variable, against torch's own default."""
    nodes = [(run, k) for run in runs for k, node in enumerate(run.nodes) if node.gpu is not None]
    single = any(run.config.nodes[k].compute_dtype == "float32" for run, k in nodes)
    if single and os.environ.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE") == "1":
        yield (
            "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE: is 1, with which products in float32 are good to three digits "
            "only; unset "
            "it, or set compute_dtype to bfloat16"
        )


def _disk(runs: Sequence[RunPlan], results: Path, jobs: int) -> Iterator[str]:
    folder = results.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    kept = sum(r.kept_bytes for r in runs)
    running = sorted((r.disk_bytes - r.kept_bytes for r in runs), reverse=True)[:jobs]
    if kept + sum(running) > free:
        yield (
            f"disk: the runs leave {kept / 1e9:.0f} GB and need {(kept + sum(running)) / 1e9:.0f} GB in all "
            f"with {jobs} "
            f"training at a time; {folder} has {free / 1e9:.0f} GB free; take another folder, or fewer at a "
            "time "
            "(snakemake --jobs N; --jobs N here)"
        )
    if not os.access(folder, os.W_OK):
        yield f"disk: {folder} can't be written; run from another folder"
        return
    with tempfile.NamedTemporaryFile("w", dir=folder) as file:
        try:
            locked(file)
        except UserError as error:
            yield f"disk: {error}"


def _backends(runs: Sequence[RunPlan]) -> Iterator[str]:
    from ftis.model.vllm.sampler import require_vllm

    for run in runs:
        if run.config.needs_vllm:
            yield from (f"rollout.backend: {line}" for line in _says(require_vllm))
