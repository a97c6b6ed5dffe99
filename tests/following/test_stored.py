"""What is kept until its turn comes: that it is signed, and when its time begins.

What somebody without the key changes of it is in tests/test_forged.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from qframe import Queueable, QueueManager, batch, chain, manager
from qframe.testing import drain
from tests.following.jobs import Asked, Follows, Hurried, Say, Slow, ran, says

pytestmark = pytest.mark.usefixtures("queues")


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
