"""Commands about failed jobs: failed, retry, forget, flush, prune."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import typer

from qframe import manager
from qframe.console.binning import binning, say_with_undo
from qframe.console.confirm import stopped
from qframe.console.connections import JobConnections, configured, find_failed
from qframe.console.numbers import MOST_HOURS, seconds
from qframe.console.options import (
    Config,
    ConnectionOption,
    DryRun,
    Json,
    Limit,
    NoBin,
    QueueOption,
    Where,
    Yes,
    first,
    hours_ago,
)
from qframe.console.retries import First, StopIf, Then, in_words, terms_of, watch
from qframe.console.text import encodable, print_json, print_rows, say
from qframe.contracts.failed import FailedJob
from qframe.drivers.failed_store import FailedStore
from qframe.exceptions import ConfigurationError, InvalidPayload
from qframe.failed.causes import Failures, by_cause
from qframe.failed.filters import Filter, tags_of
from qframe.failed.retry import Anew
from qframe.operations import failures, ids, recordings
from qframe.operations.arguments import arguments_in
from qframe.operations.bin_forecast import BinForecast
from qframe.operations.board import Board
from qframe.operations.recordings import RecordingState
from qframe.payload import envelope, secret, tracebacks
from qframe.payload.text import count_of, printable
from qframe.payload.timing import iso

_COLUMNS = ("uuid", "connection", "queue", "job", "failed_at", "error")
_CAUSES = ("cause", "count", "job", "error", "place", "last_at", "last_24_h")
_BARS = "·▁▂▃▄▅▆▇█"
CauseOption = Annotated[
    str, typer.Option("--cause", help="Only failures with this cause.", show_default=False)
]


def failed(  # noqa: PLR0913 (one for each option of the command)
    uuid: Annotated[str, typer.Argument(help="Show this job in full.")] = "",
    *,
    queue: QueueOption = None,
    where: Where = "",
    cause: CauseOption = "",
    by: Annotated[str, typer.Option(help="`cause` groups them by cause.", show_default=False)] = "",
    last: Annotated[bool, typer.Option("--last", help="Show the newest in full.")] = False,
    limit: Limit = 100,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """List the failed jobs, latest first, or show one in full.

    qframe failed
    qframe failed 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11
    qframe failed --queue emails --json
    qframe failed --where 'class:app.* error:Timeout older:5m'
    qframe failed --by cause
    qframe failed --last
    """
    if last and (uuid or by):
        raise ConfigurationError("--last shows the newest one: leave out the uuid and --by")
    chosen = _ChosenFailed(queue, where, cause)
    if by not in {"", "cause"}:
        raise ConfigurationError(f"--by takes cause, not {by!r}")
    stores = JobConnections(configured(config), connection).failed_stores(answering=True)
    if uuid:
        _show(_found(stores, uuid)[1], as_json=as_json)
        return
    if last:
        newest = chosen.newest(stores)
        if newest is None:
            raise ConfigurationError(
                "no such job has failed" if where or queue else "no failed jobs"
            )
        _show(newest, as_json=as_json)
        return
    found = (record for _, record in chosen.of(stores))
    if by:
        causes = first(by_cause(found), limit)
        _print_causes(causes, Board(manager.default()), as_json=as_json)
        return
    records = first(found, limit)
    print_rows([*map(_row, records)], _COLUMNS, empty="no failed jobs", as_json=as_json)
    more = sum(store.count() for store in stores) - len(records)
    if records and more > 0 and chosen.are_all and not as_json:
        say(f"and {more} more: --limit 0 shows all")


def retry(  # noqa: PLR0913 (one for each option of the command)
    uuids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="uuids, the start or end of one, or `all`."),
    ] = None,
    *,
    queue: QueueOption = None,
    where: Where = "",
    cause: CauseOption = "",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Repeat the durable steps that were done.")
    ] = False,
    from_step: Annotated[
        str,
        typer.Option("--from", help="Repeat this step and later ones.", show_default=False),
    ] = "",
    watch_first: First = None,
    then: Then = "",
    stop_if: StopIf = "",
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Queue failed jobs again; repeating this queues none twice.

    A job with durable steps continues where it stopped. With --first, --then or --stop-if a worker
    goes on in the background, and stops by itself; `qframe retries` shows it.

    qframe retry all
    qframe retry all --queue emails
    qframe retry --cause 4f1d0c88ab --first 5 --then 10/s --stop-if 'failed > 20%'
    qframe retry --where 'error:Timeout newer:2h'
    qframe retry 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11
    qframe retry 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11 --from book
    """
    if fresh and from_step:
        raise ConfigurationError("--fresh does all steps again: leave out --from")
    anew = Anew(fresh=fresh, first=from_step)
    terms = terms_of(watch_first, then, stop_if)
    chosen = _ChosenFailed(queue, where, cause)
    connections = JobConnections(configured(config), connection)
    stores = connections.failed_stores(answering=True)
    if not uuids and chosen.are_all:
        raise ConfigurationError(
            "say which: uuids, all, --queue NAME, --cause KEY or --where FILTER"
        )
    records: Iterable[tuple[FailedStore, FailedJob]]
    if uuids and uuids != ["all"]:
        if not chosen.are_all:
            raise ConfigurationError("--queue, --cause and --where go with all, not with uuids")
        records = [_found(stores, uuid) for uuid in uuids]
    else:
        records = chosen.of(stores) if terms else chosen.kept_in(stores)
    if terms is not None:
        of = in_words(uuids or (), queue=queue, cause=cause, where=where, connection=connection)
        return watch(connections.queues, terms, (each for _, each in records), of, anew)
    count, code = connections.queue_again(records, anew)
    say(f"queued {count_of(count, 'failed job', 'failed jobs')} again")
    return code


def forget(
    uuids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="uuids, or the start or end of one."),
    ] = None,
    *,
    where: Where = "",
    cause: CauseOption = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    no_bin: NoBin = False,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Delete failed jobs.

    For an hour, `qframe undo` brings them back. With --where or --cause it asks first on a
    terminal; a "no" exits 1.

      qframe forget 1f0c5c1e-5b3f-4f0e-9d61-0c8f4f8f3c11
      qframe forget --cause 4f1d0c88ab
      qframe forget --where 'class:app.Newsletter older:2d' --dry-run
    """
    chosen = _ChosenFailed(None, where, cause)
    if bool(uuids) is not chosen.are_all:
        raise ConfigurationError("say which: uuids, or --cause KEY or --where FILTER")
    queues = configured(config)
    stores = JobConnections(queues, connection).failed_stores(answering=True)
    if uuids:
        with binning(queues, "forget", " ".join(uuids), is_on=not no_bin) as into:
            for uuid in uuids:
                store, record = _found(stores, uuid)
                if dry_run:
                    say(f"would forget {record.uuid}")
                    continue
                into.forget(store, record)
                say(f"forgot {record.uuid}")
        say_with_undo("", into)
        return 0

    def what() -> str:
        forecast = BinForecast(queues, is_on=not no_bin)
        count = sum(forecast.add_failed(record) for _, record in chosen.of(stores))
        return f"forget {count_of(count, 'failed job', 'failed jobs')}{forecast.words()}"

    if (code := stopped(what, dry_run=dry_run, yes=yes)) is not None:
        return code
    of = where or f"cause {cause}"
    with binning(queues, "forget", of, is_on=not no_bin) as into:
        removed = sum(into.forget(store, record) for store, record in chosen.kept_in(stores))
    say_with_undo(f"forgot {count_of(removed, 'failed job', 'failed jobs')}", into)
    return 0


def silence(
    cause: Annotated[str, typer.Argument(help="The key of the cause.")],
    *,
    off: Annotated[bool, typer.Option("--off", help="End the silence.")] = False,
    config: Config = None,
) -> None:
    """Silence a cause of failures for 30 days; its jobs stay failed.

    qframe silence 4f1d0c88ab
    qframe silence 4f1d0c88ab --off
    """
    queues = configured(config)
    board = Board(queues)
    if off:
        if cause not in board.failed.muted():
            raise ConfigurationError(f"the cause {cause!r} is not silenced")
        board.failed.mute(cause, silent=False)
        say(f"the cause {cause} is no longer silenced")
        return
    next(
        _ChosenFailed(None, "", cause).of(
            JobConnections(queues, None).failed_stores(answering=True)
        )
    )
    board.failed.mute(cause, silent=True)
    say(f"silenced the cause {cause} for 30 days")


def flush(
    *,
    hours: Annotated[
        float,
        seconds(most=MOST_HOURS, help="Only jobs that failed this many hours ago or earlier."),
    ] = 0,
    dry_run: DryRun = False,
    yes: Yes = False,
    no_bin: NoBin = False,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Delete all failed jobs, or only the older ones.

    For an hour, `qframe undo` brings them back. On a terminal it asks first; a "no" exits 1.

      qframe flush
      qframe flush --hours 48 --dry-run
    """
    before = hours_ago("--hours", hours) if hours else None
    queues = configured(config)
    stores = JobConnections(queues, connection).failed_stores(answering=True)

    def what() -> str:
        forecast = BinForecast(queues, is_on=not no_bin)
        found = (each for store in stores for each in _old(store, before))
        if before is None:  # no need to read more than the bin takes
            most = len(stores) * queues.settings.bin.jobs if forecast.is_on else 0
            seen = sum(map(forecast.add_failed, itertools.islice(found, most)))
            count = max(seen, sum(store.count() for store in stores))
            forecast.add_lost(count - seen, "the bin is full")
        else:
            count = sum(map(forecast.add_failed, found))
        return f"remove {count_of(count, 'failed job', 'failed jobs')}{forecast.words()}"

    if (code := stopped(what, dry_run=dry_run, yes=yes)) is not None:
        return code
    of = f"failed more than {hours:g} hours ago" if hours else "all failed jobs"
    with binning(queues, "flush", of, is_on=not no_bin) as into:
        removed = sum(
            into.forget(store, each) for store in stores for each in [*_old(store, before)]
        )
    say_with_undo(f"removed {count_of(removed, 'failed job', 'failed jobs')}", into)
    return 0


def prune(
    *,
    hours: Annotated[float, seconds(most=MOST_HOURS, help="Hours to keep failed jobs.")] = 24,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Delete failed jobs older than --hours (24); for cron.

    qframe prune --hours 168
    """
    flush(hours=hours, yes=True, no_bin=True, connection=connection, config=config)


def _old(store: FailedStore, before: float | None) -> Iterator[FailedJob]:
    """Yields the jobs that failed before an epoch time, or all."""
    return (each for each in store.all() if before is None or each.failed_at < before)


class _ChosenFailed:
    """The failed jobs that options choose. Raises `ConfigurationError`."""

    def __init__(self, queue: str | None, where: str, cause: str) -> None:
        self.are_all = not (queue or where or cause)
        self._cause = cause
        self._filter = Filter(f'{where} cause:"{cause}"' if cause else where)
        self._queue = queue or self._filter.queue

    def of(self, stores: Sequence[FailedStore]) -> Iterator[tuple[FailedStore, FailedJob]]:
        """Yields them, those of each store latest first."""
        found = False
        for store in stores:
            for record in self._in(store):
                found = True
                yield store, record
        if self._cause and not found:
            raise self._no_such_cause()

    def newest(self, stores: Sequence[FailedStore]) -> FailedJob | None:
        """Returns the one that failed last."""
        latest = [each for store in stores if (each := next(self._in(store), None)) is not None]
        if self._cause and not latest:
            raise self._no_such_cause()
        return max(latest, key=lambda record: record.failed_at, default=None)

    def _in(self, store: FailedStore) -> Iterator[FailedJob]:
        return filter(self._filter.fits, store.all(self._queue))

    def _no_such_cause(self) -> ConfigurationError:
        return ConfigurationError(
            f"no failed job has the cause {self._cause!r}; qframe failed --by cause lists them"
        )

    def kept_in(self, stores: Sequence[FailedStore]) -> Iterator[tuple[FailedStore, FailedJob]]:
        """Yields them even if some are removed meanwhile: each is read again."""
        return failures.read_again((store, record.uuid) for store, record in self.of(stores))


def _found(stores: list[FailedStore], uuid: str) -> tuple[FailedStore, FailedJob]:
    found = find_failed(stores, uuid)
    if found is None and (known := ids.whole(uuid, ids.failed(stores))) is not None:
        found = find_failed(stores, known)
    if found is None:
        raise ConfigurationError(f"no failed job {uuid[:100]!r}; qframe failed lists them")
    return found


def _row(record: FailedJob) -> dict[str, Any]:
    return {
        "uuid": record.uuid,
        "connection": record.connection,
        "queue": record.queue,
        "job": record.name,
        "attempts": record.attempts,
        "failed_at": iso(record.failed_at),
        "error": tracebacks.brief_of(record.exception, 1000),
        "arguments": arguments_in(record.payload),
        "tags": tags_of(record),
    }


def _print_causes(causes: Sequence[Failures], board: Board, *, as_json: bool) -> None:
    now, muted, seen = time.time(), board.failed.muted(), board.failed.causes_seen()
    rows = [
        {
            "cause": each.cause.key,
            "count": each.count,
            "job": each.cause.job,
            "error": each.cause.error,
            "place": each.cause.place,
            "first_at": iso(min(each.first, seen.get(each.cause.key, each.first))),
            "last_at": iso(each.last),
            "example": each.example,
            "last_24_h": hours if as_json else _bar(hours),
            "silenced": each.cause.key in muted,
        }
        for each in causes
        for hours in [each.hours(now)]
    ]
    columns = (*_CAUSES, "silenced") if any(each["silenced"] for each in rows) else _CAUSES
    print_rows(rows, columns, empty="no failed jobs", as_json=as_json)


def _bar(counts: Sequence[int]) -> str:
    most = max(*counts, 1)
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in counts)


def _without_secrets(raw: bytes) -> bytes:
    """Returns a payload with its secrets as stars, everything else as it is."""
    try:
        hidden = secret.redacted(envelope.parse(raw))
    except InvalidPayload:
        return raw
    return raw if hidden is None else json.dumps(hidden, separators=(",", ":")).encode()


def _show(record: FailedJob, *, as_json: bool) -> None:
    ran = [
        {
            "number": each.number,
            "host": each.host,
            "pid": each.pid,
            "started_at": iso(each.started_at),
            "ended_at": None if each.ended_at is None else iso(each.ended_at),
            "ended": each.ended or "never ended",
            "error": each.error,
        }
        for each in record.history.attempts
    ]
    recorded = RecordingState.of(record.history.recording)
    if as_json:
        text = _without_secrets(record.payload).decode("utf-8", "backslashreplace")
        kept = None if recorded is None else recorded.model_dump()
        whole = {"exception": record.exception, "ran": ran, "payload": text, "recording": kept}
        print_json({**_row(record), **whole})
        return
    row = _row(record)
    for key, value in {**row, "tags": ", ".join(row["tags"])}.items():
        say(f"{key:<12}{value}".rstrip())
    print_rows(
        [{**each, "ended_at": each["ended_at"] or ""} for each in ran], empty="never started"
    )
    for line in record.exception.rstrip().splitlines():
        typer.echo("  " + encodable(printable(line)))
    for line in () if recorded is None else recordings.lines_of(recorded):
        typer.echo(encodable(line))
