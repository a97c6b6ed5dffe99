"""Dispatching in a transaction of the program, which commits the job with its rows."""

from __future__ import annotations

from qframe import manager
from qframe.connection import Connection, substitute
from qframe.contracts.backend import Backend, Capability
from qframe.exceptions import BackendUnavailable, OtherDatabase, Unsupported
from qframe.jobs.foreign import Dispatchable
from qframe.outbox.keep import OutboxBackend


def joined(
    connection: Connection, transaction: object, job: Dispatchable | None = None
) -> Connection:
    """Return a connection that pushes in a transaction. Raises `InvalidTransaction`.

    `sync` still runs jobs at once, `null` drops them, and a fake takes a `job` of its kind.
    """
    if job is not None and substitute(connection, job) is not None:
        return connection
    if Capability.RESERVE not in connection.capabilities:
        return connection
    if Capability.WITHIN not in connection.capabilities:
        return connection.through(outbox(connection, transaction), counts=False)
    try:
        return connection.through(connection.backend.within(transaction))
    except (OtherDatabase, BackendUnavailable):  # the jobs are in another database
        if manager.default().outbox() is None:
            raise
        return connection.through(outbox(connection, transaction), counts=False)


def outbox(connection: Connection, transaction: object) -> Backend:
    """Return the backend that stores steps for another backend in the transaction."""
    found = manager.default().outbox()
    if found is None:
        raise Unsupported(
            f"the connection {connection.name!r} ({connection.settings.driver}) cannot push within "
            "a transaction of a database, its jobs are elsewhere: name the database's connection "
            'under [outbox], such as connection = "main"'
        )
    signer = connection.context.signer
    return OutboxBackend(found.within(transaction), connection.name, connection.backend, signer)
