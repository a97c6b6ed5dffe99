"""The servers and the bad network that other tests stand on do what they are asked for."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError

from tests.support.process import wait_for
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisCluster, RedisServer, SentinelGroup


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", fsync="everysec") as made:
        yield made


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(*server.address) as made:
        yield made


def test_what_was_written_is_there_after_a_kill_and_a_restart(server: RedisServer) -> None:
    server.command("SET", "a", "1")
    pid, port = server.pid, server.port
    server.kill()
    assert not server.alive()
    assert not server.answers()
    server.start()
    assert (server.port, server.command("GET", "a")) == (port, b"1")
    assert server.pid != pid
    server.restart()
    assert server.command("GET", "a") == b"1"
    server.stop()
    server.empty_folder()
    server.start()
    assert server.command("GET", "a") is None


def test_a_paused_server_answers_once_it_goes_on(server: RedisServer) -> None:
    server.pause()
    with server.client(socket_timeout=0.1) as client, pytest.raises(redis.TimeoutError):
        client.ping()
    server.resume()
    assert server.answers()
    server.pause()
    server.stop()
    assert not server.alive()


def test_a_server_that_loads_may_be_asked_for_already(tmp_path: Path) -> None:
    lines = ["key-load-delay 2000", "loading-process-events-interval-bytes 1024"]
    with RedisServer(tmp_path / "redis", fsync="no", config=lines) as server:
        server.command("MSET", *[word for n in range(300) for word in (f"key-{n}", "x" * 4096)])
        server.rewrite_aof()
        server.restart(ready=False)
        with pytest.raises(redis.BusyLoadingError):
            server.command("GET", "key-1")
        wait_for(server.answers, "the end of loading")


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", config=["no-such-setting 1"])
    with pytest.raises(AssertionError, match="no-such-setting"):
        server.start()


def test_it_listens_with_tls_and_on_a_socket_and_knows_users(tmp_path: Path) -> None:
    users = {"worker": "on >secret ~queues:* +@all"}
    with RedisServer(
        tmp_path / "redis", tls=True, unix=True, password="admin", users=users
    ) as server:
        assert server.url.startswith("rediss://:admin@127.0.0.1:")
        assert server.command("PING") is True
        worker = redis.Redis.from_url(server.url_as("worker", "secret"))
        worker.rpush("queues:a", "1")
        with pytest.raises(NoPermissionError):
            worker.get("other")
        worker.close()
        untrusting = redis.Redis.from_url(server.url_at().split("?")[0])
        with pytest.raises(redis.ConnectionError, match="certificate"):
            untrusting.ping()
        local = redis.Redis.from_url(server.unix_url, password="admin")
        assert local.llen("queues:a") == 1
        local.close()


def test_a_socket_in_a_deep_folder_gets_a_short_path(tmp_path: Path) -> None:
    with RedisServer(tmp_path / ("deep" * 30), unix=True) as server:
        assert server.socket is not None
        local = redis.Redis.from_url(server.unix_url)
        assert local.ping()
        local.close()
    assert not server.socket.parent.exists()


def test_a_cluster_serves_all_slots_and_outlives_a_master(tmp_path: Path) -> None:
    with RedisCluster(tmp_path, replicas=1) as cluster:
        names = [f"{{{n}}}" for n in range(30)]
        assert {cluster.node_of(name).port for name in names} == {
            node.port for node in cluster.masters
        }
        node = cluster.node_of("a")
        node.command("SET", "a", "1")
        wait_for(lambda: node.command("WAIT", "1", "100") == 1, "the replica to have it")
        node.kill()

        def taken_over() -> bool:
            with suppress(redis.RedisError):
                return cluster.node_of("a") is not node
            return False

        wait_for(taken_over, "the replica to take over")
        cluster.wait_until_ok()
        assert cluster.node_of("a").command("GET", "a") == b"1"


def test_sentinels_replace_a_dead_master(tmp_path: Path) -> None:
    with SentinelGroup(tmp_path) as group:
        old = group.master
        assert old is group.servers[0]
        old.command("SET", "a", "1")
        assert old.command("WAIT", "1", "1000") == 1
        new = group.fail_over()
        assert new in group.servers[1:]
        assert new.command("GET", "a") == b"1"
        assert group.master is new
        assert group.replicas == [old]


# -- the proxy ----------------------------------------------------------------------------------


def _connected(proxy: Proxy, seconds: float = 2.0) -> socket.socket:
    return socket.create_connection(proxy.address, timeout=seconds)


def _ask(connection: socket.socket, request: bytes = b"PING\r\n") -> bytes:
    connection.sendall(request)
    return connection.recv(4096)


def test_the_proxy_forwards_and_counts(proxy: Proxy) -> None:
    with _connected(proxy) as connection:
        assert _ask(connection) == b"+PONG\r\n"
        assert _ask(connection, b"ECHO " + b"x" * 3000 + b"\r\n").endswith(b"x\r\n")
        assert proxy.accepted == proxy.open == 1
        assert proxy.sent == 6 + 3007
    wait_for(lambda: proxy.open == 0, "the connection to be closed on both sides")


def test_the_proxy_takes_its_time(proxy: Proxy) -> None:
    with _connected(proxy) as connection:
        proxy.switch(Mode.DELAY, seconds=0.1)
        began = time.monotonic()
        assert _ask(connection) == b"+PONG\r\n"
        assert time.monotonic() - began >= 0.2
        proxy.switch(Mode.TRICKLE)
        assert _ask(connection) == b"+"


def test_the_proxy_cuts_what_is_open_and_what_connects(proxy: Proxy) -> None:
    with _connected(proxy) as connection:
        assert _ask(connection) == b"+PONG\r\n"
        proxy.switch(Mode.CUT)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionResetError), _connected(proxy) as connection:
        connection.recv(1)
    proxy.switch(Mode.PASS)
    with _connected(proxy) as connection:
        assert _ask(connection) == b"+PONG\r\n"
    assert proxy.faults == 2


@pytest.mark.parametrize(
    ("mode", "arrived"), [(Mode.CUT_REQUEST, None), (Mode.CUT_AFTER_REQUEST, b"1")]
)
def test_the_proxy_cuts_at_chosen_requests(
    server: RedisServer, proxy: Proxy, mode: Mode, arrived: bytes | None
) -> None:
    proxy.switch(mode, only=b"SET", times=1)
    with _connected(proxy) as connection:
        assert _ask(connection) == b"+PONG\r\n"
        with pytest.raises(ConnectionResetError):
            _ask(connection, b"SET a 1\r\n")
    assert server.command("GET", "a") == arrived
    assert (proxy.faults, proxy.mode) == (1, Mode.PASS)
    with _connected(proxy) as connection:
        assert _ask(connection, b"SET b 1\r\n") == b"+OK\r\n"


def test_the_proxy_swallows_everything_until_it_passes_again(proxy: Proxy) -> None:
    with _connected(proxy, 0.1) as open_before:
        assert _ask(open_before) == b"+PONG\r\n"
        proxy.switch(Mode.BLACKHOLE)
        with _connected(proxy, 0.1) as open_after:
            for connection in (open_before, open_after):
                with pytest.raises(TimeoutError):
                    _ask(connection)
            proxy.switch(Mode.PASS)
            for connection in (open_before, open_after):
                connection.settimeout(2)
                assert connection.recv(4096) == b"+PONG\r\n"


def test_the_proxy_closes_one_direction(server: RedisServer, proxy: Proxy) -> None:
    with _connected(proxy) as connection:
        assert _ask(connection) == b"+PONG\r\n"
        proxy.switch(Mode.HALF_CLOSE)
        assert connection.recv(1) == b""
        connection.sendall(b"SET a 1\r\n")
        wait_for(lambda: server.command("GET", "a") == b"1", "what was sent afterwards")


def test_the_proxy_sends_new_connections_elsewhere(proxy: Proxy, tmp_path: Path) -> None:
    with _connected(proxy) as old, RedisServer(tmp_path / "other") as other:
        assert _ask(old) == b"+PONG\r\n"
        other.command("SET", "who", "other")
        proxy.retarget(*other.address)
        assert _ask(old, b"GET who\r\n") == b"$-1\r\n"
        with _connected(proxy) as new:
            assert _ask(new, b"GET who\r\n") == b"$5\r\nother\r\n"
