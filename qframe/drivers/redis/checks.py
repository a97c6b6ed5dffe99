"""The Redis part of `qframe check`: version, and settings that could lose jobs."""

from __future__ import annotations

from contextlib import suppress

from qframe.contracts.backend import Health
from qframe.drivers.redis.commands import command
from qframe.drivers.redis.connection import RedisConnection
from qframe.drivers.redis.settings import RedisSettings
from qframe.exceptions import BackendUnavailable, BackendUnusable

_OLDEST = (6, 0, 6)
_LOCAL = ("127.", "[::1]", "localhost")


def health(connection: RedisConnection, settings: RedisSettings) -> Health:
    """Return the kind and version of the server, and its unsafe settings."""
    info = _info(connection, settings)
    version = f"Redis {info.get('redis_version', '')}"
    if info.get("server_name") == "valkey":
        version = f"Valkey {info.get('valkey_version', '')}"
    return Health(version, tuple(_warnings(connection, settings, info)))


def _warnings(
    connection: RedisConnection, settings: RedisSettings, info: dict[str, str]
) -> list[str]:
    found = []
    number = info.get("redis_version", "")
    if number and _numbers(number) < _OLDEST:
        found.append(f"Redis {number} is too old, 6.0.6 or newer is needed")
    if info.get("role") == "slave":
        found.append("the server is a replica: pushes are refused, connect to its master")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy.startswith("allkeys"):
        found.append(
            f"maxmemory-policy {policy} deletes waiting jobs when memory runs short, "
            "set it to noeviction"
        )
    elif policy != "noeviction":
        found.append(
            f"maxmemory-policy {policy} deletes locks and pauses when memory runs short, "
            "set it to noeviction"
        )
    elif _is_full(info):
        found.append("the memory is full (maxmemory): pushes are refused")
    found += _about_persistence(connection, info)
    found += _about_access(connection, settings)
    return found


def _is_full(info: dict[str, str]) -> bool:
    most = int(info.get("maxmemory", 0))
    # The server does not count its replication and append-only buffers towards the limit.
    used = int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))
    return 0 < most <= used


def _about_persistence(connection: RedisConnection, info: dict[str, str]) -> list[str]:
    if info.get("aof_enabled") == "1":
        if info.get("aof_last_write_status", "ok") != "ok":
            return ["the last write to the append-only file failed, jobs may not survive a restart"]
        if _config(connection, "appendfsync") == "no":
            return ["appendfsync no: a power loss can lose many seconds of jobs, set everysec"]
        return []
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return ["the last snapshot failed, jobs may not survive a restart"]
    if _config(connection, "save") == "":
        return ["nothing is written to disk, a restart loses all jobs, set appendonly yes"]
    return ["a restart loses the jobs since the last snapshot, set appendonly yes"]


def _about_access(connection: RedisConnection, settings: RedisSettings) -> list[str]:
    url = settings.shown_url()
    host = url.split("://", 1)[1]
    if url.startswith("unix") or host.startswith(_LOCAL):
        return []
    found = []
    if "@" not in settings.url and _config(connection, "requirepass") in ("", None):
        found.append(f"{host} is reached without a password: whoever reaches it runs jobs here")
    if not settings.is_tls():
        found.append(f"{host} is reached without TLS: passwords and jobs can be read on the way")
    return found


def _info(connection: RedisConnection, settings: RedisSettings) -> dict[str, str]:
    (text,) = connection.ask(command("INFO"))
    lines = (line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
    info = {key: value.strip() for key, value in lines}
    if info.get("cluster_enabled") == "1" and not settings.cluster:
        raise BackendUnusable(f"{settings.shown_url()}: it is a cluster, set cluster = true")
    return info


def _config(connection: RedisConnection, name: str) -> str | None:
    """Return a setting of the server; None if it may not be read."""
    with suppress(BackendUnavailable):
        (pair,) = connection.ask(command("CONFIG", "GET", name))
        if len(pair) == 2:  # noqa: PLR2004 (name and value)
            return str(pair[1].decode())
    return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
