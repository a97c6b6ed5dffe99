"""QFRAME: the settings in a Flask application's configuration, in place of a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flask import Flask

from qframe.config import BUILT_IN, Settings
from qframe.exceptions import ConfigurationError
from qframe.payload.text import nearest, one_line

NAME: Final = 'app.config["QFRAME"]'
_SYNC: Final = "SYNC_IN_TESTS"
"""The key that only Flask has."""
_AS_EVER: Final = ("memory", "null", "sync")


def of(app: Flask) -> tuple[str, Mapping[str, Any]] | None:
    """Returns the settings as `qframe.toml` would have them. Raises `ConfigurationError`.

    None if the application has none, and is not being tested: then qframe looks for a file.
    """
    found = app.config.get("QFRAME")
    if found is not None and not isinstance(found, Mapping):
        raise ConfigurationError(f"{NAME}: must be a dict, not {type(found).__name__}")
    given: dict[str, Any] = dict(found or {})
    known = [*Settings.model_fields, _SYNC]
    for key in given:
        if key not in known:
            raise ConfigurationError(
                f"{NAME}: unknown key {one_line(str(key), 60)!r}{nearest(str(key), known)}"
            )
    in_tests = given.pop(_SYNC, True)
    if not isinstance(in_tests, bool):
        raise ConfigurationError(f"{NAME}: {_SYNC} must be True or False")
    if app.testing and in_tests:
        return NAME, _run_at_once(given)
    if found is None:
        return None
    if isinstance(given.get("root"), Path):
        given["root"] = str(given["root"])
    return NAME, given


def _run_at_once(given: dict[str, Any]) -> dict[str, Any]:
    """Makes each connection run jobs inside the push, except those that keep none."""
    connections = given.get("connections")
    own = connections if isinstance(connections, Mapping) else {}
    drivers = {name: _driver(name, each) for name, each in own.items()}
    drivers = {**{name: name for name in BUILT_IN}, **drivers}
    elsewhere = [name for name, driver in drivers.items() if driver not in _AS_EVER]
    kept = {key: value for key, value in given.items() if key != "outbox"}
    return {
        "default": "sync",
        **kept,
        "store": {"driver": "memory"},  # locks of unique jobs
        "failed": {"driver": "null"},
        "connections": {**own, **{name: {"driver": "sync"} for name in elsewhere}},
    }


def _driver(name: str, each: Any) -> Any:  # noqa: ANN401 (whatever stands there; pydantic judges it)
    return each.get("driver", name) if isinstance(each, Mapping) else name
