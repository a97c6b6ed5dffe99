"""Calls: what a job does that lasts, by the functions of qframe and of libraries that do it."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from qframe import connection as connections
from qframe.connection import Connection
from qframe.dispatch import bulk
from qframe.features.steps import JobSteps
from qframe.payload.text import one_line
from qframe.testing.recording import RecordingConnection

Namer = Callable[..., str]
"""Returns what a call is about to do, from its arguments; "" if it does nothing that lasts."""


class LastingCall(NamedTuple):
    """A function to patch."""

    owner: Any
    name: str
    namer: Namer
    is_whole: bool = True
    """Whether calls within it are a part of it, and do not count."""


def all_calls() -> Iterator[LastingCall]:
    """Yield the calls of qframe, and of the libraries that are imported."""
    yield from _own()
    yield from _of_libraries()


def known() -> set[str]:
    """Return which modules with such calls are imported."""
    return {module for module, *_ in LIBRARIES if module in sys.modules}


# -- qframe's own ---------------------------------------------------------------------------------


def _own() -> Iterator[LastingCall]:
    def dispatch(*_: object, **__: object) -> str:
        return "a dispatch"

    def named(_: object, job: object, *__: object, **___: object) -> str:
        return f"the dispatch of {one_line(type(job).__name__, 60)}"

    def step(steps: Any, name: str, *_: object, **__: object) -> str:  # noqa: ANN401 (JobSteps)
        if name in steps._read():  # noqa: SLF001 (it is done: only its value is read)
            return ""
        return f"the step {one_line(str(name), 60)!r}"

    def keeping(_: object, name: str, *__: object, **___: object) -> str:
        return f"what is kept as {one_line(str(name), 60)!r}"

    yield LastingCall(Connection, "push_envelope", named)
    for name in ("push_raw", "start_chain", "start_batch", "start_flow", "extend_batch"):
        yield LastingCall(Connection, name, dispatch)
    for name in ("starting_chain", "starting_batch", "starting_flow"):
        yield LastingCall(Connection, name, dispatch, is_whole=False)
    yield LastingCall(RecordingConnection, "extend_chain", dispatch)
    yield LastingCall(connections, "push_together", dispatch)
    yield LastingCall(bulk, "push_together", dispatch)
    yield LastingCall(JobSteps, "step", step, is_whole=False)
    yield LastingCall(JobSteps, "checkpoint", keeping, is_whole=False)
    yield LastingCall(JobSteps, "_kept", keeping, is_whole=False)
    yield LastingCall(JobSteps, "_kept_through", keeping, is_whole=False)


# -- libraries ------------------------------------------------------------------------------------


def _of_libraries() -> Iterator[LastingCall]:
    for module, path, namer in LIBRARIES:
        *way, name = path.split(".")
        owner: Any = sys.modules.get(module)
        with contextlib.suppress(AttributeError):  # of another version
            for each in way:
                owner = getattr(owner, each)
            getattr(owner, name)
            if owner is not None:
                # What a block calls at its end, after its commit, counts by itself.
                yield LastingCall(owner, name, namer, is_whole=namer is not _atomic)


def _commit(*_: object, **__: object) -> str:
    return "a commit"


def _end_of_block(_: object, kind: object = None, *__: object) -> str:
    """Name the commit at the end of a `with` block that did not raise."""
    return "a commit" if kind is None else ""


def _psycopg_commit(connection: Any) -> str:  # noqa: ANN401 (a Connection)
    """Name a commit, unless there is no transaction, as in autocommit."""
    return "" if _is_idle(connection) else "a commit"


def _psycopg_block(connection: Any, kind: object = None, *_: object) -> str:  # noqa: ANN401 (as above)
    """Name the commit at the end of a connection's `with` block that did not raise."""
    return _psycopg_commit(connection) if kind is None and not connection.closed else ""


def _psycopg_statement(cursor: Any, sql: object, *_: object, **__: object) -> str:  # noqa: ANN401 (a Cursor)
    connection = cursor.connection
    return written(sql) if connection.autocommit and _is_idle(connection) else ""


def _is_idle(connection: Any) -> bool:  # noqa: ANN401 (as above)
    return int(connection.info.transaction_status) == 0  # IDLE


def _asyncpg_statement(connection: Any, sql: object, *_: object, **__: object) -> str:  # noqa: ANN401 (as above)
    return "" if connection.is_in_transaction() else written(sql)


def _request(_: object, request: Any, *__: object, **___: object) -> str:  # noqa: ANN401 (an httpx.Request)
    return _call(request.method, str(request.url))


def _method_and_url(_: object, method: object, url: object, *__: object, **___: object) -> str:
    return _call(method, url)


def _put_request(to: Any, method: str, url: str, *_: object, **__: object) -> str:  # noqa: ANN401 (an HTTPConnection)
    return _call(method, url if "://" in url else f"{to.host}:{to.port}{url}")


def _prepared(_: object, request: Any, *__: object, **___: object) -> str:  # noqa: ANN401 (a PreparedRequest)
    return _call(request.method, request.url)


def _call(method: object, url: object) -> str:
    """Name an HTTP call, without its query, which may have secrets."""
    return f"the call {one_line(f'{method} {url}'.partition('?')[0], 120)}"


def _atomic(block: Any, kind: object = None, *_: object) -> str:  # noqa: ANN401 (Django's Atomic)
    """Name the commit at the end of the outermost block, not counting those of a `TestCase`."""
    from django.db import transaction  # noqa: PLC0415 (it is imported already)

    database = transaction.get_connection(block.using)
    outer = database.atomic_blocks[:-1]
    is_outermost = all(each._from_testcase for each in outer)  # noqa: SLF001 (Django's)
    is_test = block._from_testcase  # noqa: SLF001 (as above)
    commits = kind is None and is_outermost and not is_test and not database.needs_rollback
    return "a commit" if commits else ""


def _by_hand(*_: object) -> str:
    """Name a commit of Django that is not part of the end of a block."""
    frame: Any = sys._getframe()  # noqa: SLF001 (as `inspect` does)
    for _depth in range(_NEAR):
        frame = frame and frame.f_back
        of = frame and frame.f_globals.get("__name__")
        if of == "django.db.transaction" and frame.f_code.co_name == "__exit__":
            return ""
    return "a commit"


_NEAR = 6
"""So many calls above, at the most, is the end of the block that commits."""


def _statement(cursor: Any, sql: object, *_: object) -> str:  # noqa: ANN401 (Django's CursorWrapper)
    """Name a statement of Django that is its own transaction."""
    blocks = cursor.db.atomic_blocks
    if any(not each._from_testcase for each in blocks):  # noqa: SLF001 (Django's)
        return ""
    return written(sql) if blocks or cursor.db.get_autocommit() else ""


_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE|MERGE|CREATE|DROP|ALTER)\b", re.IGNORECASE)
ENDS = re.compile(r"\s*(COMMIT|END)\b", re.IGNORECASE)


def written(sql: object) -> str:
    """Name a statement that is its own transaction; "" for one that only reads."""
    found = _WRITES.match(sql) if isinstance(sql, str) else None
    return f"the {found[1].upper()} that is committed by itself" if found else ""


LIBRARIES: list[tuple[str, str, Namer]] = [
    ("sqlalchemy.engine.base", "Connection._commit_impl", _commit),
    ("sqlalchemy.engine.base", "Connection._commit_twophase_impl", _commit),
    ("django.db.transaction", "Atomic.__exit__", _atomic),
    ("django.db.backends.base.base", "BaseDatabaseWrapper.commit", _by_hand),
    ("django.db.backends.utils", "CursorWrapper._execute", _statement),
    ("django.db.backends.utils", "CursorWrapper._executemany", _statement),
    ("psycopg", "Connection.commit", _psycopg_commit),
    ("psycopg", "Connection.__exit__", _psycopg_block),
    ("psycopg", "AsyncConnection.commit", _psycopg_commit),
    ("psycopg", "AsyncConnection.__aexit__", _psycopg_block),
    ("psycopg", "Cursor.execute", _psycopg_statement),
    ("psycopg", "Cursor.executemany", _psycopg_statement),
    ("psycopg", "AsyncCursor.execute", _psycopg_statement),
    ("psycopg", "AsyncCursor.executemany", _psycopg_statement),
    ("psycopg.transaction", "Transaction.__exit__", _end_of_block),
    ("psycopg.transaction", "AsyncTransaction.__aexit__", _end_of_block),
    ("pymysql.connections", "Connection.commit", _commit),
    ("MySQLdb.connections", "Connection.commit", _commit),
    ("aiosqlite.core", "Connection.commit", _commit),
    *(
        ("asyncpg.connection", f"Connection.{name}", _asyncpg_statement)
        for name in ("execute", "executemany", "fetch", "fetchrow", "fetchval")
    ),
    ("asyncpg.transaction", "Transaction.commit", _commit),
    ("asyncpg.transaction", "Transaction.__aexit__", _end_of_block),
    ("http.client", "HTTPConnection.putrequest", _put_request),
    ("requests.sessions", "Session.send", _prepared),
    ("httpx", "Client.send", _request),
    ("httpx", "AsyncClient.send", _request),
    ("httpx2", "Client.send", _request),
    ("httpx2", "AsyncClient.send", _request),
    ("aiohttp", "ClientSession._request", _method_and_url),
]
"""Module, the path to a function in it, and what names the call."""
