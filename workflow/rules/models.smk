# Models that the workflow makes: one tokenizer for all tiny ones, one supervised warm start a model and seed.


rule tokenizer:
    output:
        ensure(
            multiext("results/{tier}/models/tokenizer/tokenizer", ".json", "_config.json"),
            non_empty=True,
        ),
    log:
        "results/{tier}/logs/tokenizer.log",
    benchmark:
        "results/{tier}/benchmarks/tokenizer.tsv"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
        attempt=this_attempt,
    params:
        out=subpath(output[0], parent=True),
    message:
        "{wildcards.tier}: making the tokenizer"
    shell:
        "workflow/scripts/job {log} {resources.attempt}"
        " python -m ftis.cli job tokenizer --out {params.out}"


rule warm_start:
    input:
        warm_inputs,
    output:
        ensure("results/{tier}/models/{role}-s{seed}/warm.json", non_empty=True),
        ensure("results/{tier}/models/{role}-s{seed}/model.safetensors", non_empty=True),
    log:
        "results/{tier}/logs/warm_start/{role}-s{seed}.log",
    benchmark:
        "results/{tier}/benchmarks/warm_start/{role}-s{seed}.tsv"
    threads: need("warm_start", "threads")
    resources:
        mem_mb=need("warm_start", "mem_mb"),
        runtime=need("warm_start", "runtime"),
        gpu=need("warm_start", "gpus"),
        attempt=this_attempt,
    params:
        settings=warm_settings,
        out=subpath(output[0], parent=True),
    message:
        "{wildcards.tier}: warm start of {wildcards.role}, seed {wildcards.seed}"
    shell:
        "workflow/scripts/job {log} {resources.attempt}"
        " python -m ftis.cli job warm-start --tier {wildcards.tier} --model {wildcards.role} --seed {wildcards.seed}"
        " --out {params.out}"
