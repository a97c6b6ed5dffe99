"""Dispatching: jobs that programs in any language dispatch over HTTP."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse

from qframe import forks
from qframe.config.sections import DispatchSettings, per_second
from qframe.contracts.backend import Capability
from qframe.exceptions import (
    BackendUnavailable,
    InvalidArguments,
    PayloadTooLarge,
    QframeError,
    UnknownJob,
)
from qframe.jobs.definition import JobDefinition
from qframe.jobs.uniqueness import ONCE, once, once_rule_of
from qframe.manager import QueueManager
from qframe.payload import tracebacks
from qframe.payload.text import one_line
from qframe.payload.timing import LONGEST, seconds_until
from qframe.web.errors import described, problem

log = logging.getLogger("qframe")

_DAY = 86400.0
_LONGEST_KEY = 255
_MOST_VISITORS = 10_000
_Text = Annotated[str, Field(min_length=1, max_length=500)]


class Refused(Exception):
    """A dispatch that is answered with a problem."""

    def __init__(
        self,
        code: int,
        detail: str,
        errors: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.answer: JSONResponse = problem(code, detail, errors, headers)


class JobRequest(BaseModel):
    """What a program asks for."""

    model_config = ConfigDict(extra="forbid", strict=True)

    job: _Text
    data: dict[str, Any] = {}
    queue: _Text | None = None
    connection: _Text | None = None
    delay: Annotated[float, Field(ge=0, le=LONGEST)] = 0


class DispatchedJob(BaseModel):
    """A job that was dispatched, or that had been, with the same `Idempotency-Key`."""

    id: str
    job: str
    queue: str
    connection: str
    duplicate: bool
    """Whether nothing was queued now: `id` is that of the earlier job."""


class JobPort:
    """Checks requests, and dispatches what is allowed."""

    def __init__(self, queues: QueueManager) -> None:
        self._queues = queues
        self.settings: DispatchSettings = queues.settings.web.dispatch
        self._rate = Rate(self.settings.rate)

    def check_rate(self, who: str) -> None:
        """Raises `Refused` for a visitor who dispatches too much."""
        wait = self._rate.wait(who)
        if wait > 0:
            seconds = {"Retry-After": f"{int(wait) + 1}"}
            raise Refused(429, f"more than {self.settings.rate}: wait {wait:.1f} s", (), seconds)

    def dispatch(self, body: bytes, key: str | None, who: str) -> DispatchedJob:
        """Dispatches the job in a request's body. Raises `Refused`.

        An idempotency key is that of a visitor, `who`, wherever the request comes from.
        """
        own = None if key is None else f"{_checked_key(key)}\n{who}"
        try:
            return self._dispatch(_asked(body), own)
        except BackendUnavailable as error:
            raise Refused(503, str(error), (), {"Retry-After": "1"}) from error
        except PayloadTooLarge as error:
            raise Refused(413, str(error)) from error
        except QframeError as error:
            raise Refused(422, str(error)) from error

    def classes(self) -> list[type[JobDefinition]]:
        """Returns the allowed classes. Raises `UnknownJob`."""
        return [self._queues.registry.find(name) for name in dict.fromkeys(self.settings.jobs)]

    def _dispatch(self, asked: JobRequest, key: str | None) -> DispatchedJob:
        self._check(asked)
        try:
            job_class = self._queues.registry.find(asked.job)
        except UnknownJob as error:
            raise Refused(500, f"{asked.job} is allowed, but not there: {error}") from error
        job = _made(job_class, asked.data)
        connection = self._queues.connection_of(job, asked.connection, asked.queue)
        if Capability.RESERVE not in connection.capabilities:
            raise Refused(422, f"the connection {connection.name!r} keeps no jobs for workers")
        with _own_code_of(job_class):
            made = connection.envelope(job)
        if key is not None:
            rule = once_rule_of(job_class)
            seconds = _DAY if rule is None else rule.seconds
            connection.add(made, {ONCE: once(str(made.payload["job"]), key, seconds)})
        queue = connection.queue_for(job, asked.queue)
        identity = connection.push_envelope(
            job, made, queue, asked.delay or seconds_until(job.delay)
        )
        return DispatchedJob(
            id=identity,
            job=asked.job,
            queue=queue,
            connection=connection.name,
            duplicate=identity != made.uuid,
        )

    def _check(self, asked: JobRequest) -> None:
        allowed = self.settings
        if asked.job not in allowed.jobs:
            raise Refused(403, f"{one_line(asked.job, 200)} may not be dispatched here")
        if asked.queue is not None and not any(
            fnmatchcase(asked.queue, each) for each in allowed.queues
        ):
            raise Refused(403, f"the queue {one_line(asked.queue, 130)} may not be chosen")
        if asked.connection is not None and asked.connection not in allowed.connections:
            raise Refused(
                403, f"the connection {one_line(asked.connection, 130)} may not be chosen"
            )
        if asked.delay > allowed.max_delay:
            raise Refused(422, f"delay is at most {allowed.max_delay:g} seconds")


class Rate:
    """So many requests of each visitor; as many as a period allows may come at once."""

    def __init__(self, rate: str) -> None:
        self._most = max(1.0, float(rate.partition("/")[0]))
        self._every = 1 / per_second(rate)
        self._free: dict[str, float] = {}
        """When each visitor will have all of it again."""
        self._lock = forks.lock()

    def wait(self, who: str) -> float:
        """Counts a request of a visitor. Returns the seconds to wait instead, or 0."""
        with self._lock:
            now = time.monotonic()
            free = max(now, self._free.pop(who, now)) + self._every
            over = free - now - self._most * self._every
            self._free[who] = free if over <= 0 else free - self._every
            if len(self._free) > _MOST_VISITORS:
                self._free.pop(next(iter(self._free)))
            return max(0.0, over)


def _asked(body: bytes) -> JobRequest:
    try:
        return JobRequest.model_validate_json(body)
    except ValidationError as error:
        faults = _faults(error)
        if faults[0]["type"] == "json_invalid":
            raise Refused(400, f"the body is no JSON: {one_line(faults[0]['msg'])}") from None
        raise Refused(422, described(error)[1], faults) from None


def _made(job_class: type[JobDefinition], data: dict[str, Any]) -> JobDefinition:
    try:
        with _own_code_of(job_class, data):
            return job_class.from_request(data)
    except ValidationError as error:
        text = f"{job_class.__name__}: {described(error)[1]}"
        raise Refused(422, text, _faults(error, ("data",))) from None
    except InvalidArguments as error:
        raise Refused(422, str(error)) from None


@contextlib.contextmanager
def _own_code_of(
    job_class: type[JobDefinition], data: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Refuses the request if code of the class raises what is no refusal; that may show values."""
    try:
        yield
    except (QframeError, ValidationError):
        raise
    except Exception as error:  # noqa: BLE001 (the code of a class may raise anything)
        name, kind = job_class.__name__, type(error).__name__
        place = tracebacks.place_of(error)
        log.error("the code of %s raised %s for a request%s", name, kind, place and f" ({place})")  # noqa: TRY400 (its text may show secrets)
        fields = [each for each in job_class.field_names() if _raises(job_class, data, each)]
        where = f"{fields[0]}: " if len(fields) == 1 else ""
        said = f"the code of the class raised {kind}"
        loc = ["data", *fields] if where else ["data"]
        fault = {"type": "raised", "loc": loc, "msg": said}
        raise Refused(422, f"{name}: {where}{said}", [fault]) from None


def _raises(job_class: type[JobDefinition], data: Mapping[str, Any] | None, field: str) -> bool:
    """Whether the validators of a field raise by themselves what is no validation error."""
    if data is None or field not in data:
        return False
    try:
        job_class.from_request({field: data[field]})
    except (QframeError, ValidationError):
        return False
    except Exception:  # noqa: BLE001 (what is looked for)
        return True
    return False


def _faults(error: ValidationError, below: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Returns pydantic's errors without the values, which may be secret."""
    return [
        {"type": each["type"], "loc": [*below, *each["loc"]], "msg": each["msg"]}
        for each in error.errors(include_url=False, include_input=False, include_context=False)
    ]


def _checked_key(key: str) -> str:
    """Returns an idempotency key, with or without the quotes of a structured header."""
    inner = key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key
    if not 0 < len(inner) <= _LONGEST_KEY or not inner.isprintable():
        raise Refused(400, f"Idempotency-Key takes 1 to {_LONGEST_KEY} printable characters")
    return inner
