"""Requests: HTTP requests to a server under test, which a busy machine may answer late."""

from __future__ import annotations

from functools import partial

import httpx2

_SECONDS = 60.0

get = partial(httpx2.get, timeout=_SECONDS)
post = partial(httpx2.post, timeout=_SECONDS)
stream = partial(httpx2.stream, timeout=_SECONDS)
