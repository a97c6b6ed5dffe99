"""Debounced jobs, on the memory backend."""

from __future__ import annotations

import dataclasses

import pytest

from qframe.contracts.status import State
from qframe.features.debounce import DebounceFeature
from tests.features.harness import Bench

SAID = {"key": "debounce:app.Demo:1", "for": 600}


@pytest.fixture
def bench() -> Bench:
    return Bench([DebounceFeature()])


def test_the_last_dispatch_is_run_and_the_others_are_not_needed(bench: Bench) -> None:
    for uuid in ("a", "b"):
        bench.push(uuid, debounce=SAID)
    first, last = bench.held(), bench.held()
    assert first.skip_reason() == "debounced: a later dispatch took its place"
    assert last.skip_reason() is None


def test_one_whose_fact_is_gone_is_run(bench: Bench) -> None:
    bench.push("a", debounce=SAID)
    bench.backend.timing.skew += 601
    assert bench.held().skip_reason() is None


def test_a_failed_one_is_retried_only_where_no_later_one_is_known(bench: Bench) -> None:
    bench.push("a", debounce=SAID)
    bench.run(state=State.FAILED)
    retried = dataclasses.replace(bench.pushing("a", debounce=SAID), retried=True)
    assert bench.context.push(retried) == ""
    bench.run(state=State.FAILED)
    bench.push("b", debounce=SAID)
    assert bench.context.push(retried) == "b"
    assert bench.held().skip_reason() is None
    assert bench.reserve() is None
    bench.backend.timing.skew += 601
    assert bench.context.push(retried) == ""


@pytest.mark.parametrize("wrong", [None, 7, {"key": 1}, {"key": "unique:x", "for": 5}])
def test_what_it_could_not_have_written_is_ignored(bench: Bench, wrong: object) -> None:
    bench.push("a", debounce=wrong)
    assert bench.held().skip_reason() is None
