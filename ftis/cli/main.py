"""The command line. Each command imports what it needs when it runs, so that --help and errors come at
once."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ftis import __version__, logs
from ftis.cli import jobs, verbs
from ftis.cli.options import Command
from ftis.errors import UserError, missing

PASSING = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ENOTCONN, errno.EHOSTDOWN}
"""Errors of a file system on a network that may be gone when the job is tried again."""

ABOUT = """\
F-TIS (arXiv 2605.22537) reproduction and benchmark suite: GRPO post-training in a swarm of different models.

The whole grid runs through Snakemake (see README.md); these commands work on their own, and `ftis job` has
those that its rules call:
  ftis train my_run.yaml --out my_run             train a swarm from one settings file
  ftis train --tier tiny --run size_base-ftis-g50-vertical-s42
  ftis evaluate --model FOLDER_OR_HUB_NAME --benchmark gsm8k,math500 --limit 100
  ftis plan --tier paper                          what a grid will run, and how big it is
"""


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 well, 1 what may go well another time, 2 bad input, which
    won't, 130 interrupted. The workflow doesn't try a job again that ended with 2."""
    arguments = parser().parse_args(argv)
    logs.show()
    try:
        _name_methods(arguments.methods)
        arguments.command(arguments)
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # whoever read what is printed has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # A full disk or a folder that can't be written is for the user to mend; a traceback doesn't help.
        if error.filename is None and error.errno is None:
            raise
        print(
            f"error: {error.filename or ''}: {error.strerror}; check the path, its permissions and the disk",
            file=sys.stderr,
        )
        return 1 if error.errno in PASSING else 2
    except ModuleNotFoundError as error:
        if (remedy := missing(error)) is None:
            raise
        print(f"error: {remedy}", file=sys.stderr)
        return remedy.exit_code
    except _weights_error() as error:  # what it makes of an OSError, too
        print(
            f"error: weights can't be written or read: {error}; check the path and the disk", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _weights_error() -> type[Exception] | tuple[()]:
    """safetensors' own error, where it has been imported."""
    return getattr(sys.modules.get("safetensors"), "SafetensorError", ())


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = argparse.ArgumentParser(
        prog="ftis", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--version", action="version", version=f"ftis {__version__}")
    top.add_argument(
        "--methods", action="append", default=[], metavar="FILE.py",
        help="run a Python file that registers methods (ftis.register); repeat it",
    )  # fmt: skip
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add(commands, verbs.COMMANDS)
    about = "what the workflow's rules call, one by one"
    job = commands.add_parser("job", help=about, description=about[0].upper() + about[1:] + ".")
    _add(job.add_subparsers(title="jobs", metavar="JOB", required=True), jobs.COMMANDS)
    return top


def _add(to: argparse._SubParsersAction, commands: Sequence[Command]) -> None:
    for command in commands:
        about = command.about
        sub = to.add_parser(command.name, help=about, description=about[0].upper() + about[1:] + ".")
        for each in command.options:
            sub.add_argument(*each.names, **each.settings)
        sub.set_defaults(command=command.run)


def _name_methods(files: Sequence[str]) -> None:
    """Have files of methods run when the methods are first asked for, here and in processes that this one
    starts."""
    if missing := [file for file in files if not Path(file).is_file()]:
        raise UserError(f"--methods: {missing[0]}: no such file")
    named = [str(Path(file).resolve()) for file in files]
    if named:
        os.environ["FTIS_METHODS"] = os.pathsep.join(
            [*named, *filter(None, [os.environ.get("FTIS_METHODS")])]
        )
