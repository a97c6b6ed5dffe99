"""Waiting: ended by whatever may bring a job, and by nothing else for long."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from qframe.contracts import Capability
from tests.conformance.drivers import RETRY_AFTER, Bench
from tests.conformance.steps import begin, body, push, take

LONG = 60.0
"""A timeout that a working `wait` never reaches."""

SOON = 10.0
"""What is soon enough on a busy machine."""


class Waiting:
    """A thread in `wait`, and how long it has been there."""

    def __init__(self, bench: Bench, *queues: str, timeout: float = LONG) -> None:
        self._bench, self._queues, self._timeout = bench, queues or ("default",), timeout
        self._inside = threading.Event()
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()
        assert self._inside.wait(SOON)

    def _wait(self) -> None:
        queue = self._bench.another()
        queue.reserve(self._queues)
        self._inside.set()
        queue.wait(self._queues, self._timeout)
        queue.close()

    def ended(self, within: float = SOON) -> bool:
        self._thread.join(within)
        return not self._thread.is_alive()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def waited(bench: Bench, timeout: float, wake: int | None = None, *queues: str) -> float:
    began = time.monotonic()
    bench.queue.wait(queues or ("default",), timeout, wake)
    return time.monotonic() - began


class TestEveryDriver:
    def test_it_ends_after_the_timeout(self, bench: Bench) -> None:
        assert waited(bench, 0.3) < SOON

    def test_no_timeout_is_no_wait(self, bench: Bench) -> None:
        assert waited(bench, 0) < SOON / 2
        assert waited(bench, -1) < SOON / 2

    def test_it_ends_when_the_wake_descriptor_can_be_read(
        self, bench: Bench, pipe: tuple[int, int]
    ) -> None:
        readable, writable = pipe
        timer = threading.Timer(0.2, os.write, (writable, b"!"))
        timer.start()
        assert waited(bench, LONG, readable) < SOON
        timer.join()
        assert os.read(readable, 1) == b"!", "the worker reads what woke it"

    def test_it_ends_at_once_when_it_can_be_read_before(
        self, bench: Bench, pipe: tuple[int, int]
    ) -> None:
        os.write(pipe[1], b"!")
        assert waited(bench, LONG, pipe[0]) < SOON / 2


@pytest.mark.needs(Capability.WAIT | Capability.RESERVE)
class TestWoken:
    def test_nothing_to_come_is_waited_for_until_the_timeout(self, bench: Bench) -> None:
        assert waited(bench, 0.5) >= 0.45

    def test_a_job_that_is_there_ends_it_at_once(self, bench: Bench) -> None:
        push(bench, "a")
        assert waited(bench, LONG) < SOON / 2

    def test_a_push_from_elsewhere_ends_it(self, bench: Bench) -> None:
        client = bench.client()
        waiting = Waiting(bench)
        client.ask("push after", 0.3, "default", body("a"))
        assert waiting.ended()
        assert take(bench).uuid == "a"
        client.close()

    def test_pushes_from_elsewhere_end_it_every_time(self, bench: Bench) -> None:
        client = bench.client()
        for number in range(20):
            client.tell("push after", 0.02, "default", body(str(number)))
            assert waited(bench, LONG) < SOON
            begin(bench).delete()
            client.answer()
        client.close()

    def test_a_push_to_any_of_its_queues_ends_it(self, bench: Bench) -> None:
        client = bench.client()
        for queue in ("high", "low"):
            waiting = Waiting(bench, "high", "low")
            client.ask("push after", 0.1, queue, body("a"))
            assert waiting.ended()
            begin(bench, queue).delete()
        client.close()

    def test_a_push_by_another_thread_of_this_process_ends_it(self, bench: Bench) -> None:
        waiting = Waiting(bench)
        bench.queue.push_raw(body("a"))
        assert waiting.ended()

    def test_a_delay_that_ends_ends_it(self, bench: Bench) -> None:
        bench.queue.push_raw(body("a"), delay=0.4)
        assert 0.3 <= waited(bench, LONG) < SOON
        assert take(bench).uuid == "a"

    def test_a_delayed_push_that_becomes_the_next_one_due_ends_it_in_time(
        self, bench: Bench
    ) -> None:
        bench.queue.push_raw(body("far"), delay=3600)
        waiting = Waiting(bench)
        bench.queue.push_raw(body("near"), delay=0.4)
        assert waiting.ended()
        while not (jobs := bench.queue.reserve(["default"])):  # a wait may end early
            assert waited(bench, LONG) < SOON
        assert jobs[0].uuid == "near"

    @pytest.mark.needs(Capability.AHEAD)
    def test_a_hold_that_ends_ends_it(self, bench: Bench) -> None:
        push(bench, "a")
        take(bench)
        assert waited(bench, LONG) < SOON
        assert take(bench).uuid == "a"

    def test_a_lease_that_ends_ends_it(self, bench: Bench) -> None:
        push(bench, "a")
        begin(bench)
        bench.forward(RETRY_AFTER - 0.5)
        assert 0.2 <= waited(bench, LONG) < SOON
        assert begin(bench).attempts() == 2

    def test_a_release_ends_it(self, bench: Bench) -> None:
        push(bench, "a")
        job = begin(bench)
        waiting = Waiting(bench)
        job.release()
        assert waiting.ended()

    def test_a_kick_ends_it(self, bench: Bench) -> None:
        push(bench, "a")
        begin(bench).bury()
        waiting = Waiting(bench)
        assert not waiting.ended(within=0.2)
        bench.queue.kick()
        assert waiting.ended()

    def test_what_happens_in_other_queues_does_not_end_it(self, bench: Bench) -> None:
        push(bench, "a", queue="other")
        waiting = Waiting(bench, timeout=1.5)
        for number in range(5):
            push(bench, str(number), queue="other")
        assert not waiting.ended(within=0.2)
        assert waiting.ended()

    def test_a_waiting_worker_costs_next_to_nothing(self, bench: Bench) -> None:
        push(bench, "a", queue="other")
        bench.queue.push_raw(body("late"), delay=3600)
        began = time.thread_time()
        assert waited(bench, 1.0) >= 0.9
        assert time.thread_time() - began < 0.1
