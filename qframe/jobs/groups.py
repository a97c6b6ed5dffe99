"""Groups of jobs: the rule of a class, and the name in a payload."""

from __future__ import annotations

from collections.abc import Collection
from string import Formatter
from typing import Any

from qframe.exceptions import InvalidJob, JobDefinitionError
from qframe.models.keys import KeyInFormat
from qframe.payload.text import one_line

LONGEST_NAME = 200


def is_name(value: object) -> bool:
    """Whether a value may be the name of a group, or the format of one."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def check_format(owner: str, group: object, fields: Collection[str]) -> None:
    """Raise `JobDefinitionError` for a format that names no field of the job."""
    if not isinstance(group, str):
        return
    try:
        named = [name for _, name, _, _ in Formatter().parse(group) if name is not None]
    except ValueError as error:
        raise JobDefinitionError(f"{owner}.group: {one_line(group, 60)!r}: {error}") from None
    for name in named:
        field = name.split(".")[0].split("[")[0]
        if field not in fields:
            shown = ", ".join(fields) or "none"
            raise JobDefinitionError(
                f"{owner}.group: {field!r} is no field of the job; its fields are {shown}"
            )


def name_of(job: Any) -> str:  # noqa: ANN401 (a job, from a higher layer)
    """Return the group of a job by its class. Raises `InvalidJob`."""
    given = job.group
    if not callable(given):
        try:
            given = given.format_map(_Fields(job))
        except InvalidJob:
            raise
        except Exception as error:  # noqa: BLE001 (a field may be formatted by anything)
            raise InvalidJob(
                f"{type(job).__name__}.group: {one_line(given, 60)!r} cannot be filled in: "
                f"{one_line(repr(error), 100)}"
            ) from None
        return checked(given)
    return checked(given())


def checked(name: object) -> str:
    """Return the name of a group. Raises `InvalidJob`."""
    if isinstance(name, str) and is_name(name):
        return name
    raise InvalidJob(
        f"a group is named by a text of 1 to {LONGEST_NAME} printable characters, not "
        f"{one_line(repr(name), 60)}"
    )


class _Fields(dict[str, Any]):
    """The fields of a job, as a format reads them."""

    def __init__(self, job: Any) -> None:  # noqa: ANN401 (as above)
        self._job = job

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 (a field's value)
        value = getattr(self._job, name)
        return KeyInFormat(value) if name in self._job.model_fields else value
