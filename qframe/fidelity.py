"""Whether a value arrives as it was sent: what JSON carries without changing it."""

from __future__ import annotations

import math

from pydantic import ValidationError

from qframe.names import one_line


def plain(value: object) -> bool:
    """Whether JSON carries a value of this very type as it is."""
    kind = type(value)
    return (
        kind is int
        or kind is str
        or kind is bool
        or value is None
        or (kind is float and math.isfinite(value))  # type: ignore[arg-type] # it is a float
    )


def same(sent: object, back: object) -> bool:
    """Whether what came back is what was sent, types included."""
    if type(sent) is not type(back):
        return type(sent) is int and isinstance(back, float) and sent == back
    if isinstance(sent, dict) and isinstance(back, dict):
        return sent.keys() == back.keys() and all(same(v, back[k]) for k, v in sent.items())
    if isinstance(sent, list | tuple) and isinstance(back, list | tuple):
        return len(sent) == len(back) and all(map(same, sent, back))
    if isinstance(sent, float) and not math.isfinite(sent):
        return False
    return sent == back or type(sent).__eq__ is object.__eq__


def first_fault(error: ValidationError | RecursionError) -> str:
    """Put the first fault of a validation into one line that names the field."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(str(part) for part in fault['loc'])}: {one_line(fault['msg'])}"
