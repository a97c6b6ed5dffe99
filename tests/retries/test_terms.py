"""The terms of a watched retry, as people write them."""

from __future__ import annotations

import pytest

from qframe.exceptions import ConfigurationError
from qframe.retries.terms import RetryTerms


@pytest.mark.parametrize(
    ("text", "failed", "of", "total", "broken"),
    [
        ("failed > 20%", 1, 5, 1, False),
        ("failed > 20%", 2, 5, 2, True),
        ("failed >= 20%", 1, 5, 1, True),
        ("failed>0%", 0, 0, 0, False),
        ("failed > 12.5 %", 1, 8, 1, False),
        ("failed > 3", 9, 9, 3, False),
        ("failed > 3", 1, 50, 4, True),
        ("failed >= 3", 0, 50, 3, True),
        ("never", 50, 50, 10_000, False),
    ],
)
def test_a_condition(text: str, failed: int, of: int, total: int, broken: bool) -> None:
    assert RetryTerms.read(stop_if=text).rule.is_broken(failed, of, total) is broken


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"first": -1}, "first: takes 0 to 1,000 jobs, not -1"),
        ({"first": 1001}, "first: takes"),
        ({"then": "fast"}, "then: 'fast': takes a number"),
        ({"then": "0/s"}, "then: '0/s': takes a number"),
        ({"then": "1001/s"}, "then: '1001/s': takes 1/d to 1000/s"),
        ({"then": "0.5/d"}, "then: '0.5/d': takes 1/d to 1000/s"),
        ({"then": "1e3/s"}, "then: "),
        ({"then": f"{'9' * 400}/s"}, "takes 1/d to 1000/s"),
        ({"stop_if": "failed"}, "stop-if: takes"),
        ({"stop_if": "failed > 101%"}, "never holds"),
        ({"stop_if": "failed > 100%"}, "never holds"),
        ({"stop_if": "failed >= 0%"}, "stop-if: 'failed >= 0%' holds before any has failed"),
        ({"stop_if": "failed >= 0"}, "stop-if: 'failed >= 0' holds before any has failed"),
        ({"stop_if": "failed > nan%"}, "stop-if: takes"),
        ({"stop_if": "failed > 20%\0"}, "stop-if: takes"),
        ({"stop_if": "done > 20%; rm"}, "stop-if: takes"),
        ({"stop_if": ""}, "stop-if: takes"),
    ],
)
def test_wrong_terms_are_said(terms: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RetryTerms.read(**terms)  # type: ignore[arg-type] # wrong ones
    assert str(caught.value).startswith(why) or why in str(caught.value)


@pytest.mark.parametrize(
    ("first", "then", "most"),
    [(5, "10/s", 300), (5, "1/h", 10), (500, "1/s", 500), (5, "900/s", 1000)],
)
def test_how_many_may_have_no_outcome(first: int, then: str, most: int) -> None:
    assert RetryTerms.read(first, then).most_open == most
