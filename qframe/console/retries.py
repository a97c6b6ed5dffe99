"""Commands about watched retries: `retries`, and what `retry` does with --first and --then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from qframe.console.connections import configured
from qframe.console.numbers import MANY, whole
from qframe.console.options import Config, Json, Limit, first
from qframe.console.person import person
from qframe.console.text import print_rows, say
from qframe.contracts.failed import FailedJob
from qframe.exceptions import QframeError
from qframe.failed.retry import Anew
from qframe.manager import QueueManager
from qframe.operations import retries as watched
from qframe.operations.retries import RetryState
from qframe.payload.text import count_of
from qframe.retries.terms import FIRST, STOP_IF, THEN, RetryTerms
from qframe.worker import roster

First = Annotated[
    int | None,
    whole(
        MANY,
        "--first",
        help=f"Retry so many, await their outcome, then go on ({FIRST}).",
        show_default=False,
    ),
]
Then = Annotated[
    str,
    typer.Option(
        "--then", help=f"The pace: 500/m retries 500 a minute ({THEN}).", show_default=False
    ),
]
StopIf = Annotated[
    str,
    typer.Option(
        "--stop-if",
        help=f"'failed > 50', 'never', or of the latest 50: {STOP_IF!r} (default).",
        show_default=False,
    ),
]
_COLUMNS = ("retry", "stage", "total", "retried", "open", "done", "failed", "kept", "of", "why")
_SHOWN_UUIDS = 3


def retries(
    *,
    stop: Annotated[
        str, typer.Option("--stop", help="Stop this one.", metavar="ID", show_default=False)
    ] = "",
    limit: Limit = 100,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """List the watched retries of the last week, or stop one.

    qframe retries
    qframe retries --json
    qframe retries --stop 4f1d0c88ab
    """
    queues = configured(config)
    if stop:
        told = watched.stop(queues, stop, person())
        say(f"stopped the retry {told.id}: {told.retried:,} of {told.total:,} jobs were retried")
        return
    rows = [
        {"retry": each.id, **each.model_dump(exclude={"id"})}
        for each in first(watched.states(queues), limit)
    ]
    print_rows(rows, _COLUMNS, empty="no retries", as_json=as_json)


def terms_of(first: int | None, then: str, stop_if: str) -> RetryTerms | None:
    """Returns the terms of a watched retry; None if no option asks for one.

    Raises `ConfigurationError`.
    """
    if first is None and not then and not stop_if:
        return None
    return RetryTerms.asked(first, then, stop_if)


def watch(
    queues: QueueManager, terms: RetryTerms, chosen: Iterable[FailedJob], of: str, anew: Anew
) -> int:
    """Begins a watched retry, and says how to see it; returns the exit code."""
    made: RetryState = watched.start(queues, terms, map(watched.choose, chosen), of, person(), anew)
    if not made.total:
        say("no failed jobs to retry")
        return 0
    many = count_of(made.total, "failed job", "failed jobs")
    say(
        f"retrying {many} in the background: {terms.first:,} first, then {terms.then}, "
        f"until {terms.stop_if}; qframe retries shows {made.id}, "
        f"qframe retries --stop {made.id} ends it"
    )
    if not _has_worker(queues):
        say("no worker runs now: it begins when one does")
    return 0


def in_words(
    uuids: Sequence[str], *, queue: str | None, cause: str, where: str, connection: str | None
) -> str:
    """Returns in words which failed jobs options choose."""
    named = {"queue": queue, "cause": cause, "filter": where, "connection": connection}
    words = [f"{name} {value}" for name, value in named.items() if value]
    if uuids and [*uuids] != ["all"]:
        more = ", ..." if len(uuids) > _SHOWN_UUIDS else ""
        words.insert(0, ", ".join(uuids[:_SHOWN_UUIDS]) + more)
    return " ".join(words) or "all"


def _has_worker(queues: QueueManager) -> bool:
    for each in queues.holding_jobs():
        try:
            if any(not entry.is_gone for entry in roster.listed(each.store)):
                return True
        except QframeError:
            return True  # nobody knows
    return False
