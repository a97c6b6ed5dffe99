"""The four messaging metrics, with the buckets of the conventions."""

from __future__ import annotations

from opentelemetry.metrics import Histogram, Meter

from qframe.otel.attributes import Values

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class Measures:
    """Counts sent and consumed messages and their durations."""

    def __init__(self, meter: Meter) -> None:
        self._sending = _seconds(
            meter, "messaging.client.operation.duration", "Duration of sending messages."
        )
        self._processing = _seconds(
            meter, "messaging.process.duration", "Duration of processing a message."
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages a producer tried to send."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages given to a consumer."
        )

    def sent(self, count: int, seconds: float, values: Values) -> None:
        """Count messages that were sent together."""
        self._sending.record(seconds, values)
        self._sent.add(count, values)

    def processed(self, seconds: float, values: Values) -> None:
        """Count an attempt."""
        self._processing.record(seconds, values)
        self._consumed.add(1, values)


def _seconds(meter: Meter, name: str, description: str) -> Histogram:
    return meter.create_histogram(
        name, "s", description, explicit_bucket_boundaries_advisory=BUCKETS
    )
