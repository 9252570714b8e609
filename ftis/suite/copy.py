"""A suite of one's own: the workflow with its grid and tiers, copied into a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from ftis.errors import UserError
from ftis.suite.suite import Suite


def copy_suite(folder: Path) -> list[Path]:
    """Copy the workflow of the suite in force into `folder`, where `snakemake` finds it, with a link to the
    Slurm profile; what was written. Raises UserError where something of that name is there."""
    source = Suite.load().folder.parent
    if not (source / "Snakefile").is_file():
        raise UserError(f"{source}: has no Snakefile; FTIS_SUITE must name the config folder of a workflow")
    for name in ("workflow", "slurm"):
        if (folder / name).exists() or (folder / name).is_symlink():
            raise UserError(f"{folder / name}: is there already; choose another folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, folder / "workflow", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "slurm").symlink_to("workflow/profiles/slurm")
    return [folder / name for name in ("workflow", "slurm")]
