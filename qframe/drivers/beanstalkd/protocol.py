"""The wire protocol: names of tubes, whole seconds, and the server's YAML."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import NamedTuple, Self

from qframe.exceptions import InvalidQueueName
from qframe.payload.text import queue_name

MOST = 2**32 - 1
"""The largest number of seconds, and the lowest priority, that beanstalkd accepts."""

RESERVE = b"reserve-with-timeout 0\r\n"
"""Reserves a message that is ready; waits for none."""


@lru_cache(maxsize=1000)
def tube_of(queue: str) -> bytes:
    """Return the tube of a queue: `;` replaces `:`, which tube names must not contain."""
    if queue_name(queue).startswith("-"):
        raise InvalidQueueName(f"{queue!r}: a tube of beanstalkd must not begin with a hyphen")
    return queue.replace(":", ";").encode("ascii")


@lru_cache(maxsize=1000)
def queue_of(tube: bytes) -> str:
    """Return the queue of a tube."""
    return tube.decode("ascii", "replace").replace(";", ":")


def whole_seconds(seconds: float) -> int:
    """Round up to whole seconds, as beanstalkd needs. Raises `ValueError` for too many."""
    whole = math.ceil(seconds)
    if whole > MOST:
        raise ValueError(f"beanstalkd delays by at most {MOST} seconds, not {seconds:g}")
    return max(0, whole)


def within(priority: int) -> int:
    """Return the nearest priority that beanstalkd accepts."""
    return min(max(0, priority), MOST)


def fields(yaml: bytes) -> dict[bytes, bytes]:
    """Parse an answer of the `stats` commands: one field a line."""
    pairs = (line.partition(b": ") for line in yaml.split(b"\n"))
    return {key: value.strip(b'"') for key, _, value in pairs if value}


class ServerStats(NamedTuple):
    """What a server reports when a connection is made."""

    version: str
    max_job: int
    up_since: float
    """From when on, by our clock, a message surely belongs to the server's current run.

    A server that writes the first file of its log, or has no log, had no run before.
    """

    @classmethod
    def read(cls, yaml: bytes, now: float) -> Self:
        """Parse the answer to `stats`, requested at `now`."""
        found = fields(yaml)
        version = found[b"version"].decode("ascii", "replace")
        first_life = int(found[b"binlog-current-index"]) <= 1
        up_since = -math.inf if first_life else now - int(found[b"uptime"]) + 1
        return cls(version, int(found[b"max-job-size"]), up_since)


class JobStats(NamedTuple):
    """What the server knows about one message."""

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
        """Parse the answer to `stats-job`, whose fields have always had the same order."""
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
