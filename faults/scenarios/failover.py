"""A failover of a Redis and a PostgreSQL, of which one, both, or an answer is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from faults import jobs
from faults.backends import ServerBackend
from faults.scenario import scenario
from faults.site import Producer, Site
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Mode

_RESUME = 3.0
"""Seconds from the return of both until jobs are done again."""
_IDLE = 0.2
"""Of a core, what a worker may use while neither answers."""
_ONCE_MORE = 2
"""How often Redis is asked to push before that is in doubt."""


@contextmanager
def _under_load(site: Site, seconds: tuple[float, float] = (0.01, 0.05)) -> Iterator[Producer]:
    site.begin(3)
    with Producer(site, 0.02, seconds) as producer:
        site.resumed(time.monotonic())
        yield producer


def _finish(site: Site, what: str) -> tuple[int, int]:
    """Drain both; say how many pushes were in doubt, and how many of their messages left out."""
    site.finish()
    doubts = len([*site.queue.store.items("doubt:")])
    second = sum(words[2] == "skipped" for words in site.notes("A"))
    site.remark(f"{what}, doubts {doubts}, second messages {second}")
    return doubts, second


def _lose_a_push(site: Site) -> None:
    """Lose the answers to the next push to the first, and to its repetition."""
    mark = site.backend.requests()["push"]
    site.bad_network.switch(Mode.CUT_AFTER_REQUEST, only=mark, times=_ONCE_MORE)


def _lose_pushes(site: Site, wanted: int) -> int:
    """Lose all answers to some pushes, which the first has done; gives how many there were."""
    proxy = site.bad_network
    before = proxy.faults
    for _ in range(3 * wanted):
        _lose_a_push(site)
        site.wait_for(lambda: proxy.mode is Mode.PASS, 5)
        proxy.switch(Mode.PASS)
        site.pause(site.chance.uniform(0.3, 0.6))  # the first is asked again by then
        if (proxy.faults - before) // _ONCE_MORE >= wanted:
            break
    return (proxy.faults - before) // _ONCE_MORE


@scenario("F53", "kill -9 of the first of a failover", "failover")
def kill_first(site: Site) -> None:
    """Kill the first, start it again later: no push is refused, and the second's jobs run."""
    outages = site.count(6, 1)
    elsewhere = 0
    with _under_load(site) as producer:
        for _ in range(outages):
            site.pause(site.chance.uniform(0.3, 1))
            with site.fault("outage"):
                site.server.kill()
                accepted = producer.accepted
                site.resumed(time.monotonic() + 0.5)
                site.pause(site.chance.uniform(0.2, 2))
                elsewhere += producer.accepted - accepted
                site.server.start()
            site.resumed(time.monotonic())
    site.check(not producer.refused, f"pushes were refused: {producer.errors[:3]}")
    site.check(elsewhere, "nothing was pushed to the second")
    site.limit = None  # what the first has of it is back when that is
    _finish(site, f"outages {outages}, pushed meanwhile {elsewhere}")


@scenario("F54", "answers to pushes to a failover lost", "failover", through_proxy=True)
def lose_answers(site: Site) -> None:
    """Lose the answers to a push and to its repetition: both have the job, and it runs once."""
    wanted = site.count(40, 8)
    site.use_proxy_here_too()
    with _under_load(site, (0.05, 0.15)) as producer:  # what is in doubt waits, and is not begun
        lost = _lose_pushes(site, wanted)
    site.check(lost >= wanted, f"only {lost} pushes were not answered")
    site.check(not producer.refused, f"pushes were refused: {producer.errors[:3]}")
    doubts, second = _finish(site, f"pushes without an answer {lost}")
    site.check(doubts > wanted // 4, f"only {doubts} of {lost} pushes were made elsewhere")
    site.check(doubts == second, f"{doubts} jobs had two messages, and {second} were left out")


@scenario("F55", "both of a failover killed", "failover")
def kill_both(site: Site) -> None:
    """Kill one and then the other: pushes raise, workers wait; both have their jobs when back."""
    rounds, busiest, slowest = site.count(4, 1), 0.0, 0.0
    with _under_load(site) as producer:
        for _ in range(rounds):
            site.pause(site.chance.uniform(0.3, 1))
            both: list[ServerBackend | PostgresServer] = [site.server, site.members.second]
            site.chance.shuffle(both)
            with site.fault("outage"):
                for each in both:
                    each.kill()
                    site.pause(site.chance.uniform(0, 0.5))
                used, began, refused = site.cpu(), time.monotonic(), producer.refused
                site.pause(3)
                share = (site.cpu() - used) / (time.monotonic() - began) / len(site.workers)
                busiest = max(busiest, share)
                site.check(producer.refused > refused, "no push was refused")
                for each in both:
                    each.start()
                up = time.monotonic()
                slowest = max(slowest, site.resumed(up))
    site.check(busiest < _IDLE, f"a worker used {busiest:.0%} of a core while neither was there")
    site.check(slowest < site.patience(_RESUME), f"it took {slowest:.1f} s until jobs ran again")
    site.remark(f"rounds {rounds}, resumed in {slowest:.1f} s, CPU meanwhile {busiest:.1%}")
    site.limit = None
    _finish(site, f"pushes refused {producer.refused}")


@scenario("F56", "kill -9 of who dispatches to a failover", "failover", through_proxy=True)
def kill_dispatchers(site: Site) -> None:
    """Kill who pushes without end, also between the first and the second: each job runs once."""
    kills = site.count(20, 4)
    site.queue_names |= {"makers", "made"}
    site.queue.push(jobs.Dispatches(series=9), "makers")
    others = [site.worker("--queue", "made", "--concurrency", 10) for _ in range(2)]
    site.begin(1, "--queue", "makers")
    for _ in range(kills):
        pushed = len(site.notes("E"))
        site.wait_for(lambda pushed=pushed: len(site.notes("E")) > pushed)  # type: ignore[misc]
        _lose_pushes(site, 1)
        _lose_a_push(site)
        site.pause(site.chance.uniform(0, 0.1))
        site.kill(site.workers[0])
        site.bad_network.switch(Mode.PASS)
    site.end_workers()
    site.queue.clear("makers")
    site.wait_for(lambda: site.sizes("makers").reserved == 0)
    site.queue.clear("makers")
    site.workers += others
    _finish(site, f"kills {kills}, pushed {len(site.sent())}")


@scenario("F57", "kill -9 of workers of a failover, and of its first", "failover")
def kill_workers(site: Site) -> None:
    """Kill workers while both have jobs: each is back on the one that has it."""
    rounds = site.count(8, 2)
    with _under_load(site) as producer:
        for _ in range(rounds):
            site.kill(site.victim(within=0.2))
            site.pause(site.chance.uniform(0, 0.6))
            with site.fault("outage"):
                site.server.kill()
                for _ in range(2):
                    site.pause(site.chance.uniform(0, 0.6))
                    site.kill(site.victim(within=0.2))
                site.server.start()
            site.pause(site.chance.uniform(0, 0.6))
    site.check(not producer.refused, f"pushes were refused: {producer.errors[:3]}")
    site.limit = None  # what the first has of it is back when that is
    _finish(site, f"outages {rounds}, kills {3 * rounds}")
