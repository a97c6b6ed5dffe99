"""SqsBackend: jobs in queues of Amazon SQS; long delays, attempts and notes are facts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from qframe.contracts.backend import Backend, Capability, Health, Timing
from qframe.contracts.queue import Sizes
from qframe.drivers.broker.backend import BrokerBackend
from qframe.drivers.broker.blocking import BlockingReceive
from qframe.drivers.broker.message import BrokerJob, BrokerMessage
from qframe.drivers.guard import guarded
from qframe.drivers.parts import in_parts
from qframe.drivers.sockets import limited
from qframe.drivers.sqs import checks, wire
from qframe.drivers.sqs.client import SqsClient
from qframe.drivers.sqs.errors import NotInFlight, of_code
from qframe.drivers.sqs.overflow import Overflow
from qframe.drivers.sqs.settings import LONGEST_LEASE, LONGEST_MESSAGE, SqsSettings, is_fifo
from qframe.exceptions import BackendUnavailable, InvalidQueueName, QframeError

_PAUSE = 0.1
"""Seconds until the messages of a batch that SQS did not take are sent again."""


class Receipt(NamedTuple):
    """What a delivery is acknowledged by."""

    handle: str
    path: str
    """Where the payload is in S3; "" if the message has it."""


class SqsBackend(BrokerBackend):
    """Messages in queues of SQS. A message's lease is its visibility timeout."""

    settings_model = SqsSettings
    capabilities = (
        BrokerBackend.capabilities
        | Capability.AHEAD
        | Capability.WAIT
        | Capability.SIZE
        | Capability.PURGE
        | Capability.DURABLE
    )
    longest_delay = 900.0
    longest_release = longest_lease = LONGEST_LEASE - 60.0  # for slow answers

    def __init__(
        self,
        name: str,
        settings: SqsSettings,
        facts: Callable[[], Backend],
        timing: Timing | None = None,
    ) -> None:
        super().__init__(name, settings, facts, timing)
        self.settings = settings
        self.look_every = float(settings.block_for)
        self._client = SqsClient(settings)
        self._overflow = (
            None if settings.overflow is None else Overflow(settings, settings.overflow)
        )
        self._polls = BlockingReceive(self._poll, self.give_back_all, apart=True)

    # -- messages ---------------------------------------------------------------------------------

    def publish(self, messages: Sequence[BrokerMessage]) -> None:
        taken: list[wire.SentEntry] = []
        with in_parts(taken):
            for queue, some in groupby(messages, attrgetter("queue")):
                name = self.settings.name_of(queue)
                entries = (wire.entry_of(each, name, self._body_of(each)) for each in some)
                for batch in wire.batches(entries):
                    self._send(queue, batch, taken)

    def _body_of(self, message: BrokerMessage) -> bytes:
        """Return the payload, or what points to it in S3."""
        longest = min(self.settings.overflow_above, LONGEST_MESSAGE - wire.LONGEST_HEADERS)
        if self._overflow is None or len(message.raw) <= longest:
            return message.raw
        return self._overflow.put(message.id, message.raw)

    def _send(
        self, queue: str, batch: Sequence[wire.SentEntry], taken: list[wire.SentEntry]
    ) -> None:
        """Send messages, and add to `taken` what SQS took; the others are sent again alone."""
        ends = time.monotonic() + limited(self.settings.timeout)
        while True:
            answer = self._client.on_queue(
                queue,
                "send_message_batch",
                twice=is_fifo(queue),  # which drops what it has had
                Entries=[{"Id": str(n), **each.fields} for n, each in enumerate(batch)],
            )
            failed = answer.get("Failed") or []
            left = [int(each["Id"]) for each in failed]
            taken += (each for n, each in enumerate(batch) if n not in left)
            if not failed:
                return
            refused = next((each for each in failed if each.get("SenderFault")), None)
            if refused or time.monotonic() + _PAUSE > ends:
                raise self._refusal(refused or failed[0])
            batch = [batch[n] for n in left]
            time.sleep(_PAUSE)

    def _refusal(self, failed: dict[str, Any]) -> QframeError:
        error = of_code(
            str(failed.get("Code", "")).rpartition(".")[2],
            str(failed.get("Message", "")),
            self._client.where,
            status=400 if failed.get("SenderFault") else 500,
        )
        if isinstance(error, BackendUnavailable):
            error.in_doubt = False
        return error

    def delay_limit(self, queue: str) -> float:
        return 0.0 if is_fifo(queue) else self.longest_delay

    def receive(self, queues: Sequence[str], limit: int) -> list[BrokerJob]:
        found: list[BrokerJob] = []
        for queue in queues:
            while (room := limit - len(found)) > 0:
                most = self._most(queue, room)
                try:
                    got = self._receive(queue, most, 0)
                except BackendUnavailable:
                    if found:  # these are hidden from others: they come first
                        return found
                    raise
                found += got
                if len(got) < most:
                    break
        return found

    def _most(self, queue: str, room: int) -> int:
        """Return how many messages to ask for: of a FIFO queue one, as more may be of one group."""
        return 1 if is_fifo(queue) else min(room, wire.TOGETHER)

    def _receive(self, queue: str, most: int, seconds: int) -> list[BrokerJob]:
        asked_at = self.clock()
        answer = self._client.on_queue(
            queue,
            "receive_message",
            twice=True,
            MaxNumberOfMessages=most,
            VisibilityTimeout=math.ceil(self.lease),
            WaitTimeSeconds=seconds,
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
            MessageAttributeNames=["All"],
        )
        jobs = [self._job(queue, each, asked_at) for each in answer.get("Messages") or ()]
        return jobs if self._overflow is None else self._with_payloads(jobs, self._overflow)

    def _job(self, queue: str, message: dict[str, Any], asked_at: float) -> BrokerJob:
        raw, headers = wire.read(message)
        return self.received(
            queue,
            raw,
            headers,
            id=message["MessageId"],
            deliveries=int(message["Attributes"]["ApproximateReceiveCount"]),
            delivery=Receipt(message["ReceiptHandle"], ""),
            asked_at=asked_at,
        )

    def _with_payloads(self, jobs: Sequence[BrokerJob], overflow: Overflow) -> list[BrokerJob]:
        """Return jobs with their payloads from S3.

        If S3 does not answer, those that are left are given back, uncounted.
        """
        for n, job in enumerate(jobs):
            try:
                found = overflow.find(job.raw_body)
            except BackendUnavailable:
                self.give_back_all(jobs[n:])
                if n == 0:
                    raise
                return [*jobs[:n]]
            if found is not None:
                job.message = replace(job.message, raw=found.raw)
                job.raw_body = found.raw
                job.delivery = job.delivery._replace(path=found.path)
        return [*jobs]

    def await_messages(
        self, queues: Sequence[str], timeout: float, wake: int | None
    ) -> Sequence[BrokerJob]:
        jobs = sorted(
            self._polls.wait(queues, timeout, wake), key=lambda job: queues.index(job.queue)
        )
        self.give_back_all(jobs[1:])
        return jobs[:1]

    def _poll(self, queues: Sequence[str], timeout: float) -> Sequence[BrokerJob]:
        """Wait in SQS for one message of one queue, no longer than a third of its lease."""
        del timeout  # the next wait goes on with the call
        (queue,) = queues
        seconds = max(1, min(self.settings.block_for, int(self.lease / 3)))
        return self._receive(queue, 1, seconds)

    def acknowledge(self, job: BrokerJob) -> bool:
        done = self._acknowledge(job)
        self._forget_payloads([job] if done else ())
        return done

    def _acknowledge(self, job: BrokerJob) -> bool:
        try:
            self._client.on_queue(
                job.queue, "delete_message", twice=True, ReceiptHandle=job.delivery.handle
            )
        except NotInFlight as error:
            return self._is_deleted(job, error)
        return self._is_in_time(job)

    def _is_in_time(self, job: BrokerJob) -> bool:
        """Whether the lease lasts: SQS also takes deletions after it, and yet delivers again."""
        return self.clock() < job.until

    def acknowledge_all(self, jobs: Sequence[BrokerJob]) -> list[bool]:
        done: dict[int, bool] = {}
        errors: list[BackendUnavailable] = []
        ends = time.monotonic() + limited(self.settings.timeout)
        for queue, some in groupby(sorted(jobs, key=attrgetter("queue")), attrgetter("queue")):
            here = list(some)
            for start in range(0, len(here), wire.TOGETHER):
                batch = here[start : start + wire.TOGETHER]
                if errors and time.monotonic() > ends:  # SQS does not answer
                    break
                try:
                    done.update(zip(map(id, batch), self._delete(queue, batch), strict=True))
                except BackendUnavailable as error:  # the leases of the others end, too
                    errors.append(error)
        deleted = [each for each in jobs if done.get(id(each))]
        self._forget_payloads(deleted)
        if errors:
            for job in deleted:
                job.is_deleted = True
            errors[0].in_doubt = any(each.in_doubt for each in errors)
            raise errors[0]
        return [done[id(each)] for each in jobs]

    def _forget_payloads(self, jobs: Sequence[BrokerJob]) -> None:
        """Delete from S3 what was of messages that are deleted."""
        for job in jobs:
            if self._overflow is not None and job.delivery.path:
                self._overflow.delete(job.delivery.path)

    def _delete(self, queue: str, jobs: Sequence[BrokerJob]) -> list[bool]:
        if len(jobs) == 1:
            return [self._acknowledge(jobs[0])]
        answer = self._client.on_queue(
            queue,
            "delete_message_batch",
            twice=True,
            Entries=[
                {"Id": str(n), "ReceiptHandle": each.delivery.handle} for n, each in enumerate(jobs)
            ],
        )
        failed = {int(each["Id"]) for each in answer.get("Failed") or ()}
        return [
            self._acknowledge(each) if n in failed else self._is_in_time(each)
            for n, each in enumerate(jobs)
        ]

    def extend(self, job: BrokerJob, seconds: float) -> bool:
        try:
            self._set_visibility(job, seconds, twice=True)
        except NotInFlight as error:
            # a purge deletes what runs, too: nobody else has it
            return self._is_deleted(job, error)
        return True

    def give_back(self, job: BrokerJob, delay: float) -> bool:
        try:
            self._set_visibility(job, delay, twice=False)
        except NotInFlight as error:
            # a purge has deleted what ran here, unless another worker had it in between
            return self._is_deleted(job, error) and self.replace_released(job, delay)
        except BackendUnavailable as error:
            if error.in_doubt:
                job.end()  # said again, it might take the message from who has it by now
            raise
        return True

    def _is_deleted(self, job: BrokerJob, error: NotInFlight) -> bool:
        """Whether nobody has the message: SQS says the same of one that others have received.

        They have not while its lease lasts, which the call may have outlasted.
        """
        return error.is_deleted and self._is_in_time(job)

    def _set_visibility(self, job: BrokerJob, seconds: float, *, twice: bool) -> None:
        self._client.on_queue(
            job.queue,
            "change_message_visibility",
            twice=twice,
            ReceiptHandle=job.delivery.handle,
            VisibilityTimeout=math.ceil(seconds),
        )

    # -- messages that wait -----------------------------------------------------------------------

    def counted(self, queue: str) -> Sizes:
        found = self._client.attributes(queue, *_COUNTS)
        ready, delayed, reserved = (int(found.get(each, 0)) for each in _COUNTS)
        return Sizes(ready, delayed, reserved, approximate=True)

    def purged(self, queue: str) -> int:
        sizes = self.counted(queue)
        count = sizes.ready + sizes.delayed
        if count:
            self._client.on_queue(queue, "purge_queue")
        return count

    # -- other calls ------------------------------------------------------------------------------

    def check_queue(self, name: str) -> None:
        if not wire.is_name(self.settings.name_of(name)):
            raise InvalidQueueName(
                f"{self.settings.name_of(name)!r} cannot name a queue of SQS: use 1 to 80 of "
                "A-Z a-z 0-9 _ -, with .fifo at the end for a FIFO queue"
            )

    def longest_message(self) -> int | None:
        return None if self._overflow else LONGEST_MESSAGE - wire.LONGEST_HEADERS

    def described(self) -> str:
        return self._client.where

    def check(self) -> Health:
        with guarded:
            found = [*checks.warnings(self._client)]
            if self._overflow is not None and (fault := self._overflow.fault()):
                found.append(f"large payloads cannot be kept: {fault}")
            return Health("SQS", tuple(found))

    def leave(self) -> None:
        super().close()

    def close(self) -> None:
        super().close()
        self._polls.end(self.settings.block_for + limited(self.settings.timeout))


_COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
)
