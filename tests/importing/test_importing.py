"""What waits in Celery, RQ and Resque is moved once, whatever breaks, or stays with a reason."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import pytest
import redis
from pydantic import field_validator

from qframe import Queueable, QueueManager
from qframe.drivers.claims import PUSHED_WITHIN
from qframe.exceptions import BackendUnavailable
from qframe.importing import SOURCES, ImportRow, Mover, Names
from qframe.importing.mapping import pairs
from qframe.jobs.registry import Registry
from tests.support.redis_server import RedisServer

HERE = Path(__file__).parent
LATER = 4102444800  # 2100


class ShopAdd(Queueable):
    x: int
    y: int

    job_name = "shop.add"

    def handle(self) -> None: ...


class ShopAny(Queueable):
    args: list[Any]
    kwargs: dict[str, Any]

    job_name = "shop.any"

    def handle(self) -> None: ...


class ShopOnce(Queueable):
    x: int

    unique = True
    job_name = "shop.once"

    def handle(self) -> None: ...


class ShopPicky(Queueable):
    x: int

    job_name = "shop.picky"

    @field_validator("x")
    @classmethod
    def known(cls, x: int) -> int:
        return {2: 3}[x]

    def handle(self) -> None: ...


class Door:
    """A source, and a memory backend to move into."""

    def __init__(self, server: Any, url: str, queues: QueueManager) -> None:
        self.redis = server
        self.url = url
        self.queues = queues

    def load(self, program: str) -> None:
        """Put there what the program itself had written."""
        keys = json.loads((HERE / f"{program}.json").read_text())["keys"]
        for key, (kind, value) in keys.items():
            name, at = key.encode("latin-1"), _encoded(value)
            if kind == "hash":
                self.redis.hset(name, mapping=at)
            elif kind == "zset":
                self.redis.zadd(name, at)
            elif kind == "set":
                self.redis.sadd(name, *at)
            elif kind == "list":
                self.redis.rpush(name, *at)

    def mover(self, program: str, held: bool = False, **names: dict[str, str]) -> Mover:
        known = Names(self.queues.registry, names.get("jobs", {}), names.get("queues", {}))
        source = SOURCES[program](self.url, held=held)
        return Mover(self.queues, known, source, None)

    def waits(self, queue: str) -> list[dict[str, Any]]:
        jobs = self.queues.connection().reserve([queue], 100)
        return [job.payload for job in jobs]

    def ids(self, queue: str) -> list[str]:
        return [each["uuid"] for each in self.waits(queue)]

    def state(self) -> dict[bytes, bytes]:
        return {key: self.redis.dump(key) for key in self.redis.scan_iter()}


def _encoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {_encoded(k): _encoded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_encoded(each) for each in value]
    return value.encode("latin-1") if isinstance(value, str) else value


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("source")) as running:
        yield running


@pytest.fixture
def door(server: RedisServer, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr(Registry, "_allowed", lambda *_: True)  # the classes above
    client = redis.Redis.from_url(server.url)
    client.flushall()
    queues = QueueManager(
        {"default": "here", "root": fresh, "connections": {"here": {"driver": "memory"}}}
    )
    yield Door(client, server.url, queues)
    client.close()


def outcomes(counts: dict[ImportRow, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row, count in counts.items():
        found[row.outcome] = found.get(row.outcome, 0) + count
    return found


def reasons(counts: dict[ImportRow, int]) -> list[str]:
    return sorted(row.why for row in counts if row.outcome == "kept")


def test_celerys_messages_are_moved_and_what_cannot_be_stays(door: Door) -> None:
    door.load("celery")
    counts = door.mover("celery").move()
    assert outcomes(counts) == {"moved": 6, "kept": 5}
    assert [each.partition(":")[0].partition(" (did")[0] for each in reasons(counts)] == [
        "ShopAdd",  # an argument is missing
        "held by a worker (unacked)",
        "it has a chain, which only Celery's workers continue",
        "pickled, which is never read here",
        "shop.unknown is not a job of this project",
    ]
    moved = door.waits("celery")
    assert [each["uuid"] for each in moved] == ["add-0", "add-1", "add-2", "add-expires"]
    assert moved[1]["data"] == {"x": 1, "y": 10}
    assert moved[3]["expiresAt"] == LATER
    (mixed,) = door.waits("math")
    assert (mixed["data"], mixed["priority"]) == ({"x": 3, "y": 10}, 1025)
    assert door.queues.connection().sizes("later").delayed == 1
    left = [json.loads(each)["headers"]["id"] for each in door.redis.lrange("celery", 0, -1)]
    assert {"add-one", "add-pickled", "unknown-1"} < set(left)
    assert len(left) == 4  # the other is of the chain
    assert [json.loads(each)[2] for each in door.redis.hvals("unacked")] == ["running"]
    assert door.redis.zcard("unacked_index") == 1
    assert outcomes(door.mover("celery", held=True).move()) == {"moved": 1, "kept": 4}
    assert door.ids("running") == ["add-running"]


@pytest.mark.parametrize("program", ["celery", "rq"])
def test_a_dry_run_counts_and_changes_nothing(door: Door, program: str) -> None:
    door.load(program)
    before = door.state()
    tried = door.mover(program).move(dry_run=True)
    assert door.state() == before
    assert door.queues.connection().queues() == []
    assert tried == door.mover(program).move()


@pytest.mark.parametrize("program", ["celery", "rq"])
def test_what_is_kept_there_is_moved_once(door: Door, program: str) -> None:
    door.load(program)
    before = door.state()
    first = outcomes(door.mover(program).move(keep=True))
    assert door.state() == before
    again = outcomes(door.mover(program).move(keep=True))
    assert again == {"moved before": first["moved"], "kept": first["kept"]}
    assert outcomes(door.mover(program).move()) == again
    assert outcomes(door.mover(program).move()) == {"kept": first["kept"]}


@pytest.mark.parametrize("at", [0, 2, 5])
def test_a_move_that_dies_anywhere_is_gone_on_with(
    door: Door, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies after a push and before the removal, or between two jobs."""
    door.load("celery")
    mover = door.mover("celery")
    real = mover._pushed
    calls = iter(range(100))

    def dies(*args: Any, **more: Any) -> str:
        made = real(*args, **more)
        if next(calls) == at:
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(mover, "_pushed", dies)
    with pytest.raises(KeyboardInterrupt):
        mover.move()
    counts = outcomes(door.mover("celery").move())
    assert counts == {"moved": 5 - at, "moved before": 1, "kept": 5} if at < 5 else counts
    assert door.ids("celery") == ["add-0", "add-1", "add-2", "add-expires"]
    assert door.ids("math") == ["add-mixed"]


def test_two_at_once_push_each_job_once(door: Door) -> None:
    bodies = [json.dumps({"class": "shop.any", "args": [n % 5]}) for n in range(60)]
    door.redis.sadd("resque:queues", "q")
    door.redis.rpush("resque:queue:q", *bodies)
    ready = threading.Barrier(2)

    def run() -> None:
        mover = door.mover("resque")
        ready.wait()
        mover.move()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    door.mover("resque").move()  # what one had just marked when the other read it
    found = door.waits("q")
    assert len({each["uuid"] for each in found}) == len(found) == 60
    assert sorted(each["data"]["args"][0] for each in found) == sorted(n % 5 for n in range(60))
    assert door.redis.llen("resque:queue:q") == 0


@pytest.mark.parametrize("version", ["rq", "rq2"])  # 3.0 and 2.12
def test_rqs_jobs_are_moved_if_they_are_json(door: Door, version: str) -> None:
    door.load(version)
    counts = door.mover("rq", queues={"emails": "mail"}).move()
    assert outcomes(counts) == {"moved": 3, "kept": 4}
    assert [each.partition(":")[0] for each in reasons(counts)] == [
        "ShopAdd has 2 fields, not 3",
        "it waits for another job",
        "other jobs wait for it",
        "pickled, which is never read here",
    ]
    assert door.ids("mail") == ["rq-2"]
    connection = door.queues.connection()
    assert (connection.sizes("mail").delayed, connection.sizes("soon").delayed) == (1, 1)
    assert door.redis.lrange("rq:queue:emails", 0, -1) == [b"rq-1", b"rq-many", b"rq-pickled"]
    assert not door.redis.exists("rq:job:rq-2", "rq:job:rq-later", "rq:scheduled:emails")
    assert door.redis.exists("rq:job:rq-pickled")


def test_resques_jobs_of_php_and_ruby_are_moved(door: Door) -> None:
    php = {
        "class": "Add",
        "args": [{"x": 1, "y": 2}],
        "id": "a" * 32,
        "prefix": "",
        "queue_time": 1,
    }
    ruby = {"class": "Add", "args": [3, 4]}
    later = json.dumps({"class": "Add", "args": [5, 6], "queue": "math"})
    door.redis.sadd("resque:queues", "math")
    bodies = [php, ruby, ruby, {"class": "Add", "args": ["x", 1]}]
    door.redis.rpush("resque:queue:math", *map(json.dumps, bodies), "nonsense")
    door.redis.rpush(f"resque:delayed:{LATER}", later)
    door.redis.sadd(f"resque:timestamps:{later}", f"delayed:{LATER}")
    door.redis.zadd("resque:delayed_queue_schedule", {str(LATER): LATER})
    before = door.state()
    mover = door.mover("resque", jobs={"Add": "shop.add"})
    assert outcomes(mover.move(dry_run=True)) == {"moved": 4, "kept": 2}
    assert door.state() == before
    assert outcomes(mover.move()) == {"moved": 4, "kept": 2}
    found = door.waits("math")
    assert [each["data"] for each in found] == [
        {"x": 1, "y": 2},
        {"x": 3, "y": 4},
        {"x": 3, "y": 4},
    ]
    assert found[0]["uuid"] == "a" * 32
    assert door.queues.connection().sizes("math").delayed == 1
    left = door.redis.lrange("resque:queue:math", 0, -1)
    assert [each[:8] for each in left] == [b'{"class"', b"nonsense"]
    assert sorted(door.redis.keys()) == [b"resque:queue:math", b"resque:queues"]


def test_equal_jobs_without_an_id_are_moved_each_by_itself_after_a_death(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    door.redis.sadd("resque:queues", "q")
    door.redis.rpush("resque:queue:q", *[json.dumps({"class": "shop.any", "args": [1]})] * 3)
    mover = door.mover("resque")
    real = mover._pushed

    def dies(*args: Any, **more: Any) -> str:
        real(*args, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(mover, "_pushed", dies)
    with pytest.raises(KeyboardInterrupt):
        mover.move()
    assert outcomes(door.mover("resque").move()) == {"moved before": 1, "moved": 2}
    assert len(set(door.ids("q"))) == 3


def test_a_class_with_args_and_kwargs_takes_any_call(door: Door) -> None:
    door.load("celery")
    door.mover("celery", jobs={"shop.unknown": "shop.any"}).move()
    (found,) = [each for each in door.waits("celery") if each["job"] == "shop.any"]
    assert found["data"] == {"args": [1], "kwargs": {}}


class ShopTyped(Queueable):
    at: datetime
    of: list[UUID]

    job_name = "shop.typed"

    def handle(self) -> None: ...


def test_values_that_celery_names_the_type_of_fit_fields_of_that_type(door: Door) -> None:
    at = {"__type__": "datetime", "__value__": "2026-11-27T12:00:00+00:00"}
    of = [{"__type__": "uuid", "__value__": {"hex": "0" * 32, "version": 4}}]
    body = {"class": "shop.typed", "args": [at, of]}
    door.redis.sadd("resque:queues", "q")
    door.redis.rpush("resque:queue:q", json.dumps(body))
    assert outcomes(door.mover("resque").move()) == {"moved": 1}
    (found,) = door.waits("q")
    assert found["data"] == {"at": "2026-11-27T12:00:00Z", "of": [str(UUID(int=0))]}


def test_of_equal_unique_jobs_one_is_queued(door: Door) -> None:
    door.redis.sadd("resque:queues", "q")
    for number in range(2):
        body = {"class": "shop.once", "args": [{"x": 1}], "id": str(number)}
        door.redis.rpush("resque:queue:q", json.dumps(body))
    assert outcomes(door.mover("resque").move()) == {"moved": 1, "equal one waits": 1}
    assert len(door.ids("q")) == 1


def test_a_push_that_fails_removes_nothing(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    door.load("celery")
    before = door.state()

    def away(*_: object, **__: object) -> str:
        raise BackendUnavailable("here is away")

    monkeypatch.setattr(door.queues.connection(), "push_envelope", away)
    with pytest.raises(BackendUnavailable):
        door.mover("celery").move()
    assert door.state() == before


@pytest.mark.parametrize("is_pushed", [False, True], ids=["before", "behind"])
def test_a_move_that_is_killed_around_its_push_loses_and_doubles_nothing(
    door: Door, fresh: Path, monkeypatch: pytest.MonkeyPatch, is_pushed: bool
) -> None:
    """Where keys are apart from the messages, one without the other is no job that was moved."""
    door.load("celery")
    connections = {"here": {"driver": "memory"}, "keys": {"driver": "memory"}}
    given = {"default": "here", "root": fresh, "connections": connections}
    door.queues = QueueManager({**given, "store": {"driver": "keys"}})
    backend: Any = door.queues.connection().backend
    push = backend.messages.apply

    def killed(*steps: Any) -> NoReturn:
        if is_pushed:
            push(*steps)
        monkeypatch.setattr(backend.facts, "apply", dead)  # nor is anything cleared up
        raise KeyboardInterrupt

    def dead(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as killing:
        killing.setattr(backend.messages, "apply", killed)
        with pytest.raises(KeyboardInterrupt):
            door.mover("celery").move()
        killing.undo()
    monkeypatch.undo()
    monkeypatch.setattr(Registry, "_allowed", lambda *_: True)
    assert outcomes(door.mover("celery").move(dry_run=True))["moved"] == 6
    backend.facts.timing.skew += PUSHED_WITHIN + 1
    assert outcomes(door.mover("celery").move()) == {"moved": 6, "kept": 5}
    found = door.queues.connection().reserve(["celery", "math"], 100)
    counted = [job for job in found if job.skip_reason() is None]
    assert len(found) == 5 + is_pushed  # one is delayed
    assert len(counted) == 5
    again = door.mover("celery").move()
    assert outcomes(again) == {"kept": 5}


def test_a_source_that_refuses_a_removal_is_away(door: Door) -> None:
    door.load("celery")
    door.redis.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(BackendUnavailable, match=r"^celery: .*NOREPLICAS"):
            door.mover("celery").move()
    finally:
        door.redis.config_set("min-replicas-to-write", 0)
    counts = outcomes(door.mover("celery").move())
    assert counts == {"moved": 5, "moved before": 1, "kept": 5}


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"eta": float("inf")}, "its eta is no time"),
        ({"eta": float("nan")}, "its eta is no time"),
        ({"eta": 10**400}, "its eta is no time"),
        ({"eta": "9999-12-31T00:00:00"}, "due in more than 100 years"),
        ({"expires": 10**400}, "expires is no time"),
        ({"expires": float("nan")}, "expires is no time"),
        ({"task": "shop.picky"}, "ShopPicky: KeyError: 1"),
    ],
)
def test_what_makes_no_sense_stays_and_ends_nothing(
    door: Door, headers: dict[str, Any], why: str
) -> None:
    for each in (headers, {}):
        message = {
            "headers": {"task": "shop.add", "id": str(each), **each},
            "content-type": "application/json",
            "properties": {},
            "body": json.dumps([[1, 2] if each.get("task") is None else [1], {}, {}]),
        }
        door.redis.rpush("celery", json.dumps(message))
    counts = door.mover("celery").move()
    assert outcomes(counts) == {"kept": 1, "moved": 1}
    assert why in reasons(counts)[0]


def test_hostile_messages_stay(door: Door) -> None:
    bodies: list[Any] = [None, [], {}, {"headers": 5}, {"headers": {"task": "shop.add", "id": "x"}}]
    deep = "[" * 100_000
    for each in [*map(json.dumps, bodies), deep, "\xff"]:
        door.redis.lpush("celery", each)
        door.redis.hset("unacked", each[:50], each)
    counts = door.mover("celery").move()
    assert outcomes(counts) == {"kept": 14}


def test_names_come_from_the_command_and_from_files(tmp_path: Path) -> None:
    file = tmp_path / "names.toml"
    file.write_text('"a.b" = "c.d"\n')
    assert pairs("--map", [str(file), "e=f"]) == {"a.b": "c.d", "e": "f"}


def test_the_command_tells_what_stays_and_exits_1(
    server: RedisServer, tmp_path: Path, door: Door, make_project: Callable[..., Any]
) -> None:
    door.load("celery")
    with make_project(tmp_path) as project:
        project.write(
            "shop.py",
            "from qframe import queueable\n\n"
            "@queueable\ndef add(x: int, y: int) -> int:\n    return x + y\n",
        )
        tried = project.qframe("import", "celery", server.url, "--dry-run", "--json")
        assert (tried.code, len(json.loads(tried.out))) == (1, 8)
        moved = project.qframe("import", "celery", server.url, "--queue", "celery=default")
        assert (moved.code, "5 cannot be moved" in moved.err) == (1, True)
        assert "pickled, which is never read here" in moved.out
        ran = project.qframe("work", "--queue", "default,math", "--stop-when-empty")
        assert ran.out.count("DONE") == 5
        wrong = project.qframe("import", "celery", server.url, "--map", "x")
        assert (wrong.code, "--map takes OLD=NEW" in wrong.one_line()) == (2, True)


@pytest.fixture
def make_project() -> Callable[..., Any]:
    from tests.support.process import Project

    return lambda folder: Project(folder, driver="database")
