"""Access: who may see the page, and what they may do on it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import inspect
import ipaddress
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from qframe import forks
from qframe.exceptions import ConfigurationError
from qframe.operations.actions.table import ACTIONS
from qframe.payload.text import nearest, one_line

Access: TypeAlias = Literal["none", "read", "act", "dispatch"] | Collection[str]
"""`none`, `read`, `act` (everything), `dispatch` (nothing else), or the names of allowed actions,
of which `dispatch` is one.
"""
DISPATCH = "dispatch"
DOCTOR = "doctor"
"""The name of the right to a report for a bug, which has the configuration and stacks."""


class Visitor(NamedTuple):
    """A person, by a name for the log, and what they may do."""

    name: str
    access: Access
    address: str = ""
    """Where the request came from, for the log; "" if it says nothing about the person."""


Answer: TypeAlias = Access | Visitor | None
"""What an application's `authorize` returns for a request; None is `none`."""
Authorize: TypeAlias = Callable[[Request], "Answer | Awaitable[Answer]"]

TRIES = 5
"""So many wrong passwords are accepted from an address before it has to wait."""
FIRST_WAIT = 10.0
LONGEST_WAIT = 900.0
_MOST_ADDRESSES = 10_000


@dataclass(frozen=True, slots=True)
class Grant:
    """What a visitor may do."""

    who: str
    reads: bool
    actions: frozenset[str]
    address: str = ""

    @property
    def shown(self) -> str:
        """The visitor in the log."""
        return f"{self.who} at {self.address}" if self.address else self.who

    def allows(self, action: str) -> bool:
        """Whether the visitor may do something."""
        return action in self.actions


_EVERYTHING = frozenset({*ACTIONS, DISPATCH, DOCTOR})
NOBODY = Grant("", reads=False, actions=frozenset())


def granted(answer: Answer) -> Grant:
    """Reads the answer of an application's `authorize`. Raises `ConfigurationError`."""
    access: Any = answer.access if isinstance(answer, Visitor) else answer
    who, address = ("", "")
    if isinstance(answer, Visitor):
        who, address = one_line(str(answer.name), 100), one_line(str(answer.address), 100)
    who = who or "somebody"
    if access is None or access == "none":
        return NOBODY
    if access in ("read", "act"):
        actions = _EVERYTHING if access == "act" else frozenset()
        return Grant(who, reads=True, actions=actions, address=address)
    if access == DISPATCH:
        return Grant(who, reads=False, actions=frozenset({DISPATCH}), address=address)
    if isinstance(access, str) or not isinstance(access, Collection):
        raise ConfigurationError(
            f"authorize gave {one_line(repr(access), 60)}; it is none, read, act, dispatch, or "
            "actions"
        )
    for name in access:
        if name not in _EVERYTHING:
            raise ConfigurationError(
                f"authorize: there is no action {one_line(str(name), 60)!r}"
                f"{nearest(str(name), _EVERYTHING)}"
            )
    return Grant(who, reads=True, actions=frozenset(access), address=address)


async def asked(authorize: Authorize, request: Request) -> Grant:
    """Asks an application who the visitor is; in a thread unless it is a coroutine."""
    call: Callable[[Request], Any] = authorize
    if inspect.iscoroutinefunction(call):
        return granted(await call(request))
    answer = await run_in_threadpool(call, request)
    return granted(await answer if inspect.isawaitable(answer) else answer)


class LockedOut(Exception):
    """Too many wrong passwords came from an address; `seconds` until the next is checked."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many wrong passwords: wait {seconds:.0f} s")
        self.seconds = seconds


class Passwords:
    """HTTP's basic authentication by a password, bearer's by a token; each may be absent.

    `tokens`, by the name of a program, may dispatch and nothing else.

    Comparisons take the same time for any input. After five wrong ones an address has to wait for
    ten seconds, and twice as long after each further one, up to a quarter of an hour; meanwhile its
    passwords are not checked. Passwords and tokens are counted apart. The right token is accepted
    at any time: it is too long to be guessed, and a scraper with an old token must not lock out
    another behind the same proxy.
    """

    def __init__(
        self,
        password: str | None,
        token: str | None,
        access: Access,
        tokens: Mapping[str, str] | None = None,
    ) -> None:
        self._password = password
        self._token = token
        self._tokens = dict(tokens or {})
        self._access = access
        self._wrong: dict[str, tuple[int, float]] = {}
        self._lock = forks.lock()

    def __call__(self, request: Request) -> Answer:
        """Returns what the given credentials allow. Raises `LockedOut`."""
        kind, _, value = request.headers.get("authorization", "").partition(" ")
        if not value:
            return "none"
        address = request.client.host if request.client else ""
        network = _network(address)
        if kind.lower() == "bearer":
            if _same(value.strip(), self._token):
                return Visitor("the bearer of the token", self._access, address)
            if programs := [each for each in self._tokens.items() if _same(value.strip(), each[1])]:
                return Visitor(f"the program {programs[0][0]}", DISPATCH)
            with self._lock:
                self._check(guesser := f"token {network}")
                self._note(guesser)
            return "none"
        with self._lock:  # for the whole check, or many at once would be so many tries
            self._check(network)
            who = self._who(kind.lower(), value.strip())
            if who is None:
                self._note(network)
                return "none"
            self._wrong.pop(network, None)
        return Visitor(who, self._access, address)

    def _who(self, kind: str, value: str) -> str | None:
        if kind != "basic":
            return None
        try:
            name, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return None
        return one_line(name, 60) or "nameless" if _same(password, self._password) else None

    def _check(self, address: str) -> None:
        count, last = self._wrong.get(address, (0, 0.0))
        left = last + _pause(count) - time.monotonic()
        if left > 0:
            raise LockedOut(left)

    def _note(self, address: str) -> None:
        count, _ = self._wrong.pop(address, (0, 0.0))  # moves it to the end
        if len(self._wrong) >= _MOST_ADDRESSES:
            self._wrong.pop(next(iter(self._wrong)))
        self._wrong[address] = (count + 1, time.monotonic())


def _network(address: str) -> str:
    """Returns what one attacker has: an address, or, of version 6, a network of 64 bits."""
    try:
        given = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if given.version == 4:  # noqa: PLR2004 (of the protocol)
        return address
    if given.ipv4_mapped is not None:
        return str(given.ipv4_mapped)
    return str(ipaddress.ip_network((int(given), 64), strict=False))


def _pause(wrong: int) -> float:
    """Returns how long an address has to wait after so many wrong ones."""
    if wrong < TRIES:
        return 0.0
    return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(wrong - TRIES, 20))


def _same(given: str, wanted: str | None) -> bool:
    digests = [
        hashlib.sha256(each.encode("utf-8", "surrogateescape")).digest()
        for each in (given, wanted or "")
    ]
    return hmac.compare_digest(*digests) and wanted is not None
