"""Who is compared on PostgreSQL and MariaDB: how each is started, and what it promises."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import environments
from benchmarks.places import Side, producing

EACH, TOGETHER = "acks each job by itself", "acks jobs together"
BEFORE = "acks each job before it runs"
_POSTGRES, _MARIADB = "PostgreSQL", "MariaDB"
_BOTH = (_POSTGRES, _MARIADB)
_HERE = Path(__file__).parent

PACKAGES = {
    "pgqueuer": "pgqueuer",
    "procrastinate": "procrastinate",
    "oban": "oban",
    "django": "django-tasks-db",
    "celery_sql": "celery",
    "pgboss": "pg-boss",
    "graphile": "graphile-worker",
}
"""Which package of an environment is the peer."""


@dataclass(frozen=True, slots=True, eq=False)
class SqlPeer:
    """One peer, set up as its documentation says is fastest with what it promises of its acks.

    `jobs` is about what it drains in a second, or less where that would take long to dispatch;
    `many` what a worker has at once, `ahead` what it takes besides. `first` of a family stands for
    its dispatch, latency and memory. One without an `environment` is Debian's.
    """

    name: str
    acks: str
    jobs: int
    producer: tuple[str, ...]
    worker: tuple[str, ...]
    prepare: tuple[str, ...]
    many: int = 1
    ahead: int = 0
    environment: str = ""
    python: bool = True
    first: bool = True
    servers: tuple[str, ...] = (_POSTGRES,)

    @property
    def family(self) -> str:
        """Name it without the kind of its worker."""
        return self.name.partition(",")[0]

    def side(self, url: str) -> Side:
        """Give the side it takes; raises `NotHereError` where its packages cannot be had."""
        environment = {"BENCH_SQL": url, "BENCH_MANY": str(self.many)}
        if self.acks == TOGETHER:
            environment["BENCH_TOGETHER"] = "yes"
        side = Side(
            self.name,
            self.producer,
            self.worker,
            prepare=self.prepare,
            environment=environment,
            stopped=False,
        )
        if not self.environment:
            return side
        return replace(side, programs=environments.programs(self.environment))


def _python(
    module: str, name: str, acks: str, jobs: int, *, many: int = 1, **more: object
) -> SqlPeer:
    path = f"benchmarks.peers.{module}"
    return SqlPeer(
        name, acks, jobs, producing(path),
        ("python", "-m", path, "work"), ("python", "-m", path, "tables"),
        many=many, environment=module,
        **more,  # type: ignore[arg-type] # fields of a peer
    )  # fmt: skip


def _node(module: str, name: str, acks: str, jobs: int, **more: object) -> SqlPeer:
    path = str(_HERE / "node" / f"{module}.js")
    return SqlPeer(
        name, acks, jobs, ("node", path), ("node", path, "work"), ("node", path, "tables"),
        environment=module, python=False,
        **more,  # type: ignore[arg-type] # fields of a peer
    )  # fmt: skip


def _php(script: str) -> tuple[str, ...]:
    return ("php", str(_HERE / "laravel" / f"{script}.php"))


PEERS: tuple[SqlPeer, ...] = (
    _python("pgqueuer", "PgQueuer, batches of 1", EACH, 300, many=1),
    _python("pgqueuer", "PgQueuer, batches of 100", TOGETHER, 1000, many=100, first=False),
    _python("procrastinate", "Procrastinate, 10 at once", EACH, 300, many=10),
    _python("oban", "Oban, 1 at once", EACH, 200, many=1, first=False),
    _python("oban", "Oban, 50 at once", TOGETHER, 1000, many=50),
    _python("django", "django-tasks-db", EACH, 150, servers=_BOTH),
    _python("celery_sql", "Celery on SQLAlchemy", BEFORE, 100, servers=_BOTH),
    _node("pgboss", "pg-boss, 10 at once", EACH, 300, many=10),
    _node("pgboss", "pg-boss, batches of 100", TOGETHER, 750, many=100, first=False),
    _node("graphile", "graphile-worker, 10 at once", EACH, 750, many=10),
    _node("graphile", "graphile-worker, batches", TOGETHER, 1500, many=24, ahead=500, first=False),
    SqlPeer(
        "Laravel 8, PHP", EACH, 500, _php("produce"), _php("work"), _php("tables"),
        python=False, servers=_BOTH,
    ),
)  # fmt: skip
