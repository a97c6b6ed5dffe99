"""The ceiling: greenstalk alone on our tube, with nothing around it.

`python -m benchmarks.apps.bare_beanstalkd drain` reserves a job, asks for its attempts, does what
it does and deletes it, for ever. `push N` is a loop of `put`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import NoReturn

import greenstalk

from benchmarks.apps import effects, payloads

_TUBE = "default"
_PAYLOAD = payloads.APPEND.encode()


def _connected(tube: str) -> greenstalk.Client[bytes]:
    host, _, port = os.environ["BENCH_BEANSTALKD"].rpartition(":")
    return greenstalk.Client((host, int(port)), None, tube, tube)


def drain() -> NoReturn:
    """Run what is in the tube, for ever."""
    client = _connected(_TUBE)
    while True:
        job = client.reserve()
        if client.stats_job(job)["reserves"] != 1:
            raise SystemExit("a job came twice")
        effects.write_byte()
        client.delete(job)


def push(count: int) -> float:
    """Put a payload again and again; give the rate."""
    client = _connected("bare")
    client.put(_PAYLOAD)
    began = time.perf_counter()
    for _ in range(count):
        client.put(_PAYLOAD)
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    if name == "drain":
        drain()
    print(json.dumps(push(*map(int, numbers))))
