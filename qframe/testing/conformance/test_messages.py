"""Messages: pushed, reserved in order, counted, listed, purged, kicked, found."""

from __future__ import annotations

import time

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.browsing import Place
from qframe.contracts.queue import Sizes
from qframe.contracts.step import Bury, Delete, Push, Release, Start, Step
from qframe.exceptions import InvalidQueueName
from qframe.testing.conformance.bench import Bench
from qframe.testing.conformance.steps import (
    QUEUE,
    apply,
    counted,
    drained,
    needs,
    needs_lapse,
    push,
    reserve,
    started,
)


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x00", bytes(range(256)), "\u00e9\u2028\U0001f600".encode(), b'{"a": [1e2, {}]}\r\n'],
    ids=["nothing", "nul", "every byte", "text", "JSON"],
)
def test_bytes_come_back_as_they_were(backend: Backend, other: Backend, raw: bytes) -> None:
    push(backend, raw)
    job = reserve(other)
    assert (job.raw_body, job.queue, job.attempts, job.started) == (raw, QUEUE, 0, False)
    assert job.id


def test_long_bytes_come_back_as_they_were(backend: Backend) -> None:
    raw = bytes(range(256)) * 250  # all that beanstalkd takes unless told otherwise
    push(backend, raw)
    assert reserve(backend).raw_body == raw


def test_the_same_bytes_pushed_twice_are_two_messages(backend: Backend) -> None:
    backend.apply(*[Step(None, Push(QUEUE, b"same"))] * 2)
    apply(backend, None, Push(QUEUE, b"same"), Push(QUEUE, b"same"))
    first = reserve(backend)
    apply(backend, first, Start(60))
    apply(backend, first, Delete())
    assert drained(backend) == [b"same"] * 3


def test_messages_come_in_the_order_they_were_pushed(backend: Backend) -> None:
    push(backend, b"1", b"2")
    backend.apply(*(Step(None, Push(QUEUE, b"%d" % n)) for n in range(3, 6)))
    apply(backend, None, *(Push(QUEUE, b"%d" % n) for n in range(6, 12)))
    assert drained(backend) == [b"%d" % n for n in range(1, 12)]


def test_one_that_is_released_comes_behind_those_that_are_ready(
    bench: Bench, backend: Backend
) -> None:
    needs(backend, Capability.ORDER)
    push(backend, b"1", b"2")
    apply(backend, started(backend), Release())
    push(backend, b"3")
    assert drained(backend) == [b"2", b"1", b"3"]


def test_one_that_is_released_to_the_front_comes_first(bench: Bench, backend: Backend) -> None:
    needs(backend, Capability.ORDER)
    push(backend, b"1", b"2", b"3")
    first, second = reserve(backend), reserve(backend)
    apply(backend, second, Release(front=True))
    apply(backend, first, Release(front=True))
    assert drained(backend) == [b"1", b"2", b"3"]


def test_the_front_is_of_no_use_to_one_that_is_delayed(bench: Bench, backend: Backend) -> None:
    needs(backend, Capability.ORDER)
    push(backend, b"1", b"2", b"3")
    apply(backend, started(backend), Release(bench.seconds(10), front=True))
    bench.pass_time(20)
    assert drained(backend) == [b"2", b"3", b"1"]


def test_a_delayed_message_waits_until_it_is_due(bench: Bench, backend: Backend) -> None:
    push(backend, b"late", delay=bench.seconds(30))
    assert not drained(backend)
    bench.pass_time(25)
    assert not drained(backend)
    bench.pass_time(10)
    assert drained(backend) == [b"late"]


def test_messages_come_in_the_order_in_which_they_became_ready(
    bench: Bench, backend: Backend
) -> None:
    needs(backend, Capability.ORDER)
    push(backend, b"due after 20", delay=bench.seconds(20))
    push(backend, b"due after 10", delay=bench.seconds(10))
    push(backend, b"now")
    bench.pass_time(30)
    push(backend, b"then")
    assert drained(backend) == [b"now", b"due after 10", b"due after 20", b"then"]


def test_a_queue_before_another_is_emptied_first(backend: Backend) -> None:
    push(backend, b"low", queue="low")
    push(backend, b"high 1", b"high 2", queue="high")
    assert drained(backend, "high", "none", "low") == [b"high 1", b"high 2", b"low"]


def test_several_are_reserved_at_once_over_several_queues(backend: Backend) -> None:
    needs(backend, Capability.AHEAD)
    push(backend, b"low 1", b"low 2", queue="low")
    push(backend, b"high 1", b"high 2", queue="high")
    jobs, results = backend.reserve(["high", "low"], 3)
    assert [(job.queue, job.raw_body) for job in jobs] == [
        ("high", b"high 1"), ("high", b"high 2"), ("low", b"low 1"),
    ]  # fmt: skip
    assert results == []
    assert len({job.fence for job in jobs}) == 3


def test_no_further_message_is_given_once_there_are_so_many_bytes(
    bench: Bench, backend: Backend
) -> None:
    needs(backend, Capability.AHEAD | Capability.COUNTS)
    bench.timing.hold = 60
    bench.timing.most_bytes = 1000
    push(backend, *[b"x" * 600] * 3)
    push(backend, b"other", queue="other")
    assert len(backend.reserve([QUEUE, "other"], 10)[0]) == 2
    assert len(backend.reserve([QUEUE, "other"], 10)[0]) == 2


def test_one_message_is_given_however_long_it_is(bench: Bench, backend: Backend) -> None:
    bench.timing.most_bytes = 10
    push(backend, b"x" * 1000)
    reserve(backend)


def test_the_first_steps_are_applied_before_reserving(backend: Backend) -> None:
    push(backend, b"1")
    job = started(backend)
    jobs, results = backend.reserve([QUEUE], first=[job.delete(), Step(None, Push(QUEUE, b"2"))])
    assert [result.applied for result in results] == [True, True]
    assert [job.raw_body for job in jobs] == [b"2"]


def test_reserving_never_waits(backend: Backend) -> None:
    backend.reserve([QUEUE])  # opens the connection
    begun = time.monotonic()
    assert backend.reserve([QUEUE, "other"]) == ([], [])
    assert time.monotonic() - begun < 10


def allows(backend: Backend, name: str) -> bool:
    try:
        backend.check_queue(name)
    except InvalidQueueName:
        return False
    return True


def test_any_name_of_a_queue_does(backend: Backend) -> None:
    any_name = "-" if Capability.JOINT in backend.capabilities else "0"
    names = [each for each in ("a.b:c_d-E9", "Q", "x" * 128, any_name) if allows(backend, each)]
    for name in names:
        push(backend, name.encode(), queue=name)
    for name in names:
        assert reserve(backend, name).raw_body == name.encode()


def test_priority_0_is_first(backend: Backend) -> None:
    needs(backend, Capability.PRIORITY)
    apply(backend, None, Push(QUEUE, b"5", priority=5))
    apply(backend, None, Push(QUEUE, b"0", priority=0))
    assert drained(backend) == [b"0", b"5"]


def test_no_steps_are_no_exchange(backend: Backend) -> None:
    assert backend.apply() == []


# -- counting -------------------------------------------------------------------------------------


def test_sizes_count_the_messages_by_their_places(backend: Backend, other: Backend) -> None:
    needs(backend, Capability.SIZE | Capability.BURY)
    assert counted(backend, Sizes())
    push(backend, b"1", b"2", b"3", b"4", b"5", b"6")
    push(backend, b"7", b"8", b"9", delay=60)
    apply(backend, started(backend), Bury())
    started(backend)
    reserve(backend)
    push(backend, b"elsewhere", queue="other")
    assert counted(other, Sizes(ready=3, delayed=3, reserved=2, buried=1))


def test_sizes_count_as_ready_what_is_due_or_was_given_up(bench: Bench, backend: Backend) -> None:
    needs_lapse(bench)
    needs(backend, Capability.SIZE | Capability.COUNTS)
    bench.timing.hold = bench.seconds(10)
    push(backend, b"1", b"2")
    push(backend, b"3", delay=bench.seconds(10))
    reserve(backend)
    started(backend, lease=bench.seconds(60))
    bench.pass_time(30)
    assert counted(backend, Sizes(ready=2, reserved=1))


def test_delayed_messages_are_counted_by_when_they_are_due(backend: Backend) -> None:
    needs(backend, Capability.SIZE | Capability.BURY)
    now = time.time()
    push(backend, b"now", b"soon")
    push(backend, b"1", b"2", delay=150)
    push(backend, b"3", delay=350)
    apply(backend, None, Push(QUEUE, b"4", 250, priority=0))
    push(backend, b"beyond", delay=5000)
    push(backend, b"elsewhere", delay=150, queue="other")
    counts = backend.due_by_step(QUEUE, now, 100.0, 5)
    assert counts in ([0, 2, 1, 1, 0], []), "or the backend cannot tell"


def test_the_queues_that_hold_messages_are_listed(backend: Backend, other: Backend) -> None:
    needs(backend, Capability.LIST)
    assert backend.queues() == []
    push(backend, b"", queue="ready")
    push(backend, b"", queue="delayed", delay=60)
    push(backend, b"", queue="held")
    reserve(backend, "held")
    buried = ["buried"] if Capability.BURY in backend.capabilities else []
    for queue in buried:
        push(backend, b"", queue=queue)
        apply(backend, started(backend, queue), Bury())
    push(backend, b"", queue="gone")
    apply(backend, started(backend, "gone"), Delete())
    assert other.queues() == [*buried, "delayed", "held", "ready"]


# -- moving ---------------------------------------------------------------------------------------


def test_a_purge_deletes_what_is_ready_or_delayed(backend: Backend) -> None:
    needs(backend, Capability.PURGE | Capability.BURY)
    push(backend, b"buried", b"runs", b"ready")
    push(backend, b"later", delay=60)
    push(backend, b"elsewhere", queue="other")
    apply(backend, started(backend), Bury())
    running = started(backend)
    assert backend.purge(QUEUE) == 2
    assert backend.purge(QUEUE) == 0
    assert counted(backend, Sizes(reserved=1, buried=1))
    apply(backend, running, Release())
    assert drained(backend, QUEUE, "other") == [b"runs", b"elsewhere"]


def test_a_buried_message_stays_aside_until_it_is_kicked(bench: Bench, backend: Backend) -> None:
    needs(backend, Capability.BURY)
    push(backend, b"1", b"2")
    apply(backend, started(backend), Bury())
    apply(backend, started(backend), Bury())
    if bench.skews:
        bench.pass_time(10_000)
    assert not drained(backend)
    assert backend.kick(QUEUE) == 2
    assert backend.kick(QUEUE) == 0
    first, second = reserve(backend), reserve(backend)
    assert (first.raw_body, second.raw_body) == (b"1", b"2")
    assert (first.attempts, second.attempts) == (1, 1)


def test_a_message_is_found_by_what_it_holds_wherever_it_is(backend: Backend) -> None:
    needs(backend, Capability.SEARCH | Capability.BURY)
    push(backend, b"<uuid> buried", b"<uuid> runs", b"<uuid> held", b"<uuid> ready", b"else")
    push(backend, b"<uuid> later", delay=60)
    apply(backend, started(backend), Bury())
    started(backend)
    reserve(backend)
    push(backend, b"<uuid>", queue="other")
    found = {each.raw_body: each for each in backend.search(QUEUE, b"<uuid>")}
    assert {each.queue for each in found.values()} == {QUEUE}
    assert {raw: each.place for raw, each in found.items()} == {
        b"<uuid> buried": Place.BURIED,
        b"<uuid> runs": Place.RUNNING,
        b"<uuid> held": Place.HELD,
        b"<uuid> ready": Place.READY,
        b"<uuid> later": Place.DELAYED,
    }


PLACES = [Place.READY, Place.DELAYED, Place.BURIED, Place.RUNNING]


def browsed(backend: Backend, place: Place, limit: int = 2) -> list[bytes]:
    """List the messages in a place, page by page."""
    raws, page = list[bytes](), backend.browse(QUEUE, place, limit)
    while page.after:
        assert len(page.found) == limit
        raws += [each.raw_body for each in page.found]
        page = backend.browse(QUEUE, place, limit, page.after)
    return raws + [each.raw_body for each in page.found]


def test_messages_are_listed_page_by_page_in_their_order(backend: Backend) -> None:
    needs(backend, Capability.BROWSE | Capability.AHEAD | Capability.BURY)
    assert [browsed(backend, place) for place in PLACES] == [[], [], [], []]
    push(backend, *(b"buried %d" % n for n in range(3)), b"runs", b"held", b"running", b"rests")
    for _ in range(3):
        apply(backend, started(backend), Bury())
    started(backend)
    reserve(backend)
    started(backend)
    started(backend)
    push(backend, *(b"ready %d" % n for n in range(5)))
    for n in range(4):
        push(backend, b"later %d" % n, delay=100 * (4 - n))
    push(backend, b"elsewhere", queue="other")
    assert browsed(backend, Place.READY) == [b"ready %d" % n for n in range(5)]
    assert browsed(backend, Place.DELAYED) == [b"later %d" % n for n in (3, 2, 1, 0)]
    assert sorted(browsed(backend, Place.BURIED)) == [b"buried %d" % n for n in range(3)]
    assert sorted(browsed(backend, Place.RUNNING)) == [b"held", b"rests", b"running", b"runs"]
    assert counted(backend, Sizes(5, 4, 4, 3))
    places = {each.raw_body: each.place for each in backend.browse(QUEUE, Place.RUNNING).found}
    assert places[b"held"] is Place.HELD
    assert places[b"runs"] is Place.RUNNING
    soon = backend.browse(QUEUE, Place.DELAYED, 1).found[0].at
    assert soon is not None
    assert 60 < soon - time.time() < 140


def test_the_first_message_of_each_place_is_shown(backend: Backend) -> None:
    needs(backend, Capability.BROWSE | Capability.BURY)
    push(backend, b"buried", b"ready", b"next")
    push(backend, b"later", delay=60)
    apply(backend, started(backend), Bury())
    for place, raw in (
        (Place.READY, b"ready"),
        (Place.DELAYED, b"later"),
        (Place.BURIED, b"buried"),
    ):
        found = backend.browse(QUEUE, place, 1).found
        assert [(each.queue, each.raw_body, each.place) for each in found] == [(QUEUE, raw, place)]


@pytest.mark.parametrize("after", ["x", "-1", "9" * 40, "1,x", "\x00", "²"])
def test_a_page_that_never_was_is_a_page(backend: Backend, after: str) -> None:
    needs(backend, Capability.BROWSE)
    push(backend, b"ready")
    for place in PLACES:
        assert len(backend.browse(QUEUE, place, 5, after).found) <= 1


def test_a_search_ends_at_its_limit(backend: Backend) -> None:
    needs(backend, Capability.SEARCH)
    push(backend, b"x1", b"x2", b"x3")
    assert len(backend.search(QUEUE, b"x", 2)) == 2
    assert backend.search(QUEUE, b"y") == []


def test_a_search_tells_when_a_message_is_due_and_when_a_lease_ends(backend: Backend) -> None:
    needs(backend, Capability.SEARCH)
    push(backend, b"runs")
    apply(backend, reserve(backend), Start(100))
    push(backend, b"later", delay=100)
    push(backend, b"ready")
    of = {each.raw_body: each for each in backend.search(QUEUE, b"")}
    assert [of[raw].lease_ends for raw in (b"later", b"ready")] == [None, None]
    for moment in (of[b"later"].at, of[b"runs"].lease_ends):
        assert moment is None or 60 < moment - time.time() < 140


@pytest.mark.parametrize("text", [b"%", b"_", b"\x00\xff", b"*?[", b"\\", b"base64:"])
def test_a_search_is_for_these_very_bytes(backend: Backend, text: bytes) -> None:
    needs(backend, Capability.SEARCH)
    push(backend, b"plain", b"<" + text + b">")
    assert [each.raw_body for each in backend.search(QUEUE, text)] == [b"<" + text + b">"]


def test_what_was_found_ready_delayed_or_buried_can_be_taken(
    backend: Backend, other: Backend
) -> None:
    needs(backend, Capability.SEARCH | Capability.BURY)
    push(backend, b"x buried", b"x ready")
    push(backend, b"x later", delay=60)
    apply(backend, started(backend), Bury())
    for found in backend.search(QUEUE, b"x"):
        job = backend.take(found)
        assert job is not None
        assert job.raw_body == found.raw_body
        assert job.attempts == (found.place is Place.BURIED)
        apply(backend, job, Start(60))
        apply(backend, job, Delete())
    assert counted(other, Sizes())


@pytest.mark.parametrize("priority", [None, 0])
def test_a_message_can_be_pushed_among_the_buried_ones(
    backend: Backend, other: Backend, priority: int | None
) -> None:
    needs(backend, Capability.SEARCH | Capability.BURY | Capability.NOTES)
    push(backend, b"x 1")
    apply(backend, started(backend), Bury())
    apply(backend, None, Push(QUEUE, b"x 2", 0.0, priority, attempts=3, notes=b"n", buried=True))
    assert counted(other, Sizes(buried=2))
    assert backend.queues() == [QUEUE]
    assert other.kick(QUEUE) == 2
    jobs = {each.raw_body: (each.attempts, each.notes) for each in (reserve(other), reserve(other))}
    assert jobs == {b"x 1": (1, b""), b"x 2": (3, b"n")}


def test_notes_are_read_of_what_was_found(backend: Backend, other: Backend) -> None:
    needs(backend, Capability.SEARCH | Capability.NOTES)
    push(backend, b'{"uuid": "x"}')
    (found,) = other.search(QUEUE, b"x")
    assert other.notes_of(found) == b""
    job = reserve(backend)
    apply(backend, job, Start(60, b"\x00\xff one"))
    (found,) = other.search(QUEUE, b"x")
    assert found.place is Place.RUNNING
    assert other.notes_of(found) == b"\x00\xff one"
    apply(backend, job, Release(60, notes=b"two"))
    (found,) = other.search(QUEUE, b"x")
    assert found.place is Place.DELAYED
    assert other.notes_of(found) == b"two"
    taken = backend.take(found)
    assert taken is not None
    apply(backend, taken, Release())
    (found,) = other.search(QUEUE, b"x")
    assert (found.place, other.notes_of(found)) == (Place.READY, b"two")
    apply(backend, started(backend), Delete())
    assert other.notes_of(found) == b""


def test_what_has_moved_on_cannot_be_taken(bench: Bench, backend: Backend, other: Backend) -> None:
    needs(backend, Capability.SEARCH)
    push(backend, b"x1", b"x2")
    found = {each.raw_body: each for each in backend.search(QUEUE, b"x")}
    apply(other, started(other), Delete())
    assert backend.take(found[b"x1"]) is None
    held = reserve(other)
    assert backend.take(found[b"x2"]) is None
    apply(other, held, Start(60))
    assert backend.take(found[b"x2"]) is None
    (running,) = backend.search(QUEUE, b"x")
    assert backend.take(running) is None


def test_what_is_taken_and_not_started_comes_back(bench: Bench, backend: Backend) -> None:
    needs(backend, Capability.SEARCH)
    bench.timing.hold = bench.seconds(10)
    push(backend, b"x", delay=bench.seconds(60))
    (found,) = backend.search(QUEUE, b"x")
    assert backend.take(found)
    assert not drained(backend)
    bench.pass_time(20)
    assert not drained(backend)  # it was not due
    bench.pass_time(50)
    assert reserve(backend).attempts == 0


@pytest.mark.parametrize(
    ("raw", "delay", "priority"),
    [(b"x", 60, None), (b"x", 0, 0), (b'{"uuid":"x","id":"x","attempts":0,"delay":null}', 0, None)],
    ids=["delayed", "with a priority", "that counts itself"],
)
def test_a_message_that_was_started_elsewhere_keeps_its_attempts(
    bench: Bench, backend: Backend, raw: bytes, delay: int, priority: int | None
) -> None:
    needs(backend, Capability.NOTES | Capability.COUNTS)
    begun = Push(QUEUE, raw, bench.seconds(delay), priority, attempts=2, notes=b"\x00\xff two")
    apply(backend, None, Push(QUEUE, b"plain", bench.seconds(delay), priority), begun)
    bench.pass_time(delay + 10)
    assert reserve(backend).raw_body == b"plain"
    job = reserve(backend)
    assert (job.raw_body, job.attempts, job.notes) == (raw, 2, b"\x00\xff two")
    apply(backend, job, Start(bench.seconds(60), b"three"))
    apply(backend, job, Release(notes=b"four"))
    job = reserve(backend)
    assert (job.raw_body, job.attempts, job.notes) == (raw, 3, b"four")
    apply(backend, job, Delete())
