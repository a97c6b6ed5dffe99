"""A server that refuses, forgets, stalls, restarts or cuts its connections."""

from __future__ import annotations

import shutil
import time
import uuid as uuids
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import redis

from qframe import Queueable, dispatch, manager
from qframe.contracts import Sizes
from qframe.drivers.redis import scripts
from qframe.drivers.redis.job import RedisJob
from qframe.drivers.redis.link import Link
from qframe.drivers.redis.queue import RedisQueue
from qframe.drivers.redis.waiting import Listener
from qframe.exceptions import BackendUnavailable, BackendUnusable, LeaseLost
from tests.drivers.redis.acts import ALL, PUSHES, STORE, WORK, Make
from tests.drivers.redis.conftest import Connect, MakeProject
from tests.drivers.redis.support import (
    RedisProject,
    Waiting,
    begin,
    body,
    drain,
    lines_with,
    push,
    take,
    take_all,
    wait_for_line,
)
from tests.support.process import wait_for
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisServer, wait_until


def over(*tables: dict[str, Make]) -> pytest.MarkDecorator:
    """Run a test over each act of some tables."""
    acts = {name: make for table in tables for name, make in table.items()}
    return pytest.mark.parametrize("make", acts.values(), ids=acts.keys())


def raises_until(make: Make, queue: RedisQueue, fault: Any, words: str) -> None:
    """While there is the fault the act raises, saying so; afterwards it can be repeated."""
    act = make(queue)
    with fault, pytest.raises(BackendUnavailable, match=words) as error:
        act.do()
    assert not isinstance(error.value, BackendUnusable)
    act.do()
    act.check()


# -- a replica ----------------------------------------------------------------------------------


@contextmanager
def demoted(server: RedisServer) -> Iterator[None]:
    """Let the server be a replica, of nobody who could be reached."""
    server.command("REPLICAOF", "127.0.0.1", "1")
    yield
    server.command("REPLICAOF", "NO", "ONE")


@over(ALL)
def test_a_replica_takes_no_changes_and_loses_nothing(
    own_server: RedisServer, own_queue: RedisQueue, make: Make
) -> None:
    raises_until(make, own_queue, demoted(own_server), "it is a read-only replica")


def test_a_wait_ends_when_its_server_becomes_a_replica(
    own_server: RedisServer, own_queue: RedisQueue
) -> None:
    assert own_queue.reserve(["emails"]) == []
    with Waiting(own_queue, ["emails"], 60) as waiting:
        wait_for_blocked(own_server)
        with demoted(own_server):
            wait_for(waiting.over, "the end of the wait")
            with pytest.raises(BackendUnavailable, match="it is a read-only replica"):
                own_queue.reserve(["emails"])
    uuid = push(own_queue)
    assert drain(own_queue) == [uuid]


def test_a_worker_says_once_that_its_server_became_a_replica(
    own_server: RedisServer, app: RedisProject
) -> None:
    worker = app.work("redis")
    wait_for_blocked(own_server)
    with demoted(own_server):
        wait_for_line(worker, "redis gone: ")
    app.push("Note")
    app.wait_for_note("note")
    assert worker.stop() == 0
    assert [len(lines_with(worker, word)) for word in ("gone", "back")] == [1, 1]
    assert "read-only replica" in worker.out


def wait_for_blocked(server: RedisServer, count: int = 1) -> None:
    """Wait until so many clients are blocked in a pop."""
    wait_until(lambda: server.info("clients")["blocked_clients"] >= count, "a blocked client")


# -- a disk that cannot be written --------------------------------------------------------------


@contextmanager
def without_a_disk(server: RedisServer, folder: Path) -> Iterator[None]:
    """Let the server fail to write its snapshot, and then refuse changes."""
    folder.mkdir()
    server.set("dir", folder)
    shutil.rmtree(folder)
    server.command("BGSAVE")
    wait_until(
        lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err", "a failed snapshot"
    )
    yield
    server.set("dir", server.folder)
    server.command("BGSAVE")
    wait_until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "ok", "a snapshot")


@pytest.fixture
def saving(tmp_path: Path) -> Iterator[RedisServer]:
    """Give a server that writes snapshots, and takes no changes when that fails."""
    lines = ["save 3600 1", "enable-protected-configs local"]
    with RedisServer(tmp_path / "redis", config=lines) as server:
        yield server


@over(ALL)
def test_a_server_that_cannot_write_its_disk_loses_nothing(
    saving: RedisServer, connect: Connect, tmp_path: Path, make: Make
) -> None:
    fault = without_a_disk(saving, tmp_path / "gone")
    raises_until(make, connect(url=saving.url), fault, "it cannot write to its disk")


# -- no memory ----------------------------------------------------------------------------------


@contextmanager
def full(server: RedisServer) -> Iterator[None]:
    """Let the server have no memory left."""
    server.set("maxmemory", int(server.info("memory")["used_memory"]) - 200_000)
    yield
    server.set("maxmemory", 0)


@over(PUSHES, STORE)
def test_a_full_server_takes_no_more_jobs_and_says_so(
    own_server: RedisServer, own_queue: RedisQueue, make: Make
) -> None:
    raises_until(make, own_queue, full(own_server), r"its memory is full \(maxmemory\)")


@over(PUSHES)
def test_nothing_is_queued_by_a_push_that_a_full_server_refused(
    own_server: RedisServer, own_queue: RedisQueue, make: Make
) -> None:
    act = make(own_queue)
    with full(own_server), pytest.raises(BackendUnavailable):
        act.do()
    assert own_queue.queues() == []


@over(WORK)
def test_the_jobs_of_a_full_server_can_be_taken_and_settled(
    own_server: RedisServer, own_queue: RedisQueue, make: Make
) -> None:
    act = make(own_queue)
    with full(own_server):
        act.do()
        act.check()


def test_a_worker_empties_a_full_server(own_server: RedisServer, app: RedisProject) -> None:
    for number in range(30):
        app.push("Note", {"word": str(number)}, delay=number % 3)
    app.push("Flaky", queue="flaky")
    with full(own_server):
        worker = app.work("redis", "--queue", "default,flaky")
        app.wait_for_note("note", count=30)
        wait_for(app.failed, "the failed job")
        assert worker.stop() == 0
    assert (lines_with(worker, "gone"), worker.err) == ([], "")
    assert app.empty()
    assert app.empty("flaky")


# -- loading ------------------------------------------------------------------------------------


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[RedisServer]:
    """Give a server that takes a while to load what it has, when it is started again."""
    lines = ["loading-process-events-interval-bytes 1024"]
    with RedisServer(tmp_path / "redis", fsync="always", config=lines) as server:
        yield server


def load_slowly(server: RedisServer) -> None:
    """Kill the server and start it again; it says LOADING from then on, for about a second."""
    server.command("MSET", *(word for n in range(500) for word in (f"ballast-{n}", "x" * 4096)))
    server.set("key-load-delay", 2000)
    server.command("CONFIG", "REWRITE")
    server.rewrite_aof()
    server.restart(kill=True, ready=False)


@over({name: ALL[name] for name in ("push", "reserve", "delete")})
def test_a_server_that_loads_its_data_is_said_to(
    slow: RedisServer, connect: Connect, make: Make
) -> None:
    act = make(connect(url=slow.url))
    load_slowly(slow)
    with pytest.raises(BackendUnavailable, match="it is still loading its data"):
        act.do()
    wait_until(slow.answers, "the end of loading")
    act.do()
    act.check()


def test_a_job_outlives_the_restart_of_its_server(
    slow: RedisServer, connect: Connect, make_project: MakeProject
) -> None:
    app = make_project(url=slow.url, retry_after=30)
    app.push("Sleep", {"seconds": 0.5})
    worker = app.work("redis")
    app.wait_for_note("start")
    load_slowly(slow)
    app.wait_for_note("end")
    wait_until(slow.answers, "the end of loading")
    app.push("Note")
    app.wait_for_note("note")
    assert worker.stop() == 0
    assert len(app.notes("start")) == 1
    assert app.empty()
    assert app.failed() == []
    assert len(lines_with(worker, "gone")) <= 1
    assert len(lines_with(worker, "gone")) == len(lines_with(worker, "back"))
    assert lines_with(worker, "LOST") == []


@over(ALL)
def test_a_restart_of_the_server_between_two_calls_goes_unnoticed(
    own_server: RedisServer, own_queue: RedisQueue, make: Make
) -> None:
    act = make(own_queue)
    own_server.restart(kill=True)
    act.do()
    own_server.restart(kill=True)
    act.check()


@over(ALL)
def test_a_server_that_is_down_is_said_to_be(
    own_server: RedisServer, own_queue: RedisQueue, make: Make
) -> None:
    act = make(own_queue)
    own_server.kill()
    with pytest.raises(BackendUnavailable, match="does not answer"):
        act.do()
    own_server.start()
    act.do()
    act.check()


def test_a_restart_between_two_waits_goes_unnoticed(
    own_server: RedisServer, own_queue: RedisQueue
) -> None:
    for _ in range(2):
        assert own_queue.reserve(["emails"]) == []
        own_queue.wait(["emails"], 0.01)
        own_server.restart(kill=True)


# -- scripts forgotten --------------------------------------------------------------------------


@pytest.fixture
def forgetful(own_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the server forget its scripts before every single exchange."""
    send = Link._send
    with own_server.client() as client:

        def forget_and_send(link: Link, *arguments: Any) -> None:
            client.script_flush()
            send(link, *arguments)

        monkeypatch.setattr(Link, "_send", forget_and_send)
        yield


@over(ALL)
def test_a_server_that_forgets_its_scripts_is_told_them(
    forgetful: None, own_queue: RedisQueue, make: Make
) -> None:
    act = make(own_queue)
    act.do()
    act.check()


@pytest.mark.parametrize("brought_back", [False, True])
def test_starts_not_waited_for_outlive_forgotten_scripts(
    own_server: RedisServer, own_queue: RedisQueue, connect: Connect, brought_back: bool
) -> None:
    another = connect(url=own_server.url)
    for _ in range(30):
        push(own_queue)
    push(another, "reports")
    jobs = own_queue.reserve(["emails"], 30)
    done = None
    for number, job in enumerate(jobs):
        assert own_queue.start(job, finished=done)
        done = job
        if number % 3 == 1:
            own_server.command("SCRIPT", "FLUSH")
        if number == 20 and brought_back:  # by somebody else, between the starts
            begin(another, "reports").release(60)
            another.sizes("reports")
    assert own_queue.reserve(["emails"], finished=done) == []
    assert own_queue.sizes("emails") == Sizes()
    assert own_queue.refused() == []
    assert [job.attempts() for job in jobs] == [1] * 30


@pytest.mark.parametrize("act", ["renew", "delete"])
def test_a_start_forgotten_unheard_is_said_before_what_another_thread_does(
    own_server: RedisServer, own_queue: RedisQueue, connect: Connect, act: str
) -> None:
    """As the thread that renews leases does, whose script somebody else has brought back."""
    another = connect(url=own_server.url)
    for name in ("emails", "emails", "reports"):
        push(own_queue, name)
    first, second = take_all(own_queue, 2)
    assert own_queue.start(first)
    foreign = begin(another, "reports")
    another.sizes("reports")
    own_server.command("SCRIPT", "FLUSH")
    assert own_queue.start(second)
    getattr(foreign, act)()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(getattr(second, act)).result()
        thread.submit(own_queue.close).result()
    assert not second.is_lost


def test_a_push_by_a_forgotten_script_is_waited_for_by_the_replicas(
    own_server: RedisServer, connect: Connect, tmp_path: Path
) -> None:
    replica = RedisServer(tmp_path / "replica")
    replica.follow(own_server)
    queue = connect(url=own_server.url, min_replicas=1, replica_timeout=5)
    with replica:
        push(queue)
        wait_until(lambda: has_heard_all(own_server), "the replica to have heard everything")
        queue.settings.replica_timeout = 0.1
        replica.pause()
        own_server.command("SCRIPT", "FLUSH")
        with pytest.raises(BackendUnavailable, match=r"only 0 of 1 replicas"):
            push(queue)


def has_heard_all(server: RedisServer) -> bool:
    """Whether the server knows of its replica that it has everything."""
    state = server.info("replication")
    return bool(state["slave0"]["offset"] == state["master_repl_offset"])


# -- connections killed -------------------------------------------------------------------------


def kill_clients(server: RedisServer) -> None:
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


@over(ALL)
def test_a_connection_killed_between_two_calls_goes_unnoticed(
    own_server: RedisServer, own_queue: RedisQueue, make: Make
) -> None:
    act = make(own_queue)
    kill_clients(own_server)
    act.do()
    kill_clients(own_server)
    act.check()


def test_a_worker_whose_connections_are_killed_while_it_waits_goes_on(
    own_server: RedisServer, make_project: MakeProject
) -> None:
    app = make_project(url=own_server.url, block_for=60)
    worker = app.work("redis", "--sleep", 60)
    for turn in range(3):
        wait_for_blocked(own_server)
        kill_clients(own_server)
        app.push("Note", {"word": str(turn)})
        app.wait_for_note("note", turn)
    assert worker.stop() == 0
    assert app.done() == ["0", "1", "2"]
    assert worker.err == ""


def test_a_wait_can_be_ended_before_the_server_has_begun_it(
    proxy: Proxy, through: RedisQueue, own_server: RedisServer, own_queue: RedisQueue
) -> None:
    """The command that ends it may overtake it, on its other connection."""
    listener = Listener(through.links.server, own_queue.links.of(""))
    listener.listen(["queues:emails:notify"], 0.01)
    assert not listener.hear()
    proxy.switch(Mode.DELAY, seconds=0.1)
    assert ended_soon(own_server, listener)
    listener.drop()


def test_a_wait_on_a_server_that_is_not_asked_any_more_can_be_ended(
    own_server: RedisServer, own_queue: RedisQueue, queue: RedisQueue
) -> None:
    """After a failover the wait may be on the old master still."""
    listener = Listener(own_queue.links.server, queue.links.of(""))
    assert ended_soon(own_server, listener)
    wait_until(lambda: own_server.info("clients")["blocked_clients"] == 0, "nobody waiting")


def ended_soon(server: RedisServer, listener: Listener) -> bool:
    """Begin a long wait and end it at once; says whether that took less than two seconds."""
    began = time.monotonic()
    listener.listen(["queues:emails:notify"], 60)
    listener.end([("queues:emails", "queues:emails:notify")])
    return time.monotonic() - began < 2


# -- answers that do not come ---------------------------------------------------------------------


@pytest.fixture
def through(proxy: Proxy, own_server: RedisServer, connect: Connect) -> RedisQueue:
    """Give a connection through the proxy to the server, which knows all scripts."""
    for file in resources.files("qframe.drivers.redis").joinpath("lua").iterdir():
        name = file.name.removesuffix(".lua")
        if name != "shared":
            own_server.command("SCRIPT", "LOAD", scripts.script(name + _MORE.get(name, "")).text)
    for name in ("delete", "start", "fail"):
        own_server.command("SCRIPT", "LOAD", scripts.script(f"{name}+counted").text)
    return connect(url=own_server.url_at(proxy.port))


_MORE = dict.fromkeys(
    ("settle", "batch_create", "batch_grow", "batch_seal", "batch_cancel"), "+batch"
)
"""What stands behind the names of scripts that are only called so."""


@over(ALL)
@pytest.mark.parametrize("mode", [Mode.CUT_REQUEST, Mode.CUT_AFTER_REQUEST])
def test_what_may_have_been_done_is_repeated_and_done_once(
    proxy: Proxy, through: RedisQueue, make: Make, mode: Mode
) -> None:
    act = make(through)
    through.sizes("emails")
    proxy.switch(mode, times=1)
    act.do()
    assert proxy.faults == 1
    act.check()


REPEATABLE = {
    name: make
    for name, make in ALL.items()
    if name not in {
        "push what has no uuid", "bulk", "bulk for several queues", "requeue",
        "forget a failed job", "add to the store", "delete from the store", "take in the store",
        "swap in the store", "give up in the store", "begin a batch", "grow a batch",
        "cancel a batch",
    }
}  # fmt: skip
"""Without those whose repetition is another one, or says that there was nothing left to do."""


@over(REPEATABLE)
def test_what_may_have_been_done_before_the_network_went_is_done_once(
    proxy: Proxy, through: RedisQueue, make: Make
) -> None:
    """The answer is lost, and then the server cannot be reached; the caller repeats the call."""
    act = make(through)
    through.sizes("emails")
    proxy.switch(Mode.CUT_AFTER_REQUEST, times=1)
    connect, through.links.server.connect = through.links.server.connect, _unreachable  # type: ignore[method-assign]
    with pytest.raises(BackendUnavailable):
        act.do()
    through.links.server.connect = connect  # type: ignore[method-assign]
    act.do()
    act.check()


def _unreachable(key: str) -> Any:
    raise ConnectionRefusedError("nobody listens")


def test_a_swap_said_again_does_not_take_that_of_another_for_its_own(
    proxy: Proxy, through: RedisQueue, own_queue: RedisQueue
) -> None:
    """Both would count from 1 to 2: one did, while the other's connection was down."""
    store, others = through.own_store(), own_queue.own_store()
    assert store is not None
    assert others is not None
    store.set("a", "1")
    connect = through.links.server.connect

    def first_another(key: str) -> Any:
        assert others.swap({"a": ("1", "2")})
        return connect(key)

    through.links.server.connect = first_another  # type: ignore[method-assign]
    proxy.switch(Mode.CUT_REQUEST, times=1)
    assert not store.swap({"a": ("1", "2")})
    assert proxy.faults == 1


def test_a_swap_that_was_not_done_is_not_done_later_by_what_was_said_first(
    server: RedisServer, queue: RedisQueue
) -> None:
    """A server that was frozen reads what a closed connection still has for it."""
    store = queue.own_store()
    assert store is not None
    keys = queue.links.keys
    names = (f"{keys.swaps}somebody", f"{keys.store}a")
    values = (60, 0, "", "=1")
    store.set("a", "busy")
    with queue.links.of(keys.store) as link:
        again = scripts.call("store_swap", names, 7, 1, *values)
        first = scripts.call("store_swap", names, 7, 0, *values)
        after = scripts.call("store_swap", names, 8, 0, *values)
        assert link.ask(again) == [0]
        store.delete("a")
        assert link.ask(first) == [0]
        assert store.get("a") == [None]
        assert link.ask(after) == [1]


def test_a_start_that_is_waited_for_is_repeated_and_counted_once(
    proxy: Proxy, through: RedisQueue
) -> None:
    push(through)
    job = take(through)
    time.sleep(0.5)  # it is not certain any more that the job is still held
    proxy.switch(Mode.CUT_AFTER_REQUEST, times=1)
    assert through.start(job)
    assert proxy.faults == 1
    job.release()
    assert begin(through).attempts() == 2


@pytest.mark.parametrize("state", ["held", "started", "failed", "delayed"])
def test_a_push_is_not_doubled_although_a_worker_took_the_first(
    proxy: Proxy, through: RedisQueue, own_queue: RedisQueue, state: str
) -> None:
    """Between the push whose answer is lost and its repetition another worker is quick."""
    connect = through.links.server.connect
    taken: list[str] = []

    def take_first(key: str) -> Any:
        if not taken:
            taken.append(_brought(own_queue, state))
        return connect(key)

    through.sizes("emails")
    proxy.switch(Mode.CUT_AFTER_REQUEST, times=1)
    through.links.server.connect = take_first  # type: ignore[method-assign]
    uuid = push(through, delay=60 if state == "delayed" else 0)
    failed = own_queue.own_failed_store()
    assert failed is not None
    assert own_queue.size("emails") + failed.count() == 1
    assert taken[0] in (uuid, "")


def _brought(queue: RedisQueue, state: str) -> str:
    """Bring the one job of the queue into a state, and give its uuid."""
    if state == "delayed":
        return ""
    job = take(queue)
    if state != "held":
        assert queue.start(job)
    if state == "failed":
        job.fail(ValueError("no"))
    queue.sizes("emails")
    return job.uuid


@pytest.mark.parametrize("how", ["DEBUG SLEEP 0.8", "CLIENT PAUSE 800 ALL"])
def test_a_push_to_a_server_that_stalls_is_not_doubled(
    own_server: RedisServer, connect: Connect, how: str
) -> None:
    """It times out twice, the caller repeats it, and in the end all of it arrives."""
    queue = connect(url=own_server.url, timeout=0.2, connect_timeout=0.2)
    queue.sizes("emails")
    uuid = str(uuids.uuid4())
    _stall(own_server, how)
    with pytest.raises(BackendUnavailable, match="does not answer: Timeout"):
        queue.push_raw(body(uuid), "emails")
    wait_until(own_server.answers, "the server to go on")
    queue.push_raw(body(uuid), "emails")
    assert queue.sizes("emails") == Sizes(ready=1)


def _stall(server: RedisServer, how: str) -> None:
    """Let the server stall from now on; nobody waits for the answer to that."""
    with server.client(socket_timeout=0.05) as client, suppress(redis.TimeoutError):
        client.execute_command(*how.split())


class Welcome(Queueable):
    def handle(self) -> None: ...


@pytest.fixture
def dispatching(proxy: Proxy, through: RedisQueue, monkeypatch: pytest.MonkeyPatch) -> RedisQueue:
    """Let `dispatch` use the connection through the proxy."""

    class Manager:
        def connection(self, _name: str | None = None) -> RedisQueue:
            return through

    monkeypatch.setattr(manager, "_default", Manager())
    return through


def test_a_dispatch_sent_again_after_it_raised_is_not_doubled(
    proxy: Proxy, dispatching: RedisQueue
) -> None:
    pending = dispatch(Welcome()).on_queue("emails")
    dispatching.sizes("emails")
    proxy.switch(Mode.CUT_AFTER_REQUEST)
    with pytest.raises(BackendUnavailable):
        pending.send()
    proxy.switch(Mode.PASS)
    uuid = pending.send()
    assert drain(dispatching) == [uuid]


def test_a_dispatch_that_too_few_replicas_have_is_not_doubled_when_sent_again(
    own_server: RedisServer, dispatching: RedisQueue
) -> None:
    dispatching.settings.min_replicas = 1
    dispatching.settings.replica_timeout = 0.05
    pending = dispatch(Welcome()).on_queue("emails")
    for _ in range(3):
        with pytest.raises(BackendUnavailable, match="queued, but only 0 of 1 replicas"):
            pending.send()
    assert dispatching.sizes("emails") == Sizes(ready=1)


# -- starts that nobody heard of ------------------------------------------------------------------


def test_a_start_that_raised_is_not_counted(own_server: RedisServer, own_queue: RedisQueue) -> None:
    """The server dies with a start unheard, and the next cannot be sent: that job was never run."""
    first, second = push(own_queue), push(own_queue)
    done, job = take_all(own_queue, 2)
    assert own_queue.start(done)
    own_queue.sizes("emails")
    own_server.kill()
    with pytest.raises(BackendUnavailable):
        start_until_it_raises(own_queue, job, done)
    own_server.start()
    own_queue.sizes("emails")
    (again,) = wait_for(lambda: own_queue.reserve(["emails"], finished=done), "the job")
    assert (done.uuid, done.is_deleted, own_queue.refused()) == (first, True, [])
    assert (again.uuid, again.attempts(), again.history.attempts) == (second, 0, ())


def start_until_it_raises(queue: RedisQueue, job: RedisJob, done: RedisJob) -> None:
    """A first write to a dead connection may succeed; say something so that the second is not."""
    wire: Any = queue.links.of(job.keys.reserved)._connection
    wire._socket.close()
    queue.start(job, finished=done)


def test_what_was_not_heard_of_is_done_once_the_server_takes_changes_again(
    saving: RedisServer, connect: Connect, tmp_path: Path
) -> None:
    """Starts and deletions that the server refused, unheard, are said again, not given up."""
    queue = connect(url=saving.url, timeout=30)
    push(queue)
    push(queue)
    done, job = take_all(queue, 2)
    assert queue.start(done)
    queue.sizes("emails")
    began = time.monotonic()
    with without_a_disk(saving, tmp_path / "gone"):
        assert queue.start(job, finished=done)
        for _ in range(2):
            with pytest.raises(BackendUnavailable, match="it cannot write to its disk"):
                queue.sizes("emails")
    assert queue.sizes("emails") == Sizes(reserved=1)
    assert time.monotonic() - began < 20  # no answer is waited for that has come before
    job.release()
    assert begin(queue).attempts() == 2


def test_a_settle_that_was_refused_is_not_taken_for_done_when_the_lease_is_lost(
    saving: RedisServer, connect: Connect, tmp_path: Path
) -> None:
    """Refused is not unheard: whoever repeats the call learns that another worker has the job."""
    queue, another = connect(url=saving.url, retry_after=1), connect(url=saving.url)
    push(queue)
    job = begin(queue)
    queue.sizes("emails")
    with without_a_disk(saving, tmp_path / "gone"), pytest.raises(BackendUnavailable):
        job.delete()
    (taken,) = wait_for(lambda: another.reserve(["emails"]), "the job to come back")
    with pytest.raises(LeaseLost):
        job.delete()
    assert another.start(taken)
    assert taken.attempts() == 2
