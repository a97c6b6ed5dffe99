"""Names: from the names and arguments of another program to the classes and fields of this one."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import ValidationError

from qframe.exceptions import ConfigurationError, InvalidArguments, UnknownJob
from qframe.importing.found import FoundJob, Kept
from qframe.jobs.called import fields_of_call
from qframe.jobs.definition import JobDefinition
from qframe.jobs.registry import Registry
from qframe.jobs.roundtrip import first_fault
from qframe.payload import tracebacks
from qframe.payload.text import one_line, queue_name


class Names:
    """What a job is called here, which queue it goes to, and which job it becomes."""

    def __init__(
        self, registry: Registry, jobs: Mapping[str, str], queues: Mapping[str, str]
    ) -> None:
        self._registry = registry
        self._jobs = jobs
        self._queues = {each: queue_name(name) for each, name in queues.items()}

    def queue(self, found: FoundJob) -> str:
        """Return the queue that a job goes to. Raises `Kept`."""
        try:
            return queue_name(self._queues.get(found.queue, found.queue))
        except ValueError:
            raise Kept("qframe has no queue of this name: give --queue OLD=NEW") from None

    def job(self, found: FoundJob) -> JobDefinition:
        """Return the job of the class as deployed. Raises `Kept`."""
        name = self._jobs.get(found.name, found.name)
        try:
            job_class = self._registry.find(name)
        except UnknownJob as error:
            raise Kept(f"{one_line(str(error))}: give --map {found.name}=...") from None
        try:
            fields = fields_of_call(job_class, found.args, found.kwargs)
            return job_class.from_request(fields)
        except ValidationError as error:
            raise Kept(f"{job_class.__name__}: {first_fault(error)}") from None
        except InvalidArguments as error:
            raise Kept(one_line(str(error))) from None
        except Exception as error:  # noqa: BLE001 (a class's own validators may raise anything)
            raise Kept(f"{job_class.__name__}: {one_line(tracebacks.placed(error))}") from None


def pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    """Read `OLD=NEW` and names of TOML files. Raises `ConfigurationError`."""
    found: dict[str, str] = {}
    for each in given:
        old, sign, new = each.partition("=")
        if not sign and each.endswith(".toml"):
            found |= _table(option, Path(each))
        elif old and new:
            found[old] = new
        else:
            raise ConfigurationError(f"{option} takes OLD=NEW, not {one_line(each, 80)!r}")
    return found


def _table(option: str, file: Path) -> dict[str, str]:
    try:
        table = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{option} {file}: {one_line(str(error))}") from None
    for key, value in table.items():
        if not isinstance(value, str):
            raise ConfigurationError(
                f'{option} {file}: {key} must be text; write "old.name" = "new.name", with quotes'
            )
    return table
