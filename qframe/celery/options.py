"""Options of tasks and of their calls: which there are, and what to use instead of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from qframe.celery.exceptions import NotSupported
from qframe.celery.missing import OF_TASK, refusal, refused
from qframe.exceptions import JobDefinitionError
from qframe.payload.text import nearest, one_line
from qframe.payload.timing import seconds_until

OF_TASKS: Final = {
    "acks_late",
    "autoretry_for",
    "default_retry_delay",
    "dont_autoretry_for",
    "expires",
    "ignore_result",
    "max_retries",
    "name",
    "priority",
    "queue",
    "reject_on_worker_lost",
    "retry_backoff",
    "retry_backoff_max",
    "retry_jitter",
    "retry_kwargs",
    "serializer",
    "shared",
    "soft_time_limit",
    "time_limit",
    "track_started",
    "typing",
}
"""What a decorator takes, besides `bind` and `base`, and a class may set."""

OF_CALLS: Final = {
    "countdown",
    "eta",
    "expires",
    "ignore_result",
    "link",
    "link_error",
    "priority",
    "queue",
    "shadow",
    "soft_time_limit",
    "task_id",
    "time_limit",
}
"""What `apply_async` takes, besides `args` and `kwargs`."""

_ALWAYS: Final = {
    "acks_late": (
        True,
        "True, a job is deleted after it ran; for at most one start, max_retries=0",
    ),
    "reject_on_worker_lost": (True, "True; for at most one start, max_retries=0"),
    "serializer": ("json", "json; pickle is refused, so pass ids and plain values"),
    "track_started": (True, "True, it is always so"),
}

_SECONDS: Final = {"default_retry_delay", "retry_backoff", "retry_backoff_max"}

_MOST: Final = 1_000_000
"""Of tries, which are one more than retries."""

_INSTEAD: Final = {
    **OF_TASK,
    "acks_on_failure_or_timeout": "nothing: a failed task is kept among the failed ones",
    "add_to_parent": "nothing: a task that dispatches another is not its parent",
    "chord": "chord(header)(body)",
    "compression": "nothing: keep large values elsewhere and pass their key",
    "connection": "broker_url, or the connections of qframe.toml",
    "content_encoding": "nothing: there is one",
    "content_type": "nothing: it is JSON",
    "exchange": "queue",
    "from_config": "app.conf",
    "group_id": "group(...)",
    "headers": "a keyword argument, or a listener of events.JobQueueing",
    "max_body_length": "max_payload of a connection in qframe.toml",
    "mandatory": "queue",
    "parent_id": "a chain",
    "producer": "nothing: connections are kept open",
    "publisher": "nothing: connections are kept open",
    "pydantic": "a Queueable, whose fields pydantic checks",
    "reply_to": "AsyncResult",
    "request_stack": "self.request",
    "resultrepr_maxsize": "nothing: arguments and results are not logged",
    "retry": "push_retries of a connection in qframe.toml",
    "retry_policy": "push_retries of a connection in qframe.toml",
    "root_id": "a chain",
    "router": "app.conf.task_routes",
    "routing_key": "queue",
    "stamped_headers": "tags of a Queueable",
    "store_eager_result": "qframe.testing.drain in tests",
    "store_errors_even_if_ignored": "nothing: failed tasks are always kept",
    "throws": "nothing: log as you like, and catch what is expected",
    "trail": "AsyncResult.parent of a chain",
}


def check_task(name: str, given: Mapping[str, Any]) -> None:
    """Raise `NotSupported` for an option that is not there, `JobDefinitionError` for a value."""
    for key, value in given.items():
        if key not in OF_TASKS:
            raise _unknown(f"option {key} of a task", key, OF_TASKS, name)
        if key in _ALWAYS and value is not None and value != _ALWAYS[key][0]:
            shown = one_line(repr(value), 40)
            raise NotSupported(refusal(f"{key}={shown} ({name})", _ALWAYS[key][1]))
        if key == "max_retries" and value is not None and not _is_count(value):
            raise JobDefinitionError(
                f"{name}.max_retries is a whole number up to {_MOST:,}, or None, not "
                f"{one_line(repr(value), 60)}"
            )
        if key in _SECONDS and not isinstance(value, bool):
            try:
                seconds_until(value, f"{name}.{key}")
            except (TypeError, ValueError) as error:
                raise JobDefinitionError(str(error)) from None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value < _MOST


def check_class(name: str, attributes: Iterable[str]) -> None:
    """Raise `NotSupported` for a refused option that a class of tasks sets."""
    for key in attributes:
        if key in _INSTEAD and key not in OF_TASKS and key not in {"subtask", "connection"}:
            raise _unknown(f"option {key} of a task", key, OF_TASKS, name)


def check_call(name: str, given: Mapping[str, Any]) -> None:
    """Raise `NotSupported` for an option of a call that qframe has not."""
    for key, value in given.items():
        if key == "serializer" and value in {None, "json"}:
            continue
        if key not in OF_CALLS:
            raise _unknown(f"option {key} of a call", key, OF_CALLS, name)


def _unknown(what: str, key: str, known: Iterable[str], name: str) -> NotSupported:
    if key in _ALWAYS:
        return refused(f"{what} ({name})", _ALWAYS[key][1])
    if key in _INSTEAD:
        return refused(f"{what} ({name})", _INSTEAD[key])
    shown = one_line(what, 80)
    return NotSupported(f"qframe.celery has no {shown} ({name}){nearest(key, known)}")
