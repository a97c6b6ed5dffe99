"""Actions: what people may do with queues, jobs and workers; each is logged and fires an event."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from qframe.exceptions import ConfigurationError
from qframe.operations import schedules
from qframe.operations.actions import (
    background,
    of_batches,
    of_failed,
    of_jobs,
    of_payloads,
    of_queues,
    of_schedules,
    of_workers,
)
from qframe.operations.actions.background import log_action
from qframe.operations.actions.wanted import Done, Wanted, what
from qframe.operations.board import Board
from qframe.payload.text import one_line
from qframe.worker.control import QUIET, STOP


class Action(NamedTuple):
    """Something people may do."""

    verb: str
    act: Callable[[Board, Wanted, str], Done]
    question: str
    """The question before the action, about `what`; "": none."""


def perform(board: Board, name: str, wanted: Wanted, who: str) -> Done:
    """Performs an action. Raises `ConfigurationError` if it is impossible, `BackendUnavailable`."""
    action = ACTIONS.get(name)
    if action is None:
        raise ConfigurationError(f"there is no action {one_line(name, 60)!r}")
    done = action.act(board, wanted, who)
    if not done.bulk:
        log_action(who, name, what(wanted), done.changed)
    board.forget()
    return done


ACTIONS = {
    "pause": Action("Pause", of_queues.pause, ""),
    "resume": Action("Resume", of_queues.resume, ""),
    "hold": Action("Hold", of_queues.hold, ""),
    "unhold": Action("End hold", of_queues.unhold, ""),
    "undo": Action("Undo", of_queues.undo, "Bring back what this act has removed?"),
    "clear": Action("Clear", of_queues.clear, "Delete all ready and delayed jobs of this queue?"),
    "kick": Action("Kick", of_queues.kick, "Make all buried jobs of this queue ready?"),
    "retry": Action(
        "Retry",
        of_failed.each_failed(of_failed.retry_one, "retry", "queued {} again"),
        "Queue these failed jobs again?",
    ),
    "watch-retry": Action(
        "Retry a few first", of_failed.watch_retry, "Queue a few first, and the rest at a pace?"
    ),
    "stop-retry": Action(
        "Stop", of_failed.stop_retry, "Stop this retry? The other jobs stay failed."
    ),
    "forget": Action(
        "Forget",
        of_failed.each_failed(of_failed.forget_one, "forget", "removed {} for good"),
        "Remove these failed jobs for good?",
    ),
    "silence": Action("Silence", of_failed.silence, ""),
    "unsilence": Action("Tell again", of_failed.unsilence, ""),
    "cancel": Action(
        "Cancel", of_jobs.cancel_jobs, "Cancel these jobs? One that runs is interrupted."
    ),
    "run-now": Action("Run now", of_jobs.run_now, ""),
    "send-event": Action("Send", of_jobs.send_event, ""),
    of_payloads.NAME: Action("Check now", of_payloads.check_payloads, ""),
    "cancel-batch": Action("Cancel", of_batches.cancel_batch, "Cancel this batch?"),
    "retry-batch": Action("Retry failed", of_batches.retry_batch, "Queue its failed jobs again?"),
    "cancel-flow": Action("Cancel", of_batches.cancel_flow, "Cancel this flow?"),
    "retry-flow": Action("Retry failed", of_batches.retry_flow, "Queue its failed jobs again?"),
    "scale": Action("Scale", of_workers.scale, ""),
    "quiet": Action("Quiet", of_workers.order(QUIET, "to take no more jobs"), ""),
    "unquiet": Action("Go on", of_workers.order("", "to go on"), ""),
    "stop-worker": Action(
        "Stop", of_workers.order(STOP, "to end after its jobs"), "Stop this worker, after its jobs?"
    ),
    "stop": Action("Stop", background.stop_bulk, ""),
    "run-schedule": Action(
        "Run now",
        of_schedules.on_schedule(schedules.ask, "a worker runs {} within some seconds"),
        "",
    ),
    "pause-schedule": Action("Pause", of_schedules.on_schedule(schedules.pause, "paused {}"), ""),
    "resume-schedule": Action(
        "Resume", of_schedules.on_schedule(schedules.resume, "resumed {}"), ""
    ),
    "add-schedule": Action("Add", of_schedules.add_schedule, ""),
    "change-schedule": Action("Change", of_schedules.change_schedule, ""),
    "remove-schedule": Action(
        "Remove", of_schedules.on_schedule(schedules.remove, "removed {}"), "Remove this schedule?"
    ),
}
"""All actions, by the name that a role may be given."""
