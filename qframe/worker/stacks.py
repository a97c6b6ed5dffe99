"""Stacks: where the threads of workers are, asked for by a fact and answered by each heartbeat.

A worker whose job holds the interpreter (in C code) does not answer.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from qframe.drivers.store import Store
from qframe.payload.text import printable

EVERY = 5.0
"""Seconds between two looks of a worker whether somebody asks."""
PATIENCE = EVERY + 2.0
"""Seconds in which every worker that can answer has."""
ASKED = "stacks:asked"
_ASKED_FOR = 30.0
_KEPT = 60.0
_PAUSE = 0.25
_MOST_THREADS = 50
_MOST_FRAMES = 60
_LONGEST = 40_000


def _answer_key(worker: str) -> str:
    return f"stacks:of:{worker}"


class StackAnswers:
    """Answers for one worker, at most once to each question.

    `asked` returns the question, if there is one, `elsewhere` the stacks of jobs in processes of
    their own.
    """

    def __init__(
        self,
        store: Store,
        worker: str,
        asked: Callable[[], str | None],
        elsewhere: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._store, self._worker, self._asked = store, worker, asked
        self._elsewhere = elsewhere
        self._looks_at = 0.0
        self._answered: str | None = None

    def look(self) -> None:
        """Answer if somebody asks; called each second, it looks every five."""
        now = time.monotonic()
        if now < self._looks_at:
            return
        self._looks_at = now + EVERY
        asked = self._asked()
        if asked is not None and asked != self._answered:
            jobs = [f"{name}:\n  {text}\n\n" for name, text in self._elsewhere().items()]
            text = "".join([*jobs, taken()])[:_LONGEST]
            answer = json.dumps({"asked": asked, "text": text})
            self._store.set(_answer_key(self._worker), answer, _KEPT)
            self._answered = asked


def taken() -> str:
    """Return the stacks of all threads of this process as text, without the values in them."""
    names = {each.ident: each.name for each in threading.enumerate()}
    parts: list[str] = []
    for ident, frame in [*sys._current_frames().items()][:_MOST_THREADS]:  # noqa: SLF001 (its name)
        lines = traceback.format_stack(frame)[-_MOST_FRAMES:]
        parts.append(f"{printable(names.get(ident, str(ident)), 80)}:\n{''.join(lines)}")
    return "\n".join(sorted(parts))


def ask(store: Store, workers: Iterable[str], patience: float = PATIENCE) -> dict[str, str]:
    """Return the stacks of the workers that answer within `patience` seconds, by their ids.

    Raises `BackendUnavailable`.
    """
    token, left, found = secrets.token_hex(8), [*workers], dict[str, str]()
    if not left:
        return found
    store.set(ASKED, token, _ASKED_FOR)
    ends = time.monotonic() + patience
    while left and time.monotonic() < ends:
        time.sleep(_PAUSE)
        texts = store.get(*(_answer_key(each) for each in left))
        for worker, text in zip([*left], texts, strict=True):
            with suppress(ValueError, TypeError, KeyError):  # of another version
                answer = json.loads(text or "{}")
                if answer["asked"] == token:
                    found[worker] = str(answer["text"])
                    left.remove(worker)
    return found
