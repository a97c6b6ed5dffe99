"""Pushing messages: as many in one exchange as the kernel keeps the answers of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from qframe.contracts.step import Push
from qframe.drivers.beanstalkd import errors
from qframe.drivers.beanstalkd.connection import Connection, Reply
from qframe.drivers.beanstalkd.errors import Cut
from qframe.drivers.beanstalkd.protocol import tube_of, whole_seconds, within
from qframe.exceptions import BackendUnavailable

_CHUNK = 500
_CHUNK_BYTES = 1_000_000


class _Put(NamedTuple):
    tube: bytes
    command: bytes
    size: int


def push(connection: Connection, pushes: Sequence[Push], lease: int, priority: int) -> None:
    """Push messages, for these seconds of lease; raises where one is refused, saying how many were.

    What the server could not take, or what cannot be said, is refused before anything is sent.
    """
    puts = [_put(each, connection, lease, priority) for each in pushes]
    pushed = 0
    for chunk in _chunks(puts):
        try:
            replies = _exchange(connection, chunk)
        except Cut as cut:
            note = _part(pushed + cut.heard, len(puts)) or "; it may have been pushed or not"
            raise BackendUnavailable(f"{cut}{note}") from cut
        refused = [
            (reply[0], put.size)
            for put, reply in zip(chunk, replies, strict=True)
            if reply[0] != b"INSERTED"
        ]
        pushed += len(chunk) - len(refused)
        # What is BURIED stays: where the log broke, beanstalkd 1.12 has it among the ready, too,
        # and would crash some time after a deletion.
        for word, size in refused:
            if word == b"EXPECTED_CRLF":
                connection.drop()
            most, note = connection.server.max_job, _part(pushed, len(puts))
            raise errors.refusal(word, connection.where, size, most, note)


def _put(each: Push, connection: Connection, lease: int, priority: int) -> _Put:
    size, most = len(each.raw), connection.server.max_job
    if size > most:
        raise errors.too_large(size, connection.where, most)
    rank = priority if each.priority is None else within(each.priority)
    head = b"put %d %d %d %d\r\n" % (rank, whole_seconds(each.delay), lease, size)
    return _Put(tube_of(each.queue), head + each.raw + b"\r\n", size)


def _exchange(connection: Connection, chunk: Sequence[_Put]) -> list[Reply]:
    """Push a chunk; a single message is said again if the server surely has not heard it."""
    try:
        return _exchanged(connection, chunk)
    except Cut as cut:
        if cut.sent or len(chunk) > 1:
            raise
    return _exchanged(connection, chunk)


def _exchanged(connection: Connection, chunk: Sequence[_Put]) -> list[Reply]:
    commands: list[bytes] = []
    for put in chunk:
        commands += connection.use(put.tube)
        commands.append(put.command)
    return [reply for reply in connection.exchange(commands) if reply[0] != b"USING"]


def _chunks(puts: Sequence[_Put]) -> Iterator[Sequence[_Put]]:
    begin = size = 0
    for place, put in enumerate(puts):
        if place > begin and (place - begin == _CHUNK or size + put.size > _CHUNK_BYTES):
            yield puts[begin:place]
            begin, size = place, 0
        size += put.size
    yield puts[begin:]


def _part(pushed: int, of: int) -> str:
    return f"; {pushed} of {of} were pushed, others may have been" if of > 1 else ""
