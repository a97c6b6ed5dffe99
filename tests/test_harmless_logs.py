"""What comes from a payload writes no line of its own: in logs, on the console, in traces."""

from __future__ import annotations

import io
import json
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from qframe import Queueable, QueueManager, Worker, WorkerOptions, manager
from qframe.contracts.step import Push, Step
from qframe.drivers.database.engine import shown
from qframe.exceptions import ConfigurationError
from qframe.otel import attributes
from qframe.payload import envelope

FORGED = "\n2026-01-01 00:00:00,000 CRITICAL forged\x1b[2J\x1b]0;x\x07\r\u202e\u2028"


class Says(Queueable):
    job_name = "tests.test_harmless_logs.Says"
    text: str = ""

    def handle(self) -> None:
        logging.getLogger("qframe").warning("said %s", self.text)
        raise ValueError(self.text) from RuntimeError(self.text)

    def failed(self, error: BaseException) -> None:
        raise LookupError(self.text)


def payload(**keys: object) -> bytes:
    said = {"uuid": "u", "job": "tests.test_harmless_logs.Says", "data": {"text": FORGED}}
    return json.dumps({**said, "maxTries": 1, **keys}).encode()


HOSTILE = [
    payload(),
    payload(uuid=f"u{FORGED}"),
    payload(uuid=f"v{FORGED}", track=60, unique={"key": f"unique:{FORGED}", "for": 9}),
    payload(displayName=f"name{FORGED}", tags=[f"tag{FORGED}"]),
    payload(job=f"tests.test_harmless_logs.Says{FORGED}"),
    payload(job=f"Says@{FORGED}"),
    payload(data={f"key{FORGED}": 1}),
    payload(data={"text": {FORGED: FORGED}}),
    payload(chain={"id": FORGED}, batch={"id": FORGED}, schedule={"name": FORGED, "at": 1}),
    payload(schedule={"name": FORGED, "at": 1.0, "number": 1, "zone": FORGED, "scope": FORGED}),
    payload(timeout=FORGED, backoff=FORGED, retryUntil=FORGED),
    b"{" + FORGED.encode(),
    FORGED.encode(),
]  # fmt: skip


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Give what the root logger writes, as a program has it by default."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(before)


def is_harmless(text: str) -> bool:
    lines = text.split("\n")
    forged = [each for each in lines if each.startswith("2026-01-01")]
    return not forged and all(each.replace("\t", " ").isprintable() for each in lines)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_no_payload_writes_a_line_of_its_own(
    fresh: Path, logged: io.StringIO, concurrency: int
) -> None:
    queues = QueueManager({"default": "memory", "jobs": ["tests.test_harmless_logs"]})
    manager.use(queues)
    queue = queues.connection()
    for raw in HOSTILE:
        queue.backend.apply(Step(None, Push("default", raw), Push(f"q{FORGED}", raw)))
    options = WorkerOptions(
        queues=("default", "*"),
        stop_when_empty=True,
        tries=1,
        concurrency=concurrency,
        memory=0,  # that of all tests before this
    )
    Worker(queues, options).run()
    assert is_harmless(logged.getvalue())
    assert "said" in logged.getvalue()


@pytest.mark.parametrize("uuid", [f"u{FORGED}", "a\nb", "\x1b[31m", "\u202e"])
def test_a_uuid_that_cannot_be_printed_is_none(uuid: str) -> None:
    assert envelope.uuid({"uuid": uuid}) is None
    assert "messaging.message.id" not in attributes.of_job({"uuid": uuid, "job": "x"})
    assert envelope.uuid_of(json.dumps({"uuid": uuid}).encode()) == ""
    assert envelope.uuid({"uuid": "any text, even ü"}) == "any text, even ü"


def test_what_a_program_logs_with_its_own_line_breaks_keeps_them(logged: io.StringIO) -> None:
    log = logging.getLogger("qframe")
    log.warning("blocked:\n%s", "  a\n  b\x1b")
    log.warning("%d of %s", 3, {"a": 1})
    try:
        raise ValueError("plain")
    except ValueError:
        log.exception("with a traceback")
    text = logged.getvalue()
    assert "blocked:\n  a\n  b\\x1b\n" in text
    assert "3 of {'a': 1}" in text
    assert "\nTraceback (most recent call last):\n" in text


# -- passwords of URLs ----------------------------------------------------------------------------

SECRET = "hunter2"


def of(connection: dict[str, object]) -> dict[str, object]:
    return {"default": "main", "connections": {"main": connection}}


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@127.0.0.1/shop",
        f"postgresql://me@127.0.0.1/shop?password={SECRET}",
        f"postgresql://127.0.0.1/shop?user=me&password={SECRET}&sslmode=require",
        f"postgresql://me@127.0.0.1/shop?sslpassword={SECRET}&sslkey=/etc/key",
        f"postgresql://me@127.0.0.1/shop?options=-c%20x.password%3D{SECRET}",
        f"mariadb://me@127.0.0.1/shop?passwd={SECRET}",
        f"mariadb://me@127.0.0.1/shop?ssl_key_password={SECRET}&read_timeout=5",
    ],
)
def test_no_secret_of_a_database_url_is_shown(fresh: Path, url: str) -> None:
    assert SECRET not in shown(sa.make_url(url))
    assert "127.0.0.1/shop" in shown(sa.make_url(url))
    queues = QueueManager(of({"driver": "database", "url": url}))
    connection = queues.connection()
    assert SECRET not in connection.described()
    assert SECRET not in repr(queues.settings) + str(queues.settings) + repr(connection.settings)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me@127.0.0.1/shop?PASSWORD={SECRET}&password={SECRET}",
        f"mariadb://me@127.0.0.1/shop?ssl_key_password={SECRET}&auth_token={SECRET}",
    ],
)
def test_an_option_that_the_client_does_not_know_is_refused_without_its_value(url: str) -> None:
    assert SECRET not in shown(sa.make_url(url))
    queues = QueueManager(of({"driver": "database", "url": url}))
    with pytest.raises(ConfigurationError, match="unknown option") as raised:
        queues.connection()
    assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    "connection",
    [
        {"driver": "redis", "url": f"redis://:{SECRET}@127.0.0.1/0"},
        {"driver": "redis", "url": f"redis://me:{SECRET}@127.0.0.1/0?client_name=x"},
        {"driver": "redis", "url": f"rediss://127.0.0.1/0?ssl_password={SECRET}"},
        {"driver": "redis", "url": f"unix://:{SECRET}@/run/redis.sock"},
        {"driver": "redis", "sentinels": ["127.0.0.1:1"], "sentinel_password": SECRET},
    ],
)  # fmt: skip
def test_no_secret_of_redis_is_shown(fresh: Path, connection: dict[str, object]) -> None:
    queues = QueueManager(of(connection))
    found = queues.connection()
    assert SECRET not in found.described()
    assert SECRET not in repr(queues.settings) + str(queues.settings) + repr(found.settings)


@pytest.mark.parametrize(
    "url", [f"redis://127.0.0.1?password={SECRET}", f"host=127.0.0.1 password={SECRET}",
            f"redis://me:{SECRET}", f"redis://:{SECRET}@[", f"postgresql//{SECRET}@x"],
)  # fmt: skip
@pytest.mark.parametrize("driver", ["redis", "database"])
def test_what_is_no_url_is_refused_without_being_shown(fresh: Path, url: str, driver: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        QueueManager(of({"driver": driver, "url": url})).connection()
    assert SECRET not in str(raised.value)
