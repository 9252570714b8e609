# The whole paper as one graph: models -> training -> generation -> scores -> figures and tables.
# A path names its own tier (results/{tier}/..., paper_figures/{tier}/...); the config decides only what the
# targets below mean: snakemake --cores all --config tier=tiny grid=full seeds=3
import snakemake.benchmark
from snakemake.utils import min_version

min_version("9.19")


include: "workflow/rules/common.smk"


# For its rate limit Snakemake (9.19 to 9.27) looks for jobs to start once a second anew for every job that it has
# started: after 120 jobs that takes a quarter of a core, and more with each. The default, 100 jobs a second, limits
# nothing here, so it is taken away; a limit of one's own stays.
if workflow.scheduling_settings is not None:
    limit = workflow.scheduling_settings.max_jobs_per_timespan
    if limit is not None and (limit.max_jobs, limit.timespan) == (100, 1):
        workflow.scheduling_settings.max_jobs_per_timespan = None

# For `benchmark` it reads the memory maps of a job's processes, 30 times in the job's first 15 seconds, which took 3 %
# of the tiny tier's CPU time. Spread over a minute these cost half of that in jobs of half a minute, and see more of
# their peak.
snakemake.benchmark.BENCHMARK_INTERVAL_SHORT = 2.0


onstart:
    before_slurm()


rule all:
    default_target: True
    input:
        run_files("scores.json"),
        start_files(),
        artefact_files("fig", "table"),
        ablation_files(),
        f"results/{TIER}/report.html",


rule runs:
    input:
        run_files("final.json"),


rule figures:
    input:
        artefact_files("fig"),


rule tables:
    input:
        artefact_files("table"),


rule models:
    input:
        model_files(),


rule data:
    input:
        data_files(),


localrules:
    all,
    runs,
    figures,
    tables,
    models,
    data,
    fetch,
    tokenizer,
    tiny_data,
    figure,
    table,
    ablation,
    tidy,
    claims,
    economics,
    exact,
    report,


include: "workflow/rules/data.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/paper.smk"
