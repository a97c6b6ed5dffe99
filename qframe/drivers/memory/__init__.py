"""Messages and facts in this process's memory: the reference that other backends agree with."""

from qframe.config import ConnectionSettings
from qframe.drivers.memory.backend import MemoryBackend


def opened(name: str, settings: ConnectionSettings) -> MemoryBackend:
    """Give a connection a memory of its own."""
    del name, settings
    return MemoryBackend()
