"""Signatures: what is signed, what is refused, and the keys."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qframe import ConfigurationError, InvalidSignature, Queueable, QueueManager, config, foreign
from qframe.connection import Connection
from qframe.exceptions import PayloadTooLarge
from qframe.payload.signature import OVERHEAD, Signer, is_signed

KEYS = ["the first key of the tests", "the second key of the tests"]
BODY = b'{"uuid":"u-1","job":"app.jobs.Send","data":{"n":[]},"attempts":0,"delay":null}'


class Send(Queueable):
    text: str = ""

    def handle(self) -> None: ...


def connection(**settings: Any) -> Connection:
    return QueueManager({"default": "memory", **settings}).connection()


def pushed(queue: Connection, *names: str) -> list[tuple[bytes, str]]:
    """Give what waits in queues, with the name of its queue."""
    found = [(each, name) for name in names for each in queue.backend.search(name, b"")]
    return [(each.raw_body, name) for each, name in found]


@pytest.fixture
def signer() -> Signer:
    return Signer(KEYS)


def test_a_signed_payload_is_accepted_for_its_queue_only(signer: Signer) -> None:
    signed = signer.signed(BODY, "emails")
    signer.check(signed, "emails")
    assert json.loads(signed) == {"signature": json.loads(signed)["signature"], **json.loads(BODY)}
    assert len(signed) == len(BODY) + OVERHEAD
    for queue in ("email", "emails2", "", "default"):
        with pytest.raises(InvalidSignature, match="signed for another queue"):
            signer.check(signed, queue)


def test_the_signature_is_what_the_documentation_says(signer: Signer) -> None:
    said = b"qframe-signature-1\0" + b"emails" + b"\0" + BODY
    digits = hmac.new(KEYS[0].encode(), said, hashlib.sha256).hexdigest()
    assert signer.signed(BODY, "emails") == b'{"signature":"' + digits.encode() + b'",' + BODY[1:]


@given(st.integers(0, len(BODY) + OVERHEAD - 1), st.integers(1, 255))
def test_no_byte_can_be_changed(at: int, by: int) -> None:
    signer = Signer(KEYS)
    changed = bytearray(signer.signed(BODY, "emails"))
    changed[at] ^= by
    with pytest.raises(InvalidSignature):
        signer.check(bytes(changed), "emails")


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.replace(b"u-1", b"u-2"),
        lambda raw: raw.replace(b"Send", b"Drop"),
        lambda raw: raw.replace(b'"delay":null', b'"delay":null,"timeout":0'),
        lambda raw: raw.replace(b"[]", b"{}"),  # what Laravel's Lua makes of it
        lambda raw: raw + b" ",
        lambda raw: json.dumps(json.loads(raw)).encode(),
        lambda raw: raw[:-1],
        lambda raw: raw[:40],
        lambda raw: BODY,
        lambda raw: b"",
        lambda raw: b'{"signature":"","uuid":"u-1"}',
        lambda raw: b'{"signature":"' + b"\xff" * 64 + raw[78:],
        lambda raw: b'{"signature":"' + raw[14:78].upper() + raw[78:],
    ],
)
def test_what_was_changed_is_refused(signer: Signer, change: Any) -> None:
    changed = change(signer.signed(BODY, "emails"))
    with pytest.raises(InvalidSignature, match="refused unread"):
        signer.check(changed, "emails")


def test_the_first_key_signs_and_all_of_them_verify(signer: Signer) -> None:
    Signer(KEYS[::-1]).check(signer.signed(BODY, "q"), "q")
    Signer(KEYS[:1]).check(signer.signed(BODY, "q"), "q")
    with pytest.raises(InvalidSignature):
        Signer(KEYS[1:]).check(signer.signed(BODY, "q"), "q")


def test_signing_again_replaces_the_signature(signer: Signer) -> None:
    once = signer.signed(BODY, "q")
    assert signer.signed(once, "q") == once
    signer.check(signer.signed(once, "other"), "other")


def test_the_transition_accepts_the_unsigned_but_not_the_wrong(signer: Signer) -> None:
    transition = Signer(KEYS, require=False)
    transition.check(BODY, "q")
    transition.check(signer.signed(BODY, "q"), "q")
    with pytest.raises(InvalidSignature):
        transition.check(signer.signed(BODY, "q"), "other")
    assert transition.renewed(BODY, BODY + b" ", "q") == BODY + b" "  # not vouched for
    assert is_signed(transition.renewed(signer.signed(BODY, "q"), BODY, "q"))


def test_all_that_is_pushed_as_jobs_is_signed(fresh: object) -> None:
    queue = connection(signing_key=KEYS[0])
    queue.push(Send(), "a")
    queue.later(5, Send(), "b")
    queue.bulk([Send(), Send()])
    queue.push(foreign("App\\Import@handle", {"id": 1}), "c")
    made = pushed(queue, "a", "b", "default", "c")
    assert [name for _, name in made] == ["a", "b", "default", "default", "c"]
    for raw, name in made:
        Signer(KEYS[:1]).check(raw, name)


def test_raw_payloads_are_pushed_as_they_are(fresh: object) -> None:
    queue = connection(signing_key=KEYS[0])
    queue.push_raw(BODY, "a")
    queue.push_raw(queue.signed(BODY, "a"), "a")
    plain, signed = sorted((raw for raw, _ in pushed(queue, "a")), key=len)
    assert plain == BODY
    Signer(KEYS[:1]).check(signed, "a")


def test_without_a_key_nothing_is_signed(fresh: object) -> None:
    queue = connection()
    queue.push(Send())
    assert not is_signed(pushed(queue, "default")[0][0])
    assert queue.signed(BODY, "q") is BODY


def test_the_size_is_that_of_the_signed_payload(fresh: object) -> None:
    queue = connection(signing_key=KEYS[0])
    size = len(queue.envelope(Send()).raw) + OVERHEAD
    queue.max_payload = size
    queue.push(Send())
    assert len(pushed(queue, "default")[0][0]) == size
    queue.max_payload = size - 1
    with pytest.raises(PayloadTooLarge):
        queue.envelope(Send())


def test_keys_of_a_variable_are_separated_by_commas(
    fresh: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QFRAME_SIGNING_KEYS", ",".join(KEYS))
    assert [key.get_secret_value() for key in config.load().signing_keys] == KEYS
    monkeypatch.setenv("QFRAME_SIGNING_KEYS", json.dumps(KEYS))
    assert [key.get_secret_value() for key in config.load().signing_keys] == KEYS
    monkeypatch.setenv("QFRAME_SIGNING_KEY", KEYS[1])
    signer = QueueManager().signer
    assert signer is not None
    assert signer.signed(BODY, "q") == Signer(KEYS[1:]).signed(BODY, "q")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"signing_key": "leaky-words"}, "signing_key: .*fewer than 16 characters"),
        ({"signing_keys": [KEYS[0], "leaky-words"]}, "signing_keys.1: .*fewer than 16"),
        ({"signing_key": ""}, "fewer than 16 characters"),
        ({"signing": "require"}, "signing = 'require' needs a signing_key"),
        ({"signing": "sometimes", "signing_key": KEYS[0]}, "signing: "),
        ({"encryption_keys": ["leaky-words"]}, "encryption_keys.0: .*is no key: qframe key"),
        ({"signing_keyz": []}, "did you mean 'signing_key'"),
    ],
)
def test_wrong_keys_are_refused_without_showing_them(
    fresh: object, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words) as raised:
        QueueManager(settings)
    assert "leaky" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_repr_shows_a_key(fresh: object) -> None:
    queues = QueueManager({"signing_key": KEYS[0], "signing_keys": KEYS})
    assert KEYS[0] not in f"{queues.settings!r} {queues.signer!r} {vars(queues)}"
    assert os.environ.get("QFRAME_SIGNING_KEY") is None
