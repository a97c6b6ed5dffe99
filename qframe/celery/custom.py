"""States that a task gives itself with `update_state`, kept beside the status of its job."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, NamedTuple

from qframe import manager
from qframe.celery.values import plain, restored

_LONGEST = 65_536
"""Characters of a state's JSON."""


class CustomState(NamedTuple):
    """A state, and what the task says of it."""

    state: str
    meta: Any
    attempt: int | None
    """The attempt that it is of; None if another program or task has set it."""


def keep(app: Any, task_id: str, custom: CustomState) -> None:
    """Keep a state for as long as results are kept. Raises `ValueError` if it is too large."""
    meta = custom.meta
    if isinstance(meta, BaseException):
        meta = {"exc_type": type(meta).__name__, "exc_message": str(meta)}
    text = json.dumps([custom.state, plain(meta), custom.attempt])
    if len(text) > _LONGEST:
        raise ValueError(
            f"the meta of a state has {len(text):,} characters, more than {_LONGEST:,}"
        )
    _store(app).set(_key(task_id), text, _seconds(app.conf.result_expires))


def read(app: Any, task_id: str) -> CustomState | None:
    """Return the state that was kept last."""
    (text,) = _store(app).get(_key(task_id))
    if text is None:
        return None
    state, meta, attempt = json.loads(text)
    return CustomState(state, restored(meta), attempt)


def forget(app: Any, task_id: str) -> None:
    """Remove what is kept."""
    _store(app).delete(_key(task_id))


def _store(app: Any) -> Any:
    return manager.default().connection(app.connection_name).store


def _key(task_id: str) -> str:
    return f"celery:{task_id}"


def _seconds(kept: float | timedelta | None) -> float:
    found = kept.total_seconds() if isinstance(kept, timedelta) else kept
    return found or timedelta(days=365).total_seconds()
