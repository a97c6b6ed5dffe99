"""Who is compared with many jobs at once in a process: how each is started at its best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import environments
from benchmarks.peers.sides import DRAMATIQ, QUIET_CELERY, TASKIQ, TASKIQ_TUNED
from benchmarks.places import Side, producing

REDIS, POSTGRES = "Redis", "PostgreSQL"
NO_OP, AWAITS, SLEEPS, MIX = "no-op", "awaits", "sleeps", "mix"
_ON_LOOP = (NO_OP, AWAITS, MIX)
MANY = 50
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, eq=False)
class ConcurrentPeer:
    """One peer. `of` says which measures are taken of it.

    `jobs` is about what it drains in a second, of those that do nothing. One without an
    `environment` is Debian's. One that acks jobs together is not `held` to a target: if it dies, it
    runs more again than were running.
    """

    name: str
    server: str
    jobs: int
    producer: tuple[str, ...]
    worker: tuple[str, ...]
    of: tuple[str, ...] = _ON_LOOP
    prepare: tuple[str, ...] = ()
    environment: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    python: bool = True
    held: bool = True

    def side(self, url: str) -> Side:
        """Give the side it takes; raises `NotHereError` where its packages cannot be had."""
        side = Side(
            self.name,
            self.producer,
            self.worker,
            prepare=self.prepare,
            environment={
                "BENCH_REDIS" if self.server == REDIS else "BENCH_SQL": url,
                "BENCH_MANY": str(MANY),
                "BENCH_TUNED": "yes",
                **self.settings,
            },
            stopped=False,
        )
        if not self.environment:
            return side
        return replace(side, programs=environments.programs(self.environment))


def _python(
    module: str, name: str, jobs: int, *worker: str, server: str = REDIS, **more: object
) -> ConcurrentPeer:
    path = f"benchmarks.peers.{module}"
    command = tuple(word.replace("APP", path) for word in worker)
    if server == POSTGRES:
        more["prepare"] = ("python", "-m", path, "tables")
    return ConcurrentPeer(
        name, server, jobs, producing(path), command, environment=module,
        **more,  # type: ignore[arg-type] # fields of a peer
    )  # fmt: skip


def _node(script: str, name: str, jobs: int, server: str, **more: object) -> ConcurrentPeer:
    path = str(_HERE / "node" / f"{script}.js")
    if server == POSTGRES:
        more["prepare"] = ("node", path, "tables")
    return ConcurrentPeer(
        name, server, jobs, ("node", path), ("node", path, "work"),
        environment=script, python=False,
        **more,  # type: ignore[arg-type] # fields of a peer
    )  # fmt: skip


def _sidekiq(threads: int, jobs: int, of: tuple[str, ...]) -> ConcurrentPeer:
    folder = _HERE / "sidekiq"
    return ConcurrentPeer(
        f"Sidekiq 6.4, {threads} threads (acks nothing)", REDIS, jobs,
        ("ruby", str(folder / "produce.rb")),
        ("sidekiq", "-c", str(threads), "-r", str(folder / "jobs.rb")),
        of=of, python=False,
    )  # fmt: skip


_CELERY = (*QUIET_CELERY, "-P", "threads", "-c", str(MANY))
_IN_THREADS = {"BENCH_THREADS": "yes"}
_SQL = ("python", "-m", "APP", "work")

PEERS = (
    _node("bullmq", "BullMQ, 50 at once", 12_000, REDIS),
    _sidekiq(10, 12_000, (NO_OP, MIX)),
    _sidekiq(MANY, 4000, (SLEEPS,)),
    _python("saq", "SAQ, 50 at once", 2500, "saq", "APP.settings"),
    _python(
        *("taskiq", "TaskIQ, 50 at once", 4000, *TASKIQ, *TASKIQ_TUNED),
        *("--max-async-tasks", str(MANY)),
    ),
    _python(
        *("taskiq", "TaskIQ, 50 threads", 2500, *TASKIQ, *TASKIQ_TUNED),
        *("--max-async-tasks", str(MANY), "--max-threadpool-threads", str(MANY)),
        of=(SLEEPS,),
        settings=_IN_THREADS,
    ),
    _python(
        *("arq", "ARQ, 50 at once", 2500),
        *("arq", "--custom-log-dict", "APP.QUIET", "APP.WorkerSettings"),
    ),
    _python("streaq", "streaq, 50 at once", 1500, "python", "-m", "APP"),
    _python(
        *("streaq", "streaq, 50 threads", 1000, "python", "-m", "APP"),
        of=(SLEEPS,),
        settings=_IN_THREADS,
    ),
    _python(
        *("dramatiq", "Dramatiq, 8 threads, prefetch 1,000", 6000, *DRAMATIQ, "-t", "8", "APP"),
        of=(NO_OP, MIX),
        settings={"dramatiq_queue_prefetch": "1000"},
    ),
    _python(
        *("dramatiq", "Dramatiq, 50 threads", 4000, *DRAMATIQ, "-t", str(MANY), "APP"),
        of=(SLEEPS,),
    ),
    _python(
        *("celery", "Celery, 50 threads (acks before the job)", 1500, *_CELERY),
        of=(NO_OP, SLEEPS, MIX),
    ),
    _node("bullmq", "BullMQ, 50 at once", 2000, POSTGRES),
    _node("graphile", "graphile-worker, 50 at once", 2500, POSTGRES),
    _python(
        *("pgqueuer", "PgQueuer, 50 at once (acks together)", 4000, *_SQL),
        server=POSTGRES,
        settings={"BENCH_MANY": str(MANY // 2), "BENCH_MOST": str(MANY)},
        held=False,
    ),
    _python("procrastinate", "Procrastinate, 50 at once", 800, *_SQL, server=POSTGRES),
    _python(
        *("oban", "Oban, 50 at once (acks together)", 3000, *_SQL), server=POSTGRES, held=False
    ),
    _python("saq", "SAQ, 50 at once", 500, "saq", "APP.settings", server=POSTGRES),
)  # fmt: skip
