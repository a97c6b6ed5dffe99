"""What is in the queues: many at once, rubbish, and jobs nobody knows."""

from __future__ import annotations

import json
import math
import time
from typing import Any

from faults import jobs
from faults.scenario import scenario
from faults.site import Site
from qframe.contracts.step import Start, Step
from qframe.exceptions import QframeError

_KB64 = 65536


@scenario("F33", "foreign keys and rubbish in the queues", "redis")
def foreign(site: Site) -> None:
    """Push by hand what is no payload, and put a key of another type where a queue should be."""
    rubbish = [b"not json", b"\xff\xfe\x00", b"[]", b"{}", b"1", b'"x"', b'{"job": 7}', b"null"]
    good = [site.send(seconds=0.01) for _ in range(20)]
    for raw in rubbish:
        site.redis.command("RPUSH", "queues:default", raw)
    good += [site.send(seconds=0.01) for _ in range(20)]
    site.redis.command("SET", "queues:foreign", "a string")
    site.redis.command("ZADD", "queues:other", 1, "member of a sorted set")
    bad = [site.worker("--queue", queue) for queue in ("foreign", "other")]
    site.begin(2)
    site.wait_for(lambda: len(site.failed()) >= len(rubbish), 30)
    for worker in bad:
        code = worker.wait()
        said = worker.err.strip().splitlines()
        site.check(
            code == 2 and len(said) == 1 and "WRONGTYPE" in said[0],
            f"a worker on a key of another type exited {code} and said {said[:5]}",
        )
    kept = sorted(record.payload for record in site.failed())
    site.check(kept == sorted(rubbish), f"the failed store has {kept}")
    site.check(all(record.exception for record in site.failed()), "a record has no reason")
    site.check(site.redis.command("GET", "queues:foreign") == b"a string", "it was changed")
    site.may_fail = None
    site.remark(f"rubbish {len(rubbish)}, good {len(good)}")
    site.finish()


@scenario("F72", "many jobs due in the same moment")
def same_moment(site: Site) -> None:
    """Let thousands of jobs become due at once: all run, in their order."""
    count = site.count(10_000, 2_000)
    numbers = site.send_many(count, delay=2)
    site.begin(1)
    # Who asks for sizes publishes what is due to a broker, too.
    site.wait_for(lambda: len(site.notes("D")) == count, 60)
    # The handlers of several that run at once come to their first lines as they like.
    started = site.notes("S" if site.concurrency == 1 else "T")
    order = [int(words[1]) for words in started]
    site.check(order == numbers, "they were not started in the order in which they were pushed")
    moments = [float(words[-1]) for words in site.notes("D")]
    site.remark(f"drained in {moments[-1] - moments[0]:.1f} s")
    site.finish()


@scenario("F80", "payloads of every kind")
def payloads(site: Site) -> None:
    """Push what is hard to carry: it comes back byte for byte, or is refused at once."""
    _raw_bytes(site)
    _values(site)
    site.may_fail = None
    site.begin(1)
    site.finish()
    site.check(site.left() == 0, "a worker left some of them")


def _raw_bytes(site: Site) -> None:
    def sized(size: int) -> bytes:
        return (
            json.dumps({"uuid": "a", "pad": ""}).replace('""}', f'"{"x" * (size - 24)}"}}').encode()
        )

    corpus = {
        "0 bytes": b"", "1 byte": b"x", "a null byte": b'{"a": "\0"}', "spaces": b" \n\t ",
        "invalid UTF-8": b'{"a": "\xff\xfe"}', "a lone surrogate": b'{"a": "\\ud800"}',
        "not a number": b'{"a": NaN}', "a large integer": b'{"a": 9223372036854775808}',
        "a float": b'{"a": 0.1, "b": 1e400}', "empty list and map": b'{"a": [], "b": {}}',
        "10,000 deep": b"[" * 10_000 + b"]" * 10_000, "doubled keys": b'{"a": 1, "a": 2}',
        "64 KB less 1": sized(_KB64 - 1), "64 KB": sized(_KB64), "64 KB and 1": sized(_KB64 + 1),
        "1 MB": sized(1_000_000), "line feeds": b'{"a": 1}\n\n', "a payload twice": b'{"a": 1}{}',
    }  # fmt: skip
    refused = []
    for name, raw in corpus.items():
        try:
            site.queue.push_raw(raw, "raw")
        except QframeError as error:
            refused.append(f"{name} ({error})")
            continue
        backend = site.queue.backend
        (job,), _ = backend.reserve(["raw"])
        site.check(job.raw_body == raw, f"{name}: came back changed")
        backend.apply(Step(job, Start(60)))
        backend.apply(job.release())
        (again,), _ = backend.reserve(["raw"])
        site.check(again.raw_body == raw, f"{name}: came back changed after a release")
        backend.apply(again.delete())
    for size in (1_000_001, 64_000_000):
        try:
            site.queue.push_raw(b"x" * size, "raw")
        except QframeError:
            continue
        site.violate(f"{size} bytes were taken")
    site.remark(f"corpus {len(corpus)}, refused {len(refused)}")


def _values(site: Site) -> None:
    deep: Any = 0
    for _ in range(10_000):
        deep = [deep]
    bad: dict[str, Any] = {
        "NaN": math.nan, "infinity": math.inf, "a lone surrogate": "\ud800", "10,000 deep": deep,
        "bytes": b"x", "a set": {1},
    }  # fmt: skip
    for name, value in bad.items():
        try:
            site.send(jobs.Carries, value=value)
        except QframeError:
            continue
        site.violate(f"{name} was taken in a field")
    for value in ("\0", "\U0001f600", 2**63, 0.1, [], {}, "x" * 900_000):
        site.send(jobs.Carries, value=value)


@scenario("F81", "jobs that nobody knows")
def unknown(site: Site) -> None:
    """Push a name that is no job, one that is no job of ours, and arguments that do not fit."""
    bodies: dict[str, dict[str, Any]] = {
        "unknown": {"job": "faults.jobs.Nothing"},
        "renamed": {"job": "faults.elsewhere.Work"},
        "not a job": {"job": "os.system"},
        "signature": {"job": "faults.jobs.Work", "data": {"number": "x", "colour": 1}},
    }
    for _ in range(20):
        site.send(seconds=0.01)
    for name, body in bodies.items():
        site.queue.push_raw(json.dumps({"uuid": name, "displayName": name, **body}))
    for _ in range(20):
        site.send(seconds=0.01)
    site.begin(2)
    began = time.monotonic()
    site.wait_for(lambda: len(site.failed()) >= len(bodies), 30)
    took = time.monotonic() - began
    records = {record.uuid: record for record in site.failed()}
    site.check(records.keys() == bodies.keys(), f"the failed store has {sorted(records)}")
    for name, record in records.items():
        refusals = record.history.refusals
        site.check(refusals == 2, f"{name}: tried {refusals} times before it failed")
        site.check(record.attempts == 0, f"{name}: {record.attempts} attempts were counted")
        site.check(json.loads(record.payload)["uuid"] == name, f"{name}: not as it was sent")
    site.may_fail = None
    site.remark(f"failed after {took:.1f} s, each refused twice")
    site.finish()
