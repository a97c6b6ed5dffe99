"""A broker, or its facts, that does not answer: nothing is dropped, hidden, or started twice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from qframe.contracts.backend import Backend, Timing
from qframe.contracts.step import Delete, Outcome, Push, Release, Result, Start, Step
from qframe.drivers.broker.message import BrokerJob, BrokerMessage
from qframe.drivers.memory.backend import MemoryBackend
from qframe.exceptions import BackendUnavailable
from tests.drivers.broker.acts import begin, do, push, taken
from tests.support.bare_broker import BareBroker, BrokerServer, Published, VisibleBroker

LEASE = 60.0


def refused() -> BackendUnavailable:
    """Give the error of a request that was not applied for certain."""
    error = BackendUnavailable("throttled")
    error.in_doubt = False
    return error


class LossyFacts(MemoryBackend):
    """Answers nothing while it is away."""

    is_away = False

    def apply(self, *steps: Step) -> list[Result]:
        if self.is_away:
            raise refused()
        return super().apply(*steps)

    def read(self, *keys: str) -> list[str | None]:
        if self.is_away:
            raise refused()
        return super().read(*keys)

    def scan(
        self, prefix: str, limit: int = 1000, after: str = "", *, last_first: bool = False
    ) -> list[tuple[str, str]]:
        if self.is_away:
            raise refused()
        return super().scan(prefix, limit, after, last_first=last_first)


class WaitingBroker(BareBroker):
    """Waits by taking a message."""

    look_every = 1000.0

    def await_messages(
        self, queues: Sequence[str], timeout: float, wake: int | None
    ) -> Sequence[BrokerJob]:
        del timeout, wake
        return self.receive(queues, 3)


class World:
    """A broker, its facts, and a backend on them."""

    def __init__(self, kind: type[BareBroker] = WaitingBroker) -> None:
        self.timing = Timing(hold=LEASE)
        self.facts = LossyFacts(timing=self.timing)
        self.server = BrokerServer(self.timing)
        self.backend = kind("b", self.server, self._facts, self.timing)

    def _facts(self) -> Backend:
        return self.facts

    def refuse(self) -> None:
        """Let the broker refuse each request from now on."""

        def refuses() -> None:
            raise refused()

        self.server.on_call = refuses

    def answer(self) -> None:
        self.server.on_call = lambda: None


def test_what_a_wait_has_received_outlasts_a_request_that_fails() -> None:
    world = World()
    push(world.backend, b"1")
    world.backend.wait(["default"], 10)
    world.refuse()
    with pytest.raises(BackendUnavailable):
        world.backend.reserve(["default"], 5)
    world.answer()
    job = taken(world.backend)
    assert job is not None
    assert (job.raw_body, job.attempts) == (b"1", 0)


def test_what_a_wait_has_received_beyond_the_room_goes_back() -> None:
    world = World()
    push(world.backend, b"1", b"2", b"3")
    world.backend.wait(["default"], 10)
    found = [begin(world.backend) for _ in range(3)]
    assert sorted(each.raw_body for each in found) == [b"1", b"2", b"3"]
    assert {each.attempts for each in found} == {1}


def test_what_cannot_be_given_back_is_given_back_later() -> None:
    world = World()
    push(world.backend, b"1")
    world.backend.wait(["default"], 10)
    world.facts.is_away = True
    for _ in range(2):
        assert taken(world.backend, "other") is None
    world.facts.is_away = False
    assert taken(world.backend, "other") is None
    elsewhere = BareBroker("b", world.server, lambda: world.facts, world.timing)
    assert begin(elsewhere).raw_body == b"1"


def test_a_request_of_which_a_part_was_done_is_in_doubt() -> None:
    world = World()
    push(world.backend, b"1")
    job = begin(world.backend)
    world.facts.is_away = True
    with pytest.raises(BackendUnavailable) as raised:
        world.backend.apply(Step(None, Push("default", b"now"), Push("default", b"late", 60)))
    assert raised.value.in_doubt
    with pytest.raises(BackendUnavailable) as raised:
        world.backend.apply(Step(None, Push("default", b"late", 60)))
    assert not raised.value.in_doubt
    world.facts.is_away = False
    calls = 0

    def refuses_later() -> None:
        nonlocal calls
        calls += 1
        if calls > 2:  # behind the deletion
            raise refused()

    world.server.on_call = refuses_later
    with pytest.raises(BackendUnavailable) as raised:
        world.backend.reserve(["default"], first=[Step(job, Delete())])
    assert raised.value.in_doubt


@pytest.mark.parametrize("kind", [WaitingBroker, VisibleBroker])
@pytest.mark.parametrize("operation", [Delete(), Release(), Release(priority=3)])
def test_a_start_that_no_fact_has_ends_as_any_other(
    kind: type[BareBroker], operation: Delete | Release
) -> None:
    world = World(kind)
    push(world.backend, b"1")
    assert taken(world.backend) is not None
    world.timing.skew += LEASE + 1  # its worker has died
    world.facts.is_away = True
    job = taken(world.backend)
    assert job is not None
    assert do(world.backend, job, Start(LEASE)) is Outcome.APPLIED
    world.facts.is_away = False
    assert do(world.backend, job, operation) is Outcome.APPLIED


def test_a_delayed_job_that_was_started_is_kept_if_the_facts_do_not_say_so() -> None:
    world = World()
    push(world.backend, b"1", delay=5)
    world.timing.skew += 6
    begin(world.backend)
    world.timing.skew += LEASE + 1  # its worker has died
    world.facts.is_away = True
    job = taken(world.backend)
    world.facts.is_away = False
    assert job is not None
    assert do(world.backend, job, Start(LEASE)) is Outcome.APPLIED
    assert len(world.server.messages) == 1


def test_of_a_message_that_was_published_twice_one_starts() -> None:
    world = World()
    backend = world.backend
    push(backend, b"1", delay=5)
    world.timing.skew += 6
    publish = backend.publish

    def dies(messages: Sequence[BrokerMessage]) -> None:
        publish(messages)
        raise BackendUnavailable("killed before it removed the fact")

    backend.publish = dies  # type: ignore[method-assign]
    backend.reserve(["default"], 0)
    backend.publish = publish  # type: ignore[method-assign]
    world.timing.skew += 11  # the claim has ended
    backend._kept.look_at = 0.0
    jobs, _ = backend.reserve(["default"], 5)
    assert len(jobs) == 2
    outcomes = [each.outcome for job in jobs for each in backend.apply(Step(job, Start(LEASE)))]
    assert sorted(outcomes, key=str) == [Outcome.APPLIED, Outcome.LOST]
    assert len(world.server.messages) == 1


class OthersBroker(VisibleBroker):
    """Delivers what others delayed by 30 seconds, which only the message says."""

    def _deliver(self, message: Published, asked_at: float) -> BrokerJob:
        job = super()._deliver(message, asked_at)
        if not job.message.kept:
            job.comes_from_others(2, asked_at + 30)
        return job


@pytest.mark.parametrize("outage", [10.0, 31.0])
def test_what_others_delayed_is_due_when_they_said_however_long_the_facts_are_away(
    outage: float,
) -> None:
    world = World(OthersBroker)
    push(world.backend, b"x")
    world.facts.is_away = True
    with pytest.raises(BackendUnavailable):
        taken(world.backend)
    world.timing.skew += outage
    world.facts.is_away = False
    job = taken(world.backend)
    if job is None:
        assert world.backend.sizes("default").delayed == 1
        world.timing.skew += 30.1 - outage
        job = taken(world.backend)
    assert job is not None
    assert (job.raw_body, job.attempts) == (b"x", 2)


def test_of_a_message_that_was_published_twice_one_starts_though_the_facts_were_away() -> None:
    world = World(VisibleBroker)
    twin = BrokerMessage("twin", "default", b"x", kept=True)
    world.backend.publish([twin, twin])
    other = VisibleBroker("b", world.server, world._facts, world.timing)
    world.facts.is_away = True
    second = taken(other)
    world.facts.is_away = False
    assert second is not None
    first = begin(world.backend)
    assert do(other, second, Start(LEASE)) is Outcome.LOST
    assert do(world.backend, first, Release()) is Outcome.APPLIED
    assert begin(other).attempts == 2
    assert taken(world.backend) is None


def test_a_start_whose_entry_was_not_answered_is_still_its_own() -> None:
    world = World(VisibleBroker)
    world.backend.publish([BrokerMessage("m", "default", b"x", kept=True)])
    job = taken(world.backend)
    assert job is not None
    real = world.facts.apply

    def unheard(*steps: Step) -> list[Result]:
        real(*steps)
        raise refused()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.facts, "apply", unheard)
        assert do(world.backend, job, Start(LEASE)) is Outcome.APPLIED
    assert do(world.backend, job, Release(5, notes=b"n")) is Outcome.APPLIED
    world.timing.skew += 6
    again = taken(world.backend)
    assert again is not None
    assert (again.attempts, again.notes) == (1, b"n")
