"""What is stored for a job: written and read again, by us, by Laravel's Lua, and by others."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from importlib import resources
from typing import Any

import pytest
import redis
from hypothesis import assume, example, given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

from qframe import Queueable, payload
from qframe.contracts import History
from qframe.drivers.redis import member
from qframe.exceptions import InvalidPayload
from tests.support.redis_server import RedisServer

# -- payloads of every kind -------------------------------------------------------------------

_SPACE = st.text(" \t\r\n", max_size=2)
_TEXT = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        [
            '"attempts":7,"delay":null}', '{"attempts":1}', '"qframe":{"sent":"3"}', "\n#",
            "qframe", "attempts", "ü\u2028\U0001f600", '\x00\x1f\\/"',
        ]
    ),
)  # fmt: skip
_KEY = st.one_of(
    _TEXT, st.sampled_from(["attempts", "attempts", "qframe", "delay", "uuid", "id", 'k"attempts'])
)
_ODD_NUMBERS = st.sampled_from(
    ["0", "-0", "1", "2.0", "1e3", "-7", "1.50", "123456789012345678901234567890", "1e400", "NaN",
     "-Infinity", "9007199254740993", "0.1e-5", "999999999", "1000000001"]
)  # fmt: skip


@st.composite
def _strings(draw: st.DrawFn, texts: st.SearchStrategy[str] = _TEXT) -> str:
    """Write a string as JSON, some of its characters escaped without need."""
    text = json.dumps(draw(texts), ensure_ascii=draw(st.booleans()))
    if draw(st.booleans()):
        place = draw(st.integers(0, len(text)))
        if text[place : place + 1].isalpha() and "\\" not in text[:place]:
            text = f"{text[:place]}\\u{ord(text[place]):04x}{text[place + 1 :]}"
    return text


def _containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds(
            lambda items, s: f"[{s}{','.join(items)}{s}]", st.lists(inner, max_size=3), _SPACE
        ),
        _objects(inner),
    )


@st.composite
def _objects(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    """Write an object with white space anywhere and keys that may come twice."""
    pairs = draw(st.lists(st.tuples(_strings(_KEY), values), max_size=5))
    space = draw(_SPACE)
    items = [f"{space}{key}{space}:{space}{value}{space}" for key, value in pairs]
    return f"{{{','.join(items) or space}}}"


_NOTES = st.one_of(
    st.sampled_from(
        ['{"sent":"0"}', '{"sent":null}', '{"sent":"}{"}', '{"sent":1}', '{"sent":"1","more":2}',
         '{"history":"x","sent":"0"}', '{"history":"x","id":"y","sent":"[1]"}']
    ),
)  # fmt: skip
_VALUES = st.recursive(
    st.one_of(_strings(), _ODD_NUMBERS, st.sampled_from(["null", "true", "false"]), _NOTES),
    _containers,
    max_leaves=6,
)
_PAYLOADS = st.builds(
    lambda before, text, after: f"{before}{text}{after}".encode(), _SPACE, _objects(_VALUES), _SPACE
)
_ENDS = st.sampled_from(
    [b'"attempts":0,"delay":null}', b'"attempts":3,"delay":1.5}', b'"qframe":{"sent":"0"}}',
     b"\n", b"\n \t", b"\n#", b'\n#"qframe":{}', b'\n#"qframe":{"attempts":2}', b'\n#"qframe":[',
     b"\xff", b"\xc3", b"}"]
)  # fmt: skip
_BYTES = st.one_of(
    st.binary(max_size=30),
    st.builds(lambda text, end: text + end, st.one_of(st.binary(max_size=9), _PAYLOADS), _ENDS),
    _VALUES.map(str.encode),
)
_ANY = st.one_of(_PAYLOADS, _BYTES)
_ATTEMPTS = st.one_of(st.integers(0, 3), st.integers(0, 10**9))
_HISTORY = st.none() | st.text(max_size=8) | st.just('{"attempts":[[1,"h",2,3.5,"",""]]}')
_PAD = st.text(" \t", max_size=4).map(lambda bits: f"\n{bits}".encode())


def _stored(raw: bytes, identity: str | None) -> bytes:
    """Give what a push stores."""
    return member.sent(raw) if identity is None else member.identified(raw, identity)


def _is_object(raw: bytes) -> bool:
    try:
        payload.parse(raw)
    except InvalidPayload:
        return False
    return True


def _without_attempts(raw: bytes) -> str:
    left = {key: value for key, value in payload.parse(raw).items() if key != "attempts"}
    return json.dumps(left, sort_keys=True)


@given(raw=_ANY, identity=st.none() | st.just("an id"))
@example(raw=b"", identity=None)
@example(raw=b"  {}", identity="an id")
@example(raw=b'{"qframe":{"sent":"1"},"job":"x"}', identity=None)
@example(raw=b'{"\\u0071frame":{"sent":null}}', identity=None)
@example(raw=b'{"a":1}\n \n', identity=None)
def test_what_was_pushed_comes_back_byte_for_byte(raw: bytes, identity: str | None) -> None:
    found = member.read(_stored(raw, identity))
    assert found.raw == raw
    assert found.identity == identity
    assert found.history is None
    assert found.unpayable is not _is_object(raw)


@given(raw=_PAYLOADS)
def test_a_stored_payload_is_the_payload(raw: bytes) -> None:
    """Laravel runs it as well: what we add changes no key of it."""
    stored = _stored(raw, "an id")
    mine = payload.parse(stored)
    sent = payload.parse(raw)
    assert mine.pop("qframe")["id"] == "an id"
    assert type(mine.pop("attempts")) is int
    sent.pop("attempts", None)
    sent.pop("qframe", None)
    assert json.dumps(mine) == json.dumps(sent)


@given(
    raw=_ANY,
    identity=st.none() | st.just("an id"),
    pad=st.just(b"") | _PAD,
    rounds=st.lists(st.tuples(_ATTEMPTS, _HISTORY), min_size=1, max_size=4),
)
@example(raw=b'{"a":"b","k\\"attempts":0,"delay":null}', identity=None, pad=b"", rounds=[(1, "h")])
@example(raw=b'{"attempts":5 , "attempts":"x"}', identity=None, pad=b"\n ", rounds=[(1, "h")])
@example(raw=b"\n{ }\r\n\n", identity=None, pad=b"", rounds=[(1, None), (0, None), (2, "h")])
def test_notes_change_and_the_payload_does_not(
    raw: bytes, identity: str | None, pad: bytes, rounds: list[tuple[int, str | None]]
) -> None:
    found = member.read(_stored(raw, identity) + pad)
    if pad:
        found.raw, found.pad = raw, pad  # the pad stands behind what a push may have padded
    for attempts, history in rounds:
        stored = member.write(found, attempts, history)
        found = member.read(stored)
        assert found.raw == raw
        assert found.attempts == attempts
        assert found.history == history
        assert found.identity == identity
        assert found.pad == pad or (not pad and found.pad == b"\n")
        if _is_object(raw):
            assert found.payload is not None
            assert found.payload.get("attempts", 0) == attempts or not (attempts or history)
            told = {k: v for k, v in found.payload.items() if k != "attempts"}
            assert json.dumps(told, sort_keys=True) == _without_attempts(raw)
            assert _is_object(stored), "Laravel reads it too"
        else:
            assert found.unpayable


@given(stored=_ANY, attempts=_ATTEMPTS, history=_HISTORY)
def test_what_others_stored_is_never_refused(
    stored: bytes, attempts: int, history: str | None
) -> None:
    """Pushed by hand, by PHP or by a fool: it is read, can be started, and stays what it was."""
    found = member.read(stored)
    again = member.read(member.write(found, attempts, history))
    assert again.raw == found.raw
    assert again.attempts == attempts
    assert again.history == history


def test_nesting_as_deep_as_can_be_read_is_written_at_any_depth_of_calls() -> None:
    """A parser that recurses has less room where the calls around it are deeper."""
    limit = sys.getrecursionlimit()

    def deeper(calls: int, found: member.Member) -> bytes:
        return deeper(calls - 1, found) if calls else member.write(found, 3, "h")

    for depth in [*range(limit - 90, limit + 10), 2000, 100_000]:
        raw = b'{"job":"x","data":%s%s,"attempts":0}' % (b"[" * depth, b"]" * depth)
        found = member.read(raw)
        assert found.raw == raw
        for calls in (0, 20, 40):
            again = member.read(deeper(calls, found))
            assert (again.raw, again.attempts, again.history) == (raw, 3, "h")


def test_notes_nested_without_end_are_none() -> None:
    raw = b'x\n#"qframe":' + b"[" * 100_000
    found = member.read(raw)
    assert found.raw == raw
    again = member.read(member.write(found, 1, "h"))
    assert (again.raw, again.attempts, again.history) == (raw, 1, "h")


# -- the start as qframe sends it ---------------------------------------------------------------


class _Act(Queueable):
    def handle(self) -> None: ...


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=9,
)  # fmt: skip


@given(
    data=st.dictionaries(_TEXT, _JSON, max_size=4), delay=st.sampled_from([None, 0, 5, 0.25, 1e20]),
    host=_TEXT, pad=st.just(b"") | _PAD,
)  # fmt: skip
def test_the_quick_first_start_is_the_thorough_one(
    data: dict[str, Any], delay: float | None, host: str, pad: bytes
) -> None:
    envelope = payload.create(_Act())
    envelope |= {"data": data, "delay": delay}
    raw = payload.encode(envelope)
    history = History().started(1, host, 7, 1700000000.25).to_json()
    started = member.write(member.read(raw + pad), 1, history)
    quick = member.write_started(raw, pad, json.dumps(history).encode())
    assert quick in ({None, started} if delay is not None else {started})
    found = member.read(started)
    assert (found.raw, found.attempts, found.history, found.pad) == (raw, 1, history, pad)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"attempts":1,"delay":null}',
        b'{"attempts":0,"delay":null,"more":1}',
        b'{"data":{"attempts":0,"delay":null}}',
        b'{"k\\"attempts":0,"delay":null}',
        b'{"attempts":0,"delay":null} ',
        b"",
    ],
)
def test_the_quick_first_start_leaves_all_others_alone(raw: bytes) -> None:
    assert member.write_started(raw, b"", b'"h"') is None


# -- Laravel ------------------------------------------------------------------------------------

_COMMAND = r"O:16:\"App\\Jobs\\Welcome\":1:{s:2:\"id\";i:7;s:4:\"\u0000*\u0000x\";N;}"
PHP = {
    "a string job": (
        r'{"uuid":"9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d","displayName":"app.jobs.SendWelcome",'
        r'"job":"app.jobs.SendWelcome","maxTries":null,"maxExceptions":null,"failOnTimeout":false,'
        r'"backoff":null,"timeout":null,"data":{"user_id":7,"path":"a\/b","who":"J\u00fcrgen"},'
        r'"id":"Wm9vbQ","attempts":0}'
    ),
    "a command": (
        r'{"uuid":"1","displayName":"App\\Jobs\\Welcome",'
        r'"job":"Illuminate\\Queue\\CallQueuedHandler@call","maxTries":3,'
        rf'"data":{{"commandName":"App\\Jobs\\Welcome","command":"{_COMMAND}"}},"tags":[],'
        r'"id":"x","attempts":0,"type":"job","pushedAt":"1700000000.1234"}'
    ),
    "no data": r'{"job":"app.jobs.Old","data":[],"id":"x","attempts":0}',
    "tried before": r'{"job":"app.jobs.Add","data":[1,2.5,true,"x"],"attempts":2,"id":"x"}',
}


@pytest.mark.parametrize("text", PHP.values(), ids=list(PHP))
def test_a_payload_of_php_comes_back_byte_for_byte(text: str) -> None:
    raw = text.encode()
    found = member.read(member.sent(raw))
    before = found.attempts
    for number in (1, 2, 3):
        stored = member.write(found, before + number, "h")
        found = member.read(stored)
        assert found.raw == raw
        assert payload.parse(stored)["attempts"] == found.attempts == before + number


_POP = """
local reserved = cjson.decode(ARGV[1])
reserved['attempts'] = reserved['attempts'] + 1
return cjson.encode(reserved)
"""
_PLAIN = st.recursive(
    st.booleans() | st.integers(-(10**9), 10**9) | st.text(st.characters(codec="utf-8"), max_size=9)
    | _TEXT | st.just(None),
    lambda inner: st.lists(inner, min_size=1, max_size=3)
    | st.dictionaries(_TEXT, inner, min_size=1, max_size=3),
    max_leaves=9,
)  # fmt: skip


def _popped(server: RedisServer, stored: bytes) -> bytes:
    """Do what Laravel's worker does to a member it takes, and puts back when the job failed."""
    popped: bytes = server.command("EVAL", _POP, 0, stored)
    return popped


@run_settings(max_examples=60)
@given(
    data=st.dictionaries(_TEXT.filter(bool), _PLAIN, min_size=1, max_size=5),
    attempts=st.none() | st.integers(0, 5),
    history=st.none() | st.text(st.characters(codec="utf-8"), max_size=9),
)
@example(data={"attempts": 3, "qframe": {"sent": "1"}}, attempts=None, history="h")
def test_after_laravels_lua_the_job_is_the_same(
    running: RedisServer, data: dict[str, Any], attempts: int | None, history: str | None
) -> None:
    """Keys in any order, slashes escaped, one attempt more."""
    own = {key: value for key, value in data.items() if key not in {"attempts", "qframe"}}
    sent = own if attempts is None else {**own, "attempts": attempts}
    raw = json.dumps({**sent, "data": data}, ensure_ascii=False).encode()
    stored = member.write(member.read(_stored(raw, "an id")), 2, history)
    found = member.read(_popped(running, stored))
    assert (found.attempts, found.history, found.identity) == (3, history, "an id")
    assert payload.parse(found.raw) == {**sent, "data": data}
    again = member.read(_popped(running, member.write(found, 7, "later")))
    assert (again.attempts, again.history, again.identity) == (8, "later", "an id")
    assert payload.parse(again.raw) == {**sent, "data": data}


@run_settings(max_examples=60)
@given(raw=_PAYLOADS, history=_HISTORY)
def test_what_laravels_lua_damages_can_still_be_worked(
    running: RedisServer, raw: bytes, history: str | None
) -> None:
    """Empty lists, large numbers and floats do not survive it; our notes do."""
    stored = member.write(member.read(_stored(raw, "an id")), 2, history)
    try:
        damaged = _popped(running, stored)
    except redis.ResponseError:
        assume(False)  # it can make nothing of it
        raise
    found = member.read(damaged)
    assert (found.attempts, found.history, found.identity) == (3, history, "an id")
    again = member.read(member.write(found, 4, "h"))
    assert (again.raw, again.attempts, again.history) == (found.raw, 4, "h")


def test_others_may_write_a_member_with_spaces(running: RedisServer) -> None:
    """Re-encoded by who knows what, keys in place."""
    raw = b'{"job":"x","data":{"a":[1,2]}}'
    stored = member.write(member.read(member.sent(raw)), 2, "h")
    for text in (json.dumps(json.loads(stored)), json.dumps(json.loads(stored), indent=1)):
        found = member.read(text.encode())
        assert (found.attempts, found.history) == (2, "h")
        assert payload.parse(found.raw) == payload.parse(raw)
        again = member.read(member.write(found, 3, None))
        assert (again.raw, again.attempts) == (found.raw, 3)


# -- jobs of the same bytes ---------------------------------------------------------------------

_APART = (resources.files("qframe.drivers.redis") / "lua" / "shared.lua").read_text(
    "utf-8"
) + "\nreturn apart(ARGV[1], tonumber(ARGV[2]))"


@run_settings(max_examples=60)
@given(
    raw=_ANY,
    identity=st.none() | st.just("an id"),
    numbers=st.lists(st.integers(0, 10**6), min_size=1, max_size=3, unique=True),
)
@example(raw=b"", identity=None, numbers=[0])
@example(raw=b"x\n \n", identity=None, numbers=[1, 0])
def test_what_the_server_keeps_apart_is_read_as_the_same(
    running: RedisServer, raw: bytes, identity: str | None, numbers: list[int]
) -> None:
    stored = _stored(raw, identity)
    plain = member.read(stored)
    for number in numbers:
        apart: bytes = running.command("EVAL", _APART, 0, stored, number)
        assert apart != stored
        found = member.read(apart)
        assert found.pad
        assert dataclasses.replace(found, pad=plain.pad, payload=None) == dataclasses.replace(
            plain, payload=None
        )
        stored = member.write(found, found.attempts, found.history)
        assert stored == apart


def test_the_server_keeps_as_many_apart_as_there_are(running: RedisServer) -> None:
    apart = {running.command("EVAL", _APART, 0, b'{"a":1}', number) for number in range(300)}
    assert len(apart) == 300
    assert {member.read(each).raw for each in apart} == {b'{"a":1}'}


# -- large ones ---------------------------------------------------------------------------------

MB = 10_000_000
LARGE = {
    "white space inside": b'{"attempts":0,' + b"\n" * MB + b'"a":1}',
    "white space behind": b'{"a":1}' + b" \n" * (MB // 2),
    "new lines": b"\n" * MB,
    "new lines and blanks": b"\n \t" * (MB // 3),
    "blanks": b"x" + b" " * MB + b"\n",
    "our lines": b'\n#"qframe":' * (MB // 11),
    "our lines at length": b'\n#"qframe":{' + b'"a":{' * (MB // 5),
    "digits": b'{"a":"' + b"1" * MB + b'"}',
    "own attempts": b'{"attempts":"' + b"9" * MB + b'"}',
    "names like ours": b'{"a":[' + b'{"attempts":0,"qframe":0},' * (MB // 26) + b"0]}",
    "text like ours": b'{"a":"' + b',\\"attempts\\":1,\\"qframe\\":' * (MB // 30) + b'"}',
    "many keys": b"{" + b",".join(b'"%d":1' % n for n in range(MB // 100)) + b"}",
    "letters": '{{"a":"{}","attempts":0}}'.format("ü" * (MB // 2)).encode(),
}


@pytest.mark.parametrize("raw", LARGE.values(), ids=list(LARGE))
def test_ten_megabytes_take_moments(running: RedisServer, raw: bytes) -> None:
    began = time.process_time()
    found = member.read(member.sent(raw))
    for attempts in (1, 2):
        found = member.read(member.write(found, attempts, "h"))
        assert (found.raw == raw, found.attempts) == (True, attempts)
    took = time.process_time() - began
    assert took < 60, "grows with the square of the size"
    stored = member.write(found, 3, "h")
    apart = running.command("EVAL", _APART, 0, stored, 5)
    assert member.read(apart).raw == raw
