"""Within: the backend bound to a transaction of the caller.

A savepoint undoes a call that fails. The caller's commit or rollback decides about all calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from qframe.drivers.database.caller import CallerConnection, caller_connection
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.engine import shown
from qframe.drivers.database.sql import Statement
from qframe.exceptions import InvalidTransaction, OtherDatabase

_SAVEPOINT = "qframe_call"
_known: WeakKeyDictionary[Any, object] = WeakKeyDictionary()
"""The names of the callers' databases, by connection."""
_NAMES = {"postgresql": "SELECT current_database()", "mysql": "SELECT DATABASE()"}


class CallerDatabase(Database):
    """The database of a connection, in the caller's transaction. Raises `InvalidTransaction`."""

    commits = False

    def __init__(self, own: Database, transaction: object) -> None:
        self.__dict__.update(own.__dict__)
        caller = caller_connection(transaction)
        check_kind(own, caller)
        caller.check_transaction()
        self._caller = caller
        self._session = CallerSession(self, caller)
        check_same(own, caller)
        if self.is_sqlite:
            _make_tables(own, caller)
        elif self.is_postgresql and not own.encoding:
            # Texts must be stored as qframe's own connections do, also before the first of them.
            own.encoding = self.encoding = caller.run("SHOW server_encoding").fetchone()[0]

    def session(self) -> Session:
        return self._session

    def _server_time(self, cursor: object) -> int:
        del cursor
        return int(self._caller.run(self._ask_time.element, {"skew": 0}).fetchone()[0])

    def follow_file(self) -> None:
        """Do nothing: the connection is the caller's."""


class CallerSession(Session):
    """The caller's connection, a context for each call. It never commits."""

    is_own = False

    def __init__(self, database: Database, caller: CallerConnection) -> None:
        super().__init__(database)
        self._caller = caller
        name = caller.dialect.identifier_preparer.format_table(database.schema.facts)
        self._lock = f"DELETE FROM {name} WHERE 0"  # noqa: S608 (the name is configured)

    @property
    def lazy(self) -> bool:
        """Whether the commit does not wait for the disk: the caller decides."""
        return False

    @lazy.setter
    def lazy(self, value: bool) -> None:
        del value

    @property
    def is_open(self) -> bool:
        """Always False: qframe must not close it."""
        return False

    # -- calls ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._guard.__enter__()
        self._now, self._pinned = 0, None
        try:
            if self._caller.kind == "sqlite":
                # Begins where the driver would, and takes the write lock before the first read.
                self._caller.run(self._lock)
            self._caller.run(f"SAVEPOINT {_SAVEPOINT}")
        except BaseException as error:
            self._end(error)
            raise
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._undo()
            self._caller.run(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except self._caller.errors as late:
            error = error or late
        self._end(error)

    def _undo(self) -> None:
        self._caller.run(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")

    def _end(self, error: BaseException | None) -> None:
        self._guard.__exit__()
        if isinstance(error, UnicodeEncodeError):
            raise ValueError(  # noqa: TRY004 (it is about a value)
                "the transaction's connection cannot carry this text, its client_encoding is "
                f"{error.encoding}: set it to UTF8"
            ) from error
        if isinstance(error, self._caller.errors):
            raise self._database.translated(error) from error

    def begin(self) -> None:
        """Do nothing: the savepoint is already there."""

    def begin_at_once(self) -> bool:
        return True

    def commit(self) -> None:
        """Do nothing: the caller commits."""

    def spoil(self) -> None:
        with self._guard:
            self._caller.spoil()

    # -- statements -------------------------------------------------------------------------------

    def run(self, statement: Statement, **values: Any) -> Any:  # noqa: ANN401 (a cursor)
        return self._caller.run(statement.element, values)

    def change(self, statement: Statement, values: Mapping[str, Any]) -> int:
        return int(self.run(statement, **values).rowcount)

    def run_many(self, statement: Statement, rows: Sequence[dict[str, Any]]) -> None:
        self._caller.run_many(statement.element, rows)

    def version(self) -> object:
        """Return a new value each time, so that a wait looks again."""
        return object()

    def close(self) -> None: ...


# -- identifying the database ---------------------------------------------------------------------


def check_kind(own: Database, caller: CallerConnection) -> None:
    """Raise `OtherDatabase` for a transaction on another kind of database."""
    kind = "mysql" if own.kind == "mariadb" else own.kind
    if caller.kind != kind:
        raise OtherDatabase(
            f"the jobs are in {shown(own.url)}, the transaction is one of {caller.kind}: "
            "give one of the same database"
        )


def check_same(own: Database, caller: CallerConnection) -> None:
    """Raise `OtherDatabase` for a transaction on another database than the jobs are in.

    It compares names, because a server has several databases. A server has several host names
    itself, so it does not detect another server with a database of the same name.
    """
    if own.is_sqlite:
        name = _file_of(caller)
        if not (name and _is_same_file(name, str(own.url.database))):
            raise _elsewhere(own, name or "in memory")
        return
    there = _name_of(caller)
    if there != own.url.database and there != _own_name(own, caller.kind):
        raise _elsewhere(own, str(there))


def _name_of(caller: CallerConnection) -> object:
    """Query the name; on PostgreSQL once for each connection, where it cannot change."""
    stays = caller.kind == "postgresql"
    # connections of some drivers have no weak references
    with contextlib.suppress(KeyError, TypeError):
        if stays:
            return _known[caller.raw]
    name = caller.run(_NAMES[caller.kind]).fetchone()[0]
    if isinstance(name, bytes):  # psycopg, for a database in SQL_ASCII
        raise InvalidTransaction(
            "the transaction's connection gives texts as bytes, its client_encoding is SQL_ASCII: "
            "set it to UTF8"
        )
    with contextlib.suppress(TypeError):
        if stays:
            _known[caller.raw] = name
    return name


def _elsewhere(own: Database, name: str) -> OtherDatabase:
    return OtherDatabase(
        f"the jobs are in the database {shown(own.url)}, the transaction is one of {name}"
    )


def _own_name(own: Database, kind: str) -> object:
    """Query the name of qframe's database: a pooler may use another name in the URL."""
    with own.session() as session:
        session.cursor.execute(_NAMES[kind])
        return session.cursor.fetchone()[0]


def _file_of(caller: CallerConnection) -> str:
    rows = caller.run("PRAGMA database_list").fetchall()
    return str(next((file for _, name, file in rows if name == "main"), "") or "")


def _is_same_file(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return False


def _make_tables(own: Database, caller: CallerConnection) -> None:
    """Create missing tables on the caller's connection, which may hold the lock."""
    last = own.schema.outbox
    found = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{}'"
    if caller.run(found.format(last.name)).fetchone() is not None:
        return
    for table in last.metadata.sorted_tables:
        made: list[ExecutableDDLElement] = [CreateTable(table, if_not_exists=True)]
        made += [CreateIndex(index, if_not_exists=True) for index in table.indexes]
        for each in made:
            caller.run(str(each.compile(dialect=caller.dialect)))
