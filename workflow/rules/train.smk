# One job a run. Its resumable state lies beside the outputs, undeclared: Snakemake deletes declared outputs
# before a job and after a failed one. The recipe is a param, so that settings which change the result retrain and
# a new label does not.


rule train:
    input:
        train_inputs,
    output:
        ensure("results/{tier}/runs/{run}/final.json", non_empty=True),
        ensure("results/{tier}/runs/{run}/metrics.jsonl", non_empty=True),
    log:
        "results/{tier}/logs/train/{run}.log",
    benchmark:
        "results/{tier}/benchmarks/train/{run}.tsv"
    threads: need("train", "threads")
    resources:
        mem_mb=need("train", "mem_mb"),
        runtime=need("train", "runtime"),
        gpu=need("train", "gpus"),
        attempt=this_attempt,
    params:
        recipe=train_recipe,
    message:
        "{wildcards.tier}: training {wildcards.run}"
        " ({resources.gpu} GPUs, {resources.mem_mb} MB, {resources.runtime} minutes)"
    shell:
        "workflow/scripts/job {log} {resources.attempt}"
        " python -m ftis.cli train --tier {wildcards.tier} --run {wildcards.run}"
