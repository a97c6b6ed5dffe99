"""What may not break into a driver call waits until it has returned."""

# ruff: noqa: PT012 (what is tested is raised at the end of the block)

from __future__ import annotations

import signal
import threading
import time
import weakref
from collections.abc import Iterator
from types import FrameType

import pytest

from qframe.drivers import guard


class Cut(BaseException):
    pass


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    guard.forget_interruption()
    assert not guard.busy()


def test_outside_of_a_driver_call_it_raises_at_once() -> None:
    with pytest.raises(Cut):
        guard.interrupt(Cut())
    assert guard.pending() is None


def test_inside_it_waits_for_the_call_to_return() -> None:
    reached = []
    with pytest.raises(Cut), guard.guarded:
        guard.interrupt(Cut())
        assert isinstance(guard.pending(), Cut)
        reached.append("end of the call")
    assert reached == ["end of the call"]
    assert guard.pending() is None


def test_nested_it_waits_for_the_outermost_call() -> None:
    reached = []
    with pytest.raises(Cut), guard.guarded:
        with guard.guarded:
            guard.interrupt(Cut())
        reached.append("between")
        assert guard.busy()
    assert reached == ["between"]


def test_the_error_of_the_call_is_kept_as_its_context() -> None:
    with pytest.raises(Cut) as caught, guard.guarded:
        guard.interrupt(Cut())
        raise ValueError("of the driver")
    assert isinstance(caught.value.__context__, ValueError)


def test_an_interruption_that_comes_too_late_is_dropped() -> None:
    with guard.guarded:
        guard.interrupt(Cut())
        guard.forget_interruption()
    with guard.guarded:
        pass


def test_each_thread_is_busy_for_itself() -> None:
    seen = []
    with guard.guarded:
        thread = threading.Thread(target=lambda: seen.append(guard.busy()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_what_comes_before_the_next_call_happens_once_and_outside_of_it() -> None:
    happened: list[bool] = []

    def act() -> bool:
        happened.append(guard.busy())
        return True

    with guard.guarded:
        guard.before_next_call(act)
        with guard.guarded:
            pass
        assert happened == []
    assert happened == []
    for _ in range(2):
        with guard.guarded:
            assert happened == [False]


def test_what_could_not_be_done_yet_comes_before_the_call_after() -> None:
    happened: list[int] = []

    def act() -> bool:
        happened.append(1)
        return len(happened) == 3

    guard.before_next_call(act)
    for _ in range(5):
        with guard.guarded:
            pass
    assert happened == [1, 1, 1]


def test_what_was_interrupted_comes_again_before_the_next_call() -> None:
    happened: list[int] = []

    def act() -> bool:
        happened.append(1)
        if len(happened) == 1:
            raise Cut
        return True

    guard.before_next_call(act)
    with pytest.raises(Cut), guard.guarded:
        happened.append(100)
    assert not guard.busy()
    with guard.guarded:
        assert happened == [1, 1]


def test_it_is_for_the_thread_that_asked() -> None:
    happened: list[str] = []

    def act() -> bool:
        happened.append(threading.current_thread().name)
        return True

    def ask() -> None:
        guard.before_next_call(act)
        ready.set()
        go_on.wait(60)
        with guard.guarded:
            pass

    ready, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=ask, name="other")
    thread.start()
    ready.wait(60)
    with guard.guarded:
        assert happened == []
    go_on.set()
    thread.join()
    assert happened == ["other"]


def test_a_real_alarm_never_lands_inside_a_guarded_block() -> None:
    """An alarm every few hundred microseconds, over a second of guarded blocks."""
    inside = broken = 0

    def ring(_number: int, _frame: object) -> None:
        guard.interrupt(Cut())

    before = signal.signal(signal.SIGALRM, ring)
    try:
        end = time.monotonic() + 1
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0007)
        cuts = 0
        while time.monotonic() < end:
            try:
                with guard.guarded:
                    inside = 1
                    sum(range(200))
                    inside = 0
            except Cut:
                cuts += 1
                broken += inside
                inside = 0
    except Cut:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert broken == 0


class _Noisy:
    """Is interrupted in its finalizer, outside of any driver call."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGUSR1)
        time.sleep(0)


class _Watched:
    pass


def _in_a_callback() -> None:
    signal.raise_signal(signal.SIGUSR1)
    time.sleep(0)


@pytest.mark.parametrize("kind", ["del", "finalize"])
def test_a_signal_inside_a_finalizer_is_held_until_it_is_over(kind: str) -> None:
    """The interpreter swallows what a finalizer raises."""

    def interrupt(_number: int, frame: FrameType | None) -> None:
        guard.interrupt(Cut(), frame)

    def ring(_number: int, frame: FrameType | None) -> None:
        error = guard.pending()
        assert error is not None
        guard.interrupt(error, frame)

    before = signal.signal(signal.SIGUSR1, interrupt), signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(Cut):
            if kind == "del":
                _Noisy()
            else:
                watched = _Watched()
                weakref.finalize(watched, _in_a_callback)
                del watched
            time.sleep(2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGALRM, before[1])


@pytest.mark.parametrize("error", [None, ValueError("x")])
def test_the_depth_is_right_after_an_error(error: BaseException | None) -> None:
    try:
        with guard.guarded:
            if error is not None:
                raise error
    except ValueError:
        pass
    assert not guard.busy()
