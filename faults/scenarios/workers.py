"""Workers that are killed, stopped and told things."""

from __future__ import annotations

import signal
import time

from faults.scenario import scenario
from faults.site import Producer, Site

_EXIT = 3.0
"""Seconds a worker with short jobs may take to stop."""


@scenario("MIX", "kill, stop and end workers at random")
def everything_at_random(site: Site) -> None:
    """Jobs of all lengths, some delayed, some longer than their lease; whatever happens to four."""
    chance, site.may_repeat_attempts = site.chance, True
    for number in range(site.count(600, 200)):
        seconds = chance.choice([0.0, 0.01, 0.05, 0.1, 0.2]) + 0.05 * chance.random()
        if number % 50 == 0:
            seconds = 1.6 * site.lease  # only renewals keep it
        site.send(seconds=seconds, delay=chance.choice([0, 0, 0, chance.uniform(0, 10)]))
    site.begin(4)
    kinds = dict.fromkeys(("kill", "stop", "term", "term twice"), 0)
    faults = [*kinds, *chance.choices(["kill", *kinds], k=site.count(20, 4))]
    chance.shuffle(faults)
    for kind in faults:
        site.pause(chance.uniform(0.1, 0.5))
        worker = site.victim()
        kinds[kind] += 1
        if kind == "kill":
            site.kill(worker)
        elif kind == "stop":
            site.stop_for(worker, chance.uniform(0.2, 1.8) * site.lease)
        elif kind == "term":
            site.terminate(worker)
        else:
            site.terminate_twice(worker)
    site.remark(", ".join(f"{kind} {count}" for kind, count in kinds.items()))
    site.finish()


@scenario("F1", "kill -9 mid-job")
def kill_mid_job(site: Site) -> None:
    """Kill workers at random moments: each job they ran is run again as soon as its lease ends."""
    kills = site.count(25, 3)
    site.begin(4)
    with Producer(site, 0.01, seconds=(0.01, 0.05)):
        for _ in range(kills):
            site.pause(site.chance.uniform(0, 0.2))
            site.kill(site.victim(within=0.05))
    site.remark(f"kills {kills}")
    site.finish()


@scenario("F3", "USR1 ends the running job")
def interrupt(site: Site) -> None:
    """End running jobs from outside: each is released once, and its worker ends with exit 1."""
    site.expected_codes = {0, 1}
    interrupted = site.count(25, 5)
    site.begin(3)
    with Producer(site, 0.1, seconds=(0.1, 0.2)):
        for _ in range(interrupted):
            worker = site.victim(within=0.05)
            with site.fault("interrupted", worker.pid):
                worker.signal(signal.SIGUSR1)
                site.pause(0.1)
    site.limit = None  # it is at once behind the others, which may be many
    site.remark(f"interrupted {interrupted}")
    site.finish()


@scenario("F5", "SIGSTOP for longer than the lease")
def zombie_owner(site: Site) -> None:
    """Let an owner sleep past its lease: another runs the job, the first is refused."""
    stops, owners, wanted = 0, 0, site.count(10, 1)
    site.begin(3)
    with Producer(site, 0.15, seconds=(0.3, 0.4)):
        while owners < wanted and stops < 5 * wanted + 10:
            stops += 1
            worker = site.victim(within=0.05)
            lease = max(site.lease, site.backend.silence)
            site.stop_for(worker, lease * site.chance.uniform(1.3, 2.2))
            if not site.was_taken_over(worker.pid):
                continue  # its job had just ended
            owners += 1
            site.check(
                site.wait_for(lambda pid=worker.pid: site.was_refused(pid), 10),  # type: ignore[misc]
                f"what pid {worker.pid} said too late was not refused",
            )
    site.check(owners == wanted, f"only {owners} of {stops} stopped workers had a job")
    site.remark(f"stops {stops}, of owners {owners}")
    site.finish()


@scenario("F6", "SIGTERM under load")
def terminate(site: Site) -> None:
    """End workers at random moments: in time, and nothing stays reserved by the ended."""
    site.may_repeat_attempts = True
    terms = site.count(150, 4)
    slowest = 0.0
    site.begin(4)
    with Producer(site, 0.01, seconds=(0.01, 0.05)):
        for turn in range(terms):
            worker = site.victim(within=0.2)
            site.pause(site.chance.uniform(0, 0.05))
            end = site.terminate_twice if turn % 4 == 3 else site.terminate
            slowest = max(slowest, end(worker))
        site.end_workers()
        reserved = site.sizes().reserved
    site.check(reserved == 0, f"{reserved} jobs stayed reserved when all workers had ended")
    site.check(slowest < site.patience(_EXIT), f"a worker took {slowest:.1f} s to stop")
    site.remark(f"terms {terms}, slowest exit {slowest:.2f} s")
    site.begin(2)
    site.finish()


@scenario("F7", "a storm of signals")
def storm(site: Site) -> None:
    """50 signals in a second: no crash, no deadlock, and every job ends as it should."""
    site.may_repeat_attempts = True
    site.expected_codes = {0, 1}
    harmless = [signal.SIGUSR2, signal.SIGCONT]
    stops = [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1]
    rounds = site.count(12, 3)
    site.begin(3)
    with Producer(site, 0.01, seconds=(0.0, 0.1)):
        for turn in range(rounds):
            worker = site.victim(within=0.5)
            kinds = [*harmless, *(stops if turn % 2 else [])]
            with site.fault("stormed", worker.pid):
                for _ in range(50):
                    worker.signal(site.chance.choice(kinds))
                    time.sleep(site.chance.uniform(0, 0.04))
                worker.signal(signal.SIGCONT)
                site.terminate(worker, signal.SIGTERM)
    site.remark(f"storms {rounds}")
    site.finish()


@scenario("F16", "kill -9 of everything at once", "server")
def reboot(site: Site) -> None:
    """Kill all workers and the server in one moment, as if the machine had been reset."""
    rounds = site.count(6, 1)
    server = site.server
    for _ in range(rounds):
        site.begin(3)
        with Producer(site, 0.01, seconds=(0.01, 0.05)):
            site.resumed(time.monotonic())
            site.pause(site.chance.uniform(0.2, 1.0))
            with site.fault("reset"):
                for worker in site.workers:
                    worker.popen.kill()
                server.kill()
                for worker in site.workers:
                    worker.popen.wait()
                site.workers.clear()
        server.start()
    site.remark(f"resets {rounds}")
    site.begin(3)
    site.finish()
