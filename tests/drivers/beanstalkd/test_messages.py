"""What beanstalkd makes of queues, seconds, priorities and leases; what is noted of attempts."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.queue import Sizes
from qframe.contracts.step import (
    APPLIED,
    LOST,
    Bury,
    Delete,
    Operation,
    Outcome,
    Push,
    Release,
    Renew,
    Set,
    Start,
    Step,
)
from qframe.drivers.beanstalkd.backend import BeanstalkdBackend
from qframe.drivers.memory.backend import MemoryBackend
from qframe.exceptions import BackendUnavailable, InvalidQueueName
from tests.drivers.beanstalkd.acts import LEASE, begin, delete, do, give_back, push, take
from tests.drivers.beanstalkd.conftest import Connect
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.later import LaterServer
from tests.support.process import wait_for


def noted(facts: Backend) -> list[tuple[str, str]]:
    return facts.scan("beanstalkd:")


class TestMessages:
    def test_come_back_byte_for_byte_in_order(self, backend: BeanstalkdBackend) -> None:
        bodies = [b"", b"\r\n", bytes(range(256)), b"a", b"a"]
        push(backend, *bodies)
        first: list[Step] = []
        found = []
        while True:
            jobs, results = backend.reserve(["default"], 5, first=first)
            assert results == [APPLIED] * len(first)
            if not jobs:
                break
            assert backend.apply(Step(jobs[0], Start(LEASE))) == [APPLIED]
            assert jobs[0].attempts == 1
            found.append(jobs[0].raw_body)
            first = [jobs[0].delete()]
        assert found == bodies
        assert backend.sizes("default") == Sizes()

    def test_of_two_queues_the_first_is_emptied_first(self, backend: BeanstalkdBackend) -> None:
        for queue in ("low", "high"):
            push(backend, *(b"%b %d" % (queue.encode(), n) for n in range(4)), queue=queue)
        found = []
        first: list[Step] = []
        for _ in range(8):
            (job,), _ = backend.reserve(["high", "low"], first=first)
            found.append(job.raw_body)
            assert job.queue.encode() in job.raw_body
            first = [job.delete()]
        assert found == [b"%b %d" % (queue, n) for queue in (b"high", b"low") for n in range(4)]

    def test_priorities(self, backend: BeanstalkdBackend, server: BeanstalkdServer) -> None:
        for raw, priority in ((b"c", None), (b"b", 7), (b"a", 0), (b"d", 2**40)):
            backend.apply(Step(None, Push("default", raw, priority=priority)))
        job = take(backend)
        assert job.raw_body == b"a"
        assert do(backend, job, Release(priority=9)) is Outcome.APPLIED
        found = [begin(backend) for _ in range(4)]
        assert [each.raw_body for each in found] == [b"b", b"a", b"c", b"d"]
        assert server.job(found[1].number)["pri"] == 9
        assert server.job(found[3].number)["pri"] == 2**32 - 1

    def test_delays_and_leases_are_rounded_up(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        backend = connect(server, retry_after=1.2)
        push(backend, b"a", delay=59.1)
        assert backend.sizes("default") == Sizes(delayed=1)
        (number,) = [each for each in range(1, 10_000) if server.job(each).get("delay") == 60]
        assert server.job(number)["ttr"] == 2
        with pytest.raises(ValueError, match="at most"):
            push(backend, b"b", delay=2.0**33)

    def test_names(self, backend: BeanstalkdBackend, server: BeanstalkdServer) -> None:
        push(backend, b"a", queue="emails:high")
        server.put(b"{}", tube="a+b")
        assert server.counts("emails;high")[0] == 1
        assert backend.queues() == ["emails:high"]
        assert take(backend, "emails:high").queue == "emails:high"
        for wrong in ("-a", "a b", "a\r\nquit", "ä"):
            with pytest.raises(InvalidQueueName):
                backend.check_queue(wrong)
            with pytest.raises(InvalidQueueName):
                push(backend, b"", queue=wrong)

    def test_kick_and_purge_leave_the_others(self, backend: BeanstalkdBackend) -> None:
        push(backend, b"late", delay=60)
        assert backend.kick("default") == 0
        for raw in (b"a", b"b"):
            push(backend, raw)
            assert do(backend, begin(backend), Bury()) is Outcome.APPLIED
        assert backend.sizes("default") == Sizes(delayed=1, buried=2)
        assert backend.purge("default") == 1
        assert backend.kick("default") == 2
        assert backend.sizes("default") == Sizes(ready=2)
        assert backend.purge("default") == 2

    def test_other_steps_are_refused(self, backend: BeanstalkdBackend) -> None:
        push(backend, b"a")
        job = take(backend)
        others: list[Step] = [
            Step(None, Set("k", "v")),
            Step(None, Delete()),
            Step(job),
            Step(job, Delete(), Push("q", b"")),
            Step(job, Push("q", b"")),
        ]
        for step in others:
            with pytest.raises(TypeError):
                backend.apply(Step(None, Push("default", b"x")), step)
        assert backend.sizes("default") == Sizes(reserved=1)
        assert not Capability.AHEAD & backend.capabilities


class TestLease:
    def test_a_short_one_is_enough_when_it_is_renewed(
        self, later: LaterServer, connect: Connect
    ) -> None:
        """Also where the message was pushed for a shorter lease than ours."""
        push(connect(later, retry_after=20), b"a")
        backend, other = connect(later), connect(later)
        job = begin(backend)
        assert job.lease == 20
        for _ in range(4):
            later.forward(9)
            backend.timing.skew += 9
            assert do(backend, job, Renew(job.lease)) is Outcome.APPLIED
            assert other.reserve(["default"]) == ([], [])
        delete(backend, job)

    @pytest.mark.parametrize("last", [Delete(), Release(), Bury(), Renew(1), Start(1)], ids=repr)
    def test_a_late_worker_changes_nothing(
        self, later: LaterServer, connect: Connect, facts: Backend, last: Operation
    ) -> None:
        """Though its lease has ended, and the server would let anybody delete the message."""
        backend = connect(later)
        push(backend, b"a")
        job = begin(backend)
        later.forward(61)
        backend.timing.skew = 61
        assert later.counts() == (1, 0, 0, 0)
        assert backend.apply(Step(job, last)) == [LOST]
        assert (later.counts(), noted(facts)) == ((1, 0, 0, 0), [])
        assert backend.reserve(["default"], first=[Step(job, last)])[1] == [LOST]
        later.empty()

    def test_one_that_this_connection_reserves_again_is_lost(
        self, later: LaterServer, connect: Connect
    ) -> None:
        """Though to the server both reservations are one."""
        backend = connect(later)
        push(backend, b"a")
        job = begin(backend)
        later.forward(61)
        backend.timing.skew = 61
        again = begin(backend)
        for late in (Renew(1), Release(), Delete()):
            assert backend.apply(Step(job, late)) == [LOST]
        assert later.counts() == (0, 0, 1, 0)
        delete(backend, again)

    def test_a_settled_one_is_lost(self, backend: BeanstalkdBackend) -> None:
        push(backend, b"a", b"b")
        job = begin(backend)
        delete(backend, job)
        assert backend.apply(Step(job, Delete()), Step(job, Renew(1))) == [LOST, LOST]
        again = begin(backend)
        give_back(backend, again)
        assert do(backend, again, Delete()) is Outcome.LOST
        assert backend.reserve([], first=[Step(again, Delete())]) == ([], [LOST])

    def test_another_thread_renews_it(self, backend: BeanstalkdBackend) -> None:
        push(backend, b"a")
        job = begin(backend)
        heard = []
        thread = threading.Thread(target=lambda: heard.extend(backend.apply(Step(job, Renew(9)))))
        thread.start()
        thread.join()
        assert heard == [APPLIED]
        delete(backend, job)

    def test_a_forked_child_has_connections_of_its_own(self, backend: BeanstalkdBackend) -> None:
        push(backend, b"a", b"b")
        job = begin(backend)

        child = os.fork()
        if not child:
            try:
                assert backend.apply(Step(job, Delete())) == [LOST]
                delete(backend, begin(backend))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        delete(backend, job)
        assert backend.sizes("default") == Sizes()


class TestAttempts:
    def test_a_message_done_at_first_costs_no_fact(
        self, server: BeanstalkdServer, connect: Connect, facts: Backend
    ) -> None:
        def none() -> Backend:
            raise AssertionError("it was asked for")

        backend = BeanstalkdBackend("b", connect(server).settings, none)
        push(backend, b"a")
        job = begin(backend, notes=b"n")
        delete(backend, job)
        backend.close()
        backend = connect(server)
        push(backend, b"b")
        job = begin(backend, notes=b"n")
        assert do(backend, job, Renew(60)) is Outcome.APPLIED  # it lasts
        assert len(noted(facts)) == 1
        delete(backend, job)
        assert noted(facts) == []

    def test_one_nobody_started_was_not_tried(self, backend: BeanstalkdBackend) -> None:
        push(backend, b"a")
        for _ in range(3):
            give_back(backend, take(backend))
        backend.wait(["default"], 10)  # which takes it
        backend.close()
        backend.wait(["default"], 10)
        job = take(backend)
        assert (job.reserves, job.attempts) == (5, 0)
        assert do(backend, job, Start(LEASE)) is Outcome.APPLIED
        assert do(backend, job, Start(LEASE)) is Outcome.APPLIED
        assert job.attempts == 1
        give_back(backend, job)
        assert take(backend).attempts == 0

    def test_notes_come_with_the_next_reservation(
        self, backend: BeanstalkdBackend, facts: Backend
    ) -> None:
        push(backend, b"a")
        notes = bytes(range(256))
        do(backend, begin(backend, notes=notes), Release())
        job = take(backend)
        assert (job.notes, job.attempts) == (notes, 1)
        do(backend, job, Start(LEASE, b"2"))
        do(backend, job, Bury(b"buried"))
        assert backend.kick("default") == 1
        job = begin(backend, notes=b"3")
        assert (job.notes, job.attempts) == (b"3", 3)
        delete(backend, job)
        assert noted(facts) == []

    @pytest.mark.parametrize("lasts", [False, True])
    def test_a_worker_that_died_has_tried(
        self, server: BeanstalkdServer, connect: Connect, *, lasts: bool
    ) -> None:
        backend = connect(server)
        push(backend, b"a")
        job = begin(backend, notes=b"started")
        if lasts:
            do(backend, job, Renew(60))
        backend.close()
        job = take(connect(server))
        assert (job.attempts, job.notes) == (1, b"started" if lasts else b"")

    @pytest.mark.parametrize("end", [Release(), Bury(), None], ids=repr)
    def test_a_worker_may_have_died_where_none_said_how_it_ended(
        self, server: BeanstalkdServer, connect: Connect, end: Release | Bury | None
    ) -> None:
        """Only then is it worth while to wait for a note of its pool's."""
        backend = connect(server)
        push(backend, b"a")
        job = begin(backend)
        assert not job.worker_died
        if end is not None:
            do(backend, job, end)
            backend.kick("default")
        else:
            backend.close()
        assert take(backend).worker_died is (end is None)

    def test_a_server_that_was_restarted_forgets_and_we_do_not(
        self, own_server: BeanstalkdServer, connect: Connect
    ) -> None:
        backend = connect(own_server)
        push(backend, b"a")
        do(backend, begin(backend), Release(notes=b"1"))
        for number in range(2, 5):
            own_server.restart(kill=True)
            job = begin(backend, notes=b"%d" % number)
            assert job.reserves == 1, "it knows of no reservation before its start"
            assert job.attempts == number
        own_server.restart(kill=True)
        assert take(backend).notes == b"4"

    def test_two_messages_of_the_same_bytes_are_noted_apart(
        self, backend: BeanstalkdBackend
    ) -> None:
        push(backend, b"a")
        do(backend, begin(backend), Release(delay=60, notes=b"first"))
        push(backend, b"a")
        assert take(backend).notes == b""

    def test_numbers_that_begin_anew_mix_up_no_two_messages(
        self, tmp_path: Path, connect: Connect
    ) -> None:
        with BeanstalkdServer(tmp_path / "forgetful", log=False) as server:
            backend = connect(server)
            push(backend, b"a")
            job = begin(backend)
            do(backend, job, Release(notes=b"of a"))
            server.restart()
            backend.close()
            push(backend, b"b")
            give_back(backend, take(backend))
            again = take(backend)
            assert again.number == job.number, "that is the point"
            assert (again.notes, again.attempts) == (b"", 0)

    def test_without_facts_it_works_on_as_the_server_counts(
        self,
        backend: BeanstalkdBackend,
        facts: MemoryBackend,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def away(*_: object) -> list[str | None]:
            raise BackendUnavailable("away")

        monkeypatch.setattr(facts, "apply", away)
        monkeypatch.setattr(facts, "read", away)
        push(backend, b"a")
        do(backend, begin(backend), Release())
        job = begin(backend)
        assert job.attempts == 2
        assert "facts cannot be reached" in caplog.text
        delete(backend, job)


class TestAdopt:
    def test_the_next_reservation_learns_how_it_ended(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        worker, pool = connect(server), connect(server)
        push(worker, b"a")
        fence = begin(worker, notes=b"began").fence
        worker.close()
        left = pool.adopt(fence)
        assert left is not None
        assert (left.raw_body, left.attempts, left.notes) == (b"a", 1, b"began")
        assert pool.apply(Step(left, Delete())) == [LOST]
        assert pool.apply(Step(left, Release(9, notes=b"died"))) == [APPLIED]
        job = take(pool)
        assert (job.attempts, job.notes) == (1, b"died")

    def test_one_that_has_it_already_learns_by_a_renewal(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        worker, pool, other = connect(server), connect(server), connect(server)
        push(worker, b"a")
        fence = begin(worker, notes=b"began").fence
        worker.close()
        job = take(other)
        left = pool.adopt(fence)
        assert left is not None
        assert pool.apply(Step(left, Renew(1)), Step(left, Release(notes=b"died"))) == [
            APPLIED, APPLIED,
        ]  # fmt: skip
        assert job.notes == b""
        assert do(other, job, Renew(1)) is Outcome.APPLIED
        assert (job.notes, job.attempts) == (b"died", 1)

    def test_its_attempt_may_be_left_out(self, server: BeanstalkdServer, connect: Connect) -> None:
        worker, pool = connect(server), connect(server)
        push(worker, b"a")
        fence = begin(worker).fence
        worker.close()
        left = pool.adopt(fence)
        assert left is not None
        assert pool.apply(Step(left, Release(counted=False))) == [APPLIED]
        assert take(pool).attempts == 0

    @pytest.mark.parametrize("end", [Delete(), Release(60), Release(), Bury()], ids=repr)
    def test_one_that_was_settled_is_not_there(
        self, backend: BeanstalkdBackend, end: Delete | Release | Bury
    ) -> None:
        push(backend, b"a")
        job = begin(backend)
        fence = job.fence
        do(backend, job, end)
        assert backend.adopt(fence) is None

    def test_who_started_it_since_is_not_overwritten(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        worker, pool, other = connect(server), connect(server), connect(server)
        push(worker, b"a")
        fence = begin(worker).fence
        worker.close()
        left = pool.adopt(fence)
        assert left is not None
        do(other, begin(other, notes=b"second"), Release())
        assert pool.apply(Step(left, Release(notes=b"died"))) == [LOST]
        assert pool.adopt(fence) is None
        assert take(other).notes == b"second"


class TestWait:
    def test_ends_when_a_message_comes_and_the_next_reserve_gives_it(
        self, server: BeanstalkdServer, backend: BeanstalkdBackend
    ) -> None:
        timer = threading.Timer(0.2, server.put, (b"x", "b"))
        began = time.monotonic()
        timer.start()
        backend.wait(["a", "b"], 60)
        assert 0.1 < time.monotonic() - began < 30
        job = take(backend, "a", "b")
        assert (job.queue, job.raw_body, job.attempts) == ("b", b"x", 0)
        delete(backend, job)

    def test_a_reserve_finds_what_was_pushed_before_it(self, backend: BeanstalkdBackend) -> None:
        for _ in range(50):
            backend.wait(["default"], 0)
            assert backend.reserve(["default"]) == ([], [])
            push(backend, b"x")
            delete(backend, begin(backend))

    def test_a_byte_on_wake_ends_it(self, backend: BeanstalkdBackend) -> None:
        reader, writer = os.pipe()
        timer = threading.Timer(0.2, os.write, (writer, b"\0"))
        timer.start()
        began = time.monotonic()
        backend.wait(["default"], 60, reader)
        assert time.monotonic() - began < 30
        timer.join()
        os.close(reader)
        os.close(writer)

    def test_it_is_over_after_its_time_and_goes_on(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        backend = connect(server, block_for=1)
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            assert backend.reserve(["default"]) == ([], [])
            backend.wait(["default"], 0.2)
        server.put(b"x")
        backend.wait(["default"], 5)
        assert take(backend).attempts == 0

    @pytest.mark.parametrize("comes", [False, True])
    def test_closing_ends_it_and_gives_back_what_it_took(
        self, server: BeanstalkdServer, backend: BeanstalkdBackend, *, comes: bool
    ) -> None:
        backend.wait(["default"], 0)
        if comes:
            server.put(b"x")
            wait_for(lambda: server.counts() == (0, 0, 1, 0), "the message to be taken")
        began = time.monotonic()
        backend.close()
        assert time.monotonic() - began < 30
        assert server.counts() == (comes, 0, 0, 0)
        assert server.stats()["current-jobs-ready"] == comes, "nothing of ours is left"
        if comes:
            job = take(backend)
            assert (job.reserves, job.attempts) == (2, 0)

    def test_one_for_other_queues_is_ended_and_gives_back_what_came(
        self, server: BeanstalkdServer, backend: BeanstalkdBackend
    ) -> None:
        backend.wait(["a", "b"], 0)
        server.put(b"x", "b")
        assert backend.reserve(["a"]) == ([], [])
        backend.wait(["b"], 5)
        backend.wait(["a"], 0)
        assert take(backend, "b").attempts == 0
        assert server.stats()["current-jobs-ready"] == 0

    def test_a_pause_gives_back_what_came(
        self, server: BeanstalkdServer, backend: BeanstalkdBackend
    ) -> None:
        """A wait on no queue at all neither keeps it nor returns at once."""
        server.put(b"x")
        backend.wait(["default"], 5)
        assert server.counts() == (0, 0, 1, 0)
        began = time.monotonic()
        backend.wait([], 0.2)
        assert time.monotonic() - began > 0.1
        assert server.counts() == (1, 0, 0, 0)
        assert take(backend).attempts == 0

    def test_of_a_server_that_drains(self, own_server: BeanstalkdServer, connect: Connect) -> None:
        """It takes no message that would end the wait: the connection is closed for it."""
        backend = connect(own_server)
        backend.wait(["a"], 0)
        own_server.refuse_puts()
        assert backend.reserve(["b"]) == ([], [])
        assert own_server.stats()["current-waiting"] == 0

    def test_leases_are_renewed_meanwhile(self, later: LaterServer, connect: Connect) -> None:
        """Of several messages that one thread holds: it waits on another connection."""
        server, backend = later, connect(later, retry_after=20)
        push(backend, b"a", b"b")
        jobs = [begin(backend), begin(backend)]
        for _ in range(4):
            later.forward(9)
            backend.timing.skew += 9
            backend.wait(["default"], 0.1)
            results = backend.apply(*(Step(job, Renew(20)) for job in jobs))
            assert results == [APPLIED, APPLIED]
        server.put(b"c")
        backend.wait(["default"], 60)
        jobs.append(begin(backend))
        for job in jobs:
            delete(backend, job)
        assert server.stats()["current-connections"] <= 4 + 1
        assert backend.sizes("default") == Sizes()

    def test_a_server_that_restarts_meanwhile(
        self, own_server: BeanstalkdServer, connect: Connect
    ) -> None:
        backend = connect(own_server)
        backend.wait(["default"], 0)
        own_server.restart()
        own_server.put(b"x")
        backend.wait(["default"], 5)
        assert take(backend).raw_body == b"x"
