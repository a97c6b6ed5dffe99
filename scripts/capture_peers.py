"""Writes tests/importing/*.json anew: what Celery and RQ themselves put into a Redis.

It also writes tests/drivers/rabbitmq/celery.json: what Celery publishes.

    python -m venv peers && peers/bin/pip install celery redis rq
    peers/bin/python scripts/capture_peers.py redis://127.0.0.1:6379/15

With `rq<3` it writes rq2.json. It empties that database. Each file has the keys of one program,
with their types and values, bytes in Latin-1, and the versions that wrote them.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import redis
from celery import Celery, chain, signature
from kombu import Producer
from rq import Queue
from rq.serializers import JSONSerializer

_HERE = Path(__file__).parents[1] / "tests" / "importing"
_LATER = datetime(2100, 1, 1, tzinfo=UTC)
_KINDS: dict[str, dict[str, Any]] = {
    "plain": {"args": (1,), "kwargs": {"y": 2}},
    "later": {"eta": _LATER},
    "expired": {"expires": datetime(2020, 1, 1, tzinfo=UTC)},
    "retried": {"retries": 2},
    "limited": {"soft_time_limit": 20, "time_limit": 30, "shadow": "the sum"},
    "gzip": {"compression": "gzip"},
    "bzip2": {"compression": "bzip2"},
    "lzma": {"compression": "lzma"},
    "pickled": {"serializer": "pickle"},
    "linked": {"link": signature("shop.add", (1,))},
    "chained": {"chain": [signature("shop.add", (3,))]},
}


def celery(url: str) -> None:
    """Messages of all kinds: plain, with priorities, an eta, in a chain, and pickled."""
    app = Celery("shop", broker=url)
    app.conf.update(broker_transport_options={"priority_steps": [0, 3, 6, 9]}, result_backend=url)
    app.conf.accept_content = ["json", "pickle"]

    @app.task(name="shop.add")  # type: ignore[untyped-decorator] # Celery has no types
    def add(x: int, y: int) -> int:
        return x + y

    for number in range(3):
        add.apply_async((number, 10), task_id=f"add-{number}")
    add.apply_async((3,), {"y": 10}, task_id="add-mixed", queue="math", priority=3)
    add.apply_async((4, 10), task_id="add-expires", expires=_LATER)
    app.send_task("shop.add", (1,), task_id="add-one")  # which checks no arguments
    app.send_task("shop.unknown", (1,), task_id="unknown-1")
    chain(add.s(5, 10), add.s(1)).apply_async(task_id="add-chained")
    add.apply_async((6, 10), task_id="add-pickled", serializer="pickle")
    add.apply_async((7, 10), task_id="add-later", eta=_LATER, queue="later")
    add.apply_async((8, 10), task_id="add-running", queue="running")
    with app.connection_for_read() as connection:
        channel = connection.channel()
        for queue in ("later", "running"):
            channel.basic_get(queue)  # held, as by a worker
        _write(url, "celery")
        os._exit(0)  # at its close, the channel would put back what it holds


def amqp(_: str) -> None:
    """The parts of messages of all kinds, as Celery gives them to kombu."""
    app = Celery("shop", broker="memory://", backend="cache+memory://")
    found: dict[str, Any] = {}

    @app.task(name="shop.add")  # type: ignore[untyped-decorator] # Celery has no types
    def add(x: int, y: int) -> int:
        return x + y

    class Recorder(Producer):  # type: ignore[misc] # kombu has no types
        def _publish(self, *parts: Any, **_: Any) -> None:  # noqa: ANN401 (kombu's)
            body, _, kind, encoding, headers, properties = parts[:6]
            raw = body.encode() if isinstance(body, str) else body
            found[headers["id"].removeprefix("add-")] = {
                "body": base64.b64encode(raw).decode(),
                "content_type": kind,
                "content_encoding": encoding,
                "headers": headers,
                "properties": {"correlation_id": properties["correlation_id"]},
            }

    with app.connection_for_write() as connection:
        for name, options in _KINDS.items():
            given = {"args": (1, 2), "task_id": f"add-{name}", **options}
            add.apply_async(producer=Recorder(connection), **given)
    text = json.dumps(found, indent=1, sort_keys=True, default=str)
    (_HERE.parent / "drivers" / "rabbitmq" / "celery.json").write_text(text + "\n")


def rq(url: str) -> None:
    """Jobs by JSON, by pickle, scheduled, deferred."""
    connection = redis.Redis.from_url(url)
    queue = Queue("emails", connection=connection, serializer=JSONSerializer)
    first = queue.enqueue("shop.add", 1, y=2, job_id="rq-1")
    queue.enqueue("shop.add", 3, 4, job_id="rq-2", job_timeout=50)
    queue.enqueue_at(_LATER, "shop.add", 5, 6, job_id="rq-later")
    queue.enqueue("shop.add", 7, 8, job_id="rq-after", depends_on=first)
    queue.enqueue("shop.add", 1, 2, 3, job_id="rq-many")
    Queue("emails", connection=connection).enqueue("shop.add", 9, 10, job_id="rq-pickled")
    Queue("soon", connection=connection, serializer=JSONSerializer).enqueue_in(
        timedelta(days=20_000), "shop.add", 1, 1, job_id="rq-in"
    )
    _write(url, "rq2" if version("rq").startswith("2.") else "rq")


def _write(url: str, name: str) -> None:
    connection: Any = redis.Redis.from_url(url)
    read: dict[str, Callable[[bytes], Any]] = {
        "list": lambda key: [_text(each) for each in connection.lrange(key, 0, -1)],
        "set": lambda key: sorted(map(_text, connection.smembers(key))),
        "hash": lambda key: {_text(k): _text(v) for k, v in connection.hgetall(key).items()},
        "zset": lambda key: {_text(k): score for k, score in connection.zscan_iter(key)},
        "string": lambda key: _text(connection.get(key)),
    }
    keys = {}
    for key in sorted(connection.keys()):
        kind = connection.type(key).decode()
        if kind in read:
            keys[_text(key)] = [kind, read[kind](key)]
    versions = {each: version(each) for each in ("celery", "kombu", "rq", "redis")}
    text = json.dumps({"versions": versions, "keys": keys}, indent=1)
    (_HERE / f"{name}.json").write_text(text + "\n")


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def main() -> None:
    """Run each capture in its own process, on an emptied database."""
    captures: dict[str, Callable[[str], None]] = {"celery": celery, "amqp": amqp, "rq": rq}
    url = sys.argv[1]
    for capture in captures.values():
        redis.Redis.from_url(url).flushdb()
        if os.fork() == 0:
            capture(url)
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    main()
