"""Options: how a worker works, why it stops, and the exit code for that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from qframe.exceptions import ConfigurationError
from qframe.payload.text import queue_pattern
from qframe.worker import queues


class StopReason(StrEnum):
    """Why a worker ended (Laravel's WorkerStopReason)."""

    INTERRUPTED = "interrupted"
    MEMORY = "memory"
    RESTART = "restart"
    REQUESTED = "told to stop"
    EMPTY = "empty"
    ONCE = "once"
    MAX_TIME = "max time"
    MAX_JOBS = "max jobs"
    TIMED_OUT = "timed out"
    JOB_INTERRUPTED = "job interrupted"
    LOST_BACKEND = "lost backend"
    LIFESPAN = "lifespan ended"

    @property
    def exit_code(self) -> int:
        """The exit code of `qframe work`."""
        return _EXIT_CODES.get(self, 0)


USAGE = 2
"""Exit code for wrong usage or configuration."""
NO_ANSWER = 69
"""Exit code if a backend does not answer."""
MOST_AT_ONCE = 10_000
"""Jobs that one worker may run at once."""
LONGEST = 365 * 86400
"""Seconds, the longest a worker waits for anything."""
MOST_MEMORY = 2**24
"""Megabytes."""
MOST_TRIES = 1_000_000
MOST_JOBS = 10**9

_EXIT_CODES = {
    StopReason.TIMED_OUT: 1,
    StopReason.JOB_INTERRUPTED: 1,
    StopReason.LIFESPAN: 1,
    StopReason.MEMORY: 12,
    StopReason.LOST_BACKEND: NO_ANSWER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker works. Times are in seconds; raises `ConfigurationError` for wrong values.

    - `connection`, `queues`: what it works; default: the default connection, its default queue.
      Queues are tried strictly in the order given. Where the backend can list its queues
      (`Capability.LIST`), an entry may be a pattern (`*`, `?`, `[abc]`, `[!abc]`, upper and lower
      case as written): what it matches is tried at its place, sorted by name, and looked up anew
      once a second, every two where nothing changes. `!` before a name or pattern skips what it
      matches. A queue is tried once, at its first place.
    - `bounds`: by name or pattern, how many jobs of a queue run at once in this worker, from 1 to
      1000; of several that match, the least. A queue that is full delays no other.
    - `timeout`, `tries`, `backoff`: for jobs that do not say themselves. 0 is no timeout, or
      tries without limit.
    - `grace`: how long after its timeout a job that does not end is given before the process is.
    - `sleep`: how long an idle worker waits where the backend cannot wake it; with `once`, how
      long it waits for a job at most.
    - `rest`: pause after each job.
    - `memory`: resident megabytes above which it ends; 0 is no limit.
    - `max_jobs`, `max_time`: after which it ends; 0 is no limit.
    - `once`: one job, then it ends. `stop_when_empty`: it ends when nothing is ready.
    - `force`: it works although the whole connection is paused.
    - `concurrency`: so many jobs, 10,000 at most, run at once: those that are `async` on one event
      loop, others in a thread each, or each in its process. Timeouts, signals and leases are those
      of each job by itself.
    - `isolate`: each job runs in a process of its own, forked for it. `preload`: what this process
      imports before, so that each child has it: True is the modules of `jobs`, or names.
    - `schedule`: it dispatches what schedules have planned, beside its jobs; not with `once`.
    """

    connection: str | None = None
    queues: tuple[str, ...] = ()
    bounds: Mapping[str, int] = field(default_factory=dict)
    name: str = "default"
    timeout: float = 60
    tries: int = 1
    backoff: tuple[float, ...] = (0,)
    grace: float = 5
    sleep: float = 3
    rest: float = 0
    memory: float = 256
    max_jobs: int = 0
    max_time: float = 0
    once: bool = False
    stop_when_empty: bool = False
    force: bool = False
    concurrency: int = 1
    isolate: bool = False
    preload: bool | tuple[str, ...] = False
    schedule: bool = True

    def __post_init__(self) -> None:
        for option in ("timeout", "grace", "sleep", "rest", "memory", "max_time"):
            _not_negative(option, getattr(self, option))
        for option in ("tries", "max_jobs"):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigurationError(
                    f"{option} must be a whole number, 0 or more, not {value!r}"
                )
            if value > (most := MOST_TRIES if option == "tries" else MOST_JOBS):
                raise ConfigurationError(f"{option} must be at most {most:,}, not {value!r}")
        check_concurrency(self.concurrency)
        if self.concurrency > 1 and self.rest:
            raise ConfigurationError("rest is for one job at a time: leave out concurrency")
        backoff: object = self.backoff
        if not isinstance(backoff, list | tuple) or not backoff:
            raise ConfigurationError("backoff needs at least one number of seconds")
        for value in backoff:
            _not_negative("backoff", value)
        self._check_queues()
        if self.preload and not self.isolate:
            raise ConfigurationError("preload is for isolate: without it, all is in one process")

    def _check_queues(self) -> None:
        if self.queues:
            queues.parse(self.queues)
        for name, most in self.bounds.items():
            queues.check_bound(f"{queue_pattern(name)}:{most}", most)


def check_concurrency(number: object) -> None:
    """Raises `ConfigurationError` if a worker cannot run so many jobs at once."""
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST_AT_ONCE:
        raise ConfigurationError(f"concurrency must be 1 to {MOST_AT_ONCE}, not {number!r}")


def _not_negative(option: str, value: object) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value < math.inf  # `isfinite` refuses an int that is no float
    ):
        raise ConfigurationError(f"{option} must be a number, 0 or more, not {value!r}")
    if option == "memory" and value > MOST_MEMORY:
        raise ConfigurationError(f"memory must not be more than {MOST_MEMORY} MB, not {value!r}")
    if option != "memory" and value > LONGEST:
        raise ConfigurationError(f"{option} must not be longer than a year, not {value!r}")
