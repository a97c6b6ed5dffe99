"""ModelKey: the key of a row, in place of the row while that is not loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic_core import to_jsonable_python

from qframe.models import kinds


class ModelKey:
    """The key of a row: what a job has in place of the row before it starts.

    - `model`: the class; `name`: how it is shown, `app.User`.
    - `pk`: the primary key; a tuple if it has several columns.
    - `using`: the alias of Django's database, if it is not the one that the model is written to.

    Of the row's attributes it has those of the primary key: `id`. It equals the row, and shows
    itself as `app.User:7`.
    """

    __slots__ = ("model", "pk", "using")

    def __init__(self, model: type, pk: Any, using: str = "") -> None:  # noqa: ANN401 (any key)
        self.model = model
        self.pk = pk
        self.using = using

    @classmethod
    def of(cls, model: type, row: Any) -> ModelKey:  # noqa: ANN401 (a row, or its key)
        """Return the key of a row. Raises `ValueError` if it is not saved."""
        return row if isinstance(row, ModelKey) else cls(model, *kinds.of(model).key_of(model, row))

    @property
    def name(self) -> str:
        """The name of the model: `app.User`."""
        return kinds.of(self.model).name(self.model)

    def written(self) -> Any:  # noqa: ANN401 (any JSON value)
        """Return how a payload has it. Raises `ValueError` if JSON cannot carry it."""
        key = to_jsonable_python(self.pk)
        return {"key": key, "using": self.using} if self.using else key

    def __eq__(self, other: object) -> bool:
        if isinstance(other, self.model):
            try:
                other = ModelKey.of(self.model, other)
            except ValueError:
                return False
        if not isinstance(other, ModelKey):
            return NotImplemented
        return (self.model, self.pk, self.using) == (other.model, other.pk, other.using)

    def __hash__(self) -> int:
        return hash((self.model, self.pk))

    def __str__(self) -> str:
        using = f"@{self.using}" if self.using else ""
        return f"{self.name}{using}:{key_text(self.pk)}"

    def __repr__(self) -> str:
        return f"<{self}>"

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (a part of the key)
        if name.startswith("_"):
            raise AttributeError(name)
        names = kinds.of(self.model).key_names(self.model)
        if name in names:
            return self.pk[names.index(name)] if len(names) > 1 else self.pk
        raise AttributeError(
            f"{self} is not loaded here and has only `pk`: a job's models are loaded when it starts"
        )


def key_text(pk: object) -> str:
    """Return a primary key as a short text: the parts of a composite one between commas."""
    return ",".join(map(str, pk)) if isinstance(pk, tuple | list) else str(pk)


class KeyInFormat:
    """A row in a format such as that of a group: its key; `{shop.region}` is its attribute."""

    __slots__ = ("_row",)

    def __init__(self, row: Any) -> None:  # noqa: ANN401 (a row, or its key)
        self._row = row

    def __format__(self, spec: str) -> str:
        row = self._row
        key = ModelKey.of(type(row), row) if kinds.is_row(row) else row
        if not isinstance(key, ModelKey):
            return format(row, spec)
        text = key_text(key.pk)
        return format(f"{text}@{key.using}" if key.using else text, spec)

    def __str__(self) -> str:
        return format(self)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (the row's)
        return getattr(self._row, name)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 (of a list or dict of rows)
        return KeyInFormat(self._row[index])


def rows_in(value: Any) -> Iterator[Any]:  # noqa: ANN401 (a field's value)
    """Iterate over the rows and keys in a field: itself, or in a list, tuple or dict."""
    if isinstance(value, ModelKey) or kinds.is_row(value):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from rows_in(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from rows_in(each)


def written(value: Any) -> Any:  # noqa: ANN401 (a result)
    """Return a result with how a payload has its rows in place of them.

    Raises `ValueError` for a row that is not saved.
    """
    if next(rows_in(value), None) is None:
        return value
    if isinstance(value, list | tuple):
        return [written(each) for each in value]
    if isinstance(value, dict):
        return {key: written(each) for key, each in value.items()}
    return ModelKey.of(type(value), value).written()


def with_rows(value: Any, row_of: Callable[[ModelKey], Any]) -> Any:  # noqa: ANN401 (a field's value)
    """Return a field's value with rows in place of keys."""
    if isinstance(value, ModelKey):
        return row_of(value)
    if isinstance(value, list | tuple):
        return type(value)(with_rows(each, row_of) for each in value)
    if isinstance(value, dict):
        return {key: with_rows(each, row_of) for key, each in value.items()}
    return value
