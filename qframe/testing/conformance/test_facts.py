"""Facts: compared, set, raised, counted and listed; a refused step does nothing."""

from __future__ import annotations

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.facts import FactCopy
from qframe.contracts.step import (
    Add,
    Delete,
    Expect,
    Outcome,
    Push,
    Raise,
    Result,
    Set,
    Step,
    Unset,
)
from qframe.exceptions import BackendUnavailable
from qframe.testing.conformance.bench import Bench
from qframe.testing.conformance.steps import (
    QUEUE,
    apply,
    drained,
    needs,
    push,
    started,
    tried,
)

ODD_TEXTS = ["", " ", "\u00e9", "\u2028\U0001f600", "x" * 10_000, "\r\n\t\x7f", "'\"%\\", "1e5"]


@pytest.fixture(autouse=True)
def able(backend: Backend) -> None:
    needs(backend, Capability.FACTS)


@pytest.mark.parametrize("value", ODD_TEXTS, ids=ascii)
def test_a_value_is_read_as_it_was_written(backend: Backend, other: Backend, value: str) -> None:
    apply(backend, None, Set("key", value))
    assert other.read("none", "key", "key") == [None, value, value]
    apply(other, None, Expect("key", value))


@pytest.mark.parametrize(
    "key", ["k", "a:b", "\u00e9\U0001f600", "x" * 250, "%_*?[", " "], ids=ascii
)
def test_any_key_does(backend: Backend, key: str) -> None:
    apply(backend, None, Set(key, "value"))
    assert backend.read(key) == ["value"]
    assert backend.scan(key) == [(key, "value")]


def test_a_text_that_cannot_be_written_is_a_mistake_of_the_caller(backend: Backend) -> None:
    try:
        backend.apply(Step(None, Set("key", "\ud800")))
    except BackendUnavailable:
        pytest.fail("it looks as if the backend could not be reached")
    except Exception:  # noqa: BLE001 (any other will do)
        pass
    assert backend.read("other") == [None]


def test_keys_differ_by_case_and_by_spaces_behind(backend: Backend) -> None:
    apply(backend, None, Set("key", "1"), Set("KEY", "2"), Set("key ", "3"))
    assert backend.read("key", "KEY", "key ") == ["1", "2", "3"]


def test_a_fact_is_gone_after_its_time(bench: Bench, backend: Backend) -> None:
    apply(backend, None, Set("key", "value", bench.seconds(30)), Set("stays", "value"))
    bench.pass_time(25)
    assert backend.read("key") == ["value"]
    bench.pass_time(10)
    assert backend.read("key", "stays") == [None, "value"]
    assert backend.scan("") == [("stays", "value")]
    apply(backend, None, Expect("key", None))


def test_a_fact_that_is_written_again_has_a_new_time(bench: Bench, backend: Backend) -> None:
    apply(backend, None, Set("a", "1", bench.seconds(30)), Set("b", "1"))
    apply(backend, None, Set("a", "2"), Set("b", "2", bench.seconds(30)))
    bench.pass_time(40)
    assert backend.read("a", "b") == ["2", None]


def test_a_fact_is_copied_with_its_time_and_rank(bench: Bench, backend: Backend) -> None:
    apply(backend, None, Set("a", "1"), Set("b", "\u2028", 60), Raise("c", 2**40, "3", 90))
    bench.pass_time(10)
    plain, timed, ranked, none = backend.copy("a", "b", "c", "none")
    assert plain == FactCopy("a", "1", None)
    assert timed is not None
    assert (timed.value, timed.rank) == ("\u2028", None)
    assert timed.ttl == pytest.approx(60 - bench.seconds(10), abs=5)
    assert ranked is not None
    assert (ranked.value, ranked.rank, none) == ("3", 2**40, None)
    assert backend.copy() == []


def test_unset_removes_a_fact(backend: Backend) -> None:
    apply(backend, None, Set("key", "value"))
    apply(backend, None, Unset("key", "other"))
    assert backend.read("key") == ["value"]
    apply(backend, None, Unset("key", "value"), Unset("none"))
    assert backend.read("key") == [None]


def test_of_a_refused_step_the_first_key_is_named_and_what_it_holds(backend: Backend) -> None:
    apply(backend, None, Set("a", "1"), Set("b", "2"))
    result = tried(backend, None, Expect("a", "1"), Expect("b", "3"), Expect("c", "4"))
    assert result == Result(Outcome.REFUSED, "b", "2")
    assert tried(backend, None, Expect("c", "4")) == Result(Outcome.REFUSED, "c", None)
    assert tried(backend, None, Expect("a", None)) == Result(Outcome.REFUSED, "a", "1")


def test_a_refused_step_does_nothing_at_all(backend: Backend) -> None:
    push(backend, b"1")
    job = started(backend)
    result = tried(
        backend, job, Set("a", "1"), Push(QUEUE, b"2"), Add("n", 1), Expect("b", "2"), Delete()
    )
    assert result.outcome is Outcome.REFUSED
    assert backend.read("a", "n") == [None, None]
    assert not drained(backend)
    apply(backend, job, Delete())


def test_expectations_are_of_what_was_there_before_the_step(backend: Backend) -> None:
    apply(backend, None, Set("key", "1"), Expect("key", None))
    assert tried(backend, None, Unset("key"), Expect("key", None)).outcome is Outcome.REFUSED
    assert backend.read("key") == ["1"]


def test_operations_take_effect_in_their_order(backend: Backend) -> None:
    apply(backend, None, Set("key", "1"), Set("key", "2"), Unset("key", "1"))
    assert backend.read("key") == ["2"]


# -- that only move forward -----------------------------------------------------------------------


def test_a_raised_fact_moves_only_forward(backend: Backend) -> None:
    for rank, value in [(2, "b"), (1, "a"), (2, "b again"), (2**53 - 1, "z"), (3, "c")]:
        apply(backend, None, Raise("key", rank, value, 60))
        expected = {1: "b", 3: "z"}.get(rank, value)
        assert backend.read("key") == [expected]
    assert backend.scan("k") == [("key", "z")]
    apply(backend, None, Expect("key", "z"))


def test_the_time_of_a_raised_fact_begins_when_it_is_written(
    bench: Bench, backend: Backend
) -> None:
    apply(backend, None, Raise("key", 2, "b", bench.seconds(30)))
    bench.pass_time(25)
    apply(backend, None, Raise("key", 1, "a", bench.seconds(300)))
    bench.pass_time(10)
    assert backend.read("key") == [None]
    apply(backend, None, Raise("key", 1, "a", bench.seconds(30)))
    assert backend.read("key") == ["a"]


def test_a_raised_fact_can_be_unset(backend: Backend) -> None:
    apply(backend, None, Raise("key", 2, "b", 60))
    apply(backend, None, Unset("key", "other"))
    assert backend.read("key") == ["b"]
    apply(backend, None, Unset("key", "b"))
    apply(backend, None, Raise("key", 1, "a", 60))
    assert backend.read("key") == ["a"]


# -- counted --------------------------------------------------------------------------------------


def test_numbers_are_counted_up_and_down(backend: Backend) -> None:
    apply(backend, None, Add("n", 2), Add("n", 10**15), Add("n", -5))
    assert backend.read("n") == [str(10**15 - 3)]
    apply(backend, None, Add("m", -1))
    assert backend.read("m") == ["-1"]
    apply(backend, None, Expect("m", "-1"), Unset("m", "-1"))
    assert backend.read("m") == [None]


def test_the_time_of_a_number_begins_anew_each_time(bench: Bench, backend: Backend) -> None:
    apply(backend, None, Add("n", 1, bench.seconds(30)), Add("m", 1, bench.seconds(30)))
    bench.pass_time(25)
    apply(backend, None, Add("n", 1, bench.seconds(30)), Add("m", 1))
    bench.pass_time(25)
    assert backend.read("n", "m") == ["2", "2"]
    bench.pass_time(10)
    assert backend.read("n", "m") == [None, "2"]
    apply(backend, None, Add("n", 1, bench.seconds(30)))
    assert backend.read("n") == ["1"]


# -- listed ---------------------------------------------------------------------------------------


def test_facts_are_listed_by_key(backend: Backend) -> None:
    keys = ["b:1", "a", "b:2", "B", "b", "c", "b:\u00e9", "b:10"]
    apply(backend, None, *(Set(key, f"of {key}") for key in keys))
    listed = ["b:1", "b:10", "b:2", "b:\u00e9"]
    assert backend.scan("b:") == [(key, f"of {key}") for key in listed]
    assert [key for key, _ in backend.scan("")] == sorted(keys)
    assert [key for key, _ in backend.scan("b:", last_first=True)] == listed[::-1]
    assert backend.scan("none") == []


def test_facts_are_listed_in_pages(backend: Backend) -> None:
    keys = [f"k{number}" for number in range(7)]
    apply(backend, None, *(Set(key, "") for key in keys), Set("z", ""))
    found: list[str] = []
    while page := backend.scan("k", 3, found[-1] if found else ""):
        assert len(page) <= 3
        found += [key for key, _ in page]
    assert found == keys
    assert backend.scan("k", 3, "k44") == [("k5", ""), ("k6", "")]


def test_facts_are_listed_in_pages_from_the_last_one(backend: Backend) -> None:
    keys = [f"k{number}" for number in range(7)]
    apply(backend, None, *(Set(key, "") for key in keys), Set("a", ""), Set("z", ""))
    found: list[str] = []
    while page := backend.scan("k", 3, found[-1] if found else "", last_first=True):
        assert len(page) <= 3
        found += [key for key, _ in page]
    assert found == keys[::-1]
    assert backend.scan("k", 3, "k14", last_first=True) == [("k1", ""), ("k0", "")]
    for before, behind in (("a", "z"), ("b", "l")):  # what is no key of these
        assert [key for key, _ in backend.scan("k", 2, before)] == keys[:2]
        assert backend.scan("k", 2, behind) == backend.scan("k", 2, before, last_first=True) == []
        assert [key for key, _ in backend.scan("k", 1, behind, last_first=True)] == keys[-1:]
