"""Management: asks the HTTP API of RabbitMQ's management plugin what AMQP does not tell."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from qframe.drivers.rabbitmq.connection import tls_context
from qframe.drivers.rabbitmq.errors import reason
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.drivers.sockets import limited
from qframe.exceptions import BackendUnavailable, BackendUnusable

_LARGEST = 64 * 1024 * 1024
"""Bytes of an answer beyond which it is no list of queues."""
_STRANGER = "what answers there is no RabbitMQ"
_COLUMNS = (
    "name,type,exclusive,auto_delete,messages,"
    "arguments,policy,operator_policy,effective_policy_definition"
)


class QueueReport(NamedTuple):
    """What the server says of a queue, some seconds late."""

    name: str
    kind: str
    messages: int
    """Ready ones, and those that workers have."""
    arguments: Mapping[str, Any]
    policies: tuple[str, ...]
    """The names of the policies that apply to it."""
    policy: Mapping[str, Any]
    """What these policies set together."""


class Management:
    """The API at `management` of a connection's settings; each request has a connection of its own.

    Its user and password are those of the API's URL, else those of the connection.
    """

    def __init__(self, settings: RabbitmqSettings) -> None:
        self._settings = settings
        parts = urlsplit(settings.management or "")
        login = settings.login()
        user = login.user if parts.username is None else unquote(parts.username)
        password = login.password if parts.password is None else unquote(parts.password)
        secret = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {secret}", "Accept": "application/json"}
        self._host, self._port = parts.hostname or "", parts.port
        self._is_tls = parts.scheme == "https"
        self._path = f"{parts.path.rstrip('/')}/api/queues/{quote(login.vhost, safe='')}"
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.where = f"{parts.scheme}://{host}" + (f":{self._port}" if self._port else "")

    def queues(self) -> list[QueueReport]:
        """List the durable queues of the vhost that are not of one connection.

        Raises `BackendUnavailable`.
        """
        rows = self._asked(f"?columns={_COLUMNS}", list) or []
        return [
            _report(row)
            for row in rows
            if isinstance(row, dict) and not (row.get("exclusive") or row.get("auto_delete"))
        ]

    def reserved(self, name: str) -> int | None:
        """Return how many messages of a queue workers have; None if the server does not know yet.

        Raises `BackendUnavailable`.
        """
        found = self._asked(f"/{quote(name, safe='')}?columns=messages_unacknowledged", dict)
        number = (found or {}).get("messages_unacknowledged")
        return number if isinstance(number, int) else None

    def _asked(self, path: str, kind: type) -> Any:  # noqa: ANN401 (JSON)
        """Return the answer to a request; None for what does not exist."""
        status, body = self._answer(self._path + path)
        if status == http.client.NOT_FOUND:
            return None
        if status in {http.client.UNAUTHORIZED, http.client.FORBIDDEN}:
            text = "refuses the user, who needs the tag `management` and a right in the vhost"
            raise BackendUnusable(f"{self.where} {text} ({status})")
        if status != http.client.OK:
            raise BackendUnavailable(f"{self.where} answered {status}")
        with suppress(ValueError, RecursionError):
            found = json.loads(body)
            if isinstance(found, kind):
                return found
        raise BackendUnavailable(f"{self.where}: {_STRANGER}")

    def _answer(self, path: str) -> tuple[int, bytes]:
        timeout = limited(self._settings.timeout)
        connection: http.client.HTTPConnection
        if self._is_tls:
            context = tls_context(self._settings)
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_LARGEST)
        except http.client.HTTPException:
            raise BackendUnavailable(f"{self.where}: {_STRANGER}") from None
        except OSError as error:
            raise BackendUnavailable(f"{self.where}: {reason(error)}") from error
        finally:
            connection.close()


def _report(row: Mapping[str, Any]) -> QueueReport:
    names = (row.get("policy"), row.get("operator_policy"))
    return QueueReport(
        str(row.get("name", "")),
        str(row.get("type", "")),
        int(row.get("messages") or 0),
        row.get("arguments") or {},
        tuple(str(each) for each in names if each),
        row.get("effective_policy_definition") or {},
    )
