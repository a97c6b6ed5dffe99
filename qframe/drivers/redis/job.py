"""One reserved member."""

from __future__ import annotations

import json
from functools import cache, cached_property
from typing import TYPE_CHECKING

from qframe import host
from qframe.contracts import FailedJob, FailedStore, History
from qframe.drivers.base import HOLD, BaseJob
from qframe.drivers.redis import member
from qframe.drivers.redis.failed import encoded
from qframe.drivers.redis.keys import QueueKeys
from qframe.drivers.redis.scripts import Command, call
from qframe.exceptions import BackendUnavailable

if TYPE_CHECKING:
    from qframe.drivers.redis.link import Link
    from qframe.drivers.redis.queue import RedisQueue

_EMPTY = History()


class RedisJob(BaseJob):
    """A member of a `:reserved` set this process holds the lease of (Laravel's RedisJob).

    Its bytes and its score there are the fence. `sure_until` is the moment of our clock until which
    the lease is certain to be ours.
    """

    connection: RedisQueue

    def __init__(
        self,
        connection: RedisQueue,
        queue: str,
        keys: QueueKeys,
        stored: bytes,
        score: float,
        asked_at: float,
    ) -> None:
        self._member = found = member.read(stored)
        super().__init__(connection, queue, None, found.raw, found.attempts)
        self.keys = keys
        self.stored = stored
        self.score = repr(score)
        self.held_until = score
        self.sure_until = asked_at + HOLD / 3
        self.start_sent: Command | None = None
        """The start, until it is known that it was done."""
        self.sent_on: Link | None = None
        """Where it was said; what another link says may come before it."""
        self.in_doubt = False
        """Whether it may have been settled, unheard."""
        self._asked_at = asked_at
        self._payload = found.payload
        self._history: History | None = None
        self._began = 0.0

    @cached_property
    def id(self) -> str:  # type: ignore[override] # made when asked for
        found = self._member
        if found.identity is not None:
            return found.identity
        payload = found.payload or {}
        if isinstance(payload.get("id"), str) and payload["id"]:
            return str(payload["id"])
        if payload.get("uuid"):
            return f"{payload['uuid']}@{self.held_until!r}"
        return member.content_id(found.raw)

    @property
    def history(self) -> History:
        if self._history is None:
            history = History.from_json(self._member.history)
            if self._began:
                history = history.started(self._attempts, host.NAME, host.pid(), self._began)
            self._history = history
        return self._history

    def starting(self, clock: float) -> tuple[bytes, float]:
        """Give the bytes of this job once it has started, and when by the server's clock."""
        began = self.held_until - HOLD + max(0.0, clock - self._asked_at)
        found = self._member
        if found.history is None and found.payload is not None and found.identity is None:
            head, tail = _first_history(host.pid())
            noted = b"%s%.6f%s" % (head, began, tail)
            stored = member.write_started(found.raw, found.pad, noted)
            if stored is not None:
                return stored, began
        number = self._attempts + 1
        history = self.history.started(number, host.NAME, host.pid(), began)
        return member.write(found, number, history.to_json()), began

    def has_started(self, stored: bytes, score: str, began: float, sure_until: float) -> None:
        """Note a start the server has counted, or was told to count."""
        self.stored = stored
        self.score = score
        self.sure_until = sure_until
        self.started = True
        self._attempts += 1
        self._began = began
        self._history = None

    def has_not_started(self, stored: bytes, score: str) -> None:
        """Note that nobody took the start: the job is only held."""
        self.stored = stored
        self.score = score
        self.start_sent = None
        self.started = False
        self._attempts -= 1
        self._began = 0.0
        self._history = None

    def confirm(self) -> None:
        if self.start_sent is not None:
            self.renew()

    # -- settling ---------------------------------------------------------------------------------

    def _delete(self) -> bool:
        return self._apply(self.deletion())

    def deletion(self) -> Command:
        """Give the command that deletes this job."""
        return call("delete", (self.keys.reserved,), self.stored, self.score)

    def _release(self, delay: float, history: History) -> bool:
        return self._back(self._attempts, history, repr(delay) if delay else "tail")

    def _give_back(self, delay: float, history: History) -> bool:
        attempts = self._attempts - 1 if self.started else self._attempts
        return self._back(attempts, history, repr(delay) if delay else "head")

    def _back(self, attempts: int, history: History, where: str) -> bool:
        text = None if history == _EMPTY else history.to_json()
        stored = member.write(self._member, attempts, text)
        keys = self.keys
        return self._apply(
            call(
                "release", (keys.reserved, keys.ready, keys.notify, keys.delayed),
                self.stored, self.score, stored, where,
            )
        )  # fmt: skip

    def _bury(self) -> bool:
        keys = self.keys
        return self._apply(call("bury", (keys.reserved, keys.buried), self.stored, self.score))

    def _fail(self, record: FailedJob, store: FailedStore) -> bool:
        if not self.connection.shares(store):
            return super()._fail(record, store)
        keys = self.connection.keys
        return self._apply(
            call(
                "fail", (self.keys.reserved, keys.failed, keys.failed_order),
                self.stored, self.score, record.uuid, encoded(record), record.failed_at,
            )
        )  # fmt: skip

    def _renew(self) -> bool:
        lease = self.connection.retry_after
        # In full: what comes behind it is nothing without it.
        start = [] if self.start_sent is None else [self.start_sent.whole()]
        asked_at = self.connection.clock()
        with self.connection.links.using(self.keys.reserved) as link:
            score = self.score
            self.score = ""  # not known from here on, until the answer is there
            *_, renewed = link.ask(
                *start, call("renew", (self.keys.reserved,), self.stored, score, lease),
                again=lambda: [
                    *start, call("renew", (self.keys.reserved,), self.stored, "", lease),
                ],
            )  # fmt: skip
        self.start_sent = None
        if not renewed:
            self.score = score
            return False
        self.score = renewed.decode()
        self.sure_until = asked_at + lease / 3
        return True

    def _apply(self, command: Command) -> bool:
        """Do a settling step; one that may have been done before, unheard, counts as done."""
        with self.connection.links.using(self.keys.reserved) as link:
            start = self.start_sent if link is not self.sent_on else None
            try:
                *_, applied = link.ask(*([] if start is None else [start.whole()]), command)
            except BackendUnavailable:
                self.in_doubt = self.in_doubt or link.repeated
                raise
            if start is not None:
                self.start_sent = None
            return bool(applied) or link.repeated or self.in_doubt


@cache
def _first_history(pid: int) -> tuple[bytes, bytes]:
    """Give what stands before and after the time in the history of a first start, as JSON text."""
    marker = 0.5
    text = json.dumps(History().started(1, host.NAME, pid, marker).to_json())
    head, _, tail = text.rpartition(f",{marker},")
    return f"{head},".encode(), f",{tail}".encode()
