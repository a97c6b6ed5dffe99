"""`qframe relay`: hands on what was dispatched within transactions, to where the jobs are."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from typing import Annotated

import typer

from qframe.console.connections import configured
from qframe.console.options import Config
from qframe.console.output import duration
from qframe.console.place import configuration_lines, origin_fields
from qframe.console.stream import Stream, log_to_stderr
from qframe.console.text import as_json
from qframe.contracts.outbox import Outbox
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.manager import QueueManager
from qframe.outbox.relay import Relay
from qframe.payload.text import one_line
from qframe.worker.options import NO_ANSWER
from qframe.worker.wakeup import STOPS, WakeUp

_NONE = 'no outbox is configured: name a database\'s connection, as [outbox] connection = "main"'


def relay(
    *,
    stop_when_empty: Annotated[
        bool, typer.Option("--stop-when-empty", help="Stop when the outbox is empty.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Retry what was set aside.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    config: Config = None,
) -> int:
    """Deliver the jobs in the outbox to their connections, in order.

    Workers do so, too. Any number of relays may run; one at a time serves a connection. Jobs that a
    connection keeps refusing are set aside: see `qframe size`.

      qframe relay
      qframe relay --stop-when-empty --retry

    \b
    Signals: TERM, INT stop after the exchange.
    Exit codes: 0 stopped, 2 usage, 69 a backend did not answer with --stop-when-empty.
    """  # noqa: D301 (\b keeps typer from folding the lines)
    queues = configured(config)
    outbox = queues.outbox()
    if outbox is None:
        raise ConfigurationError(_NONE)
    log_to_stderr(logging.WARNING, as_lines_of_json=json)
    report = _RelayLog(as_lines=json)
    if retry:
        count = outbox.retry()
        report(f"{count} that were set aside wait again", "retry", count=count)
    code = _run(queues, outbox, report, until_empty=stop_when_empty)
    report.stream.finish()
    return code


def _run(queues: QueueManager, outbox: Outbox, say: _RelayLog, *, until_empty: bool) -> int:
    def lost(name: str, error: BackendUnavailable) -> None:
        why = one_line(str(error))
        say(f"{name} gone: {why}", "gone", name=name, error=why)

    def back(name: str, seconds: float) -> None:
        fields = {"name": name, "seconds": round(seconds, 3)}
        say(f"{name} back after {duration(seconds)}", "back", **fields)

    began = time.monotonic()
    made = Relay(queues, outbox, lost, back)
    where = outbox.described()
    more = origin_fields(queues.settings.origin)
    say(f"relaying {where}", "starting", outbox=where, **more)
    say.lines(configuration_lines(queues, "relay"))
    with WakeUp() as wake:
        stops: list[int] = []
        wake.handle(STOPS, lambda number, _: stops.append(number))
        made.run(wake.fileno(), lambda: bool(stops), until_empty=until_empty)
    totals, seconds = made.totals, time.monotonic() - began
    words = [f"{totals.handed_on} handed on"]
    words += [f"{totals.duplicates} duplicates"] if totals.duplicates else []
    words += [f"{totals.set_aside} set aside"] if totals.set_aside else []
    say(
        f"stopped: {', '.join(words)} in {duration(seconds)}",
        "stopped",
        handed_on=totals.handed_on,
        duplicates=totals.duplicates,
        set_aside=totals.set_aside,
        seconds=round(seconds, 3),
    )
    return NO_ANSWER if until_empty and made.unanswered else 0


class _RelayLog:
    """Prints what happens: a line, or one of JSON."""

    def __init__(self, *, as_lines: bool) -> None:
        self.stream = Stream(sys.stdout)
        self._as_lines = as_lines

    def lines(self, lines: Iterable[str]) -> None:
        """Writes lines that are for people only."""
        for line in lines if not self._as_lines else ():
            self.stream.write(f"{one_line(line, 1000)}\n")

    def __call__(self, line: str, event: str, **fields: object) -> None:
        if self._as_lines:
            line = as_json({"event": event, **fields}, encoding=self.stream.encoding)
        self.stream.write(f"{line if self._as_lines else one_line(line, 1000)}\n")
