"""Celery's names on top of qframe: `from qframe.celery import Celery, shared_task`.

Tasks run in `qframe work`, with qframe's leases, retries, statuses, flows and schedules; what is
not there is refused by name, with what to use instead (docs/moving/celery.md).

A task is an ordinary job of qframe. On the wire its `job` is the task's name in Celery, and its
`data` has the arguments of the call, and nothing else:

```json
{"uuid": "TASK ID", "displayName": "proj.tasks.add", "job": "proj.tasks.add",
 "data": {"args": [2, 2], "kwargs": {}},
 "maxTries": 4, "timeout": 0, "track": 86400, ...}
```

`args` is a list and `kwargs` an object, both plain JSON. A value that JSON does not have is
`{"__type__": "datetime", "__value__": "2026-01-02T03:04:05+00:00"}`, as in Celery's own messages;
the types are `datetime`, `date`, `time`, `decimal`, `uuid`, `bytes` (UTF-8) and `base64`, and what
a task gets are the values themselves. `timeout` 0 is no limit, Celery's default, and `track`
the seconds that the status and result are kept. So a message of Celery's, moved here, is
`{"args": body[0], "kwargs": body[1]}` under `headers["task"]`, with `headers["id"]` as `uuid`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qframe.celery import missing
from qframe.celery.app import Celery, app_or_default, shared_task
from qframe.celery.apps import current_app
from qframe.celery.canvas import (
    Signature,
    chain,
    chord,
    group,
    maybe_signature,
    signature,
    subtask,
)
from qframe.celery.maps import chunks, xmap, xstarmap
from qframe.celery.running import current_task
from qframe.celery.task import Task

__all__ = [
    "Celery",
    "Signature",
    "Task",
    "app_or_default",
    "chain",
    "chord",
    "chunks",
    "current_app",
    "current_task",
    "group",
    "maybe_signature",
    "shared_task",
    "signature",
    "subtask",
    "xmap",
    "xstarmap",
]

missing.refuse_modules()

if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Refuse what Celery has and qframe has not, by name."""
        raise missing.of_module(__name__, name)
