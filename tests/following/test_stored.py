"""What is kept until its turn comes: whether it is what was kept, and when its time begins."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qframe import Queueable, QueueManager, batch, chain, manager
from qframe.features import batches
from qframe.testing import drain
from tests.following.jobs import Asked, Follows, Hurried, Say, Slow, ran, says

pytestmark = pytest.mark.usefixtures("queues")


def test_a_link_that_was_changed_in_the_store_is_refused(queues: QueueManager) -> None:
    chain(says("one", "two")).dispatch()
    store = queues.connection().store
    (key,) = (key for key in store.keys("chain:") if key.count(":") == 2)
    (text,) = store.get(key)
    kept = json.loads(str(text))
    store.set(key, json.dumps({**kept, "raw": kept["raw"].replace("two", "forged")}))
    drain()
    assert ran == ["one"]
    (record,) = queues.failed_store().page()
    assert "the signature of the payload is wrong" in record.exception


def test_a_link_that_was_moved_to_another_queue_is_refused(queues: QueueManager) -> None:
    chain(says("one", "two")).dispatch()
    store = queues.connection().store
    (key,) = (key for key in store.keys("chain:") if key.count(":") == 2)
    (text,) = store.get(key)
    store.set(key, json.dumps({**json.loads(str(text)), "queue": "payments"}))
    drain()
    assert ran == ["one"]
    (record,) = queues.failed_store().page()
    assert (record.queue, "signed for another queue" in record.exception) == ("payments", True)


@pytest.mark.parametrize("event", ["then", "catch", "finally_"])
def test_a_callback_that_was_changed_is_refused(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """`catch` is told what failed, which is no reason to sign the rest of it."""
    encode = batches._json
    monkeypatch.setattr(
        batches, "_json", lambda kept: encode(kept).replace("as it was", "as it is not")
    )
    pending = batch([Say(word="member", fails=event == "catch")])
    getattr(pending, event)(Follows(what="as it was")).dispatch()
    drain()
    assert ran == ["member"]
    reasons = [record.exception for record in queues.failed_store().page()]
    assert sum("the signature of the payload is wrong" in reason for reason in reasons) == 1


@pytest.mark.every_backend
def test_callbacks_of_a_batch_in_a_chain_are_signed(queues: QueueManager) -> None:
    inner = batch(says("member")).then(Follows(what="then")).finally_(Follows(what="finally"))
    chain([*says("one"), inner, *says("two")]).catch(Follows(what="catch")).dispatch()
    drain()
    assert [each if isinstance(each, str) else each[0] for each in ran] == [
        *("one", "member", "then", "finally", "two")
    ]
    assert [*queues.failed_store().page()] == []


def test_deadlines_begin_when_a_job_is_pushed(queues: QueueManager) -> None:
    inner = batch([Asked(word="member")]).then(Hurried(word="then")).finally_(Asked(word="finally"))
    first: list[Queueable] = [Slow(word="one"), Hurried(word="two"), Asked(word="three")]
    chain([*first, inner, Hurried(word="four")]).dispatch()
    drain()
    assert ran == ["one", "two", "three", "member", "then", "finally", "four"]
    assert [*queues.failed_store().page()] == []


@pytest.mark.two_managers
def test_who_has_no_key_does_what_signed_jobs_ask_for(backend: dict[str, Any]) -> None:
    """As while keys are introduced: nobody may lose what a batch, or a cause, adds to a payload."""
    inner = batch(says("member")).then(Follows(what="then"))
    last: list[Queueable] = [Say(word="two", fails=True)]
    chain([*says("one"), inner, *last]).catch(Follows(what="caught")).dispatch()
    names = ["tests.following.jobs"]
    keyless = {"default": "used", "jobs": names, "connections": {"used": backend}}
    manager.use(QueueManager(keyless))
    drain()
    assert [each if isinstance(each, str) else each[0] for each in ran] == [
        *("one", "member", "then", "two", "caught", "Say")
    ]
