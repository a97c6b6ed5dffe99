"""The trace context in a payload, in the keys of W3C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from qframe.payload import envelope

_KEYS = ("traceparent", "tracestate")
_W3C = TraceContextTextMapPropagator()


def put(payload: dict[str, Any], context: Context) -> None:
    """Add a context to a payload."""
    carried: dict[str, str] = {}
    _W3C.inject(carried, context)
    envelope.add(payload, carried)


def origin(payload: Mapping[str, Any]) -> Context | None:
    """Return the context in a payload; None if it has none."""
    carried = {key: payload[key] for key in _KEYS if isinstance(payload.get(key), str)}
    if not carried:
        return None
    context = _W3C.extract(carried, Context())
    found = trace.get_current_span(context).get_span_context()
    return context if found.is_valid else None


def links(payload: Mapping[str, Any]) -> list[Link]:
    """Return the link to it, if there is one."""
    found = origin(payload)
    return [] if found is None else [Link(trace.get_current_span(found).get_span_context())]
