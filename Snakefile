# The workflow is in workflow/, where the catalog and `snakemake` in a copied folder look for it.
include: "workflow/Snakefile"
