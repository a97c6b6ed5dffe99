"""What goes over the wire: names of tubes, whole seconds, priorities, and the server's YAML."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from qframe import payload
from qframe.exceptions import InvalidPayload, InvalidQueueName

MOST = 2**32 - 1
"""The greatest number of seconds, and the last priority, that beanstalkd takes."""

_PRIORITY = b'"priority"'


@lru_cache(maxsize=1000)
def tube_of(queue: str) -> bytes:
    """Give the tube of a queue: its name, with `;` for `:`, which no tube's name may hold."""
    if queue.startswith("-"):
        raise InvalidQueueName(f"{queue!r}: a tube of beanstalkd must not begin with a hyphen")
    return queue.replace(":", ";").encode("ascii")


@lru_cache(maxsize=1000)
def queue_in(tube: bytes) -> str:
    """Give the queue of a tube."""
    return tube.decode("ascii", "replace").replace(";", ":")


def whole_seconds(seconds: float) -> int:
    """Round up to whole seconds, all that beanstalkd takes; raises `ValueError` for too many."""
    whole = math.ceil(seconds)
    if whole > MOST:
        raise ValueError(f"beanstalkd delays by at most {MOST} seconds, not {seconds:g}")
    return whole


def priority_of(raw: bytes, otherwise: int) -> int:
    """Give the priority a payload asks for; `otherwise` where it names none or no right one."""
    if _PRIORITY not in raw:
        return otherwise
    try:
        asked = payload.parse(raw).get("priority")
    except InvalidPayload:
        return otherwise
    return asked if type(asked) is int and 0 <= asked <= MOST else otherwise


def fields(yaml: bytes) -> dict[bytes, bytes]:
    """Take apart what the `stats` commands give: a line for each field."""
    pairs = (line.partition(b": ") for line in yaml.split(b"\n"))
    return {key: value.strip(b'"') for key, _, value in pairs if value}


def names(yaml: bytes) -> list[bytes]:
    """Take apart what `list-tubes` gives."""
    return [line[2:].strip(b'"') for line in yaml.split(b"\n") if line.startswith(b"- ")]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says of itself when a connection is made.

    `up_since` is the moment of our clock from which on a job surely is of the server's present
    life. One that writes the first file of its log, or none, has had no life before.
    """

    version: str
    max_job: int
    up_since: float

    @classmethod
    def read(cls, yaml: bytes, now: float) -> Self:
        """Read the answer to `stats`, which was asked for at `now`."""
        said = fields(yaml)
        version = said[b"version"].decode("ascii", "replace")
        first_life = int(said[b"binlog-current-index"]) <= 1
        up_since = -math.inf if first_life else now - int(said[b"uptime"]) + 1
        return cls(version, int(said[b"max-job-size"]), up_since)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the server knows of one job."""

    tube: bytes
    state: bytes
    priority: int
    age: int
    ttr: int
    left: int
    reserves: int
    releases: int

    @classmethod
    def read(cls, yaml: bytes) -> Self:
        """Read the answer to `stats-job`; its fields have had one order ever since."""
        found = _JOB(yaml)
        if found is None:
            raise ValueError(f"{yaml!r} does not tell of a job")
        tube, state, priority, age, ttr, left, reserves, releases = found.groups()
        return cls(
            tube,
            state,
            int(priority),
            int(age),
            int(ttr),
            int(left),
            int(reserves),
            int(releases),
        )


_JOB = re.compile(
    rb"""---\nid: \d+\ntube: "?([^"\n]+)"?\nstate: (\w+)\npri: (\d+)\nage: (\d+)\ndelay: \d+\n"""
    rb"""ttr: (\d+)\ntime-left: (-?\d+)\nfile: \d+\nreserves: (\d+)\ntimeouts: \d+\n"""
    rb"""releases: (\d+)\n"""
).match
