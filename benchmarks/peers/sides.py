"""Who is compared on Redis: how each is started, what it promises, and how it is tuned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import environments
from benchmarks.places import Side, producing

_HERE = Path(__file__).parent

AFTER, BEFORE, NEVER = "acks after the job", "acks before the job", "acks nothing"


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """One peer, as it comes but quiet; `tuned` and `settings` are added to let it drain its best.

    `jobs` is about what it drains in a second. `first` of a family stands for its dispatch and
    its latency. One without an `environment` is not written in Python.
    """

    name: str
    acks: str
    jobs: int
    producer: tuple[str, ...]
    worker: tuple[str, ...]
    tuned: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: str = ""
    first: bool = True

    @property
    def family(self) -> str:
        """Name it without the kind of its worker."""
        return self.name.partition(",")[0]

    def side(self, redis: str) -> Side:
        """Give the side it takes; raises `NotHereError` where its packages cannot be had."""
        side = Side(
            self.name,
            self.producer,
            self.worker,
            environment={"BENCH_REDIS": redis},
            stopped=False,
        )
        if not self.environment:
            return side
        return replace(side, programs=environments.programs(self.environment))

    def at_its_best(self, side: Side) -> Side:
        """Give its side as it drains best."""
        return replace(
            side,
            worker=(*side.worker, *self.tuned),
            environment={**side.environment, **self.settings, "BENCH_TUNED": "yes"},
        )


def _python(module: str, name: str, acks: str, jobs: int, *worker: str, **more: object) -> Peer:
    command = tuple(word.replace("APP", f"benchmarks.peers.{module}") for word in worker)
    return Peer(
        name, acks, jobs, producing(f"benchmarks.peers.{module}"), command, environment=module,
        **more,  # type: ignore[arg-type] # fields of a Peer
    )  # fmt: skip


QUIET_CELERY = (
    *("celery", "-A", "APP", "worker", "-l", "ERROR"),
    *("--without-gossip", "--without-mingle", "--without-heartbeat"),
)
_CELERY = (*QUIET_CELERY, "-c", "1")
_RQ = ("rq", "worker", "-q", "-c", "APP")
DRAMATIQ = ("dramatiq", "-p", "1")
_DRAMATIQ = (*DRAMATIQ, "-t", "8", "APP")
TASKIQ = ("taskiq", "worker", "-w", "1", "--log-level", "ERROR", "APP:broker")
TASKIQ_TUNED = ("--no-parse", "--max-prefetch", "100")
_JIT = ("opcache.enable_cli=1", "opcache.jit=tracing", "opcache.jit_buffer_size=64M")
_PHP = ("php", *(word for setting in _JIT for word in ("-d", setting)))
_PUSH = str(_HERE / "laravel" / "produce.php")
_WORK = str(_HERE / "laravel" / "work.php")

PEERS = (
    _python("celery", "Celery, solo", BEFORE, 900, *_CELERY, "-P", "solo"),
    _python("celery", "Celery, prefork 1", BEFORE, 900, *_CELERY, "-P", "prefork", first=False),
    _python("rq", "RQ, SimpleWorker", AFTER, 250, *_RQ, "-w", "rq.SimpleWorker", "default"),
    _python("rq", "RQ, a fork per job", AFTER, 50, *_RQ, "default", first=False),
    _python("dramatiq", "Dramatiq, 8 threads", AFTER, 2000, *_DRAMATIQ),
    _python(
        *("dramatiq", "Dramatiq, the same, prefetch 1,000", AFTER, 2500, *_DRAMATIQ),
        settings={"dramatiq_queue_prefetch": "1000"},
        first=False,
    ),
    _python("huey", "Huey", NEVER, 4000, "huey_consumer", "-q", "-w", "1", "APP.huey"),
    _python("saq", "SAQ", AFTER, 1500, "saq", "APP.settings"),
    _python(
        "arq", "ARQ", AFTER, 1500, "arq", "--custom-log-dict", "APP.QUIET", "APP.WorkerSettings"
    ),
    _python(
        *("taskiq", "TaskIQ, streams", AFTER, 2500, *TASKIQ),
        tuned=TASKIQ_TUNED,
    ),
    _python("streaq", "streaq", AFTER, 1000, "python", "-m", "APP"),
)
LARAVEL = Peer("Laravel 8, PHP", AFTER, 5000, ("php", _PUSH), ("php", _WORK))
LARAVEL_JIT = Peer(
    "Laravel 8, PHP with opcache and JIT", AFTER, 5000,
    (*_PHP, _PUSH), (*_PHP, _WORK), first=False,
)  # fmt: skip
SIDEKIQ = Peer(
    "Sidekiq 6.4, one thread", NEVER, 7000,
    ("ruby", str(_HERE / "sidekiq" / "produce.rb")),
    ("sidekiq", "-c", "1", "-r", str(_HERE / "sidekiq" / "jobs.rb")),
)  # fmt: skip
