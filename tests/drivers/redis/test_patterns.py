"""Listing queues: what it costs, whatever names were used, and what it finds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from qframe.contracts.step import Push, Step
from qframe.drivers.redis.backend import RedisBackend
from qframe.testing.conformance.steps import drained, push
from tests.drivers.redis.conftest import MakeProject, Opener
from tests.support.redis_server import RedisCluster, RedisServer

NAMES = [f"name-{number}" for number in range(1000)]


def asked(servers: Sequence[RedisServer], backend: RedisBackend) -> int:
    """Count what is sent to list the queues."""

    def count() -> int:
        return sum(int(each.info("stats")["total_reads_processed"]) for each in servers)

    between = -count() + count()
    before = count()
    backend.queues()
    return count() - before - between


def check_cost(servers: Sequence[RedisServer], backend: RedisBackend, most: int) -> None:
    backend.apply(*(Step(None, Push(name, b"x")) for name in NAMES))
    assert backend.queues() == sorted(NAMES)
    assert asked(servers, backend) <= most
    for name in NAMES:
        backend.purge(name)
    assert backend.queues() == []
    assert asked(servers, backend) <= most
    push(backend, b"again", queue=NAMES[7])
    assert backend.queues() == [NAMES[7]]


def test_it_costs_one_exchange_however_many_names_were_used(
    server: RedisServer, backend: RedisBackend
) -> None:
    check_cost([server], backend, 3)  # in pieces: the names found by a scan are said, too
    assert server.command("SCARD", "qframe:queues") == 1


@pytest.mark.slow
def test_on_a_cluster_it_costs_one_exchange_for_each_node(
    redis_cluster: RedisCluster, open_backend: Opener
) -> None:
    redis_cluster.empty()
    backend = open_backend(redis_cluster.url, cluster=True)
    # The names, and for each node: greeting, and all its queues, which come in some pieces.
    check_cost(redis_cluster.nodes, backend, 1 + 3 * 40)
    foreign = redis_cluster.node_of("queues:{alien}")
    foreign.command("SET", "queues:{alien}", "value")
    backend._looked_around = 0.0
    assert backend.queues() == [NAMES[7]]


def test_queues_that_only_php_knows_are_found_and_foreign_keys_are_none(
    server: RedisServer, open_backend: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    server.command("RPUSH", "queues:php", "{}")
    server.command("ZADD", "queues:later:delayed", 1, "{}")
    server.command("RPUSH", "other:queues:none", "{}")
    server.command("RPUSH", "queues:no name", "{}")
    server.command("RPUSH", b"queues:\xff", "{}")
    server.command("SET", "queues:alien", "value")
    backend = open_backend()
    assert backend.queues() == ["later", "php"]
    assert caplog.text.count("queues:alien is a string, not a list") == 1
    assert drained(backend, "php", "later") == [b"{}", b"{}"]


def test_a_key_of_somebody_else_hides_no_queue_from_a_worker(
    server: RedisServer, make_project: MakeProject
) -> None:
    server.command("SET", "queues:alien", "value")
    app = make_project(url=server.url)
    worker = app.work("redis", "--queue", "mail-*")
    app.push("Note", queue="mail-9")
    app.wait_for_note("note")
    assert worker.stop() == 0
    assert worker.err.count("queues:alien is a string, not a list") == 1
