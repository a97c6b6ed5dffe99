"""Commands about deploys: deploy-mark."""

from __future__ import annotations

from typing import Annotated

import typer

from qframe.connection import Connection
from qframe.console.connections import JobConnections, configured
from qframe.console.options import Config, ConnectionOption
from qframe.console.text import say
from qframe.contracts.backend import Capability
from qframe.metrics import version as versions
from qframe.metrics.deploys import Deploys


def deploy_mark(
    text: Annotated[str, typer.Argument(help="A few words about the deploy.")] = "",
    *,
    version: Annotated[
        str, typer.Option("--version", help="The version; default: that of the project.")
    ] = "",
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Mark a deploy in the metrics and on the dashboard.

    Workers mark a new version automatically.

    qframe deploy-mark "new price list"
    qframe deploy-mark --version 2.4.1
    """
    queues = configured(config)
    named = version or versions.of(queues.settings)

    def mark(queue: Connection) -> None:
        if Capability.FACTS in queue.capabilities and id(queue.store.backend) not in stores:
            stores.add(id(queue.store.backend))
            Deploys(queue.store).mark(named, text)

    stores: set[int] = set()
    connections = JobConnections(queues, connection)
    done = connections.each(mark)
    say(f"marked the deploy {' '.join(filter(None, (named, text)))}".rstrip())
    return connections.code(done)
