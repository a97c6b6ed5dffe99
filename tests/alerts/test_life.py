"""The life of an alert, on the memory backend by a clock of the test's own."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from qframe.alerts import checker, life
from qframe.alerts.channel import Channel, NotSent
from qframe.alerts.checker import Checker, alerts_on
from qframe.alerts.life import AlertRecords, AlertTerms, Evaluation, Notification, RuleFinding
from qframe.config import AlertSettings
from qframe.contracts.step import Result, Set, Step
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable
from qframe.rules import Rule, parse
from tests.support.clock import Clock
from tests.support.process import wait_for

START = 1_800_000_000.0
WAITS = "wait > 60s on mail"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(START)
    stand_in = SimpleNamespace(time=clock, monotonic=time.monotonic)
    monkeypatch.setattr(checker, "time", stand_in)
    return clock


class Away(MemoryBackend):
    """Answers, or not."""

    away = False

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], object]] = []
        """What happens just before the state is written."""

    def apply(self, *steps: Step) -> list[Result]:
        self._answer()
        written = [each.key for step in steps for each in step.operations if isinstance(each, Set)]
        if self.meanwhile and checker._STATE in written:
            self.meanwhile.pop()()
        return super().apply(*steps)

    def read(self, *keys: str) -> list[str | None]:
        self._answer()
        return super().read(*keys)

    def _answer(self) -> None:
        if self.away:
            raise BackendUnavailable("away")


class Told(Channel):
    """Notes what it is told, and does not take it as long as it fails."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.fails = 0
        self.hold: Callable[[], None] = lambda: None

    def send(self, telling: Notification) -> None:
        self.hold()
        if self.fails:
            self.fails -= 1
            raise NotSent("not now")
        self.heard.append((telling.event, telling.alert.text))
        self.ids.append(telling.id)

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.heard]


class Scene:
    """What is wrong, who is told, and those who look."""

    def __init__(self, clock: Clock, **settings: object) -> None:
        self.clock = clock
        self.backend = Away()
        self.store = Store(self.backend)
        self.settings = AlertSettings.model_validate({"rules": [WAITS], **settings})
        self.told = Told()
        self.wrong: list[str] = []
        self.settled = 0
        self.unknown = False

    def look(self, rules: Sequence[Rule]) -> Evaluation:
        seen = Evaluation()
        for rule in rules:
            if self.unknown:
                seen.unknown[rule.text, "c"] = "away"
            else:
                seen.found += [
                    RuleFinding(rule, "c", each, 61, f"{each} waits", self.settle)
                    for each in self.wrong
                ]
        return seen

    def settle(self) -> None:
        self.settled += 1

    def another(self) -> Checker:
        return Checker(self.store, self.settings, self.look, {"told": self.told})

    def let(self, one: Checker, seconds: float = 10.0, times: int = 1) -> None:
        """Let time go by, and one look, and what is told be taken."""
        for _ in range(times):
            self.clock.now += seconds
            one.check()
            wait_for(lambda: one._ends.qsize() == one._running, "what is told")
            one.check()


@pytest.fixture
def scene(clock: Clock) -> Scene:
    return Scene(clock)


def test_it_is_told_once_and_when_it_is_over(scene: Scene) -> None:
    one = scene.another()
    scene.let(one)
    assert scene.told.heard == []
    scene.wrong = ["mail"]
    scene.let(one, times=20)
    assert scene.told.heard == [("raised", "mail waits")]
    (on,) = alerts_on(scene.store)
    assert (on.what, on.rule, on.since) == ("mail", WAITS, START + 20)
    scene.wrong = []
    scene.let(one, 10, times=6)
    assert scene.told.events == ["raised"], "over only when it has been well for a minute"
    scene.let(one)
    assert scene.told.events == ["raised", "resolved"]
    assert alerts_on(scene.store) == []
    scene.wrong = ["mail"]
    scene.let(one, times=3)
    assert scene.told.events == ["raised", "resolved", "raised"]
    assert len(set(scene.told.ids)) == 3


def test_it_does_not_flap(scene: Scene) -> None:
    one = scene.another()
    for number in range(60):
        scene.wrong = ["mail"] if number % 4 else []
        scene.let(one)
    assert scene.told.events == ["raised"]


def test_it_is_told_again_where_that_is_wanted_and_not_when_over(clock: Clock) -> None:
    scene = Scene(clock, remind=300, resolved=False)
    one = scene.another()
    scene.wrong = ["mail"]
    scene.let(one, 10, times=65)
    assert scene.told.events == ["raised", "reminder", "reminder"]
    scene.wrong = []
    scene.let(one, 10, times=20)
    assert scene.told.events == ["raised", "reminder", "reminder"]
    assert alerts_on(scene.store) == []


def test_what_has_to_last_is_told_when_it_has(clock: Clock) -> None:
    scene = Scene(clock, rules=[f"{WAITS} for 2m"])
    one = scene.another()
    scene.wrong = ["mail"]
    scene.let(one, 10, times=6)
    scene.wrong = []
    scene.let(one)
    scene.wrong = ["mail"]
    scene.let(one, 10, times=12)
    assert scene.told.events == [], "it began anew"
    assert scene.settled == 0
    assert alerts_on(scene.store) == []
    scene.let(one, 10, times=2)
    assert scene.told.events == ["raised"]


def test_what_is_not_known_is_not_over(scene: Scene) -> None:
    one = scene.another()
    scene.wrong = ["mail"]
    scene.let(one)
    scene.wrong, scene.unknown = [], True
    scene.let(one, 10, times=100)
    assert scene.told.events == ["raised"]
    scene.unknown = False
    scene.let(one, 10, times=6)
    assert scene.told.events == ["raised"]
    scene.let(one, 10, times=2)
    assert scene.told.events == ["raised", "resolved"]


def test_each_subject_is_told_by_itself(scene: Scene) -> None:
    one = scene.another()
    scene.wrong = ["mail", "sms"]
    scene.let(one, times=4)
    assert sorted(scene.told.heard) == [("raised", "mail waits"), ("raised", "sms waits")]


def test_one_of_several_looks_and_the_next_knows_what_was_told(scene: Scene) -> None:
    first, second = scene.another(), scene.another()
    scene.wrong = ["mail"]
    for _ in range(10):
        scene.let(first)
        scene.let(second, 0)
    assert scene.told.events == ["raised"]
    first.leave()
    scene.wrong = []
    scene.let(second, 10, times=9)
    assert scene.told.events == ["raised", "resolved"]


def test_one_that_was_stopped_and_goes_on_tells_nothing(scene: Scene) -> None:
    """It had read the state, and found what is wrong, when another took its turn and told."""
    first, second = scene.another(), scene.another()
    scene.let(first)
    scene.wrong = ["mail"]
    look = first._look

    def stopped(rules: Sequence[Rule]) -> Evaluation:
        seen = look(rules)
        scene.store.delete(checker._TURN)  # its turn ran out
        scene.let(second)
        return seen

    first._look = stopped
    scene.let(first)
    scene.let(second, 10, times=3)
    assert scene.told.events == ["raised"]


@pytest.mark.parametrize("still_wrong", [True, False])
def test_one_that_is_stopped_as_it_writes_tells_nothing_when_another_has_the_turn(
    scene: Scene, still_wrong: bool
) -> None:
    """It had asked whether it was its turn; then that ran out, and another looked."""
    first, second = scene.another(), scene.another()
    scene.let(first)

    def stopped() -> None:
        scene.wrong = scene.wrong if still_wrong else []
        scene.store.delete(checker._TURN)
        scene.let(second)

    scene.wrong = ["mail"]
    scene.backend.meanwhile.append(stopped)
    scene.let(first)
    assert not scene.backend.meanwhile
    assert scene.settled == still_wrong, "by who has written it"
    scene.let(second, 60, times=3)
    assert scene.told.events == ["raised"] * still_wrong


def test_an_end_that_another_notes_as_this_one_writes_is_kept(scene: Scene) -> None:
    """Else it would be taken for one that never ended, and be told again."""
    first, second = scene.another(), scene.another()
    scene.wrong = ["mail"]
    scene.clock.now += 10
    first.check()
    wait_for(lambda: first._ends.qsize() == 1, "what is told")
    scene.store.delete(checker._TURN)
    scene.wrong = ["mail", "sms"]
    scene.backend.meanwhile.append(first.check)  # which notes it
    scene.let(second)
    assert not scene.backend.meanwhile
    scene.let(second, 60, times=3)
    assert sorted(scene.told.heard) == [("raised", "mail waits"), ("raised", "sms waits")]


def test_one_that_was_stopped_before_it_told_leaves_it_to_the_next(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else tells when it would have ended, if it had not been stopped."""
    first, second = scene.another(), scene.another()
    scene.wrong = ["mail"]
    minutes = itertools.count()
    monkeypatch.setattr(checker, "suspending_clock", lambda: 60.0 * next(minutes))
    first._store = Store(scene.backend)
    scene.clock.now += 10
    first.check()
    wait_for(lambda: first._ends.qsize() == 1, "what is not told")
    assert scene.told.events == []
    monkeypatch.undo()
    monkeypatch.setattr(
        checker, "time", SimpleNamespace(time=scene.clock, monotonic=time.monotonic)
    )
    scene.store.delete(checker._TURN)
    scene.let(second)
    assert scene.told.events == []
    scene.let(second, 60, times=2)
    assert scene.told.events == ["raised"]


def test_what_is_not_taken_is_told_again_and_logged(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    one = scene.another()
    scene.wrong, scene.told.fails = ["mail"], 3
    with caplog.at_level(logging.WARNING, logger="qframe"):
        scene.let(one, 10, times=12)
    assert scene.told.events == ["raised"]
    assert len([each for each in caplog.records if "not now" in each.getMessage()]) == 3


def test_what_nobody_takes_is_given_up_and_said(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    one = scene.another()
    scene.wrong, scene.told.fails = ["mail"], 10**6
    scene.let(one, 100, times=40)
    assert "was never sent (told): mail waits" in caplog.text
    state = AlertRecords.read(scene.store.get(checker._STATE)[0])
    assert state.notifications == []


def test_one_who_takes_long_holds_up_no_look(scene: Scene) -> None:
    import threading

    go_on = threading.Event()
    one = scene.another()
    scene.wrong, scene.told.hold = ["mail"], lambda: (go_on.wait(60), None)[1]
    scene.clock.now += 10
    one.check()
    scene.wrong = []
    began = time.monotonic()
    for _ in range(20):
        scene.clock.now += 1
        one.check()
    assert time.monotonic() - began < 30
    assert scene.told.events == []
    go_on.set()
    wait_for(lambda: scene.told.events == ["raised"], "the slow one")


def test_who_had_the_turn_tells_of_a_store_that_does_not_answer(clock: Clock) -> None:
    scene = Scene(clock, rules=["connection c down"])
    one, other = scene.another(), scene.another()
    scene.let(one)
    scene.let(other, 0)
    scene.backend.away, scene.wrong = True, ["c"]
    for _ in range(5):
        scene.let(one)
        scene.let(other, 0)
    assert scene.told.events == ["raised"]
    scene.backend.away, scene.wrong = False, []
    scene.let(one, 10, times=2)
    assert [each.what for each in alerts_on(scene.store)] == ["c"], "it is written now"
    for _ in range(8):
        scene.let(one)
        scene.let(other, 0)
    assert scene.told.events == ["raised", "resolved"]


def test_a_rule_that_is_gone_is_forgotten_after_a_while(scene: Scene) -> None:
    one = scene.another()
    scene.wrong = ["mail"]
    scene.let(one)
    one.leave()
    scene.settings = AlertSettings(rules=["dead worker"])
    scene.wrong = []
    other = scene.another()
    scene.let(other, 10, times=10)
    assert len(alerts_on(scene.store)) == 1, "another version may have the rule"
    scene.let(other, 100, times=7)
    assert alerts_on(scene.store) == []
    assert scene.told.events == ["raised"]


def test_however_much_is_wrong_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "_MOST", 10)
    monkeypatch.setattr(life, "_MOST_TELLINGS", 30)
    state, rule = AlertRecords(), parse(WAITS)
    terms = AlertTerms({WAITS}, {"a": 30, "b": 30}, calm=0)
    for number in range(12):
        found = [RuleFinding(rule, "c", f"q{number}.{each}", 61, "x" * 5000) for each in range(15)]
        for wrong in (found, []):  # each is raised, and over
            state.look(Evaluation(wrong), terms, START)
            state.begin(terms, START)
            assert len(state.alerts) == min(life._MOST, len(wrong))
            assert len(state.notifications) <= life._MOST_TELLINGS
    assert len(state.model_dump_json()) < 1000 * life._MOST_TELLINGS


def test_a_state_that_another_version_wrote_is_as_nothing() -> None:
    assert AlertRecords.read('{"alerts": 7}') == AlertRecords()
    assert AlertRecords.read("{") == AlertRecords()
