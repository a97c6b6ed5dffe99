"""A reading is shared, good for a while, and nobody waits for one longer than he says."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from qframe.operations.reading import NotYetError, Reading


@pytest.fixture
def behind() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def test_who_has_no_patience_is_told_and_gets_it_later(behind: ThreadPoolExecutor) -> None:
    go, calls = threading.Event(), []

    def read() -> int:
        calls.append(1)
        assert go.wait(30)
        return 7

    reading = Reading(60.0, read, behind)
    for _ in range(2):
        with pytest.raises(NotYetError):
            reading.get(0.01)
    go.set()
    assert reading.get() == 7
    assert reading.get(0.0) == 7
    assert len(calls) == 1


def test_who_waits_hears_why_it_cannot_be_read(behind: ThreadPoolExecutor) -> None:
    def read() -> int:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        Reading(60.0, read, behind).get(5.0)


def test_what_was_forgotten_is_read_anew(behind: ThreadPoolExecutor) -> None:
    numbers = itertools.count(1)
    reading = Reading(60.0, lambda: next(numbers), behind)
    assert [reading.get(), reading.get(5.0)] == [1, 1]
    reading.forget()
    assert reading.get(5.0) == 2


def test_what_is_forgotten_while_it_is_read_is_read_anew(behind: ThreadPoolExecutor) -> None:
    numbers = iter(range(9))
    reads, changed = threading.Event(), threading.Event()

    def read() -> int:
        number = next(numbers)
        reads.set()
        assert changed.wait(60)
        return number

    reading = Reading(60.0, read, behind)
    before = behind.submit(reading.get)
    assert reads.wait(60)
    reading.forget()
    changed.set()
    assert before.result(20) == 0
    assert reading.get() == 1


def test_what_takes_long_may_be_late_by_so_much_and_no_more(
    behind: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, numbers = [1000.0], itertools.count(1)

    def read() -> int:
        now[0] += 0.1
        return next(numbers)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    reading = Reading(2.0, read, behind)
    assert reading.get() == 1
    now[0] += 4.0
    assert reading.get(late=1.0) == 2
    now[0] += 4.0
    go = threading.Event()
    behind.submit(go.wait)
    assert reading.get(late=3.0) == 2
    go.set()
    behind.shutdown()
    assert reading.get() == 3
