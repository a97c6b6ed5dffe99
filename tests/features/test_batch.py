"""Batches: how members are counted, what follows them, and what is kept."""

from __future__ import annotations

import contextlib
import importlib
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from qframe import events
from qframe.contracts.batch import BatchRecord
from qframe.contracts.status import State
from qframe.contracts.step import Arrive, Delete, Expect, Extend, Push, Result, Set, Step
from qframe.drivers.memory.backend import MemoryBackend, Message
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import BackendUnavailable, InvalidJob
from qframe.features import batches, chain
from qframe.features.all import FEATURES
from qframe.features.base import End, Plan
from qframe.features.batch import BatchMember, BatchPlan, MakeMember, about
from qframe.features.batch_jobs import RunBatchCallbacks, StartBatch
from qframe.features.batches import BatchStore
from qframe.features.chain import CAUSE, ChainPlan
from qframe.features.context import Prepared
from qframe.features.reserved import ReservedJob
from tests.features.harness import Bench
from tests.features.test_chain import _dying, ordered

LOCK = "unique:x"


class Benches(Bench):
    """A bench that also runs the jobs of batches."""

    def __init__(self, backend: MemoryBackend | OrderedBackend | None = None) -> None:
        super().__init__(FEATURES, backend)
        self.batches = BatchStore(self.context)
        self.ran: list[str] = []
        """The uuids of the jobs that ran, but for those of qframe's own."""

    # -- beginning --------------------------------------------------------------------------------

    def prepared(self, uuid: str, queue: str = "q", **keys: Any) -> Prepared:
        return Prepared(uuid, self.pushing(uuid, queue, **keys).raw, queue, 0)

    def maker(self, *uuids: str, batch: str = "b", **keys: Any) -> MakeMember:
        """Give what makes a member of these links."""

        def make(number: int) -> ChainPlan:
            said = {**keys, **BatchMember(batch, number).keys()}
            name = f"chain-{uuids[0]}" if len(uuids) > 1 else ""
            if name:
                said["chain"] = {"id": name}
            links = [self.prepared(uuid, **said) for uuid in uuids]
            return ChainPlan(name, [None] * len(links), links)

        return make

    def callback_job(self, identity: str) -> Prepared:
        uuid = f"run-{identity}"
        job = f"{RunBatchCallbacks.__module__}.RunBatchCallbacks"
        return self.prepared(uuid, "run", job=job, data={"of": identity})

    def plan(
        self, *makers: MakeMember, batch: str = "b", allows: bool = False, step: int = 0,
        follow: Sequence[str] = (), **options: Any,
    ) -> BatchPlan:  # fmt: skip
        told = {
            event: [self.prepared(event, "told", **about(batch, event)).fields()]
            for event in follow
        }
        return BatchPlan(
            batch, "a batch", {"queue": None, "follow": told, **options}, allows, step,
            self.callback_job(batch), makers,
        )  # fmt: skip

    def begin(self, *uuids: str, **more: Any) -> None:
        makers = [self.maker(uuid, batch=more.get("batch", "b")) for uuid in uuids]
        self.batches.start(self.plan(*makers, **more))

    def numbered(self, count: int, **more: Any) -> None:
        self.begin(*(f"m{number}" for number in range(count)), **more)

    # -- working ----------------------------------------------------------------------------------

    def settle(self, number: int, *, failed: bool = False, batch: str = "b") -> int:
        """Let a member arrive; gives how many callback jobs wait then."""
        arrives = BatchMember(batch, number).arrives(f"job-{number}", failed=failed)
        self.backend.apply(Step(None, arrives))
        return self.due()

    def due(self) -> int:
        """Take the jobs away that would run callbacks; gives how many there were."""
        return self.backend.purge("run")

    def handle(self, job: ReservedJob) -> None:
        """Run one of qframe's own jobs."""
        module, _, name = job.payload["job"].rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        instance: Any = kind.from_data(job.payload["data"])
        object.__setattr__(instance, "_reserved", job)
        instance.handle()

    def drain(self, *queues: str) -> list[str]:
        """Run what waits, as a worker would; gives the uuids."""
        names = queues or ("q", "run", "told")
        before = len(self.ran)
        while found := next((job for name in names if (job := self.reserve(name))), None):
            self.backend.apply(found.start_plan())
            if skip_reason := found.skip_reason():
                found.settle(End(State.SKIPPED, remark=skip_reason))
                continue
            try:
                if found.payload["job"].startswith("qframe."):
                    self.handle(found)
                else:
                    self.ran.append(found.uuid)
            except BackendUnavailable:
                continue
            failed = found.uuid.startswith("bad")
            end = End(State.FAILED, error=ValueError("no")) if failed else End(State.COMPLETE)
            found.settle(end)
        return self.ran[before:]

    def die(self, calls: int, *queues: str) -> None:
        """Run what waits until so many calls of backends were made, and then what is left."""
        backend, left = self.backend, [calls]
        parts = [backend.messages, backend.facts] if isinstance(backend, OrderedBackend) else []
        with pytest.MonkeyPatch.context() as patched, contextlib.suppress(BackendUnavailable):
            for part in parts or [backend]:
                patched.setattr(part, "apply", _dying(part.apply, left))
            self.drain(*queues)
        for _ in range(4):
            self.backend.timing.skew += 200  # leases are over
            self.drain()
        assert backend.scan("outbox:") == []
        assert not any(backend.sizes(name).total for name in ("q", "run", "told"))

    def read(self, batch: str = "b") -> BatchRecord:
        found = self.batches.read(batch)
        assert found is not None
        return found

    def counts(self, batch: str = "b") -> tuple[int, int, int]:
        found = self.read(batch)
        return found.done, found.failed, found.total


@pytest.fixture(params=[MemoryBackend, ordered], ids=["joint", "ordered"])
def bench(request: pytest.FixtureRequest) -> Benches:
    return Benches(request.param())


# -- the steps as values --------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.COMPLETE, State.SKIPPED, State.FAILED, State.CANCELLED])
def test_the_step_that_ends_a_member_counts_it(state: State) -> None:
    failed = state in {State.FAILED, State.CANCELLED}
    bench = Benches()
    bench.begin("a", "z")
    plan = bench.started().plan(End(state, error=ValueError("no")))
    arrives, *_, last = plan.operations
    assert arrives == Arrive("batch:b", 0, failed, "0:a" if failed else "")
    assert last == Delete()


def test_members_are_counted_in_and_pushed_in_one_step() -> None:
    bench = Benches()
    steps: list[Step] = []
    apply = bench.backend.apply

    def applies(*made: Step) -> list[Result]:
        steps.extend(made)
        return apply(*made)

    bench.backend.apply = applies  # type: ignore[method-assign]
    bench.batches.start(bench.plan(bench.maker("a"), bench.maker("b", "c")))
    kinds = [type(each) for each in steps[1].operations]
    assert kinds == [Push, Set, Set, Push, Expect, Extend, Set]
    assert len(steps) == 3, "its beginning, its members, its closing"


def test_one_that_waits_on_in_its_chain_is_not_counted() -> None:
    bench = Benches()
    bench.batches.start(bench.plan(bench.maker("a", "b")))
    plan = bench.started().plan(End(State.COMPLETE))
    assert not any(isinstance(each, Arrive) for each in plan.operations)
    assert plan.continues


# -- counting -------------------------------------------------------------------------------------


def test_members_end_done_or_failed_and_what_follows_comes_once(bench: Benches) -> None:
    bench.begin("a", "bad", "c", allows=True, follow=["before", "catch", "then", "finally"])
    assert bench.drain("told") == ["before"]
    assert bench.drain("q") == ["a", "bad", "c"]
    assert bench.counts() == (2, 1, 3)
    assert bench.batches.failures("b") == ["bad"]
    assert bench.drain() == ["catch", "finally"]
    record = bench.read()
    assert record.is_finished
    assert record.is_notified
    assert record.finished_at is not None
    assert (record.pending, record.settled, record.cancelled_at) == (0, 3, None)


def test_a_chain_is_one_member(bench: Benches) -> None:
    plan = bench.plan(bench.maker("a", "b"), bench.maker("bad", "c"), follow=["finally"])
    bench.batches.start(plan)
    assert bench.drain("q") == ["a", "bad", "b"]
    assert bench.counts() == (1, 1, 2)
    assert bench.drain() == ["finally"]


def test_a_failed_member_that_is_retried_and_done_is_done(bench: Benches) -> None:
    bench.begin("a", "bad", follow=["then", "finally"])
    assert bench.drain() == ["a", "bad", "finally"]
    record = bench.backend.find_failed("bad")
    assert record is not None
    assert bench.batches.revive("b")
    bench.context.push(bench.context.pushing(Prepared("bad", record.payload, "q", 0)))
    bench.run()
    assert bench.counts() == (2, 0, 2)
    assert bench.drain() == ["then"]
    assert bench.batches.failures("b") == []


@pytest.mark.parametrize("state", [State.RELEASED, State.WAITING, State.BURIED])
def test_what_comes_again_is_not_counted(bench: Benches, state: State) -> None:
    bench.begin("a", "b")
    bench.run(state=state)
    assert bench.counts() == (0, 0, 2)


def test_it_finishes_when_all_have_ended_and_it_is_closed(bench: Benches) -> None:
    bench.begin()
    assert bench.due() == 1, "an empty batch is done at once"
    assert bench.read().is_finished
    bench.numbered(3, batch="c")
    assert [bench.settle(number, batch="c") for number in (1, 1, 0)] == [0, 0, 0]
    assert not bench.read("c").is_finished
    assert bench.settle(7, batch="c") == 0, "no member"
    assert bench.settle(2, batch="c") == 1
    assert bench.read("c").is_finished
    bench.batches.close("c")
    assert bench.due() == 1, "said again"


def test_progress_is_told_in_steps(bench: Benches) -> None:
    bench.numbered(7, step=3, follow=["progress"])
    assert [bench.settle(number) for number in range(4)] == [0, 0, 1, 0]
    bench.numbered(2, batch="c", step=1, follow=["progress"])
    bench.settle(0, batch="c")
    bench.batches.close("c")
    bench.backend.apply(Step(None, Push("run", bench.callback_job("c").raw)))
    assert bench.drain("run", "told") == ["progress"]
    assert bench.read("c").notified_progress == 1
    bench.backend.apply(Step(None, Push("run", bench.callback_job("c").raw)))
    assert bench.drain("run", "told") == []


# -- cancelling -----------------------------------------------------------------------------------


def test_the_first_failure_cancels_unless_failures_are_allowed(bench: Benches) -> None:
    bench.numbered(3)
    bench.numbered(3, batch="c", allows=True)
    for batch in "bc":
        assert bench.settle(0, failed=True, batch=batch) == 1
    found = bench.read().cancelled_at
    assert found is not None
    assert abs(found - time.time()) < 60
    bench.settle(1, failed=True)
    assert bench.read().cancelled_at == found
    assert bench.read("c").cancelled_at is None


def test_cancel_says_whether_there_was_something_to_cancel(bench: Benches) -> None:
    assert not bench.batches.cancel("none")
    bench.numbered(1, follow=["then", "finally"])
    assert bench.batches.cancel("b")
    before = bench.read().cancelled_at
    assert not bench.batches.cancel("b")
    assert bench.drain() == ["m0", "finally"]
    assert bench.read().cancelled_at == before
    bench.numbered(1, batch="c")
    bench.settle(0, batch="c")
    assert not bench.batches.cancel("c")
    assert bench.read("c").cancelled_at is None


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_batch_that_is_revived_goes_on(bench: Benches, by_hand: bool) -> None:
    assert not bench.batches.revive("none")
    bench.numbered(3)
    assert not bench.batches.revive("b")
    if by_hand:
        bench.batches.cancel("b")
    bench.settle(0, failed=True)
    assert bench.batches.revive("b")
    assert bench.read().cancelled_at is None
    bench.settle(1, failed=True)
    assert bench.read().cancelled_at is None, "that was not the first failure"
    assert bench.batches.cancel("b")


def test_a_first_failure_after_that_cancels_it(bench: Benches) -> None:
    bench.numbered(2)
    bench.batches.cancel("b")
    bench.batches.revive("b")
    bench.settle(0, failed=True)
    assert bench.read().cancelled_at is not None


def test_members_removed_while_they_wait_have_failed(bench: Benches) -> None:
    bench.begin("a", "b")
    bench.held().settle(End(State.CANCELLED))
    assert bench.counts() == (0, 1, 2)
    assert bench.batches.failures("b") == ["a"]


# -- taking members -------------------------------------------------------------------------------


def test_members_are_added_until_it_is_over(bench: Benches) -> None:
    bench.begin("a")
    bench.batches.add("b", [bench.maker("late"), bench.maker("later")])
    assert bench.counts() == (0, 0, 3)
    assert bench.drain("q") == ["a", "late", "later"]
    for batch in ("b", "none"):
        with pytest.raises(InvalidJob, match="is finished, cancelled or gone: it takes no jobs"):
            bench.batches.add(batch, [bench.maker("no")])
    bench.begin("x", batch="c")
    bench.batches.cancel("c")
    with pytest.raises(InvalidJob):
        bench.batches.add("c", [bench.maker("no", batch="c")])
    assert bench.drain("q") == ["x"]


def test_what_is_said_again_with_the_same_word_has_the_same_numbers(bench: Benches) -> None:
    bench.begin("a")
    for _ in range(2):
        bench.batches.add("b", [bench.maker("x"), bench.maker("y")], "word")
    bench.batches.add("b", [bench.maker("x")], "word", again=False)
    bench.batches.add("b", [bench.maker("z")], "another")
    assert bench.counts() == (0, 0, 4)
    assert bench.drain("q") == ["a", "x", "y", "x", "y", "z"]
    assert bench.counts() == (4, 0, 4)
    bench.batches.add("b", [bench.maker("x"), bench.maker("y")], "word")
    assert bench.drain("q") == ["x", "y"], "also when it is over"


def test_two_who_add_at_once_get_other_numbers(bench: Benches, monkeypatch: Any) -> None:
    bench.begin("a")
    plan = BatchStore._plan
    made: list[list[bytes]] = []

    def planned(self: BatchStore, members: Sequence[ChainPlan]) -> tuple[Plan, list[int]]:
        made.append([member.links[0].raw for member in members])
        if len(made) == 1:
            bench.batches.add("b", [bench.maker("first")])
        return plan(self, members)

    monkeypatch.setattr(BatchStore, "_plan", planned)
    bench.batches.add("b", [bench.maker("second")])
    numbers = [json.loads(raw[0])["batch"]["n"] for raw in made]
    assert numbers == [1, 1, 2]
    assert bench.drain("q") == ["a", "first", "second"]
    assert bench.counts() == (3, 0, 3)


def test_unique_members_whose_lock_is_taken_are_done(bench: Benches) -> None:
    heard: list[str] = []
    said: dict[str, Any] = {"unique": {"key": LOCK, "for": 60, "until": "handled"}}
    bench.backend.apply(Step(None, Set(LOCK, "another")))
    with events.kept():
        events.listen(events.JobDuplicate)(lambda event: heard.append(event.id))
        bench.batches.start(bench.plan(bench.maker("a"), bench.maker("u", **said)))
    assert heard == ["another"]
    assert bench.counts() == (1, 0, 2)
    assert bench.drain("q") == ["a"]
    assert bench.read().is_finished


def test_of_two_alike_one_is_pushed_and_the_other_done(bench: Benches) -> None:
    said: dict[str, Any] = {"unique": {"key": LOCK, "for": 60, "until": "handled"}}
    bench.batches.start(bench.plan(bench.maker("u", **said), bench.maker("v", **said)))
    assert bench.counts() == (1, 0, 2)
    assert bench.drain("q") == ["u"]
    assert bench.counts() == (2, 0, 2)


def test_a_large_batch_is_pushed_some_at_a_time(bench: Benches) -> None:
    seen: list[int] = []

    def makers() -> Any:
        for number in range(1100):
            if number % batches.CHUNK == 0:
                seen.append(bench.backend.sizes("q").ready)
            yield bench.maker(f"m{number}")

    bench.batches.start(bench.plan()._replace(members=makers()))
    assert seen == [0, 500, 1000]
    assert bench.read().total == 1100


def test_a_push_that_fails_cancels_the_batch(bench: Benches, monkeypatch: Any) -> None:
    messages: Any = getattr(bench.backend, "messages", bench.backend)
    move = messages._move

    def fails(message: Message, *args: Any, **kwargs: Any) -> None:
        if message.queue == "q":
            raise BackendUnavailable("no way")
        move(message, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(messages, "_move", fails)
        with pytest.raises(BackendUnavailable, match="no way"):
            bench.begin("a", "b", follow=["finally"])
    record = bench.read()
    assert (record.failed, record.total) == (2, 2)
    assert record.cancelled_at is not None
    assert record.is_finished
    assert bench.drain() == ["finally"]


def test_what_cannot_be_made_is_not_counted_in(bench: Benches) -> None:
    def bad(_number: int) -> ChainPlan:
        raise InvalidJob("no job")

    with pytest.raises(InvalidJob, match="no job"):
        bench.batches.start(bench.plan(bench.maker("a"), bad, follow=["finally"]))
    assert bench.drain() == []
    assert bench.batches.find(bench.plan().id) is None


def test_a_batch_that_is_refused_has_not_begun(bench: Benches) -> None:
    def bad(_number: int) -> ChainPlan:
        raise InvalidJob("no job")

    follow = ["before", "then", "catch", "finally"]
    with pytest.raises(InvalidJob, match="no job"):
        bench.batches.start(bench.plan(bench.maker("a"), bad, follow=follow))
    assert bench.drain() == []


def test_a_batch_that_is_refused_for_its_last_member_has_not_begun(bench: Benches) -> None:
    def bad(_number: int) -> ChainPlan:
        raise InvalidJob("no job")

    makers = [*(bench.maker(f"m{number}") for number in range(2 * batches.CHUNK + 1)), bad]
    plan = bench.plan(*makers, follow=["before", "then", "catch", "finally"])
    with pytest.raises(InvalidJob, match="no job"):
        bench.batches.start(plan)
    assert bench.drain() == []
    assert bench.batches.find(plan.id) is None
    with pytest.raises(InvalidJob, match="no job"):  # an iterator's are built as they are pushed
        bench.batches.start(plan._replace(members=iter(makers)))
    assert len(bench.drain("q")) == 2 * batches.CHUNK


# -- what follows ---------------------------------------------------------------------------------


def test_catch_is_told_of_the_failure_that_came_first(bench: Benches) -> None:
    plan = bench.plan(
        bench.maker("a", "bad last"), bench.maker("bad first"), allows=True, follow=["catch"]
    )
    bench.batches.start(plan)
    bench.drain("q")
    bench.drain("run")
    cause = bench.held("told").payload[CAUSE]
    assert cause == {"uuid": "bad first", "name": "Demo", "error": "ValueError: no"}


def test_two_callback_jobs_at_once_dispatch_each_callback_once(
    bench: Benches, monkeypatch: Any
) -> None:
    """One finds in its own step that the other has noted it."""
    bench.begin("a", follow=["then", "finally"])
    bench.drain("q")
    asked: list[str] = []
    one, find = bench.started("run"), BatchStore.find
    bench.backend.apply(Step(None, Push("run", bench.callback_job("b").raw)))
    other = bench.started("run")

    def finds(self: BatchStore, identity: str) -> Any:
        found = find(self, identity)
        if not asked:
            asked.append(identity)
            bench.handle(other)
        return found

    monkeypatch.setattr(BatchStore, "find", finds)
    bench.handle(one)
    assert bench.drain("told") == ["then", "finally"]


def test_of_a_batch_that_is_gone_nothing_follows(bench: Benches, caplog: Any) -> None:
    bench.begin("a", follow=["then"])
    assert bench.batches.prune(0, unfinished=2**33) == 1
    assert bench.drain() == ["a"]
    assert "the batch b is not kept (any more): nothing follows it" in caplog.text


@pytest.mark.parametrize("calls", range(1, 26))
@pytest.mark.parametrize("uuid", ["a", "bad"])
def test_a_worker_that_dies_at_any_point_loses_no_callback(
    bench: Benches, calls: int, uuid: str
) -> None:
    """In the end of the last member, and in the job that runs the callbacks."""
    bench.begin(uuid, step=1, follow=["progress", "catch", "then", "finally"])
    bench.die(calls, "q", "run")
    expected = {"progress", "then", "finally"} if uuid == "a" else {"progress", "catch", "finally"}
    assert {*bench.ran} == {uuid, *expected}
    assert len(bench.ran) <= len(expected) + (2 if bench.context.joint else 4)
    assert bench.counts() == ((1, 0, 1) if uuid == "a" else (0, 1, 1))
    assert bench.read().is_notified


# -- in a chain -----------------------------------------------------------------------------------


def nested(
    bench: Benches, *members: str, allows: bool = False, member: bool = False, **more: Any
) -> None:
    """Dispatch the chain a, a batch of these members, z."""
    counted: dict[str, Any] = BatchMember("outer", 0).keys() if member else {}
    kept = [bench.maker(uuid, batch="inner")(place).fields() for place, uuid in enumerate(members)]
    data = {
        "identity": "inner", "label": "inner", "default_queue": None, "allows": allows,
        "progress_step": 0,
        "callback_job": bench.callback_job("inner").fields(),
        "follow": {
            event: [bench.prepared(event, "told", **about("inner", event)).fields()]
            for event in ("before", "then")
        },
        "members": kept,
    }  # fmt: skip
    job = f"{StartBatch.__module__}.StartBatch"
    said = {"chain": {"id": "c"}, **counted}
    starts = bench.prepared(
        "inner", job=job, data=data, **{**said, "chain": {"id": "c", "batch": {"id": "inner"}}}
    )
    links = [bench.prepared("a", **said), starts, bench.prepared("z", **said)]
    catch = [bench.prepared("sorry", "told")]
    plan = ChainPlan("c", [None] * 3, links, catch)
    if member:
        bench.batches.start(bench.plan(lambda _number: plan, batch="outer", follow=["finally"]))
    else:
        chain.start(bench.context, plan)


def test_a_chain_goes_on_when_the_batch_has_finished(bench: Benches) -> None:
    nested(bench, "m1", "m2", member=True)
    assert bench.drain() == ["a", "m1", "m2", "z", "before", "then", "finally"]
    assert bench.counts("inner") == (2, 0, 2)
    assert bench.counts("outer") == (1, 0, 1)
    assert bench.backend.scan("chain:") == []
    assert bench.read("inner").is_notified


def test_a_batch_that_fails_ends_the_chain(bench: Benches) -> None:
    nested(bench, "m1", "bad", member=True)
    ran = bench.drain("q", "run")
    assert ran == ["a", "m1", "bad"]
    assert bench.counts("outer") == (0, 1, 1)
    told = {}
    while (job := bench.reserve("told")) is not None:
        told[job.uuid] = job.payload.get(CAUSE)
        job.settle(End(State.COMPLETE))
    cause = {"uuid": "inner", "name": "inner", "error": "1 of 2 members of inner failed"}
    assert told == {"before": None, "finally": None, "sorry": cause}


def test_it_goes_on_after_all_when_the_batch_is_mended(bench: Benches) -> None:
    nested(bench, "m1", "bad")
    bench.drain()
    assert bench.batches.revive("inner")
    record = bench.backend.find_failed("bad")
    assert record is not None
    bench.context.push(bench.context.pushing(Prepared("bad", record.payload, "q", 0)))
    bench.run()
    assert bench.drain("run", "q") == ["z"]
    assert bench.backend.scan("chain:") == []


def test_a_batch_that_may_fail_does_not_end_the_chain(bench: Benches) -> None:
    nested(bench, "m1", "bad", allows=True)
    assert bench.drain("q", "run") == ["a", "m1", "bad", "z"]


def test_a_link_that_was_skipped_has_no_batch_to_wait_for(bench: Benches) -> None:
    nested(bench, "m1")
    bench.run()
    bench.run(state=State.SKIPPED)
    assert bench.drain() == ["z"]


@pytest.mark.parametrize("calls", range(1, 60))
def test_a_worker_that_dies_as_it_begins_the_batch_or_goes_on(bench: Benches, calls: int) -> None:
    """Whatever was pushed by then; a member may run twice, and counts once."""
    nested(bench, "m1", "m2", member=True)
    bench.die(calls)
    found = bench.ran
    assert {*found} == {"a", "m1", "m2", "before", "then", "z", "finally"}
    assert found.index("z") > max(found.index(each) for each in ("a", "m1", "m2"))
    assert found.index("finally") > found.index("z")
    assert bench.counts("inner") == (2, 0, 2)
    assert bench.counts("outer") == (1, 0, 1)
    assert bench.backend.scan("chain:") == []
    if bench.context.joint:  # one that was done, and nobody had heard
        assert len(found) <= 8


# -- all of them ----------------------------------------------------------------------------------


def test_the_latest_come_first_page_by_page(
    bench: Benches, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"batch-{number}" for number in range(5)]
    for name in names:
        bench.begin(batch=name)
        time.sleep(0.003)
    monkeypatch.setattr(batches, "_PAGE", 2)
    assert [each.id for each in bench.batches.all()] == names[::-1]


def test_prune_removes_what_has_ended_and_was_told_of(bench: Benches) -> None:
    bench.begin(batch="told")
    bench.drain("run")
    bench.begin(batch="untold")
    bench.begin("a", batch="waits")
    bench.begin("a", batch="cancelled")
    bench.batches.cancel("cancelled")
    now = time.time()
    assert bench.batches.prune(now - 100, unfinished=now - 100, cancelled=now - 100) == 0
    assert bench.batches.prune(now + 100) == 1
    assert bench.batches.read("told") is None
    assert bench.batches.prune(0, cancelled=now + 100) == 1
    assert bench.batches.prune(0, unfinished=now + 100) == 2
    assert [*bench.batches.all()] == []
    assert bench.backend.scan("batch") == []


def test_a_batch_whose_latch_has_ended_is_gone(bench: Benches) -> None:
    bench.begin("a")
    getattr(bench.backend, "facts", bench.backend).timing.skew += 31 * 86400
    assert bench.batches.read("b") is None
    assert [*bench.batches.all()] == []
    assert bench.batches.prune(0) == 0
    assert bench.backend.scan("batch") == []


# -- payloads of others ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [None, 1, "b", [], {}, {"id": "b"}, {"n": 0}, {"id": "b", "on": "then"}, {"id": "b", "n": -1},
     {"id": "b", "n": 2**31}, {"id": "b", "n": True}, {"id": "b", "n": 0.0}, {"id": "b\0", "n": 0},
     {"id": "none", "n": 0}],
)  # fmt: skip
@pytest.mark.parametrize("state", [State.COMPLETE, State.FAILED])
def test_who_is_no_member_counts_nothing(bench: Benches, said: Any, state: State) -> None:
    bench.begin("z")
    bench.held().settle(End(State.RELEASED, 60))
    bench.push("a", batch=said)
    bench.run(state=state)
    assert bench.counts() == (0, 0, 1)
    assert bench.due() == 0
