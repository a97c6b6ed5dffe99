from __future__ import annotations

import time

from tests.console.conftest import Shop
from tests.support.past import MAIL, remember, work


def test_a_forecast_is_a_line_for_each_queue(shop: Shop) -> None:
    said = shop.run("forecast", MAIL)
    assert (said.code, said.lines[0]) == (
        0, "database:mail: too little history: metrics of 0 whole days, 2 are needed",
    )  # fmt: skip
    assert said.lines[1].startswith("read at ")
    remember(shop.queue, time.time(), lambda _: 10.0)
    said = shop.run("forecast")
    assert said.code == 1
    assert "database:mail: arrives 10/min, no worker takes it: 1h behind at " in said.out
    assert "warning  database: the queue 'mail' will be behind: " in shop.run("check").out
    work(shop.queue, 1)
    said = shop.run("forecast", "--json", "--hours", "0.5", "--behind", "60")
    assert said.code == 0
    (mail,) = (each for each in said.rows if each["queue"] == MAIL)
    assert (mail["known"], mail["workers"], mail["behind_at"]) == (True, 1, None)


def test_a_wrong_question_is_one_line(shop: Shop) -> None:
    assert shop.run("forecast", "a b").code == 2
    assert "--hours must be above 0" in shop.run("forecast", "--hours", "0").only()
    assert "is not within 24" in shop.run("forecast", "--hours", "25").only()
    assert "--behind must" in shop.run("forecast", "--behind", "-1").only()
