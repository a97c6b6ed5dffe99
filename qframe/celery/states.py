"""The states of tasks, by Celery's names."""

from __future__ import annotations

from typing import Final

from qframe.contracts.status import JobStatus, State

PENDING: Final = "PENDING"
STARTED: Final = "STARTED"
RETRY: Final = "RETRY"
SUCCESS: Final = "SUCCESS"
FAILURE: Final = "FAILURE"
REVOKED: Final = "REVOKED"
IGNORED: Final = "IGNORED"
REJECTED: Final = "REJECTED"

READY_STATES: Final = frozenset({SUCCESS, FAILURE, REVOKED, IGNORED})
UNREADY_STATES: Final = frozenset({PENDING, STARTED, RETRY})
EXCEPTION_STATES: Final = frozenset({RETRY, FAILURE, REVOKED})
PROPAGATE_STATES: Final = frozenset({FAILURE, REVOKED})
ALL_STATES: Final = READY_STATES | UNREADY_STATES

IGNORED_REMARK: Final = "ignored: "
"""How the remark of a job begins whose task raised `Ignore`."""

_OF = {
    State.WAITING: PENDING,
    State.BURIED: PENDING,
    State.RUNNING: STARTED,
    State.RELEASED: RETRY,
    State.COMPLETE: SUCCESS,
    State.FAILED: FAILURE,
    State.CANCELLED: REVOKED,
}


def state_of(status: JobStatus | None) -> str:
    """Return the state of a task by the status of its job; PENDING if that has none."""
    if status is None:
        return PENDING
    if status.state is State.SKIPPED:
        return IGNORED if status.remark.startswith(IGNORED_REMARK) else REVOKED
    return _OF[status.state]
