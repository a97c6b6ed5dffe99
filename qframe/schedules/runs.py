"""Runs: the step that makes one run of a schedule, with all its expectations and the push.

The step that pushes the job compares and sets the schedule's progress, so each planned time has one
job however many processes try. Where facts and messages are in different places, the message is
first stored in the progress, and then pushed. A process that finds it there later pushes it again,
and the first of the two that is taken claims the run (`qframe/features/scheduled.py`).
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
from qframe.payload.signature import is_sealed, is_signed
from qframe.payload.text import one_line
from qframe.schedules.definition import Schedule
from qframe.schedules.state import PastRun, PendingPush, ScheduleKeys, ScheduleProgress

_YEAR = 366 * 86400.0
_OVER = 7 * 86400.0


@dataclass(slots=True)
class RunPlan:
    """A run to be made."""

    schedule: Schedule
    at: float
    before: str
    """The progress that it expects."""
    after: ScheduleProgress
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
        progress: ScheduleProgress,
        at: float,
        guards: Sequence[Operation],
        *,
        manual: bool = False,
    ) -> RunPlan:
        """Plan a run. Raises `InvalidJob` or `PayloadTooLarge` if its job cannot be pushed."""
        options, before = schedule.options, progress.text()
        named = NamedRun(
            schedule.title, at, progress.number + 1, self.keys.scope, options.calendar.zone,
            options.overlap, claims=not self.joint,
        )  # fmt: skip
        made = self.connection.envelope(schedule.job, {SCHEDULE: named.wire()})
        delay = timing.seconds_until(schedule.job.delay) + _jitter(schedule, at)
        pushing = self.connection.pushing(schedule.job, made, schedule.queue, delay)
        if schedule.row is not None and not is_sealed(schedule.row):
            pushing = replace(pushing, raw=made.raw)  # nobody vouches for what it runs
        past = PastRun(at, round(time.time(), 3), made.uuid, named.number, manual)
        after = progress.after_run(past, progress.at if manual else at)
        plan = Plan()
        self.connection.context.plan_push(pushing, plan)
        made_run = RunPlan(schedule, at, before, after, named, pushing, plan)
        if not self.joint:
            self._store_push(made_run)
        key = self.keys.progress(schedule.title)
        own: list[Operation] = [*guards, Expect(key, before)]
        if options.overlap:
            own += [
                Expect(named.lock_key, None),
                Set(named.lock_key, made.uuid, options.overlap + delay),
            ]
        if schedule.row is not None and options.calendar.at is not None and not manual:
            own += [Unset(self.keys.row(schedule.title)), self.keys.mark()]  # it has no more runs
        plan.operations[:0] = [*own, Set(key, made_run.after.text(), self.ttl(schedule, at))]
        return made_run

    def _store_push(self, run: RunPlan) -> None:
        """Store the message in the progress until it is pushed."""
        plan = run.plan
        run.pushes = tuple(each for each in plan.operations if type(each) is Push)
        plan.operations[:] = [each for each in plan.operations if type(each) is not Push]
        raw = run.pushing.raw.decode()
        pending = PendingPush(raw, run.pushing.queue, run.pushing.delay)
        run.after = run.after.with_pending(self._signed(run.schedule.title, pending))

    def _signed(self, name: str, pending: PendingPush) -> PendingPush:
        context = self.connection.context
        if context.signer is None or not is_signed(pending.raw.encode()):
            return replace(pending, signed="")
        return replace(pending, signed=context.sealed(self._place(name), pending.text()))

    def _place(self, name: str) -> str:
        """Return the place that a message in the progress of a schedule is signed for."""
        return f"{self.keys.progress(name)}:open"

    def skip_step(
        self,
        schedule: Schedule,
        before: str,
        after: ScheduleProgress,
        guards: Sequence[Operation],
    ) -> Step:
        """Return the step that skips planned times."""
        ttl = self.ttl(schedule, after.at)
        return Step(None, *guards, *self._changing(schedule.title, before, after, ttl))

    def _changing(
        self, name: str, before: str, after: ScheduleProgress, ttl: float
    ) -> tuple[Expect, Set]:
        key = self.keys.progress(name)
        return Expect(key, before), Set(key, after.text(), ttl)

    def create_step(self, schedule: Schedule, progress: ScheduleProgress) -> Step:
        """Return the step that creates the progress of a schedule, unless it exists."""
        key = self.keys.progress(schedule.title)
        return Step(
            None, Expect(key, None), Set(key, progress.text(), self.ttl(schedule, progress.at))
        )

    def ttl(self, schedule: Schedule, at: float) -> float:
        """Return how long the progress is stored: until well after the next run."""
        coming = schedule.options.calendar.next(at)
        return _OVER if coming is None else max(0.0, coming - at) + 1.2 * _YEAR

    # -- messages pushed after the step -----------------------------------------------------------

    def push_pending(self, run: RunPlan) -> ScheduleProgress:
        """Push what the step could not. Returns the progress after that."""
        self.connection.backend.apply(Step(None, *run.pushes))
        ttl = self.ttl(run.schedule, run.after.at)
        return self._finish_push(run.schedule.title, run.after, ttl)

    def repush(
        self, name: str, progress: ScheduleProgress, ttl: float = _OVER
    ) -> ScheduleProgress | None:
        """Push a stored message that may not have been pushed; None if another process does.

        The progress is then stored for `ttl` seconds; by default, as that of a schedule that has no
        more runs.
        """
        pending = progress.pending
        if pending is None:
            return progress
        context = self.connection.context
        try:
            kept = context.opened(self._place(name), pending.signed or pending.text())
            prepared = Prepared(
                "", pending.raw.encode(), pending.queue, pending.delay, vouched=kept.vouched
            )
            payload = envelope.parse(prepared.raw).get(SCHEDULE)
        except (InvalidSignature, InvalidPayload) as error:
            return self._refused(name, progress, pending, error, ttl)
        number = pending.push + 1
        if isinstance(payload, dict):
            changed = {SCHEDULE: {**payload, "push": number}}
            prepared = context.changed(prepared, changed)
        pushing = context.pushing(prepared)
        changed_push = replace(pending, raw=pushing.raw.decode(), push=number)
        if kept.vouched:
            changed_push = self._signed(name, changed_push)
        again = progress.with_pending(changed_push)
        changing = self._changing(name, progress.text(), again, ttl)
        (result,) = self.connection.backend.apply(Step(None, *changing))
        if not result.applied:
            return None
        self.connection.backend.apply(Step(None, push_of(pushing)))
        return self._finish_push(name, again, ttl)

    def _refused(
        self,
        name: str,
        progress: ScheduleProgress,
        pending: PendingPush,
        error: QframeError,
        ttl: float,
    ) -> ScheduleProgress | None:
        """Continue without a message whose signature is invalid, and record it as failed."""
        text = pending.signed or pending.text()
        what = f"a run of the schedule {one_line(name, 150)}"
        refused = RefusedText(self.keys.progress(name), text, what, error)
        skipped = progress.after_skip(progress.at, "refused: its message is not signed")
        closed = skipped.with_pending(None)
        plan = Plan()
        plan.operations += self._changing(name, progress.text(), closed, ttl)
        refuse(self.connection.context, plan, refused, one_line(pending.queue, 128))
        result = self.connection.context.apply(plan)
        return closed if result.applied else None

    def _finish_push(self, name: str, progress: ScheduleProgress, ttl: float) -> ScheduleProgress:
        done = progress.with_pending(None)
        changing = self._changing(name, progress.text(), done, ttl)
        (result,) = self.connection.backend.apply(Step(None, *changing))
        return done if result.applied else _read(result, done)


def _read(result: Result, otherwise: ScheduleProgress) -> ScheduleProgress:
    return otherwise if result.holds is None else ScheduleProgress.read(result.holds)


def _jitter(schedule: Schedule, at: float) -> float:
    """Return the delay of a run, always the same for a name and planned time."""
    if not schedule.options.spread:
        return 0.0
    drawn = hashlib.sha256(f"{schedule.title} {at:.0f}".encode()).digest()[:6]
    return round(int.from_bytes(drawn) / 2**48 * schedule.options.spread, 3)
