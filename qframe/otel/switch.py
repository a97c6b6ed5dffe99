"""instrument: turns tracing of jobs on for this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qframe.exceptions import ConfigurationError
from qframe.jobs import named
from qframe.jobs.tracing import active

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from qframe.config import OtelSettings


def instrument(
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    *,
    links: bool = True,
) -> None:
    """Trace every dispatch and every attempt, by default with the global providers.

    An attempt is its own trace with a link to the dispatch, or with `links=False` a child of it. A
    second call replaces the providers. Raises `ConfigurationError` if opentelemetry-api is not
    installed.
    """
    try:
        from qframe.otel.spans import Spans  # noqa: PLC0415 (only tracing needs it)
    except ImportError as error:
        raise ConfigurationError(
            f"otel: opentelemetry-api is missing: pip install 'qframe[otel]' ({error})"
        ) from None
    active.tracing = Spans(tracer_provider, meter_provider, links=links)


def uninstrument() -> None:
    """Turn tracing off."""
    active.tracing = None


def configure(settings: OtelSettings) -> None:
    """Apply the configuration, unless the program has already turned tracing on."""
    if not settings.enabled:
        return
    if settings.setup is not None:
        named.function("otel.setup", settings.setup)()
    if active.tracing is None:
        instrument(links=settings.relation == "link")
