"""What a push promises."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from qframe.contracts import Capability
from qframe.exceptions import InvalidJob, InvalidQueueName, PayloadTooLarge
from tests.conformance.drivers import Bench
from tests.conformance.jobs import Late, Plain, ToEmails
from tests.conformance.steps import TICK, at, begin, body, drain, push, take, uuids


def test_push_gives_the_id_of_the_job(bench: Bench) -> None:
    first, second = bench.queue.push(Plain(number=1)), bench.queue.push(Plain(number=2))
    assert first
    assert second
    assert first != second


def test_later_and_bulk_give_ids(bench: Bench) -> None:
    bench_ids = [bench.queue.later(0, Plain()), *bench.queue.bulk([Plain(), Plain(), ToEmails()])]
    assert len(set(bench_ids)) == 4
    assert all(bench_ids)


def test_bulk_of_nothing_is_nothing(bench: Bench) -> None:
    assert bench.queue.bulk([]) == []


def test_a_queue_name_that_is_none_is_refused(bench: Bench) -> None:
    for name in ("has space", "new\nline", "x" * 129, "ä"):
        with pytest.raises(InvalidQueueName):
            bench.queue.push(Plain(), name)


def test_a_payload_over_the_limit_is_refused_with_both_numbers(bench: Bench) -> None:
    with pytest.raises(PayloadTooLarge, match=r"1,000,001 bytes.*1,000,000") as caught:
        bench.queue.push_raw(b"x" * 1_000_001)
    assert isinstance(caught.value, InvalidJob)


@pytest.mark.needs(Capability.RESERVE)
class TestKept:
    def test_the_id_is_what_the_reserved_job_answers_to(self, bench: Bench) -> None:
        pushed = bench.queue.push(Plain(number=7))
        job = take(bench)
        assert job.uuid == pushed
        assert job.payload["data"] == {"number": 7}
        assert job.name == "tests.conformance.jobs.Plain"
        assert (job.queue, job.connection_name) == ("default", "here")

    @pytest.mark.parametrize("raw", ["not json", "[1]", "{}", '{"uuid": 5}', ""])
    def test_bytes_without_a_uuid_get_an_id_that_the_reserved_job_answers_to(
        self, bench: Bench, raw: str
    ) -> None:
        pushed = bench.queue.push_raw(raw)
        assert pushed
        assert take(bench).uuid == pushed

    def test_ids_made_up_are_never_used_again(self, bench: Bench) -> None:
        """Failed jobs are kept by uuid: a second one of the same name would replace the first."""
        ids = set()
        for _ in range(3):
            ids.add(bench.queue.push_raw("the same bytes"))
            begin(bench).fail(ValueError())
        assert len(ids) == 3
        assert bench.failed.count() == 3

    def test_push_raw_gives_the_uuid_of_the_payload(self, bench: Bench) -> None:
        assert bench.queue.push_raw(body("abc")) == "abc"

    def test_a_job_goes_to_the_queue_named_else_its_class_s_else_the_default(
        self, bench: Bench
    ) -> None:
        ids = [
            bench.queue.push(ToEmails(), "named"),
            bench.queue.push(ToEmails()),
            bench.queue.push(Plain()),
        ]
        assert ids == [take(bench, name).uuid for name in ("named", "emails", "default")]

    def test_identical_bytes_twice_are_two_jobs(self, bench: Bench) -> None:
        raw = body("same")
        for _ in range(2):
            bench.queue.push_raw(raw)
        first = begin(bench)
        second = begin(bench)
        assert first.id != second.id
        assert first.raw_body == second.raw_body == raw.encode()
        first.delete()
        second.release()
        third = begin(bench)
        assert third.attempts() == 2
        third.delete()
        assert not bench.queue.reserve(["default"])

    @pytest.mark.parametrize(
        "raw",
        [
            b'{"data":{"empty_list":[],"empty_map":{},"null":null}}',
            b'{"data":{"big":1152921504606846976,"tenth":0.1,"e":1e+400,"exact":1.0}}',
            b'{ "spaced" :  1 ,\n\t"data" : { } }',
            '{"data":"äöü ß 汉字 \u2028 \u202e 👩‍👩‍👧 \U0010ffff"}'.encode(),
            b'{"data":"\\u00e4 \\/ \\ud83d\\ude00 \\ud83d"}',
            b'{"a":1,"a":2}',
            b"",
            b"\x00",
            b"before\x00after",
            b"\xff\xfe\x80 not UTF-8",
            b"\xed\xa0\x80 a surrogate in UTF-8",
            b"\xef\xbb\xbf{} with a byte order mark",
            bytes(range(256)),
            b"' \" ; -- %s ? :p_id {} \\",
            b"x" * 1_000_000,
            "汉".encode() * 300_000,
        ],
        ids=lambda raw: ascii(raw[:24])[2:-1],
    )
    def test_bytes_come_back_as_they_were_sent(self, bench: Bench, raw: bytes) -> None:
        bench.queue.push_raw(raw)
        job = begin(bench)
        assert job.raw_body == raw
        job.release()
        again = begin(bench)
        assert again.raw_body == raw
        again.fail(ValueError("no"))
        (record,) = bench.failed.page()
        assert record.uuid.startswith(again.uuid)
        assert record.payload == raw

    def test_text_is_sent_as_utf_8(self, bench: Bench) -> None:
        bench.queue.push_raw('{"data": "ä👍"}')
        assert take(bench).raw_body == '{"data": "ä👍"}'.encode()

    def test_values_come_back_exact(self, bench: Bench) -> None:
        data = {"l": [], "d": {}, "big": 2**60, "tenth": 0.1, "text": "ä👍 \x00", "deep": [[{}]]}
        bench.queue.push_raw(json.dumps({"data": data}))
        assert take(bench).payload["data"] == data

    def test_first_come_first_served(self, bench: Bench) -> None:
        push(bench, *"abcdefghijkl")
        assert drain(bench.queue) == list("abcdefghijkl")

    def test_bulk_keeps_the_order_and_the_queues(self, bench: Bench) -> None:
        jobs = [Plain(number=1), ToEmails(number=2), Plain(number=3), ToEmails(number=4)]
        ids = bench.queue.bulk(jobs)
        assert drain(bench.queue) == [ids[0], ids[2]]
        assert drain(bench.queue, "emails") == [ids[1], ids[3]]

    def test_bulk_of_many_in_the_queue_named(self, bench: Bench) -> None:
        ids = bench.queue.bulk([Plain(number=n) for n in range(250)], "many")
        assert drain(bench.queue, "many") == ids

    def test_a_bulk_with_a_job_that_cannot_be_sent_pushes_none(self, bench: Bench) -> None:
        class Local(Plain):
            pass

        with pytest.raises(InvalidJob):
            bench.queue.bulk([Plain(), Local()])
        assert not bench.queue.reserve(["default"])


@pytest.mark.needs(Capability.RESERVE | Capability.DELAY | Capability.SIZE)
class TestDelayed:
    def test_a_delayed_job_is_not_there_before_its_time(self, bench: Bench) -> None:
        bench.queue.push_raw(body("late"), delay=30)
        assert bench.queue.sizes() == at(delayed=1)
        bench.forward(25)
        assert not bench.queue.reserve(["default"])
        bench.forward(6)
        assert bench.queue.sizes() == at(ready=1)
        assert take(bench).uuid == "late"

    @pytest.mark.parametrize(
        "delay",
        [30, 30.5, timedelta(seconds=30), pytest.param("aware", id="datetime")],
    )
    def test_delays_of_every_type(self, bench: Bench, delay: float | timedelta | str) -> None:
        when = datetime.now(UTC) + timedelta(seconds=30) if isinstance(delay, str) else delay
        pushed = bench.queue.later(when, Plain())
        bench.forward(20)
        assert not bench.queue.reserve(["default"])
        bench.forward(11)
        assert take(bench).uuid == pushed

    def test_a_datetime_in_the_past_means_now(self, bench: Bench) -> None:
        pushed = bench.queue.later(datetime(2001, 1, 1, tzinfo=UTC), Plain())
        assert take(bench).uuid == pushed

    @pytest.mark.parametrize("delay", [-1, float("inf"), float("nan"), timedelta(seconds=-1)])
    def test_a_delay_that_is_none_is_refused(self, bench: Bench, delay: float | timedelta) -> None:
        with pytest.raises(ValueError, match="delay"):
            bench.queue.later(delay, Plain())
        with pytest.raises(ValueError, match="time zone"):
            bench.queue.later(datetime(2030, 1, 1), Plain())  # noqa: DTZ001
        assert bench.queue.size() == 0

    def test_a_delay_of_a_century_is_kept(self, bench: Bench) -> None:
        bench.queue.push_raw(body("late"), delay=99 * 365 * 86400)
        assert bench.queue.sizes() == at(delayed=1)
        assert not bench.queue.reserve(["default"])

    @pytest.mark.by_readiness
    def test_fractions_of_a_second_count(self, bench: Bench) -> None:
        bench.queue.push_raw(body("second"), delay=10.6)
        bench.queue.push_raw(body("first"), delay=10.2)
        bench.forward(11)
        assert drain(bench.queue) == ["first", "second"]

    @pytest.mark.needs(Capability.AHEAD)
    @pytest.mark.by_readiness
    def test_a_delayed_job_takes_its_place_by_when_it_was_due(self, bench: Bench) -> None:
        push(bench, "due after 10", delay=10)
        push(bench, "due after 20", delay=20)
        push(bench, "a")
        bench.forward(15)
        push(bench, "b")
        assert uuids(bench.queue.reserve(["default"], 10)) == ["a", "due after 10", "b"]
        bench.forward(10)
        push(bench, "c")
        assert drain(bench.queue) == ["a", "due after 10", "b", "due after 20", "c"]

    def test_the_delay_of_the_class_is_that_of_bulk(self, bench: Bench) -> None:
        bench.queue.bulk([Plain(), Late()])
        assert bench.queue.sizes() == at(ready=1, delayed=1)

    def test_many_due_at_once_all_come_in_order(self, bench: Bench) -> None:
        ids = bench.queue.bulk([Late(number=n) for n in range(230)])
        bench.forward(30 + TICK)
        assert drain(bench.queue) == ids
