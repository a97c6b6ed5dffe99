"""Whatever a payload says of its features, its job can be pushed, started and ended."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qframe.contracts.status import State
from qframe.features.all import FEATURES
from qframe.features.base import End
from qframe.features.context import Prepared
from tests.features.harness import Bench
from tests.test_hostile_payloads import PAYLOADS, SMALL


def joined(parts: dict[str, str]) -> str:
    return "{" + ",".join(f'"{key}":{part}' for key, part in parts.items()) + "}"


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.one_of(st.sampled_from(['"unique:a"', '"debounce:a"', '"once:a"']), SMALL),
        "for": st.one_of(st.just("60"), SMALL),
        "until": st.one_of(st.sampled_from(['"handled"', '"started"']), SMALL),
    },
).map(joined)
PLACES = st.fixed_dictionaries(
    {},
    optional={
        "id": st.one_of(st.sampled_from(['"a"', '"b"']), SMALL),
        "n": st.one_of(st.just("0"), SMALL),
        "batch": st.one_of(st.just("true"), SMALL),
    },
).map(lambda parts: "{" + ",".join(f'"{key}":{part}' for key, part in parts.items()) + "}")
NEARLY = st.fixed_dictionaries(
    {"uuid": st.one_of(st.just('"a"'), SMALL)},
    optional={
        "job": SMALL, "displayName": SMALL, "createdAt": SMALL, "unique": FIELDS,
        "debounce": FIELDS, "once": FIELDS, "group": SMALL,
        "track": st.one_of(st.just("60"), SMALL), "trackedSince": SMALL, "retried": SMALL,
        "priority": SMALL, "chain": PLACES, "batch": PLACES,
    },
).map(joined)  # fmt: skip


def lives(raw: bytes, state: State) -> None:
    bench = Bench(FEATURES)
    bench.context.push(bench.context.pushing(Prepared("", raw, "q", 0)))
    job = bench.held()
    job.skip_reason()
    (result,) = bench.backend.apply(job.start_plan())
    assert result.applied
    job.progress(0.5, "half")
    job.look()
    job.renew()
    job.settle(End(state, error=ValueError("boom") if state is State.FAILED else None))
    assert job.raw_body == raw
    for text in (job.name, job.uuid, job.record_uuid):
        assert "\0" not in text
        assert text.encode()
    assert (bench.reserve() is not None) == (state in {State.RELEASED, State.WAITING})


STATES = st.sampled_from([State.COMPLETE, State.FAILED, State.RELEASED, State.WAITING])


@given(st.one_of(NEARLY, PAYLOADS), STATES)
@settings(max_examples=300)
def test_a_job_lives_whatever_its_payload_says(raw: str, state: State) -> None:
    lives(raw.encode(), state)


@given(st.binary(max_size=100), STATES)
def test_a_job_lives_whatever_its_bytes_are(raw: bytes, state: State) -> None:
    lives(raw, state)


@pytest.mark.parametrize("until", [[], {}, None, 7])
def test_a_lock_until_something_else_is_none(until: object) -> None:
    said = {"key": "unique:a", "for": 60, "until": until}
    lives(json.dumps({"uuid": "a", "unique": said}).encode(), State.COMPLETE)
