"""What is said again, by the driver or by whoever calls it, counts once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qframe.contracts.step import Add, Delete, Expect, Push, Release, Set, Start, Step
from qframe.drivers.redis.backend import RedisBackend
from qframe.exceptions import BackendUnavailable
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisServer

QUEUE = "q"


def _given_up(proxy: Proxy, act: Callable[[], object]) -> BackendUnavailable:
    """Do something of which no answer comes, neither the first nor the second time."""
    proxy.switch(Mode.CUT_AFTER_REQUEST, only=b"EVAL", times=2)
    with pytest.raises(BackendUnavailable) as raised:
        act()
    proxy.switch(Mode.PASS)
    return raised.value


def test_whoever_pushes_again_after_an_error_pushes_once(
    proxy: Proxy, behind: RedisBackend
) -> None:
    steps = [Step(None, Push(QUEUE, b"a")), Step(None, Push(QUEUE, b"b", 5.0), Add("n", 1))]
    behind.sizes(QUEUE)
    _given_up(proxy, lambda: behind.apply(*steps))
    behind.apply(Step(None, Push(QUEUE, b"other")))
    again = [Step(None, Push(QUEUE, b"a")), Step(None, Push(QUEUE, b"b", 5.0), Add("n", 1))]
    assert all(result.applied for result in behind.apply(*again))
    assert behind.sizes(QUEUE).total == 3
    assert behind.read("n") == ["1"]
    behind.apply(*again)
    assert behind.sizes(QUEUE).total == 5


def test_of_many_that_broke_off_the_rest_is_pushed(proxy: Proxy, behind: RedisBackend) -> None:
    steps = [Step(None, Push(QUEUE, b"%d" % n)) for n in range(12_000)]
    behind.sizes(QUEUE)
    proxy.switch(Mode.CUT_AFTER_REQUEST, only=b"\r\n11999\r\n", times=2)
    with pytest.raises(BackendUnavailable):
        behind.apply(*steps)
    proxy.switch(Mode.PASS)
    assert len(behind.apply(*steps)) == 12_000
    assert behind.sizes(QUEUE).ready == 12_000


def test_what_arrives_late_is_not_done_again(proxy: Proxy, behind: RedisBackend) -> None:
    behind.sizes(QUEUE)
    proxy.switch(Mode.BLACKHOLE)
    with pytest.raises(BackendUnavailable):
        behind.apply(Step(None, Push(QUEUE, b"a")))
    proxy.switch(Mode.PASS)
    behind.apply(Step(None, Push(QUEUE, b"a")))
    for _ in range(20):
        assert behind.sizes(QUEUE).ready == 1


def test_a_refusal_is_told_again(proxy: Proxy, behind: RedisBackend) -> None:
    step = Step(None, Expect("k", "1"), Set("k", "2"))
    behind.apply(Step(None, Set("k", "3")))
    proxy.switch(Mode.CUT_AFTER_REQUEST, only=b"EVAL", times=1)
    refused, pushed = behind.apply(step, Step(None, Push(QUEUE, b"a")))
    assert (refused.key, refused.holds) == ("k", "3")
    assert pushed.applied


@pytest.mark.parametrize("operation", [Delete(), Release(), Release(5.0)])
def test_whoever_settles_again_after_an_error_knows_that_it_is_done(
    operation: Delete | Release, proxy: Proxy, behind: RedisBackend
) -> None:
    behind.apply(Step(None, Push(QUEUE, b"a")))
    (job,), _ = behind.reserve([QUEUE])
    behind.apply(Step(job, Start(60)))
    error = _given_up(proxy, lambda: behind.apply(Step(job, operation)))
    (again,) = behind.apply(Step(job, operation))
    assert again.lost
    assert again.of_end(unanswered=error.in_doubt).applied


def test_whoever_starts_again_after_an_error_starts_once(
    proxy: Proxy, behind: RedisBackend
) -> None:
    behind.apply(Step(None, Push(QUEUE, b"a")))
    (job,), _ = behind.reserve([QUEUE])
    _given_up(proxy, lambda: behind.apply(Step(job, Start(60))))
    assert not job.started
    assert behind.apply(Step(job, Start(60)))[0].applied
    assert job.attempts == 1


def test_text_that_cannot_be_encoded_is_the_callers_fault(
    server: RedisServer, backend: RedisBackend
) -> None:
    with pytest.raises(UnicodeEncodeError):
        backend.apply(Step(None, Set("k", "\ud800")))
    assert backend.read("k") == [None]
