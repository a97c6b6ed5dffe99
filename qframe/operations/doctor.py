"""Doctor: all that is known of a program's queues, without secrets and payloads, for a report."""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

from pydantic import BaseModel

from qframe.config.settings import PREFIX
from qframe.drivers import process
from qframe.exceptions import BackendUnavailable, QframeError
from qframe.manager import QueueManager
from qframe.metrics import version
from qframe.operations import activity, checkup, failures, findings, jobs
from qframe.operations.board import Board
from qframe.operations.redaction import Redactor
from qframe.payload.text import one_line, printable
from qframe.payload.timing import iso
from qframe.worker import stacks

PATIENCE = 60.0
"""Seconds after which the report comes without what was not read."""
_MOST = 200
"""So many rows of a list are in the report."""
_PAYLOADS = 20
_COUNTING = 5.0
"""Seconds in which failed jobs are counted by cause."""
_ERROR = re.compile(r"[\w.]+")

Section = Callable[["_Reader"], Any]


class DoctorReport(BaseModel):
    """What is known, by subject."""

    made_at: str
    sections: dict[str, Any]
    unread: dict[str, str]
    """Why a subject, or a connection, could not be read."""


def report(
    manager: QueueManager | None,
    *,
    payloads: bool = False,
    patience: float = PATIENCE,
    trouble: str = "",
) -> DoctorReport:
    """Read everything, within `patience` seconds; what does not answer is named in `unread`.

    Without a manager, as the configuration is wrong, with the `trouble` it only has versions.
    Payloads, and the messages of errors, which may show their data, only come with `payloads`.
    """
    redactor = Redactor(None if manager is None else manager.settings)
    sections: dict[str, Any] = {"versions": redactor.clean(_versions(manager))}
    unread: dict[str, str] = {}
    if manager is None:
        unread["configuration"] = redactor.text(trouble)
    else:
        reader = _Reader(manager, redactor, payloads=payloads)
        thread = threading.Thread(target=reader.run, name="qframe-doctor", daemon=True)
        thread.start()
        thread.join(patience)
        sections |= reader.found
        unread |= reader.unread
        for name in reader.wanted:
            if name not in reader.found and name not in unread:
                unread[name] = f"not read within {patience:g} s"
    return DoctorReport(made_at=iso(time.time()), sections=sections, unread=unread)


class _Reader:
    """Reads the sections one after the other, in a thread of its own."""

    def __init__(self, manager: QueueManager, redactor: Redactor, *, payloads: bool) -> None:
        self.manager, self.redactor, self.payloads = manager, redactor, payloads
        self.board = Board(manager)
        self.wanted = {**_SECTIONS, **(_WITH_PAYLOADS if payloads else {})}
        self.found: dict[str, Any] = {}
        self.unread: dict[str, str] = {}

    def run(self) -> None:
        for name, read in self.wanted.items():
            try:
                value = read(self)
            except QframeError as error:
                self.unread[name] = self.redactor.text(one_line(str(error), 500))
            except Exception as error:  # noqa: BLE001 (a report of what is broken must come)
                why = f"{type(error).__name__}: {error}"
                self.unread[name] = self.redactor.text(one_line(why, 500))
            else:
                self.found[name] = self.redactor.clean(value, named=name in _NAMED)
        for name, why in self.board.silent.items():
            self.unread[f"connection {name}"] = self.redactor.text(why)
        self.manager.close()


def _versions(manager: QueueManager | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "qframe": _version_of("qframe"),
        "python": sys.version,
        "system": platform.platform(),
        "host": process.NAME,
    }
    if manager is not None:
        found["application"] = version.of(manager.settings)
    found["packages"] = {name: each for name in _packages() if (each := _version_of(name))}
    return found


def _packages() -> list[str]:
    try:
        required = metadata.requires("qframe") or []
    except metadata.PackageNotFoundError:  # run from its source folder
        return []
    return sorted({re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in required})


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _configuration(reader: _Reader) -> dict[str, Any]:
    settings = reader.manager.settings
    return {
        "read from": settings.origin.described(),
        "ignored": [str(each) for each in settings.origin.ignored()],
        "environment": sorted(name for name in os.environ if name.startswith(PREFIX)),
        "settings": settings,
    }


def _check(reader: _Reader) -> list[dict[str, Any]]:
    names = checkup.in_use(reader.manager)
    return [checkup.checked(reader.manager, name, is_used=True) for name in names]


def _problems(reader: _Reader) -> list[dict[str, str]]:
    """Return what is wrong; new causes are among the causes, as their texts have messages."""
    found = [{"kind": "alert", "text": each.text} for each in findings.alerts(reader.board)]
    found += [
        {"kind": each.kind, "text": each.text}
        for each in findings.problems(reader.board)
        if each.kind != "new cause"
    ]
    return found


def _workers(reader: _Reader) -> list[dict[str, Any]]:
    found = []
    for each in reader.board.workers()[:_MOST]:
        row = each.model_dump(exclude={"jobs"})
        row["jobs"] = [job.model_dump(exclude={"tags"}) for job in each.jobs[:_MOST]]
        found.append(row)
    return found


def _stacks(reader: _Reader) -> dict[str, str]:
    """Return where the threads of each worker are, or that it did not answer."""
    found: dict[str, str] = {}
    alive = [each for each in reader.board.workers()[:_MOST] if each.state != "gone"]
    for connection in reader.board.connections():
        mine = {each.id: each for each in alive if each.connection == connection.name}
        if not mine:
            continue
        try:
            answers = stacks.ask(connection.store, mine)
        except BackendUnavailable as error:
            reader.unread[f"stacks of {connection.name}"] = reader.redactor.text(str(error))
            continue
        silent = f"no answer within {stacks.PATIENCE:g} s: it is stuck in C code, or older"
        for worker, each in mine.items():
            found[f"{each.host}:{each.pid}"] = answers.get(worker, silent)
    return found


def _causes(reader: _Reader) -> list[dict[str, Any]]:
    ends = time.monotonic() + _COUNTING
    seen = reader.board.failed.summary()
    while not seen.is_complete and time.monotonic() < ends:  # the rest is read in the background
        time.sleep(0.1)
        reader.board.forget("failed")
        seen = reader.board.failed.summary()
    return [
        each.model_dump() | {"error": _error(reader, each.error)} for each in seen.causes[:_MOST]
    ]


def _error(reader: _Reader, text: str) -> str:
    """Return an error; its message, which may have data of a payload, only with payloads."""
    name = text.partition(":")[0]
    if reader.payloads or not text:
        return text
    return f"{name}: ..." if _ERROR.fullmatch(name) else "..."


def _schedules(reader: _Reader) -> list[dict[str, Any]]:
    found = []
    for each in reader.board.schedules()[:_MOST]:
        row = each.model_dump()
        row["runs"] = [run.model_dump(exclude={"error"}) for run in each.runs]
        found.append(row)
    return found


def _trend(reader: _Reader) -> activity.Trend | None:
    return reader.board.trend()


def _listed(rows: Iterable[BaseModel]) -> list[dict[str, Any]]:
    return [each.model_dump() for each in [*rows][:_MOST]]


def _failed(reader: _Reader) -> list[dict[str, Any]]:
    found = []
    for store in reader.board.failed.stores():
        for record in store.page(_PAYLOADS):
            state = failures.FailedState.of(record).model_dump()
            state["exception"] = _lines(record.exception)
            state["payload"] = jobs.shown_payload(record.payload)
            found.append(state)
    return found


def _lines(text: str, limit: int = 20_000) -> str:
    """Return a text with its lines, without characters that are unprintable."""
    return "\n".join(printable(each, limit) for each in text[:limit].splitlines())


_SECTIONS: dict[str, Section] = {
    "configuration": _configuration,
    "problems": _problems,
    "check": _check,
    "queues": lambda reader: _listed(reader.board.queues()),
    "workers": _workers,
    "supervisors": lambda reader: _listed(reader.board.supervisors()),
    "stacks": _stacks,
    "causes of failure": _causes,
    "forecast": lambda reader: _listed(reader.board.forecasts()),
    "schedules": _schedules,
    "deploys of a day": lambda reader: _listed(reader.board.deploys(24.0)),
    "classes in the last hour": lambda reader: _listed(reader.board.classes()),
    "the last hour by minute": _trend,
}
_WITH_PAYLOADS: dict[str, Section] = {"failed jobs": _failed}
_NAMED = {"configuration"}
"""The sections with settings, where names say what is secret."""
