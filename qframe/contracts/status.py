"""JobStatus: what became of a tracked job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MOST_LINES = 1000
"""So many lines of a job's log may be kept at most."""


class State(StrEnum):
    """Where a tracked job is.

    `COMPLETE`, `SKIPPED`, `FAILED` and `CANCELLED` are final; only `qframe retry` begins anew.
    """

    WAITING = "WAITING"
    """It waits, now or after its delay, for its first start, or was given back uncounted."""
    RUNNING = "RUNNING"
    RELEASED = "RELEASED"
    """An attempt ended and another one follows."""
    BURIED = "BURIED"
    """It was put aside until it is kicked."""
    COMPLETE = "COMPLETE"
    SKIPPED = "SKIPPED"
    """It ended without being run: expired, or by `DontHandle`."""
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether nothing follows."""
        return self in FINAL


FINAL = frozenset({State.COMPLETE, State.SKIPPED, State.FAILED, State.CANCELLED})


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of one tracked job. Times are epoch seconds, None where not known or not yet."""

    uuid: str
    state: State
    name: str
    connection: str
    queue: str
    attempt: int
    """How often it was started."""
    queued_at: float | None = None
    started_at: float | None = None
    """When the last attempt started."""
    ended_at: float | None = None
    """When the last attempt ended."""
    host: str | None = None
    """Where the last attempt ran, or runs."""
    pid: int | None = None
    progress: float | None = None
    """From 0 to 1, as the job said."""
    message: str = ""
    """What the job said with its progress."""
    result: Any = None
    """What `handle` gave, as JSON."""
    exception: tuple[str, str] | None = None
    """Type and message of the error that ended the last attempt."""
    remark: str = ""
    """Why there is no result, why it was skipped, released, given back or cancelled."""
    retries: int = 0
    """How often it was retried by hand after it had failed."""
    tags: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    """The last lines logged in the job, where it has `keep_log`; each begins with its attempt."""

    @property
    def is_final(self) -> bool:
        """Whether nothing follows."""
        return self.state.is_final

    def to_dict(self) -> dict[str, Any]:
        """Give what JSON can carry."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        error = self.exception
        fields["state"] = str(self.state)
        fields["tags"], fields["log"] = list(self.tags), list(self.log)
        fields["exception"] = None if error is None else {"type": error[0], "message": error[1]}
        return fields

    @classmethod
    def from_dict(cls, uuid: str, fields: Mapping[str, Any]) -> JobStatus:
        """Read what a status was written as; what is missing there is as if never said."""
        error = fields.get("exception")
        known = {key: value for key, value in fields.items() if key in cls.__slots__}
        known["state"] = State(fields["state"])
        known["tags"] = tuple(fields.get("tags") or ())
        known["log"] = tuple(fields.get("log") or ())
        known["exception"] = (error["type"], error["message"]) if error else None
        known = {"name": "", "connection": "", "queue": "", "attempt": 0, **known, "uuid": uuid}
        return cls(**known)


def check_progress(done: float, text: str) -> None:
    """Raise `ValueError` or `TypeError` where this is no progress."""
    if isinstance(done, bool) or not isinstance(done, int | float):
        raise TypeError(f"progress is a number from 0 to 1, not {type(done).__name__}")
    if not 0 <= done <= 1:  # NaN is not, either
        raise ValueError(f"progress is a number from 0 to 1, not {done}")
    if not isinstance(text, str):
        raise TypeError(f"the text of a progress is text, not {type(text).__name__}")
