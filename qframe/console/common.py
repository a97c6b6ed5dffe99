"""What several commands share: the configuration option and the stores they act on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from qframe import config, manager
from qframe.connection import Connection
from qframe.console.text import say_error
from qframe.contracts.backend import Capability
from qframe.exceptions import BackendUnavailable
from qframe.manager import QueueManager

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", envvar="QFRAME_CONFIG", help="Configuration file.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ConnectionOption = Annotated[
    str | None,
    typer.Option("--connection", help="Only this connection.", show_default=False),
]
QueueOption = Annotated[str | None, typer.Option("--queue", help="Queue name.", show_default=False)]

T = TypeVar("T")


def configured(file: Path | None) -> QueueManager:
    """Load the configuration and make it the process's own."""
    queues = QueueManager(config.load(file))
    manager.use(queues)
    return queues


def working(queues: QueueManager, only: str | None = None) -> Iterator[Connection]:
    """Give the connections that hold jobs: the default one and those configured, or `only`."""
    names = dict.fromkeys([queues.settings.default, *queues.settings.connections])
    for name in [only] if only else names:
        queue = queues.connection(name)
        if Capability.RESERVE in queue.capabilities or only:
            yield queue


def each_answering(
    queues: QueueManager, only: str | None, act: Callable[[Connection], T]
) -> list[tuple[Connection, T]]:
    """Act on every connection, naming on stderr those that do not answer.

    Raises the last connection's `BackendUnavailable` when none answers.
    """
    done: list[tuple[Connection, T]] = []
    trouble: BackendUnavailable | None = None
    for queue in working(queues, only):
        try:
            done.append((queue, act(queue)))
        except BackendUnavailable as error:
            if trouble is not None:
                say_error(f"{queue.name}: {trouble}", 0)
            trouble = error
    if trouble is not None:
        if not done:
            raise trouble
        say_error(str(trouble), 0)
    return done
