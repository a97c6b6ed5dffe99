"""A server that refuses, forgets, stalls, restarts or cuts, whatever it is asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
import redis

from qframe.contracts.step import Push, Renew, Start, Step
from qframe.drivers.redis.backend import RedisBackend
from qframe.drivers.redis.connection import RedisConnection
from qframe.exceptions import BackendUnavailable, BackendUnusable
from qframe.testing.conformance.steps import push, reserve, started, tried
from tests.drivers.redis.acts import LOOKS, PUSHES, WORK, Act, do_all, payload, prepared, ready
from tests.drivers.redis.conftest import Opener
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisServer, wait_until

QUEUE = "q"
Fault = Callable[[RedisServer], AbstractContextManager[None]]


def raise_all(acts: Sequence[Act], words: str, *, unusable: bool = False) -> None:
    """Each act raises, in one line that says why."""
    for act in acts:
        with pytest.raises(BackendUnavailable) as error:
            act.do()
        assert words in str(error.value), act.name
        assert isinstance(error.value, BackendUnusable) == unusable, act.name
        assert len(str(error.value).splitlines()) == 1


# -- faults ---------------------------------------------------------------------------------------


@contextmanager
def demoted(server: RedisServer) -> Iterator[None]:
    """Let the server be a replica, of nobody who could be reached."""
    server.command("REPLICAOF", "127.0.0.1", "1")
    yield
    server.command("REPLICAOF", "NO", "ONE")


@contextmanager
def without_a_disk(server: RedisServer) -> Iterator[None]:
    """Let the server fail to write its snapshot, and then refuse changes."""
    folder = server.folder / "gone"
    folder.mkdir()
    server.set("save", "3600 1")
    server.set("dir", folder)
    shutil.rmtree(folder)
    server.command("BGSAVE")
    wait_until(lambda: _saved(server) == "err", "a failed snapshot")
    yield
    server.set("dir", server.folder)
    server.command("BGSAVE")
    wait_until(lambda: _saved(server) == "ok", "a snapshot")


def _saved(server: RedisServer) -> str:
    return str(server.info("persistence")["rdb_last_bgsave_status"])


@contextmanager
def without_replicas(server: RedisServer) -> Iterator[None]:
    server.set("min-replicas-to-write", 1)
    yield
    server.set("min-replicas-to-write", 0)


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """Let the server be busy with a script of somebody."""
    server.set("busy-reply-threshold", 1)
    with server.client(socket_timeout=0.1) as client, suppress(redis.TimeoutError):
        client.eval("while true do end", 0)
    yield
    server.command("SCRIPT", "KILL")
    server.set("busy-reply-threshold", 5000)


@contextmanager
def down(server: RedisServer) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def loading(server: RedisServer) -> Iterator[None]:
    """Kill the server and start it again; it says LOADING from then on, for some seconds."""
    server.command("MSET", *(word for n in range(500) for word in (f"ballast-{n}", "x" * 4096)))
    server.set("key-load-delay", 5000)
    server.command("CONFIG", "REWRITE")
    server.rewrite_aof()
    server.restart(kill=True, ready=False)
    yield
    server.set("key-load-delay", 0)
    wait_until(server.answers, "the end of loading")


@contextmanager
def locked(server: RedisServer) -> Iterator[None]:
    """Let the server ask for a password."""
    server.set("requirepass", "new")
    server.password = "new"
    kill_clients(server)
    yield
    server.set("requirepass", "")
    server.password = ""


def kill_clients(server: RedisServer) -> None:
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


CHANGES = {**PUSHES, **WORK}
REFUSALS: dict[str, tuple[Fault, str]] = {
    "replica": (demoted, "it is a read-only replica"),
    "disk": (without_a_disk, "it cannot write to its disk"),
    "replicas": (without_replicas, "it has too few replicas"),
}


@pytest.mark.parametrize(("fault", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_server_that_takes_no_changes_says_so_and_loses_nothing(
    own_server: RedisServer, open_backend: Opener, fault: Fault, words: str
) -> None:
    backend = open_backend(own_server.url, timeout=10)
    acts, looks = prepared(backend, CHANGES), prepared(open_backend(own_server.url), LOOKS)
    with fault(own_server):
        raise_all(acts, words)
        do_all(looks)
    do_all(acts)


ABSENCES: dict[str, tuple[Fault, str]] = {
    "down": (down, "does not answer: "),
    "loading": (loading, "it is still loading its data"),
    "busy": (busy, "it is busy with a script of somebody"),
}


@pytest.mark.parametrize(("fault", "words"), ABSENCES.values(), ids=ABSENCES.keys())
def test_a_server_that_is_not_there_is_said_to_be_and_loses_nothing(
    own_server: RedisServer, open_backend: Opener, fault: Fault, words: str
) -> None:
    backend = open_backend(own_server.url)
    acts = prepared(backend, CHANGES, LOOKS)
    with fault(own_server):
        raise_all(acts, words)
    do_all(acts)


def test_a_server_that_asks_for_a_password_is_unusable(
    own_server: RedisServer, open_backend: Opener
) -> None:
    backend = open_backend(own_server.url)
    acts = prepared(backend, CHANGES, LOOKS)
    with locked(own_server):
        raise_all(acts, "it asks for a password", unusable=True)
    do_all(acts)


def test_a_full_server_takes_no_more_and_lets_jobs_end(
    own_server: RedisServer, open_backend: Opener
) -> None:
    backend = open_backend(own_server.url)
    pushes, rest = prepared(backend, PUSHES), prepared(backend, WORK, LOOKS)
    own_server.set("maxmemory", 1)
    raise_all(pushes, "its memory is full (maxmemory)")
    do_all(rest)
    own_server.set("maxmemory", 0)
    do_all(pushes)


# -- what goes unnoticed --------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["restart", "kill connections", "forget scripts"])
def test_trouble_between_two_calls_goes_unnoticed(
    own_server: RedisServer, open_backend: Opener, trouble: str
) -> None:
    make: Callable[[], object] = {
        "restart": lambda: own_server.restart(kill=True),
        "kill connections": lambda: kill_clients(own_server),
        "forget scripts": lambda: own_server.command("SCRIPT", "FLUSH"),
    }[trouble]
    for act in prepared(open_backend(own_server.url), CHANGES, LOOKS):
        make()
        act.do()
        make()
        assert act.check(), act.name


def test_scripts_forgotten_before_every_exchange_are_told(
    server: RedisServer, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = RedisConnection._exchange

    def forget_first(connection: RedisConnection, commands: Sequence[object]) -> list[object]:
        client.script_flush()
        return exchange(connection, commands)  # type: ignore[arg-type]

    monkeypatch.setattr(RedisConnection, "_exchange", forget_first)
    with server.client() as client:
        do_all(prepared(backend, CHANGES, LOOKS))


@pytest.fixture
def through(server: RedisServer, proxy: Proxy, open_backend: Opener) -> RedisBackend:
    """A backend behind the proxy, whose server knows all scripts."""
    backend = open_backend(server.url_at(proxy.port))
    do_all(prepared(backend, CHANGES, LOOKS))
    server.command("FLUSHALL")
    return backend


@pytest.mark.parametrize("mode", [Mode.CUT_REQUEST, Mode.CUT_AFTER_REQUEST])
def test_what_may_have_been_done_is_said_again_and_done_once(
    proxy: Proxy, through: RedisBackend, mode: Mode
) -> None:
    for act in prepared(through, CHANGES, LOOKS, without={"wait"}):
        through.sizes(QUEUE)
        faults = proxy.faults
        proxy.switch(mode, times=1)
        act.do()
        proxy.switch(Mode.PASS)
        assert proxy.faults > faults, act.name
        assert act.check(), act.name


def test_whoever_says_again_what_raised_has_it_done_once(
    proxy: Proxy, through: RedisBackend
) -> None:
    """The answer is lost twice: the first may have been done, or the second, or neither."""
    for act in prepared(through, CHANGES, LOOKS, without={"wait"}):
        through.sizes(QUEUE)
        proxy.switch(Mode.CUT_AFTER_REQUEST, times=2)
        with pytest.raises(BackendUnavailable, match="does not answer"):
            act.do()
        proxy.switch(Mode.PASS)
        act.do()
        assert act.check(), act.name


@pytest.mark.parametrize("how", ["DEBUG SLEEP 0.8", "CLIENT PAUSE 800 ALL"])
def test_a_push_to_a_server_that_stalls_is_not_doubled(
    own_server: RedisServer, open_backend: Opener, how: str
) -> None:
    """It times out twice, the caller repeats it, and in the end all of it arrives."""
    backend = open_backend(own_server.url, timeout=0.2, connect_timeout=0.2)
    backend.sizes(QUEUE)
    with own_server.client(socket_timeout=0.05) as client, suppress(redis.TimeoutError):
        client.execute_command(*how.split())
    step = Step(None, Push(QUEUE, payload()))
    with pytest.raises(BackendUnavailable, match="does not answer: "):
        backend.apply(step)
    wait_until(own_server.answers, "the server to go on")
    backend.apply(step)
    assert ready(backend, QUEUE) == 1


# -- refused is not unheard -----------------------------------------------------------------------


def test_a_settle_that_was_refused_is_not_taken_for_done_when_the_lease_is_lost(
    own_server: RedisServer, open_backend: Opener
) -> None:
    backend, other = open_backend(own_server.url), open_backend(own_server.url)
    push(backend, payload())
    job = started(backend)
    with demoted(own_server), pytest.raises(BackendUnavailable) as refused:
        backend.apply(job.delete())
    assert not refused.value.in_doubt
    other.timing.skew = 100
    taken = reserve(other)
    assert tried(backend, job, Renew(60)).lost
    assert backend.apply(job.delete())[0].lost
    assert tried(other, taken, Start(60)).applied
    assert taken.attempts == 2


def test_a_step_that_failed_on_its_way_is_not_taken_for_done_when_it_is_said_again(
    server: RedisServer, proxy: Proxy, behind: RedisBackend
) -> None:
    """Its answer is lost; and what it was said a second time for is in the way still."""
    push(behind, b"before")
    server.command("SET", "queues:other", "somebody's")
    proxy.switch(Mode.CUT_AFTER_REQUEST, only=b"EVAL", times=1)
    with pytest.raises(BackendUnusable, match="queues:other is a string"):
        push(behind, b"1", queue="other")
    server.command("DEL", "queues:other")
    push(behind, b"1", queue="other")
    assert ready(behind, "other") == 1


# -- replicas -------------------------------------------------------------------------------------


def _is_followed(server: RedisServer) -> bool:
    follower = server.info("replication").get("slave0")
    return follower is not None and follower["state"] == "online"


@pytest.fixture
def replica(own_server: RedisServer, tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path / "replica")
    made.follow(own_server)
    with made:
        wait_until(lambda: _is_followed(own_server), "a replica that follows")
        yield made
        made.resume()


def test_a_push_waits_for_replicas_and_counts_once_when_it_is_said_again(
    own_server: RedisServer, replica: RedisServer, open_backend: Opener
) -> None:
    backend = open_backend(own_server.url, min_replicas=1, replica_timeout=5)
    push(backend, payload())
    assert replica.command("LLEN", "queues:q") == 1
    backend.settings.replica_timeout = 0.05
    replica.pause()
    for step in (Step(None, Push(QUEUE, payload(1))), Step(None, Push(QUEUE, payload(2), 60))):
        for forgotten in (False, False, True):
            if forgotten:
                own_server.command("SCRIPT", "FLUSH")
            with pytest.raises(BackendUnavailable, match=r"queued, but only 0 of 1 replicas"):
                backend.apply(step)
        replica.resume()
        backend.settings.replica_timeout = 5
        backend.apply(step)
        backend.settings.replica_timeout = 0.05
        replica.pause()
    sizes = backend.sizes(QUEUE)
    assert (sizes.ready, sizes.delayed) == (2, 1)


def test_a_push_by_a_script_that_was_forgotten_is_waited_for_by_the_replicas(
    own_server: RedisServer, replica: RedisServer, open_backend: Opener
) -> None:
    backend = open_backend(own_server.url, min_replicas=1, replica_timeout=5)
    push(backend, payload())
    wait_until(lambda: _has_heard_all(own_server), "the replica to have heard everything")
    backend.settings.replica_timeout = 0.1
    replica.pause()
    own_server.command("SCRIPT", "FLUSH")
    with pytest.raises(BackendUnavailable, match=r"only 0 of 1 replicas"):
        push(backend, payload())


def _has_heard_all(server: RedisServer) -> bool:
    """Whether the server knows of its replica that it has everything."""
    state = server.info("replication")
    return bool(state["slave0"]["offset"] == state["master_repl_offset"])
