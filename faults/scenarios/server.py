"""A server that dies, stands still, forgets and refuses."""

from __future__ import annotations

import time

from faults import jobs
from faults.scenario import scenario
from faults.site import Producer, Site
from qframe.exceptions import QframeError

_RESUME = 2.0
"""Seconds from a server's return until jobs are done again, beyond which a run is violated."""
_IDLE = 0.2
"""Of a core, what a worker may use while there is no server."""


def _under_load(site: Site) -> Producer:
    """Start three workers and a producer, and wait until jobs run."""
    site.begin(3)
    producer = Producer(site, 0.02, seconds=(0.01, 0.05))
    producer.begin()
    site.resumed(time.monotonic())
    return producer


@scenario("F20", "kill -9 of the server under load", "server")
def kill_server(site: Site) -> None:
    """Kill the server, start it again later: workers wait without haste, and go on at once."""
    slowest = busiest = 0.0
    outages = site.count(6, 1)
    with _under_load(site):
        for turn in range(outages):
            site.pause(site.chance.uniform(0.2, 0.6))
            length = 3.0 if not turn else site.chance.uniform(0.2, 3)
            with site.fault("outage"):
                site.server.kill()
                used, began = site.cpu(), time.monotonic()
                site.pause(length)
                share = (site.cpu() - used) / (time.monotonic() - began) / len(site.workers)
                site.server.start()
                up = time.monotonic()
            slowest = max(slowest, site.resumed(up))
            if length > 1:
                busiest = max(busiest, share)
    site.check(busiest < _IDLE, f"a worker used {busiest:.0%} of a core while there was no server")
    site.check(slowest < site.patience(_RESUME), f"it took {slowest:.1f} s until jobs ran again")
    site.remark(f"outages {outages}, resumed in {slowest:.2f} s, CPU meanwhile {busiest:.1%}")
    site.finish()


@scenario("F22", "a server that does not answer for a while", "redis")
def stalled(site: Site) -> None:
    """Let the server sleep, and hold its clients back: a push that gave up is not done twice."""
    site.configure(timeout=1)
    with _under_load(site) as producer:
        for _ in range(site.count(3, 1)):
            site.pause(0.5)
            with site.fault("stalled"):
                site.redis.command("DEBUG", "SLEEP", site.count(5, 2))
            site.resumed(time.monotonic())
            site.pause(0.5)
            with site.fault("stalled"):
                site.redis.command("CLIENT", "PAUSE", site.count(3000, 1500), "ALL")
                site.resumed(time.monotonic())
    site.remark(f"pushes refused {producer.refused}, slowest {producer.longest:.1f} s")
    site.finish()


@scenario("F23", "SIGSTOP of the server for longer than the lease", "server")
def stopped_server(site: Site) -> None:
    """Stop the server's process: its clock goes on, so that every lease runs out meanwhile."""
    slowest = 0.0
    with _under_load(site):
        for _ in range(site.count(2, 1)):
            with site.fault("stalled"):
                site.server.pause()
                site.pause(site.count(10, 3))
                site.server.resume()
                up = time.monotonic()
            slowest = max(slowest, site.resumed(up))
            site.pause(1)
    site.check(slowest < site.patience(_RESUME), f"it took {slowest:.1f} s until jobs ran again")
    site.remark(f"resumed in {slowest:.2f} s")
    site.finish()


@scenario("F24", "a server that comes back empty", "redis")
def emptied(site: Site) -> None:
    """Throw away everything the server has: workers go on, and know their scripts again."""
    with _under_load(site):
        for _ in range(site.count(3, 1)):
            site.pause(0.5)
            with site.fault("emptied"):
                site.redis.kill()
                site.redis.empty_folder()
                site.may_be_gone |= site.sent()
                site.redis.start()
            site.resumed(time.monotonic())
    gone = site.not_done(site.may_be_gone)
    site.remark(f"gone with the data {len(gone)}")
    site.finish()


@scenario("F25", "scripts forgotten", "redis")
def scripts_forgotten(site: Site) -> None:
    """Flush the server's scripts again and again: nobody notices."""
    flushes = site.count(500, 100)
    with _under_load(site) as producer, site.redis.client() as client:
        for _ in range(flushes):
            site.send_many(5, delay=0)
            client.script_flush()
            site.pause(site.chance.uniform(0, 0.02))
    site.check(producer.refused == 0, f"{producer.refused} pushes were refused")
    site.remark(f"flushes {flushes}")
    site.finish()


@scenario("F26", "a server that loads its data", "redis")
def loading(site: Site) -> None:
    """Start the server with so much data that it answers LOADING for some seconds."""
    server = site.redis
    with _under_load(site):
        keys = [word for n in range(1000) for word in (f"ballast-{n}", "x" * 4096)]
        server.command("MSET", *keys)
        server.set("key-load-delay", 2000)
        server.command("CONFIG", "REWRITE")
        server.rewrite_aof()
        with site.fault("outage"):
            server.restart(kill=True, ready=False)
            began = time.monotonic()
            site.wait_for(server.answers)
            took = time.monotonic() - began
        slowest = site.resumed(time.monotonic())
    site.check(took > 1, f"it loaded for {took:.1f} s only")
    site.check(
        slowest < site.patience(_RESUME + 1), f"it took {slowest:.1f} s until jobs ran again"
    )
    site.remark(f"loading {took:.1f} s, resumed in {slowest:.2f} s")
    site.finish()


@scenario("F27", "a server whose memory is full", "redis")
def full(site: Site) -> None:
    """Fill the server: pushes are refused, jobs are taken and settled all the same."""
    for _ in range(site.count(500, 100)):
        site.send(seconds=0.005)
    late = [site.send(seconds=0.005, delay=1) for _ in range(20)]
    used = int(site.redis.command("INFO", "memory")["used_memory"])
    site.redis.set("maxmemory", used - 100_000)
    refused = 0
    for _ in range(20):
        try:
            site.send()
        except QframeError:
            refused += 1
    site.begin(2)
    site.check(site.wait_for(lambda: site.left() == 0, 30), f"{site.left()} jobs stayed")
    site.check(refused == 20, f"only {refused} of 20 pushes were refused")
    done = sum(site.ends(number) for number in late)
    site.remark(f"pushes refused {refused}, delayed jobs done {done}")
    site.redis.set("maxmemory", 0)
    site.send()
    site.finish()


def _fail_over(site: Site) -> None:
    with _under_load(site) as producer:
        site.pause(0.5)
        with site.fault("failover"):
            site.group.fail_over()
            slowest = site.resumed(time.monotonic())
            site.pause(2)  # for as long as an old master may go on by itself
    site.check(
        slowest < site.patience(_RESUME + 1), f"it took {slowest:.1f} s until jobs ran again"
    )
    site.remark(f"resumed in {slowest:.2f} s, pushes refused {producer.refused}")
    site.limit = None  # it takes as long as another server takes to be in charge
    site.finish()


@scenario("F30", "failover by Sentinels, min_replicas = 1", "sentinel")
def fail_over(site: Site) -> None:
    """Kill the master: what was pushed is on the replica that takes its place."""
    _fail_over(site)


@scenario("F30c", "failover in a Cluster, min_replicas = 1", "cluster")
def fail_over_in_cluster(site: Site) -> None:
    """Kill the master of the queue's slot: what was pushed is on its replica."""
    _fail_over(site)


@scenario("F30s", "failover to a standby that has what is committed", "standby")
def fail_over_to_standby(site: Site) -> None:
    """Kill the primary: what was pushed is on the standby that takes its place."""
    _fail_over(site)


@scenario("F31", "a server that takes no writes", "redis")
def read_only(site: Site) -> None:
    """Make the server a replica for a while, as a failover does to the master it demotes."""
    slowest = 0.0
    with _under_load(site):
        for _ in range(site.count(4, 1)):
            with site.fault("outage"):
                site.redis.command("REPLICAOF", "127.0.0.1", "1")
                site.pause(site.chance.uniform(0.5, 2.5))
                site.redis.command("REPLICAOF", "NO", "ONE")
                up = time.monotonic()
            slowest = max(slowest, site.resumed(up))
            site.pause(0.3)
    site.check(slowest < site.patience(_RESUME), f"it took {slowest:.1f} s until jobs ran again")
    site.remark(f"resumed in {slowest:.2f} s")
    site.finish()


@scenario("F32", "every connection killed five times a second", "redis")
def client_kill(site: Site) -> None:
    """Kill the clients' connections on the server: whatever was under way is done once."""
    kills = site.count(50, 12)
    with _under_load(site) as producer:
        for _ in range(kills):
            site.redis.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            site.pause(0.2)
    site.remark(f"rounds {kills}, pushes refused {producer.refused}")
    site.finish()


@scenario("F34", "every session ended five times a second", "sql")
def end_sessions(site: Site) -> None:
    """End the sessions, also in the middle of a commit: whatever was under way is done once."""
    rounds = site.count(50, 12)
    with _under_load(site) as producer:
        for _ in range(rounds):
            site.sql.cut_off()
            site.pause(0.2)
    site.remark(f"rounds {rounds}, pushes refused {producer.refused}")
    site.finish()


@scenario("F35", "a server that is restarted under load", "sql")
def restart_server(site: Site) -> None:
    """Restart the server as an administrator does: sessions are cut off, nothing is lost."""
    slowest = 0.0
    with _under_load(site):
        for _ in range(site.count(4, 1)):
            site.pause(site.chance.uniform(0.2, 0.6))
            with site.fault("outage"):
                site.sql.server.restart()
                up = time.monotonic()
            slowest = max(slowest, site.resumed(up))
    site.check(slowest < site.patience(_RESUME), f"it took {slowest:.1f} s until jobs ran again")
    site.remark(f"resumed in {slowest:.2f} s")
    site.finish()


@scenario("F36", "transactions that the server undoes for each other", "sql")
def raise_isolation(site: Site) -> None:
    """Raise the isolation of all sessions: nobody hears of what is undone, and done again."""
    site.sql.raise_isolation()
    with _under_load(site) as producer:
        for _ in range(site.count(600, 80)):
            site.send(jobs.OnlyOne, seconds=site.chance.uniform(0, 0.01))
    site.finish()
    site.check(not producer.refused, f"{producer.refused} pushes were refused")
    heard = [each.pid for each in site.processes if " gone: " in each.out or "WARNING" in each.out]
    site.check(not heard, f"workers {heard} complained")
    late = [line for line in site.ledger.read_text().splitlines() if " lost " in line]
    site.check(not late, f"lost without a cause: {late[:3]}")
