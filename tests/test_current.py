"""`current_job`, and what log records carry while a job runs."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from qframe import (
    JobLogFilter,
    Queueable,
    chain,
    current_job,
    dispatch,
    dispatch_sync,
    job_log_fields,
)
from qframe.testing import run

seen: list[tuple[str, dict[str, Any]]] = []
log = logging.getLogger("shop")


def see(where: str) -> None:
    seen.append((where, job_log_fields()))
    log.warning(where)


class Order(Queueable):
    word: str = "order"
    connection: ClassVar[str | None] = "sync"

    def handle(self) -> None:
        job = current_job()
        assert job is self.job
        see(self.word)
        if self.word == "outer":
            dispatch(Order(word="inner")).send()
            see("outer again")
        thread = Thread(target=copy_context().run, args=(see, "thread"))
        thread.start()
        thread.join()

    def failed(self, error: BaseException) -> None:
        see("failed")


class Awaits(Queueable):
    connection: ClassVar[str | None] = "sync"

    async def handle(self) -> None:
        await asyncio.create_task(self._on())
        await asyncio.to_thread(see, "thread")

    async def _on(self) -> None:
        see("task")


class Breaks(Order):
    def handle(self) -> None:
        raise ValueError("boom")


@pytest.fixture(autouse=True)
def here(fresh: Path) -> Iterator[None]:
    seen.clear()
    yield
    assert current_job() is None
    assert job_log_fields() == {}


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Give what a handler with the filter writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(JobLogFilter())
    handler.setFormatter(
        logging.Formatter("%(job_uuid)s|%(job_name)s|%(job_queue)s|%(job_attempt)d|%(message)s")
    )
    log.addHandler(handler)
    yield stream
    log.removeHandler(handler)


def test_where_a_job_runs_in_its_push(written: io.StringIO) -> None:
    uuid = dispatch(Order(word="outer")).on_queue("mail").send()
    log.warning("outside")
    outer = {
        "job_uuid": uuid,
        "job_name": f"{__name__}.Order",
        "job_queue": "mail",
        "job_attempt": 1,
    }
    assert [where for where, _ in seen] == ["outer", "inner", "thread", "outer again", "thread"]
    told = [fields for _, fields in seen]
    assert told[0] == told[3] == told[4] == outer
    assert told[1] == told[2] == {**outer, "job_uuid": told[1]["job_uuid"], "job_queue": "default"}
    assert told[1]["job_uuid"] != uuid
    lines = written.getvalue().splitlines()
    assert lines[0] == f"{uuid}|{__name__}.Order|mail|1|outer"
    assert lines[-1] == "|||0|outside"


def test_an_async_job_called_from_a_running_loop() -> None:
    async def program() -> None:
        dispatch_sync(Awaits())

    asyncio.run(program())
    assert [(where, fields["job_name"]) for where, fields in seen] == [
        ("task", f"{__name__}.Awaits"),
        ("thread", f"{__name__}.Awaits"),
    ]


def test_the_links_of_a_chain_and_its_failure_are_their_own() -> None:
    with pytest.raises(ValueError, match="boom"):
        chain([Order(word="first"), Breaks(word="second")]).on_connection("sync").dispatch()
    names = {where: fields["job_name"] for where, fields in seen}
    assert names == {
        "first": f"{__name__}.Order",
        "thread": f"{__name__}.Order",
        "failed": f"{__name__}.Breaks",
    }


def test_a_job_that_a_test_runs() -> None:
    run(Order()).assert_done()
    assert [fields["job_attempt"] for _, fields in seen] == [1, 1]
    seen.clear()
    run(Breaks(), attempts=3).assert_failed()
    assert [(where, fields["job_attempt"]) for where, fields in seen] == [("failed", 3)]


def test_what_a_record_has_is_kept(written: io.StringIO) -> None:
    log.warning("mine", extra={"job_uuid": "mine"})
    assert written.getvalue() == "mine|||0|mine\n"


def test_a_record_factory_of_ones_own_stays(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[logging.LogRecord] = []
    before = logging.getLogRecordFactory()

    def make(*args: Any, **named: Any) -> logging.LogRecord:
        made.append(before(*args, **named))
        return made[-1]

    monkeypatch.setattr(logging, "_logRecordFactory", make)
    dispatch_sync(Order())
    assert written.getvalue().splitlines()[0].endswith("|1|order")
    assert [record.getMessage() for record in made] == ["order", "thread"]


class Evil(Order):
    display_name = "\x1b[31m\nevil"


def test_names_are_made_harmless(written: io.StringIO) -> None:
    dispatch_sync(Evil())
    first, _ = written.getvalue().splitlines()
    assert first.split("|")[1] == r"\x1b[31m evil"
