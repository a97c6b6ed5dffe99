"""NatsSettings: the section of a NATS connection in qframe.toml."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from qframe.config import ConnectionSettings


def _url(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # its message may show the password
        raise ValueError("is not a URL") from None
    if parts.scheme not in {"nats", "tls"} or not parts.hostname:
        raise ValueError("must be as nats://user:password@host:4222, or tls://...")
    return url


class NatsSettings(ConnectionSettings):
    """Jobs wait in one JetStream stream, those of a queue under a subject of their own.

    `url` begins with nats:// or tls://; `credentials` is a file of NATS (.creds). `stream` is made
    if it is missing, with `replicas` copies in a cluster. `timeout` is the seconds to wait for a
    connection or a reply.
    """

    driver: Literal["nats"] = "nats"
    url: Annotated[str, AfterValidator(_url), Field(repr=False)] = "nats://127.0.0.1:4222"
    credentials: str | None = None
    stream: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}$")] = "qframe"
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    timeout: Annotated[float, Field(gt=0, le=600)] = 5

    def shown(self) -> str:
        """Return where the jobs are, without user and password."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}:{parts.port or 4222}, stream {self.stream}"
