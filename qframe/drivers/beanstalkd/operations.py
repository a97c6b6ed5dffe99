"""Looking after tubes: counting, listing, clearing, kicking."""

from __future__ import annotations

from qframe.contracts import Sizes
from qframe.drivers.beanstalkd.link import Link, Reply
from qframe.drivers.beanstalkd.wire import fields, names
from qframe.drivers.reservation import uuid_of

_STATES = (b"ready", b"delayed", b"reserved", b"buried")


def sizes(link: Link, tube: bytes) -> Sizes:
    """Count the jobs of a tube by state."""
    link.open()
    (reply,) = link.exchange(b"stats-tube %b\r\n" % tube, 1)
    return _sizes(reply)


def _sizes(reply: Reply) -> Sizes:
    word, _, yaml = reply
    if word != b"OK":  # a tube that nobody uses is not there
        return Sizes()
    said = fields(yaml)
    return Sizes(*(int(said[b"current-jobs-" + state]) for state in _STATES))


def tubes(link: Link) -> list[bytes]:
    """Name the tubes that hold jobs."""
    link.open()
    ((_, _, yaml),) = link.exchange(b"list-tubes\r\n", 1)
    found = names(yaml)
    asked = b"".join(b"stats-tube %b\r\n" % tube for tube in found)
    replies = map(_sizes, link.exchange(asked, len(found)))
    return [tube for tube, size in zip(found, replies, strict=True) if size.total or size.buried]


def clear(link: Link, tube: bytes, gone: list[bytes]) -> int:
    """Delete the ready and delayed jobs of a tube; gives how many there were.

    `gone` gets the payloads of those that say something of a lock.
    """
    there = sizes(link, tube)
    delete = b"delete %s\r\n", b"DELETED"
    ready = _each(link, tube, b"peek-ready\r\n", *delete, there.ready, gone)
    return ready + _each(link, tube, b"peek-delayed\r\n", *delete, there.delayed, gone)


def kick(link: Link, tube: bytes) -> int:
    """Make the buried jobs of a tube ready, each by its number: `kick` may kick delayed ones."""
    buried = sizes(link, tube).buried
    return _each(link, tube, b"peek-buried\r\n", b"kick-job %s\r\n", b"KICKED", buried, [])


def _each(
    link: Link, tube: bytes, peek: bytes, act: bytes, done: bytes, most: int, unique: list[bytes]
) -> int:
    """Act on the first job, as long as there is one, on `most` at last; gives on how many."""
    if not most:
        return 0
    use, count = link.use(tube)
    *_, found = link.exchange(use + peek, count + 1)
    acted = 0
    for left in range(most, 0, -1):
        if found[0] != b"FOUND":
            break
        more = peek if left > 1 else b""
        answer, *rest = link.exchange(act % found[1][1] + more, 2 if more else 1)
        acted += answer[0] == done
        if answer[0] == done and b'"unique"' in found[2]:
            unique.append(found[2])
        if rest:
            found = rest[0]
    return acted


def delete_buried(link: Link, number: int, tube: bytes, payload: bytes) -> None:
    """Delete the job with this payload that is buried in a tube, if it is.

    A server without a log gives its numbers anew after a restart: it may be another job's.
    """
    link.open()
    (found, _, body), (word, _, yaml) = link.exchange(
        b"peek %d\r\nstats-job %d\r\n" % (number, number), 2
    )
    if found != b"FOUND" or word != b"OK":
        return
    uuid = uuid_of(body)
    if uuid != uuid_of(payload) or (not uuid and body != payload):
        return
    said = fields(yaml)
    if (said[b"state"], said[b"tube"]) == (b"buried", tube):
        link.exchange(b"delete %d\r\n" % number, 1)
