"""The settings of a connection to a test server that keeps messages, but no facts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from qframe.contracts.backend import Timing
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.sqs_server import SqsServer

_prefixes = itertools.count()


def broker_settings(kind: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Give those of `beanstalkd`, `sqs` or `rabbitmq`, where no queue has messages."""
    if kind == "beanstalkd":
        beanstalkd: BeanstalkdServer = request.getfixturevalue("beanstalkd_server")
        return {"driver": kind, **beanstalkd.settings}
    if kind == "sqs":
        sqs: SqsServer = request.getfixturevalue("sqs_running")
        sqs.empty()
        sqs.timing = Timing()
        return {"driver": kind, "block_for": 1, **sqs.settings}
    assert kind == "rabbitmq"
    rabbitmq: RabbitmqServer = request.getfixturevalue("rabbitmq_running")
    return {"driver": kind, "prefix": f"t{next(_prefixes)}.", **rabbitmq.settings}
