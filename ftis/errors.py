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
    """Something outside broke a job off that may go well another time; the CLI exits with 1, and the workflow tries
    it again."""

    exit_code = 1


def unknown(kind: str, given: object, known) -> UserError:
    """Error for a name that doesn't exist, listing the names that do."""
    return UserError(f"unknown {kind} {given!r}: choose one of {', '.join(map(str, sorted(known)))}")
