"""fake: while it is on, dispatches are recorded instead of pushed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from qframe import connection as connections
from qframe import forks
from qframe.connection import Connection
from qframe.dispatch.draft import flush, send_unsent, unsent
from qframe.drivers.memory.backend import MemoryBackend
from qframe.jobs.foreign import Dispatchable
from qframe.testing.recording import (
    Dispatched,
    DispatchedBatch,
    DispatchedChain,
    DispatchedFlow,
    Notes,
    RecordingConnection,
    name_in,
    parsed,
)
from qframe.testing.wanted import (
    ChainTarget,
    J,
    JobTarget,
    Members,
    Target,
    WantedJobs,
    Which,
    checked_jobs,
    fit_all,
    line_of,
    listed,
    shown_job,
    shown_targets,
)

if TYPE_CHECKING:
    from qframe.payload.timing import When

__tracebackhide__ = True
"""pytest shows a failed assertion in the test, not in here."""


def fake(*, only: Iterable[Target] | None = None, besides: Iterable[Target] = ()) -> Fake:
    """Records what is dispatched in this process instead of pushing it.

    `with fake() as queued: ...`, then `queued.assert_dispatched(SendWelcome)`. With `only`, it
    records these jobs alone; with `besides`, all but these. The others are pushed. A chain or a
    batch is recorded if one of its jobs is.

    It covers every connection, also `sync`, whose jobs do not run; every way to dispatch; and every
    thread, until the block ends. Jobs are checked as usual, and listeners of `JobQueueing` and
    `JobQueued` are called. Of nested fakes, the inner one that wants a job records it.
    """
    return Fake(only=only, besides=besides)


class Fake:
    """What was dispatched while it was on, and assertions on it: what `with fake()` gives.

    An assertion that does not hold raises `AssertionError`, with what was dispatched instead.
    """

    def __init__(
        self, *, only: Iterable[Target] | None = None, besides: Iterable[Target] = ()
    ) -> None:
        self._only = None if only is None else [JobTarget(each) for each in _several(only)]
        self._besides = [JobTarget(each) for each in _several(besides)]
        self._notes = Notes()
        self.chains = self._notes.chains
        """The chains that were dispatched, in order."""
        self.batches = self._notes.batches
        """The batches that were dispatched, in order, without those that are links of chains."""
        self.flows = self._notes.flows
        """The flows that were dispatched, in order."""
        self.memory = MemoryBackend()
        """Where locks, limits and batches are kept meanwhile; nobody works its queues."""
        self._connections: dict[Connection, RecordingConnection] = {}
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        """Starts recording; what was dispatched before is pushed."""
        flush()
        with _changing:
            if self in _active:
                raise RuntimeError("this fake is on already; make another one")
            self._before = list(unsent)
            _active.append(self)
            connections.stand_in = _stand_in
        return self

    def __exit__(self, *_: object) -> None:
        """Stops recording; a dispatch that a variable holds unsent is recorded."""
        try:
            for draft in self._held():
                send_unsent(draft)
        finally:
            with _changing:
                _active.remove(self)
                if not _active:
                    connections.stand_in = None

    # -- what there is --------------------------------------------------------------------------

    def dispatched(self, target: Target | None = None, **which: Unpack[Which]) -> list[Dispatched]:
        """Returns what was dispatched, in order, with connection, queue, delay and payload."""
        kind = None if target is None else JobTarget(target)
        wanted = WantedJobs.jobs(kind, **which)
        return [each for each in self._notes.jobs.copy() if wanted.fits(each)]

    @overload
    def jobs(self, target: type[J], where: Callable[[J], object] | None = None) -> list[J]: ...

    @overload
    def jobs(
        self, target: Target | None = None, where: Callable[[Any], object] | None = None
    ) -> list[Any]: ...

    def jobs(
        self, target: Target | None = None, where: Callable[[Any], object] | None = None
    ) -> list[Any]:
        """Returns the jobs that were dispatched, in order: all, or those a target names."""
        return [each.job for each in self.dispatched(target, where=where) if each.job is not None]

    # -- assertions -----------------------------------------------------------------------------

    def assert_dispatched(
        self, target: Target, *, times: int | None = None, **which: Unpack[Which]
    ) -> None:
        """Asserts that there is such a dispatch, or exactly `times` of them.

        `target` is a job class, a function under `@queueable`, a job (or an equal one), or a name
        on the wire. `where` is called with the job. `delay` is seconds, a timedelta or the moment.
        The first link of a chain counts, its other links and the members of batches do not.
        """
        self._assert_found(WantedJobs.jobs(JobTarget(target), **which), times, self._notes.jobs)

    def assert_not_dispatched(self, target: Target, **which: Unpack[Which]) -> None:
        """Asserts that there is no such dispatch."""
        wanted = WantedJobs.jobs(JobTarget(target), **which)
        self._assert_found(wanted, 0, self._notes.jobs, f"expected {wanted} not to be dispatched")

    def assert_nothing_dispatched(self) -> None:
        """Asserts that there was no dispatch at all: of no job, chain, batch or flow."""
        there = self._all()
        if there:
            raise AssertionError(f"expected nothing to be dispatched, but were:\n{there}")

    def assert_chained(
        self,
        jobs: Sequence[ChainTarget],
        *,
        times: int | None = None,
        queue: str | None = None,
        connection: str | None = None,
        delay: When | None = None,
    ) -> None:
        """Asserts that such a chain was dispatched, or exactly `times`: all its links, in order.

        Each is named as for `assert_dispatched`; a link that is a batch by `PendingBatch`, or by a
        function that is called with the `DispatchedBatch`. `queue` and `delay` are the first
        link's.
        """
        links = checked_jobs(jobs)
        if not links:
            raise ValueError("name the links of the chain; whether there was one: `chains`")
        name = f"the chain {shown_targets(links)}"
        wanted = WantedJobs(
            name, lambda it: fit_all(it.jobs, links), None, queue, connection, delay
        )
        self._assert_found(wanted, times, self.chains)

    def assert_batched(
        self,
        where: Callable[[DispatchedBatch], object] | None = None,
        *,
        name: str | None = None,
        jobs: Members | None = None,
        times: int | None = None,
        queue: str | None = None,
        connection: str | None = None,
    ) -> None:
        """Asserts that such a batch was dispatched, or exactly `times`.

        `jobs` are all its members, in order, each named as for `assert_dispatched`, a chain as a
        list. A batch that is a link of a chain does not count.
        """
        shown = "a batch" if name is None else f"the batch {name!r}"
        members = None if jobs is None else checked_jobs(jobs)
        if members is not None:
            shown += f" of {shown_targets(members, ', ')}"

        def is_it(batch: DispatchedBatch) -> bool:
            return name in {None, batch.name} and (members is None or fit_all(batch.jobs, members))

        self._assert_found(WantedJobs(shown, is_it, where, queue, connection), times, self.batches)

    def assert_flow(
        self,
        where: Callable[[DispatchedFlow], object] | None = None,
        *,
        name: str | None = None,
        jobs: Sequence[ChainTarget | Sequence[ChainTarget]] | None = None,
        times: int | None = None,
        queue: str | None = None,
        connection: str | None = None,
    ) -> None:
        """Asserts that such a flow was dispatched, or exactly `times`.

        `jobs` are those of all its nodes, in order, each named as for `assert_dispatched`; a chain
        is a list, a map is named by its class.
        """
        shown = "a flow" if name is None else f"the flow {name!r}"
        nodes = None if jobs is None else checked_jobs(jobs)
        if nodes is not None:
            shown += f" of {shown_targets(nodes, ', ')}"

        def is_it(flow: DispatchedFlow) -> bool:
            return name in {None, flow.name} and (nodes is None or fit_all(flow.jobs, nodes))

        self._assert_found(WantedJobs(shown, is_it, where, queue, connection), times, self.flows)

    def _assert_found(
        self,
        wanted: WantedJobs,
        times: int | None,
        there: Sequence[Dispatched]
        | Sequence[DispatchedChain]
        | Sequence[DispatchedBatch]
        | Sequence[DispatchedFlow],
        expected: str = "",
    ) -> None:
        if times is not None and (type(times) is not int or times < 0):
            raise ValueError(f"times is a whole number, 0 or more, not {times!r}")
        seen = [*there]
        fits = [wanted.fits(each) for each in seen]
        count = sum(fits)
        if (count > 0) if times is None else (count == times):
            return
        often = "" if times is None else f" {_times(times)}"
        expected = expected or f"expected {wanted} to be dispatched{often}"
        own = listed(fits, map(line_of, seen))
        was = f"but it was {_times(count) if count else 'not'}"
        if there is not self._notes.jobs:
            every = own or self._all()
            kinds = {id(self.chains): "chains", id(self.batches): "batches"}
            which = f"the {kinds.get(id(there), 'flows')} " if own else ""
            rest = f"; {which}dispatched were:\n{every}" if every else ": nothing was dispatched"
            raise AssertionError(f"{expected}, {was}{rest}")
        every = "\n".join(filter(None, [own, self._grouped()]))
        rest = f"{was}; dispatched were:\n{every}" if every else "but nothing was dispatched"
        if held := [shown_job(draft.job) for draft in self._held()]:
            rest += f"\nnot sent yet, for a variable holds the dispatch: {', '.join(held)}"
        raise AssertionError(f"{expected}, {rest}")

    def _all(self) -> str:
        jobs = listed(repeat(False), map(line_of, self._notes.jobs.copy()))
        return "\n".join(filter(None, [jobs, self._grouped()]))

    def _grouped(self) -> str:
        lines = [f"a chain: {line_of(each)}" for each in self.chains.copy()]
        lines += [f"a batch: {line_of(each)}" for each in self.batches.copy()]
        lines += [f"a flow: {line_of(each)}" for each in self.flows.copy()]
        return listed(repeat(False), lines)

    # -- for qframe itself ----------------------------------------------------------------------

    def takes(self, what: Dispatchable | str | bytes) -> bool:
        """Whether a job, or a raw payload, is recorded here."""
        job = None if isinstance(what, str | bytes) else what
        name = name_in(parsed(what)) if isinstance(what, str | bytes) else ""
        if self._only is not None and not any(kind.fits(job, name) for kind in self._only):
            return False
        return not any(kind.fits(job, name) for kind in self._besides)

    def connection_for(self, original: Connection) -> RecordingConnection:
        """Returns what records in place of a connection."""
        with _changing:
            if original not in self._connections:
                stand_in = RecordingConnection(original, self._notes, self.memory)
                self._connections[original] = stand_in
            return self._connections[original]

    def _held(self) -> list[Any]:
        """Returns the dispatches made meanwhile that a variable holds unsent."""
        return [
            draft
            for draft in list(unsent)
            if not any(draft is each for each in self._before) and self.takes(draft.job)
        ]


_active: list[Fake] = []
_changing = forks.rlock()


def active() -> Fake | None:
    """Returns the innermost fake that is on."""
    return _active[-1] if _active else None


def _stand_in(
    connection: Connection, what: Dispatchable | str | bytes
) -> RecordingConnection | None:
    """Returns what takes a job in place of a connection, if a fake wants it."""
    if not isinstance(connection, RecordingConnection):
        for each in reversed(_active.copy()):
            if each.takes(what):
                return each.connection_for(connection)
    return None


def _several(targets: Iterable[Target]) -> list[Target]:
    if isinstance(targets, str):
        raise TypeError("give a list of jobs: fake(only=[SendWelcome])")
    return list(targets)


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
