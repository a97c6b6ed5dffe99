"""Names, URLs, credentials and errors; what `qframe check` says; secrets are shown nowhere."""

from __future__ import annotations

import logging

import pytest
from pydantic import ValidationError

from qframe.drivers.sqs import aws
from qframe.drivers.sqs.backend import SqsBackend
from qframe.drivers.sqs.client import LONGEST_RETENTION
from qframe.drivers.sqs.settings import SqsSettings
from qframe.exceptions import BackendUnavailable, BackendUnusable
from tests.drivers.broker.acts import begin, do, push, taken
from tests.drivers.sqs.conftest import Connect
from tests.support.server_process import free_port
from tests.support.sqs_server import CREDENTIALS, Refusal, SqsServer

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012"


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "queue", "name"),
    [
        ({}, "mail", "mail"),
        ({"prefix": "app-", "suffix": "-live"}, "mail", "app-mail-live"),
        ({"prefix": "app-", "suffix": "-live"}, "mail.fifo", "app-mail-live.fifo"),
        ({"suffix": "-live"}, "mail-live", "mail-live"),
        ({"prefix": f"{URL}/", "suffix": "-live"}, "mail", "mail-live"),
    ],
)
def test_the_name_of_a_queue(settings: dict[str, str], queue: str, name: str) -> None:
    assert SqsSettings.model_validate(settings).name_of(queue) == name


def test_the_url_of_laravels_prefix_tells_region_and_server() -> None:
    settings = SqsSettings(prefix=URL)
    assert (settings.known_region, settings.known_endpoint) == ("eu-west-1", None)
    local = SqsSettings(prefix="http://localhost:4566/000000000000")
    assert (local.known_region, local.known_endpoint) == (None, "http://localhost:4566")
    assert local.shown() == "SQS at http://localhost:4566"


@pytest.mark.parametrize(
    "settings",
    [
        {"endpoint": "http://key:hush@h"},
        {"endpoint": "sqs.local"},
        {"endpoint": "http://h:x"},
        {"prefix": "https://key:hush@h/1"},
        {"prefix": "a b"},
        {"suffix": ".x"},
        {"retry_after": 50_000},
        {"retry_after": 1},
        {"block_for": 21},
    ],
)
def test_wrong_settings_are_refused_and_show_no_secret(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as raised:
        SqsSettings.model_validate(settings)
    (fault,) = raised.value.errors(include_url=False, include_input=False, include_context=False)
    assert "hush" not in str(fault)


# -- queues ---------------------------------------------------------------------------------------


def test_a_queue_is_created_only_where_that_is_said(server: SqsServer, connect: Connect) -> None:
    backend = connect(create=False)
    with pytest.raises(BackendUnusable, match="has no queue default: create it, or set create"):
        push(backend, b"1")
    with pytest.raises(BackendUnusable, match="has no queue default"):
        taken(backend)
    push(connect(), b"1")
    assert server.queues["default"].attributes["MessageRetentionPeriod"] == str(LONGEST_RETENTION)
    assert begin(backend).raw_body == b"1"


def test_a_missing_queue_that_exists_as_fifo_is_named(connect: Connect) -> None:
    push(connect(), b"1", queue="mail.fifo")
    with pytest.raises(BackendUnusable, match=r"but mail\.fifo"):
        push(connect(create=False), b"1", queue="mail")


def test_a_queue_that_somebody_deleted(server: SqsServer, connect: Connect) -> None:
    backend = connect()
    push(backend, b"1")
    del server.queues["default"]
    push(backend, b"2")
    assert begin(backend).raw_body == b"2"
    strict = connect(create=False)
    assert taken(strict) is None
    del server.queues["default"]
    with pytest.raises(BackendUnusable, match="has no queue default"):
        taken(strict)


def test_with_the_url_as_prefix_nobody_asks_for_urls(server: SqsServer, connect: Connect) -> None:
    push(connect(), b"1")
    backend = connect(prefix=f"{server.url}/000000000000", endpoint=None, create=False)
    server.calls.clear()
    job = begin(backend)
    assert do(backend, job).name == "APPLIED"
    assert server.calls["GetQueueUrl"] == 0
    with pytest.raises(BackendUnusable, match="has no queue none"):
        push(backend, b"1", queue="none")


# -- errors ---------------------------------------------------------------------------------------


def test_a_call_that_is_throttled_is_repeated(server: SqsServer, backend: SqsBackend) -> None:
    for action in ("SendMessageBatch", "ReceiveMessage", "DeleteMessage"):
        server.refusals += [(action, Refusal("RequestThrottled", "slower"))] * 2
    push(backend, b"1")
    assert do(backend, begin(backend)).name == "APPLIED"
    assert server.calls["SendMessageBatch"] == 3


def test_a_push_without_an_answer_is_in_doubt_and_not_repeated(
    server: SqsServer, backend: SqsBackend
) -> None:
    push(backend, b"1")
    server.lost = ["SendMessageBatch"]
    with pytest.raises(BackendUnavailable) as raised:
        push(backend, b"2")
    assert raised.value.in_doubt
    assert len(server.queues["default"].messages) == 2


def test_other_calls_without_an_answer_are_repeated(server: SqsServer, backend: SqsBackend) -> None:
    push(backend, b"1")
    job = begin(backend)
    server.lost = ["DeleteMessage", "ReceiveMessage"]
    assert do(backend, job).name == "APPLIED"
    assert taken(backend) is None


def test_a_slow_answer_is_waited_for_no_longer_than_said(
    server: SqsServer, connect: Connect
) -> None:
    backend = connect(timeout=0.2)
    push(backend, b"1")
    server.slow = lambda action, _: 3.0 if action == "SendMessageBatch" else 0.0
    with pytest.raises(BackendUnavailable, match="timeout"):
        push(backend, b"2")


def test_a_server_that_is_not_there(connect: Connect) -> None:
    backend = connect(endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(BackendUnavailable) as raised:
        push(backend, b"1")
    assert not raised.value.in_doubt
    assert not isinstance(raised.value, BackendUnusable)


def test_wrong_credentials_are_one_line_without_a_secret(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "qframe")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAWRONG")
    monkeypatch.setattr(aws, "_clients", aws.Clients())
    backend = connect()
    with pytest.raises(BackendUnusable, match="InvalidClientTokenId") as raised:
        push(backend, b"1")
    assert "\n" not in str(raised.value)
    said = str(raised.value) + caplog.text + backend.described() + repr(backend.settings)
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in said
    assert "AKIAWRONG" not in said


def test_no_credentials_are_one_line(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(aws, "_clients", aws.Clients())
    with pytest.raises(BackendUnusable, match="credentials"):
        push(connect(), b"1")


# -- check ----------------------------------------------------------------------------------------


def test_what_check_says_of_a_queue(server: SqsServer, connect: Connect) -> None:
    backend = connect()
    assert backend.check().warnings == ()
    server.queues["default"].attributes.update(
        MessageRetentionPeriod="345600",
        RedrivePolicy='{"maxReceiveCount": 5, "deadLetterTargetArn": "arn"}',
        MaximumMessageSize="262144",
        DelaySeconds="30",
    )
    warnings = backend.check().warnings
    for word, each in zip(
        ("4 days", "received 5 times", "262,144 bytes", "30 seconds"), warnings, strict=True
    ):
        assert word in each


def test_check_says_that_there_is_no_queue(connect: Connect) -> None:
    with pytest.raises(BackendUnusable, match="has no queue default"):
        connect(create=False).check()
