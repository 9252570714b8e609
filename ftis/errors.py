"""The exceptions that a user is meant to read: what is wrong, and what to do."""


class UserError(Exception):
    """Bad input. The message names the field or path and the fix; the CLI prints it alone and exits with 2.

    >>> try:
    ...     ftis.load_run("nowhere.yaml")
    ... except ftis.UserError as error:
    ...     print(error)
    nowhere.yaml: no such file
    """

    exit_code = 2


class Interrupted(UserError):
    """Something outside broke a job off that may go well another time; the CLI exits with 1, and the workflow
    tries it again."""

    exit_code = 1


def unknown(kind: str, given: object, known) -> UserError:
    """Error for a name that doesn't exist, listing the names that do."""
    return UserError(f"unknown {kind} {given!r}: choose one of {', '.join(map(str, sorted(known)))}")


EXTRAS = {
    "run": (
        "datasets",
        "huggingface_hub",
        "jinja2",
        "math_verify",
        "peft",
        "safetensors",
        "sympy",
        "tokenizers",
        "tqdm",
        "transformers",
    ),
    "workflow": ("PIL", "matplotlib", "snakemake"),
    "slurm": ("snakemake_executor_plugin_slurm",),
}
"""Packages that `pip install ftis` leaves out, by the extra that brings them."""


class MissingPackage(UserError, ImportError):
    """A package that only an extra brings."""


def missing(error: ModuleNotFoundError) -> MissingPackage | None:
    """What to install where a package of an extra is missing; None: it is no package of an extra."""
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    if extra is None:
        return None
    return MissingPackage(
        f"{package} is not installed; install it with the others of its extra: pip install 'ftis[{extra}]'"
    )
