"""A network that loses answers, and everything."""

from __future__ import annotations

import time

from faults import jobs
from faults.scenario import scenario
from faults.site import Producer, Site
from tests.support.proxy import Mode

_IDLE = 0.2
"""Of a core, what a worker may use while nothing answers."""


def _lose_answers(site: Site, kinds: tuple[str, ...], every: float) -> None:
    """Drop the answers to some requests of these kinds, each of which the server has done."""
    proxy = site.bad_network
    wanted = site.count(60, 12)
    marks = site.backend.requests()
    cuts = dict.fromkeys([kind for kind in kinds if kind in marks], 0)
    deadline = time.monotonic() + 120
    while sum(cuts.values()) < wanted and time.monotonic() < deadline:
        site.pause(site.chance.uniform(0, every))
        name = site.chance.choice(list(cuts))
        before = proxy.faults
        proxy.switch(Mode.CUT_AFTER_REQUEST, only=marks[name], times=1)
        site.wait_for(lambda: proxy.mode is Mode.PASS, 2)
        cuts[name] += proxy.faults - before
        proxy.switch(Mode.PASS)
    site.check(sum(cuts.values()) >= wanted, f"only {cuts} answers were lost")
    site.remark(f"answers lost {', '.join(f'{name} {count}' for name, count in cuts.items())}")


def _check_alarms(site: Site) -> None:
    """Nobody may be told that a job was lost which nobody else had."""
    alarmed = {words[1] for words in site.notes("A") if words[2] == "lost" and words[1] != "-"}
    false = [number for number in alarmed if site.starts(int(number)) == 1]
    site.check(not false, f"said to be lost, but run once: jobs {', '.join(false[:10])}")


@scenario("F60", "answers to settling and pushing lost", through_proxy=True)
def lost_acknowledgement(site: Site) -> None:
    """Do what is settled or pushed, and cut the answer off: said again, it is done once.

    A reservation may be on its way with a deletion, and its answer be lost too: beanstalkd counts
    that as an attempt of a job nobody knows of.
    """
    raises = jobs.RaisesFreely if "beanstalkd" in site.backend.features else jobs.Raises
    site.use_proxy_here_too()
    site.begin(3)
    with Producer(site, 0.02, seconds=(0.0, 0.03)) as producer:
        site.resumed(time.monotonic())
        producer.also(raises, failures=1)
        _lose_answers(site, ("start", "delete", "release", "push"), 0.1)
    _check_alarms(site)
    site.finish()


@scenario("F61", "answers to reserving lost", through_proxy=True)
def lost_reservation(site: Site) -> None:
    """Reserve jobs for nobody: they are back after a moment, uncounted."""
    site.begin(2)
    with Producer(site, 0.05, seconds=(0.0, 0.03)):
        site.resumed(time.monotonic())
        _lose_answers(site, ("reserve",), 0.1)
    _check_alarms(site)
    site.finish()


@scenario("F62", "a network that swallows everything", through_proxy=True)
def blackhole(site: Site) -> None:
    """Swallow what workers send, for longer than a lease: they wait, and go on."""
    proxy, slowest, busiest = site.bad_network, 0.0, 0.0
    site.begin(3)
    with Producer(site, 0.05, seconds=(0.01, 0.1)):
        site.resumed(time.monotonic())
        for _ in range(site.count(3, 1)):
            site.pause(0.5)
            site.send(seconds=2 * site.lease)
            site.pause(0.2)
            with site.fault("blackhole"):
                proxy.switch(Mode.BLACKHOLE)
                used, began = site.cpu(), time.monotonic()
                site.pause(site.chance.uniform(2, site.count(12, 4)))
                share = (site.cpu() - used) / (time.monotonic() - began) / len(site.workers)
                proxy.switch(Mode.PASS)
                up = time.monotonic()
            busiest = max(busiest, share)
            slowest = max(slowest, site.resumed(up))
    site.check(busiest < _IDLE, f"a worker used {busiest:.0%} of a core while nothing answered")
    site.remark(f"resumed in {slowest:.2f} s, CPU meanwhile {busiest:.1%}")
    site.limit = None  # nobody else is there to take over
    site.finish()


@scenario("F64", "timeouts in the middle of an exchange", "redis", through_proxy=True)
def out_of_step(site: Site) -> None:
    """Time out jobs that push without end, on a slow line: no answer is taken for another."""
    site.bad_network.switch(Mode.DELAY, seconds=0.002)
    site.expected_codes = {0, 1}
    timeouts = site.count(24, 5)
    site.queue_names |= {"makers", "made"}
    site.queue.push(jobs.Dispatches(series=9), "makers")
    site.begin(1, "--queue", "makers", "--timeout", "0.3", "--tries", "0")

    def runs() -> int:
        return len({int(words[1]) // 100_000 for words in site.notes("P")})

    site.check(site.wait_for(lambda: runs() > timeouts), "too few timed out")
    site.end_workers()
    site.queue.clear("makers")
    site.wait_for(lambda: site.sizes("makers").reserved == 0)
    site.queue.clear("makers")
    site.remark(f"timeouts {runs() - 1}, pushed {len(site.sent())}")
    site.begin(2, "--queue", "made")
    site.finish()
