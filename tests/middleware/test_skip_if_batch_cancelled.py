"""SkipIfBatchCancelled: which jobs of a cancelled batch run, and how the batch counts them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from qframe import Batch, Queueable, QueueManager, batch, find_batch, manager
from qframe.exceptions import BackendUnavailable
from qframe.failed.retry import retry
from qframe.features.batches import BatchStore
from qframe.middleware import SkipIfBatchCancelled
from qframe.testing import Drained, drain

ran: list[str] = []
broken: set[str] = set()
"""The words that cannot be said."""


class Say(Queueable):
    word: str

    def handle(self) -> None:
        ran.append(self.word)
        if self.word in broken:
            raise ValueError(self.word)


class Careful(Say):
    middleware = (SkipIfBatchCancelled(),)


class Ends(Say):
    """Cancels its batch."""

    def handle(self) -> None:
        super().handle()
        found = self.batch()
        assert found is not None
        found.cancel()


@pytest.fixture(autouse=True)
def queues(fresh: Path) -> QueueManager:
    made = QueueManager({"default": "database", "jobs": [__name__]})
    manager.use(made)
    ran.clear()
    broken.clear()
    return made


def work() -> tuple[Drained, list[str]]:
    """Work off what waits; gives how it ended and what ran."""
    ran.clear()
    return drain(), [*ran]


def batches(queues: QueueManager) -> BatchStore:
    found = queues.connection().batches()
    assert found is not None
    return found


def counts(found: Batch) -> tuple[int, int, int]:
    now = found.fresh()
    return now.done, now.failed, now.pending


def test_a_member_of_a_cancelled_batch_is_skipped_and_counts_as_done() -> None:
    started = batch([Careful(word="a"), Careful(word="b"), Say(word="c")]).finally_(
        Careful(word="finally")
    )
    found = started.dispatch()
    assert found.cancel()
    ended, words = work()
    assert words == ["c", "finally"], "who does not go through it runs, and what follows the batch"
    assert ended.skipped == 2
    assert counts(found) == (3, 0, 0)
    assert found.fresh().is_finished


def test_it_is_asked_when_the_job_would_run() -> None:
    found = batch([Careful(word="a"), Ends(word="b"), Careful(word="c")]).dispatch()
    ended, words = work()
    assert words == ["a", "b"]
    assert (ended.skipped, counts(found)) == (1, (3, 0, 0))


def test_a_failure_cancels_and_the_rest_is_skipped() -> None:
    broken.add("a")
    found = batch([Careful(word="a"), Careful(word="b")]).dispatch()
    assert work()[1] == ["a"]
    assert counts(found) == (1, 1, 0)


def test_in_a_batch_that_goes_on_members_run() -> None:
    broken.add("a")
    members = [Careful(word="a"), Careful(word="b")]
    found = batch(members).allow_failures().dispatch()
    assert work()[1] == ["a", "b"]
    assert counts(found) == (1, 1, 0)


def test_the_rest_of_a_chain_is_skipped_link_by_link() -> None:
    found = batch([[Ends(word="a"), Careful(word="b"), Careful(word="c")]]).dispatch()
    ended, words = work()
    assert words == ["a"]
    assert (ended.skipped, counts(found)) == (2, (1, 0, 0))


def test_a_failed_member_that_is_queued_again_runs(queues: QueueManager) -> None:
    broken.update("ab")
    found = batch([Careful(word="a"), Say(word="b"), Careful(word="c")]).dispatch()
    assert work()[1] == ["a", "b"]
    broken.clear()
    store = queues.failed_store()
    for record in store.page(10):
        assert retry(queues, store, record)
    assert sorted(work()[1]) == ["a", "b"]
    assert found.fresh().is_cancelled
    assert counts(found) == (3, 0, 0)


def test_who_is_in_no_batch_runs() -> None:
    assert SkipIfBatchCancelled()(Careful(word="by hand"), lambda _job: "ran") == "ran"
    Careful.dispatch(word="alone").send()
    assert "alone" in work()[1]


def test_a_member_whose_batch_is_gone_runs(queues: QueueManager) -> None:
    found = batch([Careful(word="a")]).dispatch()
    found.cancel()
    assert batches(queues).prune(0, unfinished=2**33) == 1
    assert find_batch(found.id) is None
    assert work()[1] == ["a"]


def test_while_the_backend_does_not_answer_members_run(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = batch([Careful(word="a")]).dispatch()
    found.cancel()

    store = type(batches(queues))
    read = store.read

    def away_once(self: Any, identity: str) -> Any:
        patched.setattr(store, "read", read)
        raise BackendUnavailable("it is away")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "qframe"):
        patched.setattr(store, "read", away_once)
        assert work()[1] == ["a"]
    assert counts(found) == (1, 0, 0)
    assert "Careful is run: is its batch cancelled? it is away" in caplog.text
