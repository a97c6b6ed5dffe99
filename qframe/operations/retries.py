"""Watched retries as people see and start them: some jobs first, the rest at a pace."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator

from pydantic import BaseModel

from qframe.contracts.failed import FailedJob
from qframe.exceptions import ConfigurationError
from qframe.failed.retry import Anew
from qframe.manager import QueueManager
from qframe.payload.text import one_line
from qframe.payload.timing import iso
from qframe.retries.driver import life_after
from qframe.retries.kept import RetryRuns
from qframe.retries.terms import RetryTerms
from qframe.retries.watched import ChosenJob, WatchedRetry

_ALL_AGAIN = Anew()
_LONGEST_OF = 300


class RetryState(BaseModel):
    """A watched retry, and how far it is.

    `stage`: `first` (the first jobs, and the wait for their outcome), `rest`, `stopping`, `done` or
    `stopped`.
    """

    id: str
    of: str
    """Which jobs were chosen, in words."""
    who: str
    stage: str
    why: str
    """Why it was stopped."""
    total: int
    retried: int
    open: int
    """How many retried jobs have no outcome yet."""
    done: int
    failed: int
    """How many failed again, already at their first attempt."""
    unknown: int
    kept: int
    """How many could not be retried, and are still failed jobs."""
    gone: int
    """How many were retried or removed by others before their turn."""
    first: int
    then: str
    stop_if: str
    begun_at: str
    ended_at: str | None
    troubles: list[str]
    """The first few reasons why jobs were kept, and outages."""

    @classmethod
    def of_run(cls, run: WatchedRetry, stopped_by: str | None) -> RetryState:
        fields = run.model_dump(include=set(cls.model_fields) - {"stage", "open"})
        fields["begun_at"] = iso(run.begun_at)
        fields["ended_at"] = None if run.ended_at is None else iso(run.ended_at)
        is_stopping = run.is_active and stopped_by is not None
        fields["stage"] = "stopping" if is_stopping else str(run.stage)
        return cls(**fields, open=len(run.open))

    @property
    def is_active(self) -> bool:
        """Whether it goes on."""
        return self.ended_at is None


def states(queues: QueueManager) -> list[RetryState]:
    """Return the watched retries, the latest first. Raises `BackendUnavailable`."""
    runs = RetryRuns(queues)
    known = runs.all()
    stops = runs.stopped_by(known) if known else []
    return [RetryState.of_run(run, who) for run, who in zip(known, stops, strict=True)]


def start(
    queues: QueueManager,
    terms: RetryTerms,
    chosen: Iterable[ChosenJob],
    of: str,
    who: str,
    anew: Anew = _ALL_AGAIN,
) -> RetryState:
    """Store a watched retry of these failures; a worker begins it within seconds.

    Without any job none is stored. Raises `ConfigurationError`, `BackendUnavailable`.
    """
    run = WatchedRetry(
        id=secrets.token_hex(5),
        of=one_line(of, _LONGEST_OF),
        who=one_line(who, 100),
        first=terms.first,
        then=terms.then,
        stop_if=terms.stop_if,
        fresh=anew.fresh,
        from_step=anew.first,
        total=0,
        begun_at=time.time(),
    )
    return RetryState.of_run(RetryRuns(queues).add(run, _each_once(chosen)), None)


def choose(record: FailedJob) -> ChosenJob:
    """Return the part of a failed job that its retry needs."""
    return ChosenJob(record.uuid, record.failed_at, life_after(record))


def _each_once(chosen: Iterable[ChosenJob]) -> Iterator[ChosenJob]:
    seen: set[str] = set()
    for each in chosen:
        if each.uuid not in seen:
            seen.add(each.uuid)
            yield each


def stop(queues: QueueManager, id: str, who: str) -> RetryState:  # noqa: A002 (as everywhere)
    """Stop a watched retry: a second later no more jobs are retried.

    Raises `ConfigurationError` if there is none with this id, or it is over.
    """
    runs = RetryRuns(queues)
    run = runs.find(id)
    if run is None:
        raise ConfigurationError(f"there is no retry {one_line(id, 60)!r}: qframe retries")
    if not run.is_active:
        raise ConfigurationError(f"the retry {run.id} is {run.stage} already")
    runs.ask_to_stop(run, one_line(who, 100))
    return RetryState.of_run(run, who)
