"""`[routes]` and `[forward]`: where jobs go that name no queue, or one that moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from qframe import (
    Queueable,
    QueueManager,
    bulk,
    chain,
    dispatch,
    events,
    foreign,
    manager,
    queueable,
)
from qframe.exceptions import ConfigurationError
from qframe.failed.retry import retry
from qframe.jobs.definition import JobDefinition
from qframe.operations.names import unlikely
from qframe.operations.planned import PlannedSchedules
from qframe.schedules.definition import book, schedule
from qframe.schedules.schedulers import Schedulers
from qframe.testing import fake

HERE = __name__


class Invoice(Queueable):
    def handle(self) -> None: ...


class Reminder(Invoice):
    pass


class Own(Queueable):
    queue = "own"

    def handle(self) -> None: ...


class OwnConnection(Queueable):
    connection = "second"

    def handle(self) -> None: ...


@queueable
def bill(number: int) -> None:
    del number


@pytest.fixture
def using() -> Iterator[Callable[..., QueueManager]]:
    """Give what makes the process's manager, with two memory connections."""

    def use(**settings: object) -> QueueManager:
        connections = {
            "first": {"driver": "memory"},
            "second": {"driver": "memory", "queue": "usual"},
        }
        made = QueueManager({"default": "first", "connections": connections, **settings})
        manager.use(made)
        return made

    yield use
    manager.use(None)


def there(queues: QueueManager) -> dict[str, int]:
    """Return how many jobs each queue has, as `queue@connection`."""
    return {
        f"{name}@{each.name}": each.size(name)
        for each in map(queues.connection, ("first", "second"))
        for name in each.queues()
    }


# -- routes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "to"),
    [
        ({f"{HERE}.Invoice": "billing@second"}, "billing@second"),
        ({f"{HERE}.*": "billing"}, "billing@first"),
        ({f"{HERE}.*": "@second"}, "usual@second"),
        ({f"{HERE}.*": "any", f"{HERE}.Invoice": "this"}, "this@first"),
        ({f"{HERE}.I*": "one", f"{HERE}.*": "two"}, "one@first"),
        ({"elsewhere.*": "billing"}, "default@first"),
    ],
)
def test_a_route_is_found_by_name_then_by_the_first_pattern(
    using: Callable[..., QueueManager], route: dict[str, str], to: str
) -> None:
    queues = using(routes=route)
    dispatch(Invoice()).send()
    bulk([Invoice()])
    asyncio.run(_awaited(Invoice()))
    assert there(queues) == {to: 3}


async def _awaited(job: JobDefinition) -> None:
    await dispatch(job)


def test_the_nearest_class_with_a_route_counts(using: Callable[..., QueueManager]) -> None:
    queues = using(routes={f"{HERE}.Invoice": "base"})
    dispatch(Reminder()).send()
    assert there(queues) == {"base@first": 1}
    queues = using(routes={f"{HERE}.Invoice": "base", f"{HERE}.Reminder": "derived"})
    dispatch(Reminder()).send()
    assert there(queues) == {"derived@first": 1}


def test_what_the_class_or_the_dispatch_names_wins_each_by_itself(
    using: Callable[..., QueueManager],
) -> None:
    queues = using(routes={"*": "routed@second"})
    dispatch(Own()).send()
    dispatch(OwnConnection()).on_connection("first").send()
    dispatch(Invoice()).on_queue("given").send()
    assert there(queues) == {"own@second": 1, "routed@first": 1, "given@second": 1}


def test_functions_and_foreign_jobs_have_routes(using: Callable[..., QueueManager]) -> None:
    queues = using(routes={f"{HERE}.bill": "bills", r"App\Import": "imports"})
    bill.dispatch(7).send()
    dispatch(foreign(r"App\Import@handle", {})).send()
    assert there(queues) == {"bills@first": 1, "imports@first": 1}


def test_a_chain_is_on_the_connection_of_its_first_job_with_each_link_in_its_queue(
    using: Callable[..., QueueManager],
) -> None:
    queues = using(routes={f"{HERE}.Invoice": "billing@second"})
    chain([Invoice(), Own()]).dispatch()
    assert there(queues) == {"billing@second": 1}


def test_fakes_see_the_routed_queue(using: Callable[..., QueueManager]) -> None:
    using(routes={f"{HERE}.Invoice": "billing@second"})
    with fake() as queue:
        dispatch(Invoice()).send()
    queue.assert_dispatched(Invoice, queue="billing", connection="second")


# -- forwards -------------------------------------------------------------------------------------


def test_a_queue_is_renamed_on_its_connection(using: Callable[..., QueueManager]) -> None:
    queues = using(forward={"old": "new"})
    dispatch(Invoice()).on_queue("old").send()
    bulk([Invoice()], "old")
    queues.connection().push(Invoice(), "old")
    queues.connection().push_raw(b"{}", "old")
    chain([Invoice()]).on_queue("old").dispatch()
    assert there(queues) == {"new@first": 5}


def test_a_queue_has_moved_to_another_connection(using: Callable[..., QueueManager]) -> None:
    queues = using(forward={"old": "new@second", "own": "@second"})
    given: list[tuple[str, str]] = []
    with events.kept():
        events.listen(events.JobQueueing)(
            lambda event: given.append((event.queue, event.connection))
        )
        dispatch(Invoice()).on_queue("old").send()
        bulk([Invoice()], "old")
        queues.connection().push(Invoice(), "old")
        queues.connection().push_raw(b"{}", "old")
        queues.connection().bulk([Invoice()], "old")
        chain([Invoice(), Invoice()]).on_queue("old").dispatch()
        dispatch(Own()).send()
    assert there(queues) == {"new@second": 6, "own@second": 1}
    assert set(given) == {("new", "second"), ("own", "second")}


def test_a_dispatch_goes_by_the_queue_it_ends_with(using: Callable[..., QueueManager]) -> None:
    queues = using(forward={"old": "new@second"})
    dispatch(Invoice()).on_queue("old").on_queue("other").send()
    dispatch(Invoice()).on_connection("first").on_queue("old").delay(60).send()
    dispatch(Invoice()).on_connection("second").on_queue("old").send()
    assert there(queues) == {"other@first": 1, "new@second": 2}


def test_the_default_queue_can_move_to_a_connection_with_another(
    using: Callable[..., QueueManager],
) -> None:
    queues = using(forward={"default": "new@second"})
    dispatch(Invoice()).send()
    bulk([Invoice(), Invoice()])
    assert there(queues) == {"new@second": 3}


@pytest.mark.parametrize("job", [Invoice(), Own()])
def test_a_schedule_follows_its_queue_to_another_connection(
    using: Callable[..., QueueManager], job: JobDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "_all", [])
    schedule(job).every_second()
    queues = using(forward={"default": "new@second", "own": "new@second"})
    clock = [1000.0]
    schedulers = Schedulers(queues, clock=lambda: clock[0])
    (connection,) = schedulers.connections
    assert connection is queues.connection("second")
    scheduler = schedulers.scheduler(connection)
    scheduler.turn()
    clock[0] += 1
    while scheduler.turn() == 0:
        pass
    assert there(queues) == {"new@second": 1}
    ((_, planned),) = PlannedSchedules(queues).all
    assert planned.queue == "new"


def test_the_connection_in_place_of_another_pushes_to_the_queue_that_is_meant(
    using: Callable[..., QueueManager],
) -> None:
    queues = using(forward={"default": "new@second"})
    instead = queues.connection_of(Invoice())
    instead.push(Invoice())
    instead.bulk([Invoice()])
    instead.push_raw(b"{}")
    assert there(queues) == {"new@second": 3}


def test_forwards_follow_each_other(using: Callable[..., QueueManager]) -> None:
    queues = using(forward={"one": "two", "two": "three@second"})
    dispatch(Invoice()).on_queue("one").send()
    assert there(queues) == {"three@second": 1}
    queues = using(forward={"one": "two@second", "two": "three@first"})
    dispatch(Invoice()).on_queue("one").send()
    bulk([Invoice()], "one")
    assert there(queues) == {"three@first": 2}


def test_a_later_link_stays_on_the_connection_of_its_chain(
    using: Callable[..., QueueManager],
) -> None:
    queues = using(forward={"own": "new@second"})
    chain([Invoice(), Own()]).dispatch()
    (job,) = queues.connection().reserve(["default"])
    queues.connection().backend.apply(job.start_plan())
    job.delete()
    assert there(queues) == {"own@first": 1}  # whose workers empty it


@pytest.mark.parametrize("key", [None, "a signing key of length"])
@pytest.mark.parametrize("to", ["new", "new@second"])
def test_a_retry_goes_where_its_queue_has_moved(
    using: Callable[..., QueueManager], key: str | None, to: str
) -> None:
    old = using(signing_key=key)
    dispatch(Invoice()).on_queue("old").send()
    first = old.connection("first")
    (job,) = first.reserve(["old"])
    first.backend.apply(job.start_plan())
    job.fail()
    queues = using(forward={"old": to}, signing_key=key)
    queues._backends.update(old._backends)
    store = queues.connection("first").failed
    (record,) = store.all()
    assert retry(queues, store, record)
    assert store.count() == 0
    (place,) = there(queues)
    assert place in {to, f"{to}@first"}
    (job,) = queues.connection(place.partition("@")[2]).reserve(["new"])
    assert job.refusal is None


def test_a_retried_job_with_features_stays_on_its_connection(
    using: Callable[..., QueueManager],
) -> None:
    old = using()
    dispatch(Invoice()).on_queue("old").track().send()
    first = old.connection("first")
    (job,) = first.reserve(["old"])
    first.backend.apply(job.start_plan())
    job.fail()
    queues = using(forward={"old": "new@second"})
    queues._backends.update(old._backends)
    store = queues.connection("first").failed
    assert retry(queues, store, next(store.all()))
    assert there(queues) == {"old@first": 1}


def test_check_names_what_waits_in_a_queue_that_moved(
    using: Callable[..., QueueManager],
) -> None:
    old = using()
    dispatch(Invoice()).on_queue("old").send()
    queues = using(forward={"old": "new@second", "other": "new"})
    queues._backends.update(old._backends)
    (told,) = unlikely(queues, queues.connection("first"))
    assert told.startswith("the queue 'old' is forwarded to new@second and still has 1 job: ")
    assert unlikely(queues, queues.connection("second")) == []


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"routes": {"a.b": "x@nowhere"}}, "routes.a.b: unknown connection 'nowhere'"),
        ({"routes": {"a.b": ""}}, "routes.a.b: '' is no place"),
        ({"routes": {"a.b": "x@"}}, "routes.a.b: 'x@' is no place"),
        ({"forward": {"old": "two words"}}, "forward.old: 'two words' is not a queue name"),
        ({"forward": {"two words": "x"}}, "is not a queue name"),
        ({"forward": {"a": "b", "b": "a"}}, "forward.a: its pushes would go in a circle"),
    ],
)
def test_a_wrong_place_is_one_line(settings: dict[str, dict[str, str]], message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        QueueManager(settings)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
