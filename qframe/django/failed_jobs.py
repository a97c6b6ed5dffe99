"""Failed jobs as the admin lists them: pages that a filter chooses, of any connection's store."""

from __future__ import annotations

from typing import NamedTuple

from qframe import manager
from qframe.contracts.failed import FailedJob
from qframe.drivers.failed_store import FailedStore, each_place
from qframe.exceptions import BackendUnavailable, QframeError
from qframe.failed.filters import Filter
from qframe.failed.retry import retry
from qframe.operations.actions.background import log_action
from qframe.operations.failures import LOOKED_AT, FailedState

_PAGE = 50
_READ = 200
"""So many are read at once."""


class FailedAdminPage(NamedTuple):
    """Failed jobs that a filter chose, where the next page begins, and what did not answer."""

    rows: list[FailedState]
    after: str
    silent: list[str]


def stores() -> tuple[list[FailedStore], list[str]]:
    """Returns the stores of failed jobs, each once, and the errors of those that do not answer."""
    queues = manager.default()
    found: list[FailedStore] = []
    silent: list[str] = []
    for connection in queues.holding_jobs():
        try:
            store = queues.failed_store(connection.name)
            store.count()
            found.append(store)
        except BackendUnavailable as error:
            silent.append(str(error))
    return each_place(found), list(dict.fromkeys(silent))


def chosen(words: str, after: str = "") -> FailedAdminPage:
    """Returns a page of those that a filter chooses. Raises `ConfigurationError`."""
    wanted = Filter(words)
    rows: list[FailedState] = []
    found, silent = stores()
    place, _, uuid = after.partition(":")
    begin = int(place) if place.isdecimal() else 0
    for number in range(begin, len(found)):
        last, looked = uuid if number == begin else "", 0
        while looked < LOOKED_AT:
            records = found[number].page(_READ, last or None)
            for record in records:
                last, looked = record.uuid, looked + 1
                if wanted.fits(record):
                    rows.append(FailedState.of(record))
                if len(rows) == _PAGE:
                    return FailedAdminPage(rows, f"{number}:{last}", silent)
            if len(records) < _READ:
                break
        else:
            return FailedAdminPage(rows, f"{number}:{last}", silent)
    return FailedAdminPage(rows, "", silent)


def find(uuid: str) -> tuple[FailedStore, FailedJob] | None:
    """Returns one, and its store."""
    for store in stores()[0]:
        record = store.find(uuid)
        if record is not None:
            return store, record
    return None


def act(name: str, uuids: list[str], who: str) -> tuple[int, list[str]]:
    """Retries or forgets jobs; returns how many, and why others were not."""
    done = 0
    faults: list[str] = []
    for uuid in uuids:
        try:
            there = find(uuid)
            if there is not None and name == "retry":
                done += retry(manager.default(), *there)
            elif there is not None:
                done += there[0].forget(there[1])
        except QframeError as error:
            faults.append(f"{uuid}: {error}")
    log_action(who, name, f"{len(uuids)} failed jobs", done)
    return done, faults
