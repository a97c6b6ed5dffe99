"""CallerConnection: finds the connection behind whatever a program calls its transaction.

That is SQLAlchemy's `Session`, `Connection` or `scoped_session`, a DBAPI connection or cursor, or
Django's `connection`, `connections["x"]` or `transaction`. qframe never begins, commits, rolls back
or closes it.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import ClauseElement

from qframe.exceptions import InvalidTransaction
from qframe.payload.text import one_line

_DRIVERS = {
    "sqlite3": "sqlite+pysqlite",
    "psycopg": "postgresql+psycopg",
    "psycopg2": "postgresql+psycopg2",
    "pymysql": "mysql+pymysql",
    "MySQLdb": "mysql+mysqldb",
    "mariadb": "mariadb+mariadbconnector",
    "mysql": "mysql+mysqlconnector",
}
"""DBAPI modules and their SQLAlchemy names."""
_AN_OPEN_ONE = (
    "within takes a SQLAlchemy Session or Connection, a DBAPI connection or cursor (psycopg, "
    "sqlite3, PyMySQL, mysqlclient), or Django's connection"
)
_PROBE = "qframe_probe"
_SPOILER = "SELECT CAST('qframe: the lease of the job was lost' AS integer)"
_IN_TRANSACTION = 1
"""The bit of MySQL's `server_status` for an open transaction."""


class CallerConnection:
    """A connection that the caller opened and whose transaction the caller ends.

    `run` and `run_many` take statements of SQLAlchemy Core, or text without parameters. `run`
    returns an object with `fetchone`, `fetchall` and `rowcount`.
    """

    def __init__(self, raw: Any, dialect: Dialect) -> None:  # noqa: ANN401 (a driver's)
        self.raw = raw
        """The driver's own connection."""
        self.dialect = dialect
        self.errors: tuple[type[Exception], ...] = ()
        """The errors that it raises."""

    @property
    def kind(self) -> str:
        """The kind of database: `sqlite`, `postgresql`, or `mysql` (also for MariaDB)."""
        return "mysql" if self.dialect.name == "mariadb" else self.dialect.name

    def run(self, statement: ClauseElement | str, values: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 (a cursor, or what SQLAlchemy makes of one)
        """Run a statement with named parameters. Read its rows before the next call."""
        if isinstance(statement, str):
            return self._execute(statement, None)
        made = _as_taken(statement, self.dialect)
        return self._execute(made.sql, made.parameters(values or {}))

    def run_many(self, statement: ClauseElement, rows: Sequence[Mapping[str, Any]]) -> None:
        made = _as_taken(statement, self.dialect)
        self._execute(made.sql, [made.parameters(row) for row in rows])

    # -- its transaction --------------------------------------------------------------------------

    def check_transaction(self) -> None:
        """Raise `InvalidTransaction` in autocommit mode, outside of a transaction."""
        if self._commits_each() and not self._is_in_transaction():
            raise InvalidTransaction(
                "within needs a transaction, and this connection is in autocommit mode with none "
                "open: begin one first"
            )

    def spoil(self) -> None:
        """Make a commit fail or roll back, where the database can: on PostgreSQL by an error."""
        if self.kind == "postgresql":
            with contextlib.suppress(*self.errors):
                self._execute(_SPOILER, None)

    def _commits_each(self) -> bool:
        """Whether a statement outside of a transaction is committed at once."""
        raw = self.raw
        if hasattr(raw, "isolation_level") and hasattr(raw, "in_transaction"):  # sqlite3, aiosqlite
            mode = getattr(raw, "autocommit", -1)
            return raw.isolation_level is None if mode == -1 else bool(mode)
        if hasattr(raw, "get_autocommit"):  # PyMySQL and its like, mysqlclient
            return bool(raw.get_autocommit())
        return getattr(raw, "autocommit", False) is True

    def _is_in_transaction(self) -> bool:
        raw = self.raw
        if hasattr(raw, "in_transaction"):
            return bool(raw.in_transaction)
        if hasattr(raw, "info"):  # psycopg, psycopg2: 0 is idle
            return int(raw.info.transaction_status) != 0
        if hasattr(raw, "server_status"):
            return bool(raw.server_status & _IN_TRANSACTION)
        if self.kind != "mysql":
            return False
        try:  # without a transaction the savepoint ends at once
            self._execute(f"SAVEPOINT {_PROBE}", None)
            self._execute(f"ROLLBACK TO SAVEPOINT {_PROBE}", None)
        except self.errors:
            return False
        return True

    def _execute(self, sql: str, parameters: Any) -> Any:  # noqa: ANN401 (a DBAPI's; a list: of many)
        raise NotImplementedError


class _ByCore(CallerConnection):
    """A connection of SQLAlchemy; its events and logging see the statements."""

    def __init__(self, connection: Connection) -> None:
        fairy: Any = connection.connection
        # SQLAlchemy's wrapper of an asynchronous driver knows whether it begins transactions.
        raw = fairy.driver_connection
        adapted = fairy.dbapi_connection
        super().__init__(adapted if hasattr(adapted, "autocommit") else raw, connection.dialect)
        self.errors = (SQLAlchemyError,)
        self._connection = connection

    def _execute(self, sql: str, parameters: Any) -> Any:  # noqa: ANN401 (a DBAPI's)
        return self._connection.exec_driver_sql(sql, parameters)


class _ByDriver(CallerConnection):
    def __init__(self, raw: Any, name: str) -> None:  # noqa: ANN401 (a driver's)
        super().__init__(raw, _dialect(name))
        module = sys.modules[name]
        module = module.connector if name == "mysql" else module
        self.errors = (module.Error,)
        self._cursor = _cursor(raw, name, module)

    def _execute(self, sql: str, parameters: Any) -> Any:  # noqa: ANN401 (a DBAPI's)
        if isinstance(parameters, list):
            self._cursor.executemany(sql, parameters)
        elif parameters is None:
            self._cursor.execute(sql)
        else:
            self._cursor.execute(sql, parameters)
        return self._cursor


def _cursor(raw: Any, name: str, module: ModuleType) -> Any:  # noqa: ANN401 (a driver's)
    """Make a cursor whose rows are tuples, whatever the caller's cursors return."""
    match name:
        case "psycopg":
            return module.Cursor(raw, row_factory=module.rows.tuple_row)
        case "psycopg2":
            return raw.cursor(cursor_factory=module.extensions.cursor)
        case "pymysql" | "MySQLdb":
            return raw.cursor(sys.modules[f"{name}.cursors"].Cursor)
        case "mysql":
            return raw.cursor(buffered=True)
    cursor = raw.cursor()
    if name == "sqlite3":
        cursor.row_factory = None
    return cursor


# -- finding the caller's connection --------------------------------------------------------------


def caller_connection(transaction: object) -> CallerConnection:
    """Find the connection of a caller's transaction. Raises `InvalidTransaction`."""
    found = _of_django(transaction)
    if found is not None:
        return found
    connection = _of_sqlalchemy(transaction)
    if connection is not None:
        return _ByCore(connection)
    name = _driver_of(transaction)
    if name is None:
        raise InvalidTransaction(f"{_AN_OPEN_ONE}, not {_shown(transaction)}")
    # A cursor has its connection as an attribute.
    raw: Any = getattr(transaction, "connection", None) or transaction
    if inspect.iscoroutinefunction(raw.commit):
        raise InvalidTransaction(
            f"{_AN_OPEN_ONE}, not {_shown(transaction)}; an asynchronous transaction is given as "
            "SQLAlchemy's AsyncSession or AsyncConnection"
        )
    return _ByDriver(raw, name)


def _shown(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__


def _driver_of(given: object) -> str | None:
    if isinstance(given, type | ModuleType) or not hasattr(given, "close"):
        return None
    homes = (kind.__module__.partition(".")[0] for kind in given.__class__.__mro__)
    return next((home for home in homes if home in _DRIVERS), None)


def _of_sqlalchemy(given: Any) -> Connection | None:  # noqa: ANN401 (any object)
    if isinstance(given, Connection):
        return given
    orm = sys.modules.get("sqlalchemy.orm")
    if orm is None:
        return None
    given = given() if isinstance(given, orm.scoped_session) else given
    if not isinstance(given, orm.Session):
        return None
    try:
        connection: Connection = given.connection()
    except SQLAlchemyError as error:
        raise InvalidTransaction(
            f"the session has no connection of its own to give: {one_line(str(error))}; "
            "begin its transaction, or give session.connection(...)"
        ) from error
    return connection


def _of_django(given: Any) -> CallerConnection | None:  # noqa: ANN401 (any object)
    db = sys.modules.get("django.db")
    if db is None:
        return None
    if given is sys.modules.get("django.db.transaction"):
        given = db.connection
    if hasattr(given, "db") and hasattr(given, "cursor"):  # one of its cursors
        given = given.db
    home = given.__class__.__module__
    if not (isinstance(home, str) and hasattr(given, "alias") and hasattr(given, "vendor")):
        return None
    wrapper = db.connections[given.alias]
    wrapper.ensure_connection()
    name = _driver_of(wrapper.connection)
    if name is None:
        raise InvalidTransaction(f"Django's {wrapper.vendor} is none of: sqlite, postgresql, mysql")
    return _ByDjango(wrapper, name)


class _ByDjango(_ByDriver):
    """Django's connection, which has a transaction inside `atomic()`."""

    def __init__(self, wrapper: Any, name: str) -> None:  # noqa: ANN401 (Django's)
        super().__init__(wrapper.connection, name)
        self._wrapper = wrapper

    def check_transaction(self) -> None:
        if not self._wrapper.in_atomic_block and self._wrapper.get_autocommit():
            raise InvalidTransaction(
                "within needs a transaction, and Django has none open: use transaction.atomic()"
            )

    def spoil(self) -> None:
        """Make Django roll back, on any database."""
        if self._wrapper.in_atomic_block:
            self._wrapper.set_rollback(True)
        else:
            super().spoil()


# -- statements -----------------------------------------------------------------------------------


@cache
def _dialect(name: str) -> Dialect:
    """Return the dialect of a DBAPI module, with named parameters."""
    kind: Any = make_url(f"{_DRIVERS[name]}://").get_dialect()
    made: Dialect = kind(paramstyle="named" if name == "sqlite3" else "pyformat")
    return made


class _Rendered:
    def __init__(self, statement: ClauseElement, dialect: Dialect) -> None:
        made: Any = statement.compile(dialect=dialect)
        self.of = statement, dialect  # keep both alive, so that no other object gets their ids
        self.sql = str(made)
        self._constants = {k: v for k, v in made.params.items() if not made.binds[k].required}
        self._order = made.positiontup if made.positional else None

    def parameters(self, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 (as the driver wants them)
        filled = {**values, **self._constants}
        return filled if self._order is None else tuple(filled[name] for name in self._order)


_rendered: dict[tuple[int, int], _Rendered] = {}
_MOST = 1000
"""The most rendered statements to keep; only a program that keeps making engines has more."""


def _as_taken(statement: ClauseElement, dialect: Dialect) -> _Rendered:
    key = id(statement), id(dialect)
    found = _rendered.get(key)
    if found is None:
        if len(_rendered) >= _MOST:
            _rendered.clear()
        found = _rendered[key] = _Rendered(statement, dialect)
    return found
