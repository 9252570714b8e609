# Problems that the workflow makes. Real ones come from the hub or $FTIS_DATA when they are read, or beforehand: fetch.


rule tiny_data:
    output:
        ensure(
            expand("results/{{tier}}/data/{part}.jsonl", part=["train", "validation", "ood"]),
            non_empty=True,
        ),
    log:
        "results/{tier}/logs/tiny_data.log",
    benchmark:
        "results/{tier}/benchmarks/tiny_data.tsv"
    threads: 1
    resources:
        mem_mb=500,
        runtime=10,
        attempt=this_attempt,
    params:
        settings=data_settings,
        out=subpath(output[0], parent=True),
    message:
        "{wildcards.tier}: making problems"
    shell:
        "workflow/scripts/job {log} {resources.attempt}"
        " python -m ftis.cli job tiny-data --tier {wildcards.tier} --out {params.out}"


rule fetch:
    log:
        f"results/{TIER}/logs/fetch.log",
    params:
        tier=TIER,
    message:
        "{params.tier}: fetching models and problems from the hub"
    shell:
        "python -m ftis.cli job fetch --tier {params.tier} 2>&1 | tee {log}"
