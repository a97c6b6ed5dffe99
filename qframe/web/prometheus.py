"""Prometheus: one page of metrics from the backends, right with any number of processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from qframe.metrics.series import (
    BOUNDS,
    MEASURED,
    MEMORY,
    OUTCOMES,
    PROCESSOR,
    PUSHED,
    RUN,
    RUN_BUT_DONE,
    STARTED,
    TIMED_OUT,
    WAIT,
    Fields,
    Histogram,
)
from qframe.operations.board import Board

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_SIZES = ("ready", "delayed", "reserved", "buried")
_LATE = 2.0
"""Seconds by which slow counts may be too old; older ones are counted while it waits."""
_JOB = ("connection", "queue", "job")


def exposition(board: Board) -> bytes:
    """Returns the page that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(board))
    lines = generate_latest(registry).decode().split("\n")
    return "\n".join(map(_printable, lines)).encode()


def _printable(line: str) -> str:
    """Escapes in names, which anybody may have pushed, what a terminal obeys."""
    if line.isprintable():
        return line
    # A label has two backslashes for one.
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return "".join(f"\\{c}" if len(c) > 1 else c for c in escaped)


class _Collector(Collector):
    """Asks the backends at each scrape."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterable[Metric]:
        totals = self._board.totals()
        yield from self._of_jobs(totals)
        yield from self._of_tags()
        yield from self._of_queues()
        yield from self._of_workers()
        failed = GaugeMetricFamily(
            "qframe_failed_jobs", "Failed jobs that a connection keeps.", labels=["connection"]
        )
        for name, count in self._board.failed.summary().kept_by.items():
            failed.add_metric([name], count)
        yield failed
        up = GaugeMetricFamily(
            "qframe_backend_up", "Whether a connection answers.", labels=["connection"]
        )
        for each in self._board.connections():
            up.add_metric([each.name], each.name not in self._board.silent)
        yield up

    def _of_jobs(self, totals: Sequence[tuple[str, str, str, Fields]]) -> Iterator[Metric]:
        pushed = CounterMetricFamily(
            "qframe_jobs_pushed", "Jobs that Python programs pushed.", labels=_JOB
        )
        started = CounterMetricFamily("qframe_jobs_started", "Attempts that began.", labels=_JOB)
        finished = CounterMetricFamily(
            "qframe_jobs_finished",
            "How reservations ended.",
            labels=[*_JOB, "outcome"],
        )
        late = CounterMetricFamily("qframe_jobs_timed_out", "Attempts over time.", labels=_JOB)
        ran = HistogramMetricFamily(
            "qframe_job_duration_seconds", "How long attempts ran.", labels=[*_JOB, "outcome"]
        )
        waited = HistogramMetricFamily(
            "qframe_job_wait_seconds", "From when a job was due to its first start.", labels=_JOB
        )
        for connection, queue, job, fields in totals:
            labels = [connection, queue, job]
            pushed.add_metric(labels, fields.get(PUSHED, 0))
            started.add_metric(labels, fields.get(STARTED, 0))
            late.add_metric(labels, fields.get(TIMED_OUT, 0))
            for outcome in OUTCOMES:
                named = [*labels, outcome.replace(" ", "_")]
                if outcome in fields:
                    finished.add_metric(named, fields[outcome])
                if outcome in RUN_BUT_DONE:
                    _add(ran, named, *_read(RUN_BUT_DONE[outcome], fields))
                else:
                    _add(ran, named, *_read_done(fields))
            _add(waited, labels, *_read(WAIT, fields))
        yield from (pushed, started, finished, late, ran, waited)
        processor = CounterMetricFamily(
            "qframe_job_processor_seconds", "Processor time, as far as it is known.", labels=_JOB
        )
        memory = GaugeMetricFamily(
            "qframe_job_memory_peak_bytes", "The largest process that ran one.", labels=_JOB
        )
        yield from _used(totals, processor, memory)

    def _of_tags(self) -> Iterator[Metric]:
        totals, labels = self._board.tag_totals(), ["connection", "queue", "tag"]
        if not totals:
            return
        started = CounterMetricFamily(
            "qframe_tag_jobs_started", "Attempts that began, by tag.", labels=labels
        )
        finished = CounterMetricFamily(
            "qframe_tag_jobs_finished",
            "How reservations ended, by tag.",
            labels=[*labels, "outcome"],
        )
        for connection, queue, tag, fields in totals:
            started.add_metric([connection, queue, tag], fields.get(STARTED, 0))
            for outcome in OUTCOMES:
                if outcome in fields:
                    name = outcome.replace(" ", "_")
                    finished.add_metric([connection, queue, tag, name], fields[outcome])
        ran = CounterMetricFamily("qframe_tag_run_seconds", "How long attempts ran.", labels=labels)
        waited = CounterMetricFamily(
            "qframe_tag_wait_seconds",
            "From when they were due to their first start.",
            labels=labels,
        )
        for connection, queue, tag, fields in totals:
            ran.add_metric([connection, queue, tag], fields.get(RUN.total, 0) / 1e6)
            waited.add_metric([connection, queue, tag], fields.get(WAIT.total, 0) / 1e6)
        yield from (started, finished, ran, waited)
        processor = CounterMetricFamily(
            "qframe_tag_processor_seconds", "Processor time, as far as it is known.", labels=labels
        )
        memory = GaugeMetricFamily(
            "qframe_tag_memory_peak_bytes", "The largest process that ran one.", labels=labels
        )
        yield from _used(totals, processor, memory)

    def _of_queues(self) -> Iterator[Metric]:
        labels = ["connection", "queue"]
        sizes = GaugeMetricFamily("qframe_queue_jobs", "Jobs by state.", labels=[*labels, "state"])
        oldest = GaugeMetricFamily(
            "qframe_queue_oldest_ready_seconds", "How long the next job has waited.", labels=labels
        )
        paused = GaugeMetricFamily("qframe_queue_paused", "Whether it is.", labels=labels)
        estimated = GaugeMetricFamily(
            "qframe_queue_jobs_estimated",
            "1 if the backend only estimates qframe_queue_jobs.",
            labels=labels,
        )
        for each in self._board.queues(late=_LATE):
            named = [each.connection, each.queue]
            for state in _SIZES:
                value = getattr(each, state)
                if value is not None:
                    sizes.add_metric([*named, state], value)
            if each.oldest_seconds is not None or each.ready == 0:
                oldest.add_metric(named, each.oldest_seconds or 0.0)
            paused.add_metric(named, each.paused)
            if each.approximate:
                estimated.add_metric(named, 1)
        yield from (sizes, oldest, paused, *([estimated] if estimated.samples else ()))

    def _of_workers(self) -> Iterator[Metric]:
        workers = GaugeMetricFamily(
            "qframe_workers", "Workers by state.", labels=["connection", "state"]
        )
        running = GaugeMetricFamily(
            "qframe_worker_jobs_running", "Jobs that run.", labels=["connection"]
        )
        longest = GaugeMetricFamily(
            "qframe_running_job_seconds", "How long the oldest one runs.", labels=_JOB
        )
        memory = GaugeMetricFamily(
            "qframe_process_resident_memory_bytes",
            "Of a worker.",
            labels=["connection", "host", "pid"],
        )
        counts: dict[tuple[str, str], int] = {}
        jobs: dict[str, int] = {}
        oldest: dict[tuple[str, str, str], float] = {}
        for each in self._board.workers():
            counts[each.connection, each.state] = counts.get((each.connection, each.state), 0) + 1
            jobs[each.connection] = jobs.get(each.connection, 0) + each.used
            memory.add_metric([each.connection, each.host, str(each.pid)], each.memory_mb * 2**20)
            for job in each.jobs:
                at = (each.connection, job.queue, job.job)
                oldest[at] = max(oldest.get(at, 0.0), job.seconds)
        for key, count in counts.items():
            workers.add_metric(key, count)
        for connection, count in jobs.items():
            running.add_metric([connection], count)
        for label, seconds in oldest.items():
            longest.add_metric(label, seconds)
        yield from (workers, running, longest, memory)


def _used(
    totals: Iterable[tuple[str, str, str, Fields]],
    processor: CounterMetricFamily,
    memory: GaugeMetricFamily,
) -> tuple[Metric, Metric]:
    """Adds processor time and memory, where they are known."""
    for *named, fields in totals:
        labels = [*map(str, named)]
        if MEASURED in fields:
            processor.add_metric(labels, fields.get(PROCESSOR, 0) / 1e6)
        if fields.get(MEMORY):
            memory.add_metric(labels, fields[MEMORY] * 2**20)
    return processor, memory


def _read(histogram: Histogram, fields: Fields) -> tuple[list[int], float]:
    """Returns the counts of a histogram's buckets, and its sum."""
    return histogram.counts(fields), fields.get(histogram.total, 0) / 1e6


def _read_done(fields: Fields) -> tuple[list[int], float]:
    """Returns the run times of done jobs: those of all jobs, less the others."""
    counts, seconds = _read(RUN, fields)
    for histogram in RUN_BUT_DONE.values():
        others, theirs = _read(histogram, fields)
        counts = [max(0, count - other) for count, other in zip(counts, others, strict=True)]
        seconds -= theirs
    return counts, max(0.0, round(seconds, 6))


def _add(
    family: HistogramMetricFamily, labels: list[str], counts: list[int], seconds: float
) -> None:
    """Adds a histogram, unless it is empty; each bucket includes those below it."""
    if not any(counts):
        return
    bounds = (*map(str, BOUNDS), "+Inf")
    below = map(float, itertools.accumulate(counts))
    family.add_metric(labels, [*zip(bounds, below, strict=True)], seconds)
