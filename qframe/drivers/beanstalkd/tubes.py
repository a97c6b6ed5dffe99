"""Looking after tubes: counting, listing, purging, kicking."""

from __future__ import annotations

from qframe.contracts.queue import Sizes
from qframe.drivers.beanstalkd.connection import BeanstalkdConnection, Reply
from qframe.drivers.beanstalkd.protocol import fields, names

_STATES = (b"ready", b"delayed", b"reserved", b"buried")


def sizes(connection: BeanstalkdConnection, tube: bytes) -> Sizes:
    """Count the messages of a tube by state."""
    return _sizes(*connection.exchange([b"stats-tube %b\r\n" % tube]))


def _sizes(reply: Reply) -> Sizes:
    word, _, yaml = reply
    if word != b"OK":  # a tube that nobody uses is not there
        return Sizes()
    said = fields(yaml)
    return Sizes(*(int(said[b"current-jobs-" + state]) for state in _STATES))


def filled(connection: BeanstalkdConnection) -> list[bytes]:
    """Name the tubes that hold messages."""
    ((_, _, yaml),) = connection.exchange([b"list-tubes\r\n"])
    found = names(yaml)
    replies = connection.exchange([b"stats-tube %b\r\n" % tube for tube in found])
    counted = zip(found, map(_sizes, replies), strict=True)
    return [tube for tube, size in counted if size.total or size.buried]


def purge(connection: BeanstalkdConnection, tube: bytes) -> int:
    """Delete the ready and delayed messages of a tube; gives how many there were."""
    there = sizes(connection, tube)
    delete = b"delete %b\r\n", b"DELETED"
    ready = _each(connection, tube, b"peek-ready\r\n", *delete, there.ready)
    return ready + _each(connection, tube, b"peek-delayed\r\n", *delete, there.delayed)


def kick(connection: BeanstalkdConnection, tube: bytes) -> int:
    """Make the buried messages ready, each by its number: `kick` may kick delayed ones."""
    buried = sizes(connection, tube).buried
    return _each(connection, tube, b"peek-buried\r\n", b"kick-job %b\r\n", b"KICKED", buried)


def _each(
    connection: BeanstalkdConnection, tube: bytes, peek: bytes, act: bytes, done: bytes, most: int
) -> int:
    """Act on the first message, as long as there is one, on `most` at last; gives on how many."""
    if not most:
        return 0
    found = connection.exchange([*connection.use(tube), peek])[-1]
    acted = 0
    for _ in range(most):
        if found[0] != b"FOUND":
            break
        answer, found = connection.exchange([act % found[1][1], peek])
        acted += answer[0] == done
    return acted
