"""What the worker says between two jobs: in how many exchanges, and what if no answer comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from qframe.contracts.status import State
from qframe.contracts.step import Result, Step
from qframe.exceptions import BackendUnavailable, JobAlreadySettled, LeaseLost
from qframe.features import chain
from qframe.features.all import FEATURES
from qframe.features.base import End
from qframe.features.chain import ChainPlan
from qframe.features.context import Prepared
from qframe.features.reserved import Feature, ReservedJob
from qframe.payload import envelope
from qframe.worker.settler import Settler
from tests.worker.bench import Bench

DONE = End(State.COMPLETE)


def unavailable(*_: object) -> list[str | None]:
    raise BackendUnavailable("down")


class Talk:
    """A settler, and whom it found to run twice."""

    def __init__(self, features: Sequence[Feature] = ()) -> None:
        self.bench = Bench(features=features)
        self.backend = self.bench.backend
        self.twice: list[str] = []
        self.settler = Settler(self.bench.connection, lambda job: self.twice.append(job.uuid))

    def held(self, *names: str) -> list[ReservedJob]:
        for name in names:
            self.bench.push(name)
        jobs = self.settler.reserve(["q"], self.bench.left)
        self.backend.said.clear()
        return jobs

    def defers(self) -> bool:
        return self.settler.has_ends


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_a_deletion_travels_with_the_next_start_and_neither_is_waited_for(talk: Talk) -> None:
    a, b = talk.held("A", "B")
    assert talk.settler.start(a)
    talk.settler.defer(a, DONE)
    assert talk.defers()
    assert talk.settler.start(b)
    assert talk.backend.said == ["apply_async Start", "apply_async Delete Start"]
    assert not talk.defers()
    assert talk.bench.left == 1
    assert b.attempts() == 1


def test_it_travels_with_a_reservation_where_nothing_is_held(talk: Talk) -> None:
    (a,) = talk.held("A")
    talk.settler.start(a)
    talk.settler.defer(a, DONE)
    assert talk.settler.reserve(["q"], 1) == []
    assert talk.backend.said == ["apply_async Start", "reserve Delete"]
    assert talk.bench.left == 0


def test_it_is_said_at_once_by_flush(talk: Talk) -> None:
    (a,) = talk.held("A")
    talk.settler.start(a)
    talk.settler.defer(a, DONE)
    talk.settler.flush()
    talk.settler.flush()
    assert talk.backend.said == ["apply_async Start", "apply Delete"]
    assert talk.bench.left == 0


def test_a_start_is_asked_where_the_lease_is_not_certain(talk: Talk) -> None:
    (a,) = talk.held("A")
    a.reservation.sure_until = 0
    assert talk.settler.start(a)
    assert talk.backend.said == ["apply Start"]


def test_it_is_asked_where_that_of_the_job_before_is_not(talk: Talk) -> None:
    a, b = talk.held("A", "B")
    talk.settler.start(a)
    talk.settler.defer(a, DONE)
    a.reservation.sure_until = 0
    assert talk.settler.start(b)
    assert talk.backend.said[-1] == "apply Delete Start"


def test_a_job_held_too_long_is_not_run(talk: Talk) -> None:
    (a,) = talk.held("A")
    other = talk.backend.lose(a)
    a.reservation.sure_until = 0
    assert not talk.settler.start(a)
    assert a.is_lost
    assert other.attempts() == 0, "not counted"


def test_a_late_job_that_nobody_has_taken_is_started(talk: Talk) -> None:
    (a,) = talk.held("A")
    talk.backend.timing.skew += 100
    assert talk.settler.start(a)


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("answered", [True, False])
def test_where_the_worker_stood_still_at_its_start_nobody_else_may_have_the_job(
    talk: Talk, answered: bool, taken: bool
) -> None:
    (a,) = talk.held("A")
    send = talk.backend.apply_async

    def slow(steps: Sequence[Step], on_result: Callable[[list[Result]], None]) -> None:
        if answered:
            on_result(talk.backend.apply(*steps))
        else:
            send(steps, on_result)
        talk.backend.timing.skew += 100
        if taken:
            talk.backend.lose(a)

    talk.backend.apply_async = slow  # type: ignore[method-assign]
    assert talk.settler.start(a) is not taken
    assert a.is_lost is taken


def test_a_start_that_was_lost_after_all_is_found_later(talk: Talk) -> None:
    (a,) = talk.held("A")
    talk.backend.lose(a)
    assert talk.settler.start(a), "nobody knows better so far"
    assert not talk.settler.reserve(["q"], 1)
    assert a.is_lost
    with pytest.raises(LeaseLost):
        talk.settler.defer(a, DONE)


def test_a_job_done_whose_lease_was_lost_is_told(talk: Talk) -> None:
    (a,) = talk.held("A")
    talk.settler.start(a)
    talk.backend.lose(a)
    talk.settler.defer(a, DONE)
    talk.settler.flush()
    assert talk.twice == ["a"]
    assert a.is_lost


@pytest.mark.parametrize("how", ["down", "cut"])
def test_what_was_not_heard_is_said_again_and_counts_once(talk: Talk, how: str) -> None:
    (a,) = talk.held("A")
    talk.settler.start(a)
    talk.settler.defer(a, DONE)
    setattr(talk.backend, how, 1)
    with pytest.raises(BackendUnavailable):
        talk.settler.reserve(["q"], 1)
    assert talk.defers()
    setattr(talk.backend, how, 1)
    with pytest.raises(BackendUnavailable):
        talk.settler.flush()
    talk.settler.flush()
    assert talk.bench.left == 0
    assert talk.twice == []


def test_a_start_that_cannot_be_told_leaves_the_deletion(talk: Talk) -> None:
    a, b = talk.held("A", "B")
    talk.settler.start(a)
    talk.settler.defer(a, DONE)
    talk.backend.down = 1
    with pytest.raises(BackendUnavailable):
        talk.settler.start(b)
    assert talk.defers()
    talk.settler.flush()
    assert talk.bench.left == 1


# -- a job whose end may be refused ---------------------------------------------------------------


@pytest.fixture
def chained() -> Talk:
    """Give one whose first job is the first of two links; its second has no features."""
    talk = Talk(FEATURES)
    plan = ChainPlan("c", [None, None], [link("a"), link("z")])
    chain.start(talk.bench.context, plan)
    return talk


def link(uuid: str) -> Prepared:
    message = {"uuid": uuid, "job": "Link", "data": {}, "chain": {"id": "c"}}
    return Prepared(uuid, envelope.encode(message), "q", 0)


def test_a_chain_goes_on_with_the_next_reservation(chained: Talk) -> None:
    (a,) = chained.held()
    chained.settler.start(a)
    chained.settler.defer(a, DONE)
    (z,) = chained.settler.reserve(["q"], 1)
    assert z.uuid == "z"
    assert chained.backend.said == ["apply_async Start", "reserve Expect Unset Push Set Delete"]


def test_before_the_next_start_it_is_waited_for(chained: Talk) -> None:
    a, b = chained.held("B")
    chained.settler.start(a)
    chained.settler.defer(a, DONE)
    chained.settler.start(b)
    assert chained.backend.said == [
        "apply_async Start", "apply Expect Unset Push Set Delete", "apply_async Start",
    ]  # fmt: skip


def test_what_is_refused_is_made_anew_at_once(chained: Talk) -> None:
    (a,) = chained.held()
    chained.settler.start(a)
    chained.settler.defer(a, DONE)
    assert chain.extend(chained.bench.context, "c", "a", link("m"), first=True)
    assert chained.settler.reserve(["q"], 1) == []
    (m,) = chained.settler.reserve(["q"], 1)
    assert m.uuid == "m"
    assert a.is_deleted
    assert chained.bench.left == 1


def test_it_stays_to_be_settled_while_the_backend_does_not_answer(
    chained: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = chained.held()
    chained.settler.start(a)
    chained.settler.defer(a, DONE)
    chain.extend(chained.bench.context, "c", "a", link("m"), first=False)
    with monkeypatch.context() as patch:
        patch.setattr(chained.backend, "read", unavailable)
        with pytest.raises(BackendUnavailable):
            chained.settler.reserve(["q"], 1)
    assert not a.is_settled
    chained.settler.flush()
    assert a.is_deleted
    assert chained.bench.left == 1


# -- a job that runs on ---------------------------------------------------------------------------


def test_a_start_without_an_answer_is_said_again_by_another_thread(talk: Talk) -> None:
    (a,) = talk.held("A")
    talk.backend.unsent = True
    talk.settler.start(a)
    with talk.backend.elsewhere():
        assert talk.settler.confirm(a)
    assert talk.backend.said == ["apply_async Start", "apply Start"]
    assert a.attempts() == 1
    talk.backend.apply()
    assert a.attempts() == 1
    assert not talk.settler.confirm(a)
    a.settle(DONE)
    assert talk.bench.left == 0


def test_the_deletion_that_was_told_with_it_is_said_again_too(talk: Talk) -> None:
    a, b = talk.held("A", "B")
    talk.settler.start(a)
    talk.settler.defer(a, DONE)
    talk.backend.said.clear()
    talk.settler.start(b)
    with talk.backend.elsewhere():
        assert talk.settler.confirm(b)
    assert talk.backend.said == ["apply_async Delete Start", "apply Delete Start"]
    talk.backend.apply()  # and hears the first answer, after all
    assert talk.twice == [], "of two deletions one finds nothing"
    assert talk.bench.left == 1
    assert b.attempts() == 1


def test_a_deletion_that_was_lost_is_told_once_both_times_say_so(talk: Talk) -> None:
    (a,) = talk.held("A")
    talk.settler.start(a)
    talk.backend.lose(a)
    (b,) = talk.held("B")
    talk.settler.defer(a, DONE)
    talk.settler.start(b)
    with talk.backend.elsewhere():
        assert talk.settler.confirm(b)
    assert talk.twice == []
    talk.backend.apply()
    assert talk.twice == ["a"]


def test_a_lease_is_renewed_until_the_end_is_said(talk: Talk) -> None:
    (a,) = talk.held("A")
    talk.settler.start(a)
    talk.settler.defer(a, DONE)
    a.renew()
    assert talk.backend.said[-1] == "apply Renew"
    talk.settler.flush()
    with pytest.raises(JobAlreadySettled):
        a.renew()
    assert talk.twice == []
    assert talk.bench.left == 0


def test_a_confirmation_that_comes_to_nothing_hides_no_loss(talk: Talk) -> None:
    (a,) = talk.held("A")
    talk.settler.start(a)
    talk.backend.lose(a)
    (b,) = talk.held("B")
    talk.settler.defer(a, DONE)
    talk.settler.start(b)
    b.defer(DONE)
    b.sending()
    with pytest.raises(JobAlreadySettled), talk.backend.elsewhere():
        talk.settler.confirm(b)
    talk.backend.apply()
    assert talk.twice == ["a"]


def test_a_loss_found_so_is_the_jobs(talk: Talk) -> None:
    (a,) = talk.held("A")
    talk.backend.unsent = True
    talk.settler.start(a)
    talk.backend.lose(a)
    with pytest.raises(LeaseLost), talk.backend.elsewhere():
        talk.settler.confirm(a)
    assert a.is_lost


def test_an_answered_start_is_not_said_again(talk: Talk) -> None:
    (a,) = talk.held("A")
    talk.settler.start(a)
    talk.backend.apply()
    talk.backend.timing.skew += 5
    assert not talk.settler.confirm(a)
