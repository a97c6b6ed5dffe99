"""Actions on failed jobs, their causes and watched retries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from qframe.contracts.failed import FailedJob
from qframe.drivers.failed_store import FailedStore
from qframe.exceptions import ConfigurationError
from qframe.failed.filters import Filter
from qframe.failed.retry import retry
from qframe.operations import failures, retries
from qframe.operations.actions.background import in_background
from qframe.operations.actions.wanted import Done, Wanted, into_bin, selected, what
from qframe.operations.bin import BinAction
from qframe.operations.board import Board
from qframe.payload.text import count_of, one_line
from qframe.retries.terms import RetryTerms
from qframe.retries.watched import ChosenJob


def chosen_by(wanted: Wanted) -> Filter:
    """Returns the filter that chooses the failed jobs of an action."""
    text = wanted.filter or ""
    return Filter(f'{text} cause:"{_key(wanted.cause)}"' if wanted.cause else text)


def _key(cause: str) -> str:
    if not cause.isalnum():
        raise ConfigurationError(f"{one_line(cause, 40)!r} is no cause")
    return cause


def each_failed(
    act: Callable[[Board, FailedStore, FailedJob, BinAction], bool], verb: str, done: str
) -> Callable[[Board, Wanted, str], Done]:
    def run(board: Board, wanted: Wanted, who: str) -> Done:
        into = BinAction(board.manager, verb, what(wanted), who)
        if wanted.filter is not None or wanted.cause:
            chosen = chosen_by(wanted)
            steps = (
                partial(act, board, store, record, into)
                for store, record in failures.kept_in(board.failed.stores(), chosen)
            )
            return in_background(board, wanted, who, verb, steps, into)
        changed, troubles = 0, []
        try:
            for uuid in selected(wanted):
                found = board.failed.find(uuid)
                if found is None:
                    troubles.append(_no_failed_job(uuid))
                    continue
                try:
                    changed += act(board, *found, into)
                except ConfigurationError as error:
                    troubles.append(str(error))
        finally:
            into.close()
        text = "; ".join(
            [done.format(f"{changed:,} of {len(wanted.uuids):,} failed jobs"), *troubles[:3]]
        )
        return into_bin(into, changed, text)

    return run


def retry_one(
    board: Board, store: FailedStore, record: FailedJob, _into: BinAction | None = None
) -> bool:
    done = retry(board.manager, store, record)
    if done:
        _forget_in_indexes(board, record.uuid)
    return done


def watch_retry(board: Board, wanted: Wanted, who: str) -> Done:
    """Begins a retry that workers drive: some jobs first, the rest at a pace."""
    terms = RetryTerms.asked(wanted.first, wanted.then, wanted.stop_if)
    found: list[ChosenJob] = []
    of = what(wanted)

    def begin() -> bool:
        retries.start(board.manager, terms, found, of, who)
        return False

    if wanted.filter is not None or wanted.cause:
        return in_background(
            board, wanted, who, "watch-retry", _choosing(board, wanted, found, begin)
        )
    troubles: list[str] = []
    for uuid in selected(wanted):
        known = board.failed.find(uuid)
        if known is None:
            troubles.append(_no_failed_job(uuid))
        else:
            found.append(retries.choose(known[1]))
    if found:
        begin()
    text = f"retrying {count_of(len(found), 'failed job', 'failed jobs')} in the background"
    return Done(changed=len(found), text="; ".join([text, *troubles[:3]]))


def _no_failed_job(uuid: str) -> str:
    return f"{one_line(uuid, 60)} is no failed job (any more)"


def _choosing(
    board: Board, wanted: Wanted, found: list[ChosenJob], begin: Callable[[], bool]
) -> Iterator[Callable[[], bool]]:
    """Yields a function for each failed job that a filter chooses, and one that begins."""
    chosen = chosen_by(wanted)

    def keep(record: FailedJob) -> bool:
        found.append(retries.choose(record))
        return True

    for _, record in failures.chosen_in(board.failed.stores(), chosen):
        yield partial(keep, record)
    yield begin


def stop_retry(board: Board, wanted: Wanted, who: str) -> Done:
    told = retries.stop(board.manager, wanted.id, who)
    return Done(changed=1, text=f"stopped the retry {told.id}")


def forget_one(board: Board, store: FailedStore, record: FailedJob, into: BinAction) -> bool:
    done = into.forget(store, record)
    if done:
        _forget_in_indexes(board, record.uuid)
    return done


def _forget_in_indexes(board: Board, uuid: str) -> None:
    for index in board.failed.indexes():
        index.forget(uuid)


def silence(board: Board, wanted: Wanted, _who: str) -> Done:
    board.failed.mute(_key(wanted.cause), silent=True)
    return Done(changed=1, text=f"silenced the cause {wanted.cause} for 30 days")


def unsilence(board: Board, wanted: Wanted, _who: str) -> Done:
    board.failed.mute(_key(wanted.cause), silent=False)
    return Done(changed=1, text=f"the cause {wanted.cause} is no longer silenced")
