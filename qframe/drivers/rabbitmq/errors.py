"""Errors of RabbitMQ and its client, as qframe's errors."""

from __future__ import annotations

import ssl
import struct

import amqp

from qframe.exceptions import BackendUnavailable, BackendUnusable, PayloadTooLarge, QframeError
from qframe.payload.text import one_line

FAULTS = (amqp.AMQPError, OSError, struct.error)
"""What the client raises."""


class Unroutable(BackendUnavailable):
    """The server has no queue for a message, though it was declared just now; it is not queued."""

    in_doubt = False


class NotConfirmed(BackendUnavailable):
    """The server refused a message, or did not confirm it in time."""


def meaning(error: Exception, where: str) -> QframeError:
    """Return qframe's error for one of `FAULTS`."""
    if isinstance(error, amqp.AccessRefused | amqp.NotAllowed | amqp.InvalidPath):
        return BackendUnusable(f"{where}: {_replied(error)}")
    if isinstance(error, amqp.PreconditionFailed) and "larger than" in _replied(error):
        return PayloadTooLarge(f"{where}: {_replied(error)}; queue a reference to the data instead")
    if isinstance(error, ssl.SSLCertVerificationError):
        return BackendUnusable(f"{where}: {error.verify_message or 'its certificate is not valid'}")
    return BackendUnavailable(f"{where}: {reason(error)}")


def reason(error: Exception) -> str:
    """Describe in a few words why a server cannot be reached."""
    if isinstance(error, amqp.AMQPError):
        return _replied(error)
    if isinstance(error, TimeoutError):
        return "does not answer"
    if isinstance(error, struct.error):
        return "what answers there is no RabbitMQ"
    return one_line(getattr(error, "strerror", None) or str(error), 200) or type(error).__name__


def _replied(error: amqp.AMQPError) -> str:
    return one_line(str(error.reply_text or type(error).__name__), 200)
