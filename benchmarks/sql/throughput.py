"""How many jobs a second are dispatched and drained, by one worker process and by four."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.peers.sql_sides import EACH, SqlPeer
from benchmarks.rows import Row, alternated, compared, each_job, microseconds, noted, per_second
from benchmarks.sql.bench import Bench
from benchmarks.sql.server import Work

_WORKERS = 4
_PROCESSES = (1, 2, 4, 8)
_SETTLED = 1.2
"""Seconds after which a server has added up what its connections did."""
_BULK = 30_000


@dataclass(slots=True)
class _Rates:
    """What was measured of a side, each time; of a peer, ours next to it too."""

    sent: list[float] = field(default_factory=list)
    drained: list[float] = field(default_factory=list)
    by_four: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    our_sent: list[float] = field(default_factory=list)
    our_drained: list[float] = field(default_factory=list)
    our_by_four: list[float] = field(default_factory=list)

    def beside(self, us: _Rates) -> None:
        """Note what was last measured of us."""
        self.our_sent.append(us.sent[-1])
        self.our_drained.append(us.drained[-1])
        self.our_by_four.append(us.by_four[-1])


def throughput(bench: Bench) -> list[Row]:
    """Dispatch one by one, and drain; we take a turn beside every three of the others."""
    us, bare, found = _Rates(), _Rates(), defaultdict[SqlPeer, _Rates](_Rates)
    for number in range(bench.rounds):
        order: list[SqlPeer | None] = [None, *bench.sides]
        if number % 2:
            order.reverse()
        for index, peer in enumerate(order):
            if index % 3 == 0:
                _measure_us(bench, us)
            if peer is None:
                _measure_bare(bench, bare)
                bare.beside(us)
            else:
                _measure(bench, peer, found[peer])
                found[peer].beside(us)
    return [*_drain_rows(bench, found, bare, us), *_dispatch_rows(bench, found, bare)]


def _measure_us(bench: Bench, us: _Rates) -> None:
    jobs = bench.plan.sql_jobs
    with bench.place(bench.ours) as place:
        us.sent.append(place.produce("many", jobs))
        cost = place.drain(jobs)
    us.drained.append(cost.rate)
    us.cpu.append(cost.cpu)
    with bench.place(bench.ours) as place:
        place.produce("bulk", jobs)
        us.by_four.append(place.drain_by(_WORKERS, jobs))


def _measure(bench: Bench, peer: SqlPeer, rates: _Rates) -> None:
    # So many that each of four finds some, though the others have taken all they can.
    jobs = max(20, 2 * _WORKERS * (peer.many + peer.ahead), int(peer.jobs * bench.plan.sql_seconds))
    for workers in (1, _WORKERS):
        with bench.place(bench.sides[peer]) as place:
            sent = place.produce("many", jobs)
            if workers == 1:
                rates.sent.append(sent)
                rates.drained.append(place.drain(jobs).rate)
            else:
                rates.by_four.append(place.drain_by(workers, jobs))


def _measure_bare(bench: Bench, bare: _Rates) -> None:
    """Insert rows and claim and delete them, with nothing around the statements."""
    jobs = bench.plan.sql_jobs
    for clients in (1, _WORKERS):
        with bench.place(bench.ours) as place:
            place.produce("many", 1)
            sent = bench.server.bare_inserts(clients, jobs)
            drained = bench.server.bare_claims(clients, jobs)
        if clients == 1:
            bare.sent.append(sent)
            bare.drained.append(drained)
        else:
            bare.by_four.append(drained)


# -- the rows -------------------------------------------------------------------------------------

_Found = defaultdict[SqlPeer, _Rates]


def _drain_rows(bench: Bench, found: _Found, bare: _Rates, us: _Rates) -> list[Row]:
    def one(peer: SqlPeer, measure: str = "", at_least: float | None = None) -> Row:
        rates = found[peer]
        measure = measure or f"drain, {peer.name} ({peer.acks})"
        return compared(measure, rates.our_drained, rates.drained, per_second, at_least=at_least)

    def four(peer: SqlPeer) -> Row:
        rates = found[peer]
        measure = f"drain by four, {peer.name}"
        return noted(measure, rates.our_by_four, per_second, peer=rates.by_four)

    def row(peer: SqlPeer, make: Callable[[SqlPeer], Row], what: str) -> Row:
        return bench.absent(f"{what}, {peer.name}", peer) if peer in bench.missing else make(peer)

    everybody = bench.everybody()
    alone = [peer for peer in everybody if peer.acks == EACH]
    ceiling = bench.server.bare
    return [
        *(row(peer, one, "drain") for peer in everybody),
        hardest(bench, "drain, the fastest that acks each job", alone,
                lambda name, peer: one(peer, name, 1.5)),
        noted(f"drain, {ceiling}: claim and delete", bare.our_drained, per_second,
              peer=bare.drained),
        *(row(peer, four, "drain by four") for peer in everybody),
        noted(f"drain by four, {ceiling}: four clients", bare.our_by_four, per_second,
              peer=bare.by_four),
        noted("drain, processor time per job", us.cpu, microseconds),
    ]  # fmt: skip


def _dispatch_rows(bench: Bench, found: _Found, bare: _Rates) -> list[Row]:
    def row(measure: str, peer: SqlPeer, at_least: float | None = None) -> Row:
        if peer in bench.missing:
            return bench.absent(measure, peer)
        rates = found[peer]
        return compared(measure, rates.our_sent, rates.sent, per_second, at_least=at_least)

    firsts = [peer for peer in bench.everybody() if peer.first]
    python = [peer for peer in firsts if peer.python]
    return [
        *(row(f"dispatch, {peer.family}", peer) for peer in firsts),
        hardest(bench, "dispatch, the fastest Python peer", python,
                lambda name, peer: row(name, peer, 1.2)),
        noted(f"dispatch, {bench.server.bare}: insert", bare.our_sent, per_second, peer=bare.sent),
    ]  # fmt: skip


def hardest(
    bench: Bench, measure: str, peers: Sequence[SqlPeer], row: Callable[[str, SqlPeer], Row]
) -> Row:
    """Give the row of whoever does best against us."""
    here = [peer for peer in peers if peer in bench.sides]
    if not here:
        return Row(measure, "", "none of them is here")
    return min((row(f"{measure}: {peer.name}", peer) for peer in here), key=_ratio)


def _ratio(row: Row) -> float:
    return row.ratio or 0


# -- ours alone -----------------------------------------------------------------------------------


def processes(bench: Bench) -> list[Row]:
    """Drain one queue with ever more worker processes."""
    rates = defaultdict[int, list[float]](list)
    for number in alternated(_PROCESSES, bench.rounds):
        with bench.place(bench.ours) as place:
            place.produce("bulk", bench.plan.sql_jobs)
            rates[number].append(place.drain_by(number, bench.plan.sql_jobs))
    return [
        noted(f"drain by {number}, and by one", rates[number], per_second, peer=rates[1])
        for number in _PROCESSES[1:]
    ]


def bulk(bench: Bench) -> list[Row]:
    """Queue many at once."""
    with bench.place(bench.ours) as place:
        rates = [place.produce("bulk", bench.plan.bulk) for _ in range(bench.rounds)]
    found = sorted(rates)[len(rates) // 2]
    return [
        Row(f"bulk of {bench.plan.bulk:,}", per_second(found), target=f"at least {_BULK:,}/s",
            met=found >= _BULK, samples={"ours": rates})
    ]  # fmt: skip


def work_per_job(bench: Bench) -> list[Row]:
    """Count what the server does for a job of ours that is dispatched, queued in bulk, run."""
    jobs, server = bench.plan.sql_jobs, bench.server
    done: dict[str, Work] = {}
    with bench.place(bench.ours) as place:
        for what in ("dispatch", "bulk", "drain"):
            before = server.work()
            if what == "drain":
                place.drain(2 * jobs)
            else:
                place.produce("many" if what == "dispatch" else what, jobs)
            time.sleep(_SETTLED)
            done[what] = server.work().since(before, 2 * jobs if what == "drain" else jobs)
    return [
        noted(f"{what}, {kind} per job", [value], each_job)
        for what, work in done.items()
        for kind, value in (
            ("statements", work.statements),
            ("commits", work.commits),
            ("syncs of the log", work.syncs),
        )
    ]
