"""Errors of SQS and its client, as qframe's errors."""

from __future__ import annotations

from typing import Any

from botocore import exceptions as boto

from qframe.exceptions import BackendUnavailable, BackendUnusable, PayloadTooLarge, QframeError
from qframe.payload.text import one_line

FAULTS = (boto.BotoCoreError, boto.ClientError)
"""What the client raises."""

_NOT_SENT = (
    boto.EndpointConnectionError,
    boto.ConnectTimeoutError,
    boto.ProxyConnectionError,
    boto.SSLError,
)
_MISCONFIGURED = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.NoRegionError,
    boto.InvalidRegionError,
    boto.ProfileNotFound,
    boto.ConfigParseError,
    boto.ConfigNotFound,
    boto.InvalidConfigError,
    boto.UnauthorizedSSOTokenError,
    boto.SSOTokenLoadError,
    boto.TokenRetrievalError,
)
_REFUSED = {
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "NotAuthorized",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_THROTTLED = {
    "KmsThrottled",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
_LATER = {
    "ExpiredToken",
    "ExpiredTokenException",
    "OverLimit",
    "PurgeQueueInProgress",
    "QueueDeletedRecently",
}
_GONE = {"MessageNotInflight", "ReceiptHandleIsInvalid"}
_TOO_LONG = {"BatchRequestTooLong", "MessageTooLong"}
_ABOUT_RECEIPT = "receipthandle is invalid"
_DELETED = "does not exist"
_SERVER = 500


class MissingQueue(BackendUnusable):
    """SQS has no queue of this name."""

    in_doubt = False


class MissingObject(BackendUnusable):
    """S3 has no object of this name."""

    in_doubt = False


class NotInFlight(BackendUnavailable):
    """A receipt is no longer valid: the message is visible to others, or deleted."""

    in_doubt = False
    is_deleted = False
    """Whether the message is deleted, or others have received it since its lease ran out."""


_MISSING = {
    **dict.fromkeys(("NonExistentQueue", "QueueDoesNotExist"), MissingQueue),
    "NoSuchKey": MissingObject,
}


def code_of(error: Exception) -> str:
    """Return the code of a refusal, without the name of its service; "" for other errors."""
    code = str(_answer(error).get("Error", {}).get("Code", ""))
    return code.rpartition("#")[2].rpartition(".")[2]


def is_throttled(error: Exception) -> bool:
    """Whether SQS asks to say it again, more slowly; nothing was done."""
    return code_of(error) in _THROTTLED


def meaning(error: Exception, where: str) -> QframeError:
    """Return qframe's error for one of `FAULTS`."""
    if isinstance(error, boto.ClientError):
        return _of_reply(error, where)
    text = f"{where}: {one_line(str(error), 300)}"
    if isinstance(error, _MISCONFIGURED) or "CERTIFICATE_VERIFY_FAILED" in text:
        return _not_done(BackendUnusable(text))
    made = BackendUnavailable(text)
    return _not_done(made) if isinstance(error, _NOT_SENT) else made


def _of_reply(error: boto.ClientError, where: str) -> QframeError:
    answer = _answer(error)
    return of_code(
        code_of(error),
        str(answer.get("Error", {}).get("Message", "")),
        where,
        status=int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)),
    )


def of_code(code: str, message: str, where: str, *, status: int = 400) -> QframeError:
    """Return qframe's error for a refusal by SQS."""
    text = f"{where}: {code}: {one_line(message, 300)}"
    if (missing := _MISSING.get(code)) is not None:
        return missing(text)
    if code in _GONE or (code == "InvalidParameterValue" and _ABOUT_RECEIPT in message.lower()):
        gone = NotInFlight(text)
        gone.is_deleted = _DELETED in message or code == "ReceiptHandleIsInvalid"
        return gone
    if code in _TOO_LONG or "must be shorter than" in message:
        return PayloadTooLarge(f"{text}; queue a reference to the data instead")
    if code in _THROTTLED | _LATER:
        return _not_done(BackendUnavailable(text))
    if status >= _SERVER:
        return BackendUnavailable(text)
    return _not_done(BackendUnusable(text))


def _not_done(error: BackendUnavailable) -> BackendUnavailable:
    error.in_doubt = False
    return error


def _answer(error: Exception) -> dict[str, Any]:
    return getattr(error, "response", None) or {}
