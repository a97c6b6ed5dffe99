"""What is special about a job on beanstalkd: priorities, whole seconds, its lease, its attempts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from qframe import Queueable, manager
from qframe.contracts import Sizes
from qframe.dispatch import dispatch
from qframe.drivers.beanstalkd.queue import BeanstalkdQueue
from qframe.exceptions import (
    InvalidJob,
    InvalidQueueName,
    JobDefinitionError,
    LeaseLost,
)
from tests.conformance.drivers import RETRY_AFTER, BeanstalkdBench
from tests.conformance.jobs import Plain
from tests.drivers.beanstalkd.conftest import Connect
from tests.drivers.beanstalkd.support import begin, body, take
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.process import wait_for

NO_UUID = '{"job":"jobs.T","data":{"n":1}}'


class Urgent(Queueable):
    priority = 5
    job_name = "tests.urgent"

    def handle(self) -> None: ...


def priority(server: BeanstalkdServer, number: int) -> int:
    found: int = server.job(number)["pri"]
    return found


class TestPriority:
    def test_of_the_connection_the_class_and_the_dispatch(
        self, server: BeanstalkdServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = connect(server, priority=77)
        monkeypatch.setattr(queue.links, "shown", lambda: "here")
        queue.push(Plain())
        queue.push(Urgent())
        queue.bulk([Plain(), Urgent()])
        assert [take(queue).priority for _ in range(4)] == [5, 5, 77, 77]

    def test_of_a_dispatch(
        self, connect: Connect, server: BeanstalkdServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = connect(server)

        class Manager:
            @staticmethod
            def connection(name: str | None) -> BeanstalkdQueue:
                return queue

        monkeypatch.setattr(manager, "_default", Manager())
        dispatch(Urgent()).priority(2).send()
        dispatch(Plain()).priority(1).on_connection("beanstalkd").send()
        dispatch(Urgent()).send()
        assert [take(queue).priority for _ in range(3)] == [1, 2, 5]
        for wrong in (-1, 2**32, 1.5, "first"):
            with pytest.raises(InvalidJob, match="priority must be a whole number"):
                dispatch(Urgent()).priority(wrong)  # type: ignore[arg-type] # that is the point

    def test_a_class_with_a_wrong_one_is_refused(self) -> None:
        with pytest.raises(JobDefinitionError, match="priority"):
            type("Wrong", (Queueable,), {"priority": -1, "handle": lambda self: None})

    def test_is_kept_at_a_release_unless_another_is_given(self, queue: BeanstalkdQueue) -> None:
        queue.push(Urgent())
        begin(queue).release()
        job = begin(queue)
        assert job.priority == 5
        job.retry(0, "error", "no")
        job = begin(queue)
        assert job.priority == 5
        job.release(priority=9)
        assert take(queue).priority == 9

    def test_the_most_urgent_comes_first(self, queue: BeanstalkdQueue) -> None:
        for uuid, priority in (("c", 3000), ("b", 1024), ("a", 0)):
            queue.push_raw(body(uuid, priority=priority))
        assert [take(queue).uuid for _ in range(3)] == ["a", "b", "c"]

    @pytest.mark.parametrize("wrong", [-1, 2**32, "first", None, 1.5, True])
    def test_one_that_is_none_is_left_out(self, queue: BeanstalkdQueue, wrong: object) -> None:
        queue.push_raw(body("a", priority=wrong))
        assert take(queue).priority == 1024


class TestSeconds:
    def test_delays_and_leases_are_rounded_up(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        queue = connect(server, retry_after=1.2)
        assert queue.retry_after == 2
        queue.push_raw(body("a"), delay=29.1)
        (job,) = [server.job(number) for number in range(1, 10_000) if server.job(number)][:1]
        assert (job["ttr"], job["delay"]) == (2, 30)

    def test_too_long_a_release_is_refused_and_the_job_still_held(
        self, queue: BeanstalkdQueue
    ) -> None:
        queue.push_raw(body("a"))
        job = begin(queue)
        with pytest.raises(ValueError, match="100 years"):
            job.release(1e10)
        job.delete()


class TestNames:
    def test_a_colon_is_a_semicolon_there(
        self, server: BeanstalkdServer, queue: BeanstalkdQueue
    ) -> None:
        queue.push_raw(body("a"), "emails:high")
        assert server.counts("emails;high") == (1, 0, 0, 0)
        assert queue.queues() == ["emails:high"]
        assert take(queue, "emails:high").queue == "emails:high"

    def test_a_leading_hyphen_is_refused(self, queue: BeanstalkdQueue) -> None:
        with pytest.raises(InvalidQueueName, match="hyphen"):
            queue.push_raw(body("a"), "-emails")


class TestOrder:
    def test_of_two_queues_the_first_is_emptied_first(self, queue: BeanstalkdQueue) -> None:
        for number in range(6):
            queue.push_raw(body(f"low {number}"), "low")
            queue.push_raw(body(f"high {number}"), "high")
        done = None
        found = []
        while jobs := queue.reserve(["high", "low"], finished=done):
            done = jobs[0]
            assert queue.start(done)
            found.append(done.uuid)
        expected = [f"{name} {number}" for name in ("high", "low") for number in range(6)]
        assert found == expected
        assert queue.sizes("high") == queue.sizes("low") == Sizes()


class TestLease:
    def test_one_second_is_enough_when_it_is_touched(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        queue, other = connect(server, retry_after=1), connect(server, retry_after=1)
        queue.push_raw(body("a"))
        job = begin(queue)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            job.confirm()
            assert other.reserve(["default"]) == []
            time.sleep(0.1)
        job.delete()
        assert queue.size() == 0

    def test_a_job_pushed_with_a_shorter_lease_is_touched_in_its_time(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        """By a program whose retry_after is another one, as Laravel's may be."""
        connect(server, retry_after=1).push_raw(body("a"))
        queue, other = connect(server, retry_after=60), connect(server)
        job = begin(queue)
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            job.confirm()
            assert other.reserve(["default"]) == []
            time.sleep(0.1)
        job.delete()

    def test_what_others_can_delete_is_not_deleted_by_a_late_worker(
        self, bench: BeanstalkdBench
    ) -> None:
        """Its lease has ended, and nobody has reserved the job since."""
        bench.queue.push_raw(body("a"))
        job = begin(bench.queue)
        bench.forward(RETRY_AFTER + 1)
        with pytest.raises(LeaseLost):
            job.delete()
        assert bench.queue.sizes() == Sizes(ready=1)

    def test_a_late_failure_is_not_recorded(self, bench: BeanstalkdBench) -> None:
        bench.queue.push_raw(body("a"))
        job = begin(bench.queue)
        bench.forward(RETRY_AFTER + 1)
        with pytest.raises(LeaseLost):
            job.fail(ValueError("late"))
        assert bench.failed.count() == 0


class TestAttempts:
    def test_a_job_nobody_started_was_not_tried(self, queue: BeanstalkdQueue) -> None:
        queue.push_raw(body("a"))
        for _ in range(3):
            take(queue).give_back()
        queue.wait(["default"], 10)  # which takes it
        queue.let_go()
        queue.wait(["default"], 10)
        queue.close()
        job = take(queue)
        assert (job.facts.reserves, job.attempts()) == (6, 0)
        assert queue.start(job)
        assert job.attempts() == 1

    def test_a_wait_that_is_broken_off_when_a_job_comes_gives_it_back_uncounted(
        self, server: BeanstalkdServer, queue: BeanstalkdQueue
    ) -> None:
        queue.wait(["default"], 0)
        server.put(body("a").encode())
        wait_for(lambda: server.counts() == (0, 0, 1, 0), "the job to be taken by the wait")
        queue.let_go()
        assert server.counts() == (1, 0, 0, 0)
        job = take(queue)
        assert job.facts.reserves > 1
        assert job.attempts() == 0

    def test_a_wait_for_other_queues_gives_back_what_came(
        self, server: BeanstalkdServer, queue: BeanstalkdQueue
    ) -> None:
        queue.wait(["a", "b"], 0)
        server.put(body("x").encode(), "b")
        assert queue.reserve(["a"]) == []
        assert take(queue, "b").attempts() == 0

    def test_a_server_that_was_restarted_forgets_and_we_do_not(
        self, own_server: BeanstalkdServer, connect: Connect
    ) -> None:
        queue = connect(own_server)
        queue.push_raw(body("a"))
        begin(queue).retry(0, "error", "ValueError: first")
        own_server.restart(kill=True)
        for number in range(2, 5):
            job = begin(queue)
            assert job.facts.reserves == 1, "it knows of no reservation before its start"
            assert job.attempts() == number
            own_server.restart(kill=True)
        ended = [each.ended for each in begin(queue).history.attempts]
        assert ended == ["error", "", "", "", ""]

    def test_what_was_noted_is_gone_with_the_job(
        self, server: BeanstalkdServer, queue: BeanstalkdQueue
    ) -> None:
        assert queue.shared_store is not None
        store = queue.shared_store()
        for end in ("delete", "finished", "fail"):
            queue.push_raw(body(end))
            begin(queue).release()
            job = begin(queue)
            assert store.keys("beanstalkd:")
            if end == "delete":
                job.delete()
            elif end == "fail":
                job.fail(ValueError())
            else:
                queue.reserve(["default"], finished=job)
            assert store.keys("beanstalkd:") == []

    def test_a_job_that_is_done_at_first_is_not_noted(self, queue: BeanstalkdQueue) -> None:
        assert queue.shared_store is not None
        store = queue.shared_store()
        queue.push_raw(body("a"))
        job = begin(queue)
        assert store.keys("beanstalkd:") == []
        job.confirm()  # it runs for a while
        assert len(store.keys("beanstalkd:")) == 1
        job.delete()
        assert store.keys("beanstalkd:") == []


class TestBuried:
    def test_a_failed_job_can_be_buried_and_kicked_to_begin_anew(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        queue = connect(server, on_failure="bury")
        assert queue.failed_store is not None
        queue.push_raw(body("a"), "emails")
        begin(queue, "emails").retry(0, "error", "no")
        begin(queue, "emails").fail(ValueError("no"))
        assert queue.sizes("emails") == Sizes(buried=1)
        assert [each.uuid for each in queue.failed_store.page()] == ["a"]
        assert queue.kick("emails") == 1
        job = begin(queue, "emails")
        assert (job.attempts(), len(job.history.attempts)) == (1, 1)
        assert queue.failed_store.count() == 0
        job.delete()
        assert queue.shared_store is not None
        assert queue.shared_store().keys("beanstalkd:") == []

    def test_retried_it_is_not_there_twice(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        queue = connect(server, on_failure="bury")
        assert queue.failed_store is not None
        queue.push_raw(body("a"))
        begin(queue).fail(ValueError("no"))
        (record,) = queue.failed_store.page()
        assert queue.requeue(record, record.payload, queue.failed_store)
        assert queue.sizes() == Sizes(ready=1)
        assert queue.failed_store.count() == 0

    def test_without_uuid_it_is_retried_or_kicked_by_the_name_of_its_record(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        queue = connect(server, on_failure="bury")
        store = queue.failed_store
        assert store is not None
        for _ in range(2):
            queue.push_raw(NO_UUID)
            begin(queue).fail(ValueError("no"))
        record, _ = store.page()
        assert queue.requeue(record, record.payload, store)
        assert (queue.sizes(), store.count()) == (Sizes(ready=1, buried=1), 1)
        begin(queue).delete()
        assert queue.kick() == 1
        begin(queue).delete()
        assert store.count() == 0
        assert queue.shared_store is not None
        assert queue.shared_store().keys("beanstalkd:buried:") == []

    @pytest.mark.parametrize(
        ("first", "other"),
        [
            (body("a"), body("b")),
            (NO_UUID, NO_UUID.replace("1", "2")),
            (NO_UUID, body("b")),
            (body("a"), NO_UUID),
        ],
    )
    def test_numbers_that_begin_anew_mix_up_no_two_failed_jobs(
        self, tmp_path: Path, connect: Connect, first: str, other: str
    ) -> None:
        with BeanstalkdServer(tmp_path / "forgetful", log=False) as server:
            queue = connect(server, on_failure="bury")
            store = queue.failed_store
            assert store is not None
            queue.push_raw(first)
            begin(queue).fail(ValueError("no"))
            (record,) = store.page()
            server.restart()
            queue.close()
            queue.push_raw(other)
            job = begin(queue)
            assert job.number == 1, "that is the point"
            job.fail(ValueError("no"))
            assert store.count() == 2
            assert queue.requeue(record, record.payload, store)
            assert queue.sizes() == Sizes(ready=1, buried=1)
            assert [each.payload for each in store.page()] == [other.encode()]

    def test_kick_leaves_delayed_jobs_alone(self, queue: BeanstalkdQueue) -> None:
        """The server's own `kick` would make these ready where nothing is buried."""
        queue.push_raw(body("late"), delay=60)
        assert queue.kick() == 0
        for name in ("a", "b"):
            queue.push_raw(body(name))
            begin(queue).bury()
        assert queue.kick() == 2
        assert queue.sizes() == Sizes(ready=2, delayed=1)


def test_tubes_that_are_no_queues_of_ours_are_not_among_them(
    connect: Connect, server: BeanstalkdServer
) -> None:
    queue = connect(server)
    server.put(b"{}", tube="a+b")
    server.put(b"{}", tube="fine")
    assert queue.queues() == ["fine"]
