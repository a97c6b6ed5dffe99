"""Redis: Laravel's lists and sorted sets, with leases, fences and counted starts."""

from qframe.drivers.redis.queue import RedisQueue

__all__ = ["RedisQueue"]
