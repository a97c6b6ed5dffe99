"""AlertSettings: rules of alerts, and where they are sent."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, FilePath, SecretStr, model_validator

from qframe.config.values import YEAR, Float, Int, Section
from qframe.payload.text import one_line
from qframe.rules import Rule, parse


def _rule(text: str) -> str:
    parse(text)
    return text


def _http_url(url: SecretStr) -> SecretStr:
    try:
        parts = urlsplit(url.get_secret_value())
        fits = parts.scheme in {"http", "https"} and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        fits = False
    if not fits or not url.get_secret_value().isprintable():
        raise ValueError("is no address: it begins with https:// or http://")
    return url


def _mail_address(text: str) -> str:
    if not re.fullmatch(r"[^\s@<>,;\"]+@[^\s@<>,;\"]+", text) or not text.isprintable():
        raise ValueError(f"{one_line(text, 60)!r} is no mail address")
    return text


_Span = Annotated[Float, Field(gt=0, le=60)]
_MailAddress = Annotated[str, AfterValidator(_mail_address)]


class WebhookSettings(Section):
    """Where alerts are posted as JSON; with a `secret` they are signed (HMAC-SHA256).

    `timeout` is the seconds that a post may take in all. `ca` is a file of certificate authorities
    to trust in addition to the system's.
    """

    url: Annotated[SecretStr, AfterValidator(_http_url)]
    secret: Annotated[SecretStr | None, Field(min_length=16)] = None
    ca: FilePath | None = None
    timeout: _Span = 10


class MailSettings(Section):
    """Who gets alerts by mail, and through which server.

    `tls`: `starttls`, `tls` from the first byte, or `none`; with a password, `none` is allowed only
    for a server on this machine. `ca` is as for the webhook.
    """

    to: Annotated[list[_MailAddress], Field(min_length=1)]
    sender: Annotated[_MailAddress, Field(alias="from")]
    host: Annotated[str, Field(pattern=r"^\S+$")] = "127.0.0.1"
    port: Annotated[Int, Field(ge=1, le=65535)] = 587
    tls: Literal["starttls", "tls", "none"] = "starttls"
    user: str | None = None
    password: SecretStr | None = None
    ca: FilePath | None = None
    timeout: _Span = 20

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        is_here = self.host in {"localhost", "127.0.0.1", "::1"}
        if self.password is not None and self.tls == "none" and not is_here:
            raise ValueError('a password needs tls = "starttls" or "tls"')
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password belong together")
        return self


class CommandSettings(Section):
    """A program to run for each alert, with its arguments, without a shell.

    It gets the alert as JSON on stdin, and is killed after `timeout` seconds.
    """

    run: Annotated[list[str], Field(min_length=1)]
    timeout: _Span = 20


class AlertSettings(Section):
    """Rules of alerts, and where to send them; `AlertRaised` and `AlertResolved` are always fired.

    The running workers check the rules every `every` seconds, one worker at a time. An alert ends
    when nothing was wrong for `calm` seconds; with `resolved`, the end is sent, too. While it
    lasts, it is repeated every `remind` seconds (0: never). `connection` stores the state; default:
    the default connection.
    """

    rules: list[Annotated[str, AfterValidator(_rule)]] = []
    every: Annotated[Float, Field(ge=1, le=3600)] = 10
    calm: Annotated[Float, Field(ge=0, le=86400)] = 60
    remind: Annotated[Float, Field(ge=0, le=YEAR)] = 0
    resolved: bool = True
    connection: str | None = None
    webhook: WebhookSettings | None = None
    mail: MailSettings | None = None
    command: CommandSettings | None = None

    def parsed(self) -> list[Rule]:
        """Return the rules, each once."""
        return [parse(each) for each in dict.fromkeys(self.rules)]
