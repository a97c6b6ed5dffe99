"""Reading any payload gives a dict that can be written again, or raises InvalidPayload."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qframe import InvalidPayload
from qframe.payload import envelope, model_keys

KEYS = (
    "uuid", "displayName", "job", "maxTries", "maxExceptions", "failOnTimeout", "backoff",
    "timeout", "retryUntil", "data", "createdAt", "id", "attempts", "delay", "unique", "debounce",
    "once", "group", "track", "trackedSince", "retried", "chain", "batch", "flow", "references",
    "tags", "priority", "celery", "ownTimeout", "failover", "call", "refused", "wire",
    "expiresAt", "signature", "sealed", "secret", "secrets", "models", "dataVersion",
)  # fmt: skip
INSIDE = ("key", "for", "until", "id", "batch", "uuid", "raw", "queue")


def written(value: object) -> str:
    """Give JSON in ASCII, a lone surrogate as an escape."""
    return json.dumps(value)


AWKWARD = st.sampled_from(
    [
        "\ud800", "x\udfff", "\udc00\ud800", "😀", "\0", "unique:\ud800", "unique:a\0", "handled",
        "started", "x" * 1_000_000, "", " ", "\u202e\x1b[31m", "1," * 10_000, "-inf", "nan", 1, -1,
        0.5, 2**63, 10**4000, -(10**400), True, None, [], {}, [[]], {"": {}},
    ]
).map(written)  # fmt: skip
NO_JSON = st.sampled_from(
    ["1e999", "-1e999", "9" * 400 + ".0", "9" * 5000, "NaN", "Infinity", "-Infinity",
     "[" * 600 + "]" * 600, '{"a":' * 600 + "1" + "}" * 600, "[" * 100_000 + "]" * 100_000,
     "[" * 500 + "]" * 500],
)  # fmt: skip
SMALL = st.one_of(AWKWARD, NO_JSON, st.text().map(written), st.floats().map(written))
VALUES = st.one_of(
    SMALL,
    st.lists(SMALL, max_size=3).map(lambda parts: f"[{','.join(parts)}]"),
    st.dictionaries(st.sampled_from(INSIDE), SMALL, max_size=4).map(
        lambda parts: "{" + ",".join(f'"{key}":{part}' for key, part in parts.items()) + "}"
    ),
)
PAYLOADS = st.dictionaries(
    st.one_of(st.sampled_from(KEYS), st.text(max_size=3)), VALUES, max_size=6
).map(lambda parts: "{" + ",".join(f"{written(k)}:{v}" for k, v in parts.items()) + "}")


def read(raw: str) -> dict[str, Any] | None:
    try:
        return envelope.parse(raw.encode())
    except InvalidPayload as error:
        said = str(error)
    assert said.isprintable()
    assert len(said) < 500
    return None


def written_again(message: dict[str, Any]) -> None:
    raw = json.dumps(message, ensure_ascii=False, allow_nan=False).encode()
    assert json.loads(raw) == message


@given(PAYLOADS)
def test_a_payload_that_is_read_can_be_written_again(raw: str) -> None:
    message = read(raw)
    if message is not None:
        written_again(message)


@given(PAYLOADS)
def test_its_readers_raise_nothing_but_invalid_payload(raw: str) -> None:
    message = read(raw) or {}
    assert envelope.display_name(message).isprintable()
    envelope.backoffs(message)
    model_keys.named(message)
    for key in message:
        envelope.number(message, key)
        name = envelope.text(message, key)
        assert name is None or (0 < len(name.encode()) <= 800 and "\0" not in name)
    with contextlib.suppress(InvalidPayload):
        envelope.job_name(message)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (r'"\ud800"', r"a lone surrogate \('\\ud800'\)"),
        (r'["x\uDFFF"]', r"a lone surrogate \('\\udfff'\)"),
        (r'{"\udc00\ud800":1}', "a lone surrogate"),
        ("1e999", "the number 1e999 is too large"),
        ("9" * 400 + ".5", "the number 9+ is too large"),
        ("-Infinity", "-Infinity is no number of JSON"),
        ("NaN", "NaN is no number of JSON"),
        ("[" * 513 + "]" * 513, "nested too deeply"),
        ('{"a":' * 513 + "1" + "}" * 513, "nested too deeply"),
    ],
    ids=["surrogate", "inside", "as a key", "1e999", "digits", "infinity", "nan", "deep", "deeper"],
)
def test_what_could_not_be_carried_on_is_refused_saying_why(
    key: str, value: str, said: str
) -> None:
    with pytest.raises(InvalidPayload, match=said) as raised:
        envelope.parse(f'{{"{key}":{value}}}'.encode())
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (r'"\ud83d\ude00"', "😀"),
        (r'"\\ud800"', r"\ud800"),
        (r'"a\u0000"', "a\0"),
        ("1e308", 1e308),
        ("9" * 400, 10**400 - 1),
        ("[" * 300 + "]" * 300, None),
        ('"' + "[" * 5000 + '"', "[" * 5000),
    ],
    ids=["emoji", "backslash", "nul", "1e308", "whole", "300 deep", "brackets"],
)
def test_what_only_looks_like_it_is_read(value: str, expected: object) -> None:
    message = envelope.parse(f'{{"job":{value}}}'.encode())
    assert expected is None or message["job"] == expected
    written_again(message)


@pytest.mark.parametrize("value", ["a", "é😀", "x" * 200])
def test_a_text_may_name_something(value: str) -> None:
    assert envelope.text({"uuid": value}, "uuid") == value


@pytest.mark.parametrize("value", [None, 7, True, [], {}, ["a"], "", "x" * 201, "a\0", "é\ud800"])
def test_what_no_backend_could_take_for_a_name_is_none(value: object) -> None:
    assert envelope.text({"uuid": value}, "uuid") is None
    assert envelope.text({}, "uuid") is None
