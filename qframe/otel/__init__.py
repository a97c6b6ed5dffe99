"""OpenTelemetry: a span for each dispatch and each attempt, and the metrics of messaging.

`pip install 'qframe[otel]'`, then `[otel] enabled = true`, or `instrument()`.
"""

from qframe.otel.switch import instrument, uninstrument

__all__ = ["instrument", "uninstrument"]
