"""Twenty thousand jobs, fifty at once in each worker, and what breaks meanwhile."""

from __future__ import annotations

from faults.scenario import scenario
from faults.site import Site
from tests.support.proxy import Mode

_AT_ONCE = 50
_JOBS = 20_000
_SECONDS = 0.2
"""What each job takes."""
_AT_MOST = 900.0
"""Seconds until all are done."""


def _begin(site: Site) -> int:
    """Push the jobs and start three workers on them."""
    count = site.count(_JOBS, 1_000)
    for _ in range(0, count, 1000):
        site.send_many(1000, seconds=_SECONDS)
    site.limit = None  # one that is back is behind, or beside, all that wait
    at_once = site.concurrency if site.concurrency > 1 else _AT_ONCE
    site.begin(3, "--concurrency", at_once)
    return count


def _done(site: Site) -> int:
    return len(site.notes("D"))


@scenario("N1", "fifty at once: kill -9, and SIGSTOP for longer than the lease")
def workers_die(site: Site) -> None:
    """Kill and stop workers of many jobs: nothing is lost, and what is said too late is refused."""
    count, chance = _begin(site), site.chance
    done = dict.fromkeys(("kill", "stop"), 0)
    while _done(site) < 0.8 * count:
        site.pause(chance.uniform(0.3, 1.2))
        worker = site.victim(within=0.5)
        kind = chance.choice(list(done))
        done[kind] += 1
        if kind == "kill":
            site.kill(worker)
        else:
            site.stop_for(worker, 2 * site.lease)
    site.remark(", ".join(f"{kind} {number}" for kind, number in done.items()))
    site.finish(_AT_MOST)


@scenario(
    "N2", "fifty at once: the server restarted, connections cut", "server", through_proxy=True
)
def backend_breaks(site: Site) -> None:
    """Kill the server and cut all connections: what runs goes on, and is settled once."""
    count, chance = _begin(site), site.chance
    done = dict.fromkeys(("restart", "cut"), 0)
    while _done(site) < 0.8 * count:
        site.pause(chance.uniform(0.5, 2))
        kind = chance.choice(list(done))
        done[kind] += 1
        if kind == "restart":
            with site.fault("outage"):
                site.server.kill()
                site.pause(chance.uniform(0.1, 0.5))
                site.server.start()
        else:
            with site.fault("reset"):
                site.bad_network.switch(Mode.CUT)
                site.bad_network.switch(Mode.PASS)
    site.remark(", ".join(f"{kind} {number}" for kind, number in done.items()))
    site.finish(_AT_MOST)
