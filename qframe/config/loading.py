"""Loads the settings: `qframe.toml` or `[tool.qframe]`, then `QFRAME_*` variables, then code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from qframe.config.files import Origin, find, read
from qframe.config.framework import Source, framework
from qframe.config.settings import PREFIX, Settings, file_values
from qframe.config.values import describe
from qframe.exceptions import ConfigurationError
from qframe.payload.text import nearest, one_line

_NAMES_A_FILE = "QFRAME_CONFIG"
_NO_SETTINGS = {_NAMES_A_FILE, "QFRAME_HEALTH_FILE"}
"""Variables of the command line."""


def here() -> Path:
    """Return the working directory. Raises `ConfigurationError` if it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigurationError("the working directory was removed: change to another") from None


def load(
    file: str | Path | None = None,
    given_by: Source | None = None,
    **over: Any,  # noqa: ANN401 (any setting)
) -> Settings:
    """Read the settings: from `file`, QFRAME_CONFIG, or the one found in this folder or above.

    `given_by` is in place of `framework.source`. Keyword arguments override file and environment.
    Raises `ConfigurationError` with one line that names the key, and the nearest if it is unknown.
    """
    file = file or os.environ.get(_NAMES_A_FILE)
    given_by = given_by or framework.source
    given = given_by() if given_by is not None and not file else None
    folder = here()
    path = Path(file) if file else None if given else find(folder)
    values = (read(path) or {}) if path is not None else dict(given[1]) if given else {}
    if isinstance(root := values.setdefault("root", "."), str):
        values["root"] = (path.resolve().parent if path is not None else folder) / root
    _check_environment()
    token = file_values.set(values)
    try:
        settings = Settings(**over)
    except ValidationError as error:
        where = path.name if path is not None else given[0] if given else "settings"
        loc = error.errors(include_url=False, include_input=False)[0]["loc"]
        where = _variable_of(loc) or where
        raise ConfigurationError(describe(error, Settings, where)) from None
    except ValueError as error:  # a QFRAME_ variable without the JSON that its setting needs
        raise ConfigurationError(f"in the environment: {one_line(str(error))}") from None
    finally:
        file_values.reset(token)
    found = None if path is None else path.absolute()
    looked_in = None if over and found is None and not given else folder
    named = given[0] if given else ""
    settings.origin = Origin(found, named, looked_in, _variables(), framework.setting)
    return settings


def _variables() -> tuple[str, ...]:
    names = (name for name in os.environ if name.upper().startswith(PREFIX))
    return tuple(sorted(name for name in names if name.upper() not in _NO_SETTINGS))


def _variable_of(loc: Sequence[int | str]) -> str:
    """Describe the environment variable of a setting; "" if it has none."""
    there = {name.upper(): name for name in os.environ}
    for length in range(len(loc), 0, -1):
        found = there.get(PREFIX + "__".join(map(str, loc[:length])).upper())
        if found is not None:
            return f"in the environment: {found}"
    return ""


def _check_environment() -> None:
    known = {name.upper() for name in Settings.model_fields} | {"CONFIG"}
    for variable in os.environ:
        if variable.upper().startswith(PREFIX) and variable.upper() not in _NO_SETTINGS:
            key = variable.upper().removeprefix(PREFIX).split("__")[0]
            if key not in known:
                raise ConfigurationError(
                    f"in the environment: unknown variable {variable}{nearest(key, known)}"
                )
