"""Tags: checked at dispatch, kept in the payload, and read whoever wrote them."""

from __future__ import annotations

from typing import Any

import pytest

from qframe import Queueable, foreign, queueable
from qframe.exceptions import InvalidJob, JobDefinitionError
from qframe.payload import envelope, tags


class Billed(Queueable):
    tenant: int

    def tags(self) -> list[str]:
        return [f"tenant:{self.tenant}", "billing", "billing"]

    def handle(self) -> None: ...


class Odd(Queueable):
    given: Any = None

    def tags(self) -> Any:
        return self.given

    def handle(self) -> None: ...


@queueable(tags=lambda tenant: [f"tenant:{tenant}"])
def charge(tenant: int, amount: int) -> None:
    """Do nothing."""


def test_they_are_computed_at_dispatch_each_once() -> None:
    assert envelope.create(Billed(tenant=7))["tags"] == ["tenant:7", "billing"]
    assert envelope.create(charge.job(8, 100))["tags"] == ["tenant:8"]
    assert envelope.create(foreign("A@handle", tags=["x"]))["tags"] == ["x"]


@pytest.mark.parametrize(
    "given",
    [None, "tenant:7", 7, [7], [""], ["  "], ["a\nb"], ["x" * 101], [f"t{n}" for n in range(21)]],
)
def test_what_is_no_tag_is_refused_naming_the_class(given: Any) -> None:
    with pytest.raises(InvalidJob, match=r"Odd: .*tag") as raised:
        envelope.create(Odd(given=given))
    assert "\n" not in str(raised.value)


def test_a_function_of_the_arguments_takes_only_those() -> None:
    with pytest.raises(JobDefinitionError, match=r"tags takes 'tenat'.*'tenant'"):

        @queueable(tags=lambda tenat: [str(tenat)])
        def other(tenant: int) -> None: ...


def test_those_of_others_are_read_as_far_as_they_are_tags() -> None:
    assert tags.read({"tags": ["App\\Order:7", 7, None, {}, ""]}) == ["App\\Order:7", "7"]
    assert tags.read({"tags": "x"}) == tags.read({}) == []
