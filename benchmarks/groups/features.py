"""What a middleware, uniqueness, signing, encryption and a batch cost, on Redis."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from benchmarks.groups.workers.bench import Bench
from benchmarks.places import Side
from benchmarks.plan import Plan
from benchmarks.redis_server import RedisServer
from benchmarks.rows import Row, alternated, compared, noted, per_second
from benchmarks.said import versions

TITLE = "Features: a job with one thing more, and without, on Redis"

_AT_LEAST = 0.8
_AT_LEAST_IN_A_BATCH = 0.6
"""Each member is counted in the step that removes it."""
_KEYS = {
    "signed": 'signing_key = "a benchmark hides nothing from anybody"\n',
    "encrypted": 'encryption_keys = ["a2V5IG9mIGEgYmVuY2htYXJrLCBub3RoaW5nIGVsc2U="]\n',
}


def facts() -> dict[str, str]:
    """Name the versions compared."""
    return versions("Redis")


def rows(plan: Plan) -> list[Row]:
    """Measure each of them, the plain job in turns with them."""
    features = ("plain", "middleware", "unique", "signed", "encrypted")
    drained: dict[str, list[float]] = {each: [] for each in features}
    pushed: dict[str, list[float]] = {each: [] for each in features}
    with contextlib.ExitStack() as stack:
        bench = Bench.of(plan, stack.enter_context(RedisServer()), stack)
        for feature in alternated(features, plan.rounds):
            with bench.place(_side(bench, feature)) as place:
                pushed[feature].append(place.produce("many", plan.jobs))
            with bench.place(_side(bench, feature)) as place:
                place.produce("bulk", plan.jobs)
                drained[feature].append(place.drain(plan.jobs).rate)
        counted = _counted(bench)
    found = []
    for what, rates in (("drain", drained), ("dispatch", pushed)):
        for feature in features[1:]:
            name = f"{what}, {feature}, and plain"
            if feature == "encrypted":
                found.append(noted(name, rates[feature], per_second, peer=rates["plain"]))
            else:
                found.append(
                    compared(name, rates[feature], rates["plain"], per_second, at_least=_AT_LEAST)
                )
    return [*found, counted]


def _counted(bench: Bench) -> Row:
    """Drain a batch, in turns with as many jobs that are in none."""
    count = bench.plan.bulk
    rates: dict[str, list[float]] = {"plain": [], "batch": []}
    for feature in alternated([*rates], bench.plan.rounds):
        with bench.place(_side(bench, feature)) as place:
            place.produce("bulk", count)
            rates[feature].append(place.drain(count).rate)
    return compared(
        "drain, a batch, and plain",
        rates["batch"],
        rates["plain"],
        per_second,
        at_least=_AT_LEAST_IN_A_BATCH,
    )


def _side(bench: Bench, feature: str) -> Side:
    side = bench.ours("redis", jobs="featured")
    files = {name: _KEYS.get(feature, "") + text for name, text in side.files.items()}
    job = "plain" if feature == "signed" else feature
    return replace(side, files=files, environment={**side.environment, "BENCH_JOB": job})
