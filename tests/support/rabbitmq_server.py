"""A private RabbitMQ of one node on loopback, with a port mapper (epmd) of its own.

It has its own folder, name and free ports, and is ended by its own pids.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import amqp

from tests.support.server_process import PATIENCE, ServerProcess, binary, free_port

ODD = "odd/ %vhost"
"""A vhost whose name must be escaped in a URL. Its user `odd` has the password `p@ss/w:rd`."""
_DEFINITIONS = {
    "users": [
        {"name": "guest", "password": "guest", "tags": "administrator"},
        {"name": "odd", "password": "p@ss/w:rd", "tags": ""},
        {"name": "weak", "password": "hidden", "tags": ""},
    ],
    "vhosts": [{"name": "/"}, {"name": ODD}],
    "permissions": [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
        {"user": "guest", "vhost": ODD, "configure": ".*", "write": ".*", "read": ".*"},
        {"user": "odd", "vhost": ODD, "configure": ".*", "write": ".*", "read": ".*"},
        {"user": "weak", "vhost": "/", "configure": "^$", "write": "^$", "read": "^$"},
    ],
}
"""The user `weak` may do nothing."""
_BIN = Path("/usr/lib/rabbitmq/bin")
_START_WITHIN = 240.0
"""Seconds that a start may take on a busy machine."""
_QUICK_TO_NOTICE = "-kernel net_ticktime 8"
"""Seconds without a sign of life after which a node takes another one for gone."""


class RabbitmqServer(ServerProcess):
    """A node of its own, running once `start` is called or the `with` block entered.

    It has the management plugin, which costs its start nothing. `config` is the text of its
    `rabbitmq.conf`, besides its addresses. With `host` and `namespace` it has that address in that
    network namespace, and the ports that RabbitMQ has by default.
    """

    def __init__(
        self, folder: Path, *, config: str = "", host: str = "", namespace: str = ""
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._inside = ["ip", "netns", "exec", namespace] if namespace else []
        if namespace:
            self.host, self.port, self._management_port = host, 5672, 15672
            self._dist, self._epmd_port = 25672, 4369
            self.name = f"qframe@{host}"
        else:
            self.port, self._management_port = free_port(), free_port()
            self._dist, self._epmd_port = free_port(), free_port()
            self.name = f"qframe{self.port}@localhost"
        self._program = binary("rabbitmq-server", _BIN)
        self._epmd: subprocess.Popen[bytes] | None = None
        (folder / "plugins").write_text("[rabbitmq_management].\n")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {self.host}:{self.port}\n"
            f"load_definitions = {folder}/definitions.json\n"
            f"management.tcp.ip = {self.host}\nmanagement.tcp.port = {self._management_port}\n"
            f"log.console = false\n{config}\n"
        )
        (folder / "definitions.json").write_text(json.dumps(_DEFINITIONS))
        super().__init__()

    # -- where it is ----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self.url_of()

    def url_of(self, user: str = "guest:guest", vhost: str = "%2F") -> str:
        """Give the URL of a user, as user:password, and a vhost."""
        return f"amqp://{user}@{self.host_and_port}/{vhost}"

    @property
    def settings(self) -> dict[str, Any]:
        """What a connection's settings say of it."""
        return {"driver": "rabbitmq", "url": self.url}

    @property
    def management(self) -> str:
        """The URL of its management plugin, without a user."""
        return f"http://{self.host}:{self._management_port}"

    @property
    def _environment(self) -> Mapping[str, str]:
        folder = self.folder
        return {
            **os.environ,
            "HOME": str(folder),
            "ERL_CRASH_DUMP": str(folder / "erl_crash.dump"),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": self.host,
            "RABBITMQ_ALLOW_INPUT": "1",  # then its shell script becomes the node
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_DIST_PORT": str(self._dist),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-noinput +sbwt none {_QUICK_TO_NOTICE}",
            "RABBITMQ_USE_LONGNAME": "true" if self._inside else "false",
        }

    # -- its life -------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start it, on the data there is in its folder, and wait until it answers."""
        self.begin()
        try:
            return self.wait_until_up()
        except BaseException:
            self.kill()
            raise

    def begin(self) -> None:
        """Start it, on the data there is in its folder."""
        assert not self.alive(), "it runs already"
        if self._epmd is None or self._epmd.poll() is not None:
            words = ["-port", str(self._epmd_port), "-address", self.host]
            self._epmd = subprocess.Popen(
                [*self._inside, binary("epmd"), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [*self._inside, str(_BIN / "rabbitmq-server")],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._stopped = False

    def wait_until_up(self) -> Self:
        """Wait until it answers."""
        deadline = time.monotonic() + _START_WITHIN
        while not self._answers():
            assert self.alive(), f"RabbitMQ ended at once:\n{self.output}"
            assert time.monotonic() < deadline, f"RabbitMQ did not start:\n{self.output}"
            time.sleep(0.05)
        return self

    def _answers(self) -> bool:
        with suppress(OSError, amqp.AMQPError), self.client():
            return True
        return False

    def kill(self) -> None:
        super().kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def restart(self) -> Self:
        """Kill it, and start it on the same ports and data."""
        self.kill()
        return self.start()

    @property
    def output(self) -> str:
        """What it has printed since it was made."""
        return (self.folder / "output").read_text(errors="backslashreplace")

    # -- talking to it --------------------------------------------------------------------------

    @contextmanager
    def client(self, vhost: str = "/") -> Iterator[Any]:
        """Give a channel of a plain client, closed afterwards."""
        connection = amqp.Connection(
            self.host_and_port, virtual_host=vhost, connect_timeout=PATIENCE
        )
        connection.connect()
        try:
            yield connection.channel()
        finally:
            with suppress(OSError, amqp.AMQPError):
                connection.close()

    def ctl(self, *words: str) -> str:
        """Run a command of `rabbitmqctl`, which takes some seconds."""
        done = subprocess.run(
            [*self._inside, str(_BIN / "rabbitmqctl"), "-q", "-n", self.name, *words],
            env=self._environment,
            capture_output=True,
            check=True,
            text=True,
        )
        return done.stdout

    def evaluate(self, text: str) -> str:
        """Evaluate an Erlang expression in the node."""
        return self.ctl("eval", text)

    def sync(self) -> None:
        """Have it write down which queues it has: RabbitMQ 3.10 does so some seconds late.

        A quorum queue declared just before it is killed does not answer afterwards.
        """
        self.evaluate("[dets:sync(Table) || Table <- dets:all()].")

    def close_connections(self) -> None:
        """Close all connections to it."""
        self.evaluate(
            '[rabbit_networking:close_connection(Pid, "closed by the tests") '
            "|| Pid <- rabbit_networking:connections()]."
        )

    def delete(self, *queues: str) -> None:
        """Delete queues, with what is in them."""
        with self.client() as channel:
            for queue in queues:
                channel.queue_delete(queue)

    def ready(self, queue: str = "default") -> int:
        """Give how many messages of a queue are ready."""
        with self.client() as channel:
            return int(channel.queue_declare(queue, passive=True).message_count)
