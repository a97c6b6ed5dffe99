"""Secret fields: shown nowhere, carried as they are."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from qframe import (
    InvalidArguments,
    InvalidJob,
    Queueable,
    QueueManager,
    Secret,
    batch,
    chain,
    events,
    queueable,
)
from qframe.features.status import as_json
from qframe.payload.encryption import Keyring, new_key
from qframe.payload.envelope import create
from qframe.payload.secret import redacted

pytestmark = pytest.mark.usefixtures("fresh")

VALUE = "hunter2-in-clear"


class Login(BaseModel):
    user: str
    password: Secret[str]


class Later(Queueable):
    logins: list[Forward]
    encrypted = False

    def handle(self) -> None: ...


class LaterToo(Queueable):
    logins: dict[str, Forward]
    encrypted = False

    def handle(self) -> None: ...


class Forward(BaseModel):
    password: Secret[str]
    more: list[Forward] = []


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Send(Queueable):
    token: Secret[str]
    number: Secret[int] = Secret(7)
    login: Login | None = None
    several: list[Secret[bytes]] = []  # noqa: RUF012 (each job gets its own)
    user: str = "bob"
    encrypted = False

    def handle(self) -> None: ...


def test_a_secret_shows_stars_and_reveals_its_value() -> None:
    secret = Secret(VALUE)
    for shown in (repr(secret), str(secret), f"{secret}", f"{secret:>20}", f"{secret!r}"):
        assert VALUE not in shown
        assert "**********" in shown
    assert secret.reveal() == VALUE
    assert copy.deepcopy(secret) == secret == Secret(VALUE) != Secret("other")
    assert secret != VALUE
    assert {secret: 1}[Secret(VALUE)] == 1
    with pytest.raises(AttributeError):
        secret.value = "x"  # type: ignore[attr-defined]


def test_a_plain_value_becomes_a_secret_and_is_validated() -> None:
    job = Send(token=VALUE, number="8")  # type: ignore[arg-type]
    assert job.token.reveal() == VALUE
    assert job.number == Secret(8)
    assert Send(token=Secret(VALUE)).token == Secret(VALUE)


def test_a_job_with_secrets_shows_none_of_them() -> None:
    job = Send(token=VALUE, login={"user": "u", "password": VALUE}, several=[VALUE])  # type: ignore[arg-type, list-item]
    assert VALUE not in f"{job} {job!r} {vars(job)}"
    assert "bob" in repr(job)


@pytest.mark.parametrize(
    "fields",
    [
        {"token": [VALUE]},
        {"token": VALUE, "number": VALUE},
        {"login": {"user": "u", "password": VALUE}},
        {"token": "t", "login": {"password": VALUE}},
        {"token": VALUE, "unknown": VALUE},
    ],
)
def test_no_message_of_a_wrong_value_shows_a_secret(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as made:
        Send(**fields)
    with pytest.raises(InvalidJob) as dispatched:
        Send.dispatch(**fields)
    if "unknown" not in fields:
        with pytest.raises(InvalidArguments) as arrived:
            Send.from_data(fields)
        assert VALUE not in str(arrived.value)
    assert VALUE not in f"{made.value} {made.value!r} {dispatched.value}"


class Marks(Queueable):
    of: Secret[dict[str, int]]
    deep: dict[str, list[dict[str, int]]] = {}  # noqa: RUF012 (each job gets its own)
    pet: Annotated[Cat | Dog | None, Field(discriminator="kind")] = None
    encrypted = False

    def handle(self) -> None: ...


class ClosedMarks(Queueable):
    of: dict[str, int]
    deep: dict[str, list[dict[str, int]]] = {}  # noqa: RUF012 (each job gets its own)
    pet: Annotated[Cat | Dog | None, Field(discriminator="kind")] = None
    encrypted = True

    def handle(self) -> None: ...


@pytest.mark.parametrize("kind", [Marks, ClosedMarks])
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"of": {VALUE: "x"}}, r"of\.\*: Input should be a valid integer"),
        ({"of": {}, "deep": {VALUE: [{VALUE: VALUE}]}}, r"deep\.\*: Input should be a valid int"),
        ({"of": {}, "pet": {"kind": VALUE}}, "pet: Input tag is none of those expected"),
        ({"of": VALUE}, "of: Input should be a valid dict"),
    ],
)
def test_no_message_shows_the_keys_within_a_field(
    kind: type[Queueable], fields: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValidationError) as made:
        kind(**fields)
    with pytest.raises(InvalidJob, match=told) as dispatched:
        kind.dispatch(**fields)
    with pytest.raises(InvalidArguments, match=told) as arrived:
        kind.from_data(fields)
    assert VALUE not in f"{made.value} {made.value!r} {made.value.errors()}"
    assert VALUE not in f"{dispatched.value} {arrived.value}"
    assert made.value.title == kind.__name__
    assert [fault["loc"][0] for fault in made.value.errors()] == [list(fields)[-1]]


def test_an_empty_array_of_php_within_a_field_of_an_encrypted_class_arrives() -> None:
    assert ClosedMarks.from_data({"of": [], "deep": {"a": [[]]}}) == ClosedMarks(
        of={}, deep={"a": [{}]}
    )


def test_a_type_that_is_defined_later_is_looked_into_where_a_job_arrives() -> None:
    with pytest.raises(ValidationError) as made:
        LaterToo(logins={VALUE: {}})  # type: ignore[dict-item]
    with pytest.raises(InvalidArguments, match=r"logins\.\*: Field required") as arrived:
        LaterToo.from_data({"logins": {VALUE: {}}})
    assert VALUE not in f"{made.value} {arrived.value}"


def test_a_value_that_would_change_on_the_way_is_not_shown() -> None:
    class Odd(Queueable):
        value: Any
        secret: Secret[str] = Secret("s")
        job_name = "odd"

        def handle(self) -> None: ...

    with pytest.raises(InvalidJob) as raised:
        Odd(value={VALUE}).to_data()
    assert "Odd.value would not arrive as it is" in str(raised.value)
    assert VALUE not in str(raised.value)


def test_secrets_travel_and_arrive() -> None:
    job = Send(token=VALUE, login={"user": "u", "password": VALUE}, several=[b"\x01"])  # type: ignore[arg-type, list-item]
    data = json.loads(json.dumps(job.to_data()))
    assert data == {
        "token": VALUE, "number": 7, "login": {"user": "u", "password": VALUE},
        "several": ["\x01"], "user": "bob",
    }  # fmt: skip
    assert Send.from_data(data) == job


def test_a_secret_that_would_change_on_the_way_is_refused() -> None:
    class Loose(Queueable):
        value: Secret[Any]
        job_name = "loose"

        def handle(self) -> None: ...

    assert Loose.from_data(Loose(value=Secret([1, None])).to_data()).value.reveal() == [1, None]
    with pytest.raises(InvalidJob, match=r"Loose\.value would not arrive"):
        Loose(value=Secret((1, 2))).to_data()


def test_the_fields_that_hold_secrets_are_known() -> None:
    assert set(Send.secret_fields) == {"token", "number", "login", "several"}
    assert create(Send(token=Secret(VALUE)))["secrets"] == list(Send.secret_fields)

    class Child(Send):
        more: Secret[str] = Secret("")
        job_name = "child"

    assert set(Child.secret_fields) == {*Send.secret_fields, "more"}


def test_a_type_that_is_defined_later_is_looked_into_at_dispatch() -> None:
    job = Later(logins=[{"password": VALUE, "more": [{"password": VALUE}]}])  # type: ignore[list-item]
    Later.check_reachable()
    assert Later.secret_fields == ("logins",)
    assert Later.from_data(job.to_data()) == job
    with pytest.raises(ValidationError) as raised:
        Later(logins=VALUE)  # type: ignore[arg-type]
    assert VALUE not in str(raised.value)


def test_a_function_may_take_a_secret() -> None:
    @queueable(encrypted=False, job_name="whisper")
    def whisper(word: Secret[str]) -> str:
        return word.reveal()

    job = whisper.job(VALUE)  # type: ignore[arg-type]
    assert VALUE not in repr(job)
    assert job.handle() == VALUE


def test_the_results_of_jobs_show_stars() -> None:
    for result in (Secret(VALUE), {"a": [Secret(VALUE)]}, Login(user="u", password=Secret(VALUE))):
        text, remark = as_json(result)
        assert VALUE not in text + remark
        assert "**********" in text
    assert as_json(object())[0] == ""


def test_pydantic_shows_stars_outside_of_a_payload() -> None:
    login = Login(user="u", password=Secret(VALUE))
    assert VALUE not in login.model_dump_json()
    assert VALUE not in str(login.model_dump())


def test_the_jobs_kept_in_a_batch_of_a_chain_are_shown_with_stars(fresh: Path) -> None:
    queues = QueueManager({"connections": {"database": {"driver": "database"}}})
    send = Send(token=Secret(VALUE))
    within = batch([send, chain([send]).catch(send)]).then(send)
    link = chain([batch([chain([send, within])]).then(send)])
    queues.connection("database").start_chain(link.plan(queues.connection("database"), None, {}))
    (job,) = queues.connection("database").reserve(["default"])
    raw = json.dumps(job.payload)
    shown = redacted(job.payload)
    assert raw.count(VALUE) == 6
    assert VALUE not in json.dumps(shown)
    assert json.dumps(shown).count("**********") >= 6
    assert json.dumps(job.payload) == raw, "what is kept is not changed"
    assert redacted({"job": job.payload["job"], "data": {"members": [7], "follow": None}}) is None


def test_the_events_of_a_dispatch_show_no_data(fresh: Path) -> None:
    heard: list[str] = []
    events.listen(events.Event)(lambda event: heard.append(repr(event)))
    queues = QueueManager({"connections": {"database": {"driver": "database"}}})
    queues.connection("database").push(Send(token=VALUE))  # type: ignore[arg-type]
    assert len(heard) == 2
    assert VALUE not in "".join(heard)


class Open(Queueable):
    token: Secret[str]

    def handle(self) -> None: ...


class Closed(Open):
    encrypted = True


def test_a_class_with_secrets_that_says_nothing_of_encryption_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            create(Open(token=Secret(VALUE)))
            create(Send(token=Secret(VALUE)))
            create(Closed(token=Secret(VALUE)), Keyring([new_key()]))
    (record,) = caplog.records
    assert "Open has secrets (token) that can be read in the backend" in record.getMessage()
    assert VALUE not in record.getMessage()
