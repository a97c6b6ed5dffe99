"""Each sentence that `why` can say of a job, a queue or a class, on the memory backend."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qframe import Flow, Queueable, QueueManager, batch, bulk, chain, dispatch, manager
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Place
from qframe.contracts.step import Bury, Delete, Push, Release, Start, Step
from qframe.drivers import process
from qframe.drivers.store import pause_key
from qframe.exceptions import AmbiguousId, BackendUnavailable, ConfigurationError
from qframe.features.reserved import ReservedJob
from qframe.middleware import RateLimited, ThrottlesExceptions, WithoutOverlapping
from qframe.middleware.holding import HeldBack
from qframe.operations import holds, schedules
from qframe.operations import queues as operations
from qframe.operations.board import Board
from qframe.operations.why import asked, before, of_class, of_job, turn
from qframe.operations.why.reason import Explanation
from qframe.schedules.rows import ScheduleRow, ScheduleRows
from qframe.testing import drain
from qframe.worker import WorkerOptions, refusals, slot_leases
from qframe.worker.control import QUIET, order_key
from qframe.worker.refusals import RefusalNotes
from qframe.worker.roster import Entry, RunningJob
from qframe.worker.worker import JobWorker
from tests.support.clock import Clock

pytestmark = pytest.mark.usefixtures("stopped_clock")

HERE = f"{__name__}"


class Plain(Queueable):
    number: int = 0
    queue: ClassVar[str | None] = "mail"

    def handle(self) -> None: ...


class Tracked(Plain):
    track = True


class Broken(Plain):
    track = True

    def handle(self) -> None:
        raise ValueError("no stock")


class Limited(Plain):
    middleware: ClassVar[Any] = [RateLimited("1/hour", name="api")]


class Alone(Plain):
    middleware: ClassVar[Any] = [WithoutOverlapping()]


class Careful(Plain):
    middleware: ClassVar[Any] = [ThrottlesExceptions(1, 600, name="shop")]


class Three(Plain):
    concurrency = 3


class OfShop(Plain):
    shop: int = 0
    group: ClassVar[str] = "shop:{shop}"
    queue: ClassVar[str | None] = "strict"


class OfBrokenShop(OfShop):
    def handle(self) -> None:
        raise ValueError("no stock")


class Last(Plain):
    debounce: ClassVar[Any] = 60


class Stale(Plain):
    expires: ClassVar[Any] = 0.001


class Waiter(Plain):
    def handle(self) -> None:
        self.wait_for_event("paid", timeout=3600)


class Sleeper(Plain):
    def handle(self) -> None:
        self.sleep("cool off", 3600)


class _OneTurn(JobWorker):
    """A worker in this thread, without signals."""

    heeds_signals = False


Made = Callable[..., Connection]


@pytest.fixture
def make(fresh: Path) -> Iterator[Made]:
    """Give what makes a connection `here`, beside others."""

    def made(**more: Any) -> Connection:
        connections = {"here": {"driver": "memory"}, **more.pop("connections", {})}
        settings = {
            "root": fresh,
            "default": "here",
            "jobs": [__name__],
            "connections": connections,
            "groups": {"strict": {"order": "strict"}},
            **more,
        }
        queues = QueueManager(settings)
        manager.use(queues)
        return queues.connection("here")

    yield made
    manager.use(None)


@pytest.fixture
def here(make: Made) -> Connection:
    return make()


def worker(connection: Connection, *queues: str, jobs: Any = (), **more: Any) -> Entry:
    """Put a worker into the roster, which seems to live."""
    fields = {
        "id": f"w{time.time_ns():x}",
        "name": "default",
        "host": "web-1",
        "pid": 7,
        "connection": connection.name,
        "queues": queues or ("mail",),
        "started_at": time.time(),
        "beat_at": time.time(),
        "jobs": tuple(jobs),
        **more,
    }
    entry = Entry(**fields)
    connection.store.set(entry.key, entry.model_dump_json(), 60)
    return entry


def runs(uuid: str, name: str = f"{HERE}.Plain", queue: str = "mail", **more: Any) -> RunningJob:
    return RunningJob(uuid=uuid, name=name, queue=queue, attempt=1, since=time.time() - 5, **more)


def why(word: str, kind: str = "", connection: str = "", *, imports: bool = True) -> Explanation:
    """Explain what is found first."""
    current = manager.current()
    assert current is not None
    found = asked.explain(Board(current), word, kind, connection, imports=imports)
    for each in found.found:
        for reason in each.reasons:
            assert reason.read_at <= f"{time.gmtime().tm_year + 1}", "each says when it was read"
            assert len(reason.read_at) == len("2026-11-27 22:01:03.0")
    return found.found[0]


def said(made: Explanation, kind: str) -> str:
    """Give the sentences of a kind."""
    texts = [each.text for each in made.reasons if each.kind == kind]
    assert texts, made
    return "; ".join(texts)


def mended(made: Explanation, kind: str) -> str:
    return next(each.mend for each in made.reasons if each.kind == kind)


def kinds(made: Explanation) -> list[str]:
    return [each.kind for each in made.reasons]


def taken(connection: Connection, queue: str = "mail") -> ReservedJob:
    """Reserve a job and start it."""
    (job,) = connection.reserve([queue])
    assert isinstance(job, ReservedJob)
    assert connection.backend.apply(job.start_plan())[0].applied
    return job


# -- queues ---------------------------------------------------------------------------------------


def test_a_pause_names_who_made_it_from_where_when_and_until_when(here: Connection) -> None:
    uuid = dispatch(Plain()).send()
    worker(here)
    operations.pause(here, "mail", 600, who="ops", where="the page")
    made = why(uuid)
    text = said(made, "paused")
    assert text.startswith("mail has been paused for 0s from the page by ops, until ")
    assert text.endswith("UTC, in 10m")
    assert mended(made, "paused") == "qframe resume mail --connection here"
    assert made.code == 1
    operations.resume(here, "mail")
    assert "paused" not in kinds(why(uuid))
    assert here.store.keys("pause") == []


def test_the_pause_of_a_connection_is_told_and_one_without_a_name(here: Connection) -> None:
    uuid = dispatch(Plain()).send()
    operations.pause(here, who="ops", where="the page")
    here.store.set(pause_key("here"), f"{time.time() - 60:.3f}")  # by another version
    made = why(uuid)
    assert said(made, "paused") == (
        "every queue of here has been paused for 1m; workers with --force go on"
    )
    assert mended(made, "paused") == "qframe resume --connection here"


def test_a_queue_that_no_worker_takes_names_the_one_that_may_be_meant(here: Connection) -> None:
    here.push(Plain(), "mial")
    assert said(why("mial"), "no worker") == "no worker of here runs"
    worker(here)
    made = why("mial")
    assert said(made, "no worker") == (
        "no worker takes mial of here (did you mean mail, which 1 worker takes?): "
        "its 1 worker takes mail"
    )
    assert mended(made, "no worker") == "push to mail, or: qframe work here --queue mial"
    assert made.state == "1 ready"
    worker(here, "m*", "!mail", host="web-2")
    assert "no worker" not in kinds(why("mial"))


def test_workers_of_another_connection_take_a_queue_of_its_name(make: Made) -> None:
    here = make(connections={"other": {"driver": "memory"}})
    uuid = dispatch(Plain()).send()
    current = manager.current()
    assert current is not None
    worker(current.connection("other"))
    assert said(why(uuid), "elsewhere") == (
        "1 worker takes a queue mail of another connection, other"
    )
    assert here.size("mail") == 1


def test_a_worker_that_died_is_named(here: Connection) -> None:
    uuid = dispatch(Plain()).send()
    gone = {"host": process.NAME, "place": process.place(), "born": "long ago", "pid": 2**22 + 5}
    worker(here, **gone)
    made = why(uuid)
    assert said(made, "worker died").startswith(f"1 worker of mail died: {process.NAME}:")
    assert kinds(made)[:2] == ["no worker", "worker died"]
    worker(here)
    assert "1 worker is left" in said(why(uuid), "fewer workers")


def test_workers_that_were_told_to_take_no_more_are_named(here: Connection) -> None:
    uuid = dispatch(Plain()).send()
    quiet = worker(here)
    here.store.set(order_key(quiet.id), QUIET)
    assert said(why(uuid), "quiet") == (
        "the only worker of mail was told to take no more jobs: web-1:7"
    )


def test_workers_that_pause_by_themselves_are_named(here: Connection) -> None:
    uuid = dispatch(Plain()).send()
    worker(here, state="paused")
    assert said(why(uuid), "quiet") == "the only worker of mail has paused by itself: web-1:7"


def test_busy_workers_name_the_longest_job(here: Connection) -> None:
    uuid = dispatch(Plain()).send()
    worker(here, jobs=[runs("u-1", "app.Big")])
    assert said(why(uuid), "busy") == (
        "the only worker of mail is busy: the longest job, app.Big u-1, has run for 5s on web-1:7"
    )
    worker(here, jobs=[runs("u-2")], host="web-2")
    assert said(why(uuid), "busy").startswith("all 2 slots of the 2 workers of mail are taken: ")


def test_queues_that_workers_take_first_are_named(here: Connection) -> None:
    uuid = dispatch(Plain()).send()
    here.push(Plain(), "high")
    worker(here, "high", "mail")
    assert said(why(uuid), "order") == "its workers take other queues first: high with 1 ready"
    worker(here, "mail", "high", host="web-2")
    assert "order" not in kinds(why(uuid))


def test_a_full_limit_of_a_queue_says_who_has_each_slot(make: Made) -> None:
    here = make(queues={"mail": {"concurrency": 2}})
    uuid = dispatch(Plain()).send()
    worker(here, jobs=[runs("u-1", "app.Big")], concurrency=5)
    keys = slot_leases.keys(slot_leases.QUEUE, "here:mail", 2)
    here.store.set(keys[0], "web-1:7:abc", 30)
    assert "limit" not in kinds(why(uuid))
    here.store.set(keys[1], "web-9:8:abc", 30)
    text = said(why(uuid), "limit")
    assert text.startswith(
        "the limit of the queue mail is full: slot 1 of 2 is with job app.Big u-1 on web-1:7 and "
        "slot 2 of 2 is with web-9:8, which is no live worker, free in "
    )


def test_a_full_limit_of_a_class_says_who_has_each_slot(here: Connection) -> None:
    uuid = dispatch(Three()).send()
    name = f"{HERE}.Three"
    worker(here, jobs=[runs("u-1", name), runs("u-2", name)], concurrency=5)
    for key in slot_leases.keys(slot_leases.CLASS, name, 3):
        here.store.set(key, "web-1:7:abc", 30)
    expected = f"slot 3 of 3 is with one of {name} u-1 and {name} u-2 on web-1:7"
    assert expected in said(why(uuid), "limit")
    assert expected in said(why(name), "limit")


def test_each_worker_may_run_so_many_of_a_queue_alone(make: Made) -> None:
    here = make(queues={"mail": {"per_worker": 1}})
    uuid = dispatch(Plain()).send()
    worker(here, jobs=[runs("u-1")], concurrency=5)
    assert said(why(uuid), "limit") == "each worker may run 1 of mail at once, and does"


def test_a_forwarded_queue_says_where_its_pushes_go(make: Made) -> None:
    here = make(forward={"mail": "post"})
    here.push_raw(b'{"uuid": "u-1", "job": "app.Send", "data": {}}', "mail")
    assert said(why("mail"), "moved") == "[forward] sends pushes for mail to post@here"


def test_a_queue_with_nothing_in_its_way_says_so(here: Connection) -> None:
    worker(here)
    made = why("mail")
    assert said(made, "ready") == "nothing holds it up: no job is ready, and 1 worker takes it"
    assert (made.code, made.state) == (0, "empty")
    dispatch(Plain()).send()
    made = why("mail")
    assert said(made, "turn").startswith("1 job is ready, the next for 0s; 1 worker takes it")
    assert made.code == 0


def test_buried_jobs_of_a_queue_are_told(here: Connection) -> None:
    worker(here)
    uuid = dispatch(Plain()).send()
    job = taken(here)
    here.backend.apply(Step(job.reservation, Bury()))
    assert said(why("mail"), "buried") == "1 job is buried, until somebody kicks them"
    made = why(uuid)
    assert said(made, "buried") == (
        "it is buried, and stays so until somebody kicks it; attempt 1 on "
        f"{process.NAME} has no known end, 0s ago"
    )
    assert mended(made, "buried") == "qframe kick here --queue mail"


def test_a_hold_names_who_made_it_and_until_when(here: Connection) -> None:
    uuid, other = dispatch(Plain(number=7)).send(), dispatch(Plain(number=8)).send()
    worker(here)
    hold = holds.begin(here, "args.number:7", 3600, "ops", "their bank is down")
    made = why(uuid)
    text = said(made, "on hold")
    assert text.startswith("it is held by ops until ")
    assert text.endswith("(their bank is down): it matches args.number:7")
    assert mended(made, "on hold") == f"qframe unhold {hold.id} --connection here"
    assert "on hold" not in kinds(why(other))
    assert said(why("mail"), "on hold").startswith("jobs that match args.number:7 are held by ops")


# -- a job that waits -----------------------------------------------------------------------------


def test_the_next_job_and_those_behind_it_know_their_turn(here: Connection) -> None:
    first, *_, last = bulk(Plain(number=number) for number in range(1205))
    worker(here)
    assert said(why(first), "turn") == "it is the next job of mail"
    made = why(last)
    assert said(made, "turn").startswith("1,204 jobs are before it in mail")
    assert made.code == 0


def test_the_estimate_is_by_the_present_rate(
    here: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "rate", lambda *_: (200.0, time.time()))
    last = bulk(Plain(number=number) for number in range(1205))[-1]
    assert said(why(last), "turn") == (
        "1,204 jobs are before it in mail, about 6m 2s at the present rate (200 a minute)"
    )
    monkeypatch.setattr(here.backend, "count_before", lambda _: None)
    assert said(why(last), "turn").startswith("1,204 jobs are before it in mail, about 6m 2s")
    monkeypatch.setattr(turn, "_SECONDS", 0.0)
    monkeypatch.setattr(turn, "_PAGE", 100)
    made = why(last)
    assert said(made, "turn") == (
        "more than 100 jobs are before it in mail, of 1,205 ready, at most about 6m 2s at the "
        "present rate (200 a minute)"
    )
    assert "counted for 0 s only" in made.unknown[-1]


def test_a_delay_says_until_when(here: Connection) -> None:
    uuid = dispatch(Plain()).delay(3600).send()
    text = said(why(uuid), "delayed")
    assert text.startswith("it is delayed until ")
    assert text.endswith("in 1h")


def test_a_job_that_is_tried_again_says_what_its_last_attempt_ended_with(here: Connection) -> None:
    uuid = dispatch(Plain()).send()
    job = taken(here)
    notes = job.history.ended("error", "ValueError: no stock", time.time()).to_json().encode()
    here.backend.apply(Step(job.reservation, Release(600, notes=notes)))
    text = said(why(uuid), "delayed")
    assert f"attempt 1 on {process.NAME} failed with ValueError: no stock, 0s ago" in text


def test_an_event_that_a_job_waits_for_is_named(here: Connection) -> None:
    uuid = dispatch(Waiter()).send()
    drain(queues="mail")
    made = why(uuid)
    assert said(made, "event").startswith("it waits for the event 'paid' until ")
    assert mended(made, "event") == f"qframe event {uuid} paid"
    sleeps = dispatch(Sleeper()).send()
    drain(queues="mail")
    assert said(why(sleeps), "delayed").startswith("it sleeps until ")


def test_a_used_up_rate_says_until_when(here: Connection) -> None:
    bulk(Limited(number=number) for number in range(2))
    drain(queues="mail")
    (left,) = here.backend.search("mail", b"Limited")
    text = said(why(json.loads(left.raw_body)["uuid"]), "rate limit")
    assert text.startswith("RateLimited holds it back: the limit 1 in 3600 s is used up, until ")
    Limited.middleware[0].pause(7200)
    assert "is paused, until" in said(why(json.loads(left.raw_body)["uuid"]), "rate limit")


def test_a_lock_says_which_job_has_it(here: Connection) -> None:
    uuid = dispatch(Alone()).send()
    name = Alone.middleware[0].name_for(Alone())
    here.store.set(name, f"u-9:1:{time.time() - 60:.3f}-abc", 60)
    worker(here, jobs=[runs("u-9")])
    assert said(why(uuid), "lock") == (
        "WithoutOverlapping holds it back: another job has had its lock for 1m: u-9, which runs "
        "for 5s on web-1:7"
    )


def test_too_many_exceptions_say_until_when(here: Connection) -> None:
    uuid = dispatch(Careful()).send()
    kept = Careful.middleware[0]
    kept._note(here.store, "exceptions:shop:600:", "shop", ValueError())
    text = said(why(uuid), "exceptions")
    assert text.startswith("ThrottlesExceptions holds it back: shop has raised 1 in 600 s, until ")


def test_a_job_in_line_says_which_job_of_its_group_it_waits_for(here: Connection) -> None:
    first, _, third = bulk(OfShop(shop=7, number=number) for number in range(3))
    assert said(why(third), "group") == (
        f"it is number 2 in the line of its group shop:7, which waits for {first}, which is ready"
    )
    taken(here, "strict")
    worker(here, "strict", jobs=[runs(first, queue="strict")])
    assert f"{first}, which runs for 5s on web-1:7" in said(why(third), "group")


def test_a_failed_job_that_blocks_a_group_is_to_be_mended(here: Connection) -> None:
    failed, behind = bulk([OfBrokenShop(shop=7), OfShop(shop=7)])
    drain(queues="strict")
    made = why(behind)
    assert said(made, "blocked") == (
        f"it is number 1 in the line of its group shop:7, which waits for {failed}, which failed "
        "0s ago with ValueError: no stock"
    )
    assert mended(made, "blocked") == f"qframe retry {failed}, or: qframe forget {failed}"


def test_a_later_dispatch_of_a_debounced_job_takes_its_place(here: Connection) -> None:
    first, second = (dispatch(Last()).send() for _ in range(2))
    assert second in said(why(first), "superseded")
    assert "superseded" not in kinds(why(second))


def test_a_job_that_expired_or_may_be_tried_no_more_says_so(
    here: Connection, stopped_clock: Clock
) -> None:
    uuid = dispatch(Stale()).send()
    stopped_clock.now += 0.5
    assert said(why(uuid), "expired") == "it expired 0s ago: the worker that takes it skips it"
    here.push_raw(b'{"uuid": "u-1", "job": "app.Send", "data": {}, "retryUntil": 1}', "mail")
    assert "the next worker fails it" in said(why("u-1", "job"), "expired")


def test_a_worker_that_does_not_know_the_class_is_named_with_its_version(here: Connection) -> None:
    uuid = dispatch(Plain()).send()
    name = f"{HERE}.Plain"
    RefusalNotes(here.store, "here").note(name, f"{name} is not a job of this project")
    worker(here, host=process.NAME, pid=process.pid(), version="2.4.1")
    made = why(uuid)
    assert said(made, "unknown class") == (
        f"no live worker of mail can run {name}: {process.NAME}:{os.getpid()} (version 2.4.1) "
        f"gave it back: {name} is not a job of this project (0s ago)"
    )
    assert made.reasons[0].kind == "unknown class"
    worker(here)
    assert said(why(name), "fewer workers").startswith("1 of 2 workers of mail cannot run")


def test_a_payload_that_no_worker_runs_is_told(here: Connection) -> None:
    php = "Illuminate\\\\Queue\\\\CallQueuedHandler@call"
    here.push_raw(f'{{"uuid": "php-1", "job": "{php}", "data": {{}}}}'.encode(), "mail")
    assert "PHP-serialized" in said(why("php-1", "job"), "unreadable")


def test_a_payload_with_a_wrong_signature_is_told(make: Made) -> None:
    key = "0123456789abcdef0123456789abcdef"
    here = make(signing_key=key, signing="require")
    here.push_raw(b'{"uuid": "bad-1", "job": "app.Send", "data": {}}', "mail")
    made = why("bad-1", "job")
    assert said(made, "unsigned").startswith("every worker with these keys refuses it: ")
    assert made.reasons[0].kind == "unsigned"
    assert "unsigned" not in kinds(why(dispatch(Plain()).send()))


def test_without_its_code_the_limits_of_a_class_are_not_known(here: Connection) -> None:
    here.push_raw(b'{"uuid": "u-1", "job": "nowhere.Send", "data": {}}', "mail")
    assert "its code is not here" in " ".join(why("u-1", "job").unknown)
    assert "not imported here" in " ".join(why("u-1", "job", imports=False).unknown)


# -- a job that is taken, or has ended ------------------------------------------------------------


def test_a_running_job_says_where_it_runs(here: Connection) -> None:
    uuid = dispatch(Plain()).send()
    taken(here)
    worker(here, jobs=[runs(uuid)])
    made = why(uuid)
    assert said(made, "running") == "it runs for 5s on web-1:7, attempt 1"
    assert made.code == 0


def test_the_lease_of_a_dead_worker_says_when_the_job_is_back(here: Connection) -> None:
    uuid = dispatch(Plain()).send()
    job = taken(here)
    made = why(uuid)
    assert kinds(made) == ["no worker", "lease"], "all that hold at once"
    text = said(made, "lease")
    assert text.startswith(
        f"its lease is held by a worker that is gone, {process.NAME}:{os.getpid()}, back in "
    )
    assert job.attempts() == 1
    worker(here, host=process.NAME, pid=os.getpid())
    assert said(why(uuid), "running").startswith(f"it is being run by {process.NAME}:")


def test_a_job_that_is_only_held_says_so(here: Connection) -> None:
    uuid = dispatch(Plain()).send()
    (job,) = here.reserve(["mail"])
    assert said(why(uuid), "held").startswith("a worker has reserved it, back in ")
    assert job.uuid == uuid


def test_a_failed_job_says_when_where_and_by_what(here: Connection) -> None:
    uuid = dispatch(Broken()).send()
    drain(queues="mail")
    made = why(uuid)
    assert said(made, "failed") == (
        f"it failed 0s ago on {process.NAME}, at attempt 1: ValueError: no stock"
    )
    assert mended(made, "failed") == f"qframe retry {uuid}, or: qframe forget {uuid}"
    assert (made.state, made.code) == ("failed", 1)
    name = f"{HERE}.Broken"
    assert "1 job of it has failed, most with ValueError: no stock" in said(why(name), "causes")
    here.failed.flush()
    assert "its record is not kept any more" in said(why(uuid), "ended")


def test_a_job_that_is_done_says_when_and_where(here: Connection) -> None:
    uuid = dispatch(Tracked()).send()
    drain(queues="mail")
    made = why(uuid)
    assert said(made, "ended") == f"it is not there: it was done 0s ago on {process.NAME}"
    assert made.code == 0
    cancelled = dispatch(Tracked()).send()
    here.cancel(cancelled)
    assert "it was cancelled 0s ago: cancelled while it waited" in said(why(cancelled), "ended")


def test_a_job_that_left_its_queue_unnoticed_says_so(here: Connection) -> None:
    uuid = dispatch(Tracked()).send()
    here.backend.purge("mail")
    assert said(why(uuid), "absent").startswith("its status says that it waits, since 0s ago")


def test_a_job_that_nobody_knows_says_what_that_means(here: Connection) -> None:
    uuid = dispatch(Plain()).send()
    drain(queues="mail")
    made = why(uuid)
    text = said(made, "absent")
    assert text.startswith("it is not there: it does not wait, run or fail on here; by its id")
    assert "done, was removed, or was never pushed here" in text
    assert (made.about, made.code) == ("nothing", 3)


def test_a_job_of_another_connection_is_found(make: Made) -> None:
    make(connections={"other": {"driver": "memory"}})
    uuid = dispatch(Plain()).on_connection("other").send()
    assert why(uuid).connection == "other"
    made = why(uuid, connection="here")
    assert made.connection == "other"
    assert made.unknown[0] == "why it would be on here: it is not there"


def test_a_job_that_moves_meanwhile_is_read_again(
    here: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = dispatch(Plain()).send()
    explained, moved = of_job._explained, list[str]()

    def moving(*arguments: Any, **options: Any) -> Explanation:
        made = explained(*arguments, **options)
        if not moved:
            moved.append(made.state)
            taken(here)
        return made

    monkeypatch.setattr(of_job, "_explained", moving)
    made = why(uuid)
    assert (moved, made.state) == (["ready"], "running")
    here.backend.purge("mail")

    def ending(*arguments: Any, **options: Any) -> Explanation:
        made = explained(*arguments, **options)
        drain(queues="mail")
        return made

    monkeypatch.setattr(of_job, "_explained", ending)
    other = dispatch(Plain()).send()
    made = why(other)
    assert said(made, "ended") == (
        "it was ready when this was read first, and is gone now: it is done, or removed"
    )


# -- a job that is not pushed yet -----------------------------------------------------------------


def test_a_later_link_of_a_chain_says_which_link_it_waits_for(here: Connection) -> None:
    chain([Plain(), Broken(), Tracked()]).dispatch()
    taken(here).delete()
    (broken,) = here.backend.search("mail", b"Broken")
    at = json.loads(broken.raw_body)["uuid"]
    (_, text) = next(each for each in here.store.items("chain:") if at in each[0])
    uuid = json.loads(text)["uuid"]
    made = why(uuid)
    assert f"whose link 2 is {at}, which is ready" in said(made, "before it")
    drain(queues="mail")
    made = why(uuid)
    assert f"whose link 2 is {at}, which failed 0s ago with ValueError" in said(made, "blocked")
    assert mended(made, "blocked") == f"qframe retry {at}"
    assert made.state == "not pushed yet"


def test_a_later_node_of_a_flow_says_which_nodes_it_waits_for(here: Connection) -> None:
    flow = Flow("night")
    first = flow.add(Broken())
    flow.add(Tracked(), after=[first])
    identity = flow.dispatch().id
    ((_, text),) = here.store.items(f"flow:{identity}:j:")
    uuid = json.loads(text)["links"][0]["uuid"]
    assert "waits for Broken, which waits or runs" in said(why(uuid), "before it")
    drain(queues="mail")
    text = said(why(uuid), "blocked")
    assert "waits for Broken, which failed 0s ago with ValueError: no stock" in text


def test_a_callback_says_which_batch_it_follows(here: Connection) -> None:
    made = batch([Plain(), Plain()]).then(Tracked()).dispatch()
    text = next(text for _, text in here.store.items(f"batch:{made.id}") if "Tracked" in text)
    uuid = text.split('\\"uuid\\":\\"')[1].split('\\"')[0]
    assert said(why(uuid), "before it") == (
        f"it follows the batch {made.id}, which is running: 2 of 2 members pending"
    )


# -- what is meant --------------------------------------------------------------------------------


def test_a_class_names_its_queues_and_counts_its_jobs(here: Connection) -> None:
    worker(here)
    dispatch(Plain()).send()
    made = why(f"{HERE}.Plain")
    assert (made.about, made.queue, made.state) == ("class", "mail", "1 job waits")
    assert said(made, "ready") == "nothing holds it up: 1 job waits, in mail"


def test_of_a_class_is_said_that_its_jobs_are_delayed(here: Connection) -> None:
    worker(here)
    dispatch(Plain()).delay(3600).send()
    made = why(f"{HERE}.Plain")
    assert [each.kind for each in made.reasons] == ["delayed"]
    assert said(made, "delayed").startswith("it is delayed, until 2")
    dispatch(Plain()).send()
    made = why(f"{HERE}.Plain")
    assert said(made, "delayed").startswith("1 of 2 are delayed, the first until 2")


def test_a_part_of_an_id_is_enough_if_only_one_has_it(here: Connection) -> None:
    failed = [dispatch(Broken(number=number)).send() for number in range(2)]
    drain(queues="mail")
    assert why(failed[0][-8:]).uuid == failed[0]
    with pytest.raises(AmbiguousId):
        why(failed[0][:8])


def test_nothing_that_is_known_names_what_may_be_meant(here: Connection) -> None:
    worker(here, "mail")
    made = why("mial")
    assert (made.about, made.code) == ("nothing", 3)
    assert said(made, "absent").startswith(
        "nothing is known of 'mial' on here (did you mean mail?): no job has such an id"
    )
    assert mended(made, "absent") == "qframe why mail"


@pytest.mark.parametrize("word", ["", " ", "a\0b"])
def test_a_word_that_can_be_nothing_is_refused(here: Connection, word: str) -> None:
    with pytest.raises(ConfigurationError):
        why(word)
    assert here.name == "here"


def test_an_unknown_kind_or_connection_is_refused(here: Connection) -> None:
    for arguments in (("mail", "thing"), ("mail", "queue", "nowhere")):
        with pytest.raises(ConfigurationError):
            why(*arguments)
    assert here.name == "here"


@pytest.mark.parametrize("word", ["a\nb 'c' \"d\"", "😀" * 50, "%s{}", "x" * 5000, "-" * 36])
def test_hostile_words_are_only_not_known(here: Connection, word: str) -> None:
    here.push_raw(b"\xff\xfe not json", "mail")
    here.push_raw(b'{"uuid": 7, "job": null, "group": [], "debounce": 3, "chain": "x"}', "mail")
    assert why(word).about == "nothing"


def test_a_command_to_copy_is_safe_whatever_names_are(here: Connection) -> None:
    uuid = "u; rm -rf ~ $(id) `id` '"
    raw = json.dumps({"uuid": uuid, "job": "app.A", "data": {}}).encode()
    here.backend.apply(Step(None, Push("a b;c", raw)))
    assert said(why(uuid, "job"), "turn") == "it is the next job of a b;c"
    ((job,), _) = here.backend.reserve(["a b;c"])
    here.backend.apply(Step(job, Start(9)), Step(job, Bury()))
    made = why(uuid, "job")
    assert shlex.split(mended(made, "buried")) == ["qframe", "kick", "here", "--queue", "a b;c"]
    assert made.uuid == uuid
    for each in made.reasons:
        assert "\n" not in each.text + each.mend


def test_hostile_payloads_are_explained_like_any_other(here: Connection) -> None:
    deep = "[" * 200 + "]" * 200
    for number, more in enumerate(
        (
            '"debounce": {"key": "debounce:x\\u0000", "for": 1e999}',
            '"group": "a\\nb", "expiresAt": "soon", "retryUntil": {}',
            f'"data": {deep}',
            '"chain": {"id": "x"}, "unique": {}',
        )
    ):
        here.push_raw(f'{{"uuid": "h-{number}", "job": "app.A", {more}}}'.encode(), "mail")
        made = why(f"h-{number}", "job")
        assert made.about in {"job", "nothing"}


def test_a_connection_that_does_not_answer_is_named(
    make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(connections={"other": {"driver": "memory"}})
    current = manager.current()
    assert current is not None

    def silent(*_: Any, **__: Any) -> Any:
        raise BackendUnavailable("other is down")

    backend = current.connection("other").backend
    for name in ("read", "scan", "queues", "search", "find_failed", "sizes", "spans"):
        monkeypatch.setattr(backend, name, silent)
    made = why("01a21f06-92ad-74c8-bbe0-3e61d20a98cb")
    assert said(made, "silent").startswith("other does not answer, and it may be there: ")
    uuid = dispatch(Plain()).send()
    assert "other does not answer" in " ".join(why(uuid).unknown)
    here = current.connection("here").backend
    for name in ("read", "scan", "queues", "search", "find_failed", "sizes", "spans"):
        monkeypatch.setattr(here, name, silent)
    with pytest.raises(BackendUnavailable):
        why(uuid)


# -- what others leave behind ---------------------------------------------------------------------


def test_a_worker_notes_the_class_that_it_cannot_run(here: Connection) -> None:
    raw = b'{"uuid": "u-1", "job": "tests.operations.test_why.Newer", "data": {}}'
    here.push_raw(raw, "mail")
    assert manager.current() is not None
    _OneTurn(
        manager.current(), WorkerOptions(queues=("mail",), stop_when_empty=True, memory=0)
    ).run()
    assert b"u-1" in here.backend.search("mail", b"u-1")[0].raw_body
    (noted,) = refusals.read(here.store, "here", "tests.operations.test_why.Newer")
    assert (noted.host, noted.pid) == (process.NAME, os.getpid())
    assert "Newer is not" in noted.why
    worker(here, host=noted.host, pid=noted.pid, version="2.4.1")
    made = why("u-1", "job")
    assert "(version 2.4.1) gave it back" in said(made, "unknown class")
    assert ", given back once by a worker that cannot run it" in said(made, "delayed")


def test_a_worker_is_listed_with_the_version_of_the_application(make: Made) -> None:
    here = make(version="2.4.1")
    seen = list[Entry]()
    one = _OneTurn(manager.current(), WorkerOptions(queues=("mail",), max_time=0.1, memory=0))
    one.on_written = seen.append
    one.run()
    assert {each.version for each in seen} == {"2.4.1"}
    assert here.name == "here"


def test_a_schedule_that_is_off_late_or_next_is_told(here: Connection) -> None:
    queues = manager.current()
    assert queues is not None
    rows = ScheduleRows(queues)
    row = ScheduleRow(job="app.Night", data={}, when="0 3 * * *", queue="mail", foreign=True)
    rows.add(here, "night", row)
    worker(here)
    made = why("app.Night", "class")
    assert said(made, "schedule").startswith("its schedule night makes the next job at ")
    rows.pause(here, "night")
    made = why("app.Night", "class")
    assert said(made, "schedule off") == "its schedule night is paused: it makes no jobs"
    assert mended(made, "schedule off") == "qframe schedule resume night"


def test_queues_under_another_prefix_are_named(
    here: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"laravel_database_": ["mail", "other"]}
    monkeypatch.setattr(here.backend, "queues_elsewhere", lambda: found)
    worker(here)
    made = why("mail")
    assert said(made, "elsewhere") == (
        "there is a queue mail under another prefix, 'laravel_database_': do its pushers write "
        "there?"
    )
    uuid = "01a21f06-92ad-74c8-bbe0-3e61d20a98cb"
    assert "queues (mail and other) under another prefix" in said(why(uuid), "elsewhere")


def test_dispatches_in_the_outbox_are_counted(make: Made) -> None:
    make(connections={"sql": {"driver": "database"}}, outbox={"connection": "sql"})
    queues = manager.current()
    assert queues is not None
    outbox = queues.outbox()
    assert outbox is not None
    outbox.add("here", ["{}"])
    made = why("01a21f06-92ad-74c8-bbe0-3e61d20a98cb")
    assert said(made, "not relayed") == (
        "the outbox has 1 dispatch for here, the oldest for 0s: it may be among them"
    )


def test_a_failover_names_where_its_jobs_are(make: Made) -> None:
    two = {"driver": "failover", "connections": ["here", "other"]}
    make(
        connections={"other": {"driver": "memory"}, "both": two},
        store={"driver": "here"},
        failed={"driver": "here"},
    )
    assert said(why("mail", "queue", "both"), "moved") == (
        "both is a failover: its jobs are on here or other, the first that answered"
    )


def test_what_a_backend_cannot_show_is_said(
    here: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = dispatch(Tracked()).send()
    untracked = dispatch(Plain()).send()
    lacks = Capability.SEARCH | Capability.SIZE | Capability.BROWSE | Capability.LIST
    monkeypatch.setattr(here, "capabilities", here.capabilities & ~lacks)
    made = why(uuid)
    assert said(made, "turn") == "it waits in mail of here: it was dispatched 0s ago"
    assert "here cannot be searched: whether it is there still" in " ".join(made.unknown)
    assert said(made, "no worker") == "no worker of here runs"
    made = why(untracked)
    assert "an untracked job may wait there" in " ".join(made.unknown)
    assert "on here it has not failed, and no worker runs it" in said(made, "absent")
    assert made.about == "nothing"
    assert "here does not count its jobs" in why("mail", "queue").unknown
    made = why(f"{HERE}.Plain")
    assert "here does not show its jobs: how many of the class wait" in made.unknown


def test_a_million_jobs_before_it_are_not_all_read(
    here: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = dispatch(Plain()).send()
    browse = here.backend.browse

    def endless(*arguments: Any) -> Any:
        return browse(arguments[0], arguments[1], 0)._replace(after="1")

    monkeypatch.setattr(here.backend, "count_before", lambda _: None)
    monkeypatch.setattr(turn, "_SECONDS", 0.05)
    monkeypatch.setattr(here.backend, "browse", endless)
    assert "more than 0 jobs are before it" in said(why(uuid), "turn")


# -- rarer sentences ------------------------------------------------------------------------------


def test_workers_without_a_sign_of_life_are_told(here: Connection) -> None:
    uuid = dispatch(Plain()).send()
    worker(here, beat_at=time.time() - 25)
    assert (
        "no worker of mail has given a sign of life lately: web-1:7 (25s ago)" in why(uuid).unknown
    )


def test_a_job_that_moves_again_and_again_is_told(
    here: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = dispatch(Plain()).send()
    moves = iter(range(100))
    monkeypatch.setattr(of_job, "where_it_is", lambda _: (next(moves),))
    assert "it moves so fast that it may be elsewhere by now" in why(uuid).unknown


def test_the_rate_of_a_group_is_told(make: Made) -> None:
    make(groups={"strict": {"rate": "1/h"}})
    bulk(OfShop(shop=7, number=number) for number in range(2))
    drain(queues="strict")
    (left,) = why_delayed("strict")
    assert said(why(left), "group").startswith("the rate of its group shop:7 lets the next start")


def why_delayed(queue: str) -> list[str]:
    """Give the ids of the delayed jobs of a queue."""
    current = manager.current()
    assert current is not None
    page = current.connection("here").backend.browse(queue, Place.DELAYED)
    return [json.loads(each.raw_body)["uuid"] for each in page.found]


def test_a_lock_of_an_earlier_attempt_is_its_own(here: Connection) -> None:
    uuid = dispatch(Alone()).send()
    name = Alone.middleware[0].name_for(Alone())
    here.store.set(name, f"{uuid}:1:{time.time():.3f}-abc", 60)
    assert "its own attempt 1 has the lock still, until" in said(why(uuid), "lock")


def test_middleware_that_cannot_be_asked_is_told(
    here: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = dispatch(Limited()).send()

    def broken(*_: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(RateLimited, "holding", broken)
    assert "RateLimited cannot be asked: RuntimeError: no" in why(uuid).unknown
    monkeypatch.setattr(Limited, "from_data", broken)
    assert "its middleware cannot be asked: RuntimeError: no" in why(uuid).unknown


def test_middleware_of_a_program_tells_in_its_own_words(
    here: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = dispatch(Limited()).send()
    held = HeldBack("office hours", "it is 20 o'clock", None)
    monkeypatch.setattr(RateLimited, "holding", lambda *_: held)
    assert said(why(uuid), "office hours") == "RateLimited holds it back: it is 20 o'clock"


def test_how_a_tracked_job_ended_that_is_not_there(here: Connection, stopped_clock: Clock) -> None:
    skipped = dispatch(Stale()).track().send()
    stopped_clock.now += 0.5
    drain(queues="mail")
    assert said(why(skipped), "ended").endswith(": it had expired")
    running = dispatch(Tracked()).send()
    job = taken(here)
    for feature in job.features:
        here.backend.apply(Step(None, *feature.look(job)))
    job.reservation.started = True
    here.backend.purge("mail")
    here.backend.apply(Step(job.reservation, Delete()))
    text = said(why(running), "lease")
    assert text.startswith(f"its status says that it runs on {process.NAME}, since 0s ago, and no")


def test_a_retry_that_would_be_refused_is_told(make: Made) -> None:
    here = make(signing_key="0123456789abcdef0123456789abcdef", signing="require")
    raw = b'{"uuid": "bad-1", "job": "app.Send", "data": {}}'
    here.push_raw(raw, "mail")
    drain(queues="mail")
    (record,) = here.failed.page(2)
    assert said(why(record.uuid, "job"), "unsigned").startswith("a retry is refused as well: ")


def test_chains_and_flows_of_which_nothing_is_left_are_told(here: Connection) -> None:
    chain([Plain(), Tracked()]).catch(Plain(number=9)).dispatch()
    texts = dict(here.store.items("chain:"))
    (key,) = (key for key in texts if key.count(":") == 2 and not key.endswith(":catch"))
    uuid = json.loads(texts[key])["uuid"]
    caught = json.loads(next(texts[each] for each in texts if each.endswith(":catch")))[0]["uuid"]
    assert said(why(caught), "before it").startswith("it runs only if a link of the chain")
    here.store.delete(key.rpartition(":")[0])
    assert said(why(uuid), "blocked").endswith("of which the rest is not kept any more")


def test_more_chains_than_can_be_looked_at_in_time_are_told(
    here: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        chain([Plain(), Tracked()]).dispatch()
    monkeypatch.setattr(before, "_PAGE", 1)
    monkeypatch.setattr(before, "_SECONDS", 0.0)
    made = why("01a21f06-92ad-74c8-bbe0-3e61d20a98cb")
    assert (
        "not all chains, flows and batches of here were looked at: there are many" in made.unknown
    )


def test_more_jobs_than_can_be_counted_in_time_are_told(
    here: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk(Plain(number=number) for number in range(600))
    monkeypatch.setattr(of_class, "_SECONDS", 0.0)
    monkeypatch.setattr(of_class, "_LISTED", 10)
    made = why(f"{HERE}.Plain", "class")
    assert made.state != "600 jobs wait"
    assert "not all jobs of here were looked at" in " ".join(made.unknown)


def test_a_batch_whose_members_failed_is_to_be_mended(here: Connection) -> None:
    made = batch([Broken(), Plain()]).then(Tracked()).dispatch()
    drain(queues="mail")
    text = next(text for _, text in here.store.items(f"batch:{made.id}") if "Tracked" in text)
    uuid = text.split('\\"uuid\\":\\"')[1].split('\\"')[0]
    assert said(why(uuid), "blocked").endswith("0 of 2 members pending, 1 failed")
    assert mended(why(uuid), "blocked") == f"qframe retry-batch {made.id}"


def test_the_id_of_a_batch_flow_or_chain_says_how_far_it_is(here: Connection) -> None:
    several = batch([Plain(), Plain()]).dispatch().id
    assert said(why(several), "before it") == (
        "it is a batch, which is running: 2 of 2 members pending"
    )
    assert why(several).state == "a batch"
    flow = Flow("night")
    flow.add(Tracked(), after=[flow.add(Broken())])
    identity = flow.dispatch().id
    assert said(why(identity), "before it") == (
        "it is a flow, which is running: 0 of 2 nodes ended; now Broken, which waits or runs"
    )
    chain([Broken(), Tracked()]).dispatch()
    key = next(key for key, _ in here.store.items("chain:") if key.count(":") == 1)
    of_chain = key.partition(":")[2]
    assert said(why(of_chain), "before it").startswith("it is a chain, whose link 1 is ")
    drain(queues="mail")
    assert said(why(several), "ended").endswith("which is finished: 0 of 2 members pending")
    made = why(identity)
    text = said(made, "blocked")
    assert text.startswith("it is a flow, which is failed: 1 of 2 nodes ended; it waits for Broken")
    assert mended(made, "blocked").startswith("qframe retry ")
    assert "whose link 1 is" in said(why(of_chain), "blocked")


def test_a_schedule_that_is_refused_late_or_made_none_is_told(
    here: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = manager.current()
    assert queues is not None
    row = ScheduleRow(job="app.Night", data={}, when="0 3 * * *", queue="mail", foreign=True)
    ScheduleRows(queues).add(here, "a night", row)
    (usual,) = schedules.states(queues, here)
    skipped = {"skipped": "a condition", "skipped_at": "2026-11-27 03:00:00"}
    for changed, kind, expected in (
        ({"refused": "not signed"}, "schedule off", "its schedule a night is refused: not signed"),
        ({"late_seconds": 7200.0}, "schedule off", "its schedule a night was due 2h ago, and no"),
        (skipped, "schedule", "a night made none at 2026-11-27 03:00:00 UTC: a condition"),
    ):
        state = usual.model_copy(update=changed)
        monkeypatch.setattr(schedules, "states", lambda *_, state=state: [state])
        made = why("app.Night", "class")
        assert expected in said(made, kind)
        if "refused" in changed:
            assert mended(made, kind) == "qframe schedule sign 'a night'"
