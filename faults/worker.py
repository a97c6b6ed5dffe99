"""`python -m faults.worker ...`: the `qframe` command as it is, with a ledger of what was settled.

`DIE_AT` in the environment is a point at which the process kills itself, as JSON:
{"script": "start", "phase": "before" | "sent" | "answered", "count": 3} is the third time it is
about to send, has sent, or has read the answer to that script. What the thread says that keeps the
leases counts only for `renew`. Nothing of this is in qframe: the
functions it calls are replaced here, before it begins.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

from qframe import events
from qframe.console.app import main
from qframe.drivers.base import BaseJob
from qframe.exceptions import InvalidPayload
from tests.support.ledger import Ledger


def note_settles(ledger: Ledger) -> None:
    """Note in the ledger that the worker is up, and how each reservation ended."""
    events.listen(events.WorkerStarting)(lambda _event: ledger.note("U", os.getpid()))
    mark = BaseJob.mark

    def marking(self: BaseJob, state: str) -> None:
        mark(self, state)
        # What was only held may go to another: nothing was begun that could be refused.
        how = "let-go" if state == "lost" and not self.started else state.replace(" ", "-")
        ledger.note("A", name(self), how, self.attempts(), os.getpid())

    BaseJob.mark = marking  # type: ignore[method-assign]


def name(job: BaseJob) -> str:
    """Give the number of a job of ours, the uuid of any other."""
    try:
        return str(int(job.payload["data"]["number"]))
    except (InvalidPayload, KeyError, TypeError, ValueError):
        return job.uuid.replace(" ", "-")


def die_at(point: dict[str, Any]) -> None:
    """Kill this process at a point of what it says to Redis."""
    from redis.connection import AbstractConnection  # noqa: PLC0415 (only where it is asked for)

    from qframe.drivers.redis.scripts import script  # noqa: PLC0415

    wanted = script(point["script"])
    texts = (wanted.digest.encode(), wanted.text)
    left = point["count"]
    waiting: dict[int, list[bool]] = {}  # for each connection, whether a reply is the one
    send: Any = AbstractConnection.send_packed_command
    read: Any = AbstractConnection.read_response

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def sending(self: Any, command: Any, *rest: Any, **options: Any) -> Any:
        nonlocal left
        raw = command if isinstance(command, bytes) else b"".join(command)
        this = any(text in raw for text in texts) and (
            point["script"] == "renew" or threading.current_thread() is threading.main_thread()
        )
        if this:
            left -= 1
        if this and not left and point["phase"] == "before":
            die()
        result = send(self, command, *rest, **options)
        if this and not left and point["phase"] == "sent":
            die()
        replies = raw.count(b"EVALSHA\r\n") or 1
        waiting.setdefault(id(self), []).extend([*[False] * (replies - 1), this and not left])
        return result

    def reading(self: Any, *rest: Any, **options: Any) -> Any:
        try:
            return read(self, *rest, **options)
        finally:
            queue = waiting.get(id(self), [])
            if queue and queue.pop(0) and point["phase"] == "answered":
                die()

    AbstractConnection.send_packed_command = sending  # type: ignore[method-assign]
    AbstractConnection.read_response = reading  # type: ignore[method-assign]


if __name__ == "__main__":
    note_settles(Ledger(Path(os.environ["LEDGER"])))
    if "DIE_AT" in os.environ:
        die_at(json.loads(os.environ["DIE_AT"]))
    main()
