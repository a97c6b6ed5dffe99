"""Settings of a beanstalkd connection."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from qframe.config import ConnectionSettings
from qframe.config.values import Int, Wait


class BeanstalkdSettings(ConnectionSettings):
    """Jobs wait in beanstalkd, each queue in a tube of its name (with `;` for `:`).

    beanstalkd counts whole seconds: delays and `retry_after`, the time to run of pushed jobs, are
    rounded up. `host` may be the path of a unix socket. The server limits `max_payload` (65,535
    bytes unless started with -z). `priority` is the default priority; 0 is first.

    `on_lost_connection` decides about a running job whose connection, and therefore lease, is lost:
    `finish` lets it end, `interrupt` ends it, and the worker, at once.

    `block_for` is the seconds after which an idle worker polls, `timeout` the seconds to wait for
    an answer, and `connect_timeout` for a connection.
    """

    driver: Literal["beanstalkd"] = "beanstalkd"
    host: Annotated[str, Field(min_length=1, pattern=r"^\S+$")] = "127.0.0.1"
    port: Annotated[Int, Field(ge=1, le=65535)] = 11300
    priority: Annotated[Int, Field(ge=0, le=2**32 - 1)] = 1024
    on_lost_connection: Literal["finish", "interrupt"] = "finish"
    block_for: Wait = 5
    timeout: Wait = 5
    connect_timeout: Wait = 5
