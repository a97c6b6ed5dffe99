"""The process of a background job: `python -m qframe.background` gets the job on its input."""

from __future__ import annotations

import base64
import importlib
import json
import logging
import os
import sys
from collections import deque

from qframe import manager
from qframe.contracts.step import Push
from qframe.dispatch.sync import SyncConnection
from qframe.exceptions import ConfigurationError
from qframe.manager import QueueManager
from qframe.payload import envelope, tracebacks

log = logging.getLogger("qframe")


def main() -> int:
    """Run the job, and what its end pushes. Returns the exit code.

    If its code cannot be imported, it is recorded as failed. Without a configuration that can be
    read there is no place for a record: one line in the log says which job is lost.
    """
    asked = json.load(sys.stdin)
    push = Push(asked["queue"], base64.b64decode(asked["raw"]))
    try:
        queues, connection = _opened(asked["connection"])
    except Exception as error:  # noqa: BLE001 (whatever the project's settings do)
        _say(push, error, "and is lost")
        return 1
    try:
        queues.registry.load()
    except Exception as error:  # noqa: BLE001 (whatever the project's modules do)
        return _refuse(connection, push, error)
    try:
        connection.work_off(deque([push]))
    except Exception:
        log.exception("a background job failed")
        return 1
    return 0


def _opened(name: str) -> tuple[QueueManager, SyncConnection]:
    if "DJANGO_SETTINGS_MODULE" in os.environ:
        importlib.import_module("django").setup()
    queues = QueueManager()
    manager.use(queues)
    connection = queues.connection(name)
    if not isinstance(connection, SyncConnection):
        raise ConfigurationError(f"the connection {name!r} runs no jobs in processes of their own")
    return queues, connection


def _refuse(connection: SyncConnection, push: Push, why: Exception) -> int:
    try:
        connection.fail(push, why)
    except Exception as error:  # noqa: BLE001 (listeners and the failed store may raise anything)
        _say(push, error, "and may not be recorded as failed")
    else:
        _say(push, why, "and is recorded as failed")
    return 1


def _say(push: Push, why: Exception, outcome: str) -> None:
    message = envelope.parse(push.raw)
    job = f"{envelope.display_name(message)} {envelope.uuid(message)}"
    log.error("a background job was not run, %s: %s: %s", outcome, job, tracebacks.brief(why))


if __name__ == "__main__":
    sys.exit(main())
