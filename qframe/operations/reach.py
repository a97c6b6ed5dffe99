"""Reach: asks the connections that hold jobs, and notes which do not answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from qframe.connection import Connection
from qframe.exceptions import BackendUnavailable
from qframe.manager import QueueManager

T = TypeVar("T")


@dataclass
class Answers(Generic[T]):
    """What connections answered."""

    given: list[tuple[Connection, T]] = field(default_factory=list)
    silent: list[tuple[Connection, BackendUnavailable]] = field(default_factory=list)
    """Those that did not answer, and why."""


def ask(
    queues: QueueManager, act: Callable[[Connection], T], only: str | None = None
) -> Answers[T]:
    """Asks each connection; an outage of one does not keep it from the others."""
    answers: Answers[T] = Answers()
    for connection in queues.holding_jobs(only):
        try:
            answers.given.append((connection, act(connection)))
        except BackendUnavailable as error:
            answers.silent.append((connection, error))
    return answers
