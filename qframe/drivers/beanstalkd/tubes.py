"""Looking after tubes: counting, listing, purging, kicking."""

from __future__ import annotations

from qframe.contracts.queue import Sizes
from qframe.drivers.beanstalkd.connection import BeanstalkdConnection
from qframe.drivers.beanstalkd.protocol import fields

_STATES = (b"ready", b"delayed", b"reserved", b"buried")


def sizes(connection: BeanstalkdConnection, *tubes: bytes) -> list[Sizes]:
    """Count the messages of tubes by state."""
    replies = connection.exchange([b"stats-tube %b\r\n" % tube for tube in tubes])
    # A tube that nobody uses is not there.
    said = [fields(yaml) if word == b"OK" else {} for word, _, yaml in replies]
    return [Sizes(*(int(each.get(b"current-jobs-" + s, 0)) for s in _STATES)) for each in said]


def filled(connection: BeanstalkdConnection) -> list[bytes]:
    """Name the tubes that hold messages."""
    ((_, _, yaml),) = connection.exchange([b"list-tubes\r\n"])
    found = [line[2:].strip(b'"') for line in yaml.split(b"\n") if line.startswith(b"- ")]
    counted = zip(found, sizes(connection, *found), strict=True)
    return [tube for tube, size in counted if size.total or size.buried]


def purge(connection: BeanstalkdConnection, tube: bytes) -> int:
    """Delete the ready and delayed messages of a tube; gives how many there were."""
    (there,) = sizes(connection, tube)
    delete = b"delete %b\r\n", b"DELETED"
    ready = _each(connection, tube, b"peek-ready\r\n", *delete, there.ready)
    return ready + _each(connection, tube, b"peek-delayed\r\n", *delete, there.delayed)


def kick(connection: BeanstalkdConnection, tube: bytes) -> int:
    """Make the buried messages ready, each by its number: `kick` may kick delayed ones."""
    (there,) = sizes(connection, tube)
    kick = b"kick-job %b\r\n", b"KICKED"
    return _each(connection, tube, b"peek-buried\r\n", *kick, there.buried)


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
