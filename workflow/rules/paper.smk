# Figures, tables and ablations, each from its own runs only; claims, economics and the report from tidy tables of all.


rule figure:
    input:
        artefact_inputs,
    output:
        ensure(multiext("paper_figures/{tier}/{figure}", ".pdf", ".png", ".csv"), non_empty=True),
    log:
        "results/{tier}/logs/figure/{figure}.log",
    benchmark:
        "results/{tier}/benchmarks/figure/{figure}.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=15,
        attempt=this_attempt,
    params:
        settings=artefact_settings,
        runs=artefact_options,
        out=subpath(output[0], parent=True),
    message:
        "{wildcards.tier}: drawing {wildcards.figure}"
    shell:
        "workflow/scripts/job {log} {resources.attempt}"
        " python -m ftis.cli job figure {wildcards.figure} --tier {wildcards.tier} --out {params.out}"
        " --runs-dir results/{wildcards.tier}/runs {params.runs}"


rule table:
    input:
        artefact_inputs,
        values="workflow/config/paper_values.csv",
    output:
        ensure(multiext("paper_figures/{tier}/{table}", ".csv", ".tex"), non_empty=True),
    log:
        "results/{tier}/logs/table/{table}.log",
    benchmark:
        "results/{tier}/benchmarks/table/{table}.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=15,
        attempt=this_attempt,
    params:
        settings=artefact_settings,
        runs=artefact_options,
        out=subpath(output[0], parent=True),
    message:
        "{wildcards.tier}: making {wildcards.table}"
    shell:
        "workflow/scripts/job {log} {resources.attempt}"
        " python -m ftis.cli job table {wildcards.table} --tier {wildcards.tier} --out {params.out}"
        " --runs-dir results/{wildcards.tier}/runs {params.runs}"


rule ablation:
    input:
        ablation_inputs,
    output:
        ensure(multiext("paper_figures/{tier}/ablation-{ablation}", ".pdf", ".png", ".csv"), non_empty=True),
    log:
        "results/{tier}/logs/ablation/{ablation}.log",
    benchmark:
        "results/{tier}/benchmarks/ablation/{ablation}.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=15,
        attempt=this_attempt,
    params:
        settings=ablation_settings,
        runs=ablation_options,
        out=subpath(output[0], parent=True),
    message:
        "{wildcards.tier}: comparing the runs of ablation {wildcards.ablation}"
    shell:
        "workflow/scripts/job {log} {resources.attempt}"
        " python -m ftis.cli job ablation {wildcards.ablation} --tier {wildcards.tier} --out {params.out}"
        " --runs-dir results/{wildcards.tier}/runs {params.runs}"


rule tidy:
    input:
        tidy_inputs,
    output:
        ensure(
            expand(
                "paper_figures/{{tier}}/tidy/{table}.csv",
                table=["runs", "training", "validation", "scores", "completions", "disagreements"],
            ),
            non_empty=True,
        ),
        ensure("paper_figures/{tier}/provenance.json", non_empty=True),
    log:
        "results/{tier}/logs/tidy.log",
    benchmark:
        "results/{tier}/benchmarks/tidy.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=15,
        attempt=this_attempt,
    params:
        settings=tidy_settings,
        runs=tidy_options,
        out="paper_figures/{tier}",
    message:
        "{wildcards.tier}: gathering all runs into tidy tables"
    shell:
        "workflow/scripts/job {log} {resources.attempt}"
        " python -m ftis.cli job tidy --tier {wildcards.tier} --out {params.out}"
        " --runs-dir results/{wildcards.tier}/runs {params.runs}"


rule claims:
    input:
        tables="paper_figures/{tier}/tidy/runs.csv",
    output:
        ensure("paper_figures/{tier}/claims.csv", non_empty=True),
        ensure("paper_figures/{tier}/claims_components.csv", non_empty=True),
        ensure("paper_figures/{tier}/claims.tex", non_empty=True),
    log:
        "results/{tier}/logs/claims.log",
    benchmark:
        "results/{tier}/benchmarks/claims.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=15,
        attempt=this_attempt,
    params:
        settings=shown_settings,
        tables=subpath(input.tables, parent=True),
        out=subpath(output[0], parent=True),
    message:
        "{wildcards.tier}: testing the paper's claims"
    shell:
        "workflow/scripts/job {log} {resources.attempt}"
        " python -m ftis.cli job claims --tier {wildcards.tier} --tables {params.tables} --out {params.out}"


rule economics:
    input:
        tables="paper_figures/{tier}/tidy/runs.csv",
    output:
        ensure("paper_figures/{tier}/economics.csv", non_empty=True),
        ensure("paper_figures/{tier}/economics_paper.csv", non_empty=True),
        ensure(
            expand(
                "paper_figures/{{tier}}/economics{cost}.{end}",
                cost=("", "_seconds", "_bytes"),
                end=("pdf", "png"),
            ),
            non_empty=True,
        ),
    log:
        "results/{tier}/logs/economics.log",
    benchmark:
        "results/{tier}/benchmarks/economics.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=15,
        attempt=this_attempt,
    params:
        settings=shown_settings,
        tables=subpath(input.tables, parent=True),
        out=subpath(output[0], parent=True),
    message:
        "{wildcards.tier}: what a node gains by joining"
    shell:
        "workflow/scripts/job {log} {resources.attempt}"
        " python -m ftis.cli job economics --tier {wildcards.tier} --tables {params.tables} --out {params.out}"


rule exact:
    output:
        ensure(
            expand(
                "paper_figures/exact/exact{table}.csv",
                table=["", "_kl", "_halves", "_training", "_findings"],
            ),
            non_empty=True,
        ),
        ensure(
            expand(
                "paper_figures/exact/exact_{figure}.{end}",
                figure=["bias", "progress", "filter", "halves", "cap", "kl", "training"],
                end=["pdf", "png"],
            ),
            non_empty=True,
        ),
        ensure("paper_figures/exact/provenance.json", non_empty=True),
    log:
        "results/exact/exact.log",
    benchmark:
        "results/exact/exact.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
        attempt=this_attempt,
    params:
        out=subpath(output[0], parent=True),
    message:
        "the exact study of methods on a policy small enough to enumerate"
    shell:
        "workflow/scripts/job {log} {resources.attempt}" " python -m ftis.cli job exact --out {params.out}"


rule report:
    input:
        report_inputs,
        exact=rules.exact.output[0],
    output:
        report(
            ensure("results/{tier}/report.html", non_empty=True),
            category="Report",
            labels={"tier": "{tier}"},
        ),
    log:
        "results/{tier}/logs/report.log",
    benchmark:
        "results/{tier}/benchmarks/report.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=15,
        attempt=this_attempt,
    params:
        settings=shown_settings,
        artefacts="paper_figures/{tier}",
        exact=subpath(input.exact, parent=True),
    message:
        "{wildcards.tier}: writing the report"
    shell:
        "workflow/scripts/job {log} {resources.attempt}"
        " python -m ftis.cli report --tier {wildcards.tier} --artefacts {params.artefacts} --exact {params.exact}"
        " --out {output}"
