# Generation and scoring are two rules, so that grading again needs no GPU. What a trained run's answers come from is
# its final.json; of a model before training, which may come from outside and have no file here, the param says it.
from ftis.provenance import versions
from ftis.runs.scores import GRADERS


rule generate:
    input:
        subjects,
        benchmark_inputs,
    output:
        ensure("results/{tier}/runs/{run}/generations.jsonl", non_empty=True),
    log:
        "results/{tier}/logs/generate/{run}.log",
    benchmark:
        "results/{tier}/benchmarks/generate/{run}.tsv"
    threads: need("generate", "threads")
    resources:
        mem_mb=need("generate", "mem_mb"),
        runtime=need("generate", "runtime"),
        gpu=need("generate", "gpus"),
        attempt=this_attempt,
    params:
        settings=answers_settings,
    message:
        "{wildcards.tier}: answering the benchmarks with {wildcards.run}"
    shell:
        "workflow/scripts/job {log} {resources.attempt}"
        " python -m ftis.cli job generate --tier {wildcards.tier} --run {wildcards.run}"


rule score:
    input:
        "results/{tier}/runs/{run}/generations.jsonl",
    output:
        ensure("results/{tier}/runs/{run}/scores.json", non_empty=True),
        ensure("results/{tier}/runs/{run}/graded.jsonl", non_empty=True),
    log:
        "results/{tier}/logs/score/{run}.log",
    benchmark:
        "results/{tier}/benchmarks/score/{run}.tsv"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=60,
        attempt=this_attempt,
    params:
        graders=versions(GRADERS),  # with others, answers are graded again
    message:
        "{wildcards.tier}: grading {wildcards.run}"
    shell:
        "workflow/scripts/job {log} {resources.attempt}"
        " python -m ftis.cli job score --tier {wildcards.tier} --run {wildcards.run}"
