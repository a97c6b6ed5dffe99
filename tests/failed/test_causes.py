"""Causes: what failed for the same reason is one, wherever and with whatever it failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from qframe import QueueManager, Worker, WorkerOptions, manager
from qframe.contracts import FailedJob, History
from qframe.failed.causes import HOURS, by_cause, cause_of
from qframe.payload import tracebacks

_MODULE = """
import asyncio
import json

def parse(text):
    return json.loads(text)

def charge(order):
    raise ValueError(f"order {order} of user 'u{order}' is refused")

def refund(order):
    raise ValueError(f"order {order} of user 'u{order}' is refused")

def chained(order):
    try:
        charge(order)
    except ValueError as error:
        raise RuntimeError("not paid\\nsee the log") from error

def group(order):
    async def main():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(later(order))
    asyncio.run(main())

async def later(order):
    charge(order)
"""
_PHP = """RuntimeException: order {0} is refused in {1}:33
Stack trace:
#0 {1}(12): App\\Jobs\\Charge->pay({0})
#1 /srv/vendor/laravel/framework/src/Container.php(36): App\\Jobs\\Charge->handle()
#2 {{main}}
"""


def record(exception: str, **over: Any) -> FailedJob:
    values = {
        "uuid": "u-1", "connection": "redis", "queue": "default", "payload": b"{}",
        "name": "shop.Order", "attempts": 1, "history": History(), "failed_at": 1000.0, **over,
    }  # fmt: skip
    return FailedJob(exception=exception, **values)


def raised(act: Callable[..., object], *arguments: object) -> str:
    """Give the text of what is raised, as the failed store keeps it."""
    try:
        act(*arguments)
    except BaseException as error:  # noqa: BLE001 (whatever it is)
        return tracebacks.full(error)
    raise AssertionError("nothing was raised")


def deployed(folder: Path, shift: int = 0) -> ModuleType:
    """Give the module as it is in a folder, some lines further down."""
    folder.mkdir()
    file = folder / "billing.py"
    file.write_text("\n" * shift + _MODULE)
    module = ModuleType("billing")
    exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
    return module


@pytest.fixture
def billing(tmp_path: Path) -> ModuleType:
    return deployed(tmp_path / "release-1")


def test_what_differs_from_job_to_job_is_taken_out(billing: ModuleType) -> None:
    one, other = (cause_of(record(raised(billing.charge, n))) for n in (7, 1234))
    assert one == other
    assert one.error == "ValueError: order * of user * is refused"
    assert (one.job, one.place) == ("shop.Order", "billing.py in charge")


def test_a_deploy_changes_nothing(billing: ModuleType, tmp_path: Path) -> None:
    later = deployed(tmp_path / "release-2", shift=9)
    assert cause_of(record(raised(billing.charge, 1))) == cause_of(record(raised(later.charge, 1)))


def test_class_type_and_place_tell_causes_apart(billing: ModuleType) -> None:
    charge, refund = (raised(act, 1) for act in (billing.charge, billing.refund))
    found = [record(charge), record(refund), record(charge, name="shop.Other")]
    found += [record(charge.replace("ValueError:", "KeyError:"))]
    assert len({cause_of(each).key for each in found}) == 4


def test_the_place_is_the_innermost_frame_of_the_application(billing: ModuleType) -> None:
    cause = cause_of(record(raised(billing.parse, "{")))
    assert cause.place == "billing.py in parse"  # json's own are below it
    assert cause.error.startswith("json.decoder.JSONDecodeError: Expecting property name")


def test_of_a_chain_the_last_counts_and_of_several_lines_the_first(billing: ModuleType) -> None:
    cause = cause_of(record(raised(billing.chained, 1)))
    assert cause.error == "RuntimeError: not paid"
    assert cause.place == "billing.py in chained"


def test_a_group_is_one_by_its_own_place(billing: ModuleType) -> None:
    one, other = (cause_of(record(raised(billing.group, n))) for n in (1, 2))
    assert one == other
    assert one.error == "ExceptionGroup: unhandled errors in a TaskGroup (* sub-exception)"
    assert one.place == "billing.py in main"


def test_without_a_frame_of_the_application_it_is_a_librarys() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/app/.venv/lib/python3.12/site-packages/httpx/_client.py", line 9, in send\n'
        "    raise\n"
        '  File "/usr/lib/python3.12/ssl.py", line 9, in read\n'
        "    raise\n"
        "TimeoutError: The read operation timed out\n"
    )
    assert cause_of(record(text)).place == "_client.py in send"
    assert not cause_of(record("ValueError: no\n")).place


@pytest.mark.parametrize(
    ("said", "steady"),
    [
        ("KeyError: 'user'", "KeyError: *"),
        ("E: it doesn't fit, can't be", "E: it doesn't fit, can't be"),
        ("E: 3f3afe2b-3c14-4146-a593-6348201e24d5 is gone", "E: * is gone"),
        ("E: no route to 10.0.0.7:6379 at 12:30:01", "E: no route to * at *"),
        ("E: GET https://api.example/v1/users/7?x=1 gave 502", "E: GET * gave *"),
        ("E: a.b+c@example.org bounced", "E: * bounced"),
        ("E: object at 0x7f3edb85ea00", "E: object at *"),
        ("E: commit 1f0c5c1e5b3f is refused, cafe is not", "E: commit * is refused, cafe is not"),
        ("E: no route to fe80::1ff:fe23:4567:890a", "E: no route to *"),
        ("E: [::1]:6379 is silent", "E: [*]:* is silent"),
        ("E: Some::thing is a::b", "E: Some::thing is a::b"),
        ("Type2Error: 2", "Type2Error: *"),
        ("NoMessage", "NoMessage"),
        ("", ""),
    ],
)
def test_messages(said: str, steady: str) -> None:
    assert cause_of(record(said)).error == steady


def test_what_laravel_keeps_is_read_too() -> None:
    one, other = (
        cause_of(record(_PHP.format(number, "/srv/app/Jobs/Charge.php"))) for number in (1, 2)
    )
    assert one == other
    assert one.error == "RuntimeException: order * is refused"
    assert one.place == "Charge.php"
    inside = cause_of(record(_PHP.format(1, "/srv/vendor/guzzle/Client.php")))
    assert not inside.place  # none of its frames is the application's


@pytest.mark.parametrize("text", ["\ud800", "'" * 5000, "1" * 30_000, '"' + "a\n" * 9000, "\0"])
def test_any_text_has_a_cause(text: str) -> None:
    cause = cause_of(record(f"E: {text}"))
    assert len(cause.key) == 10
    assert len(cause.error) <= 300
    assert cause.error.isprintable()


def test_they_are_counted_the_most_frequent_first() -> None:
    now = 1_000_000.0
    ages = (30, 3700, 90_000)
    records = [
        record(f"ValueError: {age}", uuid=f"v-{age}", failed_at=now - age) for age in ages
    ] + [record("KeyError: 'a'", uuid="k", failed_at=now)]
    many, one = by_cause(records)
    assert (many.count, one.count) == (3, 1)
    assert (many.first, many.last, many.example) == (now - 90_000, now - 30, "v-30")
    assert many.hours(now) == [*[0] * (HOURS - 2), 1, 1]
    assert json.dumps(one.hours(now)[-1]) == "1"


def test_what_never_parses_is_a_cause_too(tmp_path: Path) -> None:
    queues = QueueManager({"root": tmp_path})
    manager.use(queues)
    try:
        queue = queues.connection()
        for number in range(3):
            queue.push_raw(f"nonsense {number}")
        Worker(queues, WorkerOptions(stop_when_empty=True, memory=0)).run()
        (found,) = by_cause(queue.failed.all())
    finally:
        manager.use(None)
    assert found.count == 3
    assert "the payload is not JSON" in found.cause.error


def test_a_class_has_one_name_whatever_its_jobs_are_displayed_as() -> None:
    payload = b'{"job": "shop.Order", "displayName": "order %d", "data": {}}'
    one, other = (
        cause_of(record("ValueError: no", name=f"order {n}", payload=payload % n)) for n in (1, 2)
    )
    assert one == other
    assert one.job == "shop.Order"
    php = b'{"job": "Illuminate\\\\Queue\\\\CallQueuedHandler@call", "displayName": "App"}'
    assert cause_of(record("ValueError: no", name="App", payload=php)).job == "App"
