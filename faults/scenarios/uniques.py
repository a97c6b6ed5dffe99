"""Unique jobs, whose locks end with them."""

from __future__ import annotations

from faults import jobs
from faults.scenario import scenario
from faults.site import Site


@scenario("U1", "unique jobs, and their workers are killed and ended")
def unique_jobs(site: Site) -> None:
    """Wherever in its life the owner of a lock is killed: the job is done, and the lock is free."""
    chance = site.chance
    site.limit = None
    for _ in range(site.count(600, 80)):
        site.send(jobs.OnlyOne, seconds=chance.uniform(0, 0.02))
    site.begin(3)
    for kind in chance.choices(["kill", "kill", "kill", "term"], k=site.count(25, 4)):
        site.pause(chance.uniform(0, 0.3))
        worker = site.victim()
        if kind == "kill":
            site.kill(worker)
        else:
            site.terminate(worker)
    site.finish(120)
    left = site.queue.store.keys("unique:")
    site.check(not left, f"locks without a job: {left[:3]}")
    site.remark(f"locks left {len(left)}")
