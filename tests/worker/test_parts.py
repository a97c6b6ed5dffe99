"""The worker's small parts, where no process is needed."""

from __future__ import annotations

import faulthandler
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from qframe import Queueable
from qframe.contracts import History, Store
from qframe.exceptions import BackendUnavailable, ConfigurationError, JobTimedOut
from qframe.worker import StopReason, WorkerOptions, memory, retry
from qframe.worker.ahead import Ahead
from qframe.worker.control import Control, pause_key
from qframe.worker.watchdog import Watchdog

# -- how many ahead -----------------------------------------------------------------------------


def test_one_is_reserved_until_a_job_was_short() -> None:
    assert Ahead().limit() == 1


def test_short_jobs_raise_the_number_to_its_limit() -> None:
    ahead = Ahead()
    limits = []
    for _ in range(60):
        ahead.ran(0.0001)
        limits.append(ahead.limit())
    assert limits == sorted(limits)
    assert limits[-1] == 50


def test_it_is_about_what_is_done_in_20_ms() -> None:
    ahead = Ahead()
    for _ in range(200):
        ahead.ran(0.002)
    assert 9 <= ahead.limit() <= 10


def test_one_slow_job_counts_at_once() -> None:
    ahead = Ahead()
    for _ in range(200):
        ahead.ran(0.0001)
    ahead.ran(3)
    assert ahead.limit() == 1


def test_it_recovers_from_a_slow_job_soon() -> None:
    ahead = Ahead()
    ahead.ran(3600)
    for _ in range(30):
        ahead.ran(0.0001)
    assert ahead.limit() > 20


def test_a_clock_that_stands_still_is_harmless() -> None:
    ahead = Ahead()
    for _ in range(100):
        ahead.ran(0)
    assert ahead.limit() == 50


# -- the watchdog -------------------------------------------------------------------------------


class Arming:
    """Stands for `faulthandler` and the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.armed: list[float] = []
        self.cancelled = 0
        monkeypatch.setattr("qframe.worker.watchdog.time.monotonic", lambda: self.now)
        monkeypatch.setattr(faulthandler, "dump_traceback_later", self._arm)
        monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", self._cancel)

    def _arm(self, seconds: float, **options: object) -> None:
        assert options == {"exit": True, "file": 2}
        self.armed.append(self.now + seconds)

    def _cancel(self) -> None:
        self.cancelled += 1


@pytest.fixture
def arming(monkeypatch: pytest.MonkeyPatch) -> Arming:
    return Arming(monkeypatch)


def test_a_job_after_a_pause_is_covered_exactly(arming: Arming) -> None:
    Watchdog(enabled=True).cover(65)
    assert arming.armed == [1065]


def test_jobs_in_quick_succession_arm_it_about_once_a_second(arming: Arming) -> None:
    dog = Watchdog(enabled=True)
    for _ in range(1000):
        dog.cover(65)
        needed = arming.now + 65
        assert needed <= arming.armed[-1] <= needed + 1.001
        arming.now += 0.01
    assert 9 <= len(arming.armed) <= 22


def test_an_earlier_deadline_arms_it_at_once(arming: Arming) -> None:
    dog = Watchdog(enabled=True)
    dog.cover(65)
    arming.now += 0.01
    dog.cover(3)
    assert arming.now + 3 <= arming.armed[-1] <= arming.now + 4


def test_a_later_deadline_is_never_cut_short(arming: Arming) -> None:
    dog = Watchdog(enabled=True)
    dog.cover(3)
    arming.now += 0.01
    dog.cover(65)
    assert arming.armed[-1] >= arming.now + 65


def test_without_a_timeout_nothing_is_covered(arming: Arming) -> None:
    dog = Watchdog(enabled=True)
    dog.cover(0)
    assert (arming.armed, arming.cancelled) == ([], 0)
    dog.cover(5)
    dog.cover(0)
    assert arming.cancelled == 1


def test_it_is_cancelled_once(arming: Arming) -> None:
    dog = Watchdog(enabled=True)
    dog.cover(5)
    dog.cancel()
    dog.cancel()
    assert arming.cancelled == 1
    dog.cover(5)
    assert len(arming.armed) == 2


def test_off_the_main_thread_there_is_none(arming: Arming) -> None:
    dog = Watchdog(enabled=False)
    dog.cover(5)
    dog.cancel()
    assert (arming.armed, arming.cancelled) == ([], 0)


# -- limits -------------------------------------------------------------------------------------


class Plain(Queueable):
    def handle(self) -> None: ...


class Set(Queueable):
    tries = 4
    timeout = 7
    max_exceptions = 2
    backoff = (1, 5)
    fail_on_timeout = True

    def handle(self) -> None: ...


class Zero(Queueable):
    tries = 0
    timeout = 0
    backoff = 0

    def handle(self) -> None: ...


class OfTheAttempt(Queueable):
    def backoff(self, attempt: int, error: BaseException) -> list[float]:
        return [attempt * 10.0, 99.0]

    def handle(self) -> None: ...


OPTIONS = WorkerOptions(tries=3, timeout=60, backoff=(2, 4))


class FakeJob:
    """As much of a job as the limits look at."""

    name = "a job"

    def __init__(self, attempts: int, history: History | None = None) -> None:
        self._attempts = attempts
        self.history = history or History()

    def attempts(self) -> int:
        return self._attempts


def limits(job_class: type[Queueable] | None = None, **message: Any) -> retry.Limits:
    return retry.Limits(job_class, message, OPTIONS)


def test_the_class_wins_then_the_payload_then_the_worker() -> None:
    sent = {"maxTries": 9, "timeout": 30, "maxExceptions": 5, "failOnTimeout": True}
    of_class, of_payload, of_worker = limits(Set, **sent), limits(Plain, **sent), limits(Plain)
    assert (of_class.tries, of_class.timeout, of_class.max_exceptions) == (4, 7, 2)
    assert (of_payload.tries, of_payload.timeout, of_payload.max_exceptions) == (9, 30, 5)
    assert (of_worker.tries, of_worker.timeout, of_worker.max_exceptions) == (3, 60, 0)
    assert of_class.fails_on_timeout
    assert not of_payload.fails_on_timeout, "the class as deployed says no"
    assert limits(None, **sent).fails_on_timeout


def test_zero_of_a_class_is_no_limit_not_nothing() -> None:
    zero = limits(Zero, maxTries=9, timeout=30)
    assert (zero.tries, zero.timeout) == (0, 0)
    assert not zero.exhausted(10**6, History())
    assert zero.backoff(Zero(), FakeJob(3), ValueError()) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, "5", True, None, [], {}])
def test_nonsense_in_a_payload_is_as_if_it_were_not_there(value: object) -> None:
    assert limits(Plain, maxTries=value).tries == 3
    assert limits(Plain, timeout=value).timeout == 60


def test_tries_count_starts_without_releases() -> None:
    history = History().started(1, "h", 1, 0).ended("released").started(2, "h", 1, 0)
    assert not limits(maxTries=2).exhausted(2, history)
    assert limits(maxTries=2).exhausted(3, history)
    assert limits(maxTries=1).exhausted(1, History())
    assert not limits(maxTries=1).exhausted(0, History())


def test_retry_until_replaces_tries() -> None:
    assert not limits(maxTries=1, retryUntil=time.time() + 60).exhausted(500, History())
    assert limits(maxTries=0, retryUntil=time.time() - 1).exhausted(0, History())


def test_max_exceptions_ends_before_the_tries_do() -> None:
    raised = History().started(1, "h", 1, 0).ended("error", "x").started(2, "h", 1, 0)
    assert limits(maxTries=9, maxExceptions=2).ends_with(ValueError(), FakeJob(2, raised))  # type: ignore[arg-type]
    assert not limits(maxTries=9, maxExceptions=3).ends_with(ValueError(), FakeJob(2, raised))  # type: ignore[arg-type]
    died = History().started(1, "h", 1, 0).started(2, "h", 1, 0)
    assert not limits(maxTries=9, maxExceptions=2).ends_with(ValueError(), FakeJob(2, died))  # type: ignore[arg-type]


def test_fail_on_timeout_is_about_timeouts_only() -> None:
    assert limits(Set).ends_with(JobTimedOut("t"), FakeJob(1))  # type: ignore[arg-type]
    assert not limits(Set).ends_with(ValueError(), FakeJob(1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("job", "message", "expected"),
    [
        (Set(), {}, [1, 5, 5, 5]),
        (Set(), {"backoff": "60"}, [1, 5, 5, 5]),
        (Plain(), {"backoff": "7,8"}, [7, 8, 8, 8]),
        (Plain(), {"backoff": 9}, [9, 9, 9, 9]),
        (Plain(), {"backoff": "soon"}, [2, 4, 4, 4]),
        (Plain(), {"backoff": "-3"}, [0, 0, 0, 0]),
        (Plain(), {}, [2, 4, 4, 4]),
        (None, {}, [2, 4, 4, 4]),
        (OfTheAttempt(), {}, [10, 99, 99, 99]),
    ],
)
def test_backoff(job: Queueable | None, message: dict[str, Any], expected: list[float]) -> None:
    found = limits(type(job) if job else None, **message)
    given = [found.backoff(job, FakeJob(n), ValueError()) for n in (1, 2, 3, 4)]  # type: ignore[arg-type]
    assert given == expected


def test_backoff_counts_failures_not_releases() -> None:
    history = History().started(1, "h", 1, 0).ended("released").started(2, "h", 1, 0)
    assert limits().backoff(None, FakeJob(2, history), ValueError()) == 2  # type: ignore[arg-type]


def test_the_reason_tells_every_attempt() -> None:
    history = (
        History()
        .started(1, "alpha", 11, 1_700_000_000)
        .ended("error", "ValueError: one")
        .started(2, "beta", 22, 1_700_000_100)
    )
    error = retry.exceeded(FakeJob(2, history), limits(maxTries=2))  # type: ignore[arg-type]
    text = str(error)
    assert "a job may be started 2 times and was started 2 times" in text
    assert (
        "attempt 1 on alpha, pid 11, started 2023-11-14 22:13:20 UTC, error (ValueError: one)"
        in text
    )
    assert "attempt 2 on beta, pid 22" in text
    assert "never ended" in text
    assert "\n" not in text


# -- what the store tells -----------------------------------------------------------------------


class Memory(Store):
    """A store that can be out of order."""

    def __init__(self, **values: str) -> None:
        self.values = dict(values)
        self.down = False
        self.looks = 0

    def get(self, *keys: str) -> list[str | None]:
        self.looks += 1
        if self.down:
            raise BackendUnavailable("down")
        return [self.values.get(key) for key in keys]

    def set(self, key: str, value: str, ttl: float | None = None) -> None:
        self.values[key] = value

    def add(self, key: str, value: str, ttl: float | None = None) -> bool:
        raise NotImplementedError

    def delete(self, key: str, value: str | None = None) -> bool:
        return self.values.pop(key, None) is not None

    def keys(self, prefix: str) -> Sequence[str]:
        return sorted(key for key in self.values if key.startswith(prefix))

    def increment(self, amounts: Mapping[str, int], marker: str, step: str) -> bool:
        raise NotImplementedError

    def swap(
        self, changes: Mapping[str, tuple[str | None, str | None]], ttl: float | None = None
    ) -> bool:
        raise NotImplementedError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("qframe.worker.control.time.monotonic", lambda: now[0])
    return now


def test_a_restart_is_a_token_that_changed(clock: list[float]) -> None:
    store = Memory(restart="old")
    control = Control(store, "c", ["q"], force=False)
    control.look()
    assert not control.restart
    store.set("restart", "new")
    clock[0] += 0.5
    control.look()
    assert not control.restart, "looked at once a second only"
    clock[0] += 0.6
    control.look()
    assert control.restart


def test_the_first_token_is_a_restart_too(clock: list[float]) -> None:
    store = Memory()
    control = Control(store, "c", ["q"], force=False)
    control.look()
    store.set("restart", "first")
    clock[0] += 2
    control.look()
    assert control.restart


def test_pauses_of_queues_and_of_everything(clock: list[float]) -> None:
    store = Memory()
    control = Control(store, "c", ["a", "b"], force=False)
    control.look()
    assert control.active == ("a", "b")
    steps: list[tuple[str, tuple[str, ...]]] = [
        (pause_key("c", "a"), ("b",)),
        (pause_key("other"), ("b",)),
        (pause_key("c", "b"), ()),
    ]
    for key, active in steps:
        store.set(key, "1")
        clock[0] += 2
        control.look()
        assert control.active == active
    store.values.clear()
    store.set(pause_key("c"), "1")
    clock[0] += 2
    control.look()
    assert not control.active


def test_force_ignores_the_pause_of_everything_only(clock: list[float]) -> None:
    store = Memory(**{pause_key("c"): "1", pause_key("c", "a"): "1"})
    control = Control(store, "c", ["a", "b"], force=True)
    control.look()
    assert control.active == ("b",)


def test_a_store_that_is_silent_changes_nothing_and_is_reported_once(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    store = Memory(**{pause_key("c", "a"): "1"})
    control = Control(store, "c", ["a", "b"], force=False)
    control.look()
    store.down = True
    for _ in range(5):
        clock[0] += 2
        control.look()
    assert control.active == ("b",)
    assert len(caplog.records) == 1
    store.down = False
    clock[0] += 2
    control.look()
    store.down = True
    clock[0] += 2
    control.look()
    assert len(caplog.records) == 2


def test_the_first_look_says_that_the_store_is_down(clock: list[float]) -> None:
    store = Memory(restart="old")
    store.down = True
    control = Control(store, "c", ["q"], force=False)
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            control.look()
    store.down = False
    control.look()
    assert not control.restart


# -- options and reasons ------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["timeout", "grace", "sleep", "rest", "memory", "max_time"])
@pytest.mark.parametrize("value", [-1, -0.1, math.nan, math.inf, "5", True, None])
def test_times_must_be_numbers_from_0(option: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} must be a number, 0 or more"):
        WorkerOptions(**{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["tries", "max_jobs"])
@pytest.mark.parametrize("value", [-1, 1.5, "5", True, None])
def test_counts_must_be_whole_numbers_from_0(option: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} must be a whole number"):
        WorkerOptions(**{option: value})  # type: ignore[arg-type]


def test_an_empty_backoff_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="backoff"):
        WorkerOptions(backoff=())
    with pytest.raises(ConfigurationError, match="backoff"):
        WorkerOptions(backoff=(1, -1))


def test_exit_codes() -> None:
    codes = {reason: reason.exit_code for reason in StopReason}
    special = {reason: code for reason, code in codes.items() if code}
    assert special == {
        StopReason.TIMED_OUT: 1,
        StopReason.JOB_INTERRUPTED: 1,
        StopReason.MEMORY: 12,
        StopReason.LOST_BACKEND: 69,
    }


def test_the_resident_size_is_about_right() -> None:
    before = memory.resident()
    assert 10 < before < 2000
    kept = bytearray(b"x" * 50_000_000)
    assert 40 < memory.resident() - before < 70
    del kept
