"""kill -9 at every point of what a worker says to its backend."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass

from faults import jobs, requests
from faults.scenario import scenario
from faults.site import Site
from tests.support.ledger import Account, Fault

_PHASES = ("before", "sent", "answered")


@dataclass(frozen=True)
class Point:
    """Where a worker dies: the `count`th time it asks for something, and how far it got."""

    script: str
    phase: str
    count: int

    @property
    def again(self) -> int:
        """How many jobs may run to their end twice: the last done, its deletion not yet sent.

        The answer to a start that is not waited for is read when its job has ended.
        """
        return int(
            (self.phase == "before" and self.script in {"reserve", "start", "delete"})
            or (self.phase == "answered" and self.script == "start")
        )

    @property
    def queue(self) -> str:
        """The point's own queue."""
        return f"{self.script}-{self.phase}"

    @property
    def counted(self) -> bool:
        """Whether a start was counted that no job noted."""
        return (self.script, self.phase) == ("start", "sent")

    def said(self) -> dict[str, object]:
        """Give what `faults.worker` has to know."""
        word = {"fail": "record"}.get(self.script, self.script)
        return {"script": word, "phase": self.phase, "count": self.count}


class Command(Point):
    """The same for beanstalkd, where a reservation counts."""

    @property
    def counted(self) -> bool:
        """Whether a reservation was counted whose job nobody noted."""
        return self.script == "stats-job" or (self.script == "reserve" and self.phase != "before")

    def said(self) -> dict[str, object]:
        """Give what `faults.worker` has to know."""
        word = {"fail": "delete", "renew": "touch", "push": "put"}.get(self.script, self.script)
        return {"command": word, "phase": self.phase, "count": self.count}


class Action(Point):
    """The same for SQS, where a delivery counts."""

    @property
    def counted(self) -> bool:
        """Whether a delivery was counted whose job nobody noted."""
        return self.script == "reserve" and self.phase != "before"

    def said(self) -> dict[str, object]:
        """Give what `faults.worker` has to know."""
        point = {"action": requests.ACTIONS[self.script], "phase": self.phase, "count": self.count}
        return {**point, "anyone": self.script == "renew"}


_COUNTS = {
    "reserve": 2, "start": 2, "delete": 1, "release": 1, "renew": 2, "fail": 1, "push": 3,
}  # fmt: skip
_COMMANDS = {
    "reserve": 2, "stats-job": 2, "delete": 1, "release": 1, "renew": 2, "fail": 1, "push": 3,
}  # fmt: skip
_ACTIONS = {"reserve": 2, "delete": 1, "release": 1, "renew": 2, "fail": 1, "push": 3}


def _points(site: Site) -> list[Point]:
    if "sqs" in site.backend.features:
        return [Action(name, phase, n) for name, n in _ACTIONS.items() for phase in _PHASES]
    if "beanstalkd" in site.backend.features:
        return [Command(word, phase, n) for word, n in _COMMANDS.items() for phase in _PHASES]
    for each in requests.scripts():  # what a server has to ask for first is done a moment later
        site.redis.command("SCRIPT", "LOAD", each.text)
    return [Point(name, phase, n) for name, n in _COUNTS.items() for phase in _PHASES]


@scenario("F2", "kill -9 at each point of an exchange", "points")
def each_point(site: Site) -> None:
    """Kill workers before they send, when they have sent, and when they have read an answer."""
    points = _points(site)
    site.queue_names.add("made")
    dying = {point: _send_for(site, point) for point in points}
    began, site.limit = time.monotonic(), None
    workers = {
        point: site.worker(
            "--queue", point.queue, "--concurrency", 1, DIE_AT=json.dumps(point.said())
        )
        for point in points
    }
    for point, worker in workers.items():
        code = worker.wait(300)  # they all start at once
        site.faults.append(Fault("killed", began, time.monotonic(), worker.pid))
        site.check(
            code == -signal.SIGKILL, f"{point.queue}: not reached, exit {code}: {worker.err}"
        )
    site.begin(2, "--queue", ",".join(sorted(site.queue_names)))
    site.wait_for(lambda: site.left() == 0)
    account = Account.of(site.ledger)
    for point, numbers in dying.items():
        twice = sum(account.done[str(number)] > 1 for number in numbers)
        site.check(twice <= point.again, f"{point.queue}: {twice} jobs were done twice")
        if point.script in {"reserve", "start", "stats-job"}:
            _check_attempts(site, account, point, numbers)
    site.remark(f"points {len(points)}")
    site.may_fail = {
        number for point in points if point.script == "fail" for number in dying[point]
    }
    site.check(site.dead().keys() == site.may_fail, f"failed: {sorted(site.dead())}")
    site.check(
        all(record.attempts == 2 for record in site.failed()),
        f"attempts of the failed: {[record.attempts for record in site.failed()]}",
    )
    site.finish()


def _send_for(site: Site, point: Point) -> list[int]:
    """Push the jobs a worker needs to get to a point."""
    if point.script == "release":
        return [site.send(jobs.Raises, queue=point.queue, failures=1) for _ in range(3)]
    if point.script == "fail":
        return [site.send(jobs.Raises, queue=point.queue) for _ in range(3)]
    if point.script == "renew":
        return [site.send(queue=point.queue, seconds=2 * site.lease)]
    if point.script == "push":
        return [site.send(jobs.Makes, queue=point.queue, count=5)]
    return [site.send(queue=point.queue, seconds=0.01) for _ in range(8)]


def _check_attempts(site: Site, account: Account, point: Point, numbers: list[int]) -> None:
    """Every start counts, and nothing else does."""
    first = [account.attempts[str(number)][0] for number in numbers]
    wanted = [1] * (len(numbers) - point.counted) + [2] * point.counted
    site.check(sorted(first) == wanted, f"{point.queue}: the first attempts were {first}")
