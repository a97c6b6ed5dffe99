"""Encryption of a job's arguments with the configured keys."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qframe import forks
from qframe.exceptions import CannotDecrypt, ConfigurationError
from qframe.payload.text import one_line

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

KEY = "encrypted"
"""The only key of encrypted data."""
_BYTES = 32


def new_key() -> str:
    """Return a new key for `encryption_keys`; it also serves as a signing key."""
    return base64.urlsafe_b64encode(os.urandom(_BYTES)).decode()


def is_key(text: str) -> bool:
    """Whether this is a Fernet key: 32 bytes in URL-safe base64."""
    try:
        return len(base64.b64decode(text.encode("ascii"), b"-_", validate=True)) == _BYTES
    except (binascii.Error, ValueError):
        return False


def is_encrypted(message: Mapping[str, Any]) -> bool:
    """Whether the arguments in a payload are encrypted."""
    data = message.get("data")
    return isinstance(data, dict) and KEY in data


class Keyring:
    """The encryption keys of a process: the first one encrypts, all of them decrypt.

    The ciphertext includes the name of its job, so it cannot be used in the payload of another
    class.
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = tuple(keys)
        self._fernet: MultiFernet | None = None

    @property
    def has_keys(self) -> bool:
        """Whether there is a key to encrypt with."""
        return bool(self._keys)

    def prepare(self) -> None:
        """Load what the first encrypted job would wait for. Raises `ConfigurationError`."""
        if self._keys:
            self._made("encryption_keys")

    def sealed(self, job: str, message: bytes) -> dict[str, str]:
        """Encrypt a message, JSON with `job` and the real `data`. Returns the data to send.

        Raises `ConfigurationError` without keys.
        """
        return {KEY: self._made(job).encrypt(message).decode()}

    def opened(self, job: str, data: object) -> Any:  # noqa: ANN401 (any JSON value)
        """Decrypt the data of a message for this job. Raises `CannotDecrypt`."""
        shown = one_line(job, 200)
        token = data.get(KEY) if isinstance(data, dict) else None
        if not isinstance(token, str):
            raise CannotDecrypt(f"{shown}: its encrypted data is no text")
        try:
            fernet = self._made(job)
        except ConfigurationError as error:
            raise CannotDecrypt(str(error)) from None
        from cryptography.fernet import InvalidToken  # noqa: PLC0415 (`_made` has imported it)

        try:
            text = fernet.decrypt(token.encode())
            found = json.loads(text)
        except (InvalidToken, ValueError, RecursionError):
            raise CannotDecrypt(
                f"{shown}: its data was encrypted with none of the {len(self._keys)} "
                "encryption_keys configured here, or was changed"
            ) from None
        if not isinstance(found, dict) or found.get("job") != job:
            raise CannotDecrypt(f"{shown}: its data was encrypted for another job")
        return found.get("data")

    def _made(self, job: str) -> MultiFernet:
        if self._fernet is None:
            if not self._keys:
                raise ConfigurationError(
                    f"{one_line(job, 200)} is encrypted, and no encryption_keys are configured "
                    "here: qframe key prints one"
                )
            try:
                with forks.undisturbed():
                    from cryptography.fernet import Fernet, MultiFernet  # noqa: PLC0415 (an extra)
            except ImportError:
                raise ConfigurationError(
                    f"{one_line(job, 200)} needs the package cryptography: "
                    "pip install 'qframe[crypto]'"
                ) from None
            self._fernet = MultiFernet([Fernet(key) for key in self._keys])
        return self._fernet

    def __repr__(self) -> str:
        return f"<Keyring of {len(self._keys)}>"
