"""One job each planned time, whoever is there, and whatever their clocks say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from qframe import Queueable, QueueManager, events, foreign, schedule
from qframe.drivers.store import pause_key
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.features.reserved import ReservedJob
from qframe.hooks import of_process
from qframe.schedules.definition import book
from qframe.schedules.rows import ScheduleRow, ScheduleRows
from qframe.schedules.scheduler import Scheduler
from tests.schedules.conftest import START, Bench, Send
from tests.support.clock import Clock


class Odd(Queueable):
    thing: Any = None

    def handle(self) -> None: ...


def test_each_planned_time_has_one_job_however_many_hosts(bench: Bench) -> None:
    schedule(Send()).every_seconds(10)
    hosts = [bench.host() for _ in range(5)]
    bench.pass_(*hosts, seconds=60)
    assert bench.times() == [
        "12:00:40", "12:00:50", "12:01:00", "12:01:10", "12:01:20", "12:01:30",
    ]  # fmt: skip
    assert sum(each.dispatched for each in hosts) == 6


def test_clocks_some_seconds_apart_make_neither_two_nor_none(bench: Bench) -> None:
    schedule(Send()).every_seconds(2)
    ahead, behind = Clock(START + 7), Clock(START - 7)
    hosts = [bench.host(ahead), bench.host(), bench.host(behind)]
    for _ in range(30):
        for clock in (bench.clock, ahead, behind):
            clock.now += 1
        for host in hosts:
            while host.turn() == 0:
                pass
    times = bench.times()
    assert len(times) == len(set(times))
    assert times[0] == "12:00:38"
    assert times[-1] == "12:01:06"
    assert len(times) == 15


def test_who_comes_after_the_others_died_goes_on_where_they_were(bench: Bench) -> None:
    schedule(Send()).every_seconds(2)
    first = bench.host()
    bench.pass_(first, seconds=10)
    bench.clock.now += 5  # nobody is there
    second = bench.host()
    bench.pass_(second, seconds=5)
    assert len(bench.times()) == len(set(bench.times())) == 10


def test_a_clock_that_is_set_back_runs_nothing_twice(bench: Bench) -> None:
    schedule(Send()).every_seconds(5)
    host = bench.host()
    bench.pass_(host, seconds=30)
    before = bench.times()
    bench.clock.now -= 3600
    other = bench.host()
    bench.pass_(host, other, seconds=60)
    assert bench.times() == before


@pytest.mark.parametrize(
    ("policy", "times"),
    [("none", []), ("last", ["14:00:00"]), ("all", ["13:30:00", "13:45:00", "14:00:00"])],
)
def test_after_downtime_it_is_as_the_schedule_says(
    bench: Bench, policy: str, times: list[str]
) -> None:
    missed: list[events.ScheduleMissed] = []
    schedule(Send()).cron("*/15 * * * *").missed(policy, within=timedelta(minutes=50))  # type: ignore[arg-type] # each in turn
    bench.host()
    bench.clock.now += 2 * 3600 + 600  # 14:10:30
    with events.kept():
        events.listen(events.ScheduleMissed)(missed.append)
        host = bench.host()
        bench.pass_(host, seconds=3)
    assert bench.times() == times
    assert [each.scheduled_for.strftime("%H:%M") for each in missed] == ["12:15"]


def test_a_new_schedule_does_not_run_at_once(bench: Bench) -> None:
    schedule(Send()).daily_at("12:00")
    host = bench.host()
    bench.pass_(host, seconds=10)
    assert bench.times() == []


def test_a_one_off_runs_once(bench: Bench) -> None:
    schedule(Send()).at(datetime.fromtimestamp(START + 5, UTC))
    hosts = [bench.host(), bench.host()]
    bench.pass_(*hosts, seconds=20)
    assert bench.times() == ["12:00:35"]
    bench.pass_(bench.host(), seconds=20)
    assert bench.times() == ["12:00:35"]


def test_the_payload_has_the_planned_time_in_its_zone(bench: Bench) -> None:
    schedule(Send()).every_seconds(10).timezone("Europe/Vienna").name("send")
    bench.pass_(bench.host(), seconds=10)
    (job,) = bench.queue.reserve(["default"])
    assert str(job.scheduled_for) == "2026-11-25 13:00:40+01:00"
    assert job.payload["schedule"]["name"] == "send"


def test_runs_do_not_overlap_until_the_one_before_has_ended(bench: Bench) -> None:
    schedule(Send()).every_seconds(10).without_overlapping().name("send")
    host = bench.host()
    skipped: list[events.ScheduleSkipped] = []
    with events.kept():
        events.listen(events.ScheduleSkipped)(skipped.append)
        bench.pass_(host, seconds=30)
        assert bench.times() == ["12:00:40"]
        assert [each.reason for each in skipped] == ["the run before has not ended"] * 2
        (job,) = bench.queue.reserve(["default"])
        bench.queue.backend.apply(job.start_plan())
        job.delete()
        bench.pass_(host, seconds=10)
    assert bench.times() == ["12:01:10"]


class SendOnce(Send):
    once = 3600


def test_a_run_whose_key_is_taken_is_passed(bench: Bench) -> None:
    schedule(SendOnce()).every_seconds(10).name("once")
    skipped: list[events.ScheduleSkipped] = []
    with events.kept():
        events.listen(events.ScheduleSkipped)(skipped.append)
        bench.pass_(bench.host(), seconds=20)
    (job,) = bench.queue.reserve(["default"], 5)
    assert [each.reason for each in skipped] == [f"once: {job.uuid} was before"]


def test_how_a_run_ended_is_kept(bench: Bench) -> None:
    schedule(Send()).every_seconds(10).name("send")
    bench.pass_(bench.host(), seconds=10)
    (job,) = bench.queue.reserve(["default"])
    bench.queue.backend.apply(job.start_plan())
    job.fail(ValueError("no"))
    (kept,) = [text for key, text in bench.queue.store.items("schedule:") if ":end:" in key]
    assert '"state": "FAILED"' in kept
    assert "ValueError: no" in kept


def test_conditions_are_asked_at_the_planned_time(bench: Bench) -> None:
    asked: list[datetime] = []

    def odd(at: datetime) -> bool:
        asked.append(at)
        return at.second == 50

    schedule(Send()).every_seconds(10).when(odd)
    bench.pass_(bench.host(), seconds=30)
    assert bench.times() == ["12:00:50"]
    assert [each.second for each in asked] == [40, 50, 0]


def test_a_condition_that_raises_skips_its_run_alone(bench: Bench) -> None:
    schedule(Send(number=1)).every_seconds(10).name("bad").skip(lambda: 1 / 0)
    schedule(Send(number=2)).every_seconds(10).name("good")
    bench.pass_(bench.host(), seconds=20)
    assert bench.times("good") == ["12:00:40", "12:00:50"]
    assert bench.times("bad") == []


def test_a_job_that_cannot_be_made_is_told_of_and_holds_up_no_other(bench: Bench) -> None:
    job = Odd()
    schedule(job).every_seconds(10).name("bad")
    schedule(Send()).every_seconds(10).name("good")
    failed: list[events.ScheduleFailed] = []
    host = bench.host()
    job.thing = object()  # which no payload can have
    with events.kept():
        events.listen(events.ScheduleFailed)(failed.append)
        bench.pass_(host, seconds=20)
    assert [(each.schedule, each.scheduled_for.second) for each in failed] == [
        ("bad", 40), ("bad", 50),
    ]  # fmt: skip
    assert "thing" in str(failed[0].error)
    assert bench.times("good") == ["12:00:40", "12:00:50"]
    assert bench.times("bad") == []


def test_a_paused_schedule_stops_everywhere_and_makes_nothing_up(bench: Bench) -> None:
    schedule(Send()).every_seconds(10).name("send")
    hosts = [bench.host(), bench.host()]
    ScheduleRows(bench.queues).pause(bench.queue, "send")
    bench.pass_(*hosts, seconds=30)
    assert bench.times() == []
    ScheduleRows(bench.queues).resume(bench.queue, "send")
    bench.pass_(*hosts, seconds=10)
    assert bench.times() == ["12:01:10"]


def test_all_may_be_paused_at_once(bench: Bench) -> None:
    schedule(Send()).every_seconds(10).name("send")
    host = bench.host()
    ScheduleRows(bench.queues).pause(bench.queue)
    ScheduleRows(bench.queues).pause(bench.queue, "send")
    bench.pass_(host, seconds=30)
    assert bench.times() == []
    ScheduleRows(bench.queues).resume(bench.queue)
    bench.pass_(host, seconds=10)
    assert bench.times() == ["12:01:10"]


def test_maintenance_holds_runs_up_and_the_last_is_made_up_for(bench: Bench) -> None:
    schedule(Send(number=1)).every_seconds(10).name("held")
    schedule(Send(number=2)).every_seconds(10).name("goes on").even_in_maintenance_mode()
    host = bench.host()
    key = pause_key("memory")
    bench.queue.store.set(key, "1")
    bench.pass_(host, seconds=35)
    assert bench.times("held") == []
    assert len(bench.times("goes on")) == 3
    bench.queue.store.delete(key)
    bench.pass_(host, seconds=2)
    assert bench.times("held") == ["12:01:00"]


def test_environments(bench: Bench) -> None:
    schedule(Send()).every_seconds(10).environments("production")
    bench.pass_(bench.host(), seconds=10)
    assert bench.times() == []


def test_spread_delays_each_run_the_same_on_every_host(bench: Bench) -> None:
    schedule(Send()).every_seconds(10).spread(5).name("send")
    bench.pass_(bench.host(), seconds=60)
    delays = [each["delay"] for each in bench.payloads()]
    assert all(0 <= each < 5 for each in delays)
    assert len(set(delays)) > 3


# -- old code and new code ------------------------------------------------------------------------


def test_changed_code_stops_the_old_at_once(bench: Bench) -> None:
    schedule(Send(number=1)).every_seconds(10).name("send")
    old = bench.host()
    bench.pass_(old, seconds=10)
    book.clear()
    schedule(Send(number=2)).every_seconds(10).name("send")
    new = bench.host()
    bench.pass_(old, new, seconds=30)
    assert [each["data"]["number"] for each in bench.payloads()] == [1, 2, 2, 2]


def test_removed_code_stops_the_old_at_once(bench: Bench) -> None:
    schedule(Send()).every_seconds(10).name("gone")
    schedule(Send()).every_seconds(10).name("stays")
    old = bench.host()
    book.clear()
    schedule(Send()).every_seconds(10).name("stays")
    new = bench.host()
    bench.pass_(old, new, seconds=20)
    assert bench.times("gone") == []
    assert len(bench.times("stays")) == 2


@pytest.mark.parametrize("jobs", [[__name__], []])
def test_a_module_without_any_more_stops_the_old(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, jobs: list[str]
) -> None:
    """Also one that a framework has named: Django's apps."""
    monkeypatch.setattr(of_process, "modules", [] if jobs else [__name__])
    bench = Bench(QueueManager({"default": "memory", "root": fresh, "jobs": jobs}))
    schedule(Send()).every_seconds(10).name("gone")
    old = bench.host()
    book.clear()
    new = bench.host()
    bench.pass_(old, new, seconds=20)
    assert bench.times() == []


def test_old_code_that_starts_again_amid_a_deploy_stays_quiet_until_the_new_is_gone(
    bench: Bench,
) -> None:
    schedule(Send(number=1)).every_seconds(10).name("send")
    bench.host()
    book.clear()
    schedule(Send(number=2)).every_seconds(10).name("send")
    new = bench.host()
    book.clear()
    schedule(Send(number=1)).every_seconds(10).name("send")
    old = bench.host()
    bench.pass_(new, old, seconds=30)
    assert {each["data"]["number"] for each in bench.payloads()} == {2}
    bench.queue.backend.timing.skew += 61  # no process with the new code lives
    bench.pass_(old, seconds=30)
    assert [each["data"]["number"] for each in bench.payloads()][-2:] == [1, 1]


# -- facts elsewhere ------------------------------------------------------------------------------


def test_facts_elsewhere_make_one_job_each_too(apart: Bench) -> None:
    schedule(Send()).every_seconds(10).name("send")
    hosts = [apart.host(), apart.host()]
    apart.pass_(*hosts, seconds=30)
    assert apart.times() == ["12:00:40", "12:00:50", "12:01:00"]
    assert all(each["schedule"]["claims"] for each in apart.payloads())


def test_who_dies_before_the_push_leaves_it_to_another(
    apart: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(Send()).every_seconds(10).name("send")
    first = apart.host()
    make = first.table.make

    def die(*_: object) -> None:
        raise BackendUnavailable("killed")

    monkeypatch.setattr(make, "push_pending", die)
    apart.clock.now += 10
    with pytest.raises(BackendUnavailable):
        first.turn()
    assert apart.times() == []
    second = apart.host()
    apart.pass_(second, seconds=10)
    assert apart.times() == ["12:00:40", "12:00:50"]


class Alone(Queueable):
    unique = True
    track = True

    def handle(self) -> None: ...


def unpushed(bench: Bench, host: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next run of a host be stored, and its message not be pushed."""
    for _ in range(9):
        bench.clock.now += 1
        host.turn()
    bench.clock.now += 1
    with monkeypatch.context() as broken:

        def refuse(*_: object) -> None:
            raise BackendUnavailable("down")

        broken.setattr(host.table.make, "push_pending", refuse)
        with pytest.raises(BackendUnavailable):
            host.turn()
    assert bench.times() == []


@pytest.mark.parametrize("by", ["the same", "another"])
def test_the_last_run_of_a_row_that_was_not_pushed_is_pushed_later(
    apart: Bench, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr("qframe.schedules.rows.time.time", apart.clock)
    row = ScheduleRow(job="App.Sync", foreign=True, when="at 2026-11-25T12:00:40+00:00")
    ScheduleRows(apart.queues).add(apart.queue, "sync", row)
    host = apart.host()
    unpushed(apart, host, monkeypatch)
    host = host if by == "the same" else apart.host()
    apart.pass_(host, seconds=20)
    assert apart.times() == ["12:00:40"]
    assert not host.table.left


def test_a_run_that_was_not_pushed_outlives_its_code(
    apart: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(Alone()).every_seconds(10).name("alone")
    unpushed(apart, apart.host(), monkeypatch)
    second = Alone.dispatch()
    second.send()
    assert second.is_duplicate, "the run has been dispatched"
    book.clear()
    two = [apart.host(), apart.host()]
    apart.pass_(*two, seconds=60)
    assert apart.times() == ["12:00:40"]


def test_a_run_that_was_not_pushed_outlives_the_removal_of_its_row(
    apart: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ScheduleRows(apart.queues)
    rows.add(apart.queue, "sync", ScheduleRow(job="App.Sync", foreign=True, when="every 10s"))
    host = apart.host()
    unpushed(apart, host, monkeypatch)
    assert rows.remove(apart.queue, "sync")
    apart.pass_(host, apart.host(), seconds=60)
    assert apart.times() == ["12:00:40"]
    assert not rows.remove(apart.queue, "sync")


def test_of_two_messages_of_a_run_one_is_run(apart: Bench) -> None:
    schedule(Send()).every_seconds(10).name("send")
    first = apart.host()
    apart.clock.now += 10
    first.turn()
    (raw,) = [each.raw_body for each in apart.queue.backend.search("default", b"uuid")]
    apart.queue.push_raw(raw.replace(b'"push":0', b'"push":1'))
    held = apart.queue.reserve(["default"], 2)
    reasons = [job.skip_reason() for job in held]
    assert reasons == [None, "another message of the same planned time is run"]
    again = [ReservedJob(job.context, job.reservation) for job in held]
    assert [job.skip_reason() for job in again] == reasons


# -- what is refused ------------------------------------------------------------------------------


def test_two_of_a_name_are_told_with_both_places(bench: Bench) -> None:
    schedule(Send()).daily()
    schedule(Send(number=3)).daily()
    wanted = r"two schedules are named .*test_runs.py:\d+ .*py:\d+"
    with pytest.raises(ConfigurationError, match=wanted):
        bench.host()


def test_without_a_cadence_its_place_is_told(bench: Bench) -> None:
    schedule(Send())
    with pytest.raises(ConfigurationError, match=r"test_runs.py:\d+: .* does not say when"):
        bench.host()


def test_a_connection_that_keeps_no_jobs_is_refused(bench: Bench) -> None:
    schedule(Send()).daily().on_connection("sync")
    with pytest.raises(ConfigurationError, match="keeps no jobs"):
        bench.host()


def test_a_foreign_job_cannot_free_a_lock(bench: Bench) -> None:
    schedule(foreign("App\\Import", {"id": 7})).daily().without_overlapping()
    with pytest.raises(ConfigurationError, match="another program"):
        bench.host()
