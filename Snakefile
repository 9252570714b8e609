# The workflow is workflow/Snakefile, where Snakemake and the workflow catalog look for it.
include: "workflow/Snakefile"


# An included file doesn't decide what is made by default.
workflow.default_target = "all"
