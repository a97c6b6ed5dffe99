"""One reserved member."""

from __future__ import annotations

import json
from functools import cache, cached_property
from typing import TYPE_CHECKING

from qframe import host
from qframe.contracts import FailedJob, FailedStore, History, Note
from qframe.drivers.base import HOLD
from qframe.drivers.redis import member
from qframe.drivers.redis.batches import counting
from qframe.drivers.redis.failed import encoded
from qframe.drivers.redis.keys import QueueKeys
from qframe.drivers.redis.locks import locked
from qframe.drivers.redis.scripts import Command, call
from qframe.drivers.redis.statuses import noted
from qframe.drivers.redis.store import given, milliseconds
from qframe.drivers.reservation import BaseJob
from qframe.exceptions import BackendUnavailable

if TYPE_CHECKING:
    from qframe.drivers.redis.link import Link, Reply
    from qframe.drivers.redis.queue import RedisQueue
    from qframe.tail import Step

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
    def _id_may_recur(self) -> bool:
        return self._member.identity is None

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

    def ticket(self) -> bytes | None:
        return b"%s %s" % (self.queue.encode(), self.stored)

    def take_up(self) -> bool:
        """Take over a start by another process from its bytes, which are no other start's."""
        self.started = True
        self.score = ""
        return self._renew()

    def confirm(self) -> None:
        if self.start_sent is not None:
            self.renew()

    # -- settling ---------------------------------------------------------------------------------

    def _delete(self) -> bool:
        return self._apply(self.deletion())

    def deletion(self, *, failed: bool = False) -> Command:
        """Give the command that deletes this job, and counts it in its batch."""
        note = None if self.tracking is None else self.deletion_note()
        names: tuple[str, ...] = (self.keys.reserved,)
        words: tuple[str | bytes, ...] = (self.stored, self.score)
        lock = None if self.lock is None else self.lock_at_end
        if lock is not None:
            names, words = (*names, self.connection.keys.store + lock.key), (*words, lock.uuid)
        return self._counted(note, "delete", names, *words, failed=failed or self.ends_in_failure)

    def hand_over(self, step: Step) -> bool | None:
        link, queue = step.push, self.connection
        if link is None or not queue.noting:
            return super().hand_over(step)
        raw = queue.due(link)
        ready, notify, delayed, *_ = queue.keys.of(link.queue)
        names = [self.keys.reserved, ready, notify, delayed]
        delay = repr(link.delay) if link.delay else "0"
        words: list[str | bytes | int] = [self.stored, self.score, delay, member.sent(raw)]
        for change in step.changes:
            names.append(queue.keys.store + change.key)
            words += [*map(given, (change.expected, change.wanted)), milliseconds(change.seconds)]
        note = self.deletion_note()
        notes = [] if note is None else [note]
        notes += queue.queued_notes([(raw, link.uuid)], link.queue, link.delay)
        if notes:
            parts = [(0, note) for note in notes]
            command = noted("hand_over", tuple(names), words, queue.keys.status, parts)
        else:
            command = call("hand_over", tuple(names), *words)
        around = queue.remembering([link.queue])
        done, perhaps_before = self._settling(self._freeing(command), *around)
        return None if done == b"" else bool(done) or perhaps_before

    def _freeing(self, command: Command) -> Command:
        """Give the command that frees the lock, too."""
        lock = self.lock_at_end
        if lock is None:
            return command
        return locked(command, self.connection.keys.store, [(lock, "free", 0)])

    def _call(
        self, note: Note | None, name: str, keys: tuple[str, ...], *arguments: str | bytes | float
    ) -> Command:
        """Give the command that settles by a script, and notes it in the status of the job."""
        if note is None:
            return call(name, keys, *arguments)
        return noted(name, keys, arguments, self.connection.keys.status, [(0, note)])

    def _counted(
        self, note: Note | None, name: str, keys: tuple[str, ...], *words: str | bytes | float,
        failed: bool,
    ) -> Command:  # fmt: skip
        """Give the command that removes by a script, and counts a member of a batch."""
        place = self.member_at_end
        if place is None:
            return self._call(note, name, keys, *words)
        names, more = counting(self.connection.keys, place, self.uuid, failed=failed)
        return self._call(note, f"{name}+counted", (*keys, *names), *words, *more)

    def _release(self, delay: float, history: History) -> bool:
        return self._back(self._attempts, history, repr(delay) if delay else "tail")

    def _recover(self, history: History) -> bool:
        return self._back(self._attempts, history, "head")

    def _give_back(self, delay: float, history: History) -> bool:
        attempts = self._attempts - 1 if self.started else self._attempts
        return self._back(attempts, history, repr(delay) if delay else "head")

    def _back(self, attempts: int, history: History, where: str) -> bool:
        text = None if history == _EMPTY else history.to_json()
        stored = member.write(self._member, attempts, text)
        keys = self.keys
        return self._apply(
            self._call(
                self.noted, "release", (keys.reserved, keys.ready, keys.notify, keys.delayed),
                self.stored, self.score, stored, where,
            )
        )  # fmt: skip

    def _bury(self) -> bool:
        keys = self.keys
        names = (keys.reserved, keys.buried)
        return self._apply(self._call(self.noted, "bury", names, self.stored, self.score))

    def _fail(self, record: FailedJob, store: FailedStore) -> bool:
        if not self.connection.shares(store):
            store.add(record)
            return self._apply(self.deletion(failed=True))
        keys = self.connection.keys
        command = self._counted(
            self.noted, "fail", (self.keys.reserved, keys.failed, keys.failed_order),
            self.stored, self.score, record.uuid, encoded(record), record.failed_at, failed=True,
        )  # fmt: skip
        return self._apply(self._freeing(command))

    def _renew(self) -> bool:
        lease = self.connection.retry_after
        # In full: what comes behind it is nothing without it.
        start = [] if self.start_sent is None else [self.start_sent.whole()]
        asked_at = self.connection.clock()
        with self.connection.links.of(self.keys.reserved) as link:
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
        # One that is only held was not renewed to the end a start would reckon with: it asks anew.
        self.sure_until = asked_at + lease / 3 if self.started else 0.0
        return True

    def _apply(self, command: Command) -> bool:
        """Do a settling step; one that may have been done before, unheard, counts as done."""
        applied, perhaps_before = self._settling(command)
        return bool(applied) or perhaps_before

    def _settling(self, command: Command, *around: Command) -> tuple[Reply, bool]:
        """Do a settling step, and what travels with it.

        Gives its reply, and whether it may have been done before, unheard.
        """
        with self.connection.links.of(self.keys.reserved) as link:
            start = self.start_sent if link is not self.sent_on else None
            before = [] if start is None else [start.whole()]
            try:
                replies = link.ask(*before, command, *around)
            except BackendUnavailable:
                self.in_doubt = self.in_doubt or link.repeated
                raise
            if start is not None:
                self.start_sent = None
            return replies[len(before)], link.repeated or self.in_doubt


@cache
def _first_history(pid: int) -> tuple[bytes, bytes]:
    """Give what stands before and after the time in the history of a first start, as JSON text."""
    marker = 0.5
    text = json.dumps(History().started(1, host.NAME, pid, marker).to_json())
    head, _, tail = text.rpartition(f",{marker},")
    return f"{head},".encode(), f",{tail}".encode()
