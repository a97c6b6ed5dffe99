"""The contract of the place where the statuses of tracked jobs are kept."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


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


class Note(NamedTuple):
    """One change of a status.

    It is taken where there is no status, where that is of an earlier `life`, or where it is of this
    life, not final, and of no later attempt than `attempt`. Texts are JSON, or empty; None leaves
    what there is of this life.
    """

    uuid: str
    life: int
    """How often the job was retried by hand."""
    attempt: int
    """The attempt this is said of."""
    counted: int
    """The attempts counted from now on; fewer where one was given back."""
    state: State
    ttl: float
    """Seconds it is kept after this."""
    queued: str
    """What was known at dispatch; what there is of this life stays."""
    started: str | None = None
    ended: str = ""
    progress: str | None = None


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

    @property
    def is_final(self) -> bool:
        """Whether nothing follows."""
        return self.state.is_final

    def to_dict(self) -> dict[str, Any]:
        """Give what JSON can carry."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        error = self.exception
        fields["state"] = str(self.state)
        fields["exception"] = None if error is None else {"type": error[0], "message": error[1]}
        return fields

    @classmethod
    def of(cls, uuid: str, life: int, attempt: int, state: str, *texts: str | None) -> JobStatus:
        """Put together what a store keeps: `texts` are queued, started, ended and progress."""
        queued, started, ended, progress = (_fields(text) for text in texts)
        error = ended.get("error")
        return cls(
            uuid=uuid,
            state=State(state),
            name=str(queued.get("name", "")),
            connection=str(queued.get("connection", "")),
            queue=str(queued.get("queue", "")),
            attempt=attempt,
            queued_at=queued.get("at"),
            started_at=started.get("at"),
            ended_at=ended.get("at"),
            host=started.get("host"),
            pid=started.get("pid"),
            progress=progress.get("done"),
            message=str(progress.get("text", "")),
            result=ended.get("result"),
            exception=(str(error[0]), str(error[1])) if error else None,
            remark=str(ended.get("remark", "")),
            retries=life,
        )


def _fields(text: str | None) -> dict[str, Any]:
    return json.loads(text) if text else {}


class StatusStore(ABC):
    """Statuses by uuid, each gone `ttl` seconds after it was last written.

    Each write is one atomic step. Raises `BackendUnavailable`.
    """

    @abstractmethod
    def write(self, note: Note) -> bool:
        """Change a status; false, and nothing changed, where it is further on already."""

    @abstractmethod
    def progress(self, note: Note) -> bool:
        """Change only the progress of a job that runs, in this very attempt; false otherwise."""

    @abstractmethod
    def read(self, uuid: str) -> JobStatus | None:
        """Give a status, or None where there is none."""

    @abstractmethod
    def withdraw(self, uuid: str) -> None:
        """Remove the status of a job that was not pushed after all, unless it was started."""
