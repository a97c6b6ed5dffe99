"""Upgrades: data that an older version of a job class has written, carried over before it runs.

A class with a `version` has it in its payloads. A payload of an older version is passed to the
class's `upgrade(data, version)`, once, with the version that it was written with.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any, Literal

from qframe.exceptions import InvalidArguments, JobDefinitionError
from qframe.jobs import unset
from qframe.payload import envelope, tracebacks

_OPTION = "version"
_METHOD = "upgrade"


JobClass = Any
"""A job class, from a module that imports this one."""


def version_of(cls: JobClass) -> int | None:
    """Return the version that payloads of a class carry; None if it sets none.

    A field may be called `version` as well: such a class has no versions. Raises
    `JobDefinitionError` for an `upgrade` that could not be called.
    """
    has_field = _OPTION in cls.__pydantic_fields__  # `field_names` has the ClassVars, too
    version: int | None = None if has_field else getattr(cls, _OPTION, None)
    upgrade = inspect.getattr_static(cls, _METHOD, None)
    is_ours = isinstance(upgrade, staticmethod | classmethod)
    if version is not None and inspect.isfunction(upgrade):
        raise JobDefinitionError(
            f"{cls.__name__}.upgrade is called before there is a job: make it a @staticmethod "
            "def upgrade(data, version), or a @classmethod"
        )
    if not is_ours:
        return version
    if version is None:
        why = "a field is called version" if has_field else "it has no version"
        raise JobDefinitionError(
            f"{cls.__name__}.upgrade is never called, as {why}: set version = 1 without an "
            "annotation, and raise it with each change of the fields"
        )
    _check_upgrade(cls)
    return version


def _check_upgrade(cls: JobClass) -> None:
    """Refuse an `upgrade` that is async, or does not accept its arguments."""
    function: Any = getattr(cls, _METHOD)
    if inspect.iscoroutinefunction(function):
        raise JobDefinitionError(f"{cls.__name__}.upgrade cannot be async: it only changes data")
    try:
        inspect.signature(function).bind({}, 0)
    except TypeError as error:
        raise JobDefinitionError(
            f"{cls.__name__}.upgrade is called with (data, version): {error}"
        ) from None


def current(
    cls: JobClass,
    message: Mapping[str, Any],
    data: Any,  # noqa: ANN401 (any JSON value)
) -> Any:  # noqa: ANN401 (as above)
    """Return the data of a payload as the class has it now.

    Payloads of other programs, which say no version, are left alone. Raises `InvalidArguments` for
    a payload of a newer version, and if `upgrade` raises or returns no dict.
    """
    version = written_with(message)
    return data if version is None else carried_over(cls, data, version)


def written_with(message: Mapping[str, Any]) -> int | None:
    """Return the version that a payload was written with; None for another program's.

    0: by qframe, before its class had a version.
    """
    found = message.get(envelope.VERSION)
    if type(found) is int and 0 <= found <= envelope.LARGEST_VERSION:
        return found
    return 0 if found is None and _is_of_qframe(message) else None


def _is_of_qframe(message: Mapping[str, Any]) -> bool:
    """Whether qframe wrote a payload: its `id` is its uuid, of version 7; Laravel's never is."""
    uuid = message.get("uuid")
    is_ours = type(uuid) is str and uuid[14:15] == "7" and message.get("id") == uuid
    return is_ours and envelope.CALL not in message


def carried_over(cls: JobClass, data: Any, version: int) -> Any:  # noqa: ANN401 (any JSON value)
    """Return data that was written with a version as the class has it now. Raises as `current`."""
    now = cls.written_version or 0
    if version > now:
        raise _misfit(
            "newer",
            f"{cls.__name__}: the payload has version {version}, and the class here is "
            + (f"version {now}" if now else "without versions"),
        )
    if version == now or not hasattr(cls, _METHOD):
        return data
    upgrade: Any = getattr(cls, _METHOD)
    try:
        given = copy.deepcopy(data) if isinstance(data, dict) else {}
        kept = given.pop(unset.KEY, None)
        made = upgrade(given, version)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (it may raise anything)
        hides = cls._hides()
        why = type(error).__name__ if hides else tracebacks.brief(error)
        place = tracebacks.place_of(error)
        raised = _misfit(
            "upgrade",
            f"{cls.__name__}.upgrade of version {version} raised {why}"
            + (f" ({place})" if place else ""),
        )
        raise raised from (None if hides else error)
    if not isinstance(made, dict):
        raise _misfit(
            "upgrade",
            f"{cls.__name__}.upgrade of version {version} returned a {type(made).__name__}, not "
            "the data",
        )
    for key in made:
        if not isinstance(key, str):
            raise _misfit(
                "upgrade",
                f"{cls.__name__}.upgrade of version {version} returned a key that is a "
                f"{type(key).__name__}, not a name",
            )
    return made if kept is None else {**made, unset.KEY: kept}


def _misfit(of_version: Literal["newer", "upgrade"], text: str) -> InvalidArguments:
    error = InvalidArguments(text)
    error.of_version = of_version
    return error
