"""Chains: each link runs when the one before it is done, whatever is killed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from faults import jobs
from faults.scenario import scenario
from faults.site import Site
from qframe import Queueable, chain, manager
from qframe.contracts.backend import Capability
from tests.support.ledger import Account

_LENGTH = 5


@scenario("L1", "chains of five, and their workers are killed")
def chains_and_kills(site: Site) -> None:
    """Kill workers at random moments, also between a link and the next."""
    kills = site.count(40, 5)
    links = _sent(site)
    site.begin(4)
    for _ in range(kills):
        site.pause(site.chance.uniform(0, 0.2))
        site.kill(site.victim())
    site.remark(f"kills {kills}")
    _finish(site, links)


@scenario("L2", "chains of five, and kill -9 of the server", "server")
def chains_and_outages(site: Site) -> None:
    """Kill the server, and a worker while it is gone, again and again."""
    outages = site.count(6, 2)
    links = _sent(site)
    site.begin(4)
    for _ in range(outages):
        site.pause(site.chance.uniform(0.2, 0.8))
        with site.fault("outage"):
            site.server.kill()
            site.kill(site.victim())
            site.pause(site.chance.uniform(0.1, 0.6))
            site.server.start()
    site.remark(f"outages {outages}")
    _finish(site, links)


def _sent(site: Site) -> list[list[int]]:
    """Dispatch the chains, and give the numbers of their links."""
    at_least_once(site)
    site.limit = None  # what is back waits for its turn among the others
    links = []
    for _ in range(site.count(500, 25)):
        made = [worked(site) for _ in range(_LENGTH)]
        chain(made).dispatch()
        links.append(sent(site, made))
    return links


def _finish(site: Site, links: Sequence[Sequence[int]]) -> None:
    site.finish(120)
    account = Account.of(site.ledger)
    for each in links:
        check_order(site, account, each)
        if not pushed_apart(site):
            continue
        site.at_least_once.update(each)
    site.remark(f"chains {len(links)}, links done twice {again(account, links)}")


# -- what batches share ---------------------------------------------------------------------------


def at_least_once(site: Site) -> None:
    """Let this process dispatch to the site; where pushes are apart they may be said again."""
    manager.use(site.manager)
    site.may_repeat_attempts = pushed_apart(site)


def pushed_apart(site: Site) -> bool:
    """Whether the next link is pushed apart from the removal of the one before."""
    return Capability.JOINT not in site.queue.capabilities


def worked(site: Site, longest: float | None = None) -> jobs.Work:
    """Make a job that is about to be sent; by default it takes long enough to be hit in it."""
    number = site.number()
    site.writing.note("P", number)
    if longest is None:
        longest = 0.1 if site.quick else 0.03
    return jobs.Work(number=number, seconds=site.chance.uniform(0, longest))


def sent(site: Site, made: Sequence[Queueable]) -> list[int]:
    """Note that these were sent, and give their numbers."""
    numbers = [each.number for each in made if isinstance(each, jobs.Noted)]
    for number in numbers:
        site.writing.note("E", number)
    return numbers


def check_order(site: Site, account: Account, links: Sequence[int]) -> None:
    """Check that each began, first, after the one before it had ended, first."""
    for before, after in pairwise(links):
        check_follows(site, account, after, ended(account, before))


def check_follows(site: Site, account: Account, number: int, moment: float) -> None:
    """Check that a job ran, and never before a moment."""
    runs = account.runs.get(str(number), [])
    site.check(runs, f"{number} never ran")
    early = [run for run in runs if run.begun < moment]
    site.check(not early, f"{number} began before what it follows had ended: {early[:1]}")


def ended(account: Account, number: int) -> float:
    """Give when a job first reached its last line; for ever where it has not."""
    runs = account.runs.get(str(number), [])
    return min((run.done for run in runs if run.done), default=float("inf"))


def again(account: Account, many: Sequence[Sequence[int]]) -> int:
    """Count the jobs that were done more than once."""
    return sum(account.done[str(number)] > 1 for numbers in many for number in numbers)
