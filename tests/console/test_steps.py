"""Commands about durable steps: status, event, retry --fresh and --from, forget."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qframe import Secret
from qframe.contracts.status import State
from qframe.exceptions import JobSuspended
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.worker.limits import JobFacts, Limits
from qframe.worker.options import WorkerOptions
from qframe.worker.outcome import decide
from tests.console.conftest import Shop, started


def token() -> Secret[str]:
    return Secret("hidden")


def begun(shop: Shop) -> ReservedJob:
    (job,) = shop.queue.reserve(["default"])
    assert started(job)
    return job


@pytest.fixture
def job(shop: Shop) -> ReservedJob:
    """Give a job that has done two steps."""
    assert shop.run("dispatch", "shop.Order", '{"number": 1}').code == 0
    made = begun(shop)
    made.step("charge", lambda: {"id": 7})
    made.step("token", token)
    return made


def kept(shop: Shop) -> list[str]:
    return [key for key, _ in shop.queue.backend.scan("steps:")]


def failed(shop: Shop, job: ReservedJob) -> str:
    job.settle(End(State.FAILED, error=ValueError("boom")))
    assert kept(shop)
    return job.uuid


def test_status_lists_steps_with_secrets_as_stars(shop: Shop, job: ReservedJob) -> None:
    said = shop.run("status", job.uuid)
    assert said.code == 0, said.err
    assert '{"id": 7}' in said.out
    assert "hidden" not in said.out
    assert "not tracked" in said.out
    (first, second) = shop.run("status", job.uuid, "--json").rows["steps"]
    assert (first["name"], first["kind"], first["value"]) == ("charge", "step", {"id": 7})
    assert second["value"] == "**********"


def test_event_wakes_a_job_once(shop: Shop, job: ReservedJob) -> None:
    with pytest.raises(JobSuspended) as raised:
        job.wait_for_event("paid", 600)
    limits = Limits(None, job.payload, WorkerOptions())
    job.settle(decide(raised.value, JobFacts.of(job), limits).end)
    assert "until " in shop.run("status", job.uuid).out
    assert shop.run("event", job.uuid, "paid", '{"by": "card"}').code == 0
    again = shop.run("event", job.uuid, "paid")
    assert again.code == 1
    assert again.only().startswith(f"qframe: the event paid does not count: {job.uuid} has one")
    assert begun(shop).wait_for_event("paid", 600) == {"by": "card"}


@pytest.mark.parametrize("part", [slice(-8, None), slice(20)], ids=["end", "beginning"])
def test_a_part_of_an_id_is_enough_for_an_event(shop: Shop, job: ReservedJob, part: slice) -> None:
    said = shop.run("event", job.uuid[part], "paid", "7")
    assert said.out == f"sent the event paid to {job.uuid}\n"
    assert '{"id": 7}' in shop.run("status", job.uuid[part]).out
    assert job.wait_for_event("paid", 600) == 7


def test_an_event_for_a_part_that_no_job_has_is_refused(shop: Shop, job: ReservedJob) -> None:
    said = shop.run("event", f"{job.uuid[-8:]}0", "paid")
    assert said.code == 2
    assert "no job has an id that begins or ends in" in said.only()
    assert shop.run("event", f"{job.uuid[:-1]}g", "paid").code == 0  # one to come


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["u", "paid", "{card}"], "is no JSON"),
        (["u", "a\nb", "1"], "no name of a step"),
        (["u", "paid", f'"{"x" * 70_000}"'], "70,002 bytes of JSON"),
    ],
)
def test_a_wrong_event_is_one_line(shop: Shop, arguments: list[str], words: str) -> None:
    said = shop.run("event", *arguments)
    assert said.code == 2
    assert words in said.only()


@pytest.mark.parametrize(
    ("options", "done_again"),
    [([], []), (["--from", "token"], ["token"]), (["--fresh"], ["charge", "token"])],
)
def test_retry_goes_on_or_begins_anew(
    shop: Shop, job: ReservedJob, options: list[str], done_again: list[str]
) -> None:
    uuid = failed(shop, job)
    assert shop.run("retry", uuid, *options).out == "queued 1 failed job again\n"
    again, calls = begun(shop), list[str]()

    def doing(name: str) -> Callable[[], object]:
        return lambda: calls.append(name)

    again.step("charge", doing("charge"))
    again.step("token", doing("token"))
    assert calls == done_again
    again.delete()
    assert kept(shop) == []


@pytest.mark.parametrize("options", [["--fresh"], ["--from", "paid"], ["--from", "token"]])
def test_an_event_not_taken_yet_outlives_a_retry(
    shop: Shop, job: ReservedJob, options: list[str]
) -> None:
    with pytest.raises(JobSuspended):
        job.wait_for_event("paid", 600)
    uuid = failed(shop, job)
    assert shop.run("event", uuid, "paid", "7").code == 0
    assert shop.run("retry", uuid, *options).code == 0
    assert begun(shop).wait_for_event("paid", 600) == 7


def test_retry_from_an_unknown_step_changes_nothing(shop: Shop, job: ReservedJob) -> None:
    uuid = failed(shop, job)
    said = shop.run("retry", uuid, "--from", "chrage")
    assert said.code == 1
    assert "no step 'chrage' is kept" in said.err
    assert "charge, token" in said.err
    assert shop.run("failed", uuid).code == 0
    both = shop.run("retry", uuid, "--from", "a", "--fresh")
    assert (both.code, "leave out --from" in both.only()) == (2, True)


@pytest.mark.parametrize("command", [["forget", "{}"], ["flush"]])
def test_steps_go_with_the_record(shop: Shop, job: ReservedJob, command: list[str]) -> None:
    uuid = failed(shop, job)
    assert shop.run(*(word.format(uuid) for word in command)).code == 0
    assert kept(shop) == []
