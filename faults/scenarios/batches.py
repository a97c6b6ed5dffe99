"""Batches: what follows one comes when all members have ended, and never before."""

from __future__ import annotations

from dataclasses import dataclass, field

from faults import jobs
from faults.scenario import scenario
from faults.scenarios.chains import (
    again,
    at_least_once,
    check_follows,
    check_order,
    ended,
    pushed_apart,
    sent,
    worked,
)
from faults.site import Site
from qframe import Batch, batch
from tests.support.ledger import Account


@dataclass
class Sent:
    """A batch that was dispatched: the numbers of its jobs."""

    batch: Batch
    members: list[list[int]]
    """A member's links."""
    follow: dict[str, int] = field(default_factory=dict)


def _send(site: Site, singles: int, chains: int = 0, longest: float | None = None) -> Sent:
    """Dispatch a batch of jobs and of chains of three, with all that can follow."""
    members = [[worked(site, longest)] for _ in range(singles)]
    members += [[worked(site, longest) for _ in range(3)] for _ in range(chains)]
    site.chance.shuffle(members)
    follow = {name: worked(site) for name in ("before", "then", "finally")}
    made = batch(member if len(member) > 1 else member[0] for member in members)
    made.before(follow["before"]).then(follow["then"]).finally_(follow["finally"])
    begun = made.dispatch()
    numbers = [sent(site, member) for member in members]
    given = dict(zip(follow, sent(site, [*follow.values()]), strict=True))
    site.at_least_once.update(given.values())
    if pushed_apart(site):
        site.at_least_once.update(number for member in numbers for number in member)
    return Sent(begun, numbers, given)


def _check(site: Site, one: Sent) -> None:
    """Check a batch all of whose members are to be done."""
    account = Account.of(site.ledger)
    for member in one.members:
        check_order(site, account, member)
    last = max(ended(account, member[-1]) for member in one.members)
    for name in ("then", "finally"):
        check_follows(site, account, one.follow[name], last)
    found = one.batch.fresh()
    site.check(
        found.is_finished and (found.done, found.failed) == (len(one.members), 0),
        f"{found!r} of {len(one.members)} members",
    )
    twice = again(account, [[one.follow["then"], one.follow["finally"]]])
    site.remark(f"members done twice {again(account, one.members)}, told twice {twice}")


@scenario("M1", "a batch, and its workers are killed and stopped")
def batch_and_kills(site: Site) -> None:
    """Also a stopped worker, whose job another has meanwhile, counts no member twice."""
    at_least_once(site)
    site.limit = None  # what is back waits for its turn among the others
    site.begin(4)
    one = _dispatched(site)
    kinds = ["kill"] * site.count(25, 3) + ["stop"] * site.count(4, 1)
    site.chance.shuffle(kinds)
    for kind in kinds:
        site.pause(site.chance.uniform(0, 0.3))
        if kind == "kill":
            site.kill(site.victim())
        else:
            site.stop_for(site.victim(), 1.3 * site.lease)
    site.finish(180)
    site.remark(f"kills {kinds.count('kill')}, stops {kinds.count('stop')}")
    _check(site, one)


@scenario("M2", "a batch, and kill -9 of the server", "server")
def batch_and_outages(site: Site) -> None:
    """Kill the server, and a worker while it is gone, again and again."""
    at_least_once(site)
    site.limit = None
    one = _dispatched(site)
    site.begin(4)
    outages = site.count(6, 2)
    for _ in range(outages):
        site.pause(site.chance.uniform(0.2, 0.8))
        with site.fault("outage"):
            site.server.kill()
            site.kill(site.victim())
            site.pause(site.chance.uniform(0.1, 0.6))
            site.server.start()
    site.finish(180)
    site.remark(f"outages {outages}")
    _check(site, one)


def _dispatched(site: Site) -> Sent:
    return _send(site, site.count(4_900, 200), site.count(100, 20))


@scenario("M3", "batches of two, whose last members end at the same moment")
def both_at_once(site: Site) -> None:
    """Of two that end at once, one ends the batch: what follows comes, once."""
    at_least_once(site)
    site.begin(4)
    many = [_send(site, 2, longest=0) for _ in range(site.count(500, 40))]
    site.finish(120)
    account = Account.of(site.ledger)
    for one in many:
        last = max(ended(account, member[-1]) for member in one.members)
        for name in ("then", "finally"):
            check_follows(site, account, one.follow[name], last)
            done = account.done[str(one.follow[name])]
            site.check(done == 1, f"{name} of {one.batch.id} was done {done} times")
    site.remark(f"batches {len(many)}")


@scenario("M4", "a batch cancelled half-way, members that fail, callbacks that raise")
def other_ends(site: Site) -> None:
    """`finally` follows all the same, `then` does not; a callback is tried again like any job."""
    at_least_once(site)
    site.begin(2)
    cancelled = _send(site, site.count(200, 60), longest=0.02)
    half = len(cancelled.members) // 2
    site.wait_for(lambda: cancelled.batch.fresh().done >= half)
    site.check(cancelled.batch.cancel(), "the batch was over before it could be cancelled")
    failing = [_send_failing(site) for _ in range(site.count(50, 8))]
    site.finish(120)
    account = Account.of(site.ledger)
    never = [cancelled.follow["then"], *(one["then"] for one in failing)]
    ran = [number for number in never if str(number) in account.runs]
    site.check(not ran, f"of a batch that was cancelled, `then` ran: {ran[:5]}")
    for number in never:
        site.writing.note("D", number, 1, 0)  # not lost: it was never to run
    last = max(ended(account, member[-1]) for member in cancelled.members)
    check_follows(site, account, cancelled.follow["finally"], last)
    for one in failing:
        site.may_fail = {*(site.may_fail or ()), one["fails"]}
        check_follows(site, account, one["catch"], account.runs[str(one["fails"])][0].begun)
        check_follows(site, account, one["finally"], ended(account, one["member"]))
        tried = [run.attempt for run in account.runs[str(one["finally"])]]
        site.check(tried == [1, 2], f"a callback that raises once had the attempts {tried}")
    site.remark(f"cancelled at {half}, failing batches {len(failing)}")


def _send_failing(site: Site) -> dict[str, int]:
    """Dispatch a batch one of whose two members fails, and whose `finally` raises at first."""
    made: dict[str, jobs.Noted] = {
        "member": worked(site), "then": worked(site), "catch": worked(site),
    }  # fmt: skip
    for name, failures in (("fails", 10), ("finally", 1)):
        number = site.number()
        site.writing.note("P", number)
        made[name] = jobs.Raises(number=number, failures=failures)
    pending = batch([made["fails"], made["member"]]).then(made["then"]).catch(made["catch"])
    pending.finally_(made["finally"]).dispatch()
    return dict(zip(made, sent(site, [*made.values()]), strict=True))
