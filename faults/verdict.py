"""What the ledger says of a run, in one line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from faults.backends import SqliteBackend
from faults.site import Site
from tests.support.ledger import Account

_DEATHS = {"outage", "reset", "emptied", "failover", "stalled"}
"""What a server, or a part of what it was told, does not survive; or it is told too late."""


@dataclass
class Verdict:
    """The counts of one run; `violations` is empty where everything held."""

    name: str
    title: str
    seed: int
    jobs: int = 0
    lost: set[str] = field(default_factory=set)
    ghosts: set[str] = field(default_factory=set)
    doubles: set[str] = field(default_factory=set)
    overlaps: tuple[Counter[str], set[str]] = field(default_factory=lambda: (Counter(), set()))
    duplicates: tuple[Counter[str], set[str]] = field(default_factory=lambda: (Counter(), set()))
    recovery: float = 0.0
    remarks: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        return not self.violations

    def line(self) -> str:
        """Say it in one line."""
        causes, unexplained = self.duplicates
        parts = [
            f"jobs {self.jobs}",
            f"lost {len(self.lost)}",
            f"ghost {len(self.ghosts)}",
            f"double settle {len(self.doubles)}",
            f"overlap {len(self.overlaps[1])}{_causes(self.overlaps[0])}",
            f"duplicates {causes.total() + len(unexplained)}{_causes(causes)}",
        ]
        if self.recovery:
            parts.append(f"recovered in {self.recovery:.1f} s")
        parts += self.remarks
        end = "ok" if self.ok else "VIOLATED"
        return f"{self.name} {self.title}  seed {self.seed}: {', '.join(parts)}  {end}"


def _causes(causes: Counter[str]) -> str:
    if not causes:
        return ""
    return f" ({', '.join(f'{count} {kind}' for kind, count in sorted(causes.items()))})"


def judge(site: Site, verdict: Verdict) -> None:
    """Count what the ledger, the queues and the failed store say, and what of it must not be."""
    account = Account.of(site.ledger)
    dead = {str(number) for number in site.dead()}
    gone = {str(number) for number in site.may_be_gone}
    verdict.jobs = len(account.pushing)
    verdict.lost = account.lost(dead) - gone
    verdict.ghosts = account.ghosts()
    again = {str(number) for number in site.at_least_once} if site.faults else set()
    verdict.doubles = account.settled_twice(site.faults) - again
    faults = [*site.faults, *account.starved]
    if isinstance(site.backend, SqliteBackend):
        faults += account.halts(site.faults, site.lease / 2)
    causes, unexplained = account.duplicates(faults)
    verdict.duplicates = causes, unexplained - again
    causes, unexplained = account.overlaps(faults)
    verdict.overlaps = causes, unexplained - again
    if site.limit is not None:
        verdict.recovery = account.recovery(site.faults)
    verdict.remarks = site.remarks
    refused = sum(each.how == "lost" for many in account.settled.values() for each in many)
    if refused:
        verdict.remarks.append(f"refused late {refused}")
    if unknown := account.unknown():
        verdict.remarks.append(f"queued unheard {len(unknown)}")
    verdict.violations = site.violations
    say = verdict.violations.append
    for what, numbers in {
        "lost": verdict.lost,
        "never sent, but run": verdict.ghosts,
        "settled twice": verdict.doubles,
        "done twice without a cause": verdict.duplicates[1],
        "run at the same time without a cause": verdict.overlaps[1],
        "failed, but should not have": _unexpected(site, dead),
        "started twice with one attempt's number": _repeated(site, account) - again,
    }.items():
        if numbers:
            say(f"{what}: jobs {', '.join(sorted(numbers)[:10])}")
    if site.limit is not None and verdict.recovery > site.limit:
        say(f"recovered in {verdict.recovery:.1f} s, more than {site.limit:g}")
    for process in site.processes:
        if "Traceback" in process.err:
            say(f"pid {process.pid} printed a traceback: {process.err[-2000:]}")


def _unexpected(site: Site, dead: set[str]) -> set[str]:
    if site.may_fail is None:
        return set()
    return dead - {str(number) for number in site.may_fail}


def _repeated(site: Site, account: Account) -> set[str]:
    if site.may_repeat_attempts:
        return set()
    # A start is not waited for: a server that dies with it on its way has not counted it, nor has
    # one that hears of it when the hold has ended.
    # Who stood still with a start behind it, and before the first line, is seen too late.
    deaths = [fault for fault in site.faults if fault.kind in _DEATHS]
    stalls = [*site.faults, *account.starved]
    return {
        name
        for name, runs in account.runs.items()
        for first, second in pairwise(runs)
        if second.attempt <= first.attempt
        and not any(fault.hit(first, second.begun) for fault in deaths)
        and not any(fault.delayed(second) for fault in stalls)
    } - account.pushed_again()
