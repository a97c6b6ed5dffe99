"""PostgreSQL databases that are not in UTF8: every text arrives as it was sent, at any time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History
from qframe.contracts.step import (
    APPLIED,
    Arrive,
    Close,
    Delete,
    Open,
    Push,
    Record,
    Set,
    Start,
    Step,
)
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from qframe.exceptions import InvalidTransaction
from tests.support.postgres_server import PostgresServer
from tests.support.sql_server import USER

TEXTS = ["plain", "é", "→ 漢", "\U0001f600", "a\0b", "\ud800"]


@pytest.fixture(params=["LATIN1", "SQL_ASCII", "EUC_JP"])
def url(request: pytest.FixtureRequest, postgres_running: PostgresServer) -> Iterator[str]:
    name = f"qframe_{request.param.lower()}"
    postgres_running.sql(f"drop database if exists {name} with (force)")
    postgres_running.sql(
        f"create database {name} owner {USER} encoding '{request.param}' "
        "lc_collate 'C' lc_ctype 'C' template template0"
    )
    yield postgres_running.url_at(database=name)
    postgres_running.sql(f"drop database {name} with (force)")


@pytest.fixture
def backend(url: str) -> Iterator[DatabaseBackend]:
    made = DatabaseBackend("here", DatabaseSettings(url=url))
    with closing(made):
        made.migrate()
        yield made


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def test_every_text_arrives(backend: DatabaseBackend) -> None:
    for text in TEXTS:
        push = Step(None, Push("q", raw(text)), Set("fact", text))
        assert backend.apply(push) == [APPLIED]
        assert backend.read("fact") == [text]
        ((job,), _) = backend.reserve(["q"])
        assert job.raw_body == raw(text)
        assert backend.apply(Step(job, Start(60, raw(text)))) == [APPLIED]
        assert [found.raw_body for found in backend.search("q", raw(text))] == [raw(text)]
        assert backend.apply(Step(job, Delete())) == [APPLIED]


def test_a_failure_is_recorded_whatever_it_says(backend: DatabaseBackend) -> None:
    for number, text in enumerate(TEXTS[:-1]):
        history = History.from_json(None).started(1, text, 1, 1.0).ended("error", text, 2.0)
        job = FailedJob(
            uuid=str(number),
            connection="here",
            queue="q",
            payload=raw(text),
            exception=text,
            name=text,
            attempts=1,
            history=history,
            failed_at=1.0,
        )
        assert backend.apply(Step(None, Record(job))) == [APPLIED]
        found = backend.find_failed(str(number))
        assert found is not None
        assert (found.exception, found.name, found.payload) == (text, text, raw(text))
        assert found.history.to_json() == history.to_json()


def test_nothing_fails_at_random(backend: DatabaseBackend) -> None:
    """What sweeps the tables looks at all keys, up to the last, each so many writes."""
    for number in range(300):
        assert backend.apply(Step(None, Set(f"fact:{number:03}", "é", ttl=-1))) == [APPLIED]
    for number in range(300):
        assert backend.apply(Step(None, Set(f"kept:{number:03}", "é"))) == [APPLIED]
    assert len(backend.scan("kept:")) == 300
    assert backend.scan("kept:", last_first=True)[0][0] == "kept:299"
    assert backend.scan("kept:", after="kept:297") == [("kept:298", "é"), ("kept:299", "é")]
    assert len(backend.scan("")) == 300


def test_latches_and_the_outbox(backend: DatabaseBackend) -> None:
    backend.apply(Step(None, Open("latch", Push("q", raw("→")), 0, 60)))
    backend.apply(Step(None, Arrive("latch", 0, failed=True, label="→"), Close("latch")))
    with closing(backend.outbox()) as outbox:
        outbox.add("elsewhere", ['{"a": "→"}'])
        with outbox.claim("elsewhere") as claim:
            assert claim is not None
            assert [row.text for row in claim.rows] == ['{"a": "→"}']
            claim.note(claim.rows[0].id, "→", aside=True)
        assert outbox.lags()[0].error == "→"


def test_in_a_transaction_before_the_first_connection(url: str, backend: DatabaseBackend) -> None:
    other = DatabaseBackend("here", DatabaseSettings(url=url))
    where = url.replace("+psycopg", "")
    if "sql_ascii" in url:
        with (
            closing(other),
            psycopg.connect(where) as connection,
            pytest.raises(InvalidTransaction, match="set it to UTF8"),
        ):
            other.within(connection)
    with closing(other), psycopg.connect(where, client_encoding="utf8") as connection:
        assert other.within(connection).apply(Step(None, Push("q", raw("→")))) == [APPLIED]
    ((job,), _) = backend.reserve(["q"])
    assert job.raw_body == raw("→")


def test_a_queue_that_it_lacks_is_refused_in_one_line(backend: DatabaseBackend, url: str) -> None:
    if "sql_ascii" in url:
        backend.apply(Step(None, Push("\U0001f600", b"1")))
        assert backend.queues() == ["\U0001f600"]
        return
    with pytest.raises(ValueError, match="cannot hold this: character") as raised:
        backend.apply(Step(None, Push("\U0001f600", b"1")))
    assert "\n" not in str(raised.value)


def test_check_says_what_that_means(backend: DatabaseBackend) -> None:
    assert any("server_encoding is" in each for each in backend.check().warnings)


def test_a_caller_that_speaks_another_encoding_is_told(postgres_running: PostgresServer) -> None:
    url = postgres_running.prepared()
    backend = DatabaseBackend("here", DatabaseSettings(url=url))
    where = url.replace("+psycopg", "")
    with closing(backend), psycopg.connect(where, client_encoding="latin1") as connection:
        with pytest.raises(ValueError, match="set it to UTF8"):
            backend.within(connection).apply(Step(None, Push("q", raw("→"))))
        assert backend.within(connection).apply(Step(None, Push("q", b"1"))) == [APPLIED]
