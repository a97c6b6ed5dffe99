"""What only a RabbitMQ does: it blocks pushes, closes channels, and has several nodes."""

from __future__ import annotations

import time
from collections.abc import Callable

from faults import jobs
from faults.scenario import scenario
from faults.site import Producer, Site
from qframe.exceptions import BackendUnavailable
from tests.support.ledger import Fault

_RESUME = 10.0
"""Seconds until jobs run again: nodes take some to agree that one of them is gone."""
_NOTICED = 16.0
"""The same of one that is only silent: noticed in ten, after which workers, who have asked before,
have to give that up and ask anew."""
_ALARMS = {
    "memory": ("vm_memory_monitor:set_vm_memory_high_watermark({}).", "0.00001", "0.4"),
    "disk": ("rabbit_disk_monitor:set_disk_free_limit({}).", '"900GB"', '"50MB"'),
}


@scenario("F46", "memory and disk alarms", "rabbitmq")
def alarms(site: Site) -> None:
    """Raise each alarm: pushes wait, then raise; what waits is run, and pushes go on behind it."""
    site.configure(timeout=site.count(3, 2))
    for kind, (text, bad, good) in _ALARMS.items():
        waiting = [site.send(seconds=0.01) for _ in range(20)]
        with site.fault("alarm"):
            site.rabbitmq.evaluate(text.format(bad))
            errors = site.refused(3, BackendUnavailable)
            site.begin(2)
            done = site.wait_for(lambda waiting=waiting: not site.not_done({*waiting}))  # type: ignore[misc]
            site.rabbitmq.evaluate(text.format(good))
        site.check(len(errors) == 3, f"{kind}: only {len(errors)} of 3 pushes raised")
        site.check(done, f"{kind}: workers stood still")
        site.send()
    site.remark(f"alarms {len(_ALARMS)}")
    site.finish()


@scenario("F47", "every connection closed by the server", "rabbitmq")
def connections_closed(site: Site) -> None:
    """Have the server close all connections again and again: others get what was running."""
    rounds = site.count(10, 2)
    site.begin(3)
    with Producer(site, 0.02, seconds=(0.01, 0.05)) as producer:
        site.resumed(time.monotonic())
        for _ in range(rounds):
            with site.fault("cut"):
                site.rabbitmq.close_connections()
            site.resumed(time.monotonic())
    site.remark(f"rounds {rounds}, pushes refused {producer.refused}")
    site.finish()


@scenario("F48", "jobs longer than consumer_timeout", "rabbitmq")
def longer_than_allowed(site: Site) -> None:
    """Let the server close the channel of a job that runs too long: `tries` end it."""
    _allow(site, 2)
    site.configure()  # with new connections
    late = site.send(jobs.TriedTwice, seconds=6)
    site.may_fail = {late}
    for _ in range(20):
        site.send(seconds=0.01)
    began = time.monotonic()
    site.begin(1)
    site.check(site.wait_for(lambda: late in site.dead()), "it was not failed")
    site.faults.append(Fault("closed", began, time.monotonic()))
    site.check(site.starts(late) == 2, f"it was started {site.starts(late)} times")
    site.limit = None
    site.finish()


@scenario("F58", "SIGSTOP for longer than consumer_timeout, fifty at once", "rabbitmq")
def stopped_for_too_long(site: Site) -> None:
    """Let workers with full slots stand still until the server closes their channels."""
    stops = site.count(4, 1)
    _allow(site, 4)
    site.configure(heartbeat=60)  # by which nothing is noticed meanwhile
    site.limit = None
    site.begin(3, "--concurrency", 50)
    with Producer(site, 0.01, seconds=(0.3, 0.8)):
        for _ in range(stops):
            site.pause(2)
            worker = site.victim(within=0.5)
            site.stop_for(worker, 10)
            site.check(
                site.wait_for(lambda pid=worker.pid: site.was_refused(pid), 20),  # type: ignore[misc]
                f"what pid {worker.pid} said too late was not refused",
            )
    site.remark(f"stops {stops}")
    site.finish()


def _allow(site: Site, seconds: float) -> None:
    """Let the server close the channel of a job that takes so long."""
    allowed = f"application:set_env(rabbit, consumer_timeout, {int(1000 * seconds)})."
    site.rabbitmq.evaluate(allowed)
    site.rabbitmq.evaluate("application:set_env(rabbit, channel_tick_interval, 1000).")


@scenario("F49", "10,000 delayed jobs beside ready ones", "rabbitmq")
def many_delayed(site: Site) -> None:
    """Delay jobs by an hour and by some seconds: they stop no worker and hold up no ready job."""
    many = site.as_many(10_000, 1_000)
    site.begin(2)
    for start in range(0, many, 1000):
        hour = site.send_many(1000, delay=3600 + start)
        site.may_be_gone.update(hour)
    soon = site.send_many(50, delay=5)
    began = time.monotonic()
    ready = [site.send() for _ in range(100)]
    site.check(site.wait_for(lambda: not site.not_done({*ready}), 20), "ready jobs were held up")
    took = time.monotonic() - began
    site.check(took < site.patience(5), f"100 ready jobs took {took:.1f} s")
    site.check(site.wait_for(lambda: not site.not_done({*soon}), 60), "delayed jobs did not run")
    sizes = site.sizes()
    site.check(sizes.delayed == many, f"{sizes.delayed} of {many} are delayed")
    site.remark(f"delayed {many}, 100 ready ones in {took:.2f} s")
    site.queue.clear("default")
    site.finish()


def _under_load(
    site: Site, breaks: Callable[[int], Callable[[], None]], limit: float = _RESUME
) -> None:
    """Break something about each node in turn, under load; what is returned mends it."""
    site.begin(3)
    slowest = 0.0
    with Producer(site, 0.02, seconds=(0.01, 0.05)) as producer:
        site.resumed(time.monotonic())
        for number in range(site.count(3, 1)):
            with site.fault("failover"):
                mend = breaks(number)
                site.pause(1)
                slowest = max(slowest, site.resumed(time.monotonic()))
                site.pause(site.count(5, 2))
                mend()
                site.cluster.wait_until_whole()
            site.resumed(time.monotonic())
            site.pause(1)
    site.check(slowest < site.patience(limit), f"it took {slowest:.1f} s until jobs ran again")
    site.remark(f"resumed in {slowest:.1f} s, pushes refused {producer.refused}")
    site.limit = None
    site.finish()


@scenario("F50", "kill -9 of a node, of three", "nodes")
def kill_node(site: Site) -> None:
    """Kill each node in turn, and start it again: the other two have every job."""

    def breaks(number: int) -> Callable[[], None]:
        node = site.cluster.nodes[number]
        node.kill()

        def mend() -> None:
            node.start()

        return mend

    _under_load(site, breaks)


@scenario("F51", "a node cut off from the others, of three", "nodes")
def cut_off_node(site: Site) -> None:
    """Cut each node off from all others and the clients: nobody is told anything."""

    def breaks(number: int) -> Callable[[], None]:
        node = site.cluster.nodes[number]
        node.cut_off()
        return node.join

    _under_load(site, breaks, _NOTICED)


@scenario("F52", "two nodes killed, of three", "nodes")
def lose_quorum(site: Site) -> None:
    """Kill two nodes: nothing is confirmed and nothing lost; with one of them back all goes on."""
    site.begin(3)
    with Producer(site, 0.02, seconds=(0.01, 0.05)) as producer:
        site.resumed(time.monotonic())
        for kept in range(site.count(3, 1)):
            dead = [each for number, each in enumerate(site.cluster.nodes) if number != kept]
            with site.fault("failover"):
                for each in dead:
                    each.kill()
                site.pause(3)
                accepted = producer.accepted
                site.pause(5)
                confirmed = producer.accepted - accepted
                for each in dead:
                    each.begin()
                site.cluster.wait_until_whole()
            site.check(not confirmed, f"{confirmed} pushes were confirmed by one node of three")
            site.resumed(time.monotonic())
            site.pause(1)
    site.remark(f"rounds {site.count(3, 1)}, pushes refused {producer.refused}")
    site.limit = None
    site.finish()
