"""RetryRuns: the store with the watched retries, and the turn of the one worker that drives them.

A retry and the list of its jobs are facts of one connection. On each connection that holds jobs
lies a mark, so that its workers know that there is something to drive.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.step import Expect, Set, Step
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.manager import QueueManager
from qframe.retries.watched import ChosenJob, WatchedRetry

MARK = "retries"
_RUN, _LIST, _STOP, _TURN = "retry-run:", "retry-list:", "retry-stop:", "retry-turn"
MOST = 1_000_000
"""The most jobs of one watched retry."""
_MOST_RUNS = 100
_LASTS = 30 * 86400.0
"""Seconds after which a retry that nobody drives is forgotten."""
_SHOWN = 7 * 86400.0
"""Seconds for which a retry that is over is listed."""
TURN = 6.0
"""Seconds after which another worker takes the turn of one that is gone."""


def place(queues: QueueManager) -> Connection:
    """Return the connection whose store has the watched retries: the default one, if it can.

    Raises `ConfigurationError`.
    """
    first = queues.connection()
    able = [*filter(_keeps_facts, (first, *queues.holding_jobs()))]
    if not able:
        raise ConfigurationError("no connection has a store that could keep a watched retry")
    return able[0]


def _keeps_facts(connection: Connection) -> bool:
    return Capability.FACTS in connection.capabilities


class RetryRuns:
    """The watched retries of a program. Every method raises `BackendUnavailable`."""

    PART = 500
    """So many jobs of a list are one fact."""

    def __init__(self, queues: QueueManager) -> None:
        self._queues = queues
        self._store = place(queues).store

    def add(self, run: WatchedRetry, chosen: Iterable[ChosenJob]) -> WatchedRetry:
        """Store a retry of these jobs, with their number; a worker begins it within seconds.

        Raises `ConfigurationError` if there are too many jobs, or retries under way.
        """
        if sum(each.is_active for each in self.all()) >= _MOST_RUNS:
            raise ConfigurationError(f"{_MOST_RUNS} retries are under way: qframe retries")
        total, jobs = 0, islice(chosen, MOST + 1)
        while part := [*islice(jobs, self.PART)]:
            text = json.dumps(part, separators=(",", ":"))
            self._store.set(f"{_LIST}{run.id}:{total // self.PART}", text, _LASTS)
            total += len(part)
        if total > MOST:
            self._forget_list(run.id, total)
            raise ConfigurationError(f"a watched retry takes {MOST:,} failed jobs: choose fewer")
        run = run.model_copy(update={"total": total})
        if total:
            self._store.set(_RUN + run.id, run.model_dump_json(), _LASTS)
            self._mark()
        return run

    def _mark(self) -> None:
        token = secrets.token_hex(8)
        self._store.set(MARK, token, _LASTS)
        for each in self._other_stores():
            with suppress(BackendUnavailable):  # the workers of the others drive it
                each.set(MARK, token, _LASTS)

    def _other_stores(self) -> Iterator[Store]:
        """Yield the stores of the connections whose workers look for a mark there."""
        for each in self._queues.holding_jobs():
            if _keeps_facts(each) and each.store.backend is not self._store.backend:
                yield each.store

    def all(self) -> list[WatchedRetry]:
        """Return all retries, the latest first."""
        found = [run for _, run in self._read()]
        return sorted(found, key=lambda run: -run.begun_at)

    def _read(self) -> Iterator[tuple[str, WatchedRetry]]:
        for _, text in self._store.items(_RUN):
            run = WatchedRetry.read(text)
            if run is not None:
                yield text, run

    def active(self) -> list[tuple[str, WatchedRetry]]:
        """Return the retries that go on, the oldest first, each with its text."""
        found = [(text, run) for text, run in self._read() if run.is_active]
        return sorted(found, key=lambda pair: pair[1].begun_at)

    def find(self, id: str) -> WatchedRetry | None:  # noqa: A002 (as everywhere)
        """Return a retry by its id, or the only one whose id begins so."""
        found = [run for run in self.all() if id and run.id.startswith(id)]
        return found[0] if len(found) == 1 else None

    def part(self, run: WatchedRetry, number: int) -> list[ChosenJob] | None:
        """Return a part of a retry's list; None if it has expired."""
        (text,) = self._store.get(f"{_LIST}{run.id}:{number}")
        return None if text is None else [ChosenJob(*each) for each in json.loads(text)]

    # -- stopping ---------------------------------------------------------------------------------

    def ask_to_stop(self, run: WatchedRetry, who: str) -> None:
        """Ask its worker to stop a retry; none of its jobs is retried a second later."""
        self._store.set(_STOP + run.id, who, _LASTS)

    def stopped_by(self, runs: Sequence[WatchedRetry]) -> list[str | None]:
        """Return who asked to stop each of them, None if nobody did."""
        return self._store.get(*(_STOP + run.id for run in runs))

    # -- for who drives them ----------------------------------------------------------------------

    def mark(self) -> str | None:
        """Return the mark; None if there is nothing to drive."""
        return self._store.get(MARK)[0]

    def unmark(self, mark: str) -> None:
        """Remove the mark, unless a retry was added meanwhile."""
        self._store.delete(MARK, mark)
        for each in self._other_stores():
            with suppress(BackendUnavailable):
                each.delete(MARK, mark)

    def takes_turn(self, who: str) -> bool:
        """Take or keep the turn for `TURN` seconds; returns whether `who` has it."""
        return self._store.takes_turn(_TURN, who, TURN)

    def leave(self, who: str) -> None:
        """Free the turn."""
        self._store.delete(_TURN, who)

    def write(self, before: str, run: WatchedRetry, who: str) -> str | None:
        """Store what became of a retry, if `who` has the turn and nobody else has changed it.

        Returns the text; None if it was not stored.
        """
        run.number += 1
        text = run.model_dump_json()
        ttl = _LASTS if run.is_active else _SHOWN
        change = Set(_RUN + run.id, text, ttl)
        step = Step(None, Expect(_TURN, who), Expect(_RUN + run.id, before), change)
        (result,) = self._store.backend.apply(step)
        if result.applied and not run.is_active:
            self._forget_list(run.id, run.total)
        return text if result.applied else None

    def _forget_list(self, id: str, total: int) -> None:  # noqa: A002 (as everywhere)
        for number in range(-(-total // self.PART)):
            self._store.delete(f"{_LIST}{id}:{number}")
