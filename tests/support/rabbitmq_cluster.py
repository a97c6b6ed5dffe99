"""Three nodes of a RabbitMQ, each in a network namespace of its own. Needs root."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.process import wait_for
from tests.support.rabbitmq_server import RabbitmqServer

_CONFIG = """loopback_users = none
cluster_partition_handling = pause_minority
cluster_formation.peer_discovery_backend = rabbit_peer_discovery_classic_config
"""


def ip(*words: str) -> None:
    """Run a command of `ip`."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


class RabbitmqNode(RabbitmqServer):
    """One node of a cluster, reached through `link`, which `cut_off` takes down."""

    def __init__(
        self, folder: Path, host: str, namespace: str, link: str, hosts: Sequence[str]
    ) -> None:
        self._link = link
        nodes = "".join(
            f"cluster_formation.classic_config.nodes.{number} = qframe@{each}\n"
            for number, each in enumerate(hosts, 1)
        )
        super().__init__(folder, config=_CONFIG + nodes, host=host, namespace=namespace)
        cookie = folder / ".erlang.cookie"
        cookie.write_text("qframe")
        cookie.chmod(0o400)

    def cut_off(self) -> None:
        """Drop whatever it sends, and whatever is sent to it."""
        ip("link", "set", self._link, "down")

    def join(self) -> None:
        """Let it be reached again."""
        ip("link", "set", self._link, "up")

    def seen(self) -> int:
        """Count the nodes that run as far as it knows; 0 if it does not run itself."""
        try:
            return int(self.evaluate("length(rabbit_nodes:all_running())."))
        except (subprocess.CalledProcessError, ValueError):
            return 0


class RabbitmqCluster:
    """Three nodes on a bridge of their own, running once `start` is called."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid() or shutil.which("ip") is None:
            say = pytest.fail if "CI" in os.environ else pytest.skip
            say("nodes in network namespaces need root, and Debian's iproute2")
        chance = random.SystemRandom()
        self._name = f"qf{chance.randrange(16**6):06x}"
        net = f"10.{chance.randrange(100, 250)}.{chance.randrange(250)}"
        hosts = [f"{net}.{number}" for number in (1, 2, 3)]
        self._bridge_host = f"{net}.254"
        self._namespaces = [f"{self._name}-{number}" for number in (1, 2, 3)]
        self._links = [f"{self._name}{number}" for number in (1, 2, 3)]
        self.nodes = [
            RabbitmqNode(folder / str(number), host, namespace, link, hosts)
            for number, (host, namespace, link) in enumerate(
                zip(hosts, self._namespaces, self._links, strict=True), 1
            )
        ]

    @property
    def settings(self) -> dict[str, Any]:
        """What a connection's settings say of it."""
        first, *others = self.nodes
        return {**first.settings, "hosts": [each.host_and_port for each in others]}

    def start(self) -> Self:
        """Make the network, start the nodes, and wait until they are one cluster."""
        ip("link", "add", self._name, "type", "bridge")
        ip("addr", "add", f"{self._bridge_host}/24", "dev", self._name)
        ip("link", "set", self._name, "up")
        for node, namespace, link in zip(self.nodes, self._namespaces, self._links, strict=True):
            ip("netns", "add", namespace)
            ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            ip("link", "set", link, "master", self._name, "up")
            for words in (
                ("addr", "add", f"{node.host}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
                ("link", "set", "lo", "up"),
            ):
                ip("-n", namespace, *words)
        for node in self.nodes:
            node.start()
        self.wait_until_whole()
        return self

    def wait_until_whole(self) -> None:
        """Wait until each node runs and sees the others: one that was cut off starts anew."""
        for node in self.nodes:
            wait_for(lambda node=node: node.seen() == len(self.nodes), "a cluster of three")  # type: ignore[misc]

    def close(self) -> None:
        """End the nodes, and remove the network."""
        for node in self.nodes:
            node.close()
        for namespace in self._namespaces:
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", namespace)
        with suppress(subprocess.CalledProcessError):
            ip("link", "del", self._name)
