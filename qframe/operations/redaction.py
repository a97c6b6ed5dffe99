"""Redaction: text and settings without secrets: known ones by value, others by name or form."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydantic import BaseModel, SecretBytes, SecretStr

from qframe.config import Settings

STARS = "***"
_NAME = (
    r"pass(?:word|wd|phrase)?|pwd|secret|token|credential|authorization|cookie|session|signature|"
    r"dsn|salt|private|bearer|(?:api|access|signing|encryption|account|shared|auth)[_-]?keys?"
)
_NAMED = re.compile(
    rf"(?i)(?:^|[^a-z])(?:{_NAME})|(?:^|[_.-])(?:keys?|auth|pw|sig)$|passw|secret|token"
)
"""Names of what is secret."""
_FLAG = re.compile(rf"(?i)-{{1,2}}[\w-]*(?:{_NAME}|key|auth)[\w-]*")
_VALUE = (
    r"(?:\\+[\"'][^\"'\\]*+|[a-z]{0,2}\"(?:[^\"\\]|\\.)*+\"|[a-z]{0,2}'(?:[^'\\]|\\.)*+'"
    r"|[^\s,;&\"']+)"
)
"""A value: in quotes of JSON within a text, in quotes, or a word."""
_URL = re.compile(r"[^\s\"'<>]++")
# Each form is linear: these texts may be long, and a match holds the interpreter.
_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL), STARS),
    (re.compile(r"(?i)\b((?:authorization|cookie):\s*+)[^\n\"']++"), rf"\1{STARS}"),
    (re.compile(r"(?i)\b(bearer|basic|digest|token)(\s+)[\w.~+/=-]{6,}"), rf"\1\2{STARS}"),
    (
        re.compile(
            rf"(?i)(?<![\w.-])(?=[\w.-]*?(?:{_NAME}))"
            rf"([\w.-]++(?:\\*+[\"'])?\s*+(?:[=:]|%3D)\s*+){_VALUE}"
        ),
        rf"\1{STARS}",
    ),
    (
        re.compile(
            rf"(?i)(?<!\S)(?=-[\w-]*?(?:{_NAME}|key|auth))(-{{1,2}}[\w-]++(?:\s++|=))"
            rf"(?:{_VALUE}|\S+)"
        ),
        rf"\1{STARS}",
    ),
    (re.compile(r"(?i)(\bidentified by )'[^']*+'"), rf"\1{STARS}"),
    (re.compile(r"(hooks\.slack\.com/\w++/)[\w/]++"), rf"\1{STARS}"),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}"), STARS),
    (
        re.compile(r"\b(?:gh[pousr]_|github_pat_|xox[a-z]-|[sr]k_(?:live|test)_|glpat-)[\w-]{8,}"),
        STARS,
    ),
    (re.compile(r"\b(?:npm_|hf_|dop_v1_|whsec_|pypi-|sk-|SG\.)[\w.-]{20,}"), STARS),
    (re.compile(r"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]+(?:\.[\w-]*)?"), STARS),
    (re.compile(r"\bbase64:[\w+/]{16,}={0,2}|(?<![\w+/=.-])[\w+/]{43}=(?![\w=])"), STARS),
    (
        re.compile(
            r"(?<![\w+/=.-])(?=[\w+/]*\d)(?=[\w+/]*[a-z])(?=[\w+/]*[A-Z])"
            r"[\w+][\w+/]{39}(?![\w+/=.-])"
        ),
        STARS,
    ),
    (re.compile(r"(?<![\w-])(?=[\w-]*\d)(?=[\w-]*[a-z])(?=[\w-]*[A-Z])[\w-]{32,}={0,2}"), STARS),
)
_SHORTEST = 3
_SHORTEST_OF_ENVIRONMENT = 6
_SHORTEST_PART = 8
_PARTS = re.compile(r"[\s,;:=\"'{}\[\]]+")
"""What is between the secrets of one variable: `shop:one,blog:two`, JSON, several lines."""
_NEXT_URL = re.compile(r"[\s,;]+(?=\w+://)")
_HARMLESS = {"PWD", "OLDPWD"}
_DEEPEST = 30


class Redactor:
    """Removes the secrets of some settings, of the environment, and what looks like one."""

    def __init__(self, settings: Settings | None) -> None:
        secrets = {*_of_environment()}
        if settings is not None:
            secrets.update(_of(settings, is_secret=False))
        forms = {form for each in secrets for form in _written(each)}
        longest_first = sorted((each for each in forms if len(each) >= _SHORTEST), key=len)[::-1]
        self._known = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        text = _URL.sub(_without_account, self._known.sub(STARS, text))
        for form, shown in _FORMS:
            text = form.sub(shown, text)
        return text

    def clean(self, value: Any, *, named: bool = False, depth: int = 0) -> Any:  # noqa: ANN401 (any JSON value)
        """Return a JSON value without secrets; with `named` also without values of such names."""
        if depth > _DEEPEST:
            return "..."
        if isinstance(value, BaseModel):
            value = {name: getattr(value, name) for name in type(value).model_fields}
        if isinstance(value, Mapping):
            return {
                self.text(str(key)): STARS
                if named and _NAMED.search(str(key)) and each and not isinstance(each, bool)
                else self.clean(each, named=named, depth=depth + 1)
                for key, each in value.items()
            }
        if isinstance(value, list | tuple | set | frozenset):
            return self._listed([*value], named=named, depth=depth + 1)
        if value is None or isinstance(value, bool | int | float):
            return value
        return STARS if isinstance(value, SecretStr | SecretBytes) else self.text(str(value))

    def _listed(self, values: list[Any], *, named: bool, depth: int) -> list[Any]:
        """Clean a list; in the words of a command, what follows `--token` is secret."""
        found: list[Any] = []
        for at, each in enumerate(values):
            before = values[at - 1] if at else ""
            is_after = isinstance(before, str) and _FLAG.fullmatch(before) is not None
            found.append(STARS if is_after else self.clean(each, named=named, depth=depth))
        return found


def _without_account(found: re.Match[str]) -> str:
    """Return a word without what is before the last `@` of a URL in it."""
    scheme, mark, rest = found[0].partition("://")
    _, at, place = rest.rpartition("@")
    return f"{scheme}{mark}{STARS}@{place}" if at else f"{scheme}{mark}{rest}"


def _of_environment() -> Iterator[str]:
    for name, value in os.environ.items():
        for each in {value, *_NEXT_URL.split(value)} if "://" in value else ():
            yield from _of_url(each)
        is_secret = _NAMED.search(name) and name not in _HARMLESS
        if is_secret and len(value) >= _SHORTEST_OF_ENVIRONMENT:
            yield value
            yield from (each for each in _PARTS.split(value) if len(each) >= _SHORTEST_PART)


def _of(value: object, *, is_secret: bool) -> Iterator[str]:
    """Yield the secrets in settings; `is_secret`: the name of the value says that it is one."""
    if isinstance(value, SecretStr):
        secret = value.get_secret_value()
        yield secret
        yield from _of_url(secret)
    elif isinstance(value, str):
        if is_secret:
            yield value
        yield from _of_url(value)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _of(getattr(value, name), is_secret=bool(_NAMED.search(name)))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _of(each, is_secret=is_secret or bool(_NAMED.search(str(key))))
    elif isinstance(value, Iterable) and not isinstance(value, bytes):
        for each in value:
            yield from _of(each, is_secret=is_secret)


def _of_url(text: str) -> Iterator[str]:
    if "://" not in text:
        return
    rest = text.partition("://")[2]
    account = rest.rpartition("@")[0]
    if password := account.partition(":")[2]:
        yield password
        yield unquote(password)
    try:
        query = urlsplit(text).query
    except ValueError:
        return
    for key, value in parse_qsl(query):
        if _NAMED.search(key):
            yield value


def _written(secret: str) -> Iterator[str]:
    """Yield the forms in which a text may show a secret."""
    yield secret
    yield quote(secret)
    yield quote(secret, safe="")
    yield json.dumps(secret)[1:-1]
    yield repr(secret)[1:-1]
