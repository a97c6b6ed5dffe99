"""JobStatus: the state, progress and result of a tracked job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic

from qframe.contracts.identity import R_co

MOST_LINES = 1000
"""The largest number of log lines that a status can keep."""


class State(StrEnum):
    """The state of a tracked job.

    `COMPLETE`, `SKIPPED`, `FAILED` and `CANCELLED` are final; only `qframe retry` starts the job
    again.
    """

    WAITING = "WAITING"
    """Waiting for the first start (also during a delay), or released without a counted attempt."""
    RUNNING = "RUNNING"
    RELEASED = "RELEASED"
    """An attempt has ended and another one follows."""
    BURIED = "BURIED"
    """Buried until it is kicked."""
    COMPLETE = "COMPLETE"
    SKIPPED = "SKIPPED"
    """Ended without running: expired, or by `DontHandle`."""
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether the state is final."""
        return self in FINAL


FINAL = frozenset({State.COMPLETE, State.SKIPPED, State.FAILED, State.CANCELLED})


@dataclass(frozen=True, slots=True)
class JobStatus(Generic[R_co]):
    """The status of one tracked job. Times are epoch seconds; None if unknown or not yet."""

    uuid: str
    state: State
    name: str
    connection: str
    queue: str
    attempt: int
    """The number of starts."""
    queued_at: float | None = None
    started_at: float | None = None
    """When the last attempt started."""
    ended_at: float | None = None
    """When the last attempt ended."""
    host: str | None = None
    """The host of the last or current attempt."""
    pid: int | None = None
    progress: float | None = None
    """The progress that the job reported, from 0 to 1."""
    message: str = ""
    """The text that the job reported with its progress."""
    result: R_co = None  # type: ignore[assignment] # until there is one
    """What `handle` returned: as it says for a `JobId`, for any other id as JSON has it.

    None in any state but `COMPLETE`, and if the result is not kept: `remark` says why.
    """
    exception: tuple[str, str] | None = None
    """Type and message of the error that ended the last attempt."""
    remark: str = ""
    """Why there is no result, or why the job was skipped, released, given back or cancelled."""
    retries: int = 0
    """How often somebody retried the job after it had failed."""
    tags: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    """The last lines that the job logged if it has `keep_log`; each begins with its attempt."""

    @property
    def is_final(self) -> bool:
        """Whether the state is final."""
        return self.state.is_final

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values that JSON can carry."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        error = self.exception
        fields["state"] = str(self.state)
        fields["tags"], fields["log"] = list(self.tags), list(self.log)
        fields["exception"] = None if error is None else {"type": error[0], "message": error[1]}
        return fields

    @classmethod
    def from_dict(cls, uuid: str, fields: Mapping[str, Any]) -> JobStatus[Any]:
        """Build a status from the fields of `to_dict`; missing ones get their default."""
        error = fields.get("exception")
        known = {key: value for key, value in fields.items() if key in cls.__slots__}
        known["state"] = State(fields["state"])
        known["tags"] = tuple(fields.get("tags") or ())
        known["log"] = tuple(fields.get("log") or ())
        known["exception"] = (error["type"], error["message"]) if error else None
        known = {"name": "", "connection": "", "queue": "", "attempt": 0, **known, "uuid": uuid}
        return cls(**known)


def check_progress(done: float, text: str) -> None:
    """Raise `ValueError` or `TypeError` unless `done` is from 0 to 1 and `text` is a string."""
    if isinstance(done, bool) or not isinstance(done, int | float):
        raise TypeError(f"progress is a number from 0 to 1, not {type(done).__name__}")
    if not 0 <= done <= 1:  # also refuses NaN
        raise ValueError(f"progress is a number from 0 to 1, not {done}")
    if not isinstance(text, str):
        raise TypeError(f"the text of a progress is text, not {type(text).__name__}")
