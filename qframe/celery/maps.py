"""Maps: a task called for each item of a list, in one task or in a group of parts of the list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from qframe.celery.canvas import Signature, group, maybe_signature
from qframe.payload.text import one_line

MAP: Final = "celery.map"
STARMAP: Final = "celery.starmap"
_MOST: Final = 1_000_000


def xmap(task: Any, it: Iterable[Any], **options: Any) -> Signature:
    """Return one task that calls another with each item in turn; its result is the list."""
    return _mapped(MAP, task, it, options)


def xstarmap(task: Any, it: Iterable[Sequence[Any]], **options: Any) -> Signature:
    """As `xmap`; each item is a list of arguments."""
    return _mapped(STARMAP, task, it, options)


class chunks(group):  # noqa: N801 (Celery's name)
    """A group of `xstarmap`, each of at most `n` items; its result is a list of their lists."""

    def __init__(self, task: Any, it: Iterable[Sequence[Any]], n: int, **options: Any) -> None:
        super().__init__([xstarmap(task, part) for part in _parts(it, n)], **options)

    def group(self) -> group:
        """Return the group."""
        return group(dict(self))


def _mapped(name: str, task: Any, it: Iterable[Any], options: dict[str, Any]) -> Signature:
    given = {"task": maybe_signature(task), "it": list(it)}
    return Signature(name, (), given, options, immutable=True)


def _parts(it: Iterable[Any], n: int) -> Iterator[list[Any]]:
    if type(n) is not int or not 1 <= n <= _MOST:
        raise ValueError(f"a chunk has 1 to {_MOST:,} items, not {one_line(repr(n), 40)}")
    left = iter(it)
    while part := list(islice(left, n)):
        yield part
