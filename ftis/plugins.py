"""What others add: code that is found by an entry point, or in a file that is named, and registers itself."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from ftis.errors import UserError


def load_plugins(group: str, variable: str, take: Callable[[str, object], None]) -> None:
    """Import what installed packages offer under the entry point `group`, then run the Python files that the
    environment variable `variable` names, as PATH does.

    `take` is called with each entry point's name and object. Raises UserError that names what can't be
    loaded.
    """
    for point in entry_points(group=group):
        try:
            take(point.name, point.load())
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"entry point {point.name} of {group} ({point.value}) can't be loaded "
                f"({type(error).__name__}: {error}); mend or uninstall its package"
            ) from error
    for path in filter(None, os.environ.get(variable, "").split(os.pathsep)):
        run_file(Path(path))


def run_file(path: Path) -> None:
    """Run a Python file that registers something. Raises UserError where there is none, or it fails."""
    path = path.resolve()
    if not path.is_file() or path.suffix != ".py":
        raise UserError(f"{path}: there is no such Python file")
    spec = importlib.util.spec_from_file_location(f"ftis_plugin_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path}: can't be loaded ({type(error).__name__}: {error})") from error
