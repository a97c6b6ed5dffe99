"""`qframe top`, and `qframe` by itself: the state of everything, in a terminal."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from qframe import config as configuration
from qframe.console import place
from qframe.console.connections import configured
from qframe.console.numbers import seconds
from qframe.console.options import Config, ConnectionOption
from qframe.console.text import encodable, say, screen, size_text, table
from qframe.drivers.database.settings import DATABASE_FILE
from qframe.exceptions import ConfigurationError
from qframe.failed.filters import RUNNING, Filter
from qframe.operations import findings, lists, running, schedules
from qframe.operations.batches import BatchState
from qframe.operations.board import Board
from qframe.operations.deploys import DeployState
from qframe.operations.flows import FlowState
from qframe.operations.queues import QueueState
from qframe.payload.text import printable
from qframe.payload.timing import lasting

if TYPE_CHECKING:
    from rich.console import RenderableType

_EVERY = 2.0
_LINES = 10
_DAY = 24.0
_WIDEST = 160
_END = "x"
_NOBODY = "\x04"
"""What is read once the terminal has gone, and for Ctrl-D."""
_LOOK = 0.1
"""Seconds for reading the data of running jobs, if a filter asks for it."""
_ENTER = ("\r", "\n")
_ESCAPE = "\x1b"
_BACKSPACE = ("\x7f", "\b")
_MARKS = {"bad": "!!", "warn": " ! "}

Rows = Sequence[dict[str, Any]]


def top(
    *,
    every: Annotated[float, seconds("--every", help="Seconds between refreshes.")] = _EVERY,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Show problems, queues, failures and workers, live.

    Keys, as on the page: o overview, q queues, j jobs that run, f failed, w workers, b batches,
    l flows, c classes, s schedules, and / for a filter; also p supervisors; x or Ctrl-C ends
    it.

      qframe top
      qframe top --every 5
    """
    if not every >= 0.1:  # noqa: PLR2004 (as often as somebody could look)
        raise ConfigurationError(f"--every takes seconds, at least 0.1, not {every:g}")
    queues = configured(config)
    if connection is not None:
        queues.connection(connection)  # raises for an unknown one
    board = Board(queues, connection)
    if not sys.stdout.isatty():
        for each in _texts(board):
            say(each)
        return
    from rich.live import Live  # noqa: PLC0415 (rare, and it costs 0.1 s)

    view = _TopView()
    with (
        contextlib.suppress(KeyboardInterrupt),
        _interrupts() as interrupts,
        _keys() as pressed,
        Live(_shown(board, view), console=screen(), auto_refresh=False, screen=True) as live,
    ):
        while not interrupts:
            key = pressed(every)
            if key == _NOBODY or (key == _END and view.typed is None):
                return
            view.press(key)
            live.update(_shown(board, view), refresh=True)


def state() -> int:
    """Prints the overview in ten lines; returns the exit code."""
    queues = configured(None)
    where = place.of(queues, "")
    lines = [where.first_line(), *(f"{key}  {text}" for key, text in where.lines())]
    for each in [*lines, *_texts(Board(queues))][: _LINES - 1]:
        say(each)
    say("qframe --help lists the commands; qframe top and qframe web show more")
    return 0


def has_project() -> bool:
    """Whether there is a configuration or the default database here, or one is named."""
    here = configuration.here()
    return (
        bool(os.environ.get("QFRAME_CONFIG"))
        or configuration.find(here) is not None
        or (here / DATABASE_FILE).is_file()
    )


# -- what is shown --------------------------------------------------------------------------------


def _texts(board: Board) -> list[str]:
    """Returns lines: totals, what is wrong, and the busiest queues."""
    lines = [_summary(board)]
    wrong = _troubles(board)
    lines += [f"{mark:<4}{text}" for mark, text in wrong[:5]]
    if len(wrong) > 5:  # noqa: PLR2004 (so many are shown)
        lines.append(f"    and {len(wrong) - 5} more")
    lines += [f"    {each}" for each in _busiest(board)[:3]]
    return [printable(each, _WIDEST) for each in lines]


def _summary(board: Board) -> str:
    seen = findings.overview(board)
    return (
        f"ready {_size(seen.ready)}  delayed {_size(seen.delayed)}  running {seen.running:,}  "
        f"failed {seen.failed:,}  workers {seen.workers:,}  slots {seen.slots:,}"
        + "".join(f"  deployed {_deployed(each)}" for each in board.deploys(_DAY)[:1])
    )


def _deployed(deploy: DeployState) -> str:
    return f"{deploy.version or deploy.text} {lasting(deploy.seconds_ago)} ago"


def _busiest(board: Board) -> list[str]:
    busy = [each for each in board.queues() if each.ready or each.reserved]
    busy.sort(key=lambda each: -(each.oldest_seconds or 0.0))
    return [
        f"{each.connection}:{each.queue}  ready {_size(each.ready, each)}"
        f"  running {_size(each.reserved, each)}"
        + (f"  oldest waits {lasting(each.oldest_seconds)}" if each.oldest_seconds else "")
        for each in busy
    ]


class _TopView:
    """The current list and its filter, changed by keys."""

    def __init__(self) -> None:
        self.key = "o"
        self.filter = ""
        self.typed: str | None = None
        """A filter while it is typed."""

    @property
    def page(self) -> _TopPage:
        return _PAGES[self.key]

    def press(self, key: str) -> None:
        """Takes a key, or "" if none was pressed."""
        if self.typed is not None:
            self._type(key, self.typed)
        elif key in _PAGES:
            self.key, self.filter = key, ""
        elif key == "/":
            self.typed = self.filter

    def _type(self, key: str, typed: str) -> None:
        if key in _ENTER:
            self.filter, self.typed = typed, None
        elif key == _ESCAPE:
            self.typed = None
        elif key in _BACKSPACE:
            self.typed = typed[:-1]
        elif key.isprintable():
            self.typed = typed + key


def _shown(board: Board, view: _TopView) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415 (as above)
    from rich.text import Text  # noqa: PLC0415

    found: Rows = []
    nothing = "the filter chooses none" if view.filter else "nothing"
    try:
        found = view.page.rows(board, view.filter)
    except ConfigurationError as error:  # the filter is wrong
        nothing = str(error)
    keys = "  ".join(f"{key} {page.name}" for key, page in _PAGES.items())
    height = max(5, screen().size.height - 7)
    wanted = (
        view.filter if view.typed is None else f"{view.typed}_  (Enter filters, Escape does not)"
    )
    parts: list[RenderableType] = [
        Text(encodable(_summary(board)), style="bold"),
        Text(f"{view.page.name}    ({keys}  / filter  x end)", style="dim"),
        Text(encodable(f"filter: {printable(wanted, _WIDEST)}" if wanted else "")),
    ]
    if found:
        parts.append(table(found[:height], [*found[0]]))
        if len(found) > height:
            parts.append(Text(f"and {len(found) - height} more", style="dim"))
    else:
        parts.append(Text(encodable(nothing)))
    return Group(*parts)


def _troubles(board: Board) -> list[tuple[str, str]]:
    """Returns the active alerts, then what else is wrong, each with its mark."""
    alerts = [
        (_MARKS["bad"], f"alert for {lasting(each.seconds)}: {each.text}")
        for each in findings.alerts(board)
    ]
    return alerts + [(_MARKS[each.level], each.text) for each in findings.problems(board)]


_WRONG = lists.RowKind[tuple[str, str]](
    {"level": lambda row: [level for level, mark in _MARKS.items() if mark == row[0]]},
    parts={"what": lambda row: (row[1],)},
)


def _wrong(board: Board, wanted: str) -> Rows:
    chosen = _WRONG.chosen(_troubles(board), wanted)
    found = [{"": mark, "what is wrong": text} for mark, text in chosen]
    return found if found or wanted else [{"": "", "what is wrong": "nothing that is known"}]


def _queues(board: Board, wanted: str) -> Rows:
    return [
        {
            "queue": f"{each.connection}:{each.queue}" + " (paused)" * each.paused,
            "ready": _size(each.ready, each),
            "delayed": _size(each.delayed, each),
            "running": _size(each.reserved, each),
            "buried": _size(each.buried, each),
            "oldest": _time(each.oldest_seconds),
            "in/min": _count(each.in_per_minute),
            "out/min": _count(each.out_per_minute),
            "empty in": _time(each.empty_in_seconds),
        }
        for each in lists.QUEUES.chosen(board.queues(), wanted)
    ]


def _running(board: Board, wanted: str) -> Rows:
    return [
        {
            "job": job.job,
            "queue": f"{job.connection}:{job.queue}",
            "for": _time(job.seconds),
            "worker": f"{job.host}:{job.pid}",
            "uuid": job.uuid,
        }
        for job in running.listed(board, Filter(wanted, RUNNING), _LOOK).jobs
    ]


def _failed(board: Board, wanted: str) -> Rows:
    return [
        {
            "count": each.count,
            "job": each.job,
            "error": each.error,
            "last": each.last_at,
            "cause": each.cause,
        }
        for each in lists.CAUSES.chosen(board.failed.summary().causes, wanted)
        if not each.silenced
    ]


def _supervisors(board: Board, wanted: str) -> Rows:
    return [
        {
            "supervisor": f"{each.name} {each.host}:{each.pid}" + " (gone)" * each.gone,
            "queue": f"{each.connection}:{share.queue}",
            "processes": share.processes,
            "at most": each.most,
            "why": share.why,
        }
        for each in lists.SUPERVISORS.chosen(board.supervisors(), wanted)
        for share in each.queues
    ]


def _workers(board: Board, wanted: str) -> Rows:
    return [
        {
            "worker": f"{each.host}:{each.pid}",
            "queues": f"{each.connection}:{','.join(each.queues)}",
            "state": each.state,
            "slots": f"{each.used}/{each.concurrency}",
            "done": each.processed,
            "failed": each.failed,
            "MB": round(each.memory_mb),
        }
        for each in lists.WORKERS.chosen(board.workers(), wanted)
    ]


def _batches(board: Board, wanted: str) -> Rows:
    known = [BatchState.of(each) for each in board.batches()]
    return [
        {
            "batch": each.name or each.id,
            "state": each.state,
            "progress": f"{each.progress:.0%}",
            "done": each.done,
            "failed": each.failed,
            "pending": each.pending,
            "made": each.created_at,
        }
        for each in lists.BATCHES.chosen(known, wanted)
    ]


def _flows(board: Board, wanted: str) -> Rows:
    known = [FlowState.of(each) for each in board.flows()]
    return [
        {
            "flow": each.name or each.id,
            "state": each.state,
            "progress": f"{each.progress:.0%}",
            "ended": each.ended,
            "failed": each.failed,
            "nodes": each.total,
            "made": each.created_at,
        }
        for each in lists.FLOWS.chosen(known, wanted)
    ]


def _classes(board: Board, wanted: str) -> Rows:
    return [
        {
            "class": each.job,
            "started": each.started,
            "failed": each.failed,
            "a minute": round(each.per_minute, 1),
            "mean run": _seconds(each.run_mean),
            "95 of 100 run": _seconds(each.run_p95),
            "longest": _seconds(each.run_longest),
            "mean wait": _seconds(each.wait_mean),
            "95 of 100 wait": _seconds(each.wait_p95),
            "longest wait": _seconds(each.wait_longest),
        }
        for each in lists.CLASSES.chosen(board.classes(), wanted)
    ]


def _schedules(board: Board, wanted: str) -> Rows:
    return [
        {
            "schedule": each.name,
            "when": f"{each.when} ({each.timezone})" if each.timezone != "UTC" else each.when,
            "to": f"{each.connection}:{each.queue}",
            "next": schedules.coming(each),
            "late": _time(each.late_seconds) if each.late_seconds > lists.LATE else "",
            "last": "".join(f"{run.planned_at} {run.state}" for run in each.runs[:1]),
            "runs": each.count,
        }
        for each in lists.SCHEDULES.chosen(board.schedules(), wanted)
    ]


class _TopPage(NamedTuple):
    name: str
    rows: Callable[[Board, str], Rows]
    """Returns the rows that a filter chooses; raises `ConfigurationError` for a wrong filter."""


_PAGES = {
    "o": _TopPage("overview", _wrong),
    "q": _TopPage("queues", _queues),
    "j": _TopPage("jobs", _running),
    "f": _TopPage("failed", _failed),
    "w": _TopPage("workers", _workers),
    "b": _TopPage("batches", _batches),
    "l": _TopPage("flows", _flows),
    "c": _TopPage("classes", _classes),
    "s": _TopPage("schedules", _schedules),
    "p": _TopPage("supervisors", _supervisors),
}


def _size(count: int | None, queue: QueueState | None = None) -> str:
    return size_text(count, approximate=queue is not None and queue.approximate)


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else lasting(seconds)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3g} s"


# -- keys -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Notes each Ctrl-C as well: Python loses what is raised amid a callback or a finalizer."""
    noted: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        noted.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yields what waits for a key, for some seconds at most; "" if none was pressed."""
    if not sys.stdin.isatty():

        def waiting(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield waiting
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        if not ready:
            return ""
        return os.read(terminal, 1).decode("ascii", "replace") or _NOBODY

    try:
        tty.setcbreak(terminal)
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
