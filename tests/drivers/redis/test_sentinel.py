"""A master found by its Sentinels, and another one when it dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe.exceptions import BackendUnavailable
from qframe.testing.conformance.steps import drained, push, started
from tests.drivers.redis.acts import LOOKS, PUSHES, WORK, do_all, payload, prepared
from tests.drivers.redis.conftest import MakeProject, Opener
from tests.drivers.redis.producing import Producer, check_all_done, cut_off
from tests.support.process import wait_for
from tests.support.projects import SECRET, lines_with
from tests.support.redis_server import SentinelGroup, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    """A master with two replicas, under three Sentinels."""
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
        new = group.wait_for_other(old)
        producer.wait_for_more()
    # What was held, or was done and not known to be, when the master died, comes back by its lease.
    wait_for(app.empty, "the end of every job", 60)
    check_all_done(app, producer, workers)
    assert any("queued, but only 0 of 1 replicas" in words for words in producer.refusals)
    assert any("does not answer" in words for words in producer.refusals)
    assert all("mymaster by sentinels " in words for words in producer.refusals)
    for worker in workers:
        gone, back = lines_with(worker, " gone: "), lines_with(worker, " back after ")
        assert all("mymaster by sentinels " in line for line in gone)
        assert 1 <= len(gone) == len(back) <= 2  # a slow machine may elect once more
    # Who was the master comes back as a replica: nobody asks it.
    old.start()
    wait_for(lambda: new.command("WAIT", 1, 1000), "a replica that follows")
    push(app.queue.backend, payload())
    assert drained(app.queue.backend) == [payload()]


def test_a_master_that_was_replaced_and_still_runs_is_left(
    group: SentinelGroup, open_backend: Opener
) -> None:
    """It is a replica then; whoever is connected to it asks the Sentinels anew."""
    backend = open_backend(**settings(group))
    push(backend, payload(), payload(1))
    job = started(backend)
    old = group.master
    group.watchers[0].command("SENTINEL", "FAILOVER", group.service)
    new = group.wait_for_other(old)
    old.command("REPLICAOF", *new.address)  # as the Sentinels tell it, a little later
    deleted = []

    def delete() -> bool:
        try:
            deleted.extend(backend.apply(job.delete()))
        except BackendUnavailable:
            return False
        return True

    wait_until(delete, "the Sentinels to name the new one")
    assert deleted[0].applied
    do_all(prepared(backend, PUSHES, WORK, LOOKS))


def test_sentinels_may_ask_for_a_user_of_their_own(
    group: SentinelGroup, open_backend: Opener
) -> None:
    for watcher in group.watchers:
        watcher.command("ACL", "SETUSER", "qframe", "on", f">{SECRET}", "+sentinel|masters")
    known = {"sentinel_username": "qframe", "sentinel_password": SECRET}
    push(open_backend(**settings(group, **known)), payload())
    with pytest.raises(BackendUnavailable) as error:
        open_backend(**settings(group, **known | {"sentinel_password": "wrong"})).check()
    assert SECRET not in str(error.value)


def test_sentinels_that_do_not_answer_or_do_not_know_are_named(
    group: SentinelGroup, make_project: MakeProject, open_backend: Opener
) -> None:
    with pytest.raises(BackendUnavailable, match=r"another by sentinels .*No master found"):
        open_backend(**settings(group, service="another")).check()
    said = make_project(**settings(group, sentinels=["127.0.0.1:1"])).qframe("size")
    assert said.code == 69
    assert "mymaster by sentinels 127.0.0.1:1 does not answer" in said.one_line()
    one_of_them = open_backend(**settings(group, sentinels=["127.0.0.1:1", group.sentinels[2]]))
    push(one_of_them, payload())
