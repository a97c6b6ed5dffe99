"""JobId: a text for everything, and what `wait_for` makes a job's result of."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from qframe import (
    JobId,
    Queueable,
    QueueManager,
    Secret,
    abulk,
    ajob_status,
    await_for,
    bulk,
    dispatch,
    foreign,
    job_status,
    manager,
    queueable,
    wait_for,
)
from qframe.testing import drain, fake


@dataclass
class Line:
    price: Decimal


class Invoice(BaseModel):
    on: date
    lines: tuple[Line, ...] = ()


MADE = Invoice(on=date(2030, 1, 2), lines=(Line(Decimal("1.50")),))
PLAIN = {"on": "2030-01-02", "lines": [{"price": "1.50"}]}


class MakeInvoice(Queueable):
    track = True

    def handle(self) -> Invoice:
        return MADE


class Reads(Queueable):
    job_id: JobId[Any]
    anything: Any = None

    track = True

    def handle(self) -> Any:
        return [type(self.job_id).__name__, type(self.anything).__name__]


class SaysWrong(Queueable):
    track = True

    def handle(self) -> Decimal:
        return "many"  # type: ignore[return-value] # says what it does not do


class ReturnsSecret(Queueable):
    track = True

    def handle(self) -> Secret[str]:
        return Secret("x")


@queueable(track=True)
async def later(a: int) -> tuple[int, date]:
    return a, date(2030, 1, 2)


@queueable(track=True)
def nothing() -> Invoice | None:
    return None


@pytest.fixture(autouse=True)
def queues(fresh: Path) -> QueueManager:
    made = QueueManager({"root": fresh, "default": "memory", "jobs": [__name__]})
    manager.use(made)
    return made


# -- the result -----------------------------------------------------------------------------------


def test_the_result_is_what_handle_returns() -> None:
    invoice, pair, none = (
        MakeInvoice.dispatch().send(),
        later.dispatch(7).send(),
        nothing.dispatch().send(),
    )
    drain()
    assert wait_for(invoice, 5).result == MADE
    assert wait_for(pair, 5).result == (7, date(2030, 1, 2))
    assert wait_for(none, 5).result is None
    found = job_status(invoice)
    assert found is not None
    assert found.result == MADE


def test_also_where_it_is_awaited() -> None:
    async def dispatched() -> JobId[Invoice]:
        return await MakeInvoice.dispatch()

    async def results(invoice: JobId[Invoice]) -> list[Invoice | None]:
        found = await ajob_status(invoice)
        return [(await await_for(invoice, 5)).result, found.result if found else None]

    invoice = asyncio.run(dispatched())
    drain()
    assert asyncio.run(results(invoice)) == [MADE, MADE]


def test_of_the_same_text_it_is_as_json_has_it() -> None:
    invoice = MakeInvoice.dispatch().send()
    drain()
    for text in (str(invoice), JobId(invoice), pickle.loads(pickle.dumps(invoice))):
        assert wait_for(text, 5).result == PLAIN


def test_what_does_not_fit_is_left_as_json_has_it() -> None:
    wrong, secret = SaysWrong.dispatch().send(), ReturnsSecret.dispatch().send()
    drain()
    assert wait_for(wrong, 5).result == "many"
    assert not isinstance(wait_for(secret, 5).result, Secret)


def test_each_way_to_push_gives_one(queues: QueueManager) -> None:
    queue = queues.connection()
    pending = dispatch(MakeInvoice())
    assert type(pending.id) is type(pending.send()) is JobId
    for given in (queue.push(MakeInvoice()), queue.later(0, MakeInvoice()), pending.id):
        drain()
        assert wait_for(given, 5).result == MADE
    assert type(queue.push(foreign("App\\Import"))) is JobId


class MakeOnce(MakeInvoice):
    unique = True


def test_those_of_a_bulk_know_their_classes(queues: QueueManager) -> None:
    first = MakeOnce.dispatch().send()
    jobs = [MakeInvoice(), MakeOnce(), MakeOnce()]

    async def awaited() -> list[JobId[Invoice]]:
        return await abulk(jobs)

    for ids in (bulk(jobs), queues.connection().bulk(jobs), asyncio.run(awaited())):
        assert ids[1:] == [first, first]
        assert {*map(type, ids)} == {JobId}
        drain()
        assert [wait_for(each, 5).result for each in ids] == [MADE] * 3
    mixed = bulk([foreign("App\\Import"), later.job(7)])
    assert type(mixed[0]) is JobId
    drain()
    assert wait_for(mixed[1], 5).result == (7, date(2030, 1, 2))


def test_those_of_a_bulk_in_a_fake_and_on_sync() -> None:
    class Here(MakeInvoice):
        connection = "sync"

    assert [type(each) for each in bulk([Here(), Here()])] == [JobId, JobId]
    with fake():
        assert [type(each) for each in bulk([MakeInvoice()])] == [JobId]


def test_in_a_fake_and_on_sync() -> None:
    assert type(MakeInvoice.dispatch().on_connection("sync").send()) is JobId
    with fake():
        assert type(MakeInvoice.dispatch().send()) is JobId


# -- a text ---------------------------------------------------------------------------------------


def test_it_is_a_text() -> None:
    given = MakeInvoice.dispatch().send()
    text = str(given)
    assert type(text) is str
    assert given == text
    assert {str(given): 1}[given] == {given: 1}[JobId(text)] == 1
    assert json.loads(json.dumps({given: given})) == {text: text}
    assert repr(given) == repr(text)


def test_copies_are_ids_that_know_no_class() -> None:
    class Local(Queueable):
        job_name = "local"

        def handle(self) -> None: ...

    given = Local.dispatch().send()
    for same in (copy.copy(given), copy.deepcopy(given), pickle.loads(pickle.dumps(given))):
        assert same == given
        assert type(same) is JobId
        assert not hasattr(same, "job_class")


def test_it_is_a_field_and_what_a_route_returns() -> None:
    given = MakeInvoice.dispatch().send()
    reads = Reads.dispatch(job_id=given, anything={"id": given, "also": [given]}).send()
    drain()
    assert wait_for(reads, 5).result == ["JobId", "dict"]
    adapter = TypeAdapter(JobId[Any])
    assert type(adapter.validate_python("x")) is JobId
    assert adapter.dump_json(given) == json.dumps(given).encode()
    assert adapter.json_schema() == {"type": "string"}


def test_it_is_a_text_in_the_data_of_another_program() -> None:
    given = MakeInvoice.dispatch().send()
    job = foreign("App\\Import", {"id": given, given: 1})
    assert json.loads(json.dumps(job.data)) == {"id": given, given: 1}
