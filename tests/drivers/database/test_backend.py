"""What the histories do not see: bytes, bugs of callers, threads, forks, waiting, sweeping."""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from qframe.contracts.backend import Timing
from qframe.contracts.step import (
    Arrive,
    Close,
    Delete,
    Expect,
    Extend,
    Open,
    Push,
    Raise,
    Renew,
    Set,
    Start,
    Step,
)
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from qframe.exceptions import BackendUnavailable, BackendUnusable
from tests.drivers.database.conftest import Opener
from tests.support.process import wait_for

BYTES = [b"", b"\x00", b"\xff\xfe\x00 no text", "\u2028 \U0001f600".encode(), b"a\x00b" * 1000]


def count(file: Path, table: str) -> int:
    with closing(sqlite3.connect(file)) as raw:
        return int(raw.execute(f"select count(*) from {table}").fetchone()[0])


def in_threads(number: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def caught(n: int) -> None:
        try:
            work(n)
        except BaseException as error:  # noqa: BLE001 (shown by the test)
            errors.append(error)

    threads = [threading.Thread(target=caught, args=[n]) for n in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors


# -- bytes, and bugs of callers -------------------------------------------------------------------


def test_bytes_come_back_as_they_were_sent(backend: DatabaseBackend) -> None:
    backend.apply(*(Step(None, Push("a", raw)) for raw in BYTES))
    jobs, _ = backend.reserve(["a"], 10)
    assert [job.raw_body for job in jobs] == BYTES
    backend.apply(*(Step(job, Start(9.0, job.raw_body)) for job in jobs))
    backend.apply(*(job.release() for job in jobs))
    jobs, _ = backend.reserve(["a"], 10)
    assert [job.notes for job in jobs] == BYTES
    assert [found.raw_body for found in backend.search("a", b"\x00")] == [
        raw for raw in BYTES if b"\x00" in raw
    ]


@pytest.mark.parametrize("step", [Set("k\ud800", "v"), Set("k", "\udfff"), Expect("\ud800", None)])
def test_text_that_no_backend_can_keep_is_a_bug_of_the_caller(
    backend: DatabaseBackend, step: Set
) -> None:
    backend.apply(Step(None, Push("a", b"1")))
    (job,), _ = backend.reserve(["a"])
    with pytest.raises(ValueError, match="surrogates") as raised:
        backend.apply(Step(job, Start(9.0, b"n")), Step(None, step))
    assert not isinstance(raised.value, BackendUnavailable)
    assert (job.started, job.attempts, job.notes, job.lease) == (False, 0, b"", 0.0)
    (started,) = backend.apply(Step(job, Start(9.0)))
    assert started.applied
    assert job.attempts == 1
    with pytest.raises(ValueError, match="surrogates"):
        backend.read("\ud800")


def test_what_is_no_database_is_unusable_and_one_that_is_locked_unavailable(
    backend: DatabaseBackend, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("no database" * 100)
    other = DatabaseBackend("x", DatabaseSettings(url=f"sqlite:///{tmp_path}/text"))
    with pytest.raises(BackendUnusable, match="not an SQLite database"):
        other.check()
    quick = DatabaseBackend("x", DatabaseSettings(url=f"sqlite:///{file}", busy_timeout=0.05))
    quick.check()
    with closing(sqlite3.connect(file, isolation_level=None)) as raw:
        raw.execute("begin immediate")
        with pytest.raises(BackendUnavailable, match="locked"):
            quick.apply(Step(None, Push("a", b"1")))
    assert quick.apply(Step(None, Push("a", b"1")))[0].applied
    quick.close()


# -- reservations ---------------------------------------------------------------------------------


def test_a_reservation_is_as_large_as_may_be_lost_on_the_way(
    backend: DatabaseBackend, timing: Timing
) -> None:
    timing.most_bytes = 100
    backend.apply(*(Step(None, Push(queue, b"x" * 60)) for queue in "aaab"))
    jobs, _ = backend.reserve(["a", "b"], 10)
    assert [job.queue for job in jobs] == ["a", "a"]
    assert len(backend.reserve(["a", "b"], 10)[0]) == 2


def test_the_lease_of_a_large_message_is_longer(backend: DatabaseBackend, timing: Timing) -> None:
    timing.bytes_a_second = 50
    backend.apply(Step(None, Push("a", b"x" * 500)))
    backend.reserve(["a"])
    timing.skew += 10.5
    assert backend.reserve(["a"])[0] == []
    timing.skew += 1
    assert len(backend.reserve(["a"])[0]) == 1


def test_several_that_expire_come_first_by_the_ends_of_their_leases(
    backend: DatabaseBackend, timing: Timing
) -> None:
    backend.apply(*(Step(None, Push("a", b"%d" % n)) for n in range(250)))
    jobs, _ = backend.reserve(["a"], 249)
    backend.apply(*(Step(job, Renew(10.0 + n)) for n, job in enumerate(reversed(jobs))))
    timing.skew += 1000
    order: list[int] = []
    while jobs := backend.reserve(["a"], 250)[0]:
        order += [int(job.raw_body) for job in jobs]
        backend.apply(*(job.delete() for job in jobs))
    assert order == [*range(248, -1, -1), 249]  # which was ready


def test_another_process_adopts_what_was_started(backend: DatabaseBackend, another: Opener) -> None:
    backend.apply(Step(None, Push("a", b"1")))
    (job,), _ = backend.reserve(["a"])
    assert another().adopt(job.fence) is None  # it was not started, and comes back by itself
    backend.apply(Step(job, Start(60.0, b"notes")))
    adopted = another().adopt(job.fence)
    assert adopted is not None
    assert (adopted.started, adopted.attempts, adopted.notes) == (True, 1, b"notes")
    assert another().apply(adopted.delete())[0].applied
    assert another().adopt(job.fence) is None
    assert backend.apply(job.delete())[0].lost


# -- many at once ---------------------------------------------------------------------------------


def test_threads_get_each_message_once(backend: DatabaseBackend) -> None:
    backend.apply(*(Step(None, Push("a", b"%d" % n)) for n in range(200)))
    seen: list[bytes] = []

    def work(_number: int) -> None:
        while jobs := backend.reserve(["a"], 7)[0]:
            for job in jobs:
                (deleted, _) = backend.apply(job.delete(), Step(None, Set("k", job.id)))
                if deleted.applied:
                    seen.append(job.raw_body)
        backend.close()

    in_threads(4, work)
    assert sorted(seen) == sorted(b"%d" % n for n in range(200))


def test_of_many_that_expect_nothing_one_writes(backend: DatabaseBackend) -> None:
    applied: list[tuple[int, int]] = []

    def work(number: int) -> None:
        for key in range(20):
            claim = Step(None, Expect(f"k{key}", None), Set(f"k{key}", str(number)))
            if backend.apply(claim)[0].applied:
                applied.append((key, number))
        backend.close()

    in_threads(4, work)
    assert sorted(key for key, _ in applied) == list(range(20))
    assert all(backend.read(f"k{key}") == [str(number)] for key, number in applied)


def test_a_latch_counts_what_arrives_at_once(backend: DatabaseBackend) -> None:
    backend.apply(Step(None, Open("l", Push("then", b"all"))))
    backend.apply(Step(None, Extend("l", 80), Close("l")))

    def work(number: int) -> None:
        for member in range(number * 20, number * 20 + 20):
            backend.apply(Step(None, Arrive("l", member, failed=member % 10 == 5, label="f")))
        backend.close()

    in_threads(4, work)
    latch = backend.latch("l", labels=3)
    assert latch is not None
    assert (latch.done, latch.failed, latch.labels) == (72, 8, ("f", "f", "f"))
    assert backend.sizes("then").ready >= 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_has_a_connection_of_its_own(backend: DatabaseBackend, file: Path) -> None:
    backend.apply(Step(None, Push("a", b"parent")))
    child = os.fork()
    if child == 0:
        try:
            backend.apply(Step(None, Push("a", b"child")))
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    backend.apply(Step(None, Push("a", b"parent")))
    assert [job.raw_body for job in backend.reserve(["a"], 9)[0]] == [
        b"parent", b"child", b"parent",
    ]  # fmt: skip


# -- waiting --------------------------------------------------------------------------------------

_LONG = 60.0
"""Seconds of a wait that something ends."""


@contextmanager
def after(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    timer = threading.Timer(seconds, action)
    timer.start()
    yield
    timer.join()


def waited(backend: DatabaseBackend, timeout: float = _LONG, wake: int | None = None) -> float:
    started = time.monotonic()
    backend.wait(["a", "b"], timeout, wake)
    return time.monotonic() - started


def pusher(another: Opener, queue: str) -> Callable[[], object]:
    def push() -> None:
        other = another()
        other.apply(Step(None, Push(queue, b"1")))
        other.close()

    return push


def test_waiting_ends_with_a_push_of_another(backend: DatabaseBackend, another: Opener) -> None:
    began = time.monotonic()
    with after(0.3, pusher(another, "b")):
        assert waited(backend) < _LONG / 2
    assert time.monotonic() - began > 0.2
    assert backend.reserve(["b"])[0]
    with after(0.3, pusher(another, "elsewhere")):
        assert waited(backend, 0.9) >= 0.85


def test_waiting_ends_when_a_message_is_due_or_its_lease_ends(backend: DatabaseBackend) -> None:
    began = time.monotonic()
    backend.apply(Step(None, Push("a", b"1", 0.4)))
    assert waited(backend) < _LONG / 2
    assert time.monotonic() - began > 0.3
    backend.timing.hold = 0.4
    began = time.monotonic()
    wait_for(lambda: backend.reserve(["a"])[0], "the message that is due")
    assert waited(backend) < _LONG / 2
    assert time.monotonic() - began > 0.3
    assert waited(backend) < _LONG / 2


@pytest.mark.parametrize("number", [None, 1500])
def test_waiting_ends_by_a_descriptor(backend: DatabaseBackend, number: int | None) -> None:
    reader, writer = os.pipe()
    if number is not None:
        try:
            os.dup2(reader, number)
        except OSError:
            pytest.skip("fewer descriptors are allowed")
    with after(0.3, lambda: os.write(writer, b"x")):
        assert waited(backend, wake=number or reader) < _LONG / 2
    for descriptor in {reader, writer, number or reader}:
        os.close(descriptor)


# -- what has expired -----------------------------------------------------------------------------


def test_expired_facts_are_removed_now_and_then(
    backend: DatabaseBackend, file: Path, timing: Timing
) -> None:
    old: Sequence[Step] = [Step(None, Raise(f"s{n:04}", 1, "x", 10.0)) for n in range(1500)]
    backend.apply(*old)
    timing.skew += 11
    assert backend.scan("s") == []
    for n in range(500):
        backend.apply(Step(None, Set("lives", str(n))))
    assert count(file, "qframe_facts") == 1


def test_expired_latches_are_removed_now_and_then(
    backend: DatabaseBackend, file: Path, timing: Timing
) -> None:
    backend.apply(Step(None, Open("old", Push("a", b""), ttl=10.0)))
    backend.apply(Step(None, Extend("old", 1500), *(Arrive("old", n) for n in range(1500))))
    assert count(file, "qframe_latch_members") == 1500
    timing.skew += 11
    assert backend.latch("old") is None
    for n in range(4):
        backend.apply(Step(None, Open(f"new{n}", Push("a", b""))))
    assert count(file, "qframe_latches") == 4
    assert count(file, "qframe_latch_members") == 0


def test_a_file_that_was_removed_is_made_anew(backend: DatabaseBackend, file: Path) -> None:
    backend.apply(Step(None, Push("a", b"gone")))
    for each in file.parent.glob(f"{file.name}*"):
        each.unlink()
    backend.wait(["a"], 0)
    backend.apply(Step(None, Push("a", b"new")))
    (job,), _ = backend.reserve(["a"], 9)
    assert job.raw_body == b"new"
    assert backend.apply(Step(job, Delete()))[0].applied


def test_closing_what_the_collector_has_closed_keeps_nothing_of_its_callers(
    backend: DatabaseBackend,
) -> None:
    class Local:
        pass

    def caller() -> weakref.ref[Local]:
        local = Local()
        session.close()
        return weakref.ref(local)

    session = backend.database.session()
    with session:
        assert session._link is not None
        session._link.driver.close()
    gc.disable()
    try:
        assert caller()() is None
    finally:
        gc.enable()
