"""What a drain loses to a million waiting jobs, and to dead rows that an open transaction keeps."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from benchmarks.places import Place
from benchmarks.rows import Row, alternated, compared, noted, per_second
from benchmarks.sql.bench import Bench, ours


def backlog(bench: Bench) -> list[Row]:
    """Drain as many jobs of a short queue and of a long one, in databases side by side."""
    plan, server = bench.plan, bench.server
    rates: dict[str, list[float]] = {"few": [], "many": []}
    with contextlib.ExitStack() as stack:
        places: dict[str, Place] = {}
        for name in rates:
            server.create(name)
            place = places[name] = stack.enter_context(Place(ours(server.our_url(name))))
            place.prepare()
            place.produce("many", 0)
        server.fill(plan.sql_waiting - plan.sql_few, "many")
        for name in alternated([*rates], bench.rounds):
            server.fill(plan.sql_few, name)
            drained = places[name].drain(plan.sql_few, "--max-jobs", str(plan.sql_few))
            rates[name].append(drained.rate)
        for name in rates:
            server.drop(name)
    return [
        compared(
            f"drain at {plan.sql_waiting:,} waiting, at {plan.sql_few:,}",
            rates["many"],
            rates["few"],
            per_second,
            at_least=0.9,
        )
    ]


def dead_rows(bench: Bench) -> list[Row]:
    """Drain behind rows that were deleted while a transaction was open, and without any."""
    plan, server = bench.plan, bench.server
    rates: dict[bool, list[float]] = {False: [], True: []}
    for dead in alternated((False, True), bench.rounds):
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(bench.place(replace(bench.ours)))
            place.produce("many", 0)
            stack.enter_context(server.long_transaction())
            if dead:
                server.leave_dead(plan.sql_dead)
            server.fill(plan.sql_jobs)
            rates[dead].append(place.drain(plan.sql_jobs).rate)
    return [
        noted(
            f"drain behind {plan.sql_dead:,} dead rows of an open transaction, and without",
            rates[True],
            per_second,
            peer=rates[False],
        )
    ]
