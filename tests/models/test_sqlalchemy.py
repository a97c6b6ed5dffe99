"""Rows of SQLAlchemy as arguments: only keys travel, and a session that is set once loads them."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import types
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

import qframe.models
from qframe import (
    ConfigurationError,
    InvalidJob,
    JobDefinitionError,
    ModelMissing,
    Queueable,
    QueueManager,
    Worker,
    WorkerOptions,
    batch,
    chain,
    dispatch,
    dispatch_sync,
)
from qframe.config import load
from qframe.hooks import of_process
from qframe.manager import use
from qframe.models import ModelKey
from qframe.operations import payloads
from qframe.operations.jobs import shown_payload
from qframe.payload import envelope
from qframe.testing import drain, fake, run
from tests.models.tables import (
    Base,
    Greet,
    GreetOnLoop,
    Later,
    Many,
    Parcel,
    Seat,
    Secretly,
    Thing,
    User,
    seen,
    shout,
)
from tests.support.pages import docs_page

pytestmark = pytest.mark.usefixtures("queues")
Sessions = sessionmaker[Session]


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueManager]:
    settings = load(
        connections={"memory": {"driver": "memory"}},
        default="memory",
        encryption_keys=["k" * 43 + "="],
    )
    monkeypatch.setattr(of_process, "sessions", None)
    seen.clear()
    manager = QueueManager(settings)
    use(manager)
    yield manager
    manager.close()
    use(None)


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db", poolclass=NullPool)
    Base.metadata.create_all(engine)
    yield qframe.models.sessions(sessionmaker(engine))
    engine.dispose()


@pytest.fixture
def ann(sessions: Sessions) -> User:
    row: User = added(sessions, User(name="ann"))
    return row


def added(sessions: Sessions, row: Any) -> Any:
    with sessions(expire_on_commit=False) as session:
        session.add(row)
        session.commit()
    return row


def data(job: Any) -> Any:
    return envelope.create(job)["data"]


def test_only_keys_travel(sessions: Sessions, ann: User) -> None:
    seat, parcel = added(sessions, Seat(row=1, place="a")), added(sessions, Parcel())
    bo = added(sessions, User(name="bo"))
    job = Greet(user=ann, seat=seat, parcel=parcel, friends=[bo, ann], by_name={"bo": bo})
    payload = envelope.create(job)
    assert payload["data"] == {
        "user": 1, "seat": [1, "a"], "parcel": str(parcel.id), "friends": [2, 1],
        "by_name": {"bo": 2},
    }  # fmt: skip
    assert run(job).result == ["ann!", "bo", "ann!", "bo"]
    shown = json.loads(shown_payload(json.dumps(payload).encode()))["data"]
    assert shown["user"] == "tests.models.tables.User:1"
    assert shown["seat"] == "tests.models.tables.Seat:1,a"
    assert shown["by_name"] == {"bo": "tests.models.tables.User:2"}
    assert shout.job(ann, 2).to_data() == {"user": 1, "times": 2}
    assert run(shout.job(ann, 2)).result == "ANNANN"


def test_one_that_is_not_saved_is_refused(sessions: Sessions) -> None:
    with pytest.raises(InvalidJob, match=r"^Greet.user: the .*User is not saved: add and flush"):
        Greet.dispatch(user=User(id=1, name="x"))
    with sessions() as session:
        session.add(row := User(name="x"))
        with pytest.raises(InvalidJob, match="is not saved"):
            Greet.dispatch(user=row)
        session.flush()
        assert data(Greet(user=row)) == {
            "user": 1, "seat": None, "parcel": None, "friends": [], "by_name": {},
        }  # fmt: skip
        session.delete(row)
        session.flush()
        with pytest.raises(InvalidJob, match="is not saved"):
            Greet.dispatch(user=row)


@pytest.mark.parametrize("wrong", ["x", 1.5, True, None, [1, 2], {"id": 1}])
def test_what_is_no_key_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidJob, match=r"Greet: user: should be a saved .*User, or its primary"):
        Greet.dispatch(user=wrong)


def test_the_session_is_open_while_the_job_runs_and_commits_nothing(
    sessions: Sessions, ann: User
) -> None:
    ran = run(Greet(user=ann))
    assert ran.result == ["ann!"]
    with sessions() as session:
        assert session.get(User, 1).name == "ann"  # type: ignore[union-attr]
    assert seen == [("succeeded", "ann")]  # loaded again: the first session is closed


def test_one_that_commits_at_its_end_does(sessions: Sessions, ann: User) -> None:
    qframe.models.sessions(sessions.begin)
    run(Greet(user=ann)).assert_done()
    with sessions() as session:
        assert session.get(User, 1).name == "ann!"  # type: ignore[union-attr]


def test_a_scoped_session_of_the_caller_is_used_and_left_open(sessions: Sessions) -> None:
    scoped = qframe.models.sessions(scoped_session(sessions))
    scoped.add(row := User(name="ann"))
    scoped.flush()
    assert dispatch_sync(Greet(user=row)) == ["ann!"]
    assert row in scoped
    assert row.name == "ann!"
    scoped.commit()
    scoped.remove()
    run(Greet(user=1)).assert_done()  # type: ignore[arg-type]
    assert not scoped.registry.has()


def test_without_sessions_the_error_says_what_to_call() -> None:
    ran = run(Greet(user=1))  # type: ignore[arg-type]
    assert isinstance(ran.error, ConfigurationError)
    assert "qframe.models.sessions(Session)" in str(ran.error)


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("is_async", [False, True])
def test_async_jobs_have_an_async_session_or_detached_rows(
    tmp_path: Path, ann: User, queues: QueueManager, concurrency: int, is_async: bool
) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/app.db", poolclass=NullPool)
    if is_async:
        qframe.models.sessions(async_sessionmaker(engine))
    results: list[Any] = []
    GreetOnLoop(user=ann)
    options = WorkerOptions(
        connection="memory", stop_when_empty=True, memory=0, concurrency=concurrency
    )

    def note(job: Any, call_next: Any) -> Any:
        results.append(call_next(job))
        return results[-1]

    async def note_on_loop(job: Any, call_next: Any) -> Any:
        results.append(await call_next(job))
        return results[-1]

    GreetOnLoop.middleware = [note_on_loop]
    try:
        for _ in range(2):
            dispatch(GreetOnLoop(user=ann)).send()
        worker = Worker(queues, options)
        worker.run()
    finally:
        GreetOnLoop.middleware = ()
    assert worker.outcomes == {"done": 2}
    assert results == [("ann", is_async)] * 2


def test_a_job_without_async_has_detached_rows_of_an_async_session(
    tmp_path: Path, ann: User
) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/app.db", poolclass=NullPool)
    qframe.models.sessions(async_sessionmaker(engine))
    assert run(shout.job(ann)).result == "ANN"


def test_on_a_loop_that_runs_in_this_thread(ann: User) -> None:
    async def there() -> Any:
        return run(GreetOnLoop(user=ann)).result, run(shout.job(ann)).result

    assert asyncio.run(there()) == (("ann", False), "ANN")


def test_chains_batches_and_encrypted_jobs(ann: User) -> None:
    chain([shout.job(ann), Greet(user=ann)]).dispatch()
    batch([Greet(user=ann), Secretly(user=ann)]).dispatch()
    done = drain()
    assert done.failed == 0
    assert seen == [("succeeded", "ann")] * 2


def test_a_chunk_loads_the_rows_of_all_its_jobs(
    sessions: Sessions, ann: User, queues: QueueManager
) -> None:
    bo = added(sessions, User(name="bo"))
    for user in (ann, bo, ann):
        dispatch(Many(user=user)).send()
    Worker(queues, WorkerOptions(connection="memory", stop_when_empty=True, memory=0)).run()
    assert seen == [["ann", "bo", "ann"]]


def test_a_fake_compares_rows(ann: User) -> None:
    with fake() as queued:
        Greet.dispatch(user=ann)
        batch([Greet(user=ann)]).dispatch()
        queued.assert_dispatched(Greet, where=lambda job: job.user == ann)
        (member,) = queued.batches[0].jobs
        assert isinstance(member, Greet)
        assert member.user == ann


def test_a_type_that_is_defined_later(sessions: Sessions) -> None:
    thing = added(sessions, Thing())
    assert data(Later(thing=thing)) == {"thing": 1}
    assert run(Later(thing=thing)).result == 1


def test_the_hook_of_a_failed_job_has_the_key_of_a_row_that_is_gone(sessions: Sessions) -> None:
    run(Greet(user=7)).assert_failed_with(ModelMissing, match="User:7 is gone")  # type: ignore[arg-type]
    ((_, key, said),) = seen
    assert isinstance(key, ModelKey)
    assert (str(key), key.pk) == ("tests.models.tables.User:7", 7)
    assert said.startswith(f"{key} is gone, or was not committed yet: ")
    with pytest.raises(AttributeError, match=r"User:7 is not loaded here and has only `pk`"):
        key.name_of_it  # noqa: B018 (it raises)


def declared(annotation: Any, **options: Any) -> Any:
    body = {"__annotations__": {"it": annotation}, "__module__": __name__, **options}
    body["handle"] = lambda self: None
    return types.new_class("Declared", (Queueable,), {}, lambda names: names.update(body))


@pytest.mark.parametrize("wrong", [User | Seat, User | int, set[User], list[User | int]])
def test_places_in_which_a_model_cannot_be(wrong: Any) -> None:
    with pytest.raises(JobDefinitionError, match=r"Declared.it: a model can be "):
        declared(wrong)


def test_a_retry_needs_more_than_one_try() -> None:
    with pytest.raises(JobDefinitionError, match="'retry' needs tries"):
        declared(User, missing="retry", tries=1)


def test_a_key_that_json_would_change_is_refused() -> None:
    assert uuid.UUID(int=1) == ModelKey(Parcel, uuid.UUID(int=1)).pk
    with pytest.raises(InvalidJob, match="JSON would change the key"):
        data(Greet(user=ModelKey(User, "07")))  # type: ignore[arg-type]


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", docs_page("models.md").read_text(), re.DOTALL)
    file = tmp_path / "models_page.py"
    file.write_text(code)
    runpy.run_path(str(file), run_name=file.stem)["engine"].dispose()


def test_a_check_of_stored_payloads_loads_no_row(
    queues: QueueManager, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatch(Greet(user=ann)).send()
    monkeypatch.setattr(of_process, "sessions", None)  # a row could not be loaded
    found = payloads.check(queues)
    assert (found.read, found.is_good, found.left_out) == (1, True, {})
