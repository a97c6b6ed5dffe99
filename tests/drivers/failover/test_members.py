"""A failover of two memory backends, one of which is silent when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qframe import Queueable, QueueManager, chain, events, manager
from qframe.connection import Connection
from qframe.contracts.backend import Backend, Health
from qframe.contracts.step import Release, Result, Start, Step
from qframe.drivers.failover.backend import FailoverBackend
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.features.context import push_of
from qframe.jobs.registry import Registry
from qframe.testing import drain
from tests.support.process import wait_for

ran: list[str] = []


class Written(Queueable):
    word: str

    def handle(self) -> None:
        ran.append(self.word)


class Halves:
    """The connection `both` of `one` and `two`, whose facts are those of `facts`."""

    def __init__(self) -> None:
        there: dict[str, Any] = {name: {"driver": "memory"} for name in ("one", "two", "facts")}
        there["both"] = {
            "driver": "failover", "connections": ["one", "two"], "retry_down_after": 0.01,
        }  # fmt: skip
        store = {"driver": "facts"}
        self.queues = QueueManager(
            {"default": "both", "store": store, "failed": store, "connections": there}
        )
        manager.use(self.queues)
        self.both = self.queues.connection("both")

    def connection(self, name: str) -> Connection:
        return self.queues.connection(name)

    @property
    def backend(self) -> FailoverBackend:
        found = self.queues.backend("both")
        assert isinstance(found, FailoverBackend)
        return found

    def started(self, name: str) -> Any:
        """Push a job to one of them, and start it through both."""
        self.connection(name).push(Written(word=name))
        (job,) = self.backend.reserve(["default"])[0]
        assert job.came_from == name
        self.backend.apply(Step(job, Start(60)))
        return job


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> Iterator[Halves]:
    monkeypatch.setattr(Registry, "_allowed", lambda *_: True)  # the class above
    ran.clear()
    yield Halves()
    manager.use(None)


def away(*, in_doubt: bool, after: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a call that raises; `after`: once this one is made."""

    def call(*given: Any, **more: Any) -> Any:
        if after is not None:
            after(*given, **more)
        error = BackendUnavailable("away")
        error.in_doubt = in_doubt
        raise error

    return call


def test_what_was_applied_on_one_is_in_doubt_if_the_other_does_not_answer(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = halves.started("one")
    for name in ("one", "two"):
        backend = halves.queues.backend(name)
        monkeypatch.setattr(
            backend, "apply", lambda *steps, _real=backend.apply: _of_jobs(_real, *steps)
        )
    push = halves.both.pushing(*_made(halves, "next"), None, 0)
    with pytest.raises(BackendUnavailable) as raised:
        halves.backend.apply(Step(job, *job.delete().operations), _pushing(push))
    assert raised.value.in_doubt
    assert halves.connection("one").size() == 0


def _of_jobs(apply: Callable[..., list[Result]], *steps: Step) -> list[Result]:
    if any(step.reservation is None for step in steps):
        away(in_doubt=False)()
    return apply(*steps)


def _made(halves: Halves, word: str) -> tuple[Written, Any]:
    job = Written(word=word)
    return job, halves.both.envelope(job)


def _pushing(pushing: Any) -> Step:
    return Step(None, push_of(pushing))


@pytest.mark.parametrize(
    ("driver", "apart"), [("redis", {"prefix": "b:"}), ("beanstalkd", {"port": 11301})]
)
def test_two_names_of_the_same_queues_are_refused(driver: str, apart: dict[str, Any]) -> None:
    one, both = {"driver": driver}, {"driver": "failover", "connections": ["a", "b"]}
    for more in ({}, apart):
        connections = {"a": one, "b": {**one, **more}, "both": both}
        queues = QueueManager({"default": "both", "connections": connections})
        if more:
            assert queues.backend("both").described().count(", else ") == 1
            continue
        with pytest.raises(ConfigurationError, match="'a' and 'b' are the same place: name one"):
            queues.backend("both")


def test_check_names_the_shortest_time_that_one_of_them_lets_a_job_run(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halves.queues.backend("two"), "check", lambda: Health("2", (), 1800.0))
    assert halves.backend.check().longest_job == 1800.0


def test_a_limit_that_no_server_was_asked_for_is_no_answer(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    backs: list[events.Event] = []
    monkeypatch.setattr(halves.queues.backend("one"), "apply", away(in_doubt=False))
    halves.both.push(Written(word="a"))
    (one, _) = halves.backend._members
    wait_for(lambda: one.is_up, "it is tried again")
    with events.kept():
        events.listen(events.QueueFailedBack)(backs.append)
        assert halves.backend.longest_message() is None
    assert (backs, one.error is None) == ([], False)


def test_a_start_in_doubt_is_given_back_in_one_request(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that each sent half of it could send the second half first."""
    halves.connection("one").push(Written(word="a"))
    (job,) = halves.backend.reserve(["default"])[0]
    one = halves.queues.backend("one")
    real = one.apply
    monkeypatch.setattr(one, "apply", away(in_doubt=True, after=real))
    (result,) = halves.backend.apply(Step(job, Start(60)))
    assert result.lost
    sent: list[list[type]] = []

    def applied(*steps: Step) -> list[Result]:
        sent.append([type(step.operations[0]) for step in steps])
        return real(*steps)

    monkeypatch.setattr(one, "apply", applied)
    (member, _) = halves.backend._members
    member.ask(lambda backend: backend.clock())
    assert sent == [[Start, Release]]
    (again,) = one.reserve(["default"])[0]
    assert again.attempts == 0


@pytest.mark.parametrize("back", [False, True])
def test_a_link_that_a_broken_step_left_runs_once_on_whichever_it_is(
    halves: Halves, *, back: bool
) -> None:
    """The first push reached the one, and the worker died before it noted that."""
    chain([Written(word="a"), Written(word="b")]).dispatch()
    (job,) = halves.both.reserve(["default"])
    job.context.backend.apply(job.start_plan())
    facts = halves.queues.backend("facts")
    with pytest.MonkeyPatch.context() as patch:
        dying_behind_pushes(patch, halves.queues.backend("one"))
        with pytest.raises(Died):
            job.delete()
    assert halves.connection("one").sizes().ready == 1  # the link
    one = halves.queues.backend("one")
    one.timing.skew += 1000  # the lease has run out
    with pytest.MonkeyPatch.context() as patch:
        real = one.apply
        patch.setattr(one, "apply", lambda *steps: _of_jobs(real, *steps))
        (job,) = halves.both.reserve(["default"])
        job.context.backend.apply(job.start_plan())
        job.delete()
    assert halves.connection("two").size() == 1
    for name in ("two", "one") if back else ("one", "two"):
        drain(name, raises=True)
    assert ran.count("b") == 1
    assert [each for each, _ in facts.scan("outbox:")] == []


class Died(BaseException):
    """As if the process had been killed."""


def dying_behind_pushes(patch: pytest.MonkeyPatch, backend: Backend) -> None:
    real = backend.apply

    def applied(*steps: Step) -> list[Result]:
        results = real(*steps)
        if any(step.reservation is None for step in steps):
            raise Died
        return results

    patch.setattr(backend, "apply", applied)
