"""The last checks of stored payloads are kept: a few, small, without values, and hard to forge."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qframe import Queueable, QueueManager, manager
from qframe.connection import Connection
from qframe.contracts.step import Push, Set, Step
from qframe.exceptions import BackendUnavailable, QframeError
from qframe.metrics.deploys import Deploys
from qframe.operations import findings, payload_reports, payloads
from qframe.operations.board import Board
from qframe.operations.payload_reports import KEYS, PayloadReport, keep, report_of
from qframe.operations.payloads import PayloadCheck, PayloadTrouble
from qframe.payload import envelope
from qframe.payload.encryption import new_key
from tests.conftest import settings_of


class Frank(Queueable):
    """Its validators and its upgrade quote what they are given."""

    order: int
    version: ClassVar[int | None] = 2

    @staticmethod
    def upgrade(data: dict[str, Any], version: int) -> dict[str, Any]:
        return {"order": {}[data["order"]]}

    def __post_init__(self) -> None:
        if self.order > 90:
            raise ValueError(f"hunter{self.order}")
        if self.order < 0:
            raise RuntimeError(f"hunter{self.order}")

    def handle(self) -> None: ...


Opened = Callable[..., QueueManager]


@pytest.fixture
def opened(fresh: Path) -> Opened:
    def made(settings: dict[str, Any], **more: Any) -> QueueManager:
        queues = QueueManager(
            {
                "root": fresh,
                "default": "here",
                "connections": {"here": settings},
                "jobs": [__name__],
                **more,
            }
        )
        manager.use(queues)
        return queues

    return made


@pytest.fixture(params=["memory", "database", "redis"])
def queues(request: pytest.FixtureRequest, opened: Opened) -> QueueManager:
    return opened(settings_of(request))


def made(found: PayloadCheck | None = None, **more: Any) -> PayloadReport:
    about = {"who": "ops@ci-3", "where": "the command", "version": "2.4.1", **more}
    return report_of(found or PayloadCheck(), **about)


def failing(count: int = 31, text: str = "lack `carrier`", job: str = "app.Ship") -> PayloadCheck:
    trouble = PayloadTrouble(job=job, kind="lacks", text=text, plain=text, count=count)
    trouble.places = {"ready in here:mail": count}
    return PayloadCheck(read=1204, troubles=[trouble])


def kept(queues: QueueManager) -> list[PayloadReport]:
    return Board(queues).payload_reports()


def push(connection: Connection, **changes: Any) -> None:
    message = envelope.create(Frank(order=1)) | changes
    connection.backend.apply(Step(None, Push("default", envelope.encode(message))))


# -- kept -----------------------------------------------------------------------------------------


def test_a_report_comes_back_as_it_was_left(queues: QueueManager) -> None:
    found = failing()
    found.notes, found.silent = ["redis: not looked at"], {"sqs": "no answer"}
    found.left_out, found.upgraded = {"app.Report.remark": 12}, 310
    report = made(found)
    assert keep(queues, report) == "here"
    (back,) = kept(queues)
    assert back == report
    assert back.troubles[0].sentence == "31 of app.Ship lack `carrier`"
    assert back.troubles[0].where == "31 ready in here:mail"
    assert back.left_out == [
        "12 of app.Report have `remark`, which is left out: it has no such field"
    ]
    assert (back.cannot, back.is_good) == (31, False)
    assert back.counted == "1,204 payloads read, 310 to be carried over by upgrade"


def test_only_the_last_five_are_kept_the_latest_first(queues: QueueManager) -> None:
    reports = []
    for number in range(7):
        reports.append(made(version=str(number)))
        keep(queues, reports[-1])
        time.sleep(0.002)  # the time of a report has milliseconds
    assert [each.version for each in kept(queues)] == ["6", "5", "4", "3", "2"]
    for number in range(7, 10):
        keep(queues, made(version=str(number), where="the page"))
        time.sleep(0.002)
    assert [each.version for each in kept(queues)] == ["9", "8", "6", "5", "4", "3", "2"]


def test_a_report_expires(queues: QueueManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_reports, "KEEP", 0.05)
    keep(queues, made())
    ends = time.monotonic() + 20
    while kept(queues) and time.monotonic() < ends:
        time.sleep(0.02)
    assert kept(queues) == []


def test_two_at_once_are_both_kept(queues: QueueManager, monkeypatch: pytest.MonkeyPatch) -> None:
    store, others = queues.connection().store, [made(version="2")]
    get = type(store).get

    def late(self: Any, *keys: str) -> Any:
        found = get(self, *keys)
        if others:
            keep(queues, others.pop())
        return found

    monkeypatch.setattr(type(store), "get", late)
    keep(queues, made(version="1"))
    assert {each.version for each in kept(queues)} == {"1", "2"}


def test_a_report_is_small_whatever_was_found() -> None:
    name = "\U0001f4a5" * 300
    found = PayloadCheck(read=10**9, others=5)
    for number in range(500):
        one = failing(3, "lack \U0001f4a5" * 100, f"{number}{name}").troubles[0]
        one.places = {f"{n} {name}": n for n in range(50)}
        found.troubles.append(one)
    found.notes = [name] * 400
    found.left_out = {f"{number}{name}": 1 for number in range(400)}
    found.silent = {f"{number}{name}": name for number in range(400)}
    report = made(found, who=name, version=name, connection=name)
    assert len(report.model_dump_json().encode()) <= 30_000
    assert report.cannot == 1505
    assert report.others == 1505 - 3 * len(report.troubles)
    listed = len(report.left_out) + len(report.notes) + len(report.silent)
    assert report.unlisted == 1200 - listed
    assert report.troubles
    PayloadReport.model_validate_json(report.model_dump_json())


def test_it_goes_to_a_store_that_answers(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"here": {"driver": "memory"}, "there": {"driver": "memory"}}
    queues = opened({}, connections=both)

    def gone(*_: object) -> Any:
        raise BackendUnavailable("no answer")

    assert keep(queues, made(), ["here"]) == "there"
    assert keep(queues, made(connection="there")) == "there"
    monkeypatch.setattr(queues.backend("here"), "read", gone)
    assert keep(queues, made(version="3")) == "there"
    assert len(kept(queues)) == 3
    monkeypatch.setattr(queues.backend("there"), "apply", gone)
    with pytest.raises(BackendUnavailable, match="no answer"):
        keep(queues, made())


def test_without_any_store_it_is_not_kept(opened: Opened) -> None:
    with pytest.raises(QframeError, match="no connection that answers has a store"):
        keep(opened({"driver": "null"}), made())


# -- no values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"order": "hunter2"}}, "do not fit in `order`"),
        ({"data": {"order": 91}}, "do not fit"),
        ({"data": {"order": -2}}, "raise RuntimeError ("),
        (
            {"data": {"order": "hunter2"}, "dataVersion": 1},
            "are not carried over: upgrade raised KeyError (",
        ),
        ({"data": {}}, "lack `order`"),
        ({"data": ["hunter2"]}, "do not fit"),
        ({"dataVersion": 3}, "are newer: the payload has version 3, and the class here is"),
        ({"job": "app.Gone"}, "are unknown: app.Gone is not in the modules listed under `jobs`"),
        ({"job": "", "refused": "hunter2"}, "cannot be read"),
        ({"job": ""}, "cannot be read: the payload has no job name under `job`"),
    ],
)
def test_no_value_of_a_payload_is_kept(opened: Opened, changes: dict[str, Any], said: str) -> None:
    queues = opened({"driver": "memory"})
    push(queues.connection(), **changes)
    keep(queues, made(payloads.check(queues)))
    (report,) = kept(queues)
    assert said in report.troubles[0].sentence
    assert not any("hunter" in text for text in queues.connection().store.get(*KEYS) if text)


def test_troubles_that_differ_in_a_value_are_one(opened: Opened) -> None:
    queues = opened({"driver": "memory"})
    for number in range(3):
        push(queues.connection(), data={"order": 91 + number})
    found = payloads.check(queues)
    assert len(found.troubles) == 3
    (trouble,) = made(found).troubles
    assert (trouble.count, trouble.where) == (3, "3 ready in here:default")


# -- what others have written ---------------------------------------------------------------------


def changed(report: PayloadReport, **fields: Any) -> str:
    return json.dumps(report.model_dump() | fields)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "[]",
        "{}",
        changed(made(), format=2),
        changed(made(), format=0),
        changed(made(), at="soon"),
        changed(made(), at="9999"),
        changed(made(), read=-1),
        changed(made(), cannot=float("inf")),
        changed(made(), cannot=10**30),
        changed(made(), notes=["x"] * 51),
        changed(made(), troubles=7),
        changed(made(), who="x" * 100_000),
    ],
)
def test_what_is_no_report_is_passed_over_and_replaced(queues: QueueManager, text: str) -> None:
    connection = queues.connection()
    for key in KEYS[1:5]:
        connection.store.set(key, made(version="good").model_dump_json())
    connection.store.set(KEYS[0], text)
    assert len(kept(queues)) == 4
    keep(queues, made(version="new"))
    assert sorted(each.version for each in kept(queues)) == [*["good"] * 4, "new"]


def test_a_report_with_a_later_field_is_read(opened: Opened) -> None:
    queues = opened({"driver": "memory"})
    queues.connection().store.set(KEYS[0], changed(made(), colour="red"))
    assert len(kept(queues)) == 1


def test_without_the_key_nobody_makes_changes_or_moves_one(
    request: pytest.FixtureRequest, opened: Opened
) -> None:
    queues = opened({"driver": "memory"}, signing_key=new_key())
    connection = queues.connection()
    keep(queues, made(version="ours"))
    (sealed,) = [text for text in connection.store.get(*KEYS) if text]
    assert sealed is not None

    def put(text: str) -> None:
        connection.backend.apply(Step(None, Set(KEYS[1], text, 60)))

    for forged in (
        made(version="theirs").model_dump_json(),
        sealed.replace("ours", "2.9"),
        sealed,  # of another key
    ):
        put(forged)
        assert [each.version for each in kept(queues)] == ["ours"]


# -- the overview ---------------------------------------------------------------------------------


def warned(queues: QueueManager) -> list[str]:
    found = findings.problems(Board(queues))
    return [each.text for each in found if each.page == "/payloads"]


def test_what_the_last_check_found_is_told_until_a_deploy(queues: QueueManager) -> None:
    Deploys(queues.connection().store).mark("2.4.0", at=time.time() - 60)
    keep(queues, made(failing()))
    (said,) = warned(queues)
    assert said == (
        "version 2.4.1, checked by ops@ci-3, cannot run 31 stored jobs: "
        "31 of app.Ship lack `carrier`"
    )
    Deploys(queues.connection().store).mark("2.4.1", at=time.time() + 60)
    assert warned(queues) == []


def test_only_the_last_check_counts_and_the_page_replaces_none_of_the_command(
    opened: Opened,
) -> None:
    queues = opened({"driver": "memory"})

    def left(report: PayloadReport) -> None:
        keep(queues, report)
        time.sleep(0.002)

    left(made(failing()))
    left(made(where="the page", version=""))
    left(made(connection="here"))
    assert len(warned(queues)) == 1
    left(made(version="2.4.2"))
    assert warned(queues) == []
    left(made(failing(1), where="the API", version=""))
    assert warned(queues) == [
        "the code, checked by ops@ci-3, cannot run 1 stored job: 1 of app.Ship lack `carrier`"
    ]
    left(made(PayloadCheck(read=4, others=3), where="the page", version=""))
    assert warned(queues) == ["the code, checked by ops@ci-3, cannot run 3 stored jobs"]
