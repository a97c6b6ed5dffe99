"""How a Redis is reached, and what a wrong setting, or a wrong server, is answered with."""

from __future__ import annotations

import json
import re
import shutil
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from qframe import QueueManager
from qframe.config import ConnectionSettings
from qframe.contracts.backend import Backend
from qframe.contracts.step import (
    Add,
    Arrive,
    Bury,
    Expect,
    Extend,
    Open,
    Operation,
    Push,
    Record,
    Release,
    Renew,
    Set,
    Start,
    Step,
    Unset,
)
from qframe.drivers.redis.backend import RedisBackend
from qframe.drivers.redis.settings import RedisSettings
from qframe.drivers.redis.steps import RedisSteps
from qframe.exceptions import BackendUnavailable, BackendUnusable, ConfigurationError
from qframe.testing.conformance.steps import apply, drained, failed, push, started
from tests.drivers.redis.acts import LOOKS, PUSHES, WORK, do_all, payload, prepared
from tests.drivers.redis.conftest import MakeProject, Opener
from tests.support.pages import docs_page
from tests.support.process import Finished, wait_for
from tests.support.projects import SECRET, lines_with, rights, wait_for_line
from tests.support.redis_server import RedisCluster, RedisServer
from tests.support.server_process import free_port

QUEUE = "q"


def live(backend: Backend) -> None:
    """Do everything that can be done."""
    do_all(prepared(backend, PUSHES, WORK, LOOKS))


# -- ways to reach it -----------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_over_tls_with_a_password(tmp_path: Path, open_backend: Opener, scheme: str) -> None:
    with RedisServer(tmp_path / "redis", tls=True, password=SECRET) as server:
        assert server.url.startswith("rediss://")
        assert SECRET in server.url
        backend = open_backend(server.url.replace("rediss", scheme))
        live(backend)
        push(backend, *(b"%d" % n for n in range(500)))
        assert len(backend.reserve([QUEUE], 500)[0]) == 500
        assert backend.described() == f"{scheme}://127.0.0.1:{server.port}/0"


def test_over_a_unix_socket(tmp_path: Path, open_backend: Opener) -> None:
    with RedisServer(tmp_path / "redis", unix=True, password=SECRET) as server:
        backend = open_backend(f"unix://:{SECRET}@{server.socket}?db=3")
        live(backend)
        assert server.info("keyspace").keys() == {"db3"}
        assert backend.described() == f"unix://{server.socket}"


def test_valkey_has_a_scheme_of_its_own(server: RedisServer, open_backend: Opener) -> None:
    backend = open_backend(server.url.replace("redis:", "valkey:"))
    push(backend, payload())
    assert backend.described() == f"valkey://127.0.0.1:{server.port}/0"


@pytest.mark.skipif(not shutil.which("valkey-server"), reason="Debian 12 has no package of it")
def test_in_a_valkey(tmp_path: Path, open_backend: Opener) -> None:
    with RedisServer(tmp_path / "valkey", program="valkey-server", fsync="always") as server:
        backend = open_backend(server.url.replace("redis:", "valkey:"))
        live(backend)
        health = backend.check()
        assert health.version.startswith("Valkey ")
        assert health.warnings == ()


def test_each_prefix_and_each_database_has_jobs_of_its_own(
    server: RedisServer, open_backend: Opener
) -> None:
    names = ["", "app_", "app_*?["]
    backends = [open_backend(prefix=prefix) for prefix in names]
    backends.append(open_backend(f"{server.url[:-1]}2"))
    for number, backend in enumerate(backends):
        push(backend, b"%d" % number)
        apply(backend, None, Set("a", str(number)))
    for number, backend in enumerate(backends):
        assert (backend.scan(""), backend.queues()) == ([("a", str(number))], [QUEUE])
        assert drained(backend) == [b"%d" % number]


def test_every_key_begins_with_the_prefix_and_is_documented(
    server: RedisServer, open_backend: Opener
) -> None:
    backend = open_backend(prefix="app_")
    live(backend)
    push(backend, payload(), queue="emails")
    apply(backend, started(backend, "emails"), Release(60, notes=b"notes"))
    known = re.findall(r"^\| `(.*?)` \|", _section("What is stored where"), re.MULTILINE)
    begins = {each.partition(end)[0] for each in known for end in ("emails", "KEY", "ID", "...")}
    for key in {key.decode() for key in server.command("KEYS", "*")}:
        assert key.startswith("app_")
        assert key.removeprefix("app_").startswith(tuple(begins)), key


def _section(title: str) -> str:
    return (
        docs_page("redis-keys.md").read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    )


# -- the rights of an ACL user ------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RedisServer]:
    """A server whose user `qframe` has the documented rights and no others."""
    users = {"qframe": f"on {' '.join(rights())}"}
    with RedisServer(tmp_path / "redis", password="admin", users=users) as server:
        yield server


def live_wholly(backend: RedisBackend) -> None:
    """Do everything, and what only happens once in a while."""
    _rarely(backend)
    live(backend)


def _rarely(backend: RedisBackend) -> None:
    """Say something again, push the same bytes, let a lease run out and a member fail."""
    exchange = RedisSteps(backend.keys)
    assert exchange.add(Step(None, Push("twice", b"x")))
    connection = backend.pool.of(exchange.key)
    for _ in range(2):
        connection.ask(exchange.command_for(connection, 0.0))
    assert backend.purge("twice") == 1
    for _ in range(2):
        apply(backend, None, Record(failed("again")), Add("n", 1), Set("t", "1"))
    assert backend.list_failed(after="again") == []
    push(backend, b"x", b"x", queue="same", delay=0.05)
    push(backend, b"x", b"x", queue="same")
    wait_for(lambda: backend.sizes("same").ready == 4, "the delayed ones")
    jobs, _ = backend.reserve(["same"], 4)
    apply(backend, jobs[0], Start(60))
    adopted = backend.adopt(jobs[0].fence)
    assert adopted is not None
    apply(backend, adopted, Release(front=True, notes=b"notes"))
    apply(backend, jobs[1], Renew(0.01))
    wait_for(lambda: backend.sizes("same").ready == 2, "the lease to run out")
    assert backend.purge("same") == 2
    apply(backend, None, Open("latch", Push("latch", b"")))
    apply(backend, None, Extend("latch", 2))
    apply(backend, None, Arrive("latch", 0, failed=True))
    apply(backend, None, Arrive("latch", 0))
    assert backend.apply(Step(None, Expect("t", "2")), Step(None, Unset("t")))[1].applied


def test_the_documented_rights_are_enough(guarded: RedisServer, open_backend: Opener) -> None:
    backend = open_backend(f"{guarded.url_as('qframe', SECRET)[:-1]}1")
    live_wholly(backend)
    guarded.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    guarded.command("SCRIPT", "FLUSH")
    push(backend, payload())
    assert backend.check().warnings
    assert guarded.command("ACL", "LOG") == []


@pytest.mark.slow
def test_each_of_the_documented_rights_is_needed(
    guarded: RedisServer, open_backend: Opener
) -> None:
    extra = {"+config|get", "+ping"}
    idle = []
    for right in [right for right in rights() if right.startswith("+")]:
        user = ["ACL", "SETUSER", "qframe", "reset", "on", *rights()]
        guarded.command(*(word for word in user if word != right))
        guarded.command("FLUSHALL")
        guarded.command("SCRIPT", "FLUSH")
        try:
            live_wholly(open_backend(f"{guarded.url_as('qframe', SECRET)[:-1]}1"))
        except BackendUnusable as error:
            assert "its ACL forbids this user" in str(error)  # noqa: PT017 (not all raise)
        else:
            idle.append(right)
    assert set(idle) == extra


def test_a_user_who_may_not_use_the_keys_is_told_so(
    guarded: RedisServer, open_backend: Opener
) -> None:
    guarded.command("ACL", "SETUSER", "qframe", "resetkeys", "~other:*")
    with pytest.raises(BackendUnusable, match="its ACL forbids this user"):
        push(open_backend(guarded.url_as("qframe", SECRET)), payload())


def test_rights_that_are_taken_away_cost_no_job(guarded: RedisServer, open_backend: Opener) -> None:
    """What a script had done when it met the missing right is at most done twice."""
    backend = open_backend(guarded.url_as("qframe", SECRET))
    for right in ("+zadd", "+zrem", "+rpush", "+lpush", "+ltrim", "+set", "+get", "+del"):
        push(backend, *(b"%d" % n for n in range(6)))
        jobs, _ = backend.reserve([QUEUE], 5)
        for job in jobs[:4]:
            apply(backend, job, Start(60, b"notes"))
        guarded.command("ACL", "SETUSER", "qframe", right.replace("+", "-"))
        ends: list[Operation] = [
            Release(),
            Release(5),
            Release(front=True),
            Bury(b""),
            Start(60, b"notes"),
        ]
        for job, end in zip(jobs, ends, strict=True):
            with suppress(BackendUnusable):
                backend.apply(Step(job, end))
        with suppress(BackendUnusable):
            backend.reserve([QUEUE])
        guarded.command("ACL", "SETUSER", "qframe", right)
        backend.timing.skew += 100
        backend.kick(QUEUE)
        found = {raw.partition(b"\n")[0] for raw in drained(backend)}
        assert found == {b"%d" % n for n in range(6)}, right
        guarded.command("FLUSHALL")


# -- settings that cannot be right ----------------------------------------------------------------

WRONG_SETTINGS: dict[str, tuple[dict[str, object], str]] = {
    "a scheme of something else": ({"url": "http://127.0.0.1:6379"}, "must begin with redis://"),
    "no scheme": ({"url": "127.0.0.1:6379"}, "must begin with redis://"),
    "a database that is no number": ({"url": "redis://127.0.0.1/jobs"}, "number of the database"),
    "a database below 0": ({"url": "redis://127.0.0.1/-1"}, "number of the database"),
    "a db option that is no number": ({"url": "unix:///tmp/s?db=x"}, "number of the database"),
    "a misspelt option": (
        {"url": "rediss://127.0.0.1?ssl_ca_cert=x"}, "did you mean 'ssl_ca_certs'?"
    ),
    "an option of redis-py that is none of ours": (
        {"url": "redis://127.0.0.1?socket_timeout=1"}, "unknown option 'socket_timeout'"
    ),
    "a port that is no number": ({"url": "redis://127.0.0.1:port/0"}, "is not a URL"),
    "a socket without a path": ({"url": "unix://"}, "needs the path of a socket"),
    "a password that breaks the URL": ({"url": f"redis://:{SECRET}#x@127.0.0.1/0"}, "%23"),
    "a cluster and sentinels": (
        {"cluster": True, "sentinels": ["127.0.0.1:26379"]}, "exclude each other"
    ),
    "a cluster on a socket": ({"url": "unix:///tmp/s", "cluster": True}, "has no unix socket"),
    "nodes without a cluster": ({"nodes": ["127.0.0.1:7000"]}, "set cluster = true"),
    "a sentinel without a port": ({"sentinels": ["127.0.0.1"]}, "is not host:port"),
    "a node with a wrong port": ({"cluster": True, "nodes": ["h:70000"]}, "is not host:port"),
    "a prefix with braces": ({"prefix": "{app}"}, "prefix"),
    "a prefix with spaces": ({"prefix": "my app"}, "prefix"),
    "a wait of no time": ({"block_for": 0}, "block_for"),
    "a timeout of no time": ({"timeout": 0}, "timeout"),
    "replicas below 0": ({"min_replicas": -1}, "min_replicas"),
    "a misspelt key": ({"min_replica": 1}, "did you mean 'min_replicas'?"),
}  # fmt: skip
UNFIT: dict[str, tuple[dict[str, object], str]] = {
    "a database of a cluster": (
        {"url": "redis://h/1", "cluster": True}, "redis://h/1: a cluster has no database but 0"
    ),
    "sentinels on a socket": (
        {"url": "unix:///tmp/s", "sentinels": ["127.0.0.1:26379"]},
        "unix:///tmp/s: sentinels name no unix socket",
    ),
    "a certificate that is not there": (
        {"url": "rediss://:secret@h?ssl_ca_certs=/nowhere/ca.crt"},
        "rediss://h: there is no ssl_ca_certs /nowhere/ca.crt",
    ),
}  # fmt: skip


def connect(root: Path, settings: dict[str, object]) -> None:
    connection = {"driver": "redis", **settings}
    made = {"root": root, "default": "redis", "connections": {"redis": connection}}
    QueueManager(made).connection("redis")


@pytest.mark.parametrize(("settings", "words"), WRONG_SETTINGS.values(), ids=WRONG_SETTINGS.keys())
def test_wrong_settings_are_refused_with_a_line(
    tmp_path: Path, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        connect(tmp_path, settings)
    assert words in str(error.value)
    assert "connections.redis" in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(("settings", "words"), UNFIT.values(), ids=UNFIT.keys())
def test_settings_that_do_not_fit_together_are_refused_with_a_line(
    tmp_path: Path, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        connect(tmp_path, settings)
    assert str(error.value) == f"connections.redis: {words}"


def test_a_host_is_not_waited_for_longer_than_configured(open_backend: Opener) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"rediss://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(BackendUnavailable, match=r"does not answer: Timeout"):
            open_backend(url, connect_timeout=0.3, timeout=0.3).check()
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):  # it was not tried a second time
            silent.accept()


OWN_SETTINGS = RedisSettings.model_fields.keys() - ConnectionSettings.model_fields.keys()


def test_every_setting_is_documented_with_its_default() -> None:
    table = docs_page("configuration.md").read_text().partition('| `url` | `"redis:')
    rows = [line.split("|") for line in "".join(table[1:]).split("\n\n")[0].splitlines()]
    found = {key.strip(" `"): default.split(",")[0].strip(" `") for _, key, default, *_ in rows}
    assert found == {key: _shown(RedisSettings.model_fields[key].default) for key in OWN_SETTINGS}


def _shown(default: object) -> str:
    """Write a default as the page does."""
    return "none" if default is None else json.dumps(default)


# -- servers that cannot be right -----------------------------------------------------------------


def _serving(url: Callable[[RedisServer], str], **options: object) -> Serve:
    @contextmanager
    def serve(folder: Path) -> Iterator[str]:
        with RedisServer(folder, **options) as server:  # type: ignore[arg-type]
            yield url(server)

    return serve


@contextmanager
def _in_a_cluster(folder: Path) -> Iterator[str]:
    with RedisCluster(folder, masters=1) as cluster:
        yield cluster.url


class _Page(socketserver.BaseRequestHandler):
    """Answers as a web server does."""

    def handle(self) -> None:
        while self.request.recv(65536):
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


@contextmanager
def _of_pages(_: Path) -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Page) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"redis://127.0.0.1:{server.server_address[1]}/0"
        finally:
            server.shutdown()
            thread.join()


Serve = Callable[[Path], AbstractContextManager[str]]
_alone = _serving(lambda server: server.url, password=SECRET)
UNUSABLE: dict[str, tuple[Serve, dict[str, object], str]] = {
    "wrong password": (
        _serving(lambda s: f"redis://:{SECRET[::-1]}@127.0.0.1:{s.port}/0", password=SECRET),
        {},
        "it refuses the user name or the password",
    ),
    "no password": (
        _serving(lambda s: f"redis://127.0.0.1:{s.port}/0", password=SECRET),
        {},
        "it asks for a password",
    ),
    "a password too much": (_serving(lambda s: s.url_as("", SECRET)), {}, "it has none"),
    "wrong user": (
        _serving(lambda s: s.url_as("somebody", SECRET)),
        {},
        "it refuses the user name or the password",
    ),
    "wrong database": (
        _serving(lambda s: f"{s.url[:-1]}99", password=SECRET),
        {},
        "it has no database of this number",
    ),
    "cluster = true forgotten": (_in_a_cluster, {}, "it is a cluster, set cluster = true"),
    "cluster = true too much": (
        _alone,
        {"cluster": True},
        "it is no cluster, remove cluster = true",
    ),
    "a certificate that is not trusted": (
        _serving(lambda s: s.url.partition("?")[0], tls=True, password=SECRET),
        {},
        "its certificate is not trusted",
    ),
    "no Redis": (_of_pages, {}, "what answers there is no Redis"),
}


@pytest.mark.parametrize(("serve", "settings", "words"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_what_is_wrong_for_good_is_unusable_whatever_it_is_asked(
    tmp_path: Path, open_backend: Opener, serve: Serve, settings: dict[str, object], words: str
) -> None:
    with serve(tmp_path / "server") as url:
        backend = open_backend(url, **settings)
        looks: list[Callable[[], object]] = [
            lambda: push(backend, payload()),
            lambda: backend.reserve([QUEUE]),
            lambda: backend.wait([QUEUE], 0.01),
            lambda: backend.sizes(QUEUE),
            backend.check,
        ]
        if serve is not _in_a_cluster:  # whose nodes do what is about one key of theirs
            looks += [lambda: backend.read("a"), lambda: backend.scan("a"), backend.queues]
        for look in looks:
            with pytest.raises(BackendUnusable) as error:
                look()
            assert str(error.value).count(words) == 1
            assert len(str(error.value).splitlines()) == 1
            assert SECRET not in str(error.value)
            assert SECRET[::-1] not in str(error.value)


# -- commands and workers -------------------------------------------------------------------------


def check_line(said: Finished, code: int, words: str) -> None:
    """One line on stderr that says it once, without password or traceback."""
    line = said.one_line()
    assert said.code == code, said
    assert line.count(words) == 1, said
    assert line.startswith("qframe: ")
    assert SECRET not in said.out + said.err


@pytest.mark.parametrize("name", ["no password", "a certificate that is not trusted"])
def test_what_is_wrong_for_good_is_one_line_and_exit_2(
    tmp_path: Path, make_project: MakeProject, name: str
) -> None:
    serve, settings, words = UNUSABLE[name]
    with serve(tmp_path / "server") as url:
        app = make_project(url=url, **settings)
        for arguments in (["size"], ["dispatch", "jobs.Note"], ["work", "redis"]):
            check_line(app.qframe(*arguments), 2, words)
        checked = app.qframe("check")
        (line,) = [line for line in checked.out.splitlines() if line.startswith("FAIL     redis:")]
        assert (checked.code, checked.err, line.count(words)) == (1, "", 1)


def test_what_may_pass_is_one_line_and_exit_69(make_project: MakeProject) -> None:
    app = make_project(url=f"redis://:{SECRET}@127.0.0.1:{free_port()}", give_up_after=0.5)
    for arguments in (["size"], ["dispatch", "jobs.Note"]):
        check_line(app.qframe(*arguments), 69, "does not answer: ")
    worker = app.work("redis")
    assert worker.wait() == 69
    assert worker.err == ""
    assert "stopped (lost backend)" in worker.out


@pytest.mark.parametrize("fault", ["kill", "REPLICAOF"])
def test_a_worker_waits_for_its_server_and_says_so_once(
    own_server: RedisServer, make_project: MakeProject, fault: str
) -> None:
    app = make_project(url=own_server.url)
    app.push("Note", {"word": "before"})
    worker = app.work("redis")
    app.wait_for_note("note", "before")
    wait_for(app.empty, "the job's end")
    own_server.kill() if fault == "kill" else own_server.command(fault, "127.0.0.1", "1")
    wait_for_line(worker, "redis gone: ")
    own_server.start() if fault == "kill" else own_server.command(fault, "NO", "ONE")
    app.push("Note", {"word": "after"})
    app.wait_for_note("note", "after")
    assert worker.stop() == 0
    assert [len(lines_with(worker, word)) for word in ("gone", "back")] == [1, 1]
    assert worker.err == ""
