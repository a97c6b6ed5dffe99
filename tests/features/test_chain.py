"""Chains: which step goes on, which ends them, and what they leave."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qframe import events
from qframe.contracts.backend import Backend, Capability
from qframe.contracts.status import State
from qframe.contracts.step import Delete, Expect, Push, Result, Set, Step, Unset
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import BackendUnavailable, LeaseLost
from qframe.features import chain
from qframe.features.all import FEATURES
from qframe.features.base import End
from qframe.features.chain import CAUSE, ChainFeature, ChainPlan
from qframe.features.context import Prepared
from qframe.features.failover import FailoverFeature
from qframe.payload.encryption import Keyring, new_key
from qframe.payload.signature import Signer
from tests.features.harness import Bench

LOCK = "unique:x"


def ordered() -> OrderedBackend:
    """Give a backend whose steps are made in parts."""
    return OrderedBackend(MemoryBackend(), MemoryBackend(), MemoryBackend())


@pytest.fixture(params=[MemoryBackend, ordered], ids=["joint", "ordered"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(FEATURES, request.param())


def link(bench: Bench, uuid: str, queue: str = "q", delay: float = 0.0, **keys: Any) -> Prepared:
    keys.setdefault("chain", {"id": "c"})
    made = bench.pushing(uuid, queue, delay, **keys)
    return Prepared(uuid, made.raw, queue, delay)


def unique(bench: Bench, uuid: str, **keys: Any) -> Prepared:
    return link(bench, uuid, unique={"key": LOCK, "for": 60, "until": "handled"}, **keys)


def dispatch(bench: Bench, *links: Prepared, catch: tuple[Prepared, ...] = ()) -> None:
    chain.start(bench.context, ChainPlan("c", [None] * len(links), links, catch))


def kept(bench: Bench) -> dict[str, str]:
    return dict([*bench.backend.scan("chain:"), *bench.backend.scan("unique:")])


def ran(bench: Bench, queue: str = "q") -> list[str]:
    """Run what waits, in order; gives the uuids."""
    found = []
    while (job := bench.reserve(queue)) is not None:
        bench.backend.apply(job.start_plan())
        job.settle(End(State.COMPLETE))
        found.append(job.uuid)
    return found


# -- the steps as values --------------------------------------------------------------------------


def test_the_step_that_ends_a_link_pushes_the_next() -> None:
    bench = Bench(FEATURES)
    second = link(bench, "b", delay=5)
    dispatch(bench, link(bench, "a"), second, link(bench, "z"))
    before = kept(bench)["chain:c"]
    job = bench.started()
    plan = job.plan(End(State.COMPLETE))
    assert plan.operations == [
        Expect("chain:c", before),
        Unset("chain:c:a"),
        Push("q", second.raw, 5),
        Set("chain:c", before.replace('"at":"a"', '"at":"b"')[:-1] + ',"gone":1}', chain.KEPT + 5),
        Delete(),
    ]  # fmt: skip
    assert plan.continues
    assert plan.waited_for


def test_the_step_that_ends_the_last_link_forgets_the_chain() -> None:
    bench = Bench(FEATURES)
    dispatch(bench, link(bench, "a"), catch=(link(bench, "sorry", chain=None),))
    text = kept(bench)["chain:c"]
    plan = bench.started().plan(End(State.COMPLETE))
    assert plan.operations == [
        Expect("chain:c", text), Unset("chain:c"), Unset("chain:c:catch"), Delete(),
    ]  # fmt: skip
    assert not plan.continues


def test_a_unique_link_takes_the_lock_over_from_the_one_before() -> None:
    bench = Bench(FEATURES)
    dispatch(bench, unique(bench, "a"), unique(bench, "b"))
    plan = bench.started().plan(End(State.COMPLETE))
    changes = [each for each in plan.operations if getattr(each, "key", "") == LOCK]
    assert changes == [Expect(LOCK, "a"), Set(LOCK, "b", 60), Unset(LOCK, "a")]


def test_all_that_is_kept_ends_by_itself() -> None:
    """What a chain leaves that nobody ends: of a failed link, which may still be retried."""
    bench = Bench(FEATURES)
    dispatch(bench, link(bench, "a"), link(bench, "b", delay=60), catch=(link(bench, "sorry"),))
    bench.run(state=State.FAILED)
    assert sorted(kept(bench)) == ["chain:c", "chain:c:a", "chain:c:catch"]
    bench.backend.timing.skew += chain.KEPT + 61
    assert kept(bench) == {}


# -- going on -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.COMPLETE, State.SKIPPED])
def test_each_link_comes_when_the_one_before_is_over(bench: Bench, state: State) -> None:
    dispatch(bench, link(bench, "a"), link(bench, "b"), link(bench, "c"))
    for uuid in "abc":
        job = bench.started()
        assert (job.uuid, job.skip_reason()) == (uuid, None)
        assert bench.reserve() is None
        job.settle(End(state))
    assert bench.reserve() is None
    assert kept(bench) == {}


@pytest.mark.parametrize("state", [State.RELEASED, State.WAITING, State.BURIED])
def test_what_comes_again_does_not_go_on(bench: Bench, state: State) -> None:
    dispatch(bench, link(bench, "a"), link(bench, "b"))
    before = kept(bench)
    bench.run(state=state)
    bench.backend.kick("q")
    assert kept(bench) == before
    assert ran(bench) == ["a", "b"]


def test_cancelling_a_link_ends_the_chain_and_leaves_nothing(bench: Bench) -> None:
    links = [link(bench, uuid) for uuid in "abc"]
    dispatch(bench, *links, catch=(link(bench, "sorry", chain=None),))
    bench.held().settle(End(State.CANCELLED))
    assert bench.reserve() is None
    assert kept(bench) == {}


def test_a_link_goes_to_its_own_queue_after_its_own_delay(bench: Bench) -> None:
    dispatch(bench, link(bench, "a"), link(bench, "b", "emails", 30))
    bench.run()
    assert bench.backend.sizes("emails").delayed == 1


def test_a_failure_pushes_what_catches_it_and_a_retry_goes_on(bench: Bench) -> None:
    caught = link(bench, "sorry", "emails", chain=None)
    dispatch(bench, link(bench, "a"), link(bench, "b"), catch=(caught, caught))
    job = bench.started()
    job.settle(End(State.FAILED, error=ValueError("no ä👍")))
    assert bench.reserve() is None
    for _ in range(2):
        cause = bench.run("emails").payload[CAUSE]
        assert cause == {"uuid": "a", "name": "Demo", "error": "ValueError: no ä👍"}
    bench.context.push(bench.context.pushing(link(bench, "a")))
    assert ran(bench) == ["a", "b"]
    assert kept(bench) == {}


def test_a_catch_without_room_for_the_cause_is_told_less(bench: Bench) -> None:
    caught = link(bench, "sorry", "emails", chain=None)
    dispatch(bench, link(bench, "a"), catch=(caught,))
    bench.context.max_payload = len(caught.raw) + 80
    bench.started().settle(End(State.FAILED, error=ValueError("x" * 100)))
    assert bench.run("emails").payload[CAUSE]["error"] == ""
    dispatch(bench, link(bench, "a"), catch=(caught,))
    bench.context.max_payload = len(caught.raw)
    bench.run(state=State.FAILED)
    assert CAUSE not in bench.run("emails").payload


def test_a_link_put_in_meanwhile_is_not_lost(bench: Bench, monkeypatch: Any) -> None:
    """Between the look at what comes next and the step: it is refused, and made anew."""
    dispatch(bench, link(bench, "a"), link(bench, "b"))
    job = bench.started()
    looked: list[bool | None] = []
    look = chain.plan_next

    def looks(*arguments: Any) -> bool | None:
        goes_on = look(*arguments)
        if not looked:
            for uuid, first in (("c", False), ("first", True)):
                assert chain.extend(bench.context, "c", "a", link(bench, uuid), first=first)
        looked.append(goes_on)
        return goes_on

    monkeypatch.setattr(chain, "plan_next", looks)
    job.settle(End(State.COMPLETE))
    assert looked == [True, True]
    assert ran(bench) == ["first", "b", "c"]
    assert kept(bench) == {}


def test_links_are_put_behind_the_one_that_runs_and_at_the_end(bench: Bench) -> None:
    dispatch(bench, link(bench, "a"))
    for uuid, first in (("1", False), ("2", False), ("3", True), ("4", True)):
        assert chain.extend(bench.context, "c", "a", link(bench, uuid), first=first)
    assert not chain.extend(bench.context, "c", "b", link(bench, "5"), first=True)
    assert ran(bench) == ["a", "4", "3", "1", "2"]
    assert not chain.extend(bench.context, "c", "2", link(bench, "5"), first=False)
    assert kept(bench) == {}


def test_a_link_whose_chain_has_gone_on_changes_nothing(bench: Bench) -> None:
    dispatch(bench, link(bench, "a"), link(bench, "b"), link(bench, "c"))
    bench.run()
    before = kept(bench)
    for state in (State.COMPLETE, State.FAILED, State.CANCELLED):
        bench.context.push(bench.context.pushing(link(bench, "a")))
        bench.held().settle(End(State.WAITING))
        stale = next(job for job in iter(bench.started, None) if job.uuid == "a")
        assert stale.skip_reason() == "done before: its chain has gone on"
        stale.settle(End(state, error=ValueError("no")))
        assert kept(bench) == before
        bench.backend.timing.skew += 100  # the other comes again


def test_a_link_of_which_nothing_is_kept_is_a_job_like_any_other(bench: Bench) -> None:
    bench.context.push(bench.context.pushing(link(bench, "a")))
    job = bench.started()
    assert job.skip_reason() is None
    job.settle(End(State.COMPLETE))
    assert bench.reserve() is None


def test_a_chain_of_which_a_link_is_gone_ends(bench: Bench, caplog: Any) -> None:
    dispatch(bench, link(bench, "a"), link(bench, "b"), link(bench, "c"))
    bench.backend.apply(Step(None, Unset("chain:c:a")))
    assert ran(bench) == ["a"]
    assert "the chain c ends early" in caplog.text
    assert kept(bench) == {}


def test_who_lost_the_lease_changes_nothing(bench: Bench) -> None:
    dispatch(bench, link(bench, "a"), link(bench, "b"), catch=(link(bench, "sorry", "emails"),))
    late = bench.started()
    _messages(bench.backend).timing.skew += 100
    owner = bench.started()
    before = kept(bench)
    for state in (State.COMPLETE, State.FAILED, State.CANCELLED):
        late.state = ""
        with pytest.raises(LeaseLost):
            late.settle(End(state, error=ValueError("no")))
    assert kept(bench) == before
    assert bench.reserve("emails") is None
    owner.settle(End(State.COMPLETE))
    assert ran(bench) == ["b"]


# -- its beginning --------------------------------------------------------------------------------


def test_a_push_that_fails_leaves_nothing(bench: Bench, monkeypatch: Any) -> None:
    apply = _messages(bench.backend).apply

    def fails(*steps: Step) -> Any:
        if any(isinstance(each, Push) for step in steps for each in step.operations):
            raise OSError("no way")
        return apply(*steps)

    with monkeypatch.context() as patched:
        patched.setattr(_messages(bench.backend), "apply", fails)
        with pytest.raises(OSError, match="no way"):
            dispatch(bench, link(bench, "a"), link(bench, "b"))
    assert kept(bench) == {}


def test_where_nothing_is_kept_nothing_happens() -> None:
    bench = Bench(FEATURES)
    bench.backend.capabilities &= ~Capability.FACTS
    dispatch(bench, link(bench, "a"))
    assert bench.reserve() is None


# -- unique links ---------------------------------------------------------------------------------


def test_a_link_whose_lock_another_has_is_passed_over(bench: Bench) -> None:
    heard: list[tuple[str, str]] = []
    bench.backend.apply(Step(None, Set(LOCK, "another")))
    with events.kept():
        events.listen(events.JobDuplicate)(lambda event: heard.append((event.queue, event.id)))
        dispatch(
            bench, unique(bench, "u"), link(bench, "a"), unique(bench, "b"), unique(bench, "b2"),
            link(bench, "c"), unique(bench, "d"),
        )  # fmt: skip
        assert ran(bench) == ["a", "c"]
        dispatch(bench, unique(bench, "u"))
    assert heard == [("q", "another")] * 5
    assert kept(bench) == {LOCK: "another"}


def test_a_link_has_its_lock_from_its_turn_to_its_end(bench: Bench) -> None:
    dispatch(bench, link(bench, "a"), unique(bench, "b"), link(bench, "c"))
    assert LOCK not in kept(bench)
    bench.run()
    assert kept(bench)[LOCK] == "b"
    bench.run()
    assert LOCK not in kept(bench)


def test_of_two_unique_callbacks_one_is_pushed(bench: Bench) -> None:
    sorry = unique(bench, "sorry", queue="emails", chain=None)
    too = unique(bench, "too", queue="emails", chain=None)
    dispatch(bench, link(bench, "a"), catch=(sorry, too))
    bench.run(state=State.FAILED)
    assert ran(bench, "emails") == ["sorry"]


# -- as it was signed -----------------------------------------------------------------------------


@pytest.mark.parametrize("within", [None, {"expiresAt": 60.0}])
def test_a_link_comes_with_the_signature_it_was_kept_with(within: dict[str, float] | None) -> None:
    signer = Signer(["k" * 32])
    bench = Bench(FEATURES, signer=signer)
    dispatch(bench, link(bench, "a"), link(bench, "b")._replace(within=within))
    bench.run()
    signer.check(bench.held().raw_body, "q")


def test_what_was_changed_in_the_store_is_not_pushed() -> None:
    bench = Bench(FEATURES, signer=Signer(["k" * 32]))
    dispatch(bench, link(bench, "a"), link(bench, "b")._replace(within={"expiresAt": 60.0}))
    key, text = next(each for each in bench.backend.scan("chain:c:"))
    bench.backend.apply(Step(None, Set(key, text.replace("app.Demo", "app.Evil"))))
    bench.run()
    assert bench.reserve() is None
    assert [record.name for record in bench.backend.list_failed()] == ["(refused)"]


def test_a_link_and_the_next_have_their_statuses(bench: Bench) -> None:
    dispatch(bench, link(bench, "a", track=60), link(bench, "b", track=60))
    bench.run()
    states = [json.loads(text)["state"] for _, text in bench.backend.scan("status:")]
    assert states == ["COMPLETE", "WAITING"]


def test_listeners_hear_of_each_link_when_it_is_pushed(bench: Bench) -> None:
    heard: list[str] = []
    with events.kept():
        events.listen(events.JobQueued)(lambda event: heard.append(event.id))
        dispatch(bench, link(bench, "a"), link(bench, "b"))
        assert heard == ["a"]
        ran(bench)
    assert heard == ["a", "b"]


# -- where a step cannot be one -------------------------------------------------------------------


def _messages(backend: Backend) -> Any:
    return backend.messages if isinstance(backend, OrderedBackend) else backend


@pytest.mark.parametrize("calls", range(1, 8))
@pytest.mark.parametrize("state", [State.COMPLETE, State.FAILED])
def test_a_worker_that_dies_at_any_point_loses_nothing(calls: int, state: State) -> None:
    backend = ordered()
    bench = Bench(FEATURES, backend)
    dispatch(
        bench, link(bench, "a"), unique(bench, "b"), link(bench, "c"),
        catch=(link(bench, "sorry", "emails", chain=None),),
    )  # fmt: skip
    job = bench.started()
    job.reservation.sure_until = 0
    left = [calls]
    with pytest.MonkeyPatch.context() as patched:
        for part in (backend.messages, backend.facts, backend.failed):
            patched.setattr(part, "apply", _dying(part.apply, left))
        try:
            job.settle(End(state, error=ValueError("no")))
        except BackendUnavailable:
            assert not job.is_settled
    _messages(bench.backend).timing.skew += 100  # its lease is over
    again = bench.reserve()
    if again is not None and again.uuid == "a":
        skip_reason = again.skip_reason()
        bench.backend.apply(again.start_plan())
        again.settle(End(State.SKIPPED if skip_reason else state, error=ValueError("no")))
        again = None
    if again is not None:
        again.settle(End(State.WAITING))
    if state is State.FAILED:
        assert ran(bench) == []
        assert set(ran(bench, "emails")) == {"sorry"}
        assert backend.count_failed() == 1
        return
    found = ran(bench)
    assert [*dict.fromkeys(found)] == ["b", "c"]
    assert kept(bench) == {}
    assert bench.backend.scan("outbox:") == []


def _dying(apply: Any, left: list[int]) -> Any:
    def call(*steps: Step) -> list[Result]:
        left[0] -= 1
        if left[0] <= 0:
            raise BackendUnavailable("the worker died")
        return apply(*steps)  # type: ignore[no-any-return]

    return call


# -- payloads of others ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [None, 1, "c", [], {}, {"id": None}, {"id": ""}, {"id": "c:a"}, {"id": "x" * 65},
     {"id": "a\0b"}, {"id": ["c"]}, {"id": "none", "batch": {"id": "none"}},
     {"id": "none", "batch": True}],
)  # fmt: skip
@pytest.mark.parametrize("state", [State.COMPLETE, State.FAILED, State.CANCELLED])
def test_what_could_be_no_chain_is_none(bench: Bench, said: Any, state: State) -> None:
    bench.push("a", chain=said)
    job = bench.started()
    assert job.skip_reason() is None
    job.settle(End(state, error=ValueError("no")))
    assert bench.backend.scan("chain:") == []


def test_its_feature_is_asked_first_of_a_message_that_is_its_job() -> None:
    """The others are to know whether the chain goes on."""
    assert [type(each) for each in FEATURES[:2]] == [FailoverFeature, ChainFeature]


# -- what a link returned -------------------------------------------------------------------------


def previous(bench: Bench, result: Any) -> Any:
    """Let a link return this, and give what the payload of the next has of it."""
    dispatch(bench, link(bench, "a"), link(bench, "b"), link(bench, "z"))
    job = bench.started()
    job.settle(End(State.COMPLETE, result=result))
    return bench.started().payload.get(chain.PREVIOUS)


@pytest.mark.parametrize("result", [0, "", [], {"a": [1.5, None]}, 2**60, "\u00e9"])
def test_the_next_link_gets_what_a_link_returned(bench: Bench, result: Any) -> None:
    assert previous(bench, result) == {"uuid": "a", "name": "Demo", "result": result}


def test_of_a_link_that_returned_nothing_the_next_gets_nothing(bench: Bench) -> None:
    assert previous(bench, None) is None


@pytest.mark.parametrize("result", [object(), "x" * 70_000])
def test_a_result_that_cannot_travel_leaves_a_remark(bench: Bench, result: Any) -> None:
    assert previous(bench, result)["remark"].startswith("the result ")


def test_a_result_without_room_in_the_payload_leaves_a_remark(bench: Bench) -> None:
    bench.context.max_payload = 1000
    found = previous(bench, "x" * 900)
    assert "max_payload" in found["remark"]
    assert "result" not in found


def test_what_an_encrypted_link_returned_is_encrypted(bench: Bench) -> None:
    keyring = bench.context.keyring = Keyring([new_key()])
    data = keyring.sealed("app.Demo", b'{"job":"app.Demo","data":{}}')
    dispatch(bench, link(bench, "a", data=data), link(bench, "b"))
    bench.started().settle(End(State.COMPLETE, result="secret"))
    job = bench.started()
    assert b"secret" not in job.raw_body
    assert keyring.opened(chain.PREVIOUS, job.payload[chain.PREVIOUS]) == "secret"
