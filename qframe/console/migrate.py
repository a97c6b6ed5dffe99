"""`qframe migrate`: makes the tables of SQL connections, or prints the SQL for that."""

from __future__ import annotations

from typing import Annotated

import typer

from qframe.console.connections import configured
from qframe.console.options import (
    Config,
    ConnectionArgument,
    ConnectionOption,
    named_connection,
)
from qframe.console.place import JobsPlace, of, print_hint, print_new
from qframe.console.text import encodable, print_error, say
from qframe.contracts.backend import Backend
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.worker.options import NO_ANSWER, USAGE


def migrate(
    name: ConnectionArgument = None,
    *,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the statements; change nothing.")
    ] = False,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Create missing tables, columns and indexes in SQL databases.

    Tables that Laravel's migrations made get the missing columns and indexes; no row is changed. It
    migrates all connections in use, also those that [store] and [failed] name, and may run several
    times at once. It says which database it has made, and by which configuration. With --sql and no
    server that answers, it prints all statements.

    Exits 69 if a database does not answer, 2 if it refuses; the others are migrated.

      qframe migrate
      qframe migrate reports
      qframe migrate --sql | psql --single-transaction app
    """
    queues = configured(config)
    codes, new = [0], list[JobsPlace]()
    only = named_connection(name, connection)
    for each in [only] if only else queues.in_use():
        try:
            if sql:
                _print(each, queues.backend(each))
                continue
            place = of(queues, "migrate", each)
            _migrate(each, queues.backend(each))
            if place.is_new and place.file is not None and place.file.exists():
                new.append(place)
        except ConfigurationError as error:
            codes.append(print_error(f"{each}: {error}", USAGE))
        except BackendUnavailable as error:
            codes.append(print_error(f"{each}: {error}", NO_ANSWER))
    if new:
        print_new(new)
    else:
        print_hint(queues.settings.root, "migrate --sql" if sql else "migrate")
    return max(codes)


def _migrate(name: str, backend: Backend) -> None:
    done = backend.migrate()
    if not done:
        say(f"{name}: {'has no tables' if done is None else 'nothing to do'}")
    for change in done or ():
        say(f"{name}: {change.what}")


def _print(name: str, backend: Backend) -> None:
    """Prints the statements that are due, or all if the database does not answer."""
    because = ""
    try:
        changes = backend.migration()
    except BackendUnavailable as error:
        changes = backend.migration(ask=False)
        because = f": {error}; so this is everything, for a database that has nothing of it yet"
    if changes is None:
        because = " has no tables"
    elif not changes:
        because = ": nothing to do"
    say(f"-- {name}{because}" if because else f"-- {name}: {backend.described()}")
    for change in changes or ():
        typer.echo(encodable(f"{change.sql};"))
