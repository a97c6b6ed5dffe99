"""Steps in parts: broken off between any two of them, nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History
from qframe.contracts.queue import Sizes
from qframe.contracts.step import (
    APPLIED,
    LOST,
    Arrive,
    Bury,
    Close,
    Delete,
    Expect,
    Extend,
    Forget,
    Open,
    Operation,
    Outcome,
    Push,
    Raise,
    Record,
    Release,
    Renew,
    Reservation,
    Result,
    Set,
    Start,
    Step,
    Unset,
)
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import BackendUnavailable
from qframe.payload.signature import Signer
from tests.support.breaking import Breaking

LEASE = 60.0


def record(uuid: str = "a") -> FailedJob:
    return FailedJob(
        uuid=uuid, connection="c", queue="q", payload=b"x", exception="E", name="n", attempts=1,
        history=History(), failed_at=0.0,
    )  # fmt: skip


class World:
    """Parts that outlive the processes which work on them."""

    def __init__(self) -> None:
        self.parts = MemoryBackend(), MemoryBackend(), MemoryBackend()
        self.messages, self.facts, self.failed = self.parts
        self.ordered = OrderedBackend(*self.parts)

    def push(self, raw: bytes = b"x") -> None:
        self.messages.apply(Step(None, Push("q", raw)))

    def take(self) -> Reservation:
        (job,), _ = self.ordered.reserve(["q"])
        return job

    def begin(self) -> Reservation:
        job = self.take()
        assert self.ordered.apply(Step(job, Start(LEASE, b"n"))) == [APPLIED]
        return job

    def run_out(self) -> None:
        """Let every lease run out."""
        self.messages.timing.skew += LEASE + 1

    def outboxes(self) -> list[tuple[str, str]]:
        return self.facts.scan("outbox:")

    def in_queue(self, queue: str) -> list[bytes]:
        """Take all there is in a queue."""
        return [job.raw_body for job in self.messages.reserve([queue], 100)[0]]


@pytest.fixture
def world() -> World:
    return World()


# -- broken off at any place ----------------------------------------------------------------------

End = Callable[[], Sequence[Operation]]


@dataclass
class Kind:
    """A kind of step that ends a job, and what must have come of it, however often it was begun."""

    end: End
    pushed: dict[str, bytes]
    prepare: Sequence[Operation] = ()
    facts: dict[str, str] | None = None
    failed: int = 0
    sizes: Sizes = Sizes()  # noqa: RUF009 (frozen)


KINDS = {
    "chain": Kind(
        lambda: (Expect("at", None), Set("at", "1"), Push("next", b"link"), Delete()),
        {"next": b"link"},
        facts={"at": "1"},
    ),
    "batch": Kind(
        lambda: (Arrive("latch", 0), Delete()),
        {"callbacks": b"then"},
        prepare=(Open("latch", Push("callbacks", b"then")), Extend("latch", 1), Close("latch")),
    ),
    "chain in a batch": Kind(
        lambda: (
            Expect("at", None), Set("at", "1"), Push("next", b"link"), Arrive("latch", 0), Delete(),
        ),
        {"next": b"link", "callbacks": b"then"},
        prepare=(Open("latch", Push("callbacks", b"then")), Extend("latch", 1), Close("latch")),
    ),
    "failure": Kind(
        lambda: (
            Raise("status", 9, "failed", 60), Push("next", b"catch"), Record(record()), Delete(),
        ),
        {"next": b"catch"},
        facts={"status": "failed"},
        failed=1,
    ),
    "failure alone": Kind(lambda: (Record(record()), Delete()), {}, failed=1),
    "unlock": Kind(
        lambda: (Unset("lock", "mine"), Delete()), {}, prepare=(Set("lock", "mine"),),
    ),
    "push": Kind(lambda: (Push("next", b"more"), Delete()), {"next": b"more"}),
    "release": Kind(
        lambda: (Raise("status", 3, "released", 60), Release(0, notes=b"m")),
        {},
        facts={"status": "released"},
        sizes=Sizes(ready=1),
    ),
    "bury": Kind(
        lambda: (Set("at", "1"), Push("next", b"link"), Bury(b"m")),
        {"next": b"link"},
        facts={"at": "1"},
        sizes=Sizes(buried=1),
    ),
}  # fmt: skip


def settle(backend: Backend, job: Reservation, end: End) -> None:
    """End a job as a worker does: one whose chain went on before is only removed."""
    (result,) = backend.apply(Step(job, *end()))
    if result.outcome is Outcome.REFUSED:
        (result,) = backend.apply(Step(job, *(each for each in end() if not _is_of_chain(each))))
    assert result.applied


def _is_of_chain(operation: Operation) -> bool:
    return isinstance(operation, Expect | Push) or operation == Set("at", "1")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("started", [True, False], ids=["started", "held"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_killed_at_any_call_nothing_is_lost(kind: Kind, *, started: bool, after: bool) -> None:
    for place in range(20):
        world = World()
        world.facts.apply(*(Step(None, each) for each in kind.prepare))
        world.push()
        job = world.begin() if started else world.take()
        with Breaking(world.parts, place, after=after) as breaking:
            settle(world.ordered, job, kind.end)
        if breaking.broke:
            world.run_out()
            others = OrderedBackend(*world.parts)
            if world.messages.sizes("q") != kind.sizes or kind.sizes.ready:
                (job,), _ = others.reserve(["q"])
                if started:
                    others.apply(Step(job, Start(LEASE)))
                settle(others, job, kind.end)
        for queue, raw in kind.pushed.items():
            assert set(world.in_queue(queue)) == {raw}, place
        for key, value in (kind.facts or {}).items():
            assert world.facts.read(key) == [value], place
        assert world.facts.read("lock") == [None]
        assert world.failed.count_failed() == kind.failed, place
        assert world.messages.sizes("q") == kind.sizes, place
        assert not world.outboxes() or place, place
        if not breaking.broke:
            return
    pytest.fail("it never ended")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_error_at_any_call_and_the_same_process_goes_on(*, after: bool) -> None:
    """The backend was away for a call: the job is settled once more, or given back uncounted."""
    for giving_back in (False, True):
        for place in range(20):
            world = World()
            world.push()
            job = world.begin()
            end = KINDS["chain"].end
            with Breaking(world.parts, place, after=after) as breaking:
                settle(world.ordered, job, end)
            if breaking.broke:
                size = world.messages.sizes("q")
                if giving_back and size.total:
                    back = Release(front=True, counted=False)
                    assert world.ordered.apply(Step(job, back)) == [APPLIED]
                    job = world.take()
                    assert job.attempts == 0
                if size.total:
                    settle(world.ordered, job, end)
            assert set(world.in_queue("next")) == {b"link"}
            assert world.messages.sizes("q") == Sizes()
            assert world.outboxes() == []
            if not breaking.broke:
                break


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_start_broken_off_is_started_again(*, after: bool) -> None:
    for place in range(10):
        world = World()
        world.push()
        step = (Raise("status", 2, "running", 60), Start(LEASE, b"n"))
        job = world.take()
        with Breaking(world.parts, place, after=after) as breaking:
            world.ordered.apply(Step(job, *step))
        if breaking.broke:
            world.run_out()
            others = OrderedBackend(*world.parts)
            (job,), _ = others.reserve(["q"])
            assert others.apply(Step(job, *step)) == [APPLIED]
        assert world.facts.read("status") == ["running"]
        assert world.messages.sizes("q") == Sizes(reserved=1)
        if not breaking.broke:
            return


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_retry_broken_off_loses_no_failed_job(*, after: bool) -> None:
    for place in range(10):
        world = World()
        world.failed.apply(Step(None, Record(record())))
        step = Step(None, Set("s", "1"), Push("q", b"x"), Forget("a"))
        with Breaking(world.parts, place, after=after) as breaking:
            assert world.ordered.apply(step) == [APPLIED]
        if breaking.broke:
            OrderedBackend(*world.parts).apply(step)  # refused where it was done
        assert set(world.in_queue("q")) == {b"x"}
        assert world.failed.count_failed() == 0
        if not breaking.broke:
            return


# -- the fence and what is expected ---------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_late_worker_changes_nothing(world: World, kind: Kind) -> None:
    world.facts.apply(*(Step(None, each) for each in kind.prepare))
    world.push()
    late = world.begin()
    world.run_out()
    holder = world.begin()
    before = world.facts.scan("")
    assert world.ordered.apply(Step(late, *kind.end())) == [LOST]
    assert world.facts.scan("") == before
    assert not any(world.in_queue(queue) for queue in ("next", "callbacks"))
    assert world.failed.count_failed() == 0
    settle(world.ordered, holder, kind.end)


def test_a_lease_that_ran_out_but_was_not_taken_is_settled(world: World) -> None:
    world.push()
    job = world.begin()
    world.run_out()
    settle(world.ordered, job, KINDS["chain"].end)
    assert world.in_queue("next") == [b"link"]
    assert world.messages.sizes("q") == Sizes()


def test_a_refused_step_did_nothing(world: World) -> None:
    world.push()
    job = world.begin()
    world.facts.apply(Step(None, Set("at", "7")))
    (result,) = world.ordered.apply(Step(job, *KINDS["chain"].end(), Record(record())))
    assert result == Result(Outcome.REFUSED, "at", "7")
    assert world.in_queue("next") == []
    assert world.outboxes() == []
    assert world.failed.count_failed() == 0
    assert world.messages.sizes("q") == Sizes(reserved=1)
    assert not job.unsent
    (result,) = world.ordered.apply(Step(None, Set("x", "1"), Push("q", b"y"), Forget("none")))
    assert result == Result(Outcome.REFUSED, "none")
    assert world.facts.read("x") == [None]


def test_a_start_that_is_refused_is_not_counted(world: World) -> None:
    world.push()
    job = world.take()
    world.facts.apply(Step(None, Set("newest", "other")))
    (result,) = world.ordered.apply(Step(job, Expect("newest", "me"), Start(LEASE)))
    assert result == Result(Outcome.REFUSED, "newest", "other")
    assert (job.started, job.attempts) == (False, 0)


class Noting(MemoryBackend):
    """One that notes the steps of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Step, ...]] = []

    def apply(self, *steps: Step) -> list[Result]:
        self.asked.append(steps)
        return super().apply(*steps)


def test_many_pushes_with_facts_are_two_requests() -> None:
    messages, facts = Noting(), Noting()
    ordered = OrderedBackend(messages, facts, facts)
    keys = ["a", "b", "a", "c"]
    steps = [Step(None, Expect(k, None), Set(k, "1"), Push("q", k.encode())) for k in keys]
    results = ordered.apply(*steps, Step(None, Push("q", b"d"), Push("other", b"e")))
    assert results == [APPLIED, APPLIED, Result(Outcome.REFUSED, "a", "1"), APPLIED, APPLIED]
    assert (len(facts.asked), len(messages.asked)) == (1, 1)
    assert [job.raw_body for job in messages.reserve(["q"], 9)[0]] == [b"a", b"b", b"c", b"d"]
    assert ordered.apply(*(Step(None, Push(queue, b"f"), Push("q", b"g")) for queue in "xy"))
    assert len(facts.asked) == 1


def test_facts_and_records_of_one_backend_are_one_step() -> None:
    """One transaction less for a job that fails, and no moment between the two."""
    world, facts = World(), Noting()
    world.ordered = OrderedBackend(world.messages, facts, facts)
    world.push()
    job = world.begin()
    assert world.ordered.apply(Step(job, Unset("lock"), Record(record()), Delete())) == [APPLIED]
    assert facts.asked == [(Step(None, Unset("lock"), Record(record())),)]
    assert facts.count_failed() == 1


# -- outboxes -------------------------------------------------------------------------------------


def break_after_facts(world: World, name: str = "") -> None:
    """Break off a step of a chain once its facts are written: what it pushes is in the outbox."""
    job = world.begin()
    job.id = name or job.id
    with Breaking(world.parts, 2, after=False) as breaking:  # the renewal, the facts, the push
        world.ordered.apply(Step(job, *KINDS["chain"].end()))
    assert breaking.broke
    assert job.unsent
    assert len(world.outboxes()) == 1


def test_the_next_start_sends_it(world: World) -> None:
    world.push()
    break_after_facts(world)
    world.run_out()
    job = world.take()
    assert (job.attempts, job.unsent) == (1, True)
    world.ordered.apply(Step(job, Renew(LEASE)))
    assert world.in_queue("next") == []
    world.ordered.apply(Step(job, Start(LEASE)))
    assert world.in_queue("next") == [b"link"]
    assert world.outboxes() == []
    assert not job.unsent


@pytest.mark.parametrize("last", [Delete(), Bury()], ids=["delete", "bury"])
def test_so_does_a_settle_of_what_was_not_started(world: World, last: Operation) -> None:
    world.push()
    break_after_facts(world)
    world.run_out()
    job = world.take()
    jobs, results = world.ordered.reserve(["q"], first=[Step(job, last)])
    assert (jobs, results) == ([], [APPLIED])
    assert world.in_queue("next") == [b"link"]


def test_and_one_that_is_told(world: World) -> None:
    world.push()
    break_after_facts(world)
    world.run_out()
    heard: list[Result] = []
    world.ordered.apply_async([Step(world.take(), Start(LEASE))], heard.extend)
    assert heard == [APPLIED]
    assert world.in_queue("next") == [b"link"]


def test_a_reservation_needs_no_facts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is given out while they are away is not lost to its lease."""
    world.push()
    break_after_facts(world)
    world.run_out()

    def away(*_: object) -> list[str | None]:
        raise BackendUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(world.facts, "read", away)
        job = world.take()
        with pytest.raises(BackendUnavailable):
            world.ordered.apply(Step(job, Start(LEASE)))
    assert world.ordered.apply(Step(job, Start(LEASE))) == [APPLIED]
    assert job.attempts == 2
    assert world.in_queue("next") == [b"link"]


@pytest.mark.parametrize("apart", [True, False])
def test_messages_of_the_same_bytes_leave_each_others(world: World, *, apart: bool) -> None:
    """One that the backend does not tell apart is sent by whoever needs its place."""
    world.push()
    world.push()
    break_after_facts(world, name="" if apart else "x")
    other = world.begin()
    other.id = other.id if apart else "x"
    step = (Set("other", "1"), Push("next", b"other"), Delete())
    assert world.ordered.apply(Step(other, *step)) == [APPLIED]
    assert sorted(world.in_queue("next")) == [b"link"] * (not apart) + [b"other"]
    assert len(world.outboxes()) == apart


@pytest.mark.parametrize("last", [Delete(), Bury()], ids=["delete", "bury"])
def test_one_of_a_step_before_the_first_start_is_sent(world: World, last: Operation) -> None:
    """So may one be that the backend has forgotten the starts of."""
    world.push()
    job = world.take()
    with Breaking(world.parts, 2, after=False):  # the outbox, the facts, the push
        world.ordered.apply(Step(job, *KINDS["chain"].end()))
    assert len(world.outboxes()) == 1
    world.run_out()
    job = world.take()
    assert (job.attempts, job.unsent) == (0, False)
    assert world.ordered.apply(Step(job, last)) == [APPLIED]
    assert world.in_queue("next") == [b"link"]
    assert world.outboxes() == []


def test_plain_steps_cost_no_fact(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (world.facts, world.failed):
        monkeypatch.setattr(part, "apply", None)
        monkeypatch.setattr(part, "read", None)
    world.ordered.apply(Step(None, Push("q", b"a"), Push("q", b"b")))
    first: list[Step] = []
    for expected in (b"a", b"b"):
        (job,), results = world.ordered.reserve(["q"], first=first)
        assert all(result.applied for result in results)
        assert job.raw_body == expected
        assert world.ordered.apply(Step(job, Start(LEASE, b"n"))) == [APPLIED]
        first = [job.delete()]
    assert world.ordered.reserve(["q"], first=first) == ([], [APPLIED])


def test_the_end_of_a_job_travels_with_the_next_reservation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for raw in (b"a", b"b"):
        world.push(raw)
    job = world.begin()
    reserve = world.messages.reserve
    traveled: list[Step] = []

    def noted(*args: Any, first: Sequence[Step]) -> Any:
        traveled.extend(first)
        return reserve(*args, first=first)

    monkeypatch.setattr(world.messages, "reserve", noted)
    refused = Step(None, Expect("k", "other"), Set("k", "2"))
    first = [refused, Step(job, Set("k", "1"), Delete())]
    (following,), results = world.ordered.reserve(["q"], first=first)
    assert (following.raw_body, world.facts.read("k")) == (b"b", ["1"])
    assert [each.outcome for each in results] == [Outcome.REFUSED, Outcome.APPLIED]
    assert traveled == [Step(job, Delete())]


# -- latches, and the rest ------------------------------------------------------------------------


def test_what_a_latch_hands_over_is_pushed_or_handed_on(world: World) -> None:
    opened = Open("l", Push("callbacks", b"then")), Extend("l", 1), Close("l")
    world.ordered.apply(*(Step(None, each) for each in opened))
    assert world.ordered.apply(Step(None, Arrive("l", 0, push=False))) == [
        Result(Outcome.APPLIED, due=(Push("callbacks", b"then"),))
    ]
    assert world.in_queue("callbacks") == []
    assert world.ordered.apply(Step(None, Arrive("l", 0))) == [APPLIED]
    assert world.in_queue("callbacks") == [b"then"]


FOLLOWS = b'{"data":{"id":"mine"},"id":"1","attempts":0,"delay":null}'


@pytest.mark.parametrize("signer", [None, Signer(["k" * 32])], ids=["unsigned", "signed"])
def test_copies_of_what_a_latch_pushes_are_told_apart(world: World, signer: Signer | None) -> None:
    """Two workers that run them at once would otherwise share an outbox."""
    world.ordered = OrderedBackend(*world.parts, signer=signer)
    raw = FOLLOWS if signer is None else signer.signed(FOLLOWS, "callbacks")
    opened = Open("l", Push("callbacks", raw)), Extend("l", 1), Arrive("l", 0)
    world.ordered.apply(*(Step(None, each) for each in opened))
    world.ordered.apply(Step(None, Close("l")), Step(None, Close("l")))
    copies = world.in_queue("callbacks")
    assert len(copies) == len(set(copies)) == 2
    for each in copies:
        message = json.loads(each)
        message.pop("signature", None)
        assert len(message["id"]) == 36
        assert message | {"id": "1"} == json.loads(FOLLOWS)
        if signer is not None:
            signer.check(each, "callbacks")


def test_a_latch_whose_message_was_changed_is_not_signed_anew(world: World) -> None:
    signer = Signer(["k" * 32])
    world.ordered = OrderedBackend(*world.parts, signer=signer)
    changed = signer.signed(FOLLOWS, "callbacks").replace(b"mine", b"none")
    opened = Open("l", Push("callbacks", changed)), Close("l")
    world.ordered.apply(*(Step(None, each) for each in opened))
    assert world.in_queue("callbacks") == [changed]


def test_results_come_in_order(world: World) -> None:
    world.push()
    job = world.begin()
    results = world.ordered.apply(
        Step(None, Push("q", b"a")),
        Step(None, Expect("k", "other"), Set("k", "1")),
        Step(job, Renew(LEASE)),
        Step(None, Set("k", "2")),
        Step(job, Delete()),
    )
    outcomes = [result.outcome for result in results]
    assert outcomes == [
        Outcome.APPLIED, Outcome.REFUSED, Outcome.APPLIED, Outcome.APPLIED, Outcome.APPLIED,
    ]  # fmt: skip


def test_one_backend_may_have_two_parts() -> None:
    messages, others = MemoryBackend(), MemoryBackend()
    ordered = OrderedBackend(messages, others, others)
    assert Capability.FACTS in ordered.capabilities
    assert Capability.JOINT not in ordered.capabilities
    ordered.apply(Step(None, Push("q", b"x"), Set("k", "1")))
    (job,), _ = ordered.reserve(["q"])
    ordered.apply(Step(job, Start(LEASE)))
    ordered.apply(Step(job, Record(record()), Delete()))
    assert ordered.read("k") == ["1"]
    assert ordered.count_failed() == 1
    ordered.close()
