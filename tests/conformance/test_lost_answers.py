"""A request whose answer was lost is said again by the backend, and counts once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.step import (
    Add,
    Arrive,
    Bury,
    Close,
    Delete,
    Expect,
    Extend,
    Forget,
    Open,
    Operation,
    Push,
    Record,
    Release,
    Renew,
    Result,
    Set,
    Start,
    Step,
)
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.connection import Session
from qframe.drivers.database.marks import Marks
from qframe.drivers.database.settings import DatabaseSettings
from qframe.testing.conformance import Bench
from qframe.testing.conformance.steps import (
    QUEUE,
    apply,
    drained,
    failed,
    push,
    reserve,
    started,
    tried,
)
from tests.conformance.backends import NAME, LossyRedisBench, named
from tests.support.proxy import Mode, Proxy
from tests.support.sql_server import SqlServer


class LossySqlBench(Bench):
    """A server of SQL behind a proxy that loses the answer to the next statement."""

    server: ClassVar[str]
    only: ClassVar[bytes | None] = None
    """What the statement has to hold."""

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        server: SqlServer = request.getfixturevalue(self.server)
        server.prepared()
        self._proxy = Proxy(*server.address)
        self._url = server.url_at(self._proxy.port)

    def make(self) -> Backend:
        return DatabaseBackend(NAME, DatabaseSettings(url=self._url, listen=False), self.timing)

    @property
    def losses(self) -> int:
        return self._proxy.faults

    def lose_answer(self) -> bool:
        self._proxy.switch(Mode.CUT_AFTER_REQUEST, only=self.only, times=1)
        return True

    def keep_answers(self) -> None:
        self._proxy.switch(Mode.PASS)

    def refuse_once(self) -> None:
        """Let the next request be lost, which is that of a new connection."""
        self._proxy.switch(Mode.CUT_REQUEST, times=1)

    def close(self) -> None:
        super().close()
        self._proxy.close()


class LossyPostgresBench(LossySqlBench):
    server = "postgres_running"


class LossyPostgresCommitBench(LossyPostgresBench):
    slow = long = True
    only = b"COMMIT"


class LossyMariadbBench(LossySqlBench):
    slow = True
    server = "mariadb_running"


class LossyMariadbCommitBench(LossyMariadbBench):
    only = b"COMMIT"


_LOSSY: dict[str, type[Bench]] = {
    "redis": LossyRedisBench,
    "postgresql": LossyPostgresBench,
    "postgresql commits": LossyPostgresCommitBench,
    "mariadb": LossyMariadbBench,
    "mariadb commits": LossyMariadbCommitBench,
}


@pytest.fixture(params=named(_LOSSY))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made: Bench = request.param(request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def backend(bench: Bench) -> Backend:
    backend = bench.open()
    backend.reserve(["none"])  # it is connected
    return backend


def heard_late(bench: Bench, backend: Backend, *steps: Step) -> list[Result]:
    """Apply steps in one exchange whose first answer is lost."""
    backend.read("none")  # it is connected
    assert bench.lose_answer()
    results = backend.apply(*steps)
    bench.keep_answers()
    return results


def applied(bench: Bench, backend: Backend, *steps: Step) -> None:
    assert all(as_settled(heard_late(bench, backend, *steps)))


def as_settled(results: list[Result]) -> list[bool]:
    """Whether each was applied, as whoever settles decides."""
    return [result.of_end(unanswered=False).applied for result in results]


@pytest.mark.parametrize("delay", [0, 30])
def test_a_message_is_pushed_once(bench: Bench, backend: Backend, delay: float) -> None:
    applied(bench, backend, Step(None, Push(QUEUE, b"1", delay)))
    bench.pass_time(40)
    assert drained(backend) == [b"1"]


def test_of_many_messages_each_is_pushed_once(bench: Bench, backend: Backend) -> None:
    raws = [b"%d" % number for number in range(300)]
    applied(bench, backend, *(Step(None, Push(QUEUE, raw)) for raw in raws))
    assert drained(backend) == raws


def test_the_same_bytes_are_pushed_as_often_as_it_was_said(bench: Bench, backend: Backend) -> None:
    push(backend, b"same")
    applied(bench, backend, *[Step(None, Push(QUEUE, b"same"))] * 2)
    assert drained(backend) == [b"same"] * 3


def test_a_number_is_added_once(bench: Bench, backend: Backend) -> None:
    applied(bench, backend, Step(None, Add("n", 2), Add("n", 3)))
    assert backend.read("n") == ["5"]


def test_an_expectation_that_its_own_step_has_changed_is_met(
    bench: Bench, backend: Backend
) -> None:
    applied(bench, backend, Step(None, Expect("lock", None), Set("lock", "mine")))
    assert backend.read("lock") == ["mine"]
    result = tried(backend, None, Expect("lock", None))
    assert not result.applied
    assert heard_late(bench, backend, Step(None, Expect("lock", None))) == [result]


def test_a_record_is_forgotten_and_its_job_pushed_once(bench: Bench, backend: Backend) -> None:
    apply(backend, None, Record(failed("u1")))
    applied(bench, backend, Step(None, Forget("u1"), Push(QUEUE, b"again")))
    assert drained(backend) == [b"again"]


def test_a_latch_pushes_once(bench: Bench, backend: Backend) -> None:
    apply(backend, None, Open("latch", Push(QUEUE, b"then")))
    applied(bench, backend, Step(None, Extend("latch", 1), Push(QUEUE, b"member")))
    applied(bench, backend, Step(None, Close("latch")))
    applied(bench, backend, Step(None, Arrive("latch", 0)))
    assert drained(backend) == [b"member", b"then"]


@pytest.mark.parametrize(
    "operation",
    [Start(60), Renew(60), Delete(), Release(), Release(60), Release(front=True), Bury()],
    ids=repr,
)
@pytest.mark.parametrize("runs", [True, False], ids=["started", "held"])
def test_what_becomes_of_a_reservation_is_done_once(
    bench: Bench, backend: Backend, runs: bool, operation: Operation
) -> None:
    push(backend, b"1")
    job = started(backend) if runs else reserve(backend)
    attempts = runs or isinstance(operation, Start)
    applied(bench, backend, Step(job, operation))
    assert job.attempts == attempts
    bench.pass_time(70)
    backend.kick(QUEUE)
    if isinstance(operation, Delete):
        assert not drained(backend)
    else:
        assert reserve(backend).attempts == attempts
        assert not drained(backend)


def test_a_job_that_hands_over_to_the_next_does_so_once(bench: Bench, backend: Backend) -> None:
    push(backend, b"1")
    applied(bench, backend, Step(started(backend), Push(QUEUE, b"2"), Add("n", 1), Delete()))
    assert backend.read("n") == ["1"]
    assert drained(backend) == [b"2"]
    bench.pass_time(70)
    assert drained(backend) == [b"2"]


def test_what_was_reserved_unheard_comes_back(bench: Bench, backend: Backend) -> None:
    push(backend, b"1", b"2")
    done = started(backend)
    bench.lose_answer()
    jobs, results = backend.reserve([QUEUE], 5, first=[done.delete(), Step(None, Add("n", 1))])
    assert as_settled(results) == [True, True]
    assert backend.read("n") == ["1"]
    found = [job.raw_body for job in jobs]
    if not found:
        bench.pass_time(bench.timing.hold + 1)
        (job,) = backend.reserve([QUEUE], 5)[0]
        assert job.attempts == 0
        found = [job.raw_body]
    assert found == [b"2"]
    bench.pass_time(70)
    assert drained(backend) == [b"2"]


def test_a_start_that_was_told_and_not_answered_counts_once(bench: Bench, backend: Backend) -> None:
    push(backend, b"1")
    job = reserve(backend)
    heard: list[Result] = []
    bench.lose_answer()
    backend.apply_async([Step(job, Start(60))], heard.extend)
    apply(backend, job, Release())
    assert [result.applied for result in heard] == [True]
    assert reserve(backend).attempts == 1


def test_what_found_no_connection_at_first_is_done(bench: Bench, backend: Backend) -> None:
    if not isinstance(bench, LossySqlBench):
        pytest.skip("the others have no numbers that go on")
    push(backend, b"1")
    backend.close()
    bench.refuse_once()
    push(backend, b"2")
    assert bench.losses == 1
    assert drained(backend) == [b"1", b"2"]


@pytest.mark.parametrize("bench", named({"mariadb": LossyMariadbBench}), indirect=True)
def test_the_connection_that_found_out_goes_on_as_it_was(
    bench: Bench, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(backend, DatabaseBackend)
    seen: list[tuple[int, int]] = []

    def look(session: Session) -> None:
        session.cursor.execute("SELECT CONNECTION_ID(), @@innodb_lock_wait_timeout")
        seen.append(session.cursor.fetchone())

    def is_done(self: Marks, session: Session) -> bool:
        look(session)
        return found_out(self, session)

    found_out = Marks.is_done
    monkeypatch.setattr(Marks, "is_done", is_done)
    applied(bench, backend, Step(None, Set("key", "1"), Add("n", 1)))
    with backend.database.session() as session:
        look(session)
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_it_is_able_to_lose_answers(bench: Bench, backend: Backend) -> None:
    assert Capability.JOINT in backend.capabilities
    applied(bench, backend, Step(None, Set("key", "value")))
    assert isinstance(bench, LossyRedisBench | LossySqlBench)
    assert bench.losses == 1
