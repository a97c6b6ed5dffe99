"""FlowRun: a flow that was dispatched."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from qframe import manager
from qframe.connection import Connection
from qframe.contracts.flow import FlowNode, FlowRecord
from qframe.dispatch.chain import stand_in_for
from qframe.dispatch.sender import asked
from qframe.exceptions import QframeError
from qframe.failed.retry import retry
from qframe.features.flows import FlowStore
from qframe.jobs.execution import refuse_on_loop


class Numbered(Protocol):
    """A node of the flow, as `Flow.add` returned it."""

    number: int


def find_flow(identity: str, connection: str | None = None) -> FlowRun | None:
    """Return a dispatched flow by its id; None if there is none (any more).

    Raises `SynchronousOnly` on a running event loop: await `afind_flow` there.
    """
    refuse_on_loop("find_flow()", "afind_flow()")
    return _found(identity, connection)


async def afind_flow(identity: str, connection: str | None = None) -> FlowRun | None:
    """As `find_flow`, without blocking the event loop."""
    return await asked(partial(_found, identity, connection))


def _found(identity: str, connection: str | None) -> FlowRun | None:
    place = stand_in_for(manager.default().connection(connection), ())
    flows = place.flows()
    record = None if flows is None else flows.read(identity)
    return None if record is None else FlowRun(place, record.id, record)


class FlowRun:
    """A dispatched flow, as it was when it was first read; `fresh()` reads it again."""

    def __init__(self, connection: Connection, identity: str, record: FlowRecord | None) -> None:
        self._connection = connection
        self._record = record
        self.id = identity
        """The id for `find_flow` and `qframe flow`."""

    @property
    def record(self) -> FlowRecord:
        """The state of the flow. Raises `QframeError` if it is not kept (any more).

        Like what follows, it may block: on an event loop call it in a thread.
        """
        if self._record is None:
            self._record = self._flows().read(self.id)
        if self._record is None:
            raise QframeError(f"the flow {self.id} is not kept (any more)")
        return self._record

    @property
    def name(self) -> str:
        """The name; "" if it has none."""
        return self.record.name

    @property
    def state(self) -> str:
        """`running`, `failed`, `cancelled` or `done`."""
        return self.record.state

    @property
    def is_finished(self) -> bool:
        """Whether every node has ended."""
        return self.record.is_finished

    def nodes(self, limit: int | None = None) -> list[FlowNode]:
        """Read all nodes, or the first `limit`, with their states."""
        return self._flows().nodes(self.id, limit)

    def result(self, node: int | Numbered) -> Any:  # noqa: ANN401 (any JSON value)
        """Return the result of a node that has ended, as JSON has it.

        Raises `QframeError` if it has not ended, or its result is not kept (any more).
        """
        number = node if isinstance(node, int) else node.number
        return self._flows().result(self.id, number)

    def fresh(self) -> FlowRun:
        """Read the flow again. Raises `QframeError` if it is gone."""
        again = FlowRun(self._connection, self.id, None)
        assert again.record is not None  # noqa: S101 (reads it, and raises)
        return again

    def cancel(self) -> bool:
        """Cancel the flow. Returns False if it was cancelled before, or is over.

        Nodes that wait are cancelled, and jobs that have not started are skipped. Running jobs run
        to their end.
        """
        return self._flows().cancel(self.id)

    def failed_jobs(self) -> list[str]:
        """Return the ids of the failed jobs of the flow, at most 1,000."""
        return self._flows().failures(self.id)

    def retry(self) -> int:
        """Retry the failed jobs of the flow, which then goes on. Returns how many there were."""
        store, count = self._connection.failed, 0
        for identity in self.reopen():
            record = store.find(identity)
            count += record is not None and retry(manager.default(), store, record)
        return count

    def reopen(self) -> list[str]:
        """Let failed batches of the flow go on. Returns the ids of its failed jobs, to retry."""
        return self._flows().reopen(self.id)

    def _flows(self) -> FlowStore:
        flows = self._connection.flows()
        if flows is None:
            raise QframeError(f"the connection {self._connection.name!r} keeps no flows")
        return flows

    def __repr__(self) -> str:
        return f"<Flow {self.id}>"
