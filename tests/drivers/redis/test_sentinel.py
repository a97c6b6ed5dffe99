"""A master found by its Sentinels, and another one when it dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe.exceptions import BackendUnavailable
from tests.drivers.redis.acts import WORK
from tests.drivers.redis.conftest import Command, Connect, MakeProject
from tests.drivers.redis.support import (
    SECRET,
    Producer,
    check_all_done,
    cut_off,
    drain,
    lines_with,
    live,
    push,
)
from tests.support.process import wait_for
from tests.support.redis_server import SentinelGroup, wait_until


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    """Give a master with two replicas, under three Sentinels."""
    with SentinelGroup(tmp_path / "group", replicas=2, down_after=500) as made:
        yield made


def settings(group: SentinelGroup, **more: object) -> dict[str, Any]:
    return {"sentinels": group.sentinels, "service": group.service, **more}


def test_no_acknowledged_job_is_lost_in_a_failover(
    group: SentinelGroup, make_project: MakeProject
) -> None:
    """Producers raise until there is another master, then go on by themselves, as workers do."""
    app = make_project(**settings(group, retry_after=3, min_replicas=1, connect_timeout=2))
    workers = [app.work("redis") for _ in range(2)]
    with Producer(app) as producer:
        app.wait_for_note("D", count=20)
        old, replicas = group.master, group.replicas
        cut_off(old, replicas)
        producer.wait_for_refusal()
        old.kill()
        for replica in replicas:
            replica.resume()
        group.wait_for_other(old)
        producer.wait_for_more()
    # What was held, or was done and not known to be, when the master died, comes back by its lease.
    wait_for(app.empty, "the end of every job", 60)
    check_all_done(app, producer, workers)
    assert any("queued, but only 0 of 1 replicas" in words for words in producer.refusals)
    assert any("does not answer" in words for words in producer.refusals)
    assert all("mymaster by sentinels " in words for words in producer.refusals)
    for worker in workers:
        (gone,) = lines_with(worker, " gone: ")
        assert "mymaster by sentinels " in gone
        assert len(lines_with(worker, " back after ")) == 1
    assert app.empty()
    # Who was the master comes back as a replica: nobody asks it.
    old.start()
    live(app.queue)


def test_a_master_that_was_replaced_and_still_runs_is_left(
    group: SentinelGroup, connect: Connect
) -> None:
    """It is a replica then; whoever is connected to it asks the Sentinels anew."""
    queue = connect(**settings(group))
    live(queue)
    delete = WORK["delete"](queue)
    old = group.master
    group.watchers[0].command("SENTINEL", "FAILOVER", group.service)
    new = group.wait_for_other(old)
    old.command("REPLICAOF", *new.address)  # as the Sentinels tell it, a little later

    def deleted() -> bool:
        delete.do()
        return True

    wait_until(deleted, "the Sentinels to name the new one")
    delete.check()
    live(queue)


def test_sentinels_may_ask_for_a_user_of_their_own(group: SentinelGroup, connect: Connect) -> None:
    for watcher in group.watchers:
        user = ["qframe", "on", f">{SECRET}", "+sentinel|masters"]
        watcher.command("ACL", "SETUSER", *user)
    known = {"sentinel_username": "qframe", "sentinel_password": SECRET}
    live(connect(**settings(group, **known)))
    with pytest.raises(BackendUnavailable) as error:
        connect(**settings(group, **known | {"sentinel_password": "wrong"})).ping()
    assert SECRET not in str(error.value)


def test_sentinels_that_do_not_answer_or_do_not_know_are_named(
    group: SentinelGroup, make_project: MakeProject, connect: Connect, run: Command
) -> None:
    stranger = connect(**settings(group, service="another"))
    with pytest.raises(BackendUnavailable, match=r"another by sentinels .*No master found"):
        stranger.ping()
    app = make_project(**settings(group, sentinels=["127.0.0.1:1"]))
    said = run(app, "size")
    assert said.code == 69
    assert "mymaster by sentinels 127.0.0.1:1 does not answer" in said.one_line()
    one_of_them = connect(**settings(group, sentinels=["127.0.0.1:1", group.sentinels[2]]))
    uuid = push(one_of_them)
    assert drain(one_of_them) == [uuid]
