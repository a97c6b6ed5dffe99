"""Pushing messages: in one exchange as many as the kernel can buffer answers."""

from __future__ import annotations

from collections.abc import Sequence

from qframe.contracts.step import Push
from qframe.drivers.beanstalkd import errors
from qframe.drivers.beanstalkd.connection import BeanstalkdConnection
from qframe.drivers.beanstalkd.errors import Cut
from qframe.drivers.beanstalkd.protocol import tube_of, whole_seconds, within
from qframe.exceptions import BackendUnavailable

_CHUNK = 500
_CHUNK_BYTES = 1_000_000


def push(
    connection: BeanstalkdConnection, pushes: Sequence[Push], lease: int, priority: int
) -> None:
    """Push messages; `lease` is in seconds. If one is refused, the error says how many were pushed.

    Messages that the server cannot accept are refused before anything is sent.
    """
    most, total = connection.server.max_job, len(pushes)
    largest = max(len(each.raw) for each in pushes)
    if largest > most:
        raise errors.too_large(largest, connection.where, most)
    puts = [_put(each, lease, priority) for each in pushes]
    chunk = max(1, min(_CHUNK, _CHUNK_BYTES // max(1, largest)))
    pushed = 0
    for begin in range(0, total, chunk):
        commands: list[bytes] = []
        for tube, command in puts[begin : begin + chunk]:
            commands += connection.use(tube)
            commands.append(command)
        try:
            words = [reply[0] for reply in connection.exchange(commands) if reply[0] != b"USING"]
        except Cut as cut:
            note = _part(pushed + cut.replies, total) or "; it may have been pushed or not"
            error = BackendUnavailable(f"{cut}{note}")
            error.in_doubt = cut.sent or total > 1
            raise error from cut
        inserted = words.count(b"INSERTED")
        pushed += inserted
        if inserted < len(words):
            # A BURIED message stays: after an error of its log, beanstalkd 1.12 also has it among
            # the ready ones, and would crash some time after a deletion.
            if b"EXPECTED_CRLF" in words:
                connection.drop()
            place, word = next(each for each in enumerate(words) if each[1] != b"INSERTED")
            size = len(pushes[begin + place].raw)
            refusal = errors.refusal(word, connection.where, size, most, _part(pushed, total))
            if isinstance(refusal, BackendUnavailable):
                refusal.in_doubt = refusal.in_doubt or total > 1
            raise refusal


def _put(each: Push, lease: int, priority: int) -> tuple[bytes, bytes]:
    """Return a tube, and the command that puts a message into it."""
    rank = priority if each.priority is None else within(each.priority)
    words = rank, whole_seconds(each.delay), lease, len(each.raw)
    return tube_of(each.queue), b"put %d %d %d %d\r\n%b\r\n" % (*words, each.raw)


def _part(pushed: int, of: int) -> str:
    return f"; {pushed} of {of} were pushed, others may have been" if of > 1 else ""
