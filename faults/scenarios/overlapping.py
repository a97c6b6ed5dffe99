"""Jobs with one key (`WithoutOverlapping`), of which two never run at once."""

from __future__ import annotations

from faults import jobs
from faults.scenario import scenario
from faults.site import Site
from tests.support import alone


@scenario("O1", "one key, and its workers are killed, stopped and ended")
def one_key(site: Site) -> None:
    """Whatever happens to four workers, the next job begins after the one before has ended.

    A worker is stopped for less than the lease of its lock: one that is stopped for longer runs on
    without it.
    """
    chance, site.may_repeat_attempts = site.chance, True
    site.limit = None  # a job that is back may have to wait for its lock like any other
    for _ in range(site.count(400, 60)):
        site.send(jobs.Alone, seconds=chance.uniform(0.005, 0.05))
    site.begin(4)
    kinds = ["kill", "kill", "stop", "term", "term twice"]
    for kind in chance.choices(kinds, k=site.count(20, 3)):
        site.pause(chance.uniform(0.1, 0.4))
        worker = site.victim()
        if kind == "kill":
            site.kill(worker)
        elif kind == "stop":
            site.stop_for(worker, chance.uniform(0.05, 0.5) * jobs.LOCKED_FOR)
        elif kind == "term":
            site.terminate(worker)
        else:
            site.terminate_twice(worker)
    site.finish(120)
    runs = alone.runs(site.notes(), _ended(site))
    both = alone.overlaps(runs)
    site.check(not both, f"two at once: {both[:3]}")
    site.remark(f"key busy {alone.busy(runs):.0%}")


def _ended(site: Site) -> dict[int, float]:
    """Say until when a run without an end went on: till the kill; told twice to stop, unknown."""
    began = {int(words[3]): 0.0 for words in site.notes("S")}
    return began | {
        each.pid: each.begin for each in site.faults if each.pid and each.kind == "killed"
    }
