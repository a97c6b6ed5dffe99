"""SqsClient: calls the queues of a connection, by their names in qframe."""

from __future__ import annotations

from typing import Any

from qframe.drivers.sqs.aws import AwsClient
from qframe.drivers.sqs.errors import MissingQueue
from qframe.drivers.sqs.settings import SqsSettings, is_fifo
from qframe.exceptions import BackendUnavailable

LONGEST_RETENTION = 14 * 86400
"""Seconds that SQS keeps a message at most."""


class SqsClient(AwsClient):
    """Calls SQS; knows the URLs of the queues, and creates missing ones if the settings say so."""

    def __init__(self, settings: SqsSettings) -> None:
        super().__init__(settings, "sqs", settings.known_endpoint, settings.shown())
        self._urls: dict[str, str] = {}
        """The URLs of the queues that are known to exist."""

    def on_queue(
        self,
        queue: str,
        action: str,
        *,
        twice: bool = False,
        **arguments: Any,  # noqa: ANN401 (of the call)
    ) -> dict[str, Any]:
        """Call a method for a queue, which is created if it is missing and the settings say so."""
        try:
            return self.call(action, twice=twice, QueueUrl=self.url(queue), **arguments)
        except MissingQueue:
            self._urls[queue] = self._asked(queue)  # it was made anew, or is made now
        return self.call(action, twice=twice, QueueUrl=self._urls[queue], **arguments)

    # -- queues -----------------------------------------------------------------------------------

    def url(self, queue: str) -> str:
        """Return the URL of a queue. Raises `MissingQueue`."""
        found = self._urls.get(queue)
        if found is None:
            base = self.settings.base_url
            found = f"{base}/{self.settings.name_of(queue)}" if base else self._asked(queue)
            self._urls[queue] = found
        return found

    def _asked(self, queue: str) -> str:
        """Ask for the URL of a queue; create the queue if it is missing and that is wanted."""
        name = self.settings.name_of(queue)
        try:
            answer = self.call("get_queue_url", twice=True, QueueName=name)
        except MissingQueue:
            if not self.settings.create:
                raise self._missing(name) from None
            answer = self.call(
                "create_queue",
                twice=True,
                QueueName=name,
                Attributes={
                    "MessageRetentionPeriod": str(LONGEST_RETENTION),
                    **({"FifoQueue": "true"} if is_fifo(name) else {}),
                },
            )
        return str(answer["QueueUrl"])

    def _missing(self, name: str) -> MissingQueue:
        text = f"{self.where} has no queue {name}"
        if not is_fifo(name) and self._has(f"{name}.fifo"):
            return MissingQueue(f"{text}, but {name}.fifo: write .fifo behind the queue's name")
        return MissingQueue(f"{text}: create it, or set create = true for the connection")

    def _has(self, name: str) -> bool:
        try:
            self.call("get_queue_url", twice=True, QueueName=name)
        except BackendUnavailable:
            return False
        return True

    def attributes(self, queue: str, *names: str) -> dict[str, str]:
        """Return attributes of a queue."""
        answer = self.on_queue(queue, "get_queue_attributes", twice=True, AttributeNames=[*names])
        return answer.get("Attributes") or {}
