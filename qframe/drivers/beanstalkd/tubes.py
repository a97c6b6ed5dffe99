"""Operations on tubes: counting, listing, purging, kicking."""

from __future__ import annotations

from collections.abc import Mapping

from qframe.contracts.browsing import Place
from qframe.contracts.queue import Sizes
from qframe.drivers.beanstalkd.connection import BeanstalkdConnection
from qframe.drivers.beanstalkd.protocol import fields

_PEEKS = {
    Place.READY: b"peek-ready\r\n",
    Place.DELAYED: b"peek-delayed\r\n",
    Place.BURIED: b"peek-buried\r\n",
}
_STATES = (b"ready", b"delayed", b"reserved", b"buried")


def sizes(connection: BeanstalkdConnection, *tubes: bytes) -> list[Sizes]:
    """Count the messages of tubes by state."""
    replies = connection.exchange([b"stats-tube %b\r\n" % tube for tube in tubes])
    # An unused tube does not exist.
    found = [fields(yaml) if word == b"OK" else {} for word, _, yaml in replies]
    return [Sizes(*_counts(each)) for each in found]


def _counts(stats: Mapping[bytes, bytes]) -> tuple[int, int, int, int]:
    ready, delayed, reserved, buried = (
        int(stats.get(b"current-jobs-" + state, 0)) for state in _STATES
    )
    return ready, delayed, reserved, buried


def filled(connection: BeanstalkdConnection) -> list[bytes]:
    """List the tubes that hold messages."""
    ((_, _, yaml),) = connection.exchange([b"list-tubes\r\n"])
    found = [line[2:].strip(b'"') for line in yaml.split(b"\n") if line.startswith(b"- ")]
    counted = zip(found, sizes(connection, *found), strict=True)
    return [tube for tube, size in counted if size.total or size.buried]


def purge(connection: BeanstalkdConnection, tube: bytes) -> int:
    """Delete the ready and delayed messages of a tube. Returns how many."""
    (there,) = sizes(connection, tube)
    delete = b"delete %b\r\n", b"DELETED"
    ready = _each(connection, tube, Place.READY, *delete, there.ready)
    return ready + _each(connection, tube, Place.DELAYED, *delete, there.delayed)


def kick(connection: BeanstalkdConnection, tube: bytes) -> int:
    """Make the buried messages ready, each by number: a plain `kick` may kick delayed ones."""
    (there,) = sizes(connection, tube)
    kick = b"kick-job %b\r\n", b"KICKED"
    return _each(connection, tube, Place.BURIED, *kick, there.buried)


def first(connection: BeanstalkdConnection, tube: bytes, place: Place) -> tuple[int, bytes] | None:
    """Return number and bytes of the first message in a place; None if there is none to see."""
    peek = _PEEKS.get(place)
    if peek is None:
        return None
    word, words, raw = connection.exchange([*connection.use(tube), peek])[-1]
    return (int(words[1]), raw) if word == b"FOUND" else None


def _each(
    connection: BeanstalkdConnection, tube: bytes, place: Place, act: bytes, done: bytes, most: int
) -> int:
    """Repeat `act` on the first message, at most `most` times. Returns how often."""
    if not most:
        return 0
    peek = _PEEKS[place]
    found = connection.exchange([*connection.use(tube), peek])[-1]
    acted = 0
    for _ in range(most):
        if found[0] != b"FOUND":
            break
        answer, found = connection.exchange([act % found[1][1], peek])
        acted += answer[0] == done
    return acted
