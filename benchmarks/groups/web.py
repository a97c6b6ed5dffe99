"""The dashboard with a million jobs that wait and 200,000 that failed; and what metrics cost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.groups.workers.bench import Bench
from benchmarks.places import NotHereError, Place, Side
from benchmarks.plan import Plan
from benchmarks.redis_server import RedisServer
from benchmarks.rows import (
    Row,
    alternated,
    compared,
    each_second,
    limited,
    megabytes,
    milliseconds,
    noted,
    per_second,
    percentile,
)
from benchmarks.said import versions
from benchmarks.sql.bench import ours as on_sql
from benchmarks.sql.mariadb import MariadbServer
from benchmarks.sql.postgres import PostgresServer
from benchmarks.sql.server import SqlServer

TITLE = "The dashboard, and what metrics cost"

PARTS = ("pages", "metrics")
_LIMIT = 0.2
"""Seconds within which a page is to be there."""
_WITHIN = 600.0
"""Seconds in which a backend is to be filled and all pages looked at."""
_TURNS = 16
"""So many short turns are taken for each round: a dispatch that is counted is hardly slower."""
_SHARE = 0.97
"""What is to be left of the throughput with metrics."""


def facts() -> dict[str, str]:
    """Name the versions compared."""
    return versions("Redis")


@dataclass(frozen=True, slots=True)
class _Home:
    """A backend while it is measured."""

    name: str
    side: Side
    place: Callable[[Side], AbstractContextManager[Place]]
    """Gives a place with nothing else on the server."""


def rows(plan: Plan) -> list[Row]:
    """Measure on each backend what metrics cost, then the pages."""
    found: list[Row] = []
    with contextlib.ExitStack() as stack:
        bench = Bench.of(plan, stack.enter_context(RedisServer()), stack)
        for home in _homes(bench):
            if "metrics" in (plan.parts or PARTS) and home.name != "MariaDB":
                found += _costs(plan, home)
            if "pages" in (plan.parts or PARTS) and home.name != "beanstalkd":
                with home.place(home.side) as place:
                    found += _pages(plan, home.name, place)
    return found


def places(bench: Bench) -> Iterator[tuple[str, Place]]:
    """Give a place on each backend that all there is works on."""
    for home in _homes(bench):
        if home.name != "beanstalkd":
            with home.place(home.side) as place:
                yield home.name, place


def _homes(bench: Bench) -> Iterator[_Home]:
    """Give the backends that are here, one after the other."""
    for driver in bench.connections:
        name = {"database": "SQLite"}.get(driver, driver)
        yield _Home(name, bench.ours(driver), bench.place)
    for made in (PostgresServer, MariadbServer):
        with contextlib.suppress(NotHereError), made() as server:
            yield _Home(server.name, on_sql(server.our_url()), partial(_empty, server))


@contextlib.contextmanager
def _empty(server: SqlServer, side: Side) -> Iterator[Place]:
    """Give a place with its own empty tables."""
    server.create("bench")
    with Place(side) as place:
        place.prepare()
        yield place


def _costs(plan: Plan, home: _Home) -> Iterator[Row]:
    """Push and drain with metrics and without, in turns; without is the peer."""
    count = plan.many * (2 if home.name == "redis" else 1)
    off = {name: f"metrics = false\n{text}" for name, text in home.side.files.items()}
    sides = {"with": home.side, "without": replace(home.side, name="without metrics", files=off)}
    rates: dict[str, dict[str, list[float]]] = {
        way: {name: [] for name in sides} for way in ("pushed together", "drained")
    }
    for name in alternated([*sides], plan.rounds):
        with home.place(sides[name]) as place:
            rates["pushed together"][name].append(place.produce("bulk", count))
            rates["drained"][name].append(place.drain(count).rate)
    turns, jobs = _TURNS * plan.rounds, max(10, plan.many // 25)
    with home.place(home.side) as place:
        module = "benchmarks.apps.counted_dispatches"
        rates[f"dispatched one by one, {turns} times"] = place.measured(module, turns, jobs)
    for way, found in rates.items():
        many = jobs if "times" in way else count
        what = f"{many:,} no-op jobs {way} on {home.name}, with metrics and without"
        yield compared(what, found["with"], found["without"], per_second, at_least=_SHARE)


def _pages(plan: Plan, name: str, place: Place) -> list[Row]:
    module = "benchmarks.apps.filled_page"
    measured = place.measured(module, plan.page_waiting, plan.page_failed, seconds=_WITHIN)
    found = []
    for page, times in measured["times"].items():
        what = f"{name}, {page}, p95 ({measured['calls'][page]} calls at most)"
        found.append(limited(what, [percentile(times, 0.95)], milliseconds, _LIMIT))
    found.append(noted(f"{name}, calls of one open page", [measured["open"]], each_second))
    found.append(noted(f"{name}, most memory of the page", [measured["mb"]], megabytes))
    return found
