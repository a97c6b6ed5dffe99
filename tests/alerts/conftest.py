"""A server on loopback that alerts are posted to."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

SECRET = "0123456789abcdef"


class Hook:
    """Notes what is posted, once for each id; `status` is what it answers."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/hook?to=ops"
        self.posts: list[tuple[str, dict[str, str], bytes]] = []
        """Path, headers and body of each."""
        self.status = 204
        self.headers: dict[str, str] = {}
        self.hangs = False
        """Whether it answers nothing."""
        self.drips = False
        """Whether it answers a byte each 0.1 s."""
        self.over = threading.Event()

    @property
    def told(self) -> list[str]:
        """The events, each once, in order; only those that were signed rightly."""
        found: dict[str, str] = {}
        for _, headers, body in self.posts:
            signed = headers["Qframe-Timestamp"].encode() + b"." + body
            mine = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
            assert headers["Qframe-Signature"] == f"v1={mine}"
            assert headers["Qframe-Id"] == json.loads(body)["id"]
            found.setdefault(headers["Qframe-Id"], json.loads(body)["event"])
        return [*found.values()]


@pytest.fixture
def hook() -> Iterator[Hook]:
    """Give the server."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.posts.append((self.path, dict(self.headers), body))
            if made.hangs:
                made.over.wait()
                return
            if made.drips:
                while not made.over.wait(0.1):
                    self.wfile.write(b"H")
                    self.wfile.flush()
                return
            self.send_response(made.status)
            for name, value in made.headers.items():
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_POST  # noqa: N815 (the library's own)

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:  # who posted has gone
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        made = Hook(server.server_port)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.over.set()
        server.shutdown()
        thread.join()
