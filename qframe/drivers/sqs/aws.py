"""AwsClient: calls a service of AWS, through the client that a process has of botocore.

botocore is what boto3 stands on: it has the same clients and finds the same credentials, and is
imported in a third of the time.
"""

from __future__ import annotations

import random
import time
from typing import Any, NamedTuple

from botocore.config import Config
from botocore.session import Session

from qframe import forks
from qframe.drivers.sockets import limited
from qframe.drivers.sqs.errors import FAULTS, is_throttled, meaning
from qframe.drivers.sqs.settings import SqsSettings
from qframe.exceptions import BackendUnavailable

_AT_ONCE = 100
"""Connections that one client keeps."""
_PAUSE = 0.05
"""Seconds until a throttled call is repeated; doubled each time."""
_LONGEST_PAUSE = 2.0
_ANY_REGION = "us-east-1"


class _ClientKind(NamedTuple):
    """What a client is made with."""

    service: str
    region: str | None
    endpoint: str | None
    read_timeout: float
    connect_timeout: float


class Clients:
    """The clients of this process, which its threads share; a forked child makes its own."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._made: dict[_ClientKind, Any] = {}
        self._session: Any = None
        forks.in_child_of(self, Clients.forget)

    def forget(self) -> None:
        """Forget all clients: their connections are the parent's."""
        self._made, self._session = {}, None

    def client(self, kind: _ClientKind) -> Any:  # noqa: ANN401 (botocore has no types)
        """Return the client of this kind. Raises one of `FAULTS`."""
        found = self._made.get(kind)
        if found is None:
            with forks.undisturbed(), self._lock:
                found = self._made.get(kind) or self._make(kind)
                self._made[kind] = found
        return found

    def _make(self, kind: _ClientKind) -> Any:  # noqa: ANN401 (as above)
        self._session = self._session or Session()
        region = kind.region or self._session.get_config_variable("region")
        return self._session.create_client(
            kind.service,
            region_name=region or (kind.endpoint and _ANY_REGION),
            endpoint_url=kind.endpoint,
            config=Config(
                connect_timeout=kind.connect_timeout,
                read_timeout=kind.read_timeout,
                retries={"total_max_attempts": 1, "mode": "standard"},
                max_pool_connections=_AT_ONCE,
                tcp_keepalive=True,
                user_agent_extra="qframe",
                s3={"addressing_style": "path"} if kind.endpoint else None,
            ),
        )


_clients = Clients()


class AwsClient:
    """Calls a service for a connection. `where` is what errors call it.

    A call that is throttled is repeated for `timeout` seconds; one without an answer only where
    doing it twice does no harm.
    """

    def __init__(
        self,
        settings: SqsSettings,
        service: str,
        endpoint: str | None,
        where: str,
    ) -> None:
        self.settings = settings
        self.where = where
        self._service, self._endpoint = service, endpoint
        self._region = settings.known_region

    def call(self, action: str, *, twice: bool = False, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 (as above)
        """Call a method of the client. `twice`: without an answer, it is called once more.

        Raises `BackendUnavailable`, or `PayloadTooLarge`.
        """
        try:
            return self._patiently(action, arguments)
        except BackendUnavailable as error:
            if not (twice and error.in_doubt):
                raise
        return self._patiently(action, arguments)

    def content(self, action: str, **arguments: Any) -> bytes:  # noqa: ANN401 (as above)
        """Call a method that may be done twice, and read the body of its answer."""
        body = self.call(action, twice=True, **arguments)["Body"]
        try:
            read: bytes = body.read()
        except FAULTS as error:
            raise meaning(error, self.where) from error
        return read

    def _patiently(self, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call, again and again while the service throttles."""
        pause, ends = _PAUSE, time.monotonic() + limited(self.settings.timeout)
        while True:
            try:
                answer: dict[str, Any] = getattr(self._client(), action)(**arguments)
                return answer
            except FAULTS as error:
                if not is_throttled(error) or time.monotonic() + pause > ends:
                    raise meaning(error, self.where) from error
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _client(self) -> Any:  # noqa: ANN401 (as above)
        settings = self.settings
        kind = _ClientKind(
            self._service,
            self._region,
            self._endpoint,
            limited(settings.timeout) + settings.block_for,
            limited(settings.connect_timeout),
        )
        return _clients.client(kind)
