"""The check of stored payloads, from the page: with the code of the page's own process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from qframe.exceptions import ConfigurationError
from qframe.operations import payload_reports
from qframe.operations.actions.background import in_background
from qframe.operations.actions.wanted import Done, Wanted
from qframe.operations.board import Board
from qframe.operations.payloads import PayloadCheck, PayloadChecking
from qframe.operations.stored_payloads import StoredPayloads

NAME = "check-payloads"
AT_MOST = 1_000
"""So many jobs of each queue and place are read."""
_IN_ALL = 100_000
"""So many payloads are read in all."""
_PART = 0.005
"""Seconds of processor time after which the page's requests have their turn."""
_rest = time.sleep


def check_payloads(board: Board, wanted: Wanted, who: str) -> Done:
    """Begins a check in the background, unless one is under way, whose id it then returns."""
    if wanted.connection:
        board.connection(wanted.connection)  # raises for an unknown one
    for each in board.bulks.states():
        if (each.action, each.state) == (NAME, "running"):
            return Done(changed=0, text="a check is under way", bulk=each.id)
    return in_background(board, wanted, who, NAME, _steps(board, wanted, who))


def _steps(board: Board, wanted: Wanted, who: str) -> Iterator[Callable[[], bool]]:
    """Yields a step for each payload: whether the code here cannot run it. Keeps the report."""
    queues = board.manager
    try:
        queues.registry.load()
    except ConfigurationError as error:
        raise ConfigurationError(f"nothing was checked: {error}") from None
    stored = StoredPayloads(queues, wanted.connection or None, at_most=AT_MOST)
    checking = PayloadChecking(queues.registry, stored)
    found, is_cut = checking.result(), False
    began = time.thread_time()
    for can_run in checking.steps():
        yield (lambda: False) if can_run else (lambda: True)
        if found.read >= _IN_ALL:
            is_cut = True
            break
        used = time.thread_time() - began
        if used > _PART:
            _rest(2 * used)
            began = time.thread_time()
    found = checking.result()
    if (why := _knows_no_job(board, checking, found)) is not None:
        raise ConfigurationError(
            f"nothing was checked: this process has none of the job classes ({why}). Start the "
            "page where their code is, or list their modules under `jobs`"
        )
    if is_cut:
        found.notes.append(f"only the first {_IN_ALL:,} payloads were read")
    report = payload_reports.report_of(
        found,
        who=who,
        where=wanted.where,
        version=board.version,
        connection=wanted.connection,
        at_most=AT_MOST,
    )
    payload_reports.keep(queues, report, found.silent)


def _knows_no_job(board: Board, checking: PayloadChecking, found: PayloadCheck) -> str | None:
    """Returns why the first class is unknown, if all are: the code is not in this process."""
    is_listed = any(not each.startswith("qframe.") for each in board.manager.registry.modules)
    if is_listed or checking.knows_any:
        return None
    return next((each.sentence for each in found.troubles if each.kind == "unknown"), None)
