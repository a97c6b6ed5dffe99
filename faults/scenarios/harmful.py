"""Jobs that harm whoever runs them."""

from __future__ import annotations

import time

from faults import jobs
from faults.backends import RedisBackend
from faults.scenario import scenario
from faults.site import Site
from qframe.worker.options import StopReason
from tests.support.ledger import Fault

_ONE_LATE = 1.0
"""The watchdog is moved about once a second."""


def _fails_after(site: Site, numbers: list[int], attempts: int) -> None:
    """Wait until these have failed, each after so many starts and none of them done."""
    site.may_fail = set(numbers)
    site.wait_for(lambda: site.dead().keys() >= set(numbers), 300)
    dead = site.dead()
    for number in numbers:
        found = dead[number].attempts if number in dead else None
        site.check(found == attempts, f"job {number} has failed after {found} attempts")
        starts = site.starts(number)
        # Among several, one may be counted whose neighbour ended the process before it began.
        right = starts == attempts or (site.concurrency > 1 and starts < attempts)
        site.check(right, f"job {number} was started {starts} times")
        site.check(not site.ends(number), f"job {number} counts as done")


def _blame(site: Site, numbers: list[int]) -> None:
    """Note that the neighbours of these jobs may run again, whose process ended for them."""
    if site.concurrency == 1:
        return
    for words in site.notes("S"):
        pid = int(words[3])
        if int(words[1]) in numbers and pid in site.ended_at:
            begin = float(words[-1])
            site.faults.append(Fault("process ended", begin, site.ended_at[pid], pid))
    site.may_repeat_attempts = True  # those that it gave back are not counted


def _check_ends(site: Site, numbers: list[int], timeout: float, most: float) -> None:
    """Look that no job ran longer than this, where its end is that of its process."""
    if site.concurrency > 1:  # its neighbours go on
        return
    longest = max(_longest_run(site, number) for number in numbers)
    site.check(longest <= most, f"timeout {timeout}: ended after {longest:.1f} s")
    site.remark(f"timeout {timeout}, ended after {longest:.1f} s")


def _longest_run(site: Site, number: int) -> float:
    """Give the longest time from a start of a job to the end of its process."""
    longest = 0.0
    for words in site.notes("S"):
        if words[1] == str(number):
            pid = int(words[3])
            site.wait_for(lambda pid=pid: pid in site.ended_at, 20)  # type: ignore[misc]
            longest = max(longest, site.ended_at[pid] - float(words[-1]))
    return longest


@scenario("F9", "a job stuck in C code")
def stuck_in_c(site: Site) -> None:
    """End jobs that no Python code can end; they fail after their tries, the others are done."""
    stuck = [site.send(jobs.StuckInC) for _ in range(site.count(3, 1))]
    for _ in range(40):
        site.send(seconds=0.02)
    site.expected_codes = {0, 1}
    site.begin(2, "--grace", "1")
    _fails_after(site, stuck, 2)
    _check_ends(site, stuck, 1, 1 + 1 + _ONE_LATE + 1)  # and a grace of 1
    site.finish()
    _blame(site, stuck)


@scenario("F10", "a timeout that the job swallows")
def swallowed(site: Site) -> None:
    """Time out jobs that take every `Exception` for nothing."""
    numbers = [site.send(jobs.Swallows) for _ in range(site.count(4, 1))]
    for _ in range(40):
        site.send(seconds=0.02)
    site.expected_codes = {0, 1}
    site.begin(2)
    _fails_after(site, numbers, 2)
    _check_ends(site, numbers, 0.5, 2)
    site.finish()
    _blame(site, numbers)


@scenario("F11", "jobs that end their process")
def ends(site: Site) -> None:
    """Exit, abort, crash and raise what is no `Exception`: a failure each, never a success."""
    ways, site.expected_codes = [*jobs.WAYS_TO_END], {0, -6, -11}
    if isinstance(site.backend, RedisBackend):
        # SQLite's file is among those it closes, or the connection that is beanstalkd's lease.
        ways.append(jobs.CLOSES)
        site.expected_codes |= {StopReason.LOST_BACKEND.exit_code}
    numbers = [site.send(jobs.Ends, how=how) for how in ways]
    for _ in range(40):
        site.send(seconds=0.02)
    site.begin(2)
    _fails_after(site, numbers, 2)
    site.remark(f"ways {len(numbers)}")
    site.finish()
    _blame(site, numbers)


@scenario("F12", "jobs that leave things behind")
def leaks(site: Site) -> None:
    """Leak memory, descriptors and threads: every job is done."""
    site.expected_codes = {0, 12}
    for what in jobs.WAYS_TO_LEAK:
        queue = what.replace(" ", "-")
        many = site.count(30, 25)  # more than 1,024 descriptors
        numbers = [site.send(jobs.Leaks, queue=queue, what=what) for _ in range(many)]
        site.begin(1, "--queue", queue, "--memory", "120", "--grace", "1")
        began = time.monotonic()
        site.check(
            site.wait_for(lambda: site.left() == 0, 60), f"{what}: {site.left()} jobs are left"
        )
        site.pause(0.5)  # it has to be able to wait, too
        ended = len(site.ended_at)
        site.remark(f"{what} {time.monotonic() - began:.1f} s, workers {1 + ended}")
        _blame(site, numbers)
        site.ended_at.clear()
        site.end_workers()


@scenario("F15", "a job that kills its worker")
def poison(site: Site) -> None:
    """Run poison: it fails after exactly its tries, and everything else is done."""
    poisons = []
    for number in range(site.count(90, 30)):
        if number % 30 == 0:  # the very first also, of which the server knows no script yet
            poisons.append(site.send(jobs.Poison))
        site.send(seconds=0.02)
    site.expected_codes = {0, -9}
    site.begin(2)
    _fails_after(site, poisons, 3)
    site.remark(f"poison {len(poisons)}")
    site.finish()
    _blame(site, poisons)
