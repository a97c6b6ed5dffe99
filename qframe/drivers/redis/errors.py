"""Errors of Redis, translated to qframe's."""

from __future__ import annotations

from redis import exceptions as client

from qframe.exceptions import BackendUnavailable, BackendUnusable
from qframe.payload.text import one_line

_REFUSES = {
    "READONLY": "it is a read-only replica",
    "LOADING": "it is still loading its data",
    "MASTERDOWN": "it is a replica that has lost its master",
    "MISCONF": "it cannot write to its disk, and so takes no changes",
    "OOM": "its memory is full (maxmemory), and so it takes no more jobs",
    "NOREPLICAS": "it has too few replicas to take changes (min-replicas-to-write)",
    "CLUSTERDOWN": "the cluster is down",
    "TRYAGAIN": "the cluster is moving this queue to another node",
    "ASK": "the cluster is moving this queue to another node",
    "BUSY": "it is busy with a script of somebody",
    "UNBLOCKED": "it has become a replica",
}
_UNUSABLE = {
    "NOAUTH": "it asks for a password, as in redis://:PASSWORD@HOST",
    "WRONGPASS": "it refuses the user name or the password",
    "invalid password": "it refuses the password",
    "Invalid Username or Password": "it refuses the user name or the password",
    "without any password configured": "a password is configured, but it has none",
    "NOPERM": "its ACL forbids this user what a queue needs",
    "The user executing the script can't": "its ACL forbids this user what a queue needs",
    "DB index is out of range": "it has no database of this number",
    "SELECT is not allowed in cluster mode": "a cluster has no database but 0",
    "unknown command": "it must be Redis 6.0.6 or newer, with no command renamed",
    "CROSSSLOT": "it is a cluster, set cluster = true",
    "MOVED": "it is a cluster, set cluster = true",
    "cluster support disabled": "it is no cluster, remove cluster = true",
    "WRONGTYPE": "somebody else's key is in the way, rename or delete it",
    "certificate verify failed": "its certificate is not trusted",
}


def meaning(error: Exception, where: str) -> BackendUnavailable:
    """Translate an error; `BackendUnusable` if retrying cannot help."""
    if isinstance(error, BackendUnavailable):
        return error
    code = _code(error)
    text = one_line(str(error), 200)
    if code and code not in text:
        text = f"{code} {text}"
    if words := _refusal(code, text):
        return BackendUnavailable(f"{where}: {words} ({text})")
    for known, words in _UNUSABLE.items():
        if known in text:
            return BackendUnusable(f"{where}: {words} ({text})")
    if isinstance(error, client.InvalidResponse):
        return BackendUnusable(f"{where}: what answers there is no Redis ({text})")
    if isinstance(error, client.ResponseError):
        return BackendUnavailable(f"{where}: {text}")
    hint = "; start it, or correct the url" if "Connection refused" in text else ""
    return BackendUnavailable(
        f"{where} does not answer: {text.rstrip('.') + hint if hint else text}"
    )


def _refusal(code: str, text: str) -> str:
    """Return the description of a temporary refusal, "" for any other error."""
    for known, words in _REFUSES.items():
        if code == known or f" {known} " in f" {text}" or f"-{known} " in text:
            return words
    return ""


def is_refused(error: object) -> bool:
    """Whether the server refused the command for now, and did nothing."""
    if not isinstance(error, client.ResponseError):
        return False
    return bool(_refusal(_code(error), str(error)))


def _code(error: object) -> str:
    """Return the error code, the first word of the server's message."""
    return str(getattr(error, "status_code", None) or "")


def is_no_script(error: object) -> bool:
    """Whether the server does not know the script."""
    return isinstance(error, client.NoScriptError)


def is_wrong_type(error: object) -> bool:
    """Whether a key holds another type."""
    return "WRONGTYPE" in str(error)


def is_elsewhere(error: object) -> bool:
    """Whether this server is not (any more) the right one, and did nothing."""
    if isinstance(error, client.MovedError | client.ReadOnlyError):
        return True
    return isinstance(error, client.ResponseError) and "-READONLY " in str(error)
