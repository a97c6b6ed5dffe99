"""Dependencies, and jobs that take them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from fastapi import Depends

from qframe import Queueable, queueable
from qframe.fastapi import inject

said: list[object] = []


class Session:
    """What a job works with."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


def get_session() -> Iterator[Session]:
    said.append("opened")
    try:
        yield Session()
    except BaseException as error:
        said.append(f"rolled back: {error}")
        raise
    else:
        said.append("committed")
    finally:
        said.append("closed")


SessionDep = Annotated[Session, Depends(get_session)]


def get_table(session: SessionDep) -> tuple[str, Session]:
    return "table", session


async def get_client(session: SessionDep) -> AsyncIterator[str]:
    said.append("client")
    yield f"client of {type(session).__name__}"
    said.append("client closed")


def swallowing() -> Iterator[str]:
    try:
        yield "quiet"
    except ValueError:
        said.append("swallowed")


class Given:
    """A class that is its own dependency."""

    def __init__(self, session: SessionDep) -> None:
        self.session = session


@queueable(queue="q")
@inject
def keep(
    number: int, session: SessionDep, table: Annotated[tuple[str, Session], Depends(get_table)]
) -> None:
    here = session.thread == threading.get_ident()
    said.append(("kept", number, table[1] is session, here))
    if number < 0:
        raise ValueError("negative")


class Call(Queueable):
    """An `async` job."""

    number: int = 1
    queue = "q"

    @inject
    async def handle(
        self, client: Annotated[str, Depends(get_client)], given: Annotated[Given, Depends()]
    ) -> str:
        said.append(("called", self.number, client, isinstance(given.session, Session)))
        if self.number < 0:
            raise ValueError("negative")
        return client


@queueable(queue="q")
@inject
def mixed(number: int, client: str = Depends(get_client)) -> None:
    said.append(("mixed", number, client))


@queueable(queue="q")
@inject
def between(
    session: SessionDep, first: int, table: Annotated[object, Depends(get_table)], second: int = 2
) -> None:
    said.append((first, second))


@queueable(queue="q")
@inject
def hushed(quiet: Annotated[str, Depends(swallowing)]) -> None:
    raise ValueError(quiet)


@queueable(queue="q")
@inject
def apart(
    first: Annotated[Session, Depends(get_session, use_cache=False)],
    second: Annotated[Session, Depends(get_session, use_cache=False)],
) -> None:
    said.append(first is second)


@queueable(queue="q")
def plain(number: int) -> None:
    said.append(("plain", number))
