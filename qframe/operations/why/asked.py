"""Asked: finds what a word means, a job, a queue or a class, and explains it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property

from qframe.exceptions import BackendUnavailable, ConfigurationError, QframeError
from qframe.jobs import project
from qframe.operations import ids, one_job
from qframe.operations.board import Board
from qframe.operations.one_job import Located
from qframe.operations.why import ended, of_class, of_job, of_queue
from qframe.operations.why.look import ConnectionLook
from qframe.operations.why.reason import Explanation, Reasons, Why, command, together
from qframe.operations.why.takers import near, takes
from qframe.payload.text import is_queue_name, is_queue_pattern, one_line

KINDS = ("job", "queue", "class")
_UUID = 36
"""Characters of a whole uuid."""


def explain(
    board: Board, word: str, kind: str = "", connection: str = "", *, imports: bool = False
) -> Why:
    """Explains a job, queue or class; without `kind` it tries them in this order.

    `board` has the connections to look at, `connection` is the only one of a queue or class.
    `imports`: whether the code of jobs may be imported, which knows their limits. Raises
    `AmbiguousId`, `ConfigurationError` for an unknown kind or connection, and `BackendUnavailable`
    if no connection answers.
    """
    if kind not in {"", *KINDS}:
        raise ConfigurationError(f"{one_line(kind, 40)!r} is none of {', '.join(KINDS)}")
    if "\0" in word or not word.strip():
        raise ConfigurationError("say what: the id of a job, a queue or a class")
    if connection:
        board.connection(connection)  # raises for an unknown one
    board.forget("workers")
    if imports:
        project.put_on_path()
    found = _Finder(board, word, connection, imports=imports).found(kind)
    answering = [each for each in board.connections() if each.name not in board.silent]
    if not answering and board.silent:
        raise BackendUnavailable("; ".join(board.silent.values()))
    for each in found:
        _name_silent(board, each)
    return Why(asked=one_line(word, 200), found=found)


class _Finder:
    """Looks for what a word means."""

    def __init__(self, board: Board, word: str, connection: str, *, imports: bool) -> None:
        self.board = board
        self.word = word
        self.connection = connection
        self.imports = imports

    def found(self, kind: str) -> list[Explanation]:
        if kind in {"", "job"} and (made := self._job(any_text=kind == "job")) is not None:
            return [made]
        if kind in {"", "queue"} and (made_of_queues := [*self._queues(must=kind == "queue")]):
            return made_of_queues
        if kind in {"", "class"} and (made_of_class := [*self._classes(must=kind == "class")]):
            return made_of_class
        if not kind and (made := self._job(any_text=True)) is not None and made.about == "job":
            return [made]
        return [self._nothing(kind)]

    @cached_property
    def looks(self) -> list[ConnectionLook]:
        """The connections that answer, of those to look at: what is read of them is read once."""
        found = []
        for each in self.board.connections():
            if self.connection in {"", each.name}:
                look = ConnectionLook(self.board, each, imports=self.imports)
                with suppress(BackendUnavailable):
                    look.pauses()
                    found.append(look)
        return found

    # -- jobs -------------------------------------------------------------------------------------

    def _job(self, *, any_text: bool) -> Explanation | None:
        """Explains a job by its id; with `any_text` the id may be any, as of other programs."""
        board, word = self.board, self.word
        if not self._may_be_job:
            return None
        at = time.time()
        is_id = any_text or len(word) >= _UUID
        found = of_job.locate(board, word, self.connection) if is_id else None
        if found is None or not found.is_known:
            whole = one_job.whole_id(board, word)
            if whole is not None:
                word = whole
                at = time.time()
                found = of_job.locate(board, word, self.connection)
        if found is None:
            return None
        if not found.is_known and self.connection:  # it may be on another one
            at = time.time()
            found = of_job.locate(board, word)
        if found.is_known:
            made = of_job.explain(board, word, found, at, imports=self.imports)
            if self.connection not in {"", made.connection}:
                made.unknown.insert(0, f"why it would be on {self.connection}: it is not there")
            return made
        return self._not_there(word, found) if self._is_uuid or any_text else None

    def _not_there(self, word: str, found: Located) -> Explanation:
        made = of_job.nothing(self.board, word, found, imports=self.imports)
        if ids.may_be_part(self.word):
            made.unknown.append("a part of the id of a waiting job is not searched: give all of it")
        return made

    @property
    def _is_uuid(self) -> bool:
        """Whether the word can be nothing but the id of a job."""
        parts = self.word.split("-")
        return len(self.word) == _UUID and [*map(len, parts)] == [8, 4, 4, 4, 12]

    @property
    def _may_be_job(self) -> bool:
        return len(self.word) <= 200  # noqa: PLR2004 (the longest id that has a status)

    # -- queues -----------------------------------------------------------------------------------

    def _queues(self, *, must: bool) -> Iterator[Explanation]:
        if not is_queue_name(self.word):
            return
        known = [look for look in self.looks if self._is_queue_of(look)]
        for look in known or (self.looks[:1] if must else ()):
            yield of_queue.explain(look, self.word)

    def _is_queue_of(self, look: ConnectionLook) -> bool:
        """Whether a connection has jobs, workers, a pause or counts of the queue."""
        word, settings = self.word, self.board.manager.settings
        is_configured = word in settings.queues or word in settings.forward
        if is_configured and look.name == settings.default:
            return True
        if word == look.connection.default_queue or word in look.pauses().value:
            return True
        if word in look.queues().value:
            return True
        if any(word in each.queues and takes(each, word) for each in look.entries().value):
            return True
        active = look.activity().value
        return active is not None and any(pair.queue == word for pair in active.series)

    # -- classes ----------------------------------------------------------------------------------

    def _classes(self, *, must: bool) -> Iterator[Explanation]:
        names = [*self._class_names()]
        same = [each for each in names if each == self.word]
        ends = [each for each in names if each.endswith(f".{self.word}")]
        name = next(iter([*same, *ends]), "")
        if not name:
            yield from self._uncounted_class(must=must)
            return
        there = [look for look in self.looks if self._has_class(look, name)]
        for look in there or self.looks[:1]:
            yield of_class.explain(look, name)

    def _uncounted_class(self, *, must: bool) -> Iterator[Explanation]:
        """Explains a class of which no job was ever counted, if jobs of it wait."""
        if not (must or "." in self.word or "\\" in self.word):
            return
        for look in self.looks:
            made = of_class.explain(look, self.word)
            if must or made.state != of_class.NONE_WAITS:
                yield made

    def _class_names(self) -> Iterable[str]:
        registry = self.board.manager.registry
        found: dict[str, None] = {}
        for look in self.looks:
            active = look.activity().value
            if active is not None:
                found |= dict.fromkeys(pair.job for pair in active.series if pair.job)
            found |= dict.fromkeys(_counted_classes(self.board, look.name))
        found |= dict.fromkeys(each.job for each in self.board.failed.summary().causes)
        if registry.known(self.word) is not None:
            found[self.word] = None
        elif self.imports and "." in self.word:
            with suppress(QframeError):
                registry.find(self.word)
                found[self.word] = None
        return found

    def _has_class(self, look: ConnectionLook, name: str) -> bool:
        active = look.activity().value
        if active is not None and any(pair.job == name for pair in active.series):
            return True
        return name in _counted_classes(self.board, look.name)

    # -- nothing ----------------------------------------------------------------------------------

    def _nothing(self, kind: str) -> Explanation:
        why, looks = Reasons(), self.looks
        at = min((look.pauses().at for look in looks), default=time.time())  # what was read first
        queues = {name for look in looks for name in look.queues().value}
        queues |= {
            name
            for look in looks
            for each in look.entries().value
            for name in each.queues
            if not is_queue_pattern(name)
        }
        names = {*self._class_names()}
        known = {"queue": queues, "class": names}.get(kind, queues | names)
        other = near(self.word, known)
        hint = f" (did you mean {other}?)" if other else ""
        shown = one_line(self.word, 100)
        where = together((look.name for look in looks), 5)
        text = (
            f"nothing is known of {shown!r} on {where or 'any connection'}{hint}: no job has such "
            "an id, no queue of this name has jobs, workers or a pause, and no job of such a class "
            "was counted"
        )
        why.add("absent", text, at, command("why", other) if other else "")
        for look in looks:
            if is_queue_name(self.word):
                ended.elsewhere(look, self.word, why)
        return why.explained("nothing", "not known")


def _counted_classes(board: Board, name: str) -> set[str]:
    """Returns the classes of which jobs of a connection were ever counted."""
    return {job for connection, _, job, _ in board.totals() if connection == name and job}


def _name_silent(board: Board, made: Explanation) -> None:
    """Says which connections did not answer, so that more may be there."""
    for name, text in sorted(board.silent.items()):
        if not any(each.kind == "silent" and name in each.text for each in made.reasons):
            made.unknown.append(f"{name} does not answer: {one_line(text, 200)}")
