"""Runs: the step that makes one run of a schedule, with all its expectations and the push.

The step that pushes the job compares and sets the schedule's track, so each planned time has one
job however many processes try. Where facts and messages are in different places, the message is
first stored in the track, and then pushed. A process that finds it there later pushes it again, and
the job's first start claims the run for one of the two (`qframe/features/scheduled.py`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qframe.connection import Connection
from qframe.contracts.step import Expect, Operation, Push, Result, Set, Step, Unset
from qframe.exceptions import InvalidPayload, InvalidSignature, QframeError
from qframe.features.base import Plan, Pushing
from qframe.features.context import Prepared, push_of
from qframe.features.refused import RefusedText, refuse
from qframe.payload import envelope, timing
from qframe.payload.scheduled import SCHEDULE, NamedRun
from qframe.payload.text import one_line
from qframe.schedules.definition import Schedule
from qframe.schedules.track import OpenPush, PastRun, ScheduleKeys, ScheduleTrack

_YEAR = 366 * 86400.0
_OVER = 7 * 86400.0


@dataclass(slots=True)
class RunPlan:
    """A run to be made."""

    schedule: Schedule
    at: float
    before: str
    """The track that it expects."""
    after: ScheduleTrack
    named: NamedRun
    pushing: Pushing
    plan: Plan
    pushes: tuple[Push, ...] = ()
    """What to push after the step, if the step cannot push."""


class RunMaker:
    """Makes the steps of one connection's schedules."""

    def __init__(self, connection: Connection, keys: ScheduleKeys) -> None:
        self.connection = connection
        self.keys = keys
        self.joint = connection.context.joint

    def run(
        self,
        schedule: Schedule,
        track: ScheduleTrack,
        at: float,
        guards: Sequence[Operation],
        *,
        manual: bool = False,
    ) -> RunPlan:
        """Plan a run. Raises `InvalidJob` or `PayloadTooLarge` if its job cannot be pushed."""
        terms, before = schedule.terms, track.text()
        named = NamedRun(
            schedule.title, at, track.number + 1, self.keys.scope, terms.calendar.zone,
            terms.overlap, claims=not self.joint,
        )  # fmt: skip
        made = self.connection.envelope(schedule.job, {SCHEDULE: named.wire()})
        delay = timing.seconds_until(schedule.job.delay) + _jitter(schedule, at)
        pushing = self.connection.pushing(schedule.job, made, terms.queue, delay)
        past = PastRun(at, round(time.time(), 3), made.uuid, named.number, manual)
        after = track.ran(past, track.at if manual else at)
        plan = Plan()
        self.connection.context.plan_push(pushing, plan)
        made_run = RunPlan(schedule, at, before, after, named, pushing, plan)
        if not self.joint:
            self._keep_push(made_run)
        key = self.keys.track(schedule.title)
        own: list[Operation] = [*guards, Expect(key, before)]
        if terms.overlap:
            own += [
                Expect(named.lock_key, None),
                Set(named.lock_key, made.uuid, terms.overlap + delay),
            ]
        if schedule.row is not None and terms.calendar.at is not None and not manual:
            own += [Unset(self.keys.row(schedule.title)), self.keys.mark()]  # it has no more runs
        plan.operations[:0] = [*own, Set(key, made_run.after.text(), self.kept(schedule, at))]
        return made_run

    def _keep_push(self, run: RunPlan) -> None:
        """Store the message in the track until it is pushed."""
        plan = run.plan
        run.pushes = tuple(each for each in plan.operations if type(each) is Push)
        plan.operations[:] = [each for each in plan.operations if type(each) is not Push]
        raw = run.pushing.raw.decode()
        opened = OpenPush(raw, run.pushing.queue, run.pushing.delay)
        run.after = run.after.opened(self._signed(run.schedule, opened))

    def _signed(self, schedule: Schedule, opened: OpenPush) -> OpenPush:
        context = self.connection.context
        if context.signer is None:
            return replace(opened, kept="")
        return replace(opened, kept=context.sealed(self._place(schedule), opened.text()))

    def _place(self, schedule: Schedule) -> str:
        """Return the place that a message in a track is signed for."""
        return f"{self.keys.track(schedule.title)}:open"

    def passing(
        self,
        schedule: Schedule,
        before: str,
        after: ScheduleTrack,
        guards: Sequence[Operation],
    ) -> Step:
        """Return the step that passes planned times without a run."""
        key = self.keys.track(schedule.title)
        kept = Set(key, after.text(), self.kept(schedule, after.at))
        return Step(None, *guards, Expect(key, before), kept)

    def beginning(self, schedule: Schedule, track: ScheduleTrack) -> Step:
        """Return the step that creates the track of a schedule, unless it exists."""
        key = self.keys.track(schedule.title)
        return Step(None, Expect(key, None), Set(key, track.text(), self.kept(schedule, track.at)))

    def kept(self, schedule: Schedule, at: float) -> float:
        """Return how long a track is kept: longer than until the next run."""
        coming = schedule.terms.calendar.next(at)
        return _OVER if coming is None else max(0.0, coming - at) + 1.2 * _YEAR

    # -- messages pushed after the step -----------------------------------------------------------

    def push_kept(self, run: RunPlan) -> ScheduleTrack:
        """Push what the step could not. Returns the track after that."""
        self.connection.backend.apply(Step(None, *run.pushes))
        return self._closed(run.schedule, run.after)

    def push_again(self, schedule: Schedule, track: ScheduleTrack) -> ScheduleTrack | None:
        """Push a stored message that may not have been pushed; None if another process does."""
        opened = track.open
        if opened is None:
            return track
        context = self.connection.context
        try:
            kept = context.opened(self._place(schedule), opened.kept or opened.text())
            prepared = Prepared(
                "", opened.raw.encode(), opened.queue, opened.delay, vouched=kept.vouched
            )
            said = envelope.parse(prepared.raw).get(SCHEDULE)
        except (InvalidSignature, InvalidPayload) as error:
            return self._refused(schedule, track, opened, error)
        number = opened.push + 1
        if isinstance(said, dict):
            changed = {SCHEDULE: {**said, "push": number}}
            prepared = context.changed(prepared, changed)
        pushing = context.pushing(prepared)
        changed_push = replace(opened, raw=pushing.raw.decode(), push=number)
        if kept.vouched:
            changed_push = self._signed(schedule, changed_push)
        again = track.opened(changed_push)
        (result,) = self.connection.backend.apply(self.passing(schedule, track.text(), again, ()))
        if not result.applied:
            return None
        self.connection.backend.apply(Step(None, push_of(pushing)))
        return self._closed(schedule, again)

    def _refused(
        self, schedule: Schedule, track: ScheduleTrack, opened: OpenPush, error: QframeError
    ) -> ScheduleTrack | None:
        """Continue without a message whose signature is invalid, and record it as failed."""
        text = opened.kept or opened.text()
        what = f"a run of the schedule {one_line(schedule.title, 150)}"
        refused = RefusedText(self.keys.track(schedule.title), text, what, error)
        closed = track.passed(track.at, "refused: its message is not signed").opened(None)
        step, plan = self.passing(schedule, track.text(), closed, ()), Plan()
        plan.operations += step.operations
        refuse(self.connection.context, plan, refused, one_line(opened.queue, 128))
        result = self.connection.context.apply(plan)
        return closed if result.applied else None

    def _closed(self, schedule: Schedule, track: ScheduleTrack) -> ScheduleTrack:
        closed = track.opened(None)
        (result,) = self.connection.backend.apply(self.passing(schedule, track.text(), closed, ()))
        return closed if result.applied else _read(result, closed)


def _read(result: Result, otherwise: ScheduleTrack) -> ScheduleTrack:
    return otherwise if result.holds is None else ScheduleTrack.read(result.holds)


def _jitter(schedule: Schedule, at: float) -> float:
    """Return the delay of a run, always the same for a name and planned time."""
    if not schedule.terms.spread:
        return 0.0
    drawn = hashlib.sha256(f"{schedule.title} {at:.0f}".encode()).digest()[:6]
    return round(int.from_bytes(drawn) / 2**48 * schedule.terms.spread, 3)
