"""Connections: those a command acts on, and the failed jobs they keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from qframe import config, manager
from qframe.connection import Connection
from qframe.console.text import print_error
from qframe.contracts.failed import FailedJob
from qframe.drivers.failed_store import FailedStore, each_place
from qframe.exceptions import QframeError
from qframe.failed.retry import Anew, retry
from qframe.manager import QueueManager
from qframe.operations import reach
from qframe.worker.options import NO_ANSWER

T = TypeVar("T")
_ON = Anew()


def configured(file: Path | None) -> QueueManager:
    """Loads the configuration and makes it the process's own."""
    queues = QueueManager(config.load(file))
    manager.use(queues)
    return queues


class JobConnections:
    """The connections that hold jobs: the default one and those configured, or `only`."""

    def __init__(self, queues: QueueManager, only: str | None) -> None:
        self.queues = queues
        self.only = only

    def __iter__(self) -> Iterator[Connection]:
        return self.queues.holding_jobs(self.only)

    def each(self, act: Callable[[Connection], T]) -> list[tuple[Connection, T]]:
        """Acts on every connection, naming on stderr those that do not answer.

        Raises the last connection's `BackendUnavailable` if none answers.
        """
        answers = reach.ask(self.queues, act, self.only)
        silent = [error for _, error in answers.silent]
        lines = dict.fromkeys(map(str, silent))  # connections may share a store
        for line in lines if answers.given else [*lines][:-1]:
            print_error(line, 0)
        if silent and not answers.given:
            raise silent[-1]
        return answers.given

    def silent(self, done: Iterable[tuple[Connection, object]]) -> list[str]:
        """Returns the names of the connections that are not among those that answered."""
        answered = {connection.name for connection, _ in done}
        return [each.name for each in self if each.name not in answered]

    def code(self, done: Iterable[tuple[Connection, object]]) -> int:
        """Returns the exit code of an act: `NO_ANSWER` if not all connections answered."""
        return NO_ANSWER if self.silent(done) else 0

    def failed_stores(self, *, answering: bool = False) -> list[FailedStore]:
        """Returns the failed stores, each once: all, or those of `answering` connections."""

        def find(connection: Connection) -> FailedStore:
            store = self.queues.failed_store(connection.name)
            if answering:
                store.count()
            return store

        return each_place(store for _, store in self.each(find))

    def queue_again(
        self, chosen: Iterable[tuple[FailedStore, FailedJob]], anew: Anew = _ON
    ) -> tuple[int, int]:
        """Queues failed jobs again; returns how many, and exit code 1 if some could not be."""
        count, code = 0, 0
        for store, record in chosen:
            try:
                count += retry(self.queues, store, record, anew)
            except QframeError as error:
                code = 1
                print_error(f"{record.uuid} is kept: {error}", 0)
        return count, code


def find_failed(stores: Iterable[FailedStore], uuid: str) -> tuple[FailedStore, FailedJob] | None:
    """Finds one failed job and its store."""
    found = ((store, store.find(uuid)) for store in stores)
    return next(((store, record) for store, record in found if record is not None), None)


def names(done: Iterable[tuple[Connection, object]]) -> str:
    """Returns the names of the connections that answered."""
    return ", ".join(connection.name for connection, _ in done)
