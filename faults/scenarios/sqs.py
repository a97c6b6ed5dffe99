"""An SQS that refuses calls, takes a part of a batch, and answers too late or not at all."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

from faults import jobs
from faults.scenario import scenario
from faults.site import Producer, Site
from tests.support.ledger import Account, Fault, Run
from tests.support.sqs_server import Delivery, Refusal, SqsServer

_CALLS = (
    "SendMessageBatch", "ReceiveMessage", "DeleteMessage", "DeleteMessageBatch",
    "ChangeMessageVisibility",
)  # fmt: skip
_REFUSALS = (
    Refusal("InternalError", "try again", old="InternalError", status=500),
    Refusal("ThrottlingException", "too fast", old="Throttling", status=400),
    Refusal("ServiceUnavailable", "not now", old="ServiceUnavailable", status=503),
)
_TRIES = 4
"""How often a worker tries to delete a job within its lease, at least."""
_LONGEST_PAUSE = 3.0
"""Seconds between a worker's tries to delete a job, at most: its longest pause (2), and calls."""


@scenario("F65", "calls refused by SQS, and batches taken in part", "sqs")
def refused(site: Site) -> None:
    """Refuse calls that are being made, up to four of a kind in a row: nothing is lost.

    Only a job whose deletion was refused until its lease ended may be done twice.
    """
    wanted, chance, server = site.count(200, 30), site.chance, site.sqs
    site.lease = _TRIES * _LONGEST_PAUSE
    site.limit = site.lease + site.patience(3)
    site.configure()
    site.begin(2)
    site.begin(1, "--concurrency", 10)
    with Producer(site, 0.02, seconds=(0.0, 0.05)) as producer:
        producer.also(jobs.RaisesFreely, failures=1)
        site.resumed(time.monotonic())
        made = Counter[str]()
        before = Counter(server.calls)
        for _ in range(wanted):
            site.wait_for(lambda: bool(_being_made(server, before)))  # noqa: B023 (called at once)
            call = chance.choice(_being_made(server, before))
            refusal, together = chance.choice(_REFUSALS), chance.randint(1, 4)
            before = Counter(server.calls)
            server.refusals += [(call, refusal)] * together
            made[call] += together
            if chance.random() < 0.3:
                server.not_taken.append({chance.randrange(3)})
            site.pause(chance.uniform(0, 0.2))
        site.wait_for(lambda: not server.refusals)
        left = len(server.refusals)
        del server.refusals[:], server.not_taken[:]
    site.check(not left, f"{left} of {made.total()} refusals reached nobody")
    site.remark(
        f"refusals {wanted} ({', '.join(f'{made[call]} {call}' for call in _CALLS)}), "
        f"pushes refused {producer.refused}"
    )
    site.finish(120)
    site.faults += refused_deletions(
        server.deliveries.values(), Account.of(site.ledger), site.lease
    )


def _being_made(server: SqsServer, before: Counter[str]) -> list[str]:
    """Give the calls that were made since they were counted, and of which none is to be refused."""
    refused = {call for call, _ in server.refusals}
    return [each for each in _CALLS if server.calls[each] > before[each] and each not in refused]


def refused_deletions(
    deliveries: Iterable[Delivery], account: Account, lease: float
) -> list[Fault]:
    """Give a fault for each run whose own deletion SQS refused until the lease of it ended.

    From the last line of the job to the end of its lease, its worker has to have tried again and
    again, with no pause longer than its longest. SQS, which takes whole seconds, hides the message
    for up to a second longer than the `lease` for which the worker tries.
    """
    found = []
    of_job: dict[str, list[Delivery]] = defaultdict(list)
    for each in deliveries:
        with suppress(ValueError, KeyError, TypeError):
            of_job[str(json.loads(each.message.body)["data"]["number"])].append(each)
    for name, runs in account.runs.items():
        for run in runs:
            delivery = _of(run, of_job[name])
            if run.done and delivery is not None and _is_refused(delivery, run.done, lease):
                found.append(Fault("refused", run.done, delivery.ends, run.pid, name))
    return found


def _of(run: Run, deliveries: list[Delivery]) -> Delivery | None:
    """Give the delivery that a run began with."""
    before = [each for each in deliveries if each.began <= run.begun]
    return max(before, key=lambda each: each.began, default=None)


def _is_refused(delivery: Delivery, done: float, lease: float) -> bool:
    ends = min(delivery.began + lease, delivery.ends)
    tries = [each for each in delivery.refused if done <= each <= ends]
    pauses = [after - before for before, after in pairwise([done, *tries, ends])]
    return bool(tries) and not delivery.deleted and max(pauses) <= _LONGEST_PAUSE


@scenario("F66", "calls that SQS answers when their leases have run out", "sqs")
def slow(site: Site) -> None:
    """Answer calls of each kind late: what is received too late is not run, and comes back."""
    server, rounds, late = site.sqs, site.count(4, 2), list[str]()
    site.configure(timeout=2 * site.lease)
    server.slow = lambda call, answer: 1.3 * site.lease if _took(late, call, answer) else 0.0
    site.begin(4)
    with Producer(site, 0.05, seconds=(0.0, 0.05)) as producer:
        producer.also(jobs.RaisesFreely, failures=1)
        site.resumed(time.monotonic())
        for call in _CALLS * rounds:
            late += [call] * 2
            site.pause(1.5 * site.lease + site.chance.random())
        left = len(late)
        late.clear()
    site.check(left <= rounds * 2, f"{left} calls were not made")  # one worker deletes one by one
    site.remark(f"late {len(_CALLS) * rounds * 2 - left}, pushes refused {producer.refused}")
    site.limit = None
    site.finish(120)


def _took(late: list[str], call: str, answer: dict[str, Any]) -> bool:
    """Take a call from those that are to be late: of those that receive, one that got messages."""
    if call == "ReceiveMessage" and not answer.get("Messages"):
        return False
    try:
        late.remove(call)
    except ValueError:
        return False
    return True
