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
from qframe.manager import QueueManager

log = logging.getLogger("qframe")


def main() -> int:
    """Run the job, and what its end pushes. Returns the exit code."""
    asked = json.load(sys.stdin)
    push = Push(asked["queue"], base64.b64decode(asked["raw"]))
    if "DJANGO_SETTINGS_MODULE" in os.environ:
        importlib.import_module("django").setup()
    queues = QueueManager()
    manager.use(queues)
    queues.registry.load()
    connection = queues.connection(asked["connection"])
    try:
        if isinstance(connection, SyncConnection):
            connection.work_off(deque([push]))
    except Exception:
        log.exception("a background job failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
