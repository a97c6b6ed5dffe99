"""The payload of our no-op job, for the bare loops that push it as it is."""

from __future__ import annotations

import json

APPEND = json.dumps(
    {
        "uuid": "0b9c2f3e-6c1a-4d6b-9a53-0f6f1d2c3b4a",
        "displayName": "benchmarks.apps.qframe_jobs.Append",
        "job": "benchmarks.apps.qframe_jobs.Append",
        "maxTries": None,
        "maxExceptions": None,
        "failOnTimeout": False,
        "backoff": None,
        "timeout": None,
        "retryUntil": None,
        "data": {},
        "createdAt": 1795219200,
        "id": "0b9c2f3e-6c1a-4d6b-9a53-0f6f1d2c3b4a",
        "attempts": 0,
        "delay": None,
    },
    separators=(",", ":"),
)
