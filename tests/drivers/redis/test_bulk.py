"""Many messages at once: their order, and that each is one."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from qframe import Queueable, QueueManager, dispatch, manager
from qframe.contracts.step import Delete, Push, Start, Step
from qframe.drivers.redis.backend import RedisBackend
from qframe.exceptions import BackendUnavailable
from qframe.testing.conformance.steps import drained, push
from tests.drivers.redis.acts import comes_back, ready
from tests.drivers.redis.conftest import Opener
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisServer

QUEUE = "q"


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def taken(backend: RedisBackend, limit: int = 100) -> list[bytes]:
    found: list[bytes] = []
    while jobs := backend.reserve([QUEUE], limit)[0]:
        found += [job.raw_body for job in jobs]
    return found


@pytest.mark.parametrize("limit", [7, 100, 1000])
def test_ten_thousand_due_at_once_come_in_their_order(backend: RedisBackend, limit: int) -> None:
    backend.apply(*(Step(None, Push(QUEUE, raw, 5.0)) for raw in numbered(10_000)))
    backend.timing.hold = 60.0
    backend.timing.skew = 6.0
    assert backend.sizes(QUEUE).ready == 10_000
    assert taken(backend, limit) == numbered(10_000)


def test_a_thousand_leases_that_end_at_once_are_all_given_back_before_the_rest(
    backend: RedisBackend,
) -> None:
    push(backend, *numbered(1200))
    assert len(backend.reserve([QUEUE], 1000)[0]) == 1000
    backend.timing.skew = 60.0
    backend.timing.hold = 600.0
    assert backend.sizes(QUEUE).ready == 1200
    found = taken(backend)
    assert sorted(found) == sorted(numbered(1200))
    assert found[-200:] == numbered(1200)[-200:]


def test_the_same_bytes_five_hundred_times_are_as_many(backend: RedisBackend) -> None:
    for delay in (0.0, 1.0):
        backend.apply(*(Step(None, Push(QUEUE, b"same", delay)) for _ in range(500)))
        backend.timing.skew += 2.0
        jobs = [job for _ in range(5) for job in backend.reserve([QUEUE], 100)[0]]
        assert [job.raw_body for job in jobs] == [b"same"] * 500
        assert len({job.fence for job in jobs}) == 500
        steps = [step for job in jobs for step in (Step(job, Start(60)), Step(job, Delete()))]
        assert all(result.applied for step in steps for result in backend.apply(step))
        assert ready(backend, QUEUE) == 0


def test_several_workers_share_what_is_due_and_none_is_taken_twice(
    backend: RedisBackend, open_backend: Opener
) -> None:
    backend.apply(*(Step(None, Push(QUEUE, raw, 0.2)) for raw in numbered(3000)))
    found: list[bytes] = []

    def work() -> None:
        own = open_backend()
        own.timing.hold = 60.0
        while len(found) < 3000:
            found.extend(job.raw_body for job in own.reserve([QUEUE], 10)[0])
        own.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == sorted(numbered(3000))


# -- a dispatch that is sent again ----------------------------------------------------------------


class Welcome(Queueable):
    def handle(self) -> None: ...


class Only(Welcome):
    unique = True


@pytest.fixture
def sending(server: RedisServer, proxy: Proxy, fresh: Any) -> QueueManager:
    """Queues on a server behind the proxy, used by `dispatch`."""
    connection = {"driver": "redis", "url": server.url_at(proxy.port), "queue": QUEUE}
    made = QueueManager(
        {
            "default": "redis",
            "connections": {"redis": connection},
            "signing_key": "a key of the tests that is long enough",
        }
    )
    manager.use(made)
    return made


@pytest.mark.parametrize("job", [Welcome, Only])
@pytest.mark.parametrize("delay", [0, 60])
def test_a_dispatch_sent_again_after_it_raised_is_one_job(
    sending: QueueManager, proxy: Proxy, job: type[Welcome], delay: int
) -> None:
    pending = dispatch(job()).delay(delay)
    sending.connection().sizes()
    proxy.switch(Mode.CUT_AFTER_REQUEST, only=b"EVAL", times=2)
    with pytest.raises(BackendUnavailable):
        pending.send()
    proxy.switch(Mode.PASS)
    uuid = pending.send()
    assert uuid
    assert not pending.is_duplicate
    assert sending.connection().size() == 1


def test_what_too_few_replicas_have_is_one_job_when_it_is_sent_again(
    sending: QueueManager, backend: RedisBackend
) -> None:
    settings: Any = sending.connection().settings
    settings.min_replicas, settings.replica_timeout = 1, 0.05
    pending = dispatch(Welcome())
    for _ in range(3):
        with pytest.raises(BackendUnavailable, match="queued, but only 0 of 1 replicas"):
            pending.send()
    assert comes_back(backend, QUEUE)
    assert drained(backend) == []
