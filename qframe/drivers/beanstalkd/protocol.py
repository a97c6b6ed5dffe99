"""What goes over the wire: names of tubes, whole seconds, and the server's YAML."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import NamedTuple, Self

from qframe.exceptions import InvalidQueueName
from qframe.payload.text import queue_name

MOST = 2**32 - 1
"""The greatest number of seconds, and the last priority, that beanstalkd takes."""

RESERVE = b"reserve-with-timeout 0\r\n"
"""Asks for a message that is there, and waits for none."""


@lru_cache(maxsize=1000)
def tube_of(queue: str) -> bytes:
    """Give the tube of a queue: its name, with `;` for `:`, which no tube's name may hold."""
    if queue_name(queue).startswith("-"):
        raise InvalidQueueName(f"{queue!r}: a tube of beanstalkd must not begin with a hyphen")
    return queue.replace(":", ";").encode("ascii")


@lru_cache(maxsize=1000)
def queue_of(tube: bytes) -> str:
    """Give the queue of a tube."""
    return tube.decode("ascii", "replace").replace(";", ":")


def whole_seconds(seconds: float) -> int:
    """Round up to whole seconds, all that beanstalkd takes; raises `ValueError` for too many."""
    whole = math.ceil(seconds)
    if whole > MOST:
        raise ValueError(f"beanstalkd delays by at most {MOST} seconds, not {seconds:g}")
    return max(0, whole)


def within(priority: int) -> int:
    """Give the nearest priority that beanstalkd takes."""
    return min(max(0, priority), MOST)


def fields(yaml: bytes) -> dict[bytes, bytes]:
    """Take apart what the `stats` commands give: a line for each field."""
    pairs = (line.partition(b": ") for line in yaml.split(b"\n"))
    return {key: value.strip(b'"') for key, _, value in pairs if value}


class ServerStats(NamedTuple):
    """What a server says of itself when a connection is made."""

    version: str
    max_job: int
    up_since: float
    """From when on, by our clock, a message surely is of the server's present life.

    One that writes the first file of its log, or none, has had no life before.
    """

    @classmethod
    def read(cls, yaml: bytes, now: float) -> Self:
        """Read the answer to `stats`, which was asked for at `now`."""
        said = fields(yaml)
        version = said[b"version"].decode("ascii", "replace")
        first_life = int(said[b"binlog-current-index"]) <= 1
        up_since = -math.inf if first_life else now - int(said[b"uptime"]) + 1
        return cls(version, int(said[b"max-job-size"]), up_since)


class JobStats(NamedTuple):
    """What the server knows of one message."""

    tube: bytes
    state: bytes
    priority: int
    age: int
    ttr: int
    left: int
    reserves: int
    timeouts: int
    releases: int
    buries: int

    @classmethod
    def read(cls, yaml: bytes) -> Self:
        """Read the answer to `stats-job`; its fields have had one order ever since."""
        found = _JOB(yaml)
        if found is None:
            raise ValueError(f"{yaml!r} does not tell of a job")
        tube, state, *numbers = found.groups()
        return cls(tube, state, *map(int, numbers))


_JOB = re.compile(
    rb"""---\nid: \d+\ntube: "?([^"\n]+)"?\nstate: (\w+)\npri: (\d+)\nage: (\d+)\ndelay: \d+\n"""
    rb"""ttr: (\d+)\ntime-left: (-?\d+)\nfile: \d+\nreserves: (\d+)\ntimeouts: (\d+)\n"""
    rb"""releases: (\d+)\nburies: (\d+)\n"""
).match
