"""The service: weather stations over HTTP. It refuses clients in a hurry, and has a bad moment."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

PER_SECOND = 10
"""Requests it answers within any second; more are refused with 429."""
DOWN_AFTER = 15
DOWN_FOR = 1.5
"""After so many answers it gives nothing but 503 for these seconds, once."""


class Service:
    """A server on a free port of this machine, and what it has been asked."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        self._asked: list[float] = []
        self._up_again = 0.0
        self._looking = threading.Lock()
        handler = type("Handler", (_Handler,), {"service": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def decide(self) -> HTTPStatus:
        """Say how the request that has just come is answered."""
        with self._looking:
            now = time.monotonic()
            self._asked = [*(asked for asked in self._asked if now - asked < 1), now]
            status = HTTPStatus.OK
            if len(self._asked) > PER_SECOND:
                status = HTTPStatus.TOO_MANY_REQUESTS
            elif now < self._up_again:
                status = HTTPStatus.SERVICE_UNAVAILABLE
            self.answers[status] += 1
            if self.answers[HTTPStatus.OK] == DOWN_AFTER and not self._up_again:
                self._up_again = now + DOWN_FOR
            return status


class _Handler(BaseHTTPRequestHandler):
    service: Service

    def do_GET(self) -> None:
        """Give the weather at `/stations/N`."""
        status = self.service.decide()
        station = self.path.rpartition("/")[2]
        body = json.dumps({"station": station, "celsius": int(station) % 35}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of single requests."""
