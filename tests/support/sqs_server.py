"""A strict SQS on loopback, in a thread of this process, for what moto does not do.

Visibility that ends, counted receives, groups that block, batches taken in part, slow, refused and
lost answers. Its clock is that of a `Timing`, so a test can let time pass.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from qframe.contracts.backend import Timing

ACCOUNT = "000000000000"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST",
    "AWS_SECRET_ACCESS_KEY": "hush-hush",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""What is in the environment of a test's process and its workers."""
_LONGEST = 1_048_576
_LONGEST_LEASE = 43_200
_LEGAL = re.compile("[\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_ATTRIBUTE = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_GROUP = re.compile(r"[!-~]{1,128}")
_SLICE = 0.02
_TARGET = "AmazonSQS."


class Refusal(Exception):
    """An error that the server answers with; `old` is its name in the older protocol."""

    def __init__(self, code: str, message: str = "", *, old: str = "", status: int = 400) -> None:
        super().__init__(code)
        self.code, self.message, self.old, self.status = code, message, old or code, status


@dataclass
class Stored:
    """One message."""

    id: str
    body: str
    attributes: dict[str, Any]
    group: str
    due: float
    """When it is visible."""
    receives: int = 0
    receipt: str = ""
    received_at: float = 0.0
    delayed: bool = True


@dataclass
class Delivery:
    """One delivery of a message, and what became of its deletion; moments are of `monotonic`."""

    message: Stored
    began: float
    ends: float
    """When the message is visible again, as its visibility was last changed."""
    refused: list[float] = field(default_factory=list)
    """When a deletion of it was refused."""
    deleted: float = 0.0
    """When a deletion removed the message; 0 if none did."""


@dataclass
class StoredQueue:
    """One queue, its messages in the order in which they were sent."""

    name: str
    attributes: dict[str, str]
    messages: list[Stored] = field(default_factory=list)
    seen: dict[str, tuple[float, str]] = field(default_factory=dict)
    """When the deduplication ids were sent, and with which message."""
    purged_at: float = -60.0

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")


class SqsServer:
    """Answers at `url` until it is closed. `calls` counts the requests by their actions."""

    def __init__(self, timing: Timing | None = None) -> None:
        if os.environ.get("QFRAME_AWS") != "1":
            os.environ.update(CREDENTIALS)
        self.timing = timing or Timing()
        self.calls: Counter[str] = Counter()
        self.queues: dict[str, StoredQueue] = {}
        self.refusals: list[tuple[str, Refusal]] = []
        """The next answers to an action, whatever is asked."""
        self.not_taken: list[set[int]] = []
        """Which messages of the next batches are not taken."""
        self.slow: Callable[[str, dict[str, Any]], float] = _at_once
        """Seconds until an action is answered, after it is done; it gets the answer, too."""
        self.lost: list[str] = []
        """Actions whose next answer is lost."""
        self.deliveries: dict[str, Delivery] = {}
        """All deliveries, by their receipts."""
        self._changed = threading.Condition()
        self._receipts = itertools.count(1)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.sqs = self
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a connection to it."""
        return {"endpoint": self.url, "region": "eu-west-1", "create": True}

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def empty(self) -> None:
        """Forget all queues, and that anything was to go wrong."""
        with self._changed:
            self.queues.clear()
            self.calls.clear()
            del self.refusals[:], self.not_taken[:], self.lost[:]
            self.slow = _at_once
            self.deliveries.clear()

    def now(self) -> float:
        return time.time() + self.timing.skew

    def in_flight(self, name: str) -> list[Stored]:
        """Give the messages that somebody has received and that are hidden."""
        with self._changed:
            return [m for m in self.queues[name].messages if m.receipt and m.due > self.now()]

    # -- actions ----------------------------------------------------------------------------------

    def answer(self, action: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked."""
        self.calls[action] += 1
        for n, (of, refusal) in enumerate(self.refusals):
            if of == action:
                del self.refusals[n]
                self._note_refused(action, asked)
                raise refusal
        with self._changed:
            answer: dict[str, Any] = getattr(self, f"_{action}")(asked)
            self._changed.notify_all()
        return answer

    def _note_refused(self, action: str, asked: dict[str, Any]) -> None:
        """Note which deliveries a refused deletion was about."""
        if action == "DeleteMessage":
            self._note_untaken(asked)
        elif action == "DeleteMessageBatch":
            for entry in asked["Entries"]:
                self._note_untaken(entry)

    def _note_untaken(self, entry: dict[str, Any]) -> None:
        delivery = self.deliveries.get(entry["ReceiptHandle"])
        if delivery is not None:
            delivery.refused.append(time.monotonic())

    def _queue(self, asked: dict[str, Any]) -> StoredQueue:
        name = asked["QueueUrl"].rpartition("/")[2] if "QueueUrl" in asked else asked["QueueName"]
        if name not in self.queues:
            raise Refusal(
                "QueueDoesNotExist",
                "The specified queue does not exist.",
                old="AWS.SimpleQueueService.NonExistentQueue",
            )
        return self.queues[name]

    def _GetQueueUrl(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 (the action)
        return {"QueueUrl": f"{self.url}/{ACCOUNT}/{self._queue(asked).name}"}

    def _CreateQueue(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 (the action)
        name, attributes = asked["QueueName"], dict(asked.get("Attributes") or {})
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo", name):
            raise Refusal("InvalidParameterValue", f"{name} is no name")
        if name.endswith(".fifo") != (attributes.get("FifoQueue") == "true"):
            raise Refusal("InvalidParameterValue", "FifoQueue and the name do not agree")
        defaults = {"MessageRetentionPeriod": "345600", "MaximumMessageSize": str(_LONGEST)}
        self.queues.setdefault(name, StoredQueue(name, {**defaults, **attributes}))
        return self._GetQueueUrl(asked)

    def _GetQueueAttributes(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 (as above)
        queue, now = self._queue(asked), self.now()
        hidden = [each for each in queue.messages if each.due > now]
        delayed = sum(each.delayed for each in hidden)
        found = {
            **queue.attributes,
            "ApproximateNumberOfMessages": str(len(queue.messages) - len(hidden)),
            "ApproximateNumberOfMessagesDelayed": str(delayed),
            "ApproximateNumberOfMessagesNotVisible": str(len(hidden) - delayed),
        }
        names = asked["AttributeNames"]
        return {"Attributes": {k: v for k, v in found.items() if k in names or "All" in names}}

    def _PurgeQueue(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 (as above)
        queue = self._queue(asked)
        if self.now() - queue.purged_at < 60:
            raise Refusal("PurgeQueueInProgress", "Only one PurgeQueue every 60 seconds")
        queue.purged_at = self.now()
        queue.messages.clear()  # also those in flight
        return {}

    def _SendMessageBatch(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 (as above)
        queue, entries = self._queue(asked), asked["Entries"]
        if not 1 <= len(entries) <= 10 or len({each["Id"] for each in entries}) < len(entries):
            raise Refusal("TooManyEntriesInBatchRequest", "1 to 10 entries, each with its own id")
        if sum(map(_size, entries)) > _LONGEST:
            raise Refusal("BatchRequestTooLong", f"The batch has more than {_LONGEST} bytes")
        not_taken = self.not_taken.pop(0) if self.not_taken else set()
        done: dict[str, list[dict[str, Any]]] = {"Successful": [], "Failed": []}
        for n, entry in enumerate(entries):
            fault = {"Id": entry["Id"], "SenderFault": False, "Code": "InternalError"}
            try:
                if n in not_taken:
                    done["Failed"].append(fault)
                else:
                    sent = self._send(queue, entry)
                    done["Successful"].append({"Id": entry["Id"], **sent})
            except Refusal as error:
                what = {"SenderFault": True, "Code": error.code, "Message": error.message}
                done["Failed"].append({**fault, **what})
        return {key: value for key, value in done.items() if value}

    def _send(self, queue: StoredQueue, entry: dict[str, Any]) -> dict[str, Any]:
        _check(queue, entry)
        body, group = entry["MessageBody"], entry.get("MessageGroupId", "")
        sent = {
            "MessageId": f"m-{next(self._receipts)}",
            "MD5OfMessageBody": hashlib.md5(body.encode()).hexdigest(),
        }
        if queue.fifo:
            key = entry["MessageDeduplicationId"]
            at, before = queue.seen.get(key, (-300.0, ""))
            if self.now() - at < 300:
                return {**sent, "MessageId": before}
            queue.seen[key] = self.now(), sent["MessageId"]
        due = self.now() + entry.get("DelaySeconds", 0)
        attributes = entry.get("MessageAttributes") or {}
        queue.messages.append(Stored(sent["MessageId"], body, attributes, group, due))
        return sent

    def _ReceiveMessage(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 (as above)
        seconds, most = asked.get("WaitTimeSeconds", 0), asked.get("MaxNumberOfMessages", 1)
        lease = asked["VisibilityTimeout"]
        if not (0 <= seconds <= 20 and 1 <= most <= 10 and 0 <= lease <= _LONGEST_LEASE):
            raise Refusal("InvalidParameterValue", str(asked))
        ends = time.monotonic() + seconds
        while not (found := [*itertools.islice(self._visible(self._queue(asked)), most)]):
            if (left := ends - time.monotonic()) <= 0:
                return {}
            self._changed.wait(min(left, _SLICE))
        return {"Messages": [self._deliver(each, lease) for each in found]}

    def _visible(self, queue: StoredQueue) -> Iterator[Stored]:
        now, blocked = self.now(), set[str]()
        for each in queue.messages:
            if each.due > now:
                blocked.add(each.group)
            elif not (queue.fifo and each.group in blocked):
                yield each

    def _deliver(self, message: Stored, lease: int) -> dict[str, Any]:
        message.due, message.received_at = self.now() + lease, self.now()
        message.receives += 1
        message.receipt = f"r-{next(self._receipts)}"
        message.delayed = False
        began = time.monotonic()
        self.deliveries[message.receipt] = Delivery(message, began, began + lease)
        return {
            "MessageId": message.id,
            "ReceiptHandle": message.receipt,
            "Body": message.body,
            "MD5OfBody": hashlib.md5(message.body.encode()).hexdigest(),
            "Attributes": {
                "ApproximateReceiveCount": str(message.receives),
                **({"MessageGroupId": message.group} if message.group else {}),
            },
            "MessageAttributes": message.attributes,
        }

    def _ChangeMessageVisibility(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 (as above)
        queue, seconds = self._queue(asked), asked["VisibilityTimeout"]
        if type(seconds) is not int or not 0 <= seconds <= _LONGEST_LEASE:
            raise Refusal("InvalidParameterValue", f"VisibilityTimeout is {seconds}")
        message = _of(queue, asked["ReceiptHandle"])
        if message is None:
            raise _invalid(asked["ReceiptHandle"], "Message does not exist or is not available")
        if message.due <= self.now():
            raise Refusal("MessageNotInflight", "The message is not in flight.")
        if self.now() + seconds > message.received_at + _LONGEST_LEASE:
            text = f"Total VisibilityTimeout is beyond the limit [{_LONGEST_LEASE} seconds]"
            raise Refusal("InvalidParameterValue", text)
        message.due = self.now() + seconds
        self.deliveries[message.receipt].ends = time.monotonic() + seconds
        return {}

    def _DeleteMessage(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 (as above)
        queue = self._queue(asked)
        message = _of(queue, asked["ReceiptHandle"])
        if message is not None:
            if queue.fifo and message.due <= self.now():
                raise _invalid(asked["ReceiptHandle"], "The receipt handle has expired.")
            queue.messages.remove(message)  # also when it is visible again
            self.deliveries[message.receipt].deleted = time.monotonic()
        return {}

    def _DeleteMessageBatch(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 (as above)
        not_taken = self.not_taken.pop(0) if self.not_taken else set()
        failed = []
        for n, entry in enumerate(asked["Entries"]):
            if n in not_taken:
                self._note_untaken(entry)
                failed.append({"Id": entry["Id"], "SenderFault": False, "Code": "InternalError"})
            else:
                self._DeleteMessage({**entry, "QueueUrl": asked["QueueUrl"]})
        return {"Failed": failed}


def _at_once(_action: str, _answer: dict[str, Any]) -> float:
    return 0.0


def _check(queue: StoredQueue, entry: dict[str, Any]) -> None:
    """Refuse what SQS refuses."""
    if not _LEGAL.fullmatch(entry["MessageBody"]):
        raise Refusal("InvalidMessageContents", "The message has characters that are not legal")
    if _size(entry) > int(queue.attributes["MaximumMessageSize"]):
        text = f"Message must be shorter than {queue.attributes['MaximumMessageSize']} bytes."
        raise Refusal("InvalidParameterValue", f"One or more parameters are invalid. {text}")
    attributes, group = entry.get("MessageAttributes") or {}, entry.get("MessageGroupId", "")
    delay = entry.get("DelaySeconds", 0)
    wrong = {
        "an attribute": not all(
            _ATTRIBUTE.fullmatch(name) and _LEGAL.fullmatch(each["StringValue"])
            for name, each in attributes.items()
        ),
        "more than 10 attributes": len(attributes) > 10,
        "DelaySeconds": type(delay) is not int or not 0 <= delay <= 900,
        "MessageGroupId": group and not _GROUP.fullmatch(group),
        "DelaySeconds of a FIFO queue": queue.fifo and "DelaySeconds" in entry,
        "MessageDeduplicationId": queue.fifo != ("MessageDeduplicationId" in entry),
    }
    if found := [what for what, is_wrong in wrong.items() if is_wrong]:
        raise Refusal("InvalidParameterValue", f"The request is not valid: {', '.join(found)}")
    if queue.fifo and not group:
        raise Refusal("MissingParameter", "The request must contain MessageGroupId.")


def _size(entry: dict[str, Any]) -> int:
    attributes = entry.get("MessageAttributes") or {}
    more = sum(len(k) + len(v["DataType"]) + len(v["StringValue"]) for k, v in attributes.items())
    return len(entry["MessageBody"].encode()) + more


def _of(queue: StoredQueue, receipt: str) -> Stored | None:
    return next((each for each in queue.messages if each.receipt == receipt), None)


def _invalid(receipt: str, reason: str) -> Refusal:
    text = f"Value {receipt} for parameter ReceiptHandle is invalid. Reason: {reason}"
    return Refusal("InvalidParameterValue", text)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    sqs: SqsServer

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that have gone."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one packet
    server: _Server

    def do_POST(self) -> None:
        """Answer a call."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        action = self.headers["X-Amz-Target"].removeprefix(_TARGET)
        sqs, status, more = self.server.sqs, 200, dict[str, str]()
        if CREDENTIALS["AWS_ACCESS_KEY_ID"] not in self.headers.get("Authorization", ""):
            sent: dict[str, Any] = _fault(Refusal("InvalidClientTokenId", "no such key"))
            status = 403
        else:
            try:
                sent = sqs.answer(action, asked)
            except Refusal as error:
                sent, status = _fault(error), error.status
                more["x-amzn-query-error"] = f"{error.old};Sender"
        if action in sqs.lost:
            sqs.lost.remove(action)
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        if (seconds := sqs.slow(action, sent)) > 0:
            time.sleep(seconds)
        body = json.dumps(sent).encode()
        self.send_response(status)
        for key, value in {"Content-Type": "application/x-amz-json-1.0", **more}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _fault(error: Refusal) -> dict[str, Any]:
    return {"__type": f"com.amazonaws.sqs#{error.code}", "message": error.message}
