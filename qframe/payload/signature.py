"""Signatures: without the key, writing to the backend is not enough to make or change a payload."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from qframe.exceptions import InvalidSignature
from qframe.payload.text import one_line

_HEAD = b'{"signature":"'
_DIGITS = 64
_END = len(_HEAD) + _DIGITS
_BETWEEN = b'",'
_REST_AT = _END + len(_BETWEEN)
OVERHEAD = _REST_AT - 1
"""The additional bytes of a signed payload."""
_CONTEXT = b"qframe-signature-1\0"
_KEPT_CONTEXT = b"qframe-kept-1\0"
_KEPT_HEAD = _HEAD.decode()
_KEPT_BETWEEN = '","kept":'
_KEPT_AT = _END + len(_KEPT_BETWEEN)
_MOST_QUEUES = 1000


class KeptText(NamedTuple):
    """A text that was stored until its turn, as it was before it was sealed."""

    text: str
    vouched: bool = True
    """Whether it may be signed: False for an accepted text without a signature."""


class Signer:
    """Signs payloads with the first key, and checks them with all keys.

    The signature is the HMAC-SHA256, in hex, of the queue's name and all other bytes of the
    payload. It is the payload's first key, `"signature"`, so that it can be found, removed and
    compared without parsing JSON.
    """

    def __init__(self, keys: Sequence[str], *, require: bool = True) -> None:
        self._keys = [key.encode() for key in keys]
        self.require = require
        """Whether a payload without a signature is refused."""

    def signed(self, raw: bytes, queue: str) -> bytes:
        """Return a payload with a signature for this queue, replacing any other.

        Only for bytes from this program: the signature vouches for them.
        """
        if is_signed(raw):
            rest = raw[_REST_AT:]
        elif raw[:2] == b'{"':
            rest = raw[1:]
        else:
            return raw  # not a payload: no worker would run it
        return b"%s%s%s%s" % (_HEAD, _signature(self._keys[0], rest, queue), _BETWEEN, rest)

    def check(self, raw: bytes, queue: str) -> None:
        """Raise `InvalidSignature` for a payload with a missing or wrong signature."""
        if not is_signed(raw):
            if self.require:
                raise InvalidSignature(
                    "the payload is not signed, and a signing key is configured: it was refused "
                    'unread (signing = "accept-unsigned" takes such payloads)'
                )
            return
        found, rest = raw[len(_HEAD) : _END], raw[_REST_AT:]
        for key in self._keys:
            if hmac.compare_digest(found, _signature(key, rest, queue)):
                return
        raise InvalidSignature(
            "the signature of the payload is wrong: it was changed, signed for another queue than "
            f"{one_line(queue, 130)!r}, or signed with a key that is not configured here; it was "
            "refused unread"
        )

    def sealed(self, place: str, text: str) -> str:
        """Return JSON to store, with a signature for this place only.

        A worker later makes, signs or applies something from the text. The signature is not valid
        for a payload in a queue, nor a payload's here.
        """
        signature = _kept_signature(self._keys[0], place, text).decode()
        return f"{_KEPT_HEAD}{signature}{_KEPT_BETWEEN}{text}}}"

    def opened(self, place: str, text: str) -> KeptText:
        """Return the text given to `sealed`. Raises `InvalidSignature` if it was changed."""
        if not is_sealed(text):
            if self.require:
                raise InvalidSignature(
                    "what is kept is not signed, and a signing key is configured: it was refused "
                    'unread (signing = "accept-unsigned" takes it)'
                )
            return KeptText(text, vouched=False)
        inner = unsealed(text)
        found = text[len(_HEAD) : _END].encode("utf-8", "replace")
        for key in self._keys:
            if hmac.compare_digest(found, _kept_signature(key, place, inner)):
                return KeptText(inner)
        raise InvalidSignature(
            "the signature of what is kept is wrong: it was changed, kept for something else, or "
            "signed with a key that is not configured here; it was refused unread"
        )

    def renewed(self, before: bytes, after: bytes, queue: str, to: str = "") -> bytes:
        """Sign a payload that was changed here again, if it had a valid signature for `queue`.

        The new signature is for the queue `to`, by default the same.

        Raises `InvalidSignature` if it is refused as it was `before`.
        """
        self.check(before, queue)
        return self.signed(after, to or queue) if is_signed(before) else after

    def __repr__(self) -> str:
        return f"<Signer with {len(self._keys)} keys>"


def _signature(key: bytes, rest: bytes, queue: str) -> bytes:
    """HMAC over queue name and payload; `rest` is the payload without its opening brace."""
    code = _begun(key, queue).copy()
    code.update(rest)
    return code.hexdigest().encode()


def _kept_signature(key: bytes, place: str, text: str) -> bytes:
    covered = b"%s%s\0%s" % (
        _KEPT_CONTEXT,
        place.encode("utf-8", "surrogatepass"),
        text.encode("utf-8", "surrogatepass"),
    )
    return hmac.new(key, covered, hashlib.sha256).hexdigest().encode()


@lru_cache(_MOST_QUEUES)
def _begun(key: bytes, queue: str) -> hmac.HMAC:
    """Return the beginning of a queue's HMACs; the cache saves a third of each."""
    return hmac.new(key, b"%s%s\0{" % (_CONTEXT, queue.encode()), hashlib.sha256)


def without_signature(message: dict[str, Any]) -> dict[str, Any]:
    """Return a payload without its signature, if it has one."""
    return {key: value for key, value in message.items() if key != "signature"}


def is_signed(raw: bytes) -> bool:
    """Whether a payload begins with a signature, valid or not."""
    return raw.startswith(_HEAD) and raw[_END:_REST_AT] == _BETWEEN


def is_sealed(text: str) -> bool:
    """Whether a stored text begins with a signature, valid or not."""
    return (
        text.startswith(_KEPT_HEAD) and text[_END:_KEPT_AT] == _KEPT_BETWEEN and text.endswith("}")
    )


def unsealed(text: str) -> str:
    """Return a stored text without its signature, to show it, never to use it."""
    return text[_KEPT_AT:-1] if is_sealed(text) else text


def seal(signer: Signer | None, place: str, text: str) -> str:
    """Return JSON to store at a place, signed if there is a key."""
    return text if signer is None else signer.sealed(place, text)


def unseal(signer: Signer | None, place: str, text: str) -> KeptText:
    """Return the text given to `seal`. Raises `InvalidSignature`; checks nothing without a key."""
    return KeptText(unsealed(text)) if signer is None else signer.opened(place, text)
