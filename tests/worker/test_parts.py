"""The worker's small parts, where no process is needed."""

from __future__ import annotations

import faulthandler
import math

import pytest

from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.store import Store, pause_key
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.worker import StopReason, WorkerOptions, memory
from qframe.worker.control import Control, number
from qframe.worker.prefetch import Prefetch
from qframe.worker.watchdog import Watchdog

# -- how many ahead -----------------------------------------------------------------------------


def test_one_is_reserved_until_a_job_was_short() -> None:
    assert Prefetch().limit() == 1


def test_short_jobs_raise_the_number_to_its_limit() -> None:
    ahead = Prefetch()
    limits = []
    for _ in range(60):
        ahead.ran(0.0001)
        limits.append(ahead.limit())
    assert limits == sorted(limits)
    assert limits[-1] == 100


def test_it_is_about_what_is_done_in_20_ms() -> None:
    ahead = Prefetch()
    for _ in range(200):
        ahead.ran(0.002)
    assert 9 <= ahead.limit() <= 10


def test_one_slow_job_counts_at_once() -> None:
    ahead = Prefetch()
    for _ in range(200):
        ahead.ran(0.0001)
    ahead.ran(3)
    assert ahead.limit() == 1


def test_it_recovers_from_a_slow_job_soon() -> None:
    ahead = Prefetch()
    ahead.ran(3600)
    for _ in range(30):
        ahead.ran(0.0001)
    assert ahead.limit() > 20


def test_a_clock_that_stands_still_is_harmless() -> None:
    ahead = Prefetch()
    for _ in range(100):
        ahead.ran(0)
    assert ahead.limit() == 100


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
    # Put back afterwards: the next fork would arm it in earnest.
    monkeypatch.setattr("qframe.worker.watchdog._armed_until", 0.0)
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


# -- what the store tells -----------------------------------------------------------------------


class Memory(Store):
    """A store that can be out of order."""

    def __init__(self, **values: str) -> None:
        super().__init__(MemoryBackend())
        for key, value in values.items():
            self.set(key, value)
        self.down = False
        self.looks = 0

    def get(self, *keys: str) -> list[str | None]:
        self.looks += 1
        if self.down:
            raise BackendUnavailable("down")
        return super().get(*keys)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("qframe.worker.control.time.monotonic", lambda: now[0])
    return now


def test_a_restart_is_a_token_that_changed(clock: list[float]) -> None:
    store = Memory(restart="old")
    control = Control(store, "c", ["q"], force=False)
    control.look()
    assert control.ends is None
    store.set("restart", "new")
    clock[0] += 0.5
    control.look()
    assert control.ends is None, "looked at once a second only"
    clock[0] += 0.6
    control.look()
    assert control.ends is StopReason.RESTART


def test_the_first_token_is_a_restart_too(clock: list[float]) -> None:
    store = Memory()
    control = Control(store, "c", ["q"], force=False)
    control.look()
    store.set("restart", "first")
    clock[0] += 2
    control.look()
    assert control.ends is StopReason.RESTART


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
    for key in store.keys(""):
        store.delete(key)
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
    assert control.ends is None


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
        StopReason.LIFESPAN: 1,
        StopReason.MEMORY: 12,
        StopReason.LOST_BACKEND: 69,
    }


def test_the_resident_size_is_about_right() -> None:
    before = memory.resident()
    assert 10 < before < 2000
    kept = bytearray(b"x" * 50_000_000)
    assert 40 < memory.resident() - before < 70
    del kept


@pytest.mark.parametrize(
    ("told", "means"), [(None, 0), ("", 0), ("7", 7), ("-1", 0), ("²", 0), ("9" * 5000, 0)]
)
def test_a_number_in_the_store_that_nobody_means_is_none(told: str | None, means: int) -> None:
    assert number(told) == means
