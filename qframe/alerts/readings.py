"""Readings: what alert rules check, read from the backends.

One look asks each connection for each thing once, and stops asking one that does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial

from qframe import rules
from qframe.alerts.life import Evaluation, RuleFinding
from qframe.alerts.view import ConnectionView
from qframe.drivers import process
from qframe.exceptions import BackendUnavailable, QframeError
from qframe.forecast.reading import QueueForecast, forecasts
from qframe.forecast.words import sentence
from qframe.manager import QueueManager
from qframe.metrics.series import Pair
from qframe.payload.text import count_of, is_queue_pattern, one_line
from qframe.payload.timing import lasting
from qframe.rules import Rule
from qframe.worker import roster
from qframe.worker.roster import Entry

_SILENT = 2 * roster.BEAT
"""Seconds after which a worker whose entry does not change counts as gone."""
_CUT_OFF = 5.0
"""Seconds after which a worker whose entry expired counts as gone: it had time to write again."""
_FORECAST = 60.0
"""Seconds for which a forecast is used: it reads two weeks of metrics."""
_RECENT = 600.0
"""Seconds for which a single look reports a dead worker."""


def works(entry: Entry, queue: str) -> bool:
    """Whether a worker takes the jobs of a queue."""
    wanted = [each for each in entry.queues if not each.startswith("!")]
    skipped = [each[1:] for each in entry.queues if each.startswith("!")]
    return any(fnmatchcase(queue, each) for each in wanted) and not any(
        fnmatchcase(queue, each) for each in skipped
    )


class Readings:
    """Evaluates the rules for some connections; remembers which workers were alive.

    With `once` there is a single look: it reports a dead worker for ten minutes, since nothing
    records that it was reported.
    """

    def __init__(
        self, manager: QueueManager, only: str | None = None, *, once: bool = False
    ) -> None:
        self._manager = manager
        self._only = only
        self._once = once
        self._beats: dict[str, tuple[float, float]] = {}
        """By worker: the last sign of life, and when it was first seen."""
        self._noted_at = time.monotonic()
        self._gone: dict[str, dict[str, float]] = {}
        """By connection, its workers whose entries are gone, and when that was first seen."""
        self._forecasts: dict[tuple[str, str, float], tuple[float, list[QueueForecast]]] = {}
        """By connection, queue and hours: forecasts, and when they were made."""

    def look(self, wanted: Sequence[Rule]) -> Evaluation:
        """Evaluates once. Never raises `BackendUnavailable`."""
        views = {each.name: ConnectionView(each) for each in self._manager.holding_jobs(self._only)}
        for rule in wanted:
            if rule.connection and rule.connection not in views and self._only is None:
                views[rule.connection] = ConnectionView(self._manager.connection(rule.connection))
        self._note_signs_of_life(list(views.values()))
        seen = Evaluation()
        for rule in wanted:
            mine = [each for name, each in views.items() if rule.connection in {"", name}]
            if rule.subject in rules.OF_OUTBOX:
                self._try(rule, "", seen, lambda rule=rule: self._of_outbox(rule))  # type: ignore[misc]
            elif rule.subject == "no worker" and not rule.queues[len(rule.names) :]:
                self._try(rule, "", seen, lambda rule=rule, mine=mine: self._no_worker(rule, mine))  # type: ignore[misc]
            else:
                for view in mine:
                    self._try(
                        rule,
                        view.name,
                        seen,
                        lambda rule=rule, view=view: _FINDERS[rule.subject](self, rule, view),  # type: ignore[misc]
                    )
        return seen

    @staticmethod
    def _try(
        rule: Rule, name: str, seen: Evaluation, find: Callable[[], Iterator[RuleFinding]]
    ) -> None:
        try:
            seen.found += find()
        except QframeError as error:
            seen.unknown[rule.text, name] = one_line(str(error), 200)

    # -- of queues --------------------------------------------------------------------------------

    def _wait(self, rule: Rule, view: ConnectionView) -> Iterator[RuleFinding]:
        for queue in view.queues(rule):
            waits = view.oldest(queue)
            if waits is not None and rule.is_broken_by(waits):
                text = f"the next job of {view.name}:{queue} has waited {lasting(waits)}"
                yield RuleFinding(rule, view.name, queue, waits, text)

    def _size(self, rule: Rule, view: ConnectionView) -> Iterator[RuleFinding]:
        for queue in view.queues(rule):
            sizes = view.sizes(queue)
            kinds = ("ready", "delayed", "reserved") if rule.subject == "size" else (rule.subject,)
            size = sum(sizes.get(kind) or 0 for kind in kinds)
            if rule.is_broken_by(size):
                kind = "" if rule.subject == "size" else f"{rule.subject} "
                has = count_of(size, f"{kind}job", f"{kind}jobs")
                text = f"{view.name}:{queue} has {has}"
                yield RuleFinding(rule, view.name, queue, size, text)

    def _paused(self, rule: Rule, view: ConnectionView) -> Iterator[RuleFinding]:
        for queue, since in view.pauses().items():
            seconds = time.time() - since
            if (not queue or rule.is_about(queue)) and rule.is_broken_by(seconds):
                name = f"{view.name}:{queue}" if queue else f"all of {view.name}"
                text = f"{name} has been paused for {lasting(seconds)}"
                yield RuleFinding(rule, view.name, queue, seconds, text)

    def _behind(self, rule: Rule, view: ConnectionView) -> Iterator[RuleFinding]:
        named = rule.names if rule.queues and len(rule.names) == len(rule.queues) else ("",)
        for each in (one for queue in named for one in self._forecast(rule, view, queue)):
            if not each.unknown and rule.is_about(each.queue) and rule.is_broken_by(each.behind):
                text = f"{view.name}:{each.queue} {sentence(each, rule.limit)}"
                yield RuleFinding(rule, view.name, each.queue, each.behind, text)

    def _forecast(self, rule: Rule, view: ConnectionView, queue: str) -> list[QueueForecast]:
        key, now = (view.name, queue, rule.span), time.monotonic()
        at, known = self._forecasts.get(key, (-_FORECAST, []))
        if now - at >= _FORECAST:
            hours = rule.span / 3600
            known = view.ask(key, lambda: forecasts(self._manager, view.connection, hours, queue))
            self._forecasts[key] = now, known
        return known

    def _counted(self, rule: Rule, view: ConnectionView) -> Iterator[RuleFinding]:
        by_class = is_queue_pattern(rule.job)
        groups: dict[Pair, list[float]] = {}
        if not by_class:
            for queue in rule.names if rule.queues else ("",):
                groups[Pair(queue, rule.job)] = [0, 0]
        for pair, fields in view.counted(rule.span).items():
            if not pair.job or not rule.is_about(pair.queue):
                continue
            if rule.job and not fnmatchcase(pair.job, rule.job):
                continue
            key = Pair(pair.queue if rule.queues else "", pair.job if by_class else rule.job)
            counts = groups.setdefault(key, [0, 0])
            totals = {field: sum(slots.values()) for field, slots in fields.items()}
            counts[0] += totals.get(rules.COUNTED[rule.subject], 0)
            bases = ("done", "failed") if rule.subject == "failed" else ("started",)
            counts[1] += sum(totals.get(base, 0) for base in bases)
        for key, (count, base) in groups.items():
            value = count
            if rule.percent:
                if not base:
                    continue
                value = 100 * count / base
            if rule.is_broken_by(value):
                yield RuleFinding(
                    rule, view.name, _about(key), value, _words(rule, view, key, count, base)
                )

    # -- of workers -------------------------------------------------------------------------------

    def _note_signs_of_life(self, views: Sequence[ConnectionView]) -> None:
        """Notes the signs of life of all workers, and when they changed.

        Time is not counted as silence if a connection did not answer, or this process was stopped
        for longer than an entry lives.
        """
        now = time.monotonic()
        listened = now - self._noted_at < roster.TTL
        beats: dict[str, tuple[float, float]] = {}
        for view in views:
            with suppress(QframeError):
                for each in view.entries():
                    before = self._beats.get(each.id) if listened else None
                    same = before is not None and before[0] == each.beat_at
                    beats[each.id] = before if same and before else (each.beat_at, now)
        self._beats, self._noted_at = beats, now

    def _is_there(self, entry: Entry) -> bool:
        if entry.is_gone:
            return False
        mine = (process.NAME, process.place(), process.pid())
        _, since = self._beats.get(entry.id, (0.0, time.monotonic()))
        return (entry.host, entry.place, entry.pid) == mine or time.monotonic() - since < _SILENT

    def _dead(self, rule: Rule, view: ConnectionView) -> Iterator[RuleFinding]:
        for entry in view.entries():
            if not self._is_there(entry):
                yield from self._died(rule, view, entry, _SILENT)
        for entry in self._expired(view):
            forget = partial(view.forget, entry)
            for found in self._died(rule, view, entry, roster.TTL):
                yield found._replace(settle=forget)

    def _expired(self, view: ConnectionView) -> Iterator[Entry]:
        """Yields the workers that died, of those whose entries are gone.

        A worker on another machine may only have been cut off, and write again in a moment.
        """
        now, before = time.monotonic(), self._gone.get(view.name, {})
        dead = view.dead_workers()
        gone = self._gone[view.name] = {each.id: before.get(each.id, now) for each in dead}
        for entry in dead:
            if self._once:
                is_dead = time.time() - entry.beat_at < _RECENT
            else:
                is_dead = entry.is_gone or now - gone[entry.id] >= _CUT_OFF
            if is_dead:
                yield entry

    def _died(
        self, rule: Rule, view: ConnectionView, entry: Entry, silent: float
    ) -> Iterator[RuleFinding]:
        queues = entry.queues or (view.connection.default_queue,)
        if any(map(rule.is_about, queues)):
            what = f"{entry.host}:{entry.pid}"
            how = "has died" if entry.is_gone else f"was not heard of for {silent:g} s"
            text = f"the worker {what} of {view.name} {how}"
            yield RuleFinding(rule, view.name, what, max(0.0, time.time() - entry.beat_at), text)

    def _run(self, rule: Rule, view: ConnectionView) -> Iterator[RuleFinding]:
        longest: dict[str, RuleFinding] = {}
        for entry in view.entries():
            for job in entry.jobs if self._is_there(entry) else ():
                seconds = time.time() - job.since
                known = longest.get(job.name)
                if (
                    rule.is_about(job.queue)
                    and (not rule.job or fnmatchcase(job.name, rule.job))
                    and rule.is_broken_by(seconds)
                    and (known is None or known.value < seconds)
                ):
                    where = f"{view.name}:{job.queue} on {entry.host}:{entry.pid}"
                    text = f"{job.name} of {where} has run for {lasting(seconds)}"
                    longest[job.name] = RuleFinding(rule, view.name, job.name, seconds, text)
        yield from longest.values()

    def _no_worker(self, rule: Rule, views: Sequence[ConnectionView]) -> Iterator[RuleFinding]:
        """Checks all connections: a named queue may be worked on any of them."""
        there = [each for view in views for each in view.entries() if self._is_there(each)]
        for queue in rule.names or ("",):
            if not any(works(each, queue) if queue else True for each in there):
                text = f"no worker works on {queue}" if queue else "no worker runs"
                at = f" of {rule.connection}" if rule.connection else ""
                yield RuleFinding(rule, rule.connection, queue, 0.0, text + at)

    def _no_worker_of(self, rule: Rule, view: ConnectionView) -> Iterator[RuleFinding]:
        there = [each for each in view.entries() if self._is_there(each)]
        for queue in view.queues(rule):
            if not any(works(each, queue) for each in there):
                yield RuleFinding(
                    rule, view.name, queue, 0.0, f"no worker works on {view.name}:{queue}"
                )

    # -- of connections ---------------------------------------------------------------------------

    def _down(self, rule: Rule, view: ConnectionView) -> Iterator[RuleFinding]:
        try:
            view.answers()
        except BackendUnavailable as error:
            yield RuleFinding(rule, view.name, "", 0.0, f"{view.name} does not answer: {error}")

    def _of_outbox(self, rule: Rule) -> Iterator[RuleFinding]:
        outbox = self._manager.outbox()
        for lag in () if outbox is None else outbox.lags():
            if rule.connection not in {"", lag.connection} or self._only not in {
                None, lag.connection,
            }:  # fmt: skip
                continue
            if rule.subject == "set aside":
                value: float = lag.set_aside
                has = count_of(value, "dispatch", "dispatches")
                text = f"the outbox has set {has} for {lag.connection} aside"
            else:
                value = lag.oldest
                has = count_of(lag.waiting, "dispatch", "dispatches")
                text = (
                    f"the outbox holds {has} for {lag.connection}, the oldest for {lasting(value)}"
                )
            if rule.is_broken_by(value):
                yield RuleFinding(rule, lag.connection, "", value, text)


_FINDERS: dict[str, Callable[[Readings, Rule, ConnectionView], Iterator[RuleFinding]]] = {
    "wait": Readings._wait,  # noqa: SLF001 (its own)
    **dict.fromkeys(rules.SIZES, Readings._size),  # noqa: SLF001 (its own)
    **dict.fromkeys(rules.COUNTED, Readings._counted),  # noqa: SLF001 (its own)
    "paused": Readings._paused,  # noqa: SLF001 (its own)
    rules.BEHIND: Readings._behind,  # noqa: SLF001 (its own)
    "run": Readings._run,  # noqa: SLF001 (its own)
    "dead worker": Readings._dead,  # noqa: SLF001 (its own)
    "no worker": Readings._no_worker_of,  # noqa: SLF001 (its own)
    rules.DOWN: Readings._down,  # noqa: SLF001 (its own)
}


def _about(key: Pair) -> str:
    return f"{key.job} on {key.queue}" if key.job and key.queue else key.job or key.queue


def _words(rule: Rule, view: ConnectionView, key: Pair, count: float, base: float) -> str:
    where = f"{view.name}:{key.queue}" if key.queue else view.name
    what = count_of(base if rule.percent else count, "job", "jobs")
    what = f"{count:,.0f} of {what}" if rule.percent else what
    of = f" ({key.job})" if key.job else ""
    return f"{what} {rule.subject} in {lasting(rule.span)} on {where}{of}"
