# Figures and tables, each from its own runs only.


rule figure:
    input:
        artefact_inputs,
    output:
        "paper_figures/{tier}/{figure}.pdf",
        "paper_figures/{tier}/{figure}.png",
        "paper_figures/{tier}/{figure}.csv",
    log:
        "results/{tier}/logs/figure/{figure}.log",
    benchmark:
        "results/{tier}/benchmarks/figure/{figure}.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=15,
    params:
        settings=artefact_settings,
        runs=artefact_options,
        out=subpath(output[0], parent=True),
    message:
        "{wildcards.tier}: drawing {wildcards.figure}"
    shell:
        "python -m ftis.cli figure {wildcards.figure} --tier {wildcards.tier} --out {params.out}"
        " --runs-dir results/{wildcards.tier}/runs {params.runs} > {log} 2>&1"


rule table:
    input:
        artefact_inputs,
        values="workflow/config/paper_values.csv",
    output:
        "paper_figures/{tier}/{table}.csv",
        "paper_figures/{tier}/{table}.tex",
    log:
        "results/{tier}/logs/table/{table}.log",
    benchmark:
        "results/{tier}/benchmarks/table/{table}.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=15,
    params:
        settings=artefact_settings,
        runs=artefact_options,
        out=subpath(output[0], parent=True),
    message:
        "{wildcards.tier}: making {wildcards.table}"
    shell:
        "python -m ftis.cli table {wildcards.table} --tier {wildcards.tier} --out {params.out}"
        " --runs-dir results/{wildcards.tier}/runs {params.runs} > {log} 2>&1"
