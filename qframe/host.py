"""Who this process is: host name, pid, and a token no other process has."""

from __future__ import annotations

import os
import socket

NAME = socket.gethostname()

_token = os.urandom(6).hex()
_pid = os.getpid()


def token() -> str:
    """Give this process's token; a forked child has its own."""
    return _token


def pid() -> int:
    """Give this process's id, without asking the system, which costs more than it seems."""
    return _pid


def _renew() -> None:
    global _token, _pid  # noqa: PLW0603 (the process changed)
    _token = os.urandom(6).hex()
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
