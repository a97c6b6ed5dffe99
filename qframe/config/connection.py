"""ConnectionSettings: what every connection has; each driver derives its own from it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from qframe.config.values import YEAR, Float, Int, QueueName, Section, describe, is_list, listed
from qframe.exceptions import ConfigurationError

_LARGEST_PAYLOAD = 1 << 29
"""Bytes; Redis stores no larger value."""


class ConnectionSettings(Section):
    """Settings of every connection; each driver's settings derive from it.

    `retry_after` is the lease of a running job in seconds: the job of a killed worker runs again
    after at most that long. Leases are renewed, so it may be shorter than a job's timeout.
    `push_retries` is how often a dropped dispatch is retried. `give_up_after` is the seconds
    without an answer after which a worker exits (0: never).
    """

    driver: str
    queue: QueueName = "default"
    retry_after: Annotated[Float, Field(ge=1, le=YEAR)] = 60
    max_payload: Annotated[Int, Field(gt=0, le=_LARGEST_PAYLOAD)] = 1_000_000
    push_retries: Annotated[Int, Field(ge=0, le=1000)] = 3
    give_up_after: Annotated[Float, Field(ge=0, le=YEAR)] = 300


def validated(
    model: type[ConnectionSettings], values: dict[str, Any], name: str
) -> ConnectionSettings:
    """Check the settings of a connection. Raises `ConfigurationError` with the key."""
    lists = {key for key, field in model.model_fields.items() if is_list(field.annotation)}
    key = ""
    try:
        values = dict(values)
        for key in lists & values.keys():
            values[key] = listed(values[key])
    except ValueError as error:
        raise ConfigurationError(f"connections.{name}: {key}: {error}") from None
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(describe(error, model, f"connections.{name}")) from None
