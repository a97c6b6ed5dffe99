"""Tags of links, of members and of what is retried: each keeps its own, wherever it goes."""

from __future__ import annotations

import json

import pytest

from qframe import QueueManager, batch, chain, dispatch, events
from qframe.failed.filters import tags_of
from qframe.failed.retry import retry
from qframe.payload import tags
from qframe.testing import drain
from tests.following.jobs import Say, Tagged

pytestmark = [pytest.mark.usefixtures("queues"), pytest.mark.every_backend]


@pytest.fixture
def seen() -> dict[str, list[str]]:
    """Give the tags of each job that began, by its word."""
    found: dict[str, list[str]] = {}

    @events.listen(events.JobProcessing)
    def note(event: events.JobProcessing) -> None:
        word = event.job.payload["data"]["word"]
        found[word] = tags.of_reserved(event.job)

    return found


def of(word: str) -> list[str]:
    return [f"word:{word}", "said"]


def test_each_link_of_a_chain_has_its_own(seen: dict[str, list[str]]) -> None:
    chain([Tagged(word="one"), Tagged(word="two"), Say(word="three")]).dispatch()
    drain()
    assert seen == {"one": of("one"), "two": of("two"), "three": []}


def test_each_member_of_a_batch_has_its_own_and_so_has_what_follows(
    seen: dict[str, list[str]],
) -> None:
    following = chain([Tagged(word="b"), Tagged(word="c")])
    batch([Tagged(word="a"), following]).then(Tagged(word="then")).dispatch()
    drain()
    assert seen == {word: of(word) for word in ("a", "b", "c", "then")}


def test_a_failed_one_is_retried_with_its_own(
    queues: QueueManager, seen: dict[str, list[str]]
) -> None:
    dispatch(Tagged(word="bad", fails=True)).send()
    chain([Tagged(word="worse", fails=True), Tagged(word="never")]).dispatch()
    drain()
    store = queues.failed_store()
    records = {json.loads(each.payload)["data"]["word"]: each for each in store.page(10)}
    assert {word: tags_of(each) for word, each in records.items()} == {
        word: of(word) for word in ("bad", "worse")
    }
    seen.clear()
    for each in records.values():
        assert retry(queues, store, each)
    drain()
    assert seen == {word: of(word) for word in ("bad", "worse")}
