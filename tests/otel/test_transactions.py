"""Spans of what is dispatched in a transaction, or at its commit, and of what follows them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from qframe import Queueable, QueueManager, Worker, WorkerOptions, batch, bulk, chain, dispatch
from qframe.dispatch.draft import flush
from qframe.hooks import of_process
from tests.otel.conftest import Traced
from tests.support.shop import Shop, opened

pytestmark = pytest.mark.usefixtures("fresh")


class Ship(Queueable):
    order: int = 1

    def handle(self) -> None: ...


@pytest.fixture
def shop(tmp_path: Path, traced: Traced) -> Iterator[Shop]:
    with opened(f"sqlite:///{tmp_path / 'shop.sqlite3'}") as made:
        yield made


def work(queues: QueueManager) -> None:
    assert Worker(queues, WorkerOptions(stop_when_empty=True, memory=0)).run() == 0


def said(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


def check(traced: Traced, attempts: int) -> list[ReadableSpan]:
    """Give the sends; each attempt is linked to what made its job, each of those within `view`."""
    spans = traced.exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans}
    made = {
        said(span, "messaging.message.id"): span
        for span in spans
        if said(span, "messaging.operation.name") in {"send", "create"}
    }

    def begins(span: ReadableSpan) -> str:
        return begins(by_id[span.parent.span_id]) if span.parent else span.name

    processed = [span for span in spans if span.name == "process default"]
    assert len(processed) == attempts
    for each in processed:
        (link,) = each.links
        origin = made[said(each, "messaging.message.id")]
        assert link.context.span_id == origin.context.span_id
        assert link.context.trace_id == origin.context.trace_id
        assert begins(origin) == "view"
    return traced.named("send default")


def one() -> None:
    dispatch(Ship()).send()


def dropped() -> None:
    dispatch(Ship())


def many() -> None:
    bulk([Ship(), Ship()])


def links() -> None:
    chain([Ship(), Ship()]).dispatch()


def members() -> None:
    batch([Ship(), Ship()]).dispatch()


KINDS = [(one, 1, 1), (dropped, 1, 1), (many, 2, 2), (links, 2, 2), (members, 2, 3)]
"""With how many were sent, and how many attempts there are: a batch has a job of its own."""


class Open:
    """The transaction that a framework says is open."""

    def __init__(self, inside: object | None) -> None:
        self.inside = inside
        self.waiting: list[Callable[[], None]] = []

    def within(self) -> object | None:
        return self.inside

    def on_commit(self, act: Callable[[], None]) -> None:
        self.waiting.append(act)


@pytest.mark.parametrize("is_within", [True, False])
@pytest.mark.parametrize(("act", "sent", "attempts"), KINDS)
def test_what_a_frameworks_transaction_keeps_belongs_to_what_dispatched_it(
    shop: Shop,
    traced: Traced,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[], None],
    sent: int,
    attempts: int,
    is_within: bool,
) -> None:
    with Session(shop.engine) as session:
        shop.order(session)
        open_now = Open(session if is_within else None)
        monkeypatch.setattr(of_process, "find_open", lambda _: open_now)
        with traced.tracers.get_tracer("app").start_as_current_span("view"):
            act()
        monkeypatch.setattr(of_process, "find_open", None)
        session.commit()
    for each in open_now.waiting:
        each()
    flush()
    work(shop.manager)
    (send,) = check(traced, attempts)
    assert said(send, "messaging.batch.message_count") in {None, sent}


@pytest.mark.parametrize("commits", [True, False])
def test_after_the_commit_of_a_session(shop: Shop, traced: Traced, commits: bool) -> None:
    with Session(shop.engine) as session:
        shop.order(session)
        with traced.tracers.get_tracer("app").start_as_current_span("view"):
            dispatch(Ship()).after_commit(session)
        session.commit() if commits else session.rollback()
    flush()
    work(shop.manager)
    assert len(check(traced, commits)) == commits


def test_within_a_transaction_that_is_rolled_back_or_committed(shop: Shop, traced: Traced) -> None:
    with (
        Session(shop.engine) as session,
        traced.tracers.get_tracer("app").start_as_current_span("view"),
    ):
        dispatch(Ship()).within(session)
        session.rollback()
        dispatch(Ship()).within(session)
        bulk([Ship(), Ship()], within=session)
        chain([Ship(), Ship()]).within(session)
        batch([Ship(), Ship()]).within(session)
        session.commit()
    work(shop.manager)
    sends = check(traced, 1 + 2 + 2 + 3)
    counts = [said(span, "messaging.batch.message_count") for span in sends]
    assert counts == [None, None, 2, 2, 2], "a send is told, whatever became of it"


def test_within_an_asynchronous_transaction(shop: Shop, traced: Traced) -> None:
    async def view() -> None:
        engine = shop.async_engine()
        async with AsyncSession(engine) as session:
            with traced.tracers.get_tracer("app").start_as_current_span("view"):
                await dispatch(Ship()).within(session)
                await chain([Ship(), Ship()]).within(session)
                await batch([Ship(), Ship()]).within(session)
            await session.commit()
        await engine.dispose()

    asyncio.run(view())
    work(shop.manager)
    assert len(check(traced, 1 + 2 + 3)) == 3


def test_links_that_a_worker_pushes_go_on_in_the_trace_of_their_dispatch(
    shop: Shop, traced: Traced
) -> None:
    traced.start(links=False)
    with traced.tracers.get_tracer("app").start_as_current_span("view") as view:
        chain([Ship(order=1), Ship(order=2), Ship(order=3)]).dispatch()
    work(shop.manager)
    made, processed = traced.named("create default"), traced.named("process default")
    assert [each.parent and each.parent.span_id for each in processed] == [
        each.context.span_id for each in made
    ]
    trace = view.get_span_context().trace_id
    assert {each.context.trace_id for each in [*made, *processed]} == {trace}
