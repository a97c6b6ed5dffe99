"""What the configuration names in the program's code, as `module:name`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from qframe.exceptions import ConfigurationError
from qframe.jobs import project
from qframe.payload import tracebacks
from qframe.payload.text import one_line


def imported(path: str) -> Any:  # noqa: ANN401 (any object)
    """Import `module:name`. Raises whatever the import does."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def loaded(option: str, path: str, form: str = "module:name") -> Any:  # noqa: ANN401 (any object)
    """Import what an option names in the project. Raises `ConfigurationError`."""
    project.put_on_path()
    try:
        return imported(path)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"{option}: {one_line(path, 100)!r} cannot be loaded ({form}): "
            f"{tracebacks.placed(error)}"
        ) from error


def function(option: str, path: str) -> Callable[..., Any]:
    """Import the function that an option names. Raises `ConfigurationError`."""
    found: Callable[..., Any] = loaded(option, path, "module:function")
    if not callable(found):
        raise ConfigurationError(f"{option}: {one_line(path, 100)!r} is not a function")
    return found
