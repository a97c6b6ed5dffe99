"""Private Redis servers on loopback: one alone, a Cluster, a group under Sentinel.

Each has its own folder and a free port, and is ended by its own pid. A missing binary skips the
test that wanted it, and fails it where `CI` is set.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.server_process import (
    PATIENCE,
    ServerProcess,
    binary,
    free_port,
    socket_path,
)

SLOTS = 16384


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait for `condition`, for which a server that cannot be asked yet is not true."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(redis.RedisError, OSError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}")
        time.sleep(0.01)


class RedisServer(ServerProcess):
    """A server of its own, running once `start` is called or the `with` block entered.

    `fsync` turns the append-only file on ("always", "everysec", "no"); `users` are ACL users as
    {name: "on >secret ~* +@all"}; `config` are further lines for redis.conf. `tls` makes it listen
    with TLS only, with a certificate for 127.0.0.1 and localhost that signs itself.
    """

    def __init__(
        self,
        folder: Path,
        *,
        fsync: str | None = None,
        unix: bool = False,
        tls: bool = False,
        password: str = "",
        users: Mapping[str, str] | None = None,
        config: Sequence[str] = (),
        program: str = "redis-server",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.tls = tls
        self.password = password
        self.socket = socket_path(folder, "redis.sock") if unix else None
        self.certificate = _certificate(folder) if tls else None
        self._program = binary(program)
        self._mode: list[str] = []
        self._users = dict(users or {})
        self._fsync = fsync
        self._config = list(config)
        super().__init__()
        self.write_config()

    # -- where it is ----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """How to reach it over TCP, as the default user."""
        return self.url_as("", self.password) if self.password else self.url_at()

    @property
    def unix_url(self) -> str:
        """How to reach it over its unix socket."""
        assert self.socket is not None, "made without unix=True"
        return f"unix://{self.socket}"

    def url_as(self, user: str, password: str, *, port: int = 0) -> str:
        """Give the URL for a user."""
        return self.url_at(port, f"{quote(user)}:{quote(password)}@")

    def url_at(self, port: int = 0, credentials: str = "") -> str:
        """Give the URL through another port, such as a proxy's."""
        if self.certificate is None:
            return f"redis://{credentials}127.0.0.1:{port or self.port}/0"
        trusted = f"?ssl_ca_certs={self.certificate}"
        return f"rediss://{credentials}127.0.0.1:{port or self.port}/0{trusted}"

    # -- its life -------------------------------------------------------------------------------

    def start(self, *, ready: bool = True, seconds: float = PATIENCE) -> Self:
        """Start it and wait until it answers; without `ready`, as soon as it says LOADING."""
        assert not self.alive(), "it runs already"
        deadline = time.monotonic() + seconds
        while not self._launch(deadline, ready=ready):
            if time.monotonic() > deadline:
                raise AssertionError(f"redis-server did not start:\n{self.log}")
            # Somebody else was quicker to take the port.
            self.port = free_port()
            self.write_config()
        return self

    def _launch(self, deadline: float, *, ready: bool) -> bool:
        """Start the process; `False` when its port was taken meanwhile."""
        before = len(self.log)
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, str(self.folder / "redis.conf"), *self._mode],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._stopped = False
        while time.monotonic() < deadline:
            if not self.alive():
                if "Address already in use" in self.log[before:]:
                    return False
                raise AssertionError(f"redis-server ended at once:\n{self.log[before:]}")
            if self.answers(ready=ready):
                return True
            time.sleep(0.005)
        return False

    def answers(self, *, ready: bool = True) -> bool:
        """Whether it answers a PING; `ready=False` takes LOADING for an answer."""
        try:
            self.command("PING")
        except redis.BusyLoadingError:
            return not ready
        except (redis.RedisError, OSError):
            return False
        return True

    def restart(self, *, kill: bool = False, ready: bool = True) -> Self:
        """End it, by TERM or `kill`, and start it on the same port."""
        if kill:
            self.kill()
        else:
            self.stop()
        return self.start(ready=ready)

    def follow(self, master: RedisServer) -> None:
        """Be a replica of another server from the next start on."""
        self._config.append(f"replicaof {' '.join(map(str, master.address))}")
        self.write_config()

    def empty_folder(self) -> None:
        """Throw away what it has written to disk, while it does not run."""
        assert not self.alive()
        for path in (self.folder / "appendonlydir", self.folder / "dump.rdb"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """End it for good, and its socket with it."""
        super().close()
        if self.socket is not None and self.socket.parent != self.folder:
            shutil.rmtree(self.socket.parent, ignore_errors=True)

    # -- talking to it --------------------------------------------------------------------------

    @contextmanager
    def client(self, **options: Any) -> Iterator[redis.Redis]:
        """Give a plain redis-py client that retries nothing, closed afterwards."""
        settings = {
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": 10,
            "socket_connect_timeout": 2,
            "protocol": 2,
            **options,
        }
        client = redis.Redis.from_url(self.url, **settings)
        try:
            yield client
        finally:
            client.close()

    def command(self, *words: Any) -> Any:
        """Run one command on a connection of its own and give its raw reply."""
        with self.client() as client:
            run: Callable[..., Any] = client.execute_command
            return run(*words)

    def set(self, name: str, value: object) -> None:
        """Change a setting while it runs."""
        self.command("CONFIG", "SET", name, str(value))

    def info(self, section: str = "everything") -> dict[str, Any]:
        """Give the fields of INFO."""
        fields: dict[str, Any] = self.command("INFO", section)
        return fields

    def rewrite_aof(self) -> None:
        """Let the append-only file begin with a snapshot of everything there is now."""
        self.command("BGREWRITEAOF")
        wait_until(self._has_rewritten, "the append-only file to be rewritten")

    def _has_rewritten(self) -> bool:
        state = self.info("persistence")
        return not state["aof_rewrite_in_progress"] and not state["aof_rewrite_scheduled"]

    @property
    def log(self) -> str:
        """What it has logged since it was made."""
        file = self.folder / "redis.log"
        return file.read_text(errors="backslashreplace") if file.exists() else ""

    # -- its configuration ----------------------------------------------------------------------

    def write_config(self) -> None:
        """Write redis.conf from what it was made with: what it or a Sentinel wrote there goes."""
        lines = ["bind 127.0.0.1", f"dir {self.folder}", 'save ""', *self._ports()]
        if self._fsync is not None:
            lines += ["appendonly yes", f"appendfsync {self._fsync}"]
        if self.socket is not None:
            lines.append(f"unixsocket {self.socket}")
        if self.password:
            lines += [f"requirepass {self.password}", f"masterauth {self.password}"]
        lines += [f"user {name} {rules}" for name, rules in self._users.items()]
        text = "\n".join([*lines, *self._config]) + "\n"
        (self.folder / "redis.conf").write_text(text)

    def _ports(self) -> list[str]:
        if self.certificate is None:
            return [f"port {self.port}"]
        return [
            "port 0",
            f"tls-port {self.port}",
            f"tls-cert-file {self.certificate}",
            f"tls-key-file {self.certificate.with_suffix('.key')}",
            f"tls-ca-cert-file {self.certificate}",
            "tls-auth-clients no",
        ]


class RedisCluster:
    """A Cluster of three masters, each with as many replicas as asked for."""

    def __init__(
        self,
        folder: Path,
        *,
        masters: int = 3,
        replicas: int = 0,
        fsync: str | None = None,
        node_timeout: int = 1500,
        config: Sequence[str] = (),
        program: str = "redis-server",
    ) -> None:
        self._count = masters
        lines = [
            "cluster-enabled yes",
            "cluster-config-file nodes.conf",
            f"cluster-node-timeout {node_timeout}",
            "cluster-replica-validity-factor 0",
            "repl-diskless-sync-delay 0",
            *config,
        ]
        self.nodes = [
            RedisServer(folder / f"node-{number}", fsync=fsync, config=lines, program=program)
            for number in range(masters * (1 + replicas))
        ]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def masters(self) -> list[RedisServer]:
        """The nodes that were given the slots at first."""
        return self.nodes[: self._count]

    @property
    def replicas(self) -> list[RedisServer]:
        """The nodes that were made replicas at first; number n is of master n modulo masters."""
        return self.nodes[self._count :]

    @property
    def url(self) -> str:
        """How to reach the first node."""
        return self.nodes[0].url

    def start(self) -> Self:
        """Start all nodes, let them meet and share the slots out, and wait until all agree."""
        try:
            for node in self.nodes:
                node.start()
            self._join()
        except BaseException:
            self.close()
            raise
        return self

    def _join(self) -> None:
        each = SLOTS // self._count
        for number, node in enumerate(self.masters):
            last = SLOTS if number == self._count - 1 else (number + 1) * each
            node.command("CLUSTER", "ADDSLOTS", *range(number * each, last))
        for number, node in enumerate(self.nodes):
            with suppress(redis.ResponseError):  # it has one: those that are equal settle that
                node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            self.nodes[0].command("CLUSTER", "MEET", *node.address)
        for node in self.nodes:
            wait_until(partial(self._knows_all, node), "the nodes to know each other")
        for number, node in enumerate(self.replicas):
            master = self.masters[number % self._count].command("CLUSTER", "MYID")
            node.command("CLUSTER", "REPLICATE", master)
        self.wait_until_ok()

    def _knows_all(self, node: RedisServer) -> bool:
        return int(_cluster_info(node)["cluster_known_nodes"]) == len(self.nodes)

    def empty(self) -> None:
        """Delete everything there is."""
        for node in self.nodes:
            if node.alive() and node.command("ROLE")[0] == b"master":
                node.command("FLUSHALL")

    def wait_until_ok(self, seconds: float = PATIENCE) -> None:
        """Wait until every running node says that all slots are served and replicas follow."""
        for node in self.nodes:
            if node.alive():
                wait_until(partial(_is_whole, node), "the cluster's state", seconds)

    def wait_until_epochs_are_known(self) -> None:
        """Wait until every node knows the configuration epoch of every other.

        Of two nodes with the same epoch that say that a slot is theirs, one deletes its keys: a
        slot that moves back before its new owner's epoch is known may be taken by both.
        """
        wait_until(lambda: len({_epochs(node) for node in self.nodes}) == 1, "the nodes' epochs")

    def node_of(self, key: str) -> RedisServer:
        """Give the running node that serves a key now."""
        slot = self._any().command("CLUSTER", "KEYSLOT", key)
        for first, last, (_, port, *_), *_ in self._any().command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"nobody serves the slot {slot} of {key}")

    def _any(self) -> RedisServer:
        return next(node for node in self.nodes if node.alive())

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.close()


class SentinelGroup:
    """A master with replicas, watched by three Sentinels that agree by two."""

    def __init__(
        self,
        folder: Path,
        *,
        replicas: int = 1,
        sentinels: int = 3,
        fsync: str | None = None,
        service: str = "mymaster",
        down_after: int = 400,
        config: Sequence[str] = (),
        program: str = "redis-server",
    ) -> None:
        self.service = service
        lines = ["repl-diskless-sync-delay 0", "repl-timeout 5", *config]
        self.servers = [
            RedisServer(folder / f"server-{number}", fsync=fsync, config=lines, program=program)
            for number in range(1 + replicas)
        ]
        self.watchers = [
            _Sentinel(folder / f"sentinel-{number}", program=program) for number in range(sentinels)
        ]
        self._down_after = down_after

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def sentinels(self) -> list[str]:
        """The Sentinels' addresses, each as host:port."""
        return [watcher.host_and_port for watcher in self.watchers]

    @property
    def master(self) -> RedisServer:
        """The server that the Sentinels take for the master now."""
        answers = [
            watcher.command("SENTINEL", "get-master-addr-by-name", self.service)
            for watcher in self.watchers
            if watcher.alive()
        ]
        _, port = max(answers, key=answers.count)
        return next(server for server in self.servers if server.port == int(port))

    @property
    def replicas(self) -> list[RedisServer]:
        """The servers that are not the master now."""
        master = self.master
        return [server for server in self.servers if server is not master]

    def start(self) -> Self:
        """Start everything and wait until replicas follow and the Sentinels know all of it."""
        try:
            self._join()
        except BaseException:
            self.close()
            raise
        return self

    def _join(self) -> None:
        master, *replicas = self.servers
        master.start()
        for replica in replicas:
            replica.follow(master)
            replica.start()
        for replica in replicas:
            wait_until(partial(_follows, replica), "a replica to follow")
        for watcher in self.watchers:
            watcher.watch(self.service, master, 2, self._down_after)
            watcher.start()
        for watcher in self.watchers:
            # It asks for the replicas every ten seconds.
            wait_until(partial(self._knows_all, watcher), "a Sentinel to know all", 3 * PATIENCE)

    def _knows_all(self, watcher: RedisServer) -> bool:
        raw = watcher.command("SENTINEL", "MASTER", self.service)
        state = raw if isinstance(raw, dict) else _pairs(raw)
        return (
            int(state["num-slaves"]) == len(self.servers) - 1
            and int(state["num-other-sentinels"]) == len(self.watchers) - 1
        )

    def fail_over(self, seconds: float = PATIENCE) -> RedisServer:
        """Kill the master and give the server that took its place."""
        old = self.master
        old.kill()
        return self.wait_for_other(old, seconds)

    def wait_for_other(self, old: RedisServer, seconds: float = PATIENCE) -> RedisServer:
        """Wait until the Sentinels agree on another master that says it is one."""

        def replaced() -> bool:
            master = self.master
            return master is not old and bool(master.command("ROLE")[0] == b"master")

        wait_until(replaced, "another master", seconds)
        return self.master

    def close(self) -> None:
        """End everything."""
        for server in [*self.watchers, *self.servers]:
            server.close()


class _Sentinel(RedisServer):
    """One Sentinel; its redis.conf is written once, it keeps its state there."""

    def __init__(self, folder: Path, *, program: str) -> None:
        super().__init__(folder, program=program)
        self._mode = ["--sentinel"]
        self._watched: list[str] = []

    def watch(self, service: str, master: RedisServer, quorum: int, down_after: int) -> None:
        """Say before it starts what it watches."""
        host, port = master.address
        self._watched = [
            f"sentinel monitor {service} {host} {port} {quorum}",
            f"sentinel down-after-milliseconds {service} {down_after}",
            f"sentinel failover-timeout {service} 3000",
            f"sentinel parallel-syncs {service} 1",
        ]
        self.write_config()

    def write_config(self) -> None:
        lines = ["bind 127.0.0.1", f"dir {self.folder}", f"port {self.port}"]
        lines += getattr(self, "_watched", [])
        (self.folder / "redis.conf").write_text("\n".join(lines) + "\n")


def _follows(replica: RedisServer) -> bool:
    role: list[Any] = replica.command("ROLE")
    return bool(role[0] == b"slave" and role[3] == b"connected")


def _is_whole(node: RedisServer) -> bool:
    if _cluster_info(node)["cluster_state"] != "ok":
        return False
    return node.command("ROLE")[0] == b"master" or _follows(node)


def _epochs(node: RedisServer) -> tuple[tuple[str, str], ...]:
    """Give the configuration epoch of each node, as one of them knows it."""
    lines = node.command("CLUSTER", "NODES").decode().splitlines()
    return tuple(sorted((words[0], words[6]) for words in map(str.split, lines)))


def _cluster_info(node: RedisServer) -> dict[str, str]:
    text: bytes = node.command("CLUSTER", "INFO")
    return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)


def _pairs(flat: Sequence[bytes]) -> dict[str, str]:
    words = [word.decode() for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))


def _certificate(folder: Path) -> Path:
    """Make a certificate for loopback that signs itself, with its key beside it."""
    file = folder / "server.crt"
    subprocess.run(
        [
            *(binary("openssl"), "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
            *("-keyout", str(file.with_suffix(".key")), "-out", str(file)),
        ],
        check=True,
        capture_output=True,
    )
    return file
