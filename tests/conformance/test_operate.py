"""Looking after the queues: counting, listing, clearing, queueing failed jobs again."""

from __future__ import annotations

import time

import pytest

from qframe.contracts import Capability
from qframe.drivers.base import BaseQueue
from qframe.exceptions import InvalidQueueName
from tests.conformance.drivers import RETRY_AFTER, Bench
from tests.conformance.jobs import Plain
from tests.conformance.steps import at, begin, drain, push, take, until, uuids


def test_ping_says_in_a_few_words_what_answers(bench: Bench) -> None:
    assert 0 < len(bench.queue.ping()) < 100


def test_warnings_are_sentences(bench: Bench) -> None:
    assert all(len(text) > 10 for text in bench.queue.warnings())


def test_described_is_a_word_or_two(bench: Bench) -> None:
    assert "\n" not in bench.queue.described()


def test_a_closed_connection_opens_again(bench: Bench) -> None:
    bench.queue.push(Plain())
    bench.queue.close()
    bench.queue.close()
    assert bench.queue.push(Plain())


def test_it_names_itself(bench: Bench) -> None:
    assert bench.queue.name == "here"
    assert bench.queue.default_queue == "default"
    assert bench.queue.retry_after == RETRY_AFTER
    assert isinstance(bench.queue, BaseQueue)


@pytest.mark.needs(Capability.SIZE | Capability.DELAY | Capability.BURY)
class TestSizes:
    def test_each_state_is_counted(self, bench: Bench) -> None:
        push(bench, "ready 1", "ready 2", "reserved", "buried")
        push(bench, "delayed", delay=30)
        push(bench, "elsewhere", queue="emails")
        assert bench.queue.sizes() == at(ready=4, delayed=1)
        ready, _, reserved, buried = (take(bench) for _ in range(4))
        assert bench.queue.start(reserved)
        buried.bury()
        ready.release()
        assert bench.queue.sizes() == at(ready=1, delayed=1, reserved=2, buried=1)
        assert bench.queue.size() == 4
        assert bench.queue.sizes("emails") == at(ready=1)
        assert bench.queue.sizes("nothing") == at()
        assert bench.queue.size("nothing") == 0

    def test_a_queue_name_that_is_none_is_refused(self, bench: Bench) -> None:
        for call in (bench.queue.size, bench.queue.sizes, bench.queue.clear, bench.queue.kick):
            with pytest.raises(InvalidQueueName):
                call("has space")


@pytest.mark.needs(Capability.CLEAR | Capability.SIZE | Capability.DELAY | Capability.BURY)
class TestClear:
    def test_ready_and_delayed_jobs_go_and_reserved_ones_are_left_to_finish(
        self, bench: Bench
    ) -> None:
        push(bench, "buried", "started", "held", "ready")
        push(bench, "delayed", delay=30)
        push(bench, "elsewhere", queue="emails")
        begin(bench).bury()
        started, held = begin(bench), take(bench)
        assert bench.queue.clear() == 2
        assert bench.queue.clear() == 0
        assert bench.queue.sizes() == at(reserved=2, buried=1)
        assert bench.queue.size("emails") == 1
        started.delete()
        held.release()
        assert bench.queue.sizes() == at(ready=1, buried=1)
        assert bench.queue.clear("emails") == 1

    @pytest.mark.needs(Capability.RESERVE)
    def test_jobs_whose_lease_ran_out_go_as_well(self, bench: Bench) -> None:
        push(bench, *(f"killed {number}" for number in range(3)))
        for _ in range(3):
            begin(bench)
        bench.forward(RETRY_AFTER + 2)
        push(bench, "started", "ready")
        assert bench.queue.sizes().total == 5
        assert bench.queue.clear() == 5
        assert drain(bench.queue) == []


@pytest.mark.needs(Capability.LIST | Capability.DELAY)
class TestQueues:
    def test_queues_with_jobs_are_named_in_order(self, bench: Bench) -> None:
        assert bench.queue.queues() == []
        push(bench, "1", queue="zebra")
        push(bench, "2", queue="ant:1.x_y-Z")
        push(bench, "3", queue="late", delay=30)
        begin(bench, "zebra")
        assert bench.queue.queues() == ["ant:1.x_y-Z", "late", "zebra"]
        begin(bench, "ant:1.x_y-Z").delete()
        assert bench.queue.queues() == ["late", "zebra"]


@pytest.mark.needs(Capability.RESERVE)
class TestRequeue:
    def test_a_failed_job_is_ready_again_and_its_record_gone(self, bench: Bench) -> None:
        push(bench, "a", queue="emails")
        begin(bench, "emails").fail(ValueError("no"))
        record = bench.failed.find("a")
        assert record is not None
        assert bench.queue.requeue(record, record.payload, bench.failed)
        assert bench.failed.count() == 0
        job = begin(bench, "emails")
        assert (job.uuid, job.raw_body, job.attempts()) == ("a", record.payload, 1)

    def test_the_payload_given_is_what_is_queued(self, bench: Bench) -> None:
        push(bench, "a")
        begin(bench).fail(ValueError("no"))
        record = bench.failed.find("a")
        assert record is not None
        changed = record.payload.replace(b"Test", b"Changed")
        assert bench.queue.requeue(record, changed, bench.failed)
        assert take(bench).raw_body == changed

    @pytest.mark.needs(Capability.ATOMIC_FAIL)
    def test_one_that_is_gone_meanwhile_is_not_queued(self, bench: Bench) -> None:
        push(bench, "a")
        begin(bench).fail(ValueError("no"))
        record = bench.failed.find("a")
        assert record is not None
        assert bench.failed.forget("a")
        assert not bench.queue.requeue(record, record.payload, bench.failed)
        assert bench.queue.reserve(["default"]) == []

    def test_into_another_store_it_is_pushed_before_its_record_goes(self, bench: Bench) -> None:
        """Where queue and failed store share nothing."""
        from tests.plugins.memory_driver.qframe_memory import Memory, MemoryFailedStore

        elsewhere = MemoryFailedStore(Memory())
        bench.queue.failed_store = elsewhere
        push(bench, "a")
        begin(bench).fail(ValueError("no"))
        record = elsewhere.find("a")
        assert record is not None
        assert bench.failed.count() == 0
        seen = []

        class Watching(MemoryFailedStore):
            def forget(self, uuid: str) -> bool:
                seen.extend(uuids(bench.queue.reserve(["default"])))
                return super().forget(uuid)

        assert bench.queue.requeue(record, record.payload, Watching(elsewhere.memory))
        assert seen == ["a"]
        assert elsewhere.count() == 0

    @pytest.mark.needs(Capability.ATOMIC_FAIL | Capability.DURABLE)
    @pytest.mark.in_client
    def test_interrupted_half_way_it_is_where_it_was(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        push(bench, "a")
        begin(bench).fail(ValueError("no"))
        record = bench.failed.find("a")
        assert record is not None
        store = bench.failed
        forget = store.forget

        def interrupted(uuid: str) -> bool:
            assert forget(uuid)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(store, "forget", interrupted)
            with pytest.raises(KeyboardInterrupt):
                bench.queue.requeue(record, record.payload, store)
        assert bench.failed.count() == 1
        assert bench.queue.reserve(["default"]) == []

    @pytest.mark.needs(Capability.ATOMIC_FAIL)
    def test_of_two_callers_at_once_one_moves_it(self, bench: Bench) -> None:
        names = [f"job-{number}" for number in range(40)]
        push(bench, *names)
        for _ in names:
            begin(bench).fail(ValueError("no"))
        clients = [bench.client(), bench.client()]
        moment = time.time() + 0.3
        for client in clients:
            client.tell("requeue", moment, names)
        moved = [name for client in clients for name in client.answer()]
        for client in clients:
            client.close()
        assert sorted(moved) == sorted(names)
        assert bench.failed.count() == 0
        assert sorted(drain(bench.queue)) == sorted(names)


@pytest.mark.needs(Capability.DURABLE | Capability.RESERVE)
def test_what_was_pushed_survives_the_process_that_pushed_it(bench: Bench) -> None:
    client = bench.client()
    client.ask("push", "default", '{"uuid": "a"}')
    client.kill()
    until(lambda: bench.queue.size() == 1, "the job")
    assert take(bench).uuid == "a"
