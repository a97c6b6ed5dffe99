"""run and travel with durable steps: values, sleeps, events, and what a failed assertion says."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from qframe import Queueable, Secret, dispatch
from qframe.testing import drain, embedded, fake, run, travel


class Checkout(Queueable):
    order: int

    def handle(self) -> str:
        charge = self.step("charge", lambda: 990)
        self.sleep("cool off", timedelta(days=3))
        paid = self.wait_for_event("paid", timeout=60)
        return f"{charge} paid by {paid}"


class Loops(Queueable):
    def handle(self) -> None:
        for page in range(self.cursor("pages", 0), 10):
            self.checkpoint("pages", page + 1)
            if page == self.attempts:
                raise ValueError("no such page")


@pytest.mark.parametrize("faked", [False, True])
def test_a_job_is_run_over_its_sleeps_and_events(faked: bool) -> None:
    if faked:
        with fake():
            goes_on()
    else:
        goes_on()


def goes_on() -> None:
    ran = run(Checkout(order=7))
    ran.step("charge").returned(990)
    ran.assert_sleeps(timedelta(days=3))
    assert (ran.outcome, ran.error, ran.waits_for) == ("given back", None, "")
    assert ran.sleeps == pytest.approx(3 * 86400, abs=60)
    ran = ran.resume()
    ran.assert_waits_for("paid")
    done = ran.resume(events={"paid": "card"})
    done.assert_done()
    assert done.result == "990 paid by card"
    done.step("charge").returned(990)


def test_kept_steps_and_sent_events_are_given() -> None:
    ran = run(Checkout(order=7), steps={"charge": 1}, events={"paid": "cash"}).resume()
    assert ran.result == "1 paid by cash"


def test_an_event_may_not_come() -> None:
    ran = run(Checkout(order=7)).resume().resume()
    ran.assert_failed()
    assert "paid" in str(ran.error)


def test_time_that_is_too_short_is_said_so() -> None:
    ran = run(Checkout(order=7))
    with pytest.raises(AssertionError, match="does not go on after 5 s"):
        ran.resume(after=5)
    with pytest.raises(AssertionError, match=r"expected Checkout\(order=7\) to sleep, after 60 s"):
        ran.assert_sleeps(60)
    with pytest.raises(AssertionError, match="it sleeps for 259200 s"):
        ran.assert_waits_for("paid")
    with pytest.raises(AssertionError, match="it has kept 990"):
        ran.step("charge").returned(991)
    with pytest.raises(AssertionError, match="it has kept nothing of it"):
        ran.step("book").returned(1)
    ran.step("book").not_done()
    with pytest.raises(AssertionError, match="neither sleeps nor waits"):
        run(Loops()).resume()


def test_a_cursor_is_a_step_too() -> None:
    ran = run(Loops())
    ran.assert_failed_with(ValueError)
    ran.step("pages").returned(2)
    run(Loops(), attempts=3).step("pages").returned(4)


def test_travel_makes_sleeping_jobs_ready(tmp_path: Path) -> None:
    with embedded(tmp_path) as queues:
        dispatch(Checkout(order=7)).send()
        assert drain().other == 1
        assert drain().other == 0
        with travel(timedelta(days=3)):
            assert drain().other == 1, "it waits for the event"
            with travel(61):
                (error,) = drain().errors
        assert "paid" in str(error)
        assert queues.connection().size() == 0
    with pytest.raises(ValueError, match="negative"), travel(-1):
        pass


class Card(BaseModel):
    number: Secret[str]
    until: date


class Charges(Queueable):
    def card(self) -> Card:
        return Card(number=Secret("4111"), until=date(2030, 1, 2))

    def handle(self) -> str:
        return self.step("card", self.card).number.reveal()


def test_a_secret_is_compared_and_not_shown() -> None:
    ran = run(Charges())
    ran.step("card").returned(Charges().card())
    with pytest.raises(AssertionError) as raised:
        ran.step("card").returned(Card(number=Secret("4222"), until=date(2030, 1, 2)))
    with pytest.raises(AssertionError) as not_done:
        ran.step("card").not_done()
    assert "4111" not in f"{raised.value} {not_done.value}"
    assert "4222" not in str(raised.value)
    kept = Card(number=Secret("4222"), until=date(2031, 1, 2))
    assert run(Charges(), steps={"card": kept}).result == "4222"


class Ship(Queueable):
    def handle(self) -> str:
        return f"with {self.previous.result}"


def test_what_the_link_before_returned_is_given() -> None:
    assert run(Ship(), previous={"receipt": 7}).result == "with {'receipt': 7}"
    assert run(Ship()).result == "with None"
    assert Ship().previous == ("", "", None)
