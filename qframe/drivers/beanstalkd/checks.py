"""The beanstalkd part of `qframe check`: unsafe settings."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

from qframe.drivers.beanstalkd.connection import BeanstalkdConnection
from qframe.drivers.beanstalkd.protocol import fields
from qframe.drivers.beanstalkd.settings import BeanstalkdSettings

_TUBE = b"qframe-check"
_LISTENS = "0A"
_EVERYWHERE = {"0" * 8, "0" * 32}
_FAR = 3600


def warnings(connection: BeanstalkdConnection, settings: BeanstalkdSettings) -> list[str]:
    """Describe what is unsafe, a sentence each."""
    connection.open()
    reported = _stats(connection)
    found = []
    if reported[b"binlog-current-index"] == b"0":
        found.append(
            "the log is off: jobs are in memory only and lost when the server ends; "
            "start it with -b FOLDER -f0"
        )
    elif reported.get(b"draining") != b"true" and not _log_is_written(connection):
        found.append(
            "the server has stopped writing its log, after an error of the disk: jobs queued since "
            "are lost when it ends; work them off, then restart it on a sound disk"
        )
    if reported.get(b"draining") == b"true":
        found.append("the server is draining (SIGUSR1): it takes no new jobs until it is restarted")
    if _is_open(settings):
        found.append(
            "the server listens on an open address, and has no password: whoever reaches port "
            f"{settings.port} can read, add and delete jobs; start it with -l 127.0.0.1, or close "
            "the port to all but your machines"
        )
    return found


def _stats(connection: BeanstalkdConnection) -> dict[bytes, bytes]:
    ((_, _, yaml),) = connection.exchange([b"stats\r\n"])
    return fields(yaml)


def _log_is_written(connection: BeanstalkdConnection) -> bool:
    """Whether a job put and deleted in a separate tube increases the log's count of records."""
    before = int(_stats(connection)[b"binlog-records-written"])
    put = b"put 0 %d 60 0\r\n\r\n" % _FAR
    word, words, _ = connection.exchange([*connection.use(_TUBE), put])[-1]
    if word == b"INSERTED":  # a BURIED job must stay: see push
        connection.exchange([b"delete %b\r\n" % words[1]])
    return word == b"INSERTED" and int(_stats(connection)[b"binlog-records-written"]) > before


def _is_open(settings: BeanstalkdSettings) -> bool:
    """Whether other machines can reach the server, as far as this one can tell."""
    if settings.host.startswith("/"):
        return False
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(address[0])) for *_, address in found]
    except (OSError, ValueError):
        return False
    if not all(address.is_loopback for address in addresses):
        return True
    return _listens_everywhere(settings.port)


def _listens_everywhere(port: int) -> bool:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, *_ = line.split()
            address, _, number = local.partition(":")
            if state == _LISTENS and int(number, 16) == port and address in _EVERYWHERE:
                return True
    return False
