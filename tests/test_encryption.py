"""Encrypted jobs: what travels, who can read it, and what is said where it cannot be read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qframe import (
    CannotDecrypt,
    ConfigurationError,
    InvalidJob,
    Queueable,
    QueueManager,
    bulk,
    dispatch,
    dispatch_sync,
    events,
    manager,
    queueable,
)
from qframe.exceptions import PayloadTooLarge
from qframe.payload.encryption import Keyring, is_key, new_key
from qframe.payload.envelope import create

OLD, NEW = new_key(), new_key()
VALUE = "hunter2-in-clear"


class Send(Queueable):
    token: str
    more: Any = None
    encrypted = True
    connection = "sync"

    def handle(self) -> str:
        return self.token


class Other(Send):
    pass


@pytest.fixture
def queues(fresh: Path) -> QueueManager:
    made = QueueManager({"encryption_keys": [NEW, OLD]})
    manager.use(made)
    return made


def sealed(job: Queueable, *keys: str) -> dict[str, Any]:
    return create(job, Keyring(keys))


def opened(job_class: type[Queueable], data: dict[str, Any], *keys: str) -> Any:
    return Keyring(keys).opened(job_class.wire_name(), data)


def test_the_data_travels_as_a_token() -> None:
    message = sealed(Send(token=VALUE, more=[1, 2.5, None, "ü", {}]), NEW)
    assert [*message["data"]] == ["encrypted"]
    assert VALUE not in json.dumps(message)
    assert message["displayName"] == message["job"] == Send.wire_name()
    assert opened(Send, message["data"], NEW) == {"token": VALUE, "more": [1, 2.5, None, "ü", {}]}


def test_the_same_job_is_never_the_same_bytes() -> None:
    job = Send(token=VALUE)
    assert sealed(job, NEW)["data"] != sealed(job, NEW)["data"]


def test_the_first_key_encrypts_and_all_of_them_decrypt() -> None:
    before = sealed(Send(token=VALUE), OLD)["data"]
    after = sealed(Send(token=VALUE), NEW, OLD)["data"]
    assert opened(Send, before, NEW, OLD)["token"] == VALUE
    assert opened(Send, after, NEW)["token"] == VALUE
    with pytest.raises(CannotDecrypt, match="with none of the 1 encryption_keys"):
        opened(Send, after, OLD)


def test_a_token_is_of_no_use_to_another_class() -> None:
    data = sealed(Send(token=VALUE), NEW)["data"]
    with pytest.raises(CannotDecrypt, match="was encrypted for another job"):
        opened(Other, data, NEW)


@pytest.mark.parametrize(
    "data",
    [{"encrypted": ""}, {"encrypted": "gAAAA"}, {"encrypted": 7}, {"encrypted": None}, [], "x"],
)
def test_what_is_no_token_is_refused_in_a_line(data: Any) -> None:
    with pytest.raises(CannotDecrypt) as raised:
        opened(Send, data, NEW)
    assert "\n" not in str(raised.value)


def test_a_token_that_was_changed_is_refused() -> None:
    token = sealed(Send(token=VALUE), NEW)["data"]["encrypted"]
    changed = token[:30] + ("A" if token[30] != "A" else "B") + token[31:]
    with pytest.raises(CannotDecrypt, match="or was changed"):
        opened(Send, {"encrypted": changed}, NEW)


def test_without_a_key_nothing_can_be_dispatched(fresh: Path) -> None:
    manager.use(QueueManager({}))
    for attempt in (lambda: dispatch(Send(token=VALUE)), lambda: dispatch_sync(Send(token=VALUE))):
        with pytest.raises(ConfigurationError, match="no encryption_keys are configured") as raised:
            attempt()
        assert VALUE not in str(raised.value)
    with pytest.raises(CannotDecrypt, match="no encryption_keys are configured"):
        opened(Send, sealed(Send(token=VALUE), NEW)["data"])
    with pytest.raises(InvalidJob, match="only a connection can build its payload"):
        create(Send(token=VALUE))


def test_without_the_package_one_line_says_what_to_install(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'qframe\[crypto\]'"):
        dispatch(Send(token=VALUE))
    with pytest.raises(ConfigurationError, match=r"encryption_keys needs the package cryptography"):
        queues.keyring.prepare()


def test_the_package_is_imported_only_where_there_are_keys() -> None:
    code = (
        "import sys, qframe, qframe.worker\nfrom qframe.payload.encryption import Keyring\n"
        "Keyring().prepare(); print('cryptography' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"


def test_what_is_a_key() -> None:
    assert is_key(new_key())
    for text in ("", "short", "ü" * 44, new_key()[:-1], new_key() * 2):
        assert not is_key(text)


def test_jobs_that_run_at_once_take_the_same_way(queues: QueueManager) -> None:
    seen: list[dict[str, Any]] = []
    events.listen(events.JobProcessing)(lambda event: seen.append(event.job.payload))
    assert dispatch_sync(Send(token=VALUE)) == VALUE
    dispatch(Send(token=VALUE)).send()
    assert len(seen) == 2
    assert VALUE not in json.dumps(seen)


def test_nothing_that_is_shown_holds_an_argument(queues: QueueManager) -> None:
    heard: list[str] = []
    events.listen(events.Event)(lambda event: heard.append(repr(event)))
    job = Send(token=VALUE)
    pending = dispatch(job).on_connection("null")
    shown = f"{job!r} {job} {pending!r}"
    pending.send()
    assert VALUE not in shown + "".join(heard)
    assert repr(job) == "Send(token=..., more=...)"
    assert len(heard) == 2


@pytest.mark.parametrize("more", [{VALUE}, float("nan"), VALUE + "\ud800", object()])
def test_no_refusal_shows_an_argument(queues: QueueManager, more: Any) -> None:
    with pytest.raises(InvalidJob) as raised:
        dispatch(Send(token=VALUE, more=more))
    assert "more" in str(raised.value)
    assert VALUE not in str(raised.value)


def test_no_validation_shows_an_argument() -> None:
    with pytest.raises(ValueError, match="token") as raised:
        Send(token=[VALUE])  # type: ignore[arg-type]
    assert VALUE not in str(raised.value)


def test_the_size_is_that_of_the_encrypted_payload(queues: QueueManager) -> None:
    queue = queues.connection("null")
    queue.max_payload = 1500
    text = "x" * 1000
    assert len(json.dumps(create(Send(token=text), queues.keyring))) > 1500
    with pytest.raises(PayloadTooLarge):
        queue.envelope(Send(token=text))


def test_a_function_can_be_encrypted(queues: QueueManager) -> None:
    @queueable(encrypted=True, job_name="whisper", connection="sync")
    def whisper(word: str) -> str:
        return word

    assert VALUE not in json.dumps(create(whisper.job(VALUE), queues.keyring))
    assert dispatch_sync(whisper.job(VALUE)) == VALUE


def test_many_at_once_are_encrypted_each(fresh: Path) -> None:
    made = QueueManager(
        {"encryption_keys": [NEW], "default": "k", "connections": {"k": {"driver": "memory"}}}
    )
    manager.use(made)

    class Many(Send):
        connection = "k"
        job_name = "many"

    bulk(Many(token=VALUE) for _ in range(3))
    pushed = [job.raw_body for job in made.connection("k").reserve(["default"], 5)]
    assert len(pushed) == 3
    assert VALUE.encode() not in b"".join(pushed)


def test_which_data_is_decrypted() -> None:
    class Field(Queueable):
        text: str = ""
        job_name = "field"

        def handle(self) -> None: ...

    token = {"encrypted": "x"}
    assert Send.opens(token)
    assert Field.opens(token)  # it was encrypted when the job was dispatched
    assert not Send.opens({"encrypted": "x", "token": "y"})
    assert not Send.opens({"token": "y"})


def test_no_repr_shows_a_key(queues: QueueManager) -> None:
    shown = (
        f"{queues.settings!r} {queues.keyring!r} {vars(queues)} {vars(queues.connection('null'))}"
    )
    assert NEW not in shown
    assert OLD not in shown
