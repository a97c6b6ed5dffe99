"""`qframe relay`: hands on what was dispatched within transactions, to where the jobs are."""

from __future__ import annotations

import logging
import time
from typing import Annotated

import typer

from qframe.console.connections import configured
from qframe.console.options import Config
from qframe.console.output import duration
from qframe.console.place import origin_fields, say_configuration
from qframe.console.text import as_json, say
from qframe.contracts.outbox import Outbox
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.manager import QueueManager
from qframe.outbox.relay import Relay
from qframe.payload.text import one_line
from qframe.worker.options import StopReason
from qframe.worker.wakeup import STOPS, WakeUp

_NONE = 'no outbox is configured: name a database\'s connection, as [outbox] connection = "main"'


def relay(
    *,
    stop_when_empty: Annotated[
        bool, typer.Option("--stop-when-empty", help="Stop when nothing waits.")
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Take up again what was set aside.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    config: Config = None,
) -> int:
    """Hand on what was dispatched within transactions, in order, to where the jobs are.

    Workers do so as well. Any number may run; one at a time hands on
    what is for one connection. What a connection cannot take is set aside, in the end: see `size`.

      qframe relay
      qframe relay --stop-when-empty --retry

    \b
    Signals: TERM, INT stop after the exchange.
    Exit codes: 0 stopped, 2 usage, 69 something did not answer with --stop-when-empty.
    """  # noqa: D301 (\b keeps typer from folding the lines)
    queues = configured(config)
    outbox = queues.outbox()
    if outbox is None:
        raise ConfigurationError(_NONE)
    logging.basicConfig(level=logging.WARNING, format="  %(asctime)s %(levelname)s %(message)s")
    if retry:
        count = outbox.retry()
        _say(f"{count} that were set aside wait again", "retry", as_lines=json, count=count)
    return _run(queues, outbox, until_empty=stop_when_empty, as_lines=json)


def _run(queues: QueueManager, outbox: Outbox, *, until_empty: bool, as_lines: bool) -> int:
    def lost(name: str, error: BackendUnavailable) -> None:
        said = one_line(str(error))
        _say(f"{name} gone: {said}", "gone", as_lines=as_lines, name=name, error=said)

    def back(name: str, seconds: float) -> None:
        told = {"name": name, "seconds": round(seconds, 3)}
        _say(f"{name} back after {duration(seconds)}", "back", as_lines=as_lines, **told)

    began = time.monotonic()
    made = Relay(queues, outbox, lost, back)
    where = outbox.described()
    more = origin_fields(queues.settings.origin)
    _say(f"relaying {where}", "starting", as_lines=as_lines, outbox=where, **more)
    if not as_lines:
        say_configuration(queues, "relay")
    with WakeUp() as wake:
        stops: list[int] = []
        wake.hear(STOPS, lambda number, _: stops.append(number))
        made.run(wake.fileno(), lambda: bool(stops), until_empty=until_empty)
    totals, seconds = made.totals, time.monotonic() - began
    words = [f"{totals.handed_on} handed on"]
    words += [f"{totals.duplicates} duplicates"] if totals.duplicates else []
    words += [f"{totals.set_aside} set aside"] if totals.set_aside else []
    _say(
        f"stopped: {', '.join(words)} in {duration(seconds)}",
        "stopped",
        as_lines=as_lines,
        handed_on=totals.handed_on,
        duplicates=totals.duplicates,
        set_aside=totals.set_aside,
        seconds=round(seconds, 3),
    )
    return StopReason.LOST_BACKEND.exit_code if until_empty and made.unanswered else 0


def _say(line: str, event: str, *, as_lines: bool, **fields: object) -> None:
    """Write what happened: a line, or one of JSON."""
    if as_lines:
        typer.echo(as_json({"event": event, **fields}))
    else:
        say(line)
