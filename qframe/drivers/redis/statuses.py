"""Statuses of tracked jobs in Redis: a key each, written by the scripts that move the jobs.

On a Cluster they are all in one slot, and written beside the moves.
"""

from __future__ import annotations

from collections.abc import Sequence

from qframe.contracts.status import JobStatus, Note, StatusStore
from qframe.drivers.redis.links import Links
from qframe.drivers.redis.scripts import Command, call

_WAITING = b" 0 WAITING\n"
_LINES = 5

Part = tuple[int, Note]
"""Which part of a move's reply says that the note's job was moved (0: all of it), and the note."""
ARRIVED = -1
"""Of a push that may have arrived: if there is a status, it has."""


class RedisStatusStore(StatusStore):
    """Statuses as text of five lines, of which the scripts read the first."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self._start = links.keys.status

    def write(self, note: Note) -> bool:
        key = self._start + note.uuid
        with self.links.of(self._start) as link:
            (taken,) = link.ask(call("status_write+status", (key,), _text(0, note)))
            return bool(taken) or link.repeated

    def progress(self, note: Note) -> bool:
        key = self._start + note.uuid
        words = (note.life, note.attempt, _ms(note.ttl), note.progress or "")
        with self.links.of(self._start) as link:
            return bool(link.ask(call("status_progress", (key,), *words))[0])

    def read(self, uuid: str) -> JobStatus | None:
        key = self._start + uuid
        with self.links.of(self._start) as link:
            (found,) = link.ask(Command("GET", key))
        head, *texts = ("" if found is None else found.decode()).split("\n")
        if len(texts) != _LINES - 1:
            return None
        life, attempt, state = head.split(" ")
        return JobStatus.of(uuid, int(life), int(attempt), state, *texts)

    def withdraw(self, uuid: str) -> None:
        key = self._start + uuid
        with self.links.of(self._start) as link:
            (found,) = link.ask(Command("GET", key))
            if found is not None and _WAITING in found[:40]:
                link.ask(call("store_delete", (key,), found))


def noted(
    name: str,
    keys: tuple[str, ...],
    arguments: Sequence[str | bytes | float],
    start: str,
    parts: Sequence[Part],
) -> Command:
    """Give the command that runs a script on its keys and takes notes of what it moves."""
    names, words = [*keys], [*arguments]
    for part, note in parts:
        names.append(start + note.uuid)
        known = note.started and note.progress is not None
        words.append(_whole(part, note) if known else _text(part, note))
    return call(f"{name}+tracked", tuple(names), *words, len(parts))


def _text(part: int, note: Note) -> str:
    """Write a note as the scripts take it."""
    _, life, attempt, counted, state, ttl, queued, started, ended, progress = note
    kept, then = (2, "") if started is None else (1, f"{started}\n")
    return (
        f"{part} {life} {attempt} {counted} {state} {int(ttl * 1000) or 1} {kept}\n{queued}\n"
        f"{then}{ended}\n{'=' if progress is None else progress}"
    )


def _whole(part: int, note: Note) -> str:
    """Write the whole status: whoever has started the attempt, and holds the job, knows it all."""
    _, life, _, counted, state, ttl, queued, started, ended, progress = note
    return (
        f"{part}!{int(ttl * 1000) or 1}\n"
        f"{life} {counted} {state}\n{queued}\n{started}\n{ended}\n{progress}"
    )


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))
