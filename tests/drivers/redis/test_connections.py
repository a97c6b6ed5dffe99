"""How a Redis is reached, and what a wrong setting, or a wrong server, is answered with."""

from __future__ import annotations

import json
import re
import shutil
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from qframe.config import ConnectionSettings, RedisSettings
from qframe.contracts import Sizes
from qframe.exceptions import BackendUnavailable, BackendUnusable, ConfigurationError
from tests.drivers.redis.conftest import Command, Connect, MakeProject
from tests.drivers.redis.support import (
    DOCUMENTATION,
    SECRET,
    RedisProject,
    drain,
    lines_with,
    live,
    push,
    rights,
    wait_for_line,
)
from tests.support.process import Finished, wait_for
from tests.support.redis_server import RedisCluster, RedisServer, free_port

# -- ways to reach it -----------------------------------------------------------------------------


def test_a_job_lives_its_life_over_a_url_with_a_password(tmp_path: Path, connect: Connect) -> None:
    with RedisServer(tmp_path / "redis", password=SECRET) as server:
        queue = connect(url=server.url)
        live(queue)
        assert SECRET in server.url
        assert SECRET not in queue.described()


def test_a_job_lives_its_life_over_a_unix_socket(tmp_path: Path, connect: Connect) -> None:
    with RedisServer(tmp_path / "redis", unix=True, password=SECRET) as server:
        queue = connect(url=f"unix://:{SECRET}@{server.socket}?db=3")
        live(queue)
        push(queue)
        assert server.info("keyspace").keys() == {"db3"}
        assert queue.described() == f"unix://{server.socket}"


def test_a_job_lives_its_life_over_tls(tmp_path: Path, connect: Connect) -> None:
    with RedisServer(tmp_path / "redis", tls=True, password=SECRET) as server:
        assert server.url.startswith("rediss://")
        queue = connect(url=server.url)
        live(queue)
        assert queue.described() == f"rediss://127.0.0.1:{server.port}/0"


@pytest.mark.parametrize("scheme", ["valkey", "redis"])
def test_valkey_has_a_scheme_of_its_own(server: RedisServer, connect: Connect, scheme: str) -> None:
    queue = connect(url=server.url.replace("redis:", f"{scheme}:"))
    live(queue)
    assert queue.described() == f"{scheme}://127.0.0.1:{server.port}/0"


def test_valkey_has_a_scheme_of_its_own_for_tls(tmp_path: Path, connect: Connect) -> None:
    with RedisServer(tmp_path / "redis", tls=True) as server:
        live(connect(url=server.url.replace("rediss:", "valkeys:")))


@pytest.mark.skipif(not shutil.which("valkey-server"), reason="Debian 12 has no package of it")
def test_a_job_lives_its_life_in_a_valkey(tmp_path: Path, connect: Connect) -> None:
    with RedisServer(tmp_path / "valkey", program="valkey-server", fsync="always") as server:
        queue = connect(url=server.url.replace("redis:", "valkey:"))
        live(queue)
        assert queue.ping().startswith("Valkey ")
        assert queue.warnings() == []


def test_each_number_of_a_database_has_jobs_of_its_own(
    server: RedisServer, connect: Connect
) -> None:
    first, second = (connect(url=f"{server.url[:-1]}{number}") for number in (0, 2))
    uuid = push(second)
    assert (first.queues(), second.queues()) == ([], ["emails"])
    assert server.info("keyspace").keys() == {"db2"}
    assert drain(second) == [uuid]


def test_each_prefix_has_jobs_of_its_own(server: RedisServer, connect: Connect) -> None:
    names = ["", "app_", "app_*?["]
    queues = {prefix: connect(url=server.url, prefix=prefix) for prefix in names}
    for queue in queues.values():
        live(queue)
    uuids = {prefix: push(queue) for prefix, queue in queues.items()}
    for prefix, queue in queues.items():
        store = queue.own_store()
        assert store is not None
        store.set("a", prefix)
    for prefix, queue in queues.items():
        store = queue.own_store()
        assert store is not None
        assert (store.keys(""), store.get("a")) == (["a"], [prefix])
        assert queue.queues() == ["emails"]
        assert queue.sizes("emails") == Sizes(ready=1)
        assert drain(queue) == [uuids[prefix]]


def test_every_key_begins_with_the_prefix(server: RedisServer, connect: Connect) -> None:
    queue = connect(url=server.url, prefix="app_")
    store = queue.own_store()
    assert store is not None
    store.set("a", "1")
    push(queue)
    push(queue, delay=60)
    one, other, third = (push(queue, "reports") for _ in range(3))
    jobs = queue.reserve(["reports"], 3)
    assert [job.uuid for job in jobs] == [one, other, third]
    jobs[0].bury()
    jobs[1].fail(ValueError("no"))
    keys = {key.decode() for key in server.command("KEYS", "*")}
    assert keys == {
        "app_queues:emails", "app_queues:emails:notify", "app_queues:emails:delayed",
        "app_queues:reports:reserved", "app_queues:reports:buried", "app_qframe:queues",
        "app_qframe:{failed}", "app_qframe:{failed}:order", "app_qframe:{store}:a",
    }  # fmt: skip


# -- the rights of an ACL user ------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RedisServer]:
    """Give a server whose user `qframe` has the documented rights and no others."""
    users = {"qframe": f"on {' '.join(rights())}"}
    with RedisServer(tmp_path / "redis", password="admin", users=users) as server:
        yield server


def live_with_a_break(queue: Any, server: RedisServer) -> None:
    """Live through everything, a push that has to be said twice included."""
    live(queue)
    server.command("CLIENT", "KILL", "TYPE", "normal")
    push(queue)
    queue.clear("emails")


def test_the_documented_rights_are_enough(guarded: RedisServer, connect: Connect) -> None:
    queue = connect(url=guarded.url_as("qframe", SECRET)[:-1] + "1")
    live_with_a_break(queue, guarded)
    assert queue.ping()
    assert queue.warnings()
    assert guarded.command("ACL", "LOG") == []


def test_each_of_the_documented_rights_is_needed(guarded: RedisServer, connect: Connect) -> None:
    extra = {"+info", "+config|get", "+type"}  # what `qframe check` asks, and clear errors
    needed = [right for right in rights() if right.startswith("+")]
    assert extra < set(needed)
    idle = []
    for right in needed:
        user = ["ACL", "SETUSER", "qframe", "reset", "on", *rights()]
        guarded.command(*(word for word in user if word != right))
        guarded.command("FLUSHALL")
        queue = connect(url=guarded.url_as("qframe", SECRET)[:-1] + "1")
        try:
            live_with_a_break(queue, guarded)
        except BackendUnusable as error:
            assert "its ACL forbids this user" in str(error)  # noqa: PT017 (not all raise)
        else:
            idle.append(right)
    assert set(idle) == extra


def test_a_user_who_may_not_use_the_keys_is_told_so(guarded: RedisServer, connect: Connect) -> None:
    guarded.command("ACL", "SETUSER", "qframe", "resetkeys", "~other:*")
    queue = connect(url=guarded.url_as("qframe", SECRET))
    with pytest.raises(BackendUnusable, match="its ACL forbids this user"):
        push(queue)


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


@pytest.mark.parametrize(("settings", "words"), WRONG_SETTINGS.values(), ids=WRONG_SETTINGS.keys())
def test_wrong_settings_are_refused_with_a_line(
    connect: Connect, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        connect(**settings)
    assert words in str(error.value)
    assert "connections.redis" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "redis://h/1", "cluster": True}, "redis://h/1: a cluster has no database but 0"),
        (
            {"url": "unix:///tmp/s", "sentinels": ["127.0.0.1:26379"]},
            "unix:///tmp/s: sentinels name no unix socket",
        ),
        (
            {"url": "rediss://:secret@h?ssl_ca_certs=/nowhere/ca.crt"},
            "rediss://h: there is no ssl_ca_certs /nowhere/ca.crt",
        ),
    ],
    ids=["a database of a cluster", "sentinels on a socket", "a certificate that is not there"],
)
def test_settings_that_do_not_fit_together_are_refused_with_a_line(
    connect: Connect, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        connect(**settings)
    assert str(error.value) == words


def test_a_host_is_not_waited_for_longer_than_configured(connect: Connect) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"rediss://127.0.0.1:{silent.getsockname()[1]}"
        queue = connect(url=url, connect_timeout=0.3, timeout=0.3)
        with pytest.raises(BackendUnavailable, match=r"does not answer: Timeout"):
            queue.ping()
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):  # it was not tried a second time
            silent.accept()


OWN_SETTINGS = RedisSettings.model_fields.keys() - ConnectionSettings.model_fields.keys()


def test_every_setting_is_documented_with_its_default() -> None:
    table = DOCUMENTATION.read_text().partition('| `url` | `"redis:')
    rows = [line.split("|") for line in "".join(table[1:]).split("\n\n")[0].splitlines()]
    found = {key.strip(" `"): default.split(",")[0].strip(" `") for _, key, default, *_ in rows}
    assert found == {key: shown(RedisSettings.model_fields[key].default) for key in OWN_SETTINGS}


def shown(default: object) -> str:
    """Write a default as the page does."""
    return "none" if default is None else json.dumps(default)


def test_every_setting_is_named_among_all_settings() -> None:
    text = DOCUMENTATION.with_name("configuration.md").read_text()
    section = text.partition('### `driver = "redis"`')[2].partition("\n#")[0]
    assert {f"`{key}`" for key in OWN_SETTINGS} <= set(re.findall("`[a-z_]+`", section))


# -- servers that cannot be right -----------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[str]:
    with RedisServer(folder, password=SECRET) as server:
        yield f"redis://:{SECRET[::-1]}@127.0.0.1:{server.port}/0"


@contextmanager
def locked_to_strangers(folder: Path) -> Iterator[str]:
    with RedisServer(folder, password=SECRET) as server:
        yield f"redis://127.0.0.1:{server.port}/0"


@contextmanager
def without_a_password(folder: Path) -> Iterator[str]:
    with RedisServer(folder) as server:
        yield server.url_as("", SECRET)


@contextmanager
def without_that_user(folder: Path) -> Iterator[str]:
    with RedisServer(folder) as server:
        yield server.url_as("somebody", SECRET)


@contextmanager
def without_that_database(folder: Path) -> Iterator[str]:
    with RedisServer(folder, password=SECRET) as server:
        yield server.url[:-1] + "99"


@contextmanager
def in_a_cluster(folder: Path) -> Iterator[str]:
    with RedisCluster(folder, masters=1) as cluster:
        yield cluster.url


@contextmanager
def alone(folder: Path) -> Iterator[str]:
    with RedisServer(folder, password=SECRET) as server:
        yield server.url


@contextmanager
def untrusted(folder: Path) -> Iterator[str]:
    with RedisServer(folder, tls=True, password=SECRET) as server:
        yield server.url.partition("?")[0]


class _Page(socketserver.BaseRequestHandler):
    """Answers as a web server does."""

    def handle(self) -> None:
        while self.request.recv(65536):
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


@contextmanager
def of_pages(folder: Path) -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Page) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"redis://127.0.0.1:{server.server_address[1]}/0"
        finally:
            server.shutdown()
            thread.join()


Serve = Callable[[Path], Any]
UNUSABLE: dict[str, tuple[Serve, dict[str, object], str]] = {
    "wrong password": (locked, {}, "it refuses the user name or the password"),
    "no password": (locked_to_strangers, {}, "it asks for a password"),
    "a password too much": (without_a_password, {}, "it has none"),
    "wrong user": (without_that_user, {}, "it refuses the user name or the password"),
    "wrong database": (without_that_database, {}, "it has no database of this number"),
    "cluster = true forgotten": (in_a_cluster, {}, "it is a cluster, set cluster = true"),
    "cluster = true too much": (
        alone, {"cluster": True}, "it is no cluster, remove cluster = true"
    ),
    "a certificate that is not trusted": (untrusted, {}, "its certificate is not trusted"),
    "no Redis": (of_pages, {}, "what answers there is no Redis"),
}  # fmt: skip


def check_line(said: Finished, code: int, words: str) -> None:
    """One line on stderr that says it once, without password or traceback."""
    line = said.one_line()
    assert said.code == code, said
    assert line.count(words) == 1, said
    assert line.startswith("qframe: ")
    assert SECRET not in said.out + said.err
    assert SECRET[::-1] not in said.out + said.err


def check_commands(app: RedisProject, run: Command, code: int, words: str) -> None:
    """Every command says the same, in one line and with this exit code."""
    for arguments in (["size"], ["dispatch", "jobs.Note"]):
        check_line(run(app, *arguments), code, words)
    checked = run(app, "check")
    (line,) = [line for line in checked.out.splitlines() if line.startswith("FAIL     redis:")]
    assert (checked.code, checked.err) == (1, "")
    assert line.count(words) == 1
    assert SECRET not in checked.out


@pytest.mark.parametrize(("serve", "settings", "words"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_what_is_wrong_for_good_is_one_line_and_exit_2(
    make_project: MakeProject,
    run: Command,
    tmp_path: Path,
    serve: Serve,
    settings: dict[str, object],
    words: str,
) -> None:
    with serve(tmp_path / "server") as url:
        app = make_project(url=url, **settings)
        worker = app.work("redis")
        check_commands(app, run, 2, words)
        check_line(worker.finished(), 2, words)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://:{secret}@no-such-host.invalid:6379/0", "not known"),
        ("redis://:{secret}@127.0.0.1:{port}/0", "refused"),
        ("unix://:{secret}@/nowhere/redis.sock", "No such file"),
    ],
    ids=["a host that does not resolve", "a port nobody listens on", "a socket that is not there"],
)
def test_what_may_come_back_is_one_line_and_exit_69(
    make_project: MakeProject, run: Command, url: str, words: str
) -> None:
    app = make_project(url=url.format(secret=SECRET, port=free_port()))
    worker = app.work("redis")
    check_commands(app, run, 69, words)
    wait_for_line(worker, "redis gone: ")
    assert worker.stop() == 0
    (gone,) = lines_with(worker, "gone")
    assert gone.count(words) == 1
    assert gone.count("does not answer") == 1
    assert SECRET not in worker.out + worker.err


def test_a_worker_waits_for_its_server_without_haste(
    make_project: MakeProject, tmp_path: Path
) -> None:
    server = RedisServer(tmp_path / "redis", password=SECRET)
    app = make_project(url=server.url)
    worker = app.work("redis")
    wait_for_line(worker, "redis gone: ")
    used = psutil.Process(worker.pid).cpu_times()
    with pytest.raises(AssertionError):
        wait_for(lambda: not worker.alive(), "nothing", 2)
    spent = psutil.Process(worker.pid).cpu_times()
    assert (spent.user + spent.system) - (used.user + used.system) < 0.2
    with server:
        wait_for_line(worker, "redis back after ")
        app.push("Note")
        app.wait_for_note("note")
        assert worker.stop() == 0
    assert [len(lines_with(worker, word)) for word in ("gone", "back")] == [1, 1]
    assert worker.err == ""
    assert SECRET not in worker.out


def test_a_worker_gives_up_after_the_time_configured(make_project: MakeProject) -> None:
    worker = make_project(url=f"redis://127.0.0.1:{free_port()}", give_up_after=0.5).work("redis")
    assert worker.wait() == 69
    assert worker.err == ""
    assert "stopped (lost backend)" in worker.out


def test_a_password_that_breaks_the_url_is_not_shown(connect: Connect) -> None:
    with pytest.raises(ConfigurationError, match="%23") as refused:
        connect(url=f"redis://:{SECRET}#x@127.0.0.1/0")
    assert SECRET not in str(refused.value)
