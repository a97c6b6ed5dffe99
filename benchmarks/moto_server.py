"""A private SQS: moto's on loopback, in a thread, which counts the requests."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, Self

from werkzeug.serving import make_server

from benchmarks.places import NotHereError

REGION = "us-east-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}


class MotoServer:
    """A server that runs while the `with` block does."""

    requests = 0
    """How many were answered since `empty`."""

    def __enter__(self) -> Self:
        """Start it."""
        os.environ.update(CREDENTIALS)
        try:
            from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 (it takes a second)
                DomainDispatcherApplication,
                create_backend_app,
            )
        except ImportError as error:
            raise NotHereError(f"moto is not installed: {error}") from error
        self._app: Any = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._server.shutdown()
        self._thread.join()

    def _answer(self, environ: dict[str, Any], begin: Callable[..., Any]) -> Iterable[bytes]:
        self.requests += 1
        answer: Iterable[bytes] = self._app(environ, begin)
        return answer

    @property
    def address(self) -> str:
        """Its host and port, as one word."""
        return f"127.0.0.1:{self._server.port}"

    def empty(self) -> None:
        """Forget all queues and requests."""
        from moto.sqs.models import sqs_backends  # noqa: PLC0415 (as above)

        sqs_backends.reset()
        self.requests = 0

    def counted(self) -> int:
        """Return how many requests were answered since the last call."""
        count, self.requests = self.requests, 0
        return count
