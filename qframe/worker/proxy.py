"""The job as its own process sees it: the facts are here, each step is done by the worker."""

from __future__ import annotations

from typing import Any

from qframe import exceptions, timing, tracebacks, tracking
from qframe.contracts import History, Job
from qframe.contracts.status import State
from qframe.exceptions import QframeError
from qframe.names import printable
from qframe.worker.channel import ChildChannel, Message, packed, unpacked

UNANSWERED = {"progress", "keep_result", "ends_as"}
STEPS = {
    "delete", "release", "retry", "give_back", "bury", "fail", "renew", "confirm", *UNANSWERED,
}  # fmt: skip
"""What a job's process may have done with the job; some of it without waiting for an answer."""


class ChildJob(Job):
    """The job as its own process sees it: the facts are here, each settle is done by the worker."""

    def __init__(self, job: Job, channel: ChildChannel) -> None:
        self._job = job
        self._channel = channel
        self._state: dict[str, bool] = state_of(job)
        self.queue = job.queue
        self.connection_name = job.connection_name
        self.raw_body = job.raw_body
        self.failed_with = job.failed_with

    @property
    def id(self) -> str:  # type: ignore[override] # made when asked for
        return self._job.id

    @property
    def uuid(self) -> str:  # type: ignore[override] # read from the payload when asked for
        return self._job.uuid

    @property
    def name(self) -> str:  # type: ignore[override] # read from the payload when asked for
        return self._job.name

    @property
    def payload(self) -> dict[str, Any]:
        return self._job.payload

    def data_for(self, job_class: Any) -> Any:  # noqa: ANN401 (the contract's)
        return self._job.data_for(job_class)

    @property
    def history(self) -> History:
        return self._job.history

    def attempts(self) -> int:
        return self._job.attempts()

    # -- settling -------------------------------------------------------------------------------

    def delete(self) -> None:
        self._do("delete")

    def release(self, delay: float = 0, *, priority: int | None = None) -> None:
        self._do("release", delay=timing.seconds_until(delay), priority=priority)

    def retry(self, delay: float, how: str, error: str) -> None:
        self._do("retry", delay=delay, how=how, error=error)

    def give_back(self, delay: float = 0, *, refused: bool = False) -> None:
        self._do("give_back", delay=delay, refused=refused)

    def bury(self) -> None:
        self._do("bury")

    def fail(self, error: BaseException | None = None, *, ran: bool = True) -> None:
        error = error or exceptions.JobFailedByHand(f"{self.name} failed itself")
        self._do("fail", error=packed(error), ran=ran)
        self.failed_with = error

    def renew(self) -> None:
        self._do("renew")

    def confirm(self) -> None:
        self._do("confirm")

    # -- the status of a tracked job ------------------------------------------------------------

    def progress(self, done: float, text: str = "") -> None:
        tracking.checked_progress(done, text)
        if self._is_tracked:
            shown = printable(text, tracking.MAX_TEXT)
            self._channel.tell(_note("progress", done=done, text=shown))

    def keep_result(self, result: Any) -> None:  # noqa: ANN401 (whatever the job gave)
        if self._is_tracked and result is not None:
            self._channel.later(_note("keep_result", result=tracking.as_json(result)))

    def ends_as(self, state: State, remark: str) -> None:
        if self._is_tracked:
            self._channel.later(_note("ends_as", state=state.value, remark=remark))

    @property
    def _is_tracked(self) -> bool:
        return tracking.KEY in self._job.payload

    # -- what both are made of ------------------------------------------------------------------

    def _do(self, step: str, **arguments: object) -> None:
        answer = self._channel.ask({"say": "do", "step": step, "arguments": arguments})
        self.learn(answer)
        if answer.get("raised"):
            kind = getattr(exceptions, answer["raised"], QframeError)
            raise kind(answer["text"])

    def learn(self, answer: Message) -> None:
        """Take over what the worker says of the job."""
        self._state = answer["state"]

    # -- how it stands --------------------------------------------------------------------------

    @property
    def is_deleted(self) -> bool:
        return self._state["is_deleted"]

    @property
    def is_released(self) -> bool:
        return self._state["is_released"]

    @property
    def has_failed(self) -> bool:
        return self._state["has_failed"]

    @property
    def is_lost(self) -> bool:
        return self._state["is_lost"]

    @property
    def is_settled(self) -> bool:
        return self._state["is_settled"]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._job!r}>"


def _note(step: str, **arguments: object) -> Message:
    return {"say": "do", "step": step, "arguments": arguments}


def unpack(step: str, arguments: dict[str, Any]) -> None:
    """Make of a step's arguments what they were in the job's process."""
    if step == "fail":
        arguments["error"] = unpacked(arguments["error"])
    elif step == "ends_as":
        arguments["state"] = State(arguments["state"])
    elif step == "keep_result":
        arguments["result"] = tracking.Encoded(*arguments["result"])


_STATES = ("is_deleted", "is_released", "has_failed", "is_lost", "is_settled")


def state_of(job: Job) -> dict[str, bool]:
    """Say how a job stands."""
    return {name: bool(getattr(job, name)) for name in _STATES}


def raised(error: BaseException) -> Message:
    """Give an error of a step as the worker answers it."""
    return {"raised": type(error).__name__, "text": str(error) or tracebacks.brief(error)}
