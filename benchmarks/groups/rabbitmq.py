"""One worker process on RabbitMQ beside Celery's, Dramatiq's and TaskIQ's."""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import environments, report
from benchmarks.peers.sides import DRAMATIQ, QUIET_CELERY, TASKIQ, TASKIQ_TUNED
from benchmarks.places import Drained, NotHereError, Place, Side, our_side, producing
from benchmarks.plan import Plan
from benchmarks.rows import Row, alternated, compared, microseconds, per_second
from benchmarks.said import versions
from tests.support.rabbitmq_server import RabbitmqServer

TITLE = "RabbitMQ, one worker process, no-op jobs; all sides on one private server of one node"

_SAFE = {"BENCH_SAFE": "yes"}
_QUORUM = {**_SAFE, "BENCH_QUORUM": "yes"}
_QUEUES = ("qframe.default", "celery", "default", "default.DQ", "default.XQ", "taskiq")
"""What the sides leave behind."""


@dataclass(frozen=True, slots=True, eq=False)
class _Peer:
    """One peer. One that is not `safe` may lose jobs, or acks them before they run."""

    name: str
    module: str
    worker: tuple[str, ...]
    environment: str
    settings: Mapping[str, str] = field(default_factory=dict)
    safe: bool = True

    def side(self, url: str) -> Side:
        """Give the side it takes; raises `NotHereError` where its packages cannot be had."""
        module = f"benchmarks.peers.{self.module}"
        return Side(
            self.name,
            producing(module),
            tuple(word.replace("APP", module) for word in self.worker),
            environment={"BENCH_RABBITMQ": url, "BENCH_TUNED": "yes", **self.settings},
            programs=environments.programs(self.environment),
            stopped=False,
        )


_CELERY = ("celery", (*QUIET_CELERY, "-P", "solo", "-c", "1"), "celery")
_DRAMATIQ = ("dramatiq", (*DRAMATIQ, "-t", "8", "APP"), "dramatiq_rabbitmq")
_PEERS = (
    _Peer("Celery, solo, as it comes: no confirms, acks early", *_CELERY, safe=False),
    _Peer("Celery, solo", *_CELERY, _SAFE),
    _Peer("Celery, solo, quorum queue", *_CELERY, _QUORUM),
    _Peer("Dramatiq, 8 threads, as it comes: no confirms", *_DRAMATIQ, safe=False),
    _Peer("Dramatiq, 8 threads", *_DRAMATIQ, _SAFE),
    _Peer("TaskIQ, quorum queue", "taskiq", (*TASKIQ, *TASKIQ_TUNED), "taskiq_rabbitmq"),
)
_AT_ONCE = 50
_ROUNDS = 3
_PRODUCERS = 3
"""How many processes dispatch what is drained beside what was dispatched one by one."""
_KEPT = 0.8
"""The part of the jobs that are waited for: those as they come lose some that are not confirmed."""
_BEGUN = 5
"""The part of the jobs that run before anything counts: by then a worker has its pace."""


@dataclass(slots=True)
class _Rates:
    """What was measured of a side in each round."""

    sent: list[float] = field(default_factory=list)
    drains: list[Drained] = field(default_factory=list)

    @property
    def drained(self) -> list[float]:
        """Give how many jobs a second."""
        return [each.rate for each in self.drains]

    @property
    def used(self) -> list[float]:
        """Give the processor time of each job."""
        return [each.cpu for each in self.drains]


def _ours(url: str, *more: str) -> Side:
    return our_side("rabbitmq", f'url = "{url}"\nprefix = "qframe."\n', *more)


def _async_jobs(side: Side) -> Side:
    """Give our side with jobs that are coroutines."""
    files = {name: text.replace("qframe_jobs", "async_jobs") for name, text in side.files.items()}
    return replace(side, producer=producing("benchmarks.apps.async_producer"), files=files)


def facts() -> dict[str, str]:
    """Name the versions compared."""
    pinned = {
        name: environments.pinned(of)[name]
        for name, of in (
            ("celery", "celery"),
            ("dramatiq", "dramatiq_rabbitmq"),
            ("taskiq-aio-pika", "taskiq_rabbitmq"),
        )
    }
    return {**versions("RabbitMQ"), **report.installed("amqp", "pydantic"), **pinned}


def rows(plan: Plan) -> list[Row]:
    """Dispatch one by one, fill up, and drain; each side once a round, we first or last."""
    with (
        tempfile.TemporaryDirectory(prefix="qframe-bench-rabbitmq-") as folder,
        RabbitmqServer(Path(folder)) as server,
    ):
        return _measured(plan, server)


def _measured(plan: Plan, server: RabbitmqServer) -> list[Row]:
    one, crowded = _ours(server.url), _ours(server.url, "--concurrency", str(_AT_ONCE))
    missing: dict[_Peer, str] = {}
    sides: dict[_Peer | str, Side] = {"one": one, "many": crowded, "async": _async_jobs(crowded)}
    for peer in _PEERS:
        try:
            if plan.alone:
                raise NotHereError("left out")
            sides[peer] = peer.side(server.url)
        except NotHereError as error:
            missing[peer] = str(error)
    found: dict[_Peer | str, _Rates] = defaultdict(_Rates)
    one_by_one, jobs = max(20, plan.jobs // 2), plan.jobs * 2
    for each in alternated([*sides], min(plan.rounds, _ROUNDS)):
        with _place(server, sides[each]) as place:
            found[each].sent.append(place.produce("many", one_by_one))
            _fill(place, jobs - one_by_one)
            found[each].drains.append(place.drain(int(jobs * _KEPT), after=jobs // _BEGUN))
    us, crowd, on_loop = found["one"], found["many"], found["async"]
    many = f"drain, {_AT_ONCE} at once"
    table = [
        compared(f"{many}, one at a time", crowd.drained, us.drained, per_second),
        compared(f"{many}, async def, and def", on_loop.drained, crowd.drained, per_second),
        compared(f"{many}, processor time, the same", on_loop.used, crowd.used, microseconds),
    ]
    for peer in _PEERS:
        if peer in missing:
            table += [
                Row(f"{what}, {peer.name}", "", missing[peer]) for what in ("drain", "dispatch")
            ]
            continue
        drained, sent = (3, 1.5) if peer.safe else (None, None)
        rates = found[peer]
        table += [
            compared(f"drain, {peer.name}", us.drained, rates.drained, per_second),
            compared(
                f"{many}, {peer.name}", crowd.drained, rates.drained, per_second, at_least=drained
            ),
            compared(f"dispatch, {peer.name}", us.sent, rates.sent, per_second, at_least=sent),
        ]
    return table


def _fill(place: Place, jobs: int) -> None:
    """Dispatch so many jobs and no fewer, by several processes at once."""
    each = -(-jobs // _PRODUCERS)
    with ThreadPoolExecutor(_PRODUCERS) as pool:
        list(pool.map(lambda count: place.produce("many", count), [each] * _PRODUCERS))


@contextlib.contextmanager
def _place(server: RabbitmqServer, side: Side) -> Iterator[Place]:
    """Give a place for a side, with nothing else on the server."""
    server.delete(*_QUEUES)
    with Place(side) as place:
        yield place
