"""`qframe web` and `qframe metrics`: serve the page, and the one for Prometheus, from here."""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from qframe.console.connections import configured
from qframe.console.numbers import whole
from qframe.console.options import Config
from qframe.console.place import print_configuration
from qframe.console.text import say
from qframe.console.threads import favour_those_that_wait
from qframe.exceptions import ConfigurationError, UnknownJob
from qframe.manager import QueueManager
from qframe.worker import handlers

if TYPE_CHECKING:
    from starlette.types import ASGIApp

Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
_PATIENCE = 2
"""Seconds open pages have to end."""


def web(
    *,
    host: Host = "127.0.0.1",
    port: Annotated[int, whole(65535, "--port", help="Port; 0: any free port.")] = 8470,
    read_only: Annotated[bool, typer.Option("--read-only", help="Disable all actions.")] = False,
    config: Config = None,
) -> None:
    """Serve the web page that shows and manages jobs.

    Any address but loopback needs a password or a token: [web] in the configuration, or
    QFRAME_WEB__PASSWORD.

      qframe web
      qframe web --host 0.0.0.0 --port 80 --read-only
    """
    from qframe.web import Visitor, app  # noqa: PLC0415 (needs what is not always installed)
    from qframe.web.access import Passwords, granted  # noqa: PLC0415

    queues = configured(config)
    access = "read" if read_only else queues.settings.web.access
    granted(access)  # raises for an unknown action
    guards = _passwords(queues)
    _check(host, bool(guards))
    _check_jobs(queues)
    if guards:
        programs = {} if read_only else _programs(queues)
        page = app(queues, Passwords(*guards, access, programs), challenge=True)
    else:
        page = app(queues, lambda _: Visitor("somebody on this machine", access), local=True)
    _serve(queues, page, host, port, "web")


def metrics(
    *,
    host: Host = "127.0.0.1",
    port: Annotated[int, whole(65535, "--port", help="Port; 0: any free port.")] = 9470,
    config: Config = None,
) -> None:
    """Serve /metrics for Prometheus, and nothing else.

    Any address but loopback needs a password or a token, as with `qframe web`.

      qframe metrics --port 9470
    """
    from qframe.web.access import Passwords  # noqa: PLC0415 (needs what is not always installed)
    from qframe.web.app import metrics_app  # noqa: PLC0415

    queues = configured(config)
    guards = _passwords(queues)
    _check(host, bool(guards))
    page = metrics_app(queues, Passwords(*guards, "read") if guards else None)
    _serve(queues, page, host, port, "metrics", "/metrics")


def _passwords(queues: QueueManager) -> tuple[str | None, str | None] | None:
    """Returns password and token; None if there is neither."""
    settings = queues.settings.web
    password, token = (
        None if each is None else each.get_secret_value()
        for each in (settings.password, settings.token)
    )
    return (password, token) if password or token or settings.dispatch.tokens else None


def _programs(queues: QueueManager) -> dict[str, str]:
    """Returns the tokens of programs that may dispatch."""
    tokens = queues.settings.web.dispatch.tokens
    return {name: token.get_secret_value() for name, token in tokens.items()}


def _check_jobs(queues: QueueManager) -> None:
    """Raises `ConfigurationError` for an allowed job that is not there."""
    for name in queues.settings.web.dispatch.jobs:
        try:
            queues.registry.find(name)
        except UnknownJob as error:
            raise ConfigurationError(f"web.dispatch.jobs: {error}") from None


def _check(host: str, guarded: bool) -> None:
    """Raises `ConfigurationError` if the whole network could come in."""
    from qframe.web.guard import is_loopback  # noqa: PLC0415 (as above)

    if not guarded and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host} lets others in: set password or token under [web] in the "
            "configuration (or QFRAME_WEB__PASSWORD) first"
        )


def _serve(
    queues: QueueManager, page: ASGIApp, host: str, port: int, command: str, path: str = "/"
) -> None:
    import uvicorn  # noqa: PLC0415 (as above)

    listening = _bound(host, port)
    with listening:
        shown = f"[{host}]" if ":" in host else host
        print_configuration(queues, command)
        say(f"qframe {command} on http://{shown}:{listening.getsockname()[1]}{path}")
        settings = uvicorn.Config(
            page,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            # By X-Forwarded-For, an attacker could have a new address for each password.
            proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
            timeout_graceful_shutdown=_PATIENCE,
        )
        # uvicorn raises the signal again after its clean end, which is no error.
        for number in (signal.SIGTERM, signal.SIGINT):
            handlers.take(number, lambda *_: sys.exit(0))
        favour_those_that_wait()
        uvicorn.Server(settings).run(sockets=[listening])


def _bound(host: str, port: int) -> socket.socket:
    """Returns a bound socket. Raises `ConfigurationError` if that is not possible."""
    if not 0 <= port < 2**16:
        raise ConfigurationError(f"--port takes a number up to 65535, not {port}")
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[
            0
        ]
        made = socket.socket(family, kind, number)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return made
