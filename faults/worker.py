"""`python -m faults.worker ...`: the `qframe` command as it is, with a ledger of what was settled.

`DIE_AT` in the environment is a point at which the process kills itself, as JSON:
{"script": "start", "phase": "before" | "sent" | "answered", "count": 3} is the third time it is
about to send, has sent, or has read an answer to such a request to a Redis (a deletion: one that
travels without a start); with {"command": "delete", ...} it is that word of beanstalkd's, with
{"action": "DeleteMessage", ...} that of SQS. What the thread says that keeps the leases counts only
for `renew` and `touch`, or with "anyone". With `UNRENEWED` set, no lease is renewed. Nothing of
this is in qframe: the functions it calls are replaced here, before it begins.

A thread beside notes when the machine gave the process no time: a lease it could not renew then is
no defect.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.jobs import number_of
from faults.requests import mark_of, mark_of_action
from qframe import events
from qframe.console.app import main
from qframe.exceptions import InvalidPayload
from qframe.features.reserved import ReservedJob
from qframe.worker.leases import LeaseKeeper
from tests.support.ledger import Ledger

_PULSE = 0.05
_STARVED = 0.2
"""Seconds without a turn that are noted: a few of them end a lease of one second."""


def note_stalls(ledger: Ledger) -> None:
    """Note in the ledger, for ever, when this process had no turn of a processor."""
    while True:
        before = time.monotonic()
        time.sleep(_PULSE)
        stalled = time.monotonic() - before - _PULSE
        if stalled > _STARVED:
            ledger.note("G", os.getpid(), f"{stalled:.3f}")


def note_settles(ledger: Ledger) -> None:
    """Note in the ledger that the worker is up, what it takes, and how each reservation ended."""

    def up(_event: object) -> None:
        threading.Thread(target=note_stalls, args=(ledger,), daemon=True).start()
        ledger.note("U", os.getpid())

    def taken(event: events.JobPopped) -> None:
        if isinstance(event.job, ReservedJob):
            ledger.note("T", name(event.job), os.getpid())

    events.listen(events.WorkerStarting)(up)
    events.listen(events.JobPopped)(taken)

    second = weakref.WeakSet[ReservedJob]()
    is_second = ReservedJob.is_second

    def noted_second(self: ReservedJob) -> bool:
        if found := is_second(self):
            second.add(self)
        return found

    ReservedJob.is_second = noted_second  # type: ignore[method-assign]

    def note(job: ReservedJob) -> None:
        # What was only held may go to another: nothing was begun that could be refused.
        is_let_go = job.is_lost and not job.reservation.started
        how = "let-go" if is_let_go else job.state.replace(" ", "-")
        if how == "deleted" and job in second:
            how = "skipped"
        ledger.note("A", name(job), how, job.attempts(), os.getpid())

    for method in ("_conclude", "send", "mark_lost", "on_reply"):
        setattr(ReservedJob, method, noting(getattr(ReservedJob, method), note))


def noting(method: Callable[..., Any], note: Callable[[ReservedJob], None]) -> Callable[..., Any]:
    """Give a method of a job that notes what the job has become by it."""

    def noted(job: ReservedJob, *arguments: Any) -> Any:
        before = job.state if method.__name__ != "on_reply" else ""  # it was presumed until then
        try:
            return method(job, *arguments)
        finally:
            if job.state != before:
                note(job)

    return noted


def name(job: ReservedJob) -> str:
    """Give the number of a job of ours, the uuid of any other."""
    try:
        if str(job.payload["job"]).startswith("qframe."):
            return f"{job.uuid}@{id(job):x}"  # it is pushed again whenever there is need of it
        data = job.payload["data"]
        if "apart" in data:
            data = {
                "number": number_of(data["number"], data["apart"], job.payload["schedule"]["at"])
            }
        return str(int(data["number"]))
    except (InvalidPayload, KeyError, TypeError, ValueError):
        return job.uuid.replace(" ", "-")


class DieAt:
    """Kills this process at a point of what it says to its backend, whoever of ours says it."""

    def __init__(self, point: dict[str, Any]) -> None:
        self._wanted = re.compile(_marks(point))
        word = point.get("script", point.get("command"))
        self._from_anyone = word in {"renew", "touch"} or point.get("anyone", False)
        self._phase = point["phase"]
        self._left = point["count"]
        self._doomed: set[int] = set()
        self._is_in_two = "action" in point
        """Whether a request's head is sent by itself, and its body behind it."""
        self._half_sent: set[int] = set()

    def install(self) -> None:
        """Replace the methods of every socket of this process."""
        for name in ("send", "sendall"):
            setattr(socket.socket, name, self._sending(getattr(socket.socket, name)))
        for name in ("recv", "recv_into"):
            setattr(socket.socket, name, self._reading(getattr(socket.socket, name)))

    def _sending(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def send(connection: socket.socket, data: Any, *rest: Any) -> Any:
            this = self._is_wanted(bytes(data))
            self._left -= this
            last = this and not self._left
            if last and self._phase == "before":
                die()
            result = plain(connection, data, *rest)
            if connection.fileno() in self._half_sent:
                die()
            if last and self._phase == "sent":
                if not self._is_in_two:
                    die()
                self._half_sent.add(connection.fileno())
            elif last:
                self._doomed.add(connection.fileno())
            return result

        return send

    def _reading(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def read(connection: socket.socket, *rest: Any) -> Any:
            result = plain(connection, *rest)
            if result and connection.fileno() in self._doomed:
                die()
            return result

        return read

    def _is_wanted(self, raw: bytes) -> bool:
        if not self._wanted.search(raw):
            return False
        return self._from_anyone or threading.current_thread() is threading.main_thread()


def _marks(point: dict[str, Any]) -> bytes:
    """Give the pattern of the requests that are meant."""
    if "command" in point:
        word = str(point["command"]).encode()
        return rb"(?:^|\r\n)" + re.escape(word) + rb"[ \r-]"
    if "action" in point:
        return mark_of_action(str(point["action"]))
    kind = str(point["script"])
    mark = re.escape(mark_of(kind))
    return (
        rb"(?s)\A(?!.*" + re.escape(mark_of("start")) + rb").*" + mark if kind == "delete" else mark
    )


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def renew_nothing() -> None:
    """Let every lease run out, as long as its job may take."""

    def leave(self: LeaseKeeper) -> None:
        del self

    LeaseKeeper.look = leave  # type: ignore[method-assign]


if __name__ == "__main__":
    note_settles(Ledger(Path(os.environ["LEDGER"])))
    if "DIE_AT" in os.environ:
        DieAt(json.loads(os.environ["DIE_AT"])).install()
    if "UNRENEWED" in os.environ:
        renew_nothing()
    main()
