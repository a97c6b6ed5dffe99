"""A qframe driver for NATS JetStream: `driver = "nats"`."""

from .backend import NatsBackend
from .settings import NatsSettings

__all__ = ["NatsBackend", "NatsSettings"]
