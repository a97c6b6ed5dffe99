"""The judge of the fault scenarios sees what it is there to see."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from faults import __main__ as command
from faults import jobs, scenario
from faults.scenarios import chains, sqs
from faults.site import Site
from tests.support import gate
from tests.support.ledger import Account, Fault, Ledger
from tests.support.sqs_server import Delivery, Refusal, SqsServer, Stored


@pytest.fixture(autouse=True)
def _kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the folders of what went wrong made where they are removed in the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def _account(tmp_path: Path, *lines: str) -> Account:
    file = tmp_path / "ledger"
    file.write_text("".join(f"{line}\n" for line in lines))
    return Account.of(file)


def test_a_written_line_is_read_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    for line in (["U", 7], ["P", 1], ["E", 1], ["S", 1, 1, 7], ["D", 1, 1, 7]):
        ledger.note(*map(str, line))
    ledger.note("A", 1, "deleted", 1, 7)
    account = Account.of(tmp_path / "ledger")
    (run,) = account.runs["1"]
    assert (run.attempt, run.pid) == (1, 7)
    assert run.begun < run.done
    assert account.lost(set()) == account.ghosts() == account.unknown() == set()
    assert account.acknowledged == {"1": 1}


def test_what_was_accepted_and_is_nowhere_is_lost(tmp_path: Path) -> None:
    account = _account(tmp_path, "P 1 1.0", "E 1 1.1", "P 2 1.2", "P 3 1.3", "E 3 1.4")
    assert account.lost({"3"}) == {"1"}


def test_what_ran_unsent_is_a_ghost_and_what_ran_unheard_is_not(tmp_path: Path) -> None:
    account = _account(tmp_path, "P 2 1.0", "S 1 1 7 1.1", "S 2 1 7 1.2")
    assert account.ghosts() == {"1"}
    assert account.unknown() == {"2"}


TWICE = ("S 1 1 7 10.0", "D 1 1 7 10.1", "S 1 2 8 20.0", "D 1 2 8 20.1")


@pytest.mark.parametrize(
    ("fault", "explains"),
    [
        (Fault("killed", 10.05, 10.06, 7), True),
        (Fault("killed", 10.3, 10.3, 7), True),
        (Fault("killed", 15.0, 15.1, 7), False),  # long after its job was settled
        (Fault("killed", 10.05, 10.06, 8), False),  # another worker
        (Fault("killed", 9.0, 9.5, 7), False),  # before it began
        (Fault("outage", 9.0, 10.05), True),
        (Fault("outage", 20.05, 21.0), False),
    ],
)
def test_a_second_end_needs_a_fault_between_the_first_start_and_end(
    tmp_path: Path, fault: Fault, explains: bool
) -> None:
    causes, unexplained = _account(tmp_path, *TWICE).duplicates([fault])
    assert causes.total() == explains
    assert unexplained == (set() if explains else {"1"})


@pytest.mark.parametrize(("cut", "explains"), [(9.99, True), (9.9, True), (9.86, False)])
def test_a_cut_explains_a_run_that_was_taken_before_it_was_noticed(
    tmp_path: Path, cut: float, explains: bool
) -> None:
    account = _account(tmp_path, "T 1 7 9.98", *TWICE)
    causes, unexplained = account.duplicates([Fault("reset", cut, cut)])
    assert causes.total() == explains
    assert unexplained == (set() if explains else {"1"})


def test_a_fault_of_one_job_explains_no_other(tmp_path: Path) -> None:
    account = _account(tmp_path, *TWICE)
    for job, causes in {"1": {"refused": 1}, "2": {}}.items():
        fault = Fault("refused", 10.1, 19.9, 7, job)
        assert account.duplicates([fault])[0] == causes


@pytest.mark.parametrize(
    ("refused", "deleted", "explains"),
    [
        ([10.2, 12.0], 0.0, True),
        ([], 0.0, False),  # nobody asked
        ([10.05, 20.5], 0.0, False),  # before its last line, and after the lease
        ([10.2], 0.0, False),  # and then not for longer than a worker pauses
        ([10.2, 12.0], 12.5, False),
    ],
)
def test_a_refused_deletion_is_a_cause_if_it_was_refused_to_the_end(
    tmp_path: Path, refused: list[float], deleted: float, explains: bool
) -> None:
    message = Stored("m-1", json.dumps({"data": {"number": 1}}), {}, "", 0.0)
    first = Delivery(message, 9.9, 16.0, refused, deleted)  # SQS hides it for longer
    second = Delivery(message, 19.9, 22.9)
    account = _account(tmp_path, *TWICE)
    faults = sqs.refused_deletions([first, second], account, lease=4.0)
    causes, unexplained = account.duplicates(faults)
    assert causes.total() == explains
    assert unexplained == (set() if explains else {"1"})


def test_runs_at_the_same_time_need_a_cause(tmp_path: Path) -> None:
    lines = ("S 1 1 7 10.0", "S 1 2 8 11.0", "D 1 2 8 11.5", "D 1 1 7 12.0")
    account = _account(tmp_path, *lines)
    assert account.overlaps([])[1] == {"1"}
    assert account.overlaps([Fault("stopped", 10.1, 11.9, 7)]) == ({"stopped": 1}, set())
    one_after_the_other = _account(tmp_path, *TWICE)
    assert one_after_the_other.overlaps([]) == ({}, set())
    broken_off = _account(tmp_path, "S 1 1 7 10.0", "S 1 2 8 11.0", "D 1 2 8 11.5")
    assert broken_off.overlaps([]) == ({}, set())


def test_a_worker_without_a_processor_may_lose_its_lease(tmp_path: Path) -> None:
    account = _account(tmp_path, *TWICE, "G 7 0.500 10.3", "G 8 0.500 10.3", "G 7 0.500 19.0")
    assert [each.pid for each in account.starved] == [7, 8, 7]
    assert [each.begin for each in account.starved] == pytest.approx([9.8, 9.8, 18.5])
    assert [each.end for each in account.starved] == [10.3, 10.3, 19.0]
    assert account.duplicates(account.starved[:1]) == ({"starved": 1}, set())
    assert account.duplicates(account.starved[1:])[1] == {"1"}, "another one, and too late"


def test_one_that_is_stopped_with_the_lock_holds_up_all_others(tmp_path: Path) -> None:
    settled = ("A 2 deleted 1 8 10.2", "A 1 lost 1 7 20.2", "A 3 deleted 1 8 30.0")
    account = _account(tmp_path, *TWICE, *settled)
    assert account.halts([Fault("stopped", 10.05, 11.5, 8)], 1.0) == [
        Fault("stopped with the lock", 10.2, 11.5)
    ]
    assert account.duplicates(account.halts([Fault("stopped", 10.05, 11.5, 8)], 1.0))[1] == set()
    assert account.halts([Fault("stopped", 10.05, 11.0, 8)], 1.0) == [], "others went on meanwhile"
    assert account.halts([Fault("killed", 10.3, 15.0, 8)], 1.0) == [], "its lock ended with it"


def test_two_attempts_that_settle_one_job_are_told(tmp_path: Path) -> None:
    settled = ("A 1 deleted 1 7 10.2", "A 1 failed 2 8 20.2")
    account = _account(tmp_path, *TWICE, *settled)
    assert account.settled_twice([]) == {"1"}
    assert account.settled_twice([Fault("killed", 10.0, 10.1, 7)]) == {"1"}
    assert account.settled_twice([Fault("stalled", 10.0, 12.0)]) == set()


def test_a_failure_that_was_not_heard_may_be_said_again_without_a_start(tmp_path: Path) -> None:
    settled = ("S 1 2 7 10.0", "A 1 failed 2 7 10.2", "A 1 failed 2 8 11.2")
    account = _account(tmp_path, *settled)
    assert account.settled_twice([]) == {"1"}
    assert account.settled_twice([Fault("outage", 8.0, 9.0)]) == {"1"}, "before it ran"
    assert account.settled_twice([Fault("outage", 12.0, 13.0)]) == {"1"}, "after both"
    assert account.settled_twice([Fault("killed", 10.1, 11.0, 7)]) == {"1"}, "of the worker"
    assert account.settled_twice([Fault("outage", 10.1, 11.0)]) == set()


def test_a_settle_that_was_presumed_and_then_refused_counts_for_none(tmp_path: Path) -> None:
    settled = ("A 1 deleted 1 7 10.2", "A 1 lost 1 7 10.3", "A 1 deleted 2 8 20.2")
    assert _account(tmp_path, *TWICE, *settled).acknowledged_twice() == set()


def test_a_push_said_again_explains_two_first_attempts(tmp_path: Path) -> None:
    runs = ("S 1 1 7 10.0", "D 1 1 7 10.1", "S 1 1 8 10.3", "D 1 1 8 10.4")
    assert _account(tmp_path, "P 1 9.9", "E 1 10.2", *runs).pushed_again() == {"1"}
    assert _account(tmp_path, "P 1 9.8", "E 1 9.9", *runs).pushed_again() == set()


def test_recovery_is_from_the_fault_to_the_next_start(tmp_path: Path) -> None:
    account = _account(tmp_path, "S 1 1 7 10.0", "S 1 2 8 12.5", "D 1 2 8 12.6")
    assert account.recovery([Fault("killed", 10.9, 11.0, 7)]) == pytest.approx(1.5)
    assert account.recovery([Fault("killed", 10.9, 11.0, 9)]) == 0


# -- whole runs ---------------------------------------------------------------------------------


def _lose(site: Site) -> None:
    site.writing.note("P", 1)
    site.writing.note("E", 1)


def _leave(site: Site) -> None:
    site.send()
    site.finish(seconds=0.1)


def _run_a_ghost(site: Site) -> None:
    site.writing.note("S", 1, 1, 7)


def _do_twice(site: Site) -> None:
    site.at_least_once = {1}
    _lose(site)
    for pid in (7, 8):
        site.writing.note("S", 1, 1, pid)
        site.writing.note("D", 1, 1, pid)


def _go_on_too_early(site: Site) -> None:
    _lose(site)
    for event in ("P", "E"):
        site.writing.note(event, 2)
    for number in (2, 1):
        site.writing.note("S", number, 1, 7)
        site.writing.note("D", number, 1, 7)
    chains.check_order(site, Account.of(site.ledger), [1, 2])


def _do_twice_after_a_fault(site: Site) -> None:
    site.faults.append(Fault("killed", 0.0, 0.0, 9))
    _do_twice(site)


def _violate(site: Site) -> None:
    site.violate("it took too long")


def _raise(site: Site) -> None:
    raise RuntimeError("the scenario's own fault")


def _nothing(site: Site) -> None:
    site.send()
    site.begin(1)
    site.finish()


@pytest.mark.parametrize(
    ("act", "violation"),
    [
        (_lose, "lost: jobs 1"),
        (_leave, "1 jobs are left"),
        (_run_a_ghost, "never sent, but run: jobs 1"),
        (_do_twice, "done twice without a cause: jobs 1"),
        (_do_twice, "started twice with one attempt's number: jobs 1"),
        (_go_on_too_early, "2 began before what it follows had ended"),
        (_raise, "the scenario's own fault"),
    ],
)
def test_a_violation_is_told_and_the_ledger_kept(
    act: Callable[[Site], None], violation: str
) -> None:
    broken = scenario.Scenario("F0", "broken", act, frozenset(), through_proxy=False, lease=1.0)
    verdict, folder = scenario.run(broken, "database", 7, quick=True)
    assert any(violation in each for each in verdict.violations), verdict.violations
    assert verdict.line().startswith("F0 broken  seed 7: jobs ")
    assert verdict.line().endswith("VIOLATED")
    assert (folder / "project" / "ledger").exists()


def test_a_run_without_faults_holds_and_leaves_nothing_behind() -> None:
    quiet = scenario.Scenario("F0", "quiet", _nothing, frozenset(), through_proxy=False, lease=1.0)
    verdict, folder = scenario.run(quiet, "database", 7, quick=True)
    assert verdict.line() == (
        "F0 quiet  seed 7: jobs 1, lost 0, ghost 0, double settle 0, overlap 0, duplicates 0  ok"
    )
    assert not folder.exists()


def test_what_is_pushed_at_least_once_may_run_again_after_a_fault() -> None:
    again = scenario.Scenario(
        "F0", "again", _do_twice_after_a_fault, frozenset(), through_proxy=False, lease=1.0
    )
    verdict, _ = scenario.run(again, "database", 7, quick=True)
    assert verdict.ok, verdict.violations


@pytest.mark.parametrize(
    ("acts", "runs", "holds"),
    [
        ([_nothing], 1, True),
        ([_violate, _nothing], 2, True),
        ([_violate, _violate], 2, False),
        ([_lose], 1, False),
        ([_run_a_ghost], 1, False),
        ([_violate, _lose], 2, False),
    ],
)
def test_the_gate_forgives_one_run_what_a_late_machine_can_cause(
    monkeypatch: pytest.MonkeyPatch, acts: list[Callable[[Site], None]], runs: int, holds: bool
) -> None:
    done: list[Callable[[Site], None]] = []

    def act(site: Site) -> None:
        done.append(acts[len(done)])
        done[-1](site)

    which = scenario.Scenario("F0", "gate", act, frozenset(), through_proxy=False, lease=1.0)
    monkeypatch.setattr(scenario, "table", lambda: {"F0": which})
    if holds:
        gate.passes("F0", "database")
    else:
        with pytest.raises(AssertionError, match="VIOLATED"):
            gate.passes("F0", "database")
    assert len(done) == runs


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    broken = scenario.Scenario("F0", "broken", _lose, frozenset(), through_proxy=False, lease=1.0)
    needs = scenario.Scenario(
        "F20", "server", _nothing, frozenset({"server"}), through_proxy=False, lease=1.0
    )
    monkeypatch.setattr(scenario, "table", lambda: {"F0": broken, "F20": needs})

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["faults", *arguments])
        return command.main()

    assert run("--list") == 0
    assert capsys.readouterr().out == "F0   broken\nF20  server\n"
    assert run("F20", "--driver", "database") == 0
    assert "not run, database is no server" in capsys.readouterr().out
    assert run("F0", "--driver", "database", "--seed", "5", "--rounds", "2") == 1
    out = capsys.readouterr().out
    assert "F0 broken  seed 5: " in out
    assert "F0 broken  seed 6: " in out
    with pytest.raises(SystemExit):
        run("F99")
    assert "no such scenario: F99" in capsys.readouterr().err


def test_every_scenario_of_the_gate_is_there() -> None:
    table = scenario.table()
    assert list(table)[:4] == ["MIX", "D1", "F1", "F2"]
    elsewhere = [name for name, each in table.items() if each.backend("redis") is None]
    on_sql = ["F30s", "F34", "F35", "F36"]
    on_beanstalkd = ["F40", "F41", "F42", "F43", "F44", "F45"]
    on_rabbitmq = ["F46", "F47", "F48", "F49", "F50", "F51", "F52", "F58"]
    on_failover = ["F53", "F54", "F55", "F56", "F57"]
    on_sqs = ["F65", "F66"]
    assert sorted(elsewhere) == sorted(on_sql + on_beanstalkd + on_rabbitmq + on_failover + on_sqs)
    assert all(table[name].backend("postgres") is not None for name in on_sql)
    assert all(table[name].backend("beanstalkd") is not None for name in on_beanstalkd)
    assert all(table[name].backend("rabbitmq") is not None for name in on_rabbitmq)
    assert all(table[name].backend("failover") is not None for name in on_failover)
    assert all(table[name].backend("sqs") is not None for name in on_sqs)


def test_every_scenario_is_in_the_docs() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "inside" / "reliability.md"
    rows = [line.split("|")[1] for line in page.read_text().splitlines() if line.startswith("| ")]
    told = {name.strip() for row in rows for name in row.split(",")}
    assert {*scenario.table()} <= told


def test_only_calls_that_are_being_made_are_chosen_to_be_refused() -> None:
    with SqsServer() as server:
        server.calls.update(ReceiveMessage=2, SendMessageBatch=1, DeleteMessage=1, Other=1)
        server.refusals.append(("SendMessageBatch", Refusal("InternalError", "again")))
        before = Counter({"DeleteMessage": 1, "ReceiveMessage": 1})
        assert sqs._being_made(server, before) == ["ReceiveMessage"]


def test_each_run_of_a_schedule_has_a_number() -> None:
    times = [jobs.EPOCH + jobs.EVERY * turn for turn in (1, 2, 3)]
    assert [jobs.number_of(7, 80, at) for at in times] == [7, 87, 167]
