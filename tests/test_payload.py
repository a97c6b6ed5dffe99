from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from qframe import (
    InvalidArguments,
    InvalidJob,
    InvalidPayload,
    PayloadTooLarge,
    Queueable,
    QueueManager,
    dispatch,
    foreign,
    manager,
)
from qframe.jobs.foreign import Foreign
from qframe.payload import envelope


class Holds(Queueable):
    """Carries anything."""

    value: Any = None

    def handle(self) -> None:
        pass


class SendWelcome(Queueable):
    user_id: int

    tries = 5
    timeout = 60
    backoff = (1, 5, 10)

    def handle(self) -> None:
        pass


class Everything(Queueable):
    queue = "all"
    delay = 3
    tries = 0
    max_exceptions = 2
    backoff = 1234567
    timeout = 0.5
    fail_on_timeout = True
    retry_until = datetime(2030, 1, 1, tzinfo=UTC)
    expires = datetime(2031, 1, 1, tzinfo=UTC)
    job_name = "App\\Jobs\\Everything"
    display_name = "all of it"
    tags = ("a", "b")

    def handle(self) -> None:
        pass


def arrived(job: Queueable) -> Any:
    """Give the job as a worker makes it from the bytes."""
    message = envelope.parse(envelope.encode(envelope.create(job)))
    return type(job).from_data(message["data"])


# -- the envelope -------------------------------------------------------------------------------


def test_the_payload_is_laravels_key_by_key_and_in_its_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1732060800.75)
    message = envelope.create(SendWelcome(user_id=7))
    identity = uuid.UUID(message["uuid"])
    assert (identity.version, identity.variant) == (7, uuid.RFC_4122)
    assert envelope.encode(message).decode() == (
        f'{{"uuid":"{identity}",'
        '"displayName":"tests.test_payload.SendWelcome","job":"tests.test_payload.SendWelcome",'
        '"maxTries":5,"maxExceptions":null,"failOnTimeout":false,"backoff":"1,5,10",'
        '"timeout":60,"retryUntil":null,"data":{"user_id":7},"createdAt":1732060800,'
        f'"id":"{identity}","attempts":0,"delay":null}}'
    )


def test_each_payload_has_a_uuid_of_its_own() -> None:
    assert len({envelope.create(Holds())["uuid"] for _ in range(1000)}) == 1000


class Named(Queueable):
    name: str = "x"
    timeout = 2.5

    def display_name(self) -> str:
        return f'name "{self.name}" \u2028é'

    def handle(self) -> None:
        pass


@pytest.mark.parametrize(
    "job",
    [
        Holds(),
        Holds(value={"a": [1, 2**60, 0.1, None, 'é😀\u2028\\"'], "": {}}),
        SendWelcome(user_id=7),
        Everything(),
        Named(),
        Named(name="y"),
        Named(name="\x00"),
        foreign("App\\Import@handle", []),
        foreign("App\\Import@handle", {"n": 1.0}, tries=3, retry_until=60, tags=["t"]),
    ],
)
def test_an_envelope_has_the_bytes_of_its_payload(
    job: Queueable | Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    monkeypatch.setattr(time, "time", lambda: 1732060800.75)
    made = envelope.Envelope(envelope.create(job))
    assert made.raw == envelope.encode(envelope.create(job))
    assert made.payload == envelope.create(job)
    assert made.uuid == made.payload["uuid"]


def test_options_changed_on_a_class_are_in_its_next_envelope(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert envelope.Envelope(envelope.create(Named())).payload["timeout"] == 2.5
    monkeypatch.setattr(Named, "timeout", 7)
    assert envelope.Envelope(envelope.create(Named())).payload["timeout"] == 7


def test_an_envelope_names_the_field_that_cannot_be_sent() -> None:
    with pytest.raises(InvalidJob, match=r"Holds\.value"):
        envelope.Envelope(envelope.create(Holds(value="\ud800")))
    with pytest.raises(InvalidJob, match=r"Holds\.value"):
        envelope.Envelope(envelope.create(Holds(value=math.nan)))


class Measure(BaseModel):
    celsius: float


class Measured(Queueable):
    Infinity: str
    measure: Measure

    def handle(self) -> None:
        pass


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_of_json_is_found_inside_a_model(number: float) -> None:
    with pytest.raises(InvalidJob, match=r"Measured\.measure"):
        envelope.Envelope(envelope.create(Measured(Infinity="", measure=Measure(celsius=number))))


def test_its_name_is_text_like_any_other() -> None:
    job = Measured(Infinity="NaN", measure=Measure(celsius=0.5))
    data = json.loads(envelope.Envelope(envelope.create(job)).raw)["data"]
    assert data == {"Infinity": "NaN", "measure": {"celsius": 0.5}}


def test_every_option_is_in_the_payload() -> None:
    message = envelope.create(Everything())
    for key in ("uuid", "id", "createdAt"):
        del message[key]
    assert message == {
        "displayName": "all of it",
        "job": "App\\Jobs\\Everything",
        "maxTries": 0,
        "maxExceptions": 2,
        "failOnTimeout": True,
        "backoff": "1234567",
        "timeout": 0.5,
        "retryUntil": 1893456000.0,
        "data": {},
        "attempts": 0,
        "delay": None,
        "expiresAt": 1924992000.0,
        "tags": ["a", "b"],
    }


def test_what_is_not_said_by_the_class_is_null() -> None:
    message = envelope.create(Holds())
    absent = ("maxTries", "maxExceptions", "backoff", "timeout", "retryUntil", "delay")
    assert [message[key] for key in absent] == [None] * 6
    assert "expiresAt" not in message
    assert "tags" not in message


@pytest.mark.parametrize(
    ("backoff", "wire"),
    [
        (None, None),
        (0, "0"),
        (5, "5"),
        (5.0, "5"),
        (0.25, "0.25"),
        ((1, 5, 10), "1,5,10"),
        ([1, 2.5], "1,2.5"),
        (1234567, "1234567"),
        ((86400 * 30, 10_000_001), "2592000,10000001"),
    ],
)
def test_backoff_is_written_as_laravel_does(backoff: Any, wire: str | None) -> None:
    job_class = type("WithBackoff", (Holds,), {"backoff": backoff, "__module__": __name__})
    message = envelope.create(job_class())
    assert message["backoff"] == wire
    expected = None if backoff is None else [*backoff] if wire and "," in wire else [backoff]
    assert envelope.backoffs(message) == expected


@pytest.mark.usefixtures("fresh")
def test_the_delay_of_a_dispatch_is_in_its_payload() -> None:
    queue = manager.default().connection()
    dispatch(Holds()).delay(10).send()
    dispatch(Holds()).delay(timedelta(milliseconds=1500)).send()
    found = sorted(each.raw_body for each in queue.backend.search("default", b""))
    assert sorted(json.loads(raw)["delay"] for raw in found) == [1.5, 10]
    assert any(raw.endswith(b'"delay":10}') for raw in found)


# -- what survives ------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=20,
)


def exactly(left: object, right: object) -> bool:
    """Compare values and types, all the way down, and the sign of zero."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return [*left] == [*right] and all(exactly(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(exactly, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return left == right


@given(JSON)
def test_any_json_value_arrives_exactly_as_it_was(value: object) -> None:
    assert exactly(arrived(Holds(value=value)).value, value)


@pytest.mark.parametrize(
    "value",
    [2**60, -(2**200), 0.1, 1e300, -0.0, 5e-324, 1.0, [], {}, [[]], [{}], {"": []}, "", "😀", "\0",
     "\u2028", "e\u0301", "ﬁ", None, True, {"a": None}],
)  # fmt: skip
def test_values_that_php_or_lua_would_damage_survive(value: object) -> None:
    assert exactly(arrived(Holds(value=value)).value, value)


class Colour(enum.Enum):
    RED = "red"


class Address(BaseModel):
    street: str
    since: date | None = None


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5


class Typed(Queueable):
    moment: datetime = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    naive: datetime = datetime(2026, 1, 1)  # noqa: DTZ001 (a field may hold one)
    span: timedelta = timedelta(days=1, microseconds=1)
    price: Decimal = Decimal("0.10")
    identity: uuid.UUID = uuid.UUID(int=5)
    colour: Colour = Colour.RED
    address: Address = Address(street="Weg 1", since=date(2020, 2, 29))
    point: Point = dataclasses.field(default_factory=lambda: Point(1))
    points: list[Point] = []  # noqa: RUF012 (each job gets its own)
    numbers: set[int] = {1, 2}  # noqa: RUF012 (each job gets its own)
    pair: tuple[int, str] = (1, "a")
    by_number: dict[int, str] = {1: "a"}  # noqa: RUF012 (each job gets its own)
    path: PurePosixPath = PurePosixPath("/tmp/x")
    raw: bytes = b"text"
    either: int | str = "1"
    ratio: float = 1

    def handle(self) -> None:
        pass


def test_typed_fields_come_back_as_what_they_were() -> None:
    job = Typed(points=[Point(1, 2.0)])
    assert arrived(job) == job


@given(
    st.builds(
        Typed,
        moment=st.datetimes(timezones=st.just(UTC)),
        either=st.integers() | TEXT,
        numbers=st.sets(st.integers()),
        ratio=FLOATS,
        price=st.decimals(allow_nan=False, allow_infinity=False),
        by_number=st.dictionaries(st.integers(), TEXT),
    )
)
def test_typed_fields_come_back_whatever_they_hold(job: Typed) -> None:
    assert arrived(job) == job


# -- what is refused ----------------------------------------------------------------------------


class _Own:
    pass


REFUSED: Mapping[str, object] = {
    "nan": math.nan,
    "inf": math.inf,
    "nested inf": [{"a": -math.inf}],
    "set": {1},
    "frozenset": frozenset([1]),
    "tuple": (1, 2),
    "nested tuple": {"a": [(1,)]},
    "bytes": b"abc",
    "no text": b"\xff",
    "int key": {1: "a"},
    "None key": {"a": {None: 1}},
    "bool key": {True: 1},
    "datetime": datetime(2026, 1, 1, tzinfo=UTC),
    "Decimal": Decimal("0.1"),
    "UUID": uuid.UUID(int=1),
    "enum": Colour.RED,
    "int enum": enum.IntEnum("Small", "ONE").ONE,  # type: ignore[attr-defined]
    "model": Address(street="x"),
    "dataclass": Point(1),
    "own": _Own(),
    "function": exactly,
    "surrogate": "\ud800",
    "nested surrogate": [{"a": "x\udfff"}],
    "surrogate as a key": {"\ud800": 1},
    "secret": SecretStr("hunter2"),
    "text of its own kind": type("Text", (str,), {})("x"),
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_what_json_would_change_is_refused_at_dispatch_naming_the_field(value: object) -> None:
    with pytest.raises(InvalidJob, match=r"Holds\.value") as raised:
        dispatch(Holds(value=value))
    message = str(raised.value)
    assert message.isprintable()
    assert "hunter2" not in message
    assert manager.default().connection().size() == 0


class Ratio(Queueable):
    ratio: float = 0
    ratios: list[float] = []  # noqa: RUF012 (each job gets its own)
    point: Point | None = None
    secret: SecretStr = SecretStr("")

    def handle(self) -> None:
        pass


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities_are_refused_in_typed_fields_too(number: float) -> None:
    with pytest.raises(InvalidJob, match=r"Ratio\.ratio\b"):
        dispatch(Ratio(ratio=number))
    with pytest.raises(InvalidJob, match=r"Ratio\.ratios\b"):
        dispatch(Ratio(ratios=[1.0, number]))
    with pytest.raises(InvalidJob, match=r"Ratio\.point\b"):
        dispatch(Ratio(point=Point(1, number)))


@pytest.mark.usefixtures("fresh")
def test_a_whole_number_may_be_put_into_a_float_field_later() -> None:
    job = Ratio()
    job.ratio = 3
    dispatch(job).send()
    job.ratio = 2**60 + 1  # no float can hold it
    with pytest.raises(InvalidJob, match=r"Ratio\.ratio"):
        dispatch(job)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("field", "value"), [("user_id", "7"), ("user_id", 7.0), ("user_id", True), ("user_id", None)]
)
def test_a_field_that_was_given_a_wrong_value_later_is_refused(field: str, value: object) -> None:
    job = SendWelcome(user_id=7)
    setattr(job, field, value)
    with pytest.raises(InvalidJob, match=rf"SendWelcome.*{field}"):
        dispatch(job)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("depth", [300, 5_000, 100_000])
def test_values_nested_too_deeply_are_refused(depth: int) -> None:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    with pytest.raises(InvalidJob, match=r"Holds.*(deep|depth)"):
        dispatch(Holds(value=value))


@pytest.mark.usefixtures("fresh")
def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidJob, match=r"Holds\.value"):
        dispatch(Holds(value=value))


# -- its size -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh")
def test_an_argument_of_10_mb_is_refused_with_both_numbers() -> None:
    with pytest.raises(PayloadTooLarge, match=r"10,000,\d{3} bytes.*1,000,000.*max_payload"):
        dispatch(Holds(value="x" * 10_000_000))
    assert manager.default().connection().size() == 0


def test_max_payload_is_counted_in_bytes_and_can_be_configured(fresh: Path) -> None:
    size = len(envelope.encode(envelope.create(Holds(value="é" * 100))))
    for limit, taken in ((size, True), (size - 1, False)):
        connections = {"database": {"max_payload": limit}}
        manager.use(QueueManager({"root": str(fresh), "connections": connections}))
        if taken:
            dispatch(Holds(value="é" * 100)).send()
        else:
            with pytest.raises(PayloadTooLarge, match=rf"{size} bytes.*takes {limit} "):
                dispatch(Holds(value="é" * 100))


def test_raw_bytes_and_bulk_are_measured_too(fresh: Path) -> None:
    settings = {"root": str(fresh), "connections": {"database": {"max_payload": 500}}}
    queue = QueueManager(settings).connection()
    with pytest.raises(PayloadTooLarge):
        queue.push_raw(b"x" * 501)
    with pytest.raises(PayloadTooLarge):
        queue.bulk([Holds(), Holds(value="x" * 500)])
    assert queue.size() == 0


# -- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b'{"job": ', "not JSON"),
        (b"\xff\xfe", r"not UTF-8 \(byte 0\)"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"[1]", "not a JSON object but list"),
        (b'"text"', "not a JSON object but str"),
        (b"null", "NoneType"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_bytes_that_are_no_payload_are_refused_in_one_line(raw: bytes, said: str) -> None:
    with pytest.raises(InvalidPayload, match=said) as raised:
        envelope.parse(raw)
    assert str(raised.value).isprintable()


@given(st.binary(max_size=60))
def test_reading_raises_nothing_else(raw: bytes) -> None:
    try:
        message = envelope.parse(raw)
    except InvalidPayload:
        return
    for key in message:
        envelope.number(message, key)
    envelope.display_name(message)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("app.jobs.SendWelcome", "app.jobs.SendWelcome"),
        ("app.jobs.SendWelcome@handle", "app.jobs.SendWelcome"),
        ("app.jobs.SendWelcome@fire", "app.jobs.SendWelcome"),
        ("App\\Jobs\\SendWelcome@handle", "App\\Jobs\\SendWelcome"),
    ],
)
def test_laravels_method_suffix_is_accepted(written: str, name: str) -> None:
    assert envelope.job_name({"job": written}) == name


def test_another_method_is_refused() -> None:
    with pytest.raises(InvalidPayload, match=r"app\.jobs\.X@destroy; use @handle"):
        envelope.job_name({"job": "app.jobs.X@destroy"})


@pytest.mark.parametrize("job", [None, "", 7, ["a"], {}])
def test_a_payload_without_a_job_name_is_refused(job: object) -> None:
    with pytest.raises(InvalidPayload, match="no job name"):
        envelope.job_name({"job": job})


def test_a_php_serialized_command_is_refused_with_what_to_do() -> None:
    message = {
        "job": "Illuminate\\Queue\\CallQueuedHandler@call",
        "data": {"commandName": "App\\Jobs\\X", "command": 'O:10:"App\\Jobs\\X":0:{}'},
    }
    with pytest.raises(InvalidPayload, match=r"PHP-serialized.*Queue::push\('app\.jobs"):
        envelope.job_name(message)


@pytest.mark.parametrize("data", [None, [], ""])
def test_no_fields_may_be_null_or_what_php_sends_for_none(data: object) -> None:
    assert Holds.from_data(data).value is None


class Lines(BaseModel):
    texts: list[str] = ["one"]
    extra: dict[str, int] = {}


class Arrays(Queueable):
    """Has every kind of thing that PHP calls an array."""

    items: list[int] = [1]  # noqa: RUF012 (each job has its own)
    options: dict[str, int] = {"a": 1}  # noqa: RUF012 (each job has its own)
    address: Lines = Lines()
    addresses: list[Lines] = []  # noqa: RUF012 (each job has its own)
    either: list[int] | set[str] = [2]  # noqa: RUF012 (each job has its own)
    number: int = 1
    anything: Any = None

    def handle(self) -> None:
        pass


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"items": {}}, {"items": []}),
        ({"options": []}, {"options": {}}),
        ({"items": {}, "options": []}, {"items": [], "options": {}}),
        ({"address": []}, {"address": Lines()}),
        ({"address": {"texts": {}, "extra": []}}, {"address": Lines(texts=[])}),
        ({"addresses": [[], {"texts": {}}]}, {"addresses": [Lines(), Lines(texts=[])]}),
        ({"addresses": {}}, {"addresses": []}),
        ({"either": {}}, {"either": []}),
        ({"anything": {}}, {"anything": {}}),
        ({"anything": []}, {"anything": []}),
    ],
)
def test_an_empty_array_of_php_or_lua_is_what_the_field_wants(data: Any, expected: Any) -> None:
    before = json.dumps(data)
    assert Arrays.from_data(data) == Arrays(**expected)
    assert json.dumps(data) == before


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"items": {"a": 1}}, "items: Input should be a valid list"),
        ({"options": [1]}, "options: Input should be a valid dictionary"),
        ({"number": []}, "number: Input should be a valid integer"),
        ({"number": "x", "items": {}}, "items: Input should be a valid list"),
    ],
)
def test_what_fits_no_better_then_is_refused_as_it_came(data: Any, said: str) -> None:
    with pytest.raises(InvalidArguments, match=f"Arrays: {said}"):
        Arrays.from_data(data)


@pytest.mark.parametrize("data", ["text", 7, [1], True])
def test_data_that_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(InvalidArguments, match=rf"Holds.*{type(data).__name__}"):
        Holds.from_data(data)


@pytest.mark.parametrize(
    ("data", "said"), [({}, "user_id"), ({"user_id": "x"}, "user_id.*integer")]
)
def test_data_that_does_not_fit_is_refused_naming_the_field(data: object, said: str) -> None:
    with pytest.raises(InvalidArguments, match=said) as raised:
        SendWelcome.from_data(data)
    assert str(raised.value).isprintable()


def test_an_unknown_key_of_data_is_left_out_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(3):
        assert SendWelcome.from_data({"user_id": 7, "gone\x1b[31m": 1}).user_id == 7
    (record,) = caplog.records
    assert "SendWelcome has no field" in record.getMessage()
    assert "\x1b" not in record.getMessage()


def test_a_display_name_is_made_printable() -> None:
    assert envelope.display_name({"displayName": "a\x1b[31m", "job": "b"}) == r"a\x1b[31m"
    assert envelope.display_name({"job": "b\n"}) == "b"
    assert envelope.display_name({"displayName": 7}) == "(no name)"
    assert envelope.display_name({"displayName": " ", "job": "b"}) == "b"
    assert envelope.display_name({"job": "\n"}) == "(no name)"


@pytest.mark.parametrize("value", [None, True, "5", [5], math.nan, math.inf, 1e300, 10**400])
def test_what_is_no_sane_number_counts_as_absent(value: object) -> None:
    assert envelope.number({"timeout": value}, "timeout") is None


@pytest.mark.parametrize(
    ("wire", "seconds"),
    [("1,5,10", [1, 5, 10]), ("7", [7]), (7, [7]), (0.5, [0.5]), ("-3", [0]), (" 1, 2", [1, 2]),
     *((wrong, None) for wrong in ("", None, True, "a", "1,,2", [1, 2], "inf", "1e300", 10**400))],
)  # fmt: skip
def test_the_backoff_of_a_payload_is_read(wire: object, seconds: list[float] | None) -> None:
    assert envelope.backoffs({"backoff": wire}) == seconds


@pytest.mark.parametrize(
    ("payload", "seconds"),
    [
        ({}, None),
        ({"uuid": "not one", "createdAt": 1732060800}, None),
        ({"uuid": "zzzzzzzz-zzzz-7000-8000-000000000000", "createdAt": 1732060800}, None),
        ({"uuid": "019346de-6400-7000-8000-000000000000", "createdAt": 1732060800}, 0.0),
        ({"uuid": "019346de-6400-7000-8000-000000000000"}, None),
        ({"uuid": "019346de-6400-7000-8000-000000000000", "createdAt": 1732069999}, None),
        ({"createdAt": 1732060800, "pushedAt": "1732060800.25", "delay": 5}, 5.25),
        ({"createdAt": 1732060800, "pushedAt": "nan"}, None),
        ({"createdAt": 1732060800, "pushedAt": "soon"}, None),
        ({"createdAt": 1732060800, "pushedAt": "1732060800.25", "chain": "c"}, None),
    ],
)
def test_when_a_job_was_due(payload: dict[str, Any], seconds: float | None) -> None:
    due = envelope.due(payload)
    assert due == (None if seconds is None else pytest.approx(1732060800 + seconds, abs=0.001))


def test_an_id_holds_the_moment_of_its_dispatch() -> None:
    before = time.time()
    payload = envelope.create(SendWelcome(user_id=7))
    due = envelope.due(payload)
    assert due is not None
    assert before - 0.002 < due <= time.time()
    assert uuid.UUID(payload["uuid"]).version == 7
