# The whole paper as one graph: models -> training -> generation -> scores -> figures and tables.
# A path names its own tier (results/{tier}/..., paper_figures/{tier}/...); the config decides only what the
# targets below mean: snakemake --cores all --config tier=tiny grid=full seeds=3
from snakemake.utils import min_version

min_version("9.19")


include: "workflow/rules/common.smk"


onstart:
    before_slurm()
    without_idle_rate_limit()


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
