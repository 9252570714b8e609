# What the rules ask of the grid and the tiers. Functions only: the rules are in the other files.
import inspect
import json
import os
import sys

from snakemake.exceptions import WorkflowError

# The folder that holds workflow/, whichever of the two Snakefiles was called.
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(str(workflow.current_basedir))))
if os.path.isfile(f"{ROOT}/ftis/__init__.py"):  # a checkout; what `ftis init` copied uses what is installed
    sys.path.insert(0, ROOT)
if config.get("methods"):  # before ftis is imported, and for the jobs, which inherit it
    os.environ.update(FTIS_METHODS=os.path.abspath(config["methods"]))

from ftis.errors import UserError

try:  # a file of methods may fail
    from ftis.suite import fetch
    from ftis.suite import made
    from ftis.suite import slurm
    from ftis.suite.workflow import load_config
    from ftis.suite.suite import Suite
    from ftis.config import recipe_hash
except UserError as error:
    raise WorkflowError(str(error)) from None


wildcard_constraints:
    tier="[^/]+",
    run="[^/]+",
    role=r"\w+",
    seed=r"\d+",
    figure=r"fig\d+",
    table=r"table\d+",
    ablation="[a-z0-9_]+",


def _plainly(function):
    """Turn a UserError into the message that Snakemake prints without a traceback."""

    def called(*arguments, **named):
        try:
            return function(*arguments, **named)
        except UserError as error:
            raise WorkflowError(str(error)) from None

    called.__signature__ = inspect.signature(function)  # Snakemake asks for it many times a job
    return called


SUITE = Suite.load()
CONFIG = _plainly(load_config)(config)
TIER = CONFIG.tier

# Jobs run `python` of the environment that runs Snakemake. Idle threads sleep instead of spinning, and freed memory
# stays with the process instead of going back to the system: tiny models train about a fifth faster.
os.environ.update(
    {
        "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", ""),
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",  # shapes vary, and a GPU's blocks must grow with them
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
        "MALLOC_TOP_PAD_": str(64 << 20),
        **({"FTIS_MODELS": json.dumps(CONFIG.models)} if CONFIG.models else {}),
    }
)


REFUSED = {"gpus": 0, "threads": 1, "mem_mb": 500, "runtime": 5}  # what it takes to say so


def need(rule, what):
    """Threads or a resource of a rule's job, as its tier says; but no GPU for trying again what is the user's to mend."""

    def value(wildcards, attempt):
        name = wildcards.get("run") or f"{wildcards.role}-s{wildcards.seed}"
        if attempt > 1 and os.path.exists(f"results/{wildcards.tier}/logs/{rule}/{name}.refused"):
            return REFUSED[what]
        run = SUITE.run(wildcards.run) if wildcards.get("run") else None
        return getattr(SUITE.resources(wildcards.tier, rule, run), what)

    return _plainly(value)


def this_attempt(wildcards, attempt):
    """Which try of this call of Snakemake a job is, from 1; for workflow/scripts/job."""
    return attempt


def without_idle_rate_limit():
    """Take away Snakemake's default rate limit of 100 jobs a second, which limits nothing here; one of one's own stays.

    For it Snakemake (9.19 to 9.27) looks for jobs to start once a second anew for every job that it has started: after
    140 jobs that takes a third of a core. No setting does it: it can't be none, and Snakemake waits for the end of a
    longer timespan before it ends itself. Called when jobs start, since the scheduler isn't there before.
    """
    limiter = workflow.scheduler.job_rate_limiter
    if limiter is not None and (limiter.max_jobs, limiter.timespan) == (100, 1):
        workflow.scheduler.job_rate_limiter = None


@_plainly
def before_slurm():
    """Before the first job is queued: what would make the jobs fail on their nodes, one by one."""
    if workflow.executor_plugin.name != "slurm":
        return
    jobs = [job for job in workflow.dag.needrun_jobs() if not job.is_local]
    fetch.require_fetched({job.wildcards.tier for job in jobs})
    runs = {(job.wildcards.tier, job.wildcards.run) for job in jobs if job.rule.name in ("train", "generate")}
    if any(SUITE.resolve(tier, SUITE.run(run)).needs_vllm for tier, run in runs):
        from ftis.model.vllm.sampler import require_vllm

        require_vllm()
    settings = workflow.executor_settings
    slurm.require_ends_seen(settings)
    slurm.require_accepted(jobs, settings)
    os.environ.update(HF_HUB_OFFLINE="1")  # the jobs inherit it: all is here, and none waits for a network
    slurm.translate(f"{ROOT}/workflow/scripts/slurm")


# --- Targets --------------------------------------------------------------------------------------------


@_plainly
def run_files(file):
    chosen = SUITE.runs(TIER, CONFIG.grid, CONFIG.seeds)
    return [f"results/{TIER}/runs/{run.slug}/{file}" for run in chosen]


@_plainly
def artefact_files(*kinds):
    ends = {"fig": ("pdf", "png", "csv"), "table": ("csv", "tex")}
    names = SUITE.artefacts(TIER)
    return [
        f"paper_figures/{TIER}/{name}.{end}"
        for kind in kinds
        for name in names
        if name.startswith(kind)
        for end in ends[kind]
    ]


@_plainly
def start_files():
    return [f"results/{TIER}/runs/{run.slug}/scores.json" for run in SUITE.start_runs(TIER, CONFIG.seeds)]


@_plainly
def ablation_files():
    names = {"all": SUITE.ablations(TIER), "none": ()}.get(CONFIG.ablations, CONFIG.ablations)
    return [f"paper_figures/{TIER}/ablation-{name}.{end}" for name in names for end in ("csv", "pdf", "png")]


@_plainly
def model_files():
    return sorted(
        {
            path
            for run in SUITE.runs(TIER, CONFIG.grid, CONFIG.seeds)
            for path in made.made_inputs(SUITE, TIER, run)
            if path.endswith("warm.json")
        }
    )


@_plainly
def data_files():
    made_here = SUITE.tier(TIER).data is not None
    return [f"results/{TIER}/data/{name}.jsonl" for name in ("train", "validation", "ood") if made_here]


# --- Rules ----------------------------------------------------------------------------------------------


@_plainly
def data_settings(wildcards):
    return made.settings_hash(made.made_data(SUITE, wildcards.tier))


@_plainly
def warm_settings(wildcards):
    return made.made_hash(SUITE, wildcards.tier, wildcards.role)


@_plainly
def warm_inputs(wildcards):
    return made.warm_inputs(SUITE, wildcards.tier, wildcards.role)


@_plainly
def train_inputs(wildcards):
    return made.made_inputs(SUITE, wildcards.tier, SUITE.run(wildcards.run))


@_plainly
def subjects(wildcards):
    """What stands for the models that a run's answers come from."""
    run = SUITE.run(wildcards.run)
    if run.method == "start":
        return made.made_models(SUITE, wildcards.tier, run)
    return f"results/{wildcards.tier}/runs/{wildcards.run}/final.json"


@_plainly
def train_recipe(wildcards):
    return recipe_hash(SUITE.resolve(wildcards.tier, SUITE.run(wildcards.run)))


@_plainly
def benchmark_inputs(wildcards):
    return made.made_benchmarks(SUITE, wildcards.tier)


@_plainly
def answers_settings(wildcards):
    return made.answers_hash(SUITE, wildcards.tier, SUITE.run(wildcards.run))


def _artefact_runs(wildcards):
    name = wildcards.get("figure") or wildcards.table
    return SUITE.artefact_runs(name, wildcards.tier, CONFIG.seeds)


@_plainly
def artefact_inputs(wildcards):
    name = wildcards.get("figure") or wildcards.table
    runs = _artefact_runs(wildcards)
    return [f"results/{wildcards.tier}/runs/{run.slug}/{SUITE.reads(name)}" for run in runs]


def _options(runs):
    return " ".join(f"--run {run.slug}" for run in runs)


@_plainly
def artefact_options(wildcards):
    return _options(_artefact_runs(wildcards))


def _ablation_runs(wildcards):
    return SUITE.ablation_runs(wildcards.ablation, wildcards.tier, CONFIG.seeds)


@_plainly
def ablation_inputs(wildcards):
    folders = [f"results/{wildcards.tier}/runs/{run.slug}" for run in _ablation_runs(wildcards)]
    return [
        f"{folder}/{file}" for folder in folders for file in ("metrics.jsonl", "scores.json", "final.json")
    ]


@_plainly
def ablation_options(wildcards):
    return _options(_ablation_runs(wildcards))


@_plainly
def ablation_settings(wildcards):
    return made.settings_hash(SUITE.grid.ablations[wildcards.ablation], SUITE.labels(wildcards.tier))


def _tidy_runs(wildcards):
    tier, seeds = wildcards.tier, CONFIG.seeds
    return [*SUITE.start_runs(tier, seeds), *SUITE.runs(tier, CONFIG.grid, seeds)]


@_plainly
def tidy_inputs(wildcards):
    runs = _tidy_runs(wildcards)
    graded = ("scores.json", "graded.jsonl")
    files = {run: graded if run.method == "start" else ("metrics.jsonl", *graded) for run in runs}
    return [f"results/{wildcards.tier}/runs/{run.slug}/{file}" for run in runs for file in files[run]]


@_plainly
def tidy_options(wildcards):
    return _options(_tidy_runs(wildcards))


@_plainly
def tidy_settings(wildcards):
    return made.settings_hash(SUITE.labels(wildcards.tier))


@_plainly
def shown_settings(wildcards):
    """What is said of the tidy tables and figures: titles, questions, what the tier is."""
    return made.settings_hash(SUITE.grid, SUITE.tier(wildcards.tier).about)


@_plainly
def report_inputs(wildcards):
    """The tier's artefacts, and of the ablations those that are asked for or already there."""
    tier = wildcards.tier
    names = [
        name for name in SUITE.ablations(tier) if os.path.exists(f"paper_figures/{tier}/ablation-{name}.csv")
    ]
    files = [
        f"paper_figures/{tier}/{name}.{'csv' if name.startswith('table') else 'png'}"
        for name in SUITE.artefacts(tier)
    ]
    files += [f"paper_figures/{tier}/{file}" for file in ("claims.csv", "economics.csv")]
    files += [f"paper_figures/{tier}/ablation-{name}.csv" for name in names]
    return files + (ablation_files() if tier == TIER else [])


@_plainly
def artefact_settings(wildcards):
    """Titles, labels and, for the table of settings, the whole tier."""
    name = wildcards.get("figure") or wildcards.table
    tier = SUITE.tier(wildcards.tier) if name == "table1" else SUITE.labels(wildcards.tier)
    # Table 2 names the pairs.
    titles = [setup.title for setup in SUITE.grid.setups.values()] if name == "table2" else []
    return made.settings_hash(SUITE.grid.artefacts[name], tier, *titles)
