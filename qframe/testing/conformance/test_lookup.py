"""A message is found by its uuid, near where the uuid's time says, or by looking everywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.browsing import Place
from qframe.contracts.step import Bury, Delete, Push, Release, Step
from qframe.drivers import lookup
from qframe.drivers.lookup import look
from qframe.testing.conformance.steps import QUEUE, apply, needs, started

MADE = 1_700_000_000_000
COUNT = 40


def uuid_at(number: int, version: int = 7) -> str:
    """Give the uuid of a job that was dispatched so many milliseconds after the first."""
    whole = f"{MADE + number:012x}{version}0008{number:015x}"
    return "-".join((whole[:8], whole[8:12], whole[12:16], whole[16:20], whole[20:]))


def payload(uuid: str, more: str = "") -> bytes:
    return json.dumps({"uuid": uuid, "job": "app.A", "data": {"of": more}}).encode()


def fill(backend: Backend, uuids: Sequence[str], delay: float = 0.0) -> None:
    backend.apply(*(Step(None, Push(QUEUE, payload(each), delay)) for each in uuids))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    """Have few messages be many."""
    needs(backend, Capability.SEARCH)
    monkeypatch.setattr(lookup, "CLOSE", 1)
    monkeypatch.setattr(lookup, "NEAR", 3)
    monkeypatch.setattr(lookup, "AT_ONCE", 10)


def found(backend: Backend, uuid: str, seconds: float | None) -> Place | None:
    seen = look(backend, QUEUE, uuid, seconds)
    if seen.found is None:
        return None
    assert json.loads(seen.found.raw_body)["uuid"] == uuid
    return seen.found.place


@pytest.mark.usefixtures("small")
def test_those_before_it_are_counted_or_it_says_that_it_cannot(backend: Backend) -> None:
    needs(backend, Capability.BROWSE)
    uuids = [uuid_at(number) for number in range(COUNT)]
    fill(backend, uuids)
    fill(backend, [uuid_at(COUNT)], delay=60)
    for number in (0, 1, 17, COUNT - 1):
        seen = look(backend, QUEUE, uuids[number]).found
        assert seen is not None
        assert backend.count_before(seen) in {None, number}
    last = look(backend, QUEUE, uuids[-1]).found
    for _ in range(5):  # what is first moves on
        apply(backend, started(backend), Delete())
    assert last is not None
    assert backend.count_before(last) in {None, COUNT - 6}


@pytest.mark.usefixtures("small")
def test_by_its_time_it_is_found_without_looking_everywhere(backend: Backend) -> None:
    needs(backend, Capability.BROWSE)
    fill(backend, [uuid_at(number) for number in range(COUNT)])
    for number in (0, 1, 17, COUNT - 1):
        assert found(backend, uuid_at(number), 0.0) is Place.READY, number
    for _ in range(5):  # what is first moves on
        apply(backend, started(backend), Delete())
    assert found(backend, uuid_at(17), 0.0) is Place.READY
    assert look(backend, QUEUE, uuid_at(2), 0.0) == (None, False)
    assert look(backend, QUEUE, uuid_at(2), 60.0) == (None, True)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seconds", [60.0, None])
def test_what_is_out_of_order_is_found_by_looking_everywhere(
    backend: Backend, seconds: float | None
) -> None:
    needs(backend, Capability.BURY)
    plain = [uuid_at(number, version=4) for number in range(COUNT)]
    fill(backend, plain)
    fill(backend, [uuid_at(3), "not a uuid"])
    fill(backend, [uuid_at(90)], delay=60)
    apply(backend, started(backend), Bury())
    apply(backend, started(backend), Release(0.0))
    started(backend)
    assert found(backend, plain[0], seconds) is Place.BURIED
    assert found(backend, plain[1], seconds) is Place.READY
    assert found(backend, plain[2], seconds) is Place.RUNNING
    assert found(backend, uuid_at(3), seconds) is Place.READY
    assert found(backend, "not a uuid", seconds) is Place.READY
    assert found(backend, uuid_at(90), seconds) is Place.DELAYED
    assert look(backend, QUEUE, uuid_at(4), seconds) == (None, True)


@pytest.mark.usefixtures("small")
def test_a_look_that_was_too_short_says_so(backend: Backend) -> None:
    needs(backend, Capability.BROWSE)
    fill(backend, [uuid_at(number, version=4) for number in range(COUNT)])
    seen = look(backend, QUEUE, uuid_at(1, version=4), 0.0)
    assert seen.found is not None or not seen.is_complete


def test_a_short_queue_is_searched_whole_however_late_it_is(backend: Backend) -> None:
    needs(backend, Capability.SEARCH)
    fill(backend, [uuid_at(number, version=4) for number in range(3)])
    fill(backend, ["not a uuid"], delay=60)
    assert found(backend, uuid_at(1, version=4), -1.0) is Place.READY
    assert found(backend, "not a uuid", -1.0) is Place.DELAYED
    assert look(backend, QUEUE, "none", -1.0) == (None, True)


@pytest.mark.usefixtures("small")
def test_a_message_that_names_another_is_not_that_one(backend: Backend) -> None:
    backend.apply(Step(None, Push(QUEUE, payload(uuid_at(1), more=uuid_at(2)))))
    assert found(backend, uuid_at(2), 60.0) is None
    assert found(backend, uuid_at(1), 60.0) is Place.READY


def test_queues_are_named_whatever_their_messages_do(backend: Backend) -> None:
    needs(backend, Capability.LIST)
    names = ["a", "B", "b", "mail:high", "z.9"]
    for name in names:
        backend.apply(*(Step(None, Push(name, payload(uuid_at(each)))) for each in range(3)))
    backend.apply(Step(None, Push("later", payload(uuid_at(9)), 60.0)))
    backend.apply(Step(None, Push("runs", payload(uuid_at(10)))))
    started(backend, "runs")
    assert backend.queues() == sorted([*names, "later", "runs"])
