"""`qframe retry --first ... --then ...` and `qframe retries`."""

from __future__ import annotations

import pytest

from qframe.retries.driver import RetryDriver
from tests.console.conftest import Shop


def test_retry_with_terms_goes_on_in_the_background(shop: Shop) -> None:
    for number in range(3):
        shop.keep(f"u-{number}")
    said = shop.run("retry", "all", "--first", 2, "--then", "10/s", "--stop-if", "failed > 20%")
    assert said.code == 0
    assert said.lines[0].startswith(
        "retrying 3 failed jobs in the background: 2 first, then 10/s, until failed > 20%; "
    )
    assert said.lines[1] == "no worker runs now: it begins when one does"
    assert shop.kept() == ["u-0", "u-1", "u-2"]
    RetryDriver(shop.manager).turn()
    assert shop.kept() == ["u-0"]
    (row,) = shop.run("retries", "--json").rows
    assert {
        key: row[key] for key in ("stage", "total", "retried", "open", "of", "first", "then")
    } == {
        "stage": "first", "total": 3, "retried": 2, "open": 2, "of": "all", "first": 2,
        "then": "10/s",
    }  # fmt: skip
    assert shop.run("retries").lines[1].split()[:5] == [row["retry"], "first", "3", "2", "2"]
    assert shop.run("retries", "--stop", row["retry"]).out == (
        f"stopped the retry {row['retry']}: 2 of 3 jobs were retried\n"
    )
    assert shop.run("retries", "--json").rows[0]["stage"] == "stopping"
    RetryDriver(shop.manager)  # another worker's; the first has the turn for a moment
    assert shop.kept() == ["u-0"]


@pytest.mark.parametrize(
    ("chosen", "of", "total"),
    [
        (["u-0", "u-2"], "u-0, u-2", 2),
        (["--where", "queue:mail"], "filter queue:mail", 1),
        (["all", "--queue", "mail"], "queue mail", 1),
        (["all", "--where", "error:Nothing"], "", 0),
    ],
)
def test_it_takes_what_retry_takes(shop: Shop, chosen: list[str], of: str, total: int) -> None:
    shop.keep("u-0")
    shop.keep("u-1", queue="mail")
    shop.keep("u-2")
    said = shop.run("retry", *chosen, "--then", "5/m")
    rows = shop.run("retries", "--json").rows
    assert [(row["of"], row["total"], row["stop_if"]) for row in rows] == (
        [(of, total, "failed > 20%")] if total else []
    )
    assert total or said.out == "no failed jobs to retry\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["retry", "all", "--first", "-1"], "first: takes 0 to 1,000 jobs, not -1"),
        (["retry", "all", "--first", "some"], "'some' is not a whole number"),
        (["retry", "all", "--then", "fast"], "then: 'fast': takes a number"),
        (["retry", "all", "--stop-if", "x\ny"], "stop-if: takes 'failed > 20%', 'failed > 50'"),
        (["retry", "all", "--stop-if", "failed >= 0%"], "holds before any has failed"),
        (["retry", "--first", "5"], "say which: uuids, all"),
        (["retries", "--stop", "x y"], "there is no retry 'x y'"),
        (["retries", "--limit", "-1"], "--limit must not be negative"),
    ],
)
def test_what_is_wrong_is_one_line(shop: Shop, words: list[str], why: str) -> None:
    said = shop.run(*words)
    assert said.code == 2
    assert why in said.only()


def test_without_any_there_is_one_line_or_an_empty_array(shop: Shop) -> None:
    assert shop.run("retries").out == "no retries\n"
    assert shop.run("retries", "--json").out == "[]\n"
