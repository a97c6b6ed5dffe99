"""Repeating: kills a job before each thing that lasts, runs it again, and compares the state."""

from __future__ import annotations

import contextlib
import difflib
import gc
import inspect
import pprint
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

from qframe.exceptions import Interruption, JobSuspended
from qframe.payload import tracebacks
from qframe.payload.text import one_line
from qframe.testing import calls, points, watched
from qframe.testing.fakes import Fake, fake
from qframe.worker import needs
from qframe.worker.attempt import Attempt
from qframe.worker.needs import Report
from qframe.worker.runner import Runner

__tracebackhide__ = True
"""pytest shows a failed assertion in the test, not in here."""

State = Callable[..., object]
Reset = Callable[[], object]
Run = Callable[..., Any]
"""Runs the next attempt of a job: with a killer, and after so many seconds."""
_MOST_POINTS = 200
_MOST_ATTEMPTS = 20
"""Attempts of a job that sleeps, or is tried again."""
_LONGEST = 4000
"""Characters of a difference."""
AT_END = "its end (all was done, and not yet acknowledged)"
AT_PAUSE = "it is given back to sleep or wait"


class JobKilled(Interruption):
    """The job was killed by a test. It cannot go on: each further commit or call raises it anew."""


class Point(NamedTuple):
    """Something that a job does and that lasts."""

    what: str
    place: str
    """File and line of the application's code."""

    def __str__(self) -> str:
        return f"{self.what} ({self.place})" if self.place else self.what


class Killer:
    """Notes the points of an attempt, and kills the job before one of them.

    `at` is the number of that point, from 0; None only notes them.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.points: list[Point] = []
        self.is_dead = False

    def __call__(self, what: str) -> None:
        """Note a point that is reached. Raises `JobKilled` before the one, and after it."""
        self.reach(what, _place())

    def reach(self, what: str, place: str = "") -> None:
        """Note a point at a place. Raises as a call does."""
        if not self.is_dead:
            self.points.append(Point(what, place))
            self.is_dead = len(self.points) - 1 == self.at
        if self.is_dead:
            raise JobKilled("the test has killed the job here")


class KillableRunner(Runner):
    """Runs an attempt that may die: then nothing is settled, and no hook called."""

    def __init__(self, killer: Killer, *arguments: Any) -> None:  # noqa: ANN401 (those of `Runner`)
        super().__init__(*arguments)
        self.killer = killer

    def perform(self, attempt: Attempt, need: needs.Run) -> Report:
        """Call the handler, and leave the life of a job that was killed."""
        token = points.reached.set(self.killer)
        try:
            report = super().perform(attempt, need)
            with contextlib.suppress(JobKilled):
                waits = isinstance(report.error, JobSuspended)
                self.killer.reach(AT_PAUSE if waits else AT_END)
            if self.killer.is_dead:
                _let_go(report.error)
                raise needs.Left
        finally:
            points.reached.reset(token)
        return report


def _let_go(error: BaseException | None) -> None:
    """Drop what a dead job holds, as the end of its process would: its connections are closed.

    What it has not dispatched yet is not dispatched by that: each point raises.
    """
    with warnings.catch_warnings():
        # Where it is an error, a connection that warns of its end would not end.
        warnings.simplefilter("ignore", ResourceWarning)
        if error is not None:
            traceback.clear_frames(error.__traceback__)
        gc.collect()  # all: what a job made may be old by now


def check(
    again: Callable[[], Run],
    shown: str,
    state: State | None,
    reset: Reset | None,
    restart: Reset | None = None,
) -> list[str]:
    """Kill a job before each point and compare. Returns the points. Raises `AssertionError`.

    `again` makes the job anew and returns what runs its first attempt.
    """
    if state is not None and reset is None:
        raise TypeError(
            "assert_repeatable needs reset=..., which makes the state of before the job again"
        )
    experiment = _Experiment(again, state, reset, restart)
    expected, found = experiment.whole(shown)
    if len(found) > _MOST_POINTS:
        raise AssertionError(
            f"{shown} does {len(found):,} things that last: that is more than {_MOST_POINTS}, so "
            "give it less to do"
        )
    wrong = [
        (point, why)
        for number, point in enumerate(found)
        if (why := experiment.killed(number, expected))
    ]
    if wrong:
        raise AssertionError(_told(shown, wrong, len(found)))
    return [str(each) for each in found]


class _Experiment:
    """Runs a job, whole or killed, each time from the same state."""

    def __init__(
        self,
        again: Callable[[], Run],
        state: State | None,
        reset: Reset | None,
        restart: Reset | None,
    ) -> None:
        self._again = again
        self._state: State = state or _dispatched
        self._takes_fake = bool(inspect.signature(self._state).parameters)
        self._reset = reset or (lambda: None)
        self._restart = restart or (lambda: None)

    def whole(self, shown: str) -> tuple[object, list[Point]]:
        """Run the job once; returns the state, and the points of its first attempt."""
        while True:
            before = calls.known()
            self._reset()
            killer = Killer()
            with fake() as queued, points.patched(), watched.patched():
                ran = _to_its_end(self._again(), killer)
                if ran.outcome != "done":
                    raise AssertionError(
                        f"{shown} must end well to be repeated: {ran!r}"
                    ) from ran.error
                found = self._read(queued)
            if calls.known() == before:  # else it has imported more, which was not patched
                return found, killer.points

    def killed(self, number: int, expected: object) -> str:
        """Kill the job before a point and run it again. Returns what differs; "" if nothing."""
        self._reset()
        killer = Killer(number)
        with fake() as queued, points.patched(), watched.patched():
            run = self._again()
            _to_its_end(run, killer)
            self._restart()
            try:
                ran = _to_its_end(run) if killer.is_dead else None
            except AssertionError as error:
                return str(error)
            if ran is not None and ran.outcome != "done":
                return f"the next attempt does not end well: {ran!r}"
            found = self._read(queued)
        return "" if found == expected else _difference(expected, found)

    def _read(self, queued: Fake) -> object:
        return self._state(queued) if self._takes_fake else self._state()


def _to_its_end(run: Run, killer: Killer | None = None) -> Any:  # noqa: ANN401 (a `Ran`)
    """Run attempts until the job ends. Returns the last one's result."""
    ran = run(killer)
    for _ in range(_MOST_ATTEMPTS):
        delay = ran.sleeps if ran.sleeps is not None else ran.delay
        if delay is None or (killer is not None and killer.is_dead):
            return ran
        ran = run(killer, delay)
    return ran


def _dispatched(queued: Fake) -> object:
    """Return what was dispatched, without ids and times."""
    jobs = [
        (each.connection, each.queue, each.name, each.payload.get("data"))
        for each in queued.dispatched()
    ]
    kinds = (queued.chains, queued.batches, queued.flows)
    return jobs, [len(each) for each in kinds]


def _place() -> str:
    """Return the innermost line of the application's code that is running here."""
    for frame in _frames():
        file = frame.f_code.co_filename
        if tracebacks.is_own(file) and not file.startswith("<"):
            return one_line(f"{file.rpartition('/')[2]}:{frame.f_lineno}", 80)
    return ""


def _frames() -> Iterator[FrameType]:
    """Yield what is running here, the innermost first, also what waits for this greenlet.

    SQLAlchemy's async engines commit in one.
    """
    greenlet = sys.modules.get("greenlet")
    waits: Any = greenlet and greenlet.getcurrent()
    frame: Any = sys._getframe(1)  # noqa: SLF001 (as `inspect` does)
    while frame is not None:
        yield frame
        frame = frame.f_back
        if frame is None and waits and (waits := waits.parent):
            frame = waits.gr_frame


def _told(shown: str, wrong: Sequence[tuple[Point, str]], count: int) -> str:
    """Return the message: each point at which a repetition differs, and how at the first."""
    point, why = wrong[0]
    others = [f"  - before {each}" for each, _ in wrong[1:]]
    text = f"{shown} is not repeatable: killed before {point} and run again, {why}"
    if others:
        text += f"\n{len(wrong)} of {count} points differ; the others:\n"
        text += "\n".join(others)
    return text


def _difference(expected: object, found: object) -> str:
    once, again = (pprint.pformat(each, width=100).splitlines() for each in (expected, found))
    if len(once) == len(again) == 1:
        lines = [f"  after one run: {once[0]}", f"  after this:    {again[0]}"]
    else:
        lines = [*difflib.unified_diff(once, again, "after one run", "after this", lineterm="")]
    text = "\n".join(lines)
    return f"the state differs:\n{text[:_LONGEST]}"
