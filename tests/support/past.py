"""Two weeks of metrics and live workers, as a forecast finds them, without running a job."""

from __future__ import annotations

from collections.abc import Callable

from qframe.connection import Connection
from qframe.metrics import kept
from qframe.metrics.kept import BY_TEN_MINUTES, BY_TWO_HOURS, Metrics, Resolution
from qframe.metrics.series import PUSHED, RUN, STARTED, Pair
from qframe.worker import roster
from qframe.worker.options import WorkerOptions

DAY, HOUR = 86400, 3600
MAIL = "mail"

Came = Callable[[float], float]
"""How many jobs come a minute, at a moment."""


def remember(
    here: Connection, now: float, came: Came, *, run: float = 0.8, days: int = 14, queue: str = MAIL
) -> None:
    """Write the metrics of so many days, as workers leave them; a job runs for `run` seconds."""
    for kind, since in (
        (BY_TWO_HOURS, days * DAY),
        (BY_TEN_MINUTES, min(days, 2) * DAY + 2 * HOUR),
    ):
        _remember(here, kind, now - since, now, came, run, queue)


def _remember(
    here: Connection, kind: Resolution, since: float, now: float, came: Came, run: float, queue: str
) -> None:
    spans: dict[int, dict[str, dict[int, int]]] = {}
    for minute in range(int(since // 60), int(now // 60)):
        count, slot = round(came(minute * 60.0)), minute * 60 // kind.step
        fields = spans.setdefault(minute * 60 // kind.span, {})
        counts = {PUSHED: count, STARTED: count, "done": count, RUN.total: round(count * run * 1e6)}
        for field, number in counts.items():
            slots = fields.setdefault(field, {})
            slots[slot] = slots.get(slot, 0) + number
    metrics = Metrics(here.store, here.name)
    for span, counted in spans.items():
        key = metrics._span_key(kind, span * kind.span)
        series = kept._series(here.store.get(key)[0])
        here.store.set(key, kept._text(series | {Pair(queue, "app.Send"): counted}))


def work(here: Connection, count: int, *queues: str) -> None:
    for _ in range(count):
        entry = roster.introduced(WorkerOptions(), here.name, queues or (MAIL,))
        here.store.set(entry.key, entry.model_dump_json())
