"""The attributes of spans and metrics, by the semantic conventions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from qframe.exceptions import DirtyExit
from qframe.payload import envelope, tracebacks

SYSTEM = "qframe"
"""The same for every backend, so that a job's spans are found together even if it moves.

The backend's client has its own spans; `qframe.driver` names the driver.
"""

Values = dict[str, Any]

_PORTS = {"redis": 6379, "rediss": 6379, "valkey": 6379, "valkeys": 6379, "postgresql": 5432}
_PORTS |= {"mysql": 3306, "mariadb": 3306}


def of_place(connection: Any, queue: str, operation: str, kind: str) -> Values:  # noqa: ANN401 (a connection)
    """Return the attributes of an operation on a queue."""
    values: Values = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "qframe.connection": connection.name,
        "qframe.driver": connection.settings.driver,
    }
    if queue:
        values["messaging.destination.name"] = queue
    return values | _server(connection.settings)


def of_job(payload: Mapping[str, Any]) -> Values:
    """Return the attributes of the job itself."""
    values: Values = {"qframe.job.name": envelope.display_name(payload)}
    uuid = envelope.uuid(payload)
    return values if uuid is None else values | {"messaging.message.id": uuid}


_MEASURED = (
    "messaging.system", "messaging.operation.name", "messaging.destination.name",
    "server.address", "server.port",
)  # fmt: skip


def measured(values: Values, error: str | None) -> Values:
    """Return the attributes for metrics, which have few values."""
    found = {key: values[key] for key in _MEASURED if key in values}
    return found if error is None else found | {"error.type": error}


def error_type(error: BaseException) -> str:
    """Return the type of an error, with its module, as the conventions require."""
    kind = type(error)
    if isinstance(error, DirtyExit) or kind.__module__ in {"builtins", "__main__"}:
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def of_exception(error: BaseException) -> Values:
    """Return the traceback of an error from an isolated job's process; the SDK adds others."""
    if not hasattr(error, "traceback_elsewhere"):
        return {}
    return {"exception.stacktrace": tracebacks.full(error)}


def _server(settings: Any) -> Values:  # noqa: ANN401 (those of any driver)
    host, port = getattr(settings, "host", None), getattr(settings, "port", None)
    url = getattr(settings, "url", None)
    if isinstance(url, str):
        try:
            parts = urlsplit(url)
            host = parts.hostname
            port = parts.port or _PORTS.get(parts.scheme.partition("+")[0])
        except ValueError:
            return {}
    if not isinstance(host, str) or not host:
        return {}
    values: Values = {"server.address": host}
    return values | {"server.port": port} if isinstance(port, int) else values
