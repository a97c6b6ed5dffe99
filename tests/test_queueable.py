from __future__ import annotations

import math
import sys
import types
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, ClassVar

import pytest
from pydantic import ConfigDict, Field, ValidationError, field_validator

from qframe import (
    Exponential,
    InvalidJob,
    JobDefinitionError,
    QframeError,
    Queueable,
    dispatch,
    dispatch_sync,
)
from qframe.jobs.definition import index
from qframe.jobs.options import OPTIONS as KNOWN
from qframe.payload import envelope

pytestmark = pytest.mark.usefixtures("fresh")

OPTIONS = [
    *("connection", "queue", "delay", "priority", "tries", "max_exceptions", "backoff", "timeout"),
    *("concurrency", "fail_on_timeout", "retry_until", "expires", "track", "keep_log"),
    *("unique", "unique_id", "unique_for", "unique_until", "debounce", "once", "chunk", "group"),
    *(
        "encrypted",
        "give_back",
        "missing",
        "version",
        "job_name",
        "display_name",
        "tags",
        "middleware",
    ),
]
MAY_BE_METHODS = ["backoff", "retry_until", "display_name", "tags", "middleware"]


def declared(annotations: dict[str, Any] | None = None, /, **body: Any) -> Any:
    """Declare a job class as a `class` statement would."""
    body = {"__annotations__": annotations or {}, "__module__": __name__, **body}
    body.setdefault("handle", lambda self: None)
    return types.new_class("Declared", (Queueable,), {}, lambda names: names.update(body))


def refused(annotations: dict[str, Any] | None = None, /, **body: Any) -> str:
    """Give the one line with which a declaration is refused."""
    with pytest.raises(JobDefinitionError) as raised:
        declared(annotations, **body)
    message = str(raised.value)
    assert message.startswith("Declared"), message
    assert message.isprintable()
    return message


class Base(Queueable):
    user_id: int
    note: str = ""

    tries = 5
    queue = "emails"

    def handle(self) -> None:
        pass


class Child(Base):
    extra: list[int] = []  # noqa: RUF012 (each job gets its own)

    tries = 7


# -- options ------------------------------------------------------------------------------------


def test_the_options_are_those_that_are_promised() -> None:
    assert list(KNOWN) == OPTIONS


RIGHT: dict[str, list[Any]] = {
    "connection": ["redis", None],
    "queue": ["emails", "a.b:c-d_e", None],
    "delay": [0, 1.5, timedelta(minutes=1), datetime(2026, 1, 1, tzinfo=UTC)],
    "priority": [0, 1024, 2**32 - 1, None],
    "tries": [0, 1, 100, None],
    "max_exceptions": [1, 3, None],
    "backoff": [0, 0.5, [1, 5, 10], (1, 2.5), Exponential(1), None],
    "timeout": [0, 60, 0.5, None],
    "concurrency": [1, 1000, None],
    "fail_on_timeout": [True, False],
    "retry_until": [60, timedelta(hours=1), datetime(2026, 1, 1, tzinfo=UTC), None],
    "expires": [60, timedelta(hours=1), datetime(2026, 1, 1, tzinfo=UTC), None],
    "track": [True, False, 60, 0.5, timedelta(hours=1)],
    "keep_log": [0, 50, 1000],
    "unique": [True, False],
    "unique_id": ["of all", 7, None],
    "unique_for": [60, 0.5, timedelta(hours=1)],
    "unique_until": ["handled", "started"],
    "debounce": [5, 0.5, timedelta(minutes=1), None],
    "once": [5, 0.5, timedelta(minutes=1), None],
    "chunk": [None],
    "group": ["all", None],
    "encrypted": [True, False],
    "give_back": [True, False],
    "missing": ["skip", "fail", "retry"],
    "version": [1, 10**9, None],
    "job_name": ["App\\Jobs\\Declared", None],
    "display_name": ["shown", None],
    "tags": [(), ["a"], ("a", "b"), {"a"}],
    "middleware": [(), [lambda job, call_next: call_next(job)], (print,)],
}
WRONG: dict[str, list[Any]] = {
    "connection": ["", " ", 7, ["redis"]],
    "queue": ["", "a b", "a\n", "q" * 129, 7, ["a"]],
    "delay": [-1, math.inf, math.nan, True, "10", None, timedelta(-1), datetime(2026, 1, 1)],  # noqa: DTZ001
    "priority": [-1, 1.5, "5", True, 2**32],
    "tries": [-1, 1.5, "5", True, math.inf],
    "max_exceptions": [0, -1, 1.0, "1", True],
    "backoff": [-1, "1,5,10", [], [1, -1], ["1"], [True], math.inf, timedelta(1), {1: 2}],
    "timeout": [-1, "60", True, math.inf, math.nan, timedelta(1)],
    "concurrency": [0, -1, 1.5, "3", True, 1001, math.inf],
    "fail_on_timeout": [1, 0, "yes", None],
    "unique": [1, 0, "yes", None],
    "unique_id": ["", -1, 1.5, True, ["a"]],
    "unique_for": [0, -1, "60", None, math.inf, True, timedelta(0)],
    "unique_until": ["done", 7, None],
    "debounce": [0, -1, "5", math.inf, True, timedelta(0)],
    "once": [0, -1, "5", math.inf, True, timedelta(0), datetime(2030, 1, 1, tzinfo=UTC)],
    "chunk": [100, "100", True, (100, 2)],
    "group": ["", 7, True, "a\n", "a" * 201],
    "encrypted": [1, 0, "yes", None],
    "give_back": [1, 0, "yes", None],
    "missing": ["delete", True, None],
    "retry_until": [-1, "tomorrow", True, datetime(2026, 1, 1)],  # noqa: DTZ001
    "expires": [-1, "tomorrow", True, datetime(2026, 1, 1), lambda self: 5],  # noqa: DTZ001
    "track": [0, -1, "yes", None, math.inf, timedelta(0), datetime(2030, 1, 1, tzinfo=UTC)],
    "keep_log": [-1, 1001, 1.5, "50", None],
    "version": [0, -1, True, 1.5, "2", 10**9 + 1, lambda self: 1],
    "job_name": ["", 7, lambda self: "x"],
    "display_name": ["", 7],
    "tags": ["a", [7], None, [""]],
    "middleware": ["a", [7], None, [str], {print}],
}


@pytest.mark.parametrize("option", OPTIONS)
def test_right_values_of_each_option_are_taken(option: str) -> None:
    for value in RIGHT[option]:
        needed = {"unique": True} if option.startswith("unique_") else {}
        assert vars(declared(**needed, **{option: value}))[option] == value


@pytest.mark.parametrize("option", OPTIONS)
def test_wrong_values_of_each_option_are_refused_when_the_class_is_made(option: str) -> None:
    for value in WRONG[option]:
        message = refused(**{option: value})
        assert f"Declared.{option}" in message, (value, message)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("tris", "tries"), ("retries", "tries"), ("time_out", "timeout"), ("queues", "queue"),
     ("connexion", "connection"), ("delayed", "delay"), ("back_off", "backoff"),
     ("max_exception", "max_exceptions"), ("fail_on_time_out", "fail_on_timeout"),
     ("retryuntil", "retry_until"), ("expire", "expires"), ("name_of_job", None),
     ("jobname", "job_name"), ("displayname", "display_name"), ("tag", "tags")],
)  # fmt: skip
def test_a_misspelt_option_is_refused_and_the_nearest_is_named(written: str, meant: str) -> None:
    message = refused(**{written: 5})
    assert f"Declared.{written} is no option" in message
    if meant:
        assert f"did you mean {meant!r}?" in message


@pytest.mark.parametrize("option", [each for each in OPTIONS if each != "version"])
def test_an_option_with_an_annotation_would_be_a_field_and_is_refused(option: str) -> None:
    message = refused({option: int}, **{option: 5})
    assert f"{option!r} is an option of every job" in message
    assert "without annotation" in message


@pytest.mark.parametrize("option", ["tries", "backoff"])
def test_an_option_may_be_annotated_as_a_class_variable(option: str) -> None:
    for annotation in (ClassVar[int], "ClassVar[int]", ClassVar):
        assert vars(declared({option: annotation}, **{option: 5}))[option] == 5
        with pytest.raises(JobDefinitionError):
            declared({option: annotation}, **{option: "5"})


PUBLIC = sorted({name for name in dir(Queueable) if not name.startswith("_")} | {"handle"})


@pytest.mark.parametrize("name", PUBLIC)
def test_no_field_may_be_named_like_a_public_member(name: str) -> None:
    assert f"Declared.{name}" in refused({name: int})


def test_the_members_named_in_the_design_are_among_them() -> None:
    assert {"job", "attempts", "release", "tries", "delete", "fail", "dispatch"} <= {*PUBLIC}


@pytest.mark.parametrize("name", ["release", "job", "attempts", "to_data", "dispatch"])
def test_what_qframe_calls_cannot_be_overridden(name: str) -> None:
    assert "Queueable's own" in refused(**{name: lambda self: None})


@pytest.mark.parametrize(
    ("written", "meant"),
    [("setup", "set_up"), ("setUp", "set_up"), ("teardown", "tear_down"),
     ("tearDown", "tear_down"), ("Handle", "handle"), ("on_failed", None), ("back_off", "backoff"),
     ("retryUntil", "retry_until"), ("displayName", "display_name")],
)  # fmt: skip
def test_a_misspelt_hook_is_refused(written: str, meant: str | None) -> None:
    body: dict[str, Any] = {"handle": None} if meant == "handle" else {}
    if meant is None:
        assert declared(**{written: lambda self: None})
        return
    if body:
        with pytest.raises(JobDefinitionError, match="did you mean 'handle'"):
            types.new_class("D", (Queueable,), {}, lambda ns: ns.update({written: lambda self: 1}))
        return
    assert f"did you mean {meant!r}?" in refused(**{written: lambda self: None})


def test_the_hooks_themselves_are_no_mistake() -> None:
    names = ("set_up", "handle", "tear_down", "succeeded", "failed")
    assert declared(**{name: lambda self, *rest: None for name in names})


def test_constants_helpers_and_private_names_are_left_alone() -> None:
    made = declared(
        {"limit": "ClassVar[int]", "rate": ClassVar[float]},
        limit=5,
        rate=0.5,
        LIMIT=10,
        _cache={},
        helper=lambda self: 1,
        shown=property(lambda self: 2),
        make=classmethod(lambda cls: 3),
        count=staticmethod(lambda: 4),
        Kind=Enum("Kind", "A B"),
    )
    job = made()
    assert (job.limit, job.rate, job.LIMIT, job.helper(), job.shown) == (5, 0.5, 10, 1, 2)
    assert (job.make(), job.count(), job.to_data()) == (3, 4, {})


def test_options_are_inherited_and_overridden_one_by_one() -> None:
    message = envelope.create(Child(user_id=1))
    assert message["maxTries"] == 7
    assert Child.queue == "emails"
    assert envelope.create(Base(user_id=1))["maxTries"] == 5
    assert Queueable.tries is None


def test_none_gives_an_inherited_option_back_to_the_worker() -> None:
    made = types.new_class("Declared", (Base,), {}, lambda names: names.update(tries=None))
    assert envelope.create(made(user_id=1))["maxTries"] is None


def test_a_field_inherited_cannot_be_given_a_default_by_a_bare_assignment() -> None:
    with pytest.raises(JobDefinitionError, match="user_id: int"):
        types.new_class("Declared", (Base,), {}, lambda names: names.update(user_id=5))


@pytest.mark.parametrize("option", MAY_BE_METHODS)
def test_some_options_may_be_methods(option: str) -> None:
    assert declared(**{option: lambda self: None})


class Methodical(Queueable):
    name: str

    def backoff(self, attempt: int, error: BaseException) -> list[float]:
        return [attempt, len(str(error))]

    def retry_until(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)

    def display_name(self) -> str:
        return f"Methodical {self.name}"

    def tags(self) -> list[str]:
        return ["tag", f"name:{self.name}"]

    def handle(self) -> None:
        pass


def test_options_as_methods_are_asked_for_each_job() -> None:
    job = Methodical(name="x")
    message = envelope.create(job)
    assert message["displayName"] == "Methodical x"
    assert message["tags"] == ["tag", "name:x"]
    assert message["retryUntil"] == 1893456000.0
    assert message["backoff"] is None, "a method is asked when the attempt fails"
    assert job.backoff_after(2, ValueError("abc")) == [2, 3]


@pytest.mark.parametrize(
    ("method", "given"),
    [
        (lambda self: 1, [1]),
        (lambda self, attempt: attempt, [3]),
        (lambda self, attempt, error: [attempt, 5], [3, 5]),
        (lambda self, *rest: len(rest), [2]),
        (lambda self: None, None),
        (lambda self: Exponential(2, jitter=0), [8]),
    ],
)
def test_a_backoff_method_takes_what_it_wants(method: Any, given: list[float] | None) -> None:
    assert declared(backoff=method)().backoff_after(3, ValueError()) == given


@pytest.mark.parametrize("wrong", [-1, "5", [1, -1], math.inf])
def test_a_backoff_method_that_gives_no_seconds_is_told(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="backoff must"):
        declared(backoff=lambda self: wrong)().backoff_after(1, ValueError())


@pytest.mark.parametrize("option", ["retry_until", "expires"])
def test_deadlines_count_from_the_dispatch(option: str) -> None:
    message = envelope.create(declared(**{option: timedelta(hours=1)})())
    key = {"retry_until": "retryUntil", "expires": "expiresAt"}[option]
    assert message[key] == pytest.approx(message["createdAt"] + 3600, abs=2)


# -- fields -------------------------------------------------------------------------------------


def test_fields_are_given_by_keyword_and_validated_at_once() -> None:
    assert Child(user_id=1, extra=[2]).extra == [2]
    for wrong in ({}, {"user_id": "x"}, {"user_id": 1, "usr": 2}):
        with pytest.raises(ValidationError):
            Child(**wrong)
    with pytest.raises(ValidationError):
        Child(1)  # type: ignore[call-arg]


@pytest.mark.parametrize("wrong", [{}, {"user_id": "x"}, {"user_id": 1, "usr": 2}])
def test_a_wrong_argument_of_dispatch_is_one_line_that_names_the_field(wrong: Any) -> None:
    for call in (Base.dispatch, Base.dispatch_sync):
        with pytest.raises(InvalidJob) as raised:
            call(**wrong)
        message = str(raised.value)
        assert message.startswith("Base: usr" if "usr" in wrong else "Base: user_id")
        assert message.isprintable()


def test_mutable_defaults_are_not_shared() -> None:
    class Mutable(Queueable):
        items: list[int] = []  # noqa: RUF012 (the point)
        table: dict[str, list[int]] = {"a": []}  # noqa: RUF012 (the point)
        some: set[int] = set()  # noqa: RUF012 (the point)
        made: list[int] = Field(default_factory=list)

    first = Mutable()
    first.items.append(1)
    first.table["a"].append(1)
    first.some.add(1)
    first.made.append(1)
    second = Mutable()
    assert (second.items, second.table, second.some, second.made) == ([], {"a": []}, set(), [])


def test_defaults_are_validated_too() -> None:
    made = declared({"ratio": float, "number": int}, ratio=1, number="x")
    with pytest.raises(ValidationError, match="number"):
        made()
    assert made(number=5).to_data() == {"ratio": 1.0, "number": 5}


def test_annotations_of_the_future_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("future_jobs")
    monkeypatch.setitem(sys.modules, "future_jobs", module)
    exec(
        "from __future__ import annotations\n"
        "from typing import ClassVar, Optional\n"
        "from uuid import UUID\n"
        "from qframe import Queueable, queueable\n"
        "class Job(Queueable):\n"
        "    identity: UUID\n"
        "    other: Optional[Inner] = None\n"
        "    LIMIT: ClassVar[int] = 5\n"
        "    tries = 3\n"
        "    def handle(self) -> None: ...\n"
        "@queueable\n"
        "def call(identity: UUID) -> UUID:\n"
        "    return identity\n"
        "class Inner: ...\n".replace("Inner]", "int]"),
        vars(module),
    )
    job = module.Job(identity="00000000-0000-0000-0000-000000000005")
    assert job.to_data()["identity"] == "00000000-0000-0000-0000-000000000005"
    assert job.identity.int == 5
    assert module.call.job(job.identity).identity.int == 5
    with pytest.raises(ValidationError):
        module.Job(identity="x")


class Validated(Queueable):
    email: str
    age: int = Field(ge=0, default=0)

    @field_validator("email")
    @classmethod
    def lower(cls, value: str) -> str:
        if "@" not in value:
            raise ValueError("no address")
        return value.lower()

    def handle(self) -> None:
        pass


def test_field_validators_run_at_dispatch_and_at_run() -> None:
    job = Validated(email="A@B")
    assert job.to_data() == {"email": "a@b", "age": 0}
    with pytest.raises(InvalidJob, match=r"email: .*no address"):
        Validated.dispatch(email="x")
    with pytest.raises(InvalidJob, match=r"age: .*greater"):
        Validated.dispatch(email="a@b", age=-1)
    job.age = -1
    with pytest.raises(InvalidJob, match=r"age: .*greater"):
        dispatch(job)


def test_a_validator_that_would_change_the_value_a_second_time_is_refused() -> None:
    class Doubles(Queueable):
        number: int

        @field_validator("number")
        @classmethod
        def double(cls, value: int) -> int:
            return value * 2

    with pytest.raises(InvalidJob, match=r"Doubles\.number.*validating it again changes 4"):
        Doubles(number=2).to_data()


def test_a_class_may_bring_its_own_pydantic_configuration() -> None:
    for config in (ConfigDict(frozen=True), ConfigDict(validate_assignment=True)):
        made = declared(
            {"number": int}, __pydantic_config__=config, handle=lambda self: self.attempts
        )
        made.__qualname__ = "Configured"
        assert dispatch_sync(made(number=1)) == 1
        with pytest.raises(ValidationError):
            made(number=1, other=2)


# -- names --------------------------------------------------------------------------------------


def test_a_job_is_named_by_module_and_class_or_by_its_own_choice() -> None:
    assert Base.own_name() == "tests.test_queueable.Base"
    assert index["tests.test_queueable.Base"] is Base
    made = declared(job_name="App\\Jobs\\Renamed")
    assert envelope.create(made())["job"] == "App\\Jobs\\Renamed"
    assert index["App\\Jobs\\Renamed"] is made


def test_two_classes_cannot_have_one_name() -> None:
    made = declared(job_name="taken")

    with pytest.raises(JobDefinitionError, match="'taken' is already the name of"):

        class Other(Queueable):
            job_name = "taken"

            def handle(self) -> None: ...

    with pytest.raises(JobDefinitionError, match="'taken' is already the name of"):

        class Inherits(made):  # type: ignore[misc, valid-type]
            pass

    assert index["taken"] is made
    assert declared(job_name="taken") is not made, "the same class, defined again"


def test_a_base_without_handle_is_no_job() -> None:
    class Abstract(Queueable):
        tries = 3

    assert not Abstract.is_runnable()
    with pytest.raises(InvalidJob, match=r"not at the top|no handle"):
        dispatch(Abstract())
    made: Any = types.new_class(
        "Made", (Abstract,), {}, lambda names: names.update(handle=lambda self: None)
    )
    assert made.is_runnable()
    assert made.tries == 3


def test_a_class_defined_in_a_function_or_class_is_refused_at_dispatch() -> None:
    class Local(Queueable):
        def handle(self) -> None: ...

    with pytest.raises(InvalidJob, match=r"Local is not at the top level.*move it there"):
        dispatch(Local())


# -- outside of a worker ------------------------------------------------------------------------


def test_outside_of_a_worker_there_is_no_reserved_job() -> None:
    job = Base(user_id=1)
    assert job.attempts == 1
    for use in (lambda: job.job, job.release, job.delete, job.fail):
        with pytest.raises(QframeError, match="Base is not being run by a worker"):
            use()


def test_jobs_are_compared_and_shown_by_their_fields() -> None:
    assert Base(user_id=1) == Base(user_id=1)
    assert Base(user_id=1) != Base(user_id=2)
    assert repr(Base(user_id=1)) == "Base(user_id=1, note='')"
