"""JobDefinition: the declaration of a job class, its options and fields, and its data."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
)

import pydantic.dataclasses
from pydantic import (
    AliasChoices,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, core_schema

from qframe.contracts.durable import Durable, DurableSteps
from qframe.contracts.status import check_progress
from qframe.exceptions import (
    InvalidArguments,
    InvalidJob,
    JobDefinitionError,
    QframeError,
)
from qframe.jobs import project, unset
from qframe.jobs.chunk import ChunkCall, check_chunk
from qframe.jobs.exponential import Exponential
from qframe.jobs.groups import check_format
from qframe.jobs.hooks import check_hooks
from qframe.jobs.options import Backoff, Options, annotations_of, check_declaration
from qframe.jobs.roundtrip import (
    SCALARS,
    first_fault,
    is_strict,
    plain,
    same,
    with_other_empties,
    without_values,
)
from qframe.jobs.typed import Returns
from qframe.jobs.uniqueness import once_rule_of, rule_of
from qframe.jobs.unkept import Unkept
from qframe.jobs.upgrades import version_of
from qframe.jobs.warmup import warm_up
from qframe.models.fields import key_problem, mark_models, models_in, same_keys
from qframe.payload import encryption, secret, timing
from qframe.payload.text import one_line
from qframe.resources.giving import fault_of_given, give_to

if TYPE_CHECKING:
    from qframe.contracts.job import Job

log = logging.getLogger("qframe")

warm_up()

chunked: set[str] = set()
"""The names of the classes of this process that have a `chunk`, with and without module."""
index: dict[str, type[JobDefinition]] = {}
"""The job classes defined in this process, by name on the wire."""


@dataclass_transform(kw_only_default=True, field_specifiers=(Field, dataclasses.field))
class JobDefinition(Options, Durable, Returns):
    """The declaration of a job class: options, fields, hooks, and data.

    Users derive from `Queueable`, which adds the dispatching calls (`qframe/dispatch`).
    """

    _base: ClassVar[type[JobDefinition]]
    """The class whose members' names no field may have."""
    _incomplete: ClassVar[bool] = False
    _holds_models: ClassVar[bool] = False
    """Whether it holds models of pydantic."""
    _is_strict: ClassVar[bool] = False
    _adapter: ClassVar[TypeAdapter[Any]]
    _fields: ClassVar[AbstractSet[str]]
    _compared: ClassVar[Sequence[str]]
    """The fields whose values must arrive as they are: of models, only the keys do."""
    _keys: Mapping[str, Any] | None = None
    """The fields of models as they came, if the session that loaded their rows may be closed."""
    _reserved: Job | None = None
    _growths: int = 0
    """How often this attempt has added to its batch."""
    _chunk: ChunkCall | None = None
    """The jobs that the call of `handle` is about, in the first of a chunk."""
    _own_backoff: Backoff | None = None
    """A middleware's backoff for this attempt, in place of the class's."""

    def __init_subclass__(
        cls, *, base: bool = False, waits: bool = False, **options: object
    ) -> None:
        """Check the declaration and make the class a pydantic dataclass, unless it is a base.

        A class that `waits` is that of a job whose fields are not all known (`references`).
        """
        super().__init_subclass__(**options)
        if base:
            cls._base = cls
            return
        if not waits:
            check_declaration(cls, cls._base)
            if cls.chunk is not None:
                give_to(cls, "handle_many")
                check_chunk(cls)
                chunked.update((cls.__name__, cls.own_name()))
            give_to(cls, "handle")
            check_hooks(cls)
        _copy_mutable_defaults(cls)
        _mark_models(cls)
        own: ConfigDict = getattr(cls, "__pydantic_config__", ConfigDict())
        cls.__pydantic_config__ = _CONFIG | own | _BY_NAME  # type: ignore[attr-defined] # pydantic's own name
        if cls.encrypted and "__repr__" not in vars(cls):
            cls.__repr__ = _hiding_repr  # type: ignore[assignment, method-assign] # the dataclass keeps it
        try:
            pydantic.dataclasses.dataclass(cls, kw_only=True)
            cls._adapter = TypeAdapter(cls)
        except (PydanticUserError, SyntaxError) as error:
            raise _of_unknown_type(cls, error) from error
        declared: dict[str, object] = cls.__dataclass_fields__  # type: ignore[attr-defined] # made above
        cls._fields = declared.keys()
        _look_into(cls)
        if waits:
            return
        cls.unique_rule, cls.once_rule = rule_of(cls), once_rule_of(cls)
        cls.written_version = version_of(cls)
        cls.fixed_name = cls.job_name or ""
        if cls.is_runnable():
            check_format(cls.__name__, cls.group, cls._fields)
            _refuse_taken_name(cls)
            index[cls.own_name()] = cls
            if cls.__module__ != "__main__":
                cls.fixed_name = cls.own_name()

    if TYPE_CHECKING:
        # Declared for type checkers: each subclass has its own.
        def handle(self, *args: Any, **more: Any) -> Any:  # noqa: ANN401 (its own affair)
            """Do the work of the job."""

    def set_up(self) -> Awaitable[None] | None:
        """Prepare an attempt; called before `handle`, in every attempt."""
        return None

    def tear_down(self) -> Awaitable[None] | None:
        """Clean up after an attempt; called after `handle`, also if that or `set_up` failed."""
        return None

    def succeeded(self) -> Awaitable[None] | None:
        """Called after a success; its exceptions are logged and change nothing."""
        return None

    def failed(self, error: BaseException) -> Awaitable[None] | None:  # noqa: ARG002 (a hook)
        """Called once, at the final failure; its exceptions are logged and change nothing."""
        return None

    # -- inside a running job -------------------------------------------------------------------

    @property
    def job(self) -> Job:
        """The reserved job. Raises `QframeError` outside of a worker."""
        if self._reserved is None:
            raise QframeError(f"{type(self).__name__} is not being run by a worker")
        return self._reserved

    @property
    def attempts(self) -> int:
        """The number of starts, including this attempt; 1 outside of a worker."""
        return self._reserved.attempts() if self._reserved is not None else 1

    @property
    def scheduled_for(self) -> datetime | None:
        """The planned time, in the schedule's zone, if a schedule dispatched the job.

        Otherwise None.
        """
        return None if self._reserved is None else self._reserved.scheduled_for

    def release(self, delay: timing.When = 0, *, priority: int | None = None) -> None:
        """Release the job, ready again after `delay`; this attempt does not count against `tries`.

        `delay` is seconds, a timedelta or an aware datetime. On beanstalkd the job keeps its
        priority unless you pass another one.
        """
        self.job.release(timing.seconds_until(delay), priority=priority)

    def delete(self) -> None:
        """End the job as done."""
        self.job.delete()

    def fail(self, error: BaseException | str | None = None) -> None:
        """End the job as failed, even if it has tries left."""
        self.job.fail(QframeError(error) if isinstance(error, str) else error)

    def progress(self, done: float, text: str = "") -> None:
        """Report the progress of a tracked job: a number from 0 to 1, and a short text.

        The status is written up to ten times a second, and always with the last progress. Does
        nothing if the job is not tracked. Raises `ValueError` or `TypeError` for any other number.
        """
        if self._reserved is None:
            check_progress(done, text)
        else:
            self._reserved.progress(done, text)

    # -- internal -------------------------------------------------------------------------------

    def _durable_steps(self) -> DurableSteps:
        return Unkept() if self._reserved is None else self._reserved._durable_steps()  # noqa: SLF001 (its own job)

    @classmethod
    def is_runnable(cls) -> bool:
        """Whether the class has a `handle`."""
        return callable(getattr(cls, "handle", None))

    @classmethod
    def own_name(cls) -> str:
        """Return the declared name on the wire: `job_name`, or module and class."""
        return cls.job_name or f"{cls.__module__}.{cls.__qualname__}"

    @classmethod
    def wire_name(cls) -> str:
        """Return the name by which another process finds the class.

        Raises `InvalidJob` if none can.
        """
        if cls.fixed_name:
            return cls.fixed_name
        if not cls.is_runnable():
            raise InvalidJob(
                f"{cls.__name__} has no handle method: write what it does in def handle(self)"
            )
        module, trouble = project.main_module()
        if trouble:
            raise InvalidJob(f"{cls.__name__} {trouble}")
        return f"{module}.{cls.__qualname__}"

    @classmethod
    def check_reachable(cls) -> None:
        """Raise `InvalidJob` for a class inside a function or class: no worker can import it."""
        if cls._incomplete:
            cls._complete()
        if cls._is_inside():
            raise InvalidJob(
                f"{cls.__qualname__} is not at the top level of its module, so no worker could "
                "find it; move it there"
            )

    @classmethod
    def _is_inside(cls) -> bool:
        """Whether the class is inside a function or class, where a worker cannot import it."""
        return not cls.job_name and "." in cls.__qualname__

    @classmethod
    def _complete(cls) -> None:
        """Resolve types that were not defined when the class was."""
        try:
            if marked := mark_models(cls.__name__, annotations_of(cls), _space_of(cls)):
                for name, annotation in marked.items():
                    cls.__dataclass_fields__[name].type = annotation  # type: ignore[attr-defined] # made with it
                pydantic.dataclasses.rebuild_dataclass(cast("Any", cls), raise_errors=False)
                cls._adapter = TypeAdapter(cls)
            cls._adapter.rebuild(raise_errors=False)
        except (PydanticUserError, SyntaxError) as error:
            raise _of_unknown_type(cls, error) from error
        _look_into(cls)

    def backoff_after(self, attempt: int, error: BaseException) -> list[float] | None:
        """Return the current backoff in seconds; None if the class sets none."""
        backoff = self.backoff if self._own_backoff is None else self._own_backoff
        if callable(backoff):
            backoff = backoff(*_wanted(backoff, attempt, error))
        if backoff is None:
            return None
        if isinstance(backoff, Exponential):
            backoff = backoff.delay_after(attempt)
        seconds = backoff if isinstance(backoff, Sequence) else (backoff,)
        return [timing.seconds_until(value, "backoff") for value in seconds]

    def shown_name(self, name: str) -> str:
        """Return the display name, by default the `name` on the wire."""
        shown = self.display_name
        return (shown() if callable(shown) else shown) or name

    def to_data(self) -> dict[str, Any]:  # noqa: C901, PLR0912 (another call would slow each dispatch)
        """Return the fields as JSON values.

        Raises `InvalidJob` for values that JSON would change.
        """
        names = self._fields
        if not names:
            return {}
        name = type(self).__name__
        try:
            # warnings="error" takes 0.8 us longer, and the comparison below finds more than it
            # does.
            data: dict[str, Any] = self._adapter.serializer.to_python(
                self, mode="json", warnings=False, context=secret.TRAVELS
            )
            if self.secret_fields:
                data = secret.revealed(self, data)
        except Exception as error:  # noqa: BLE001 (a serializer of the job's may raise anything)
            raise self._unwritten(error) from None
        if len(data) > len(names):  # a computed field is computed again on the other side
            data = {key: value for key, value in data.items() if key in names}
        try:
            back = (
                self._validated(data)
                if self._is_strict
                else self._adapter.validator.validate_python(data, by_name=True)
            )
        except ValidationError as error:
            back, data = self._by_names(error, data)
        except Exception as error:  # noqa: BLE001 (a validator of the job's may raise anything)
            raise InvalidJob(f"{name}: {self._first_fault(error)}") from None
        for key in self._compared:
            sent = getattr(self, key)
            try:
                arrived = getattr(back, key)
                if type(sent) in SCALARS and type(sent) is type(arrived):
                    arrives = sent == arrived
                else:
                    arrives = same(sent, arrived)
            except Exception:  # noqa: BLE001 (`__eq__` of whatever it is)
                arrives = False
            if not arrives:
                what = "validating it again changes" if plain(sent) else "JSON would change"
                what = what if key in data else "pydantic is told to leave out"
                shown = "it" if self._hides() else one_line(repr(sent), 80)
                raise InvalidJob(
                    f"{name}.{key} would not arrive as it is: {what} {shown}; "
                    "give the field a type that pydantic can restore"
                )
        if self.model_fields:
            self._check_keys(back)
        if self._holds_models and (found := unset.found_in(self, back)):
            data[unset.KEY] = found
        return data

    def _check_keys(self, back: Self) -> None:
        """Raise `InvalidJob` if the key of a row would not arrive as it is."""
        for name in self.model_fields:
            if not same_keys(getattr(self, name), getattr(back, name)):
                raise InvalidJob(
                    f"{type(self).__name__}.{name}: JSON would change the key of the model"
                )

    def _unwritten(self, error: Exception) -> InvalidJob:
        if self.model_fields and (problem := key_problem(self, self.model_fields)):
            return InvalidJob(problem)
        why = type(error).__name__ if self._hides() else one_line(str(error), 500)
        return InvalidJob(f"{_unsendable(self)}: {why}")

    def _by_names(
        self, error: ValidationError, data: dict[str, Any]
    ) -> tuple[Self, dict[str, Any]]:
        """Serialize what is validated again: names for aliases, and nothing that is computed."""
        if error.errors(include_url=False)[0]["type"] == "json_invalid":
            return self, data  # it holds a lone surrogate: the encoder of the payload names where
        with contextlib.suppress(ValidationError):
            data = self._adapter.serializer.to_python(
                self, mode="json", warnings=False, context=secret.TRAVELS, by_alias=False,
                round_trip=True,
            )  # fmt: skip
            data = secret.revealed(self, data)
            return self._validated(data), data
        raise InvalidJob(f"{type(self).__name__}: {self._first_fault(error)}") from None

    @classmethod
    def _hides(cls) -> bool:
        return cls.encrypted or bool(cls.secret_fields)

    @classmethod
    def _first_fault(cls, error: Exception) -> str:
        if cls._hides() and isinstance(error, ValidationError):
            error = without_values(error)
        return first_fault(error)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Make pydantic's own errors hide dict keys as well, if they must hide input.

        JSON is read without the wrapper, behind which strict types would not accept it.
        """
        schema = handler(source)
        config: ConfigDict = cls.__pydantic_config__  # type: ignore[attr-defined] # pydantic's own name
        if not config.get("hide_input_in_errors"):
            return schema
        hiding = core_schema.no_info_wrap_validator_function(_hiding_keys, schema)
        return core_schema.json_or_python_schema(json_schema=schema, python_schema=hiding)

    @classmethod
    def opens(cls, data: dict[str, Any]) -> bool:
        """Whether this data must be decrypted: it has one key, and that is not a field's.

        An encrypted class also accepts plain data, from jobs dispatched before it was encrypted. A
        class that is not encrypted any more accepts the encrypted jobs that still wait.
        """
        return data.keys() == {encryption.KEY} and (
            cls.encrypted or encryption.KEY not in cls.field_names()
        )

    @classmethod
    def field_names(cls) -> AbstractSet[str]:
        """Return the names of the fields."""
        return cls._fields

    @classmethod
    def from_data(cls, data: object) -> Self:
        """Make the job from a payload's data. Raises `InvalidArguments` with the field's name.

        It ignores unknown keys, with one warning for each, so that a field can be removed while
        jobs with it wait. PHP writes no fields as `[]` or `""`, and any empty array as `[]`.
        """
        if not isinstance(data, dict):
            if data not in (None, [], ""):
                kind = type(data).__name__
                raise InvalidArguments(
                    f"{cls.__name__}: the payload's data is a {kind}, not named fields"
                )
            data = {}
        if cls._incomplete:
            cls._complete()
            cls._check_complete(InvalidArguments)
        unset_fields, fields = None, cls._fields
        if not data.keys() <= fields:
            fields = fields | cls._aliases()
            for key in data.keys() - fields - {unset.KEY}:
                _warn_once(cls, key)
            unset_fields = data.get(unset.KEY)
            data = {key: data[key] for key in data if key in fields}
        try:
            job = cls._validated(data)
        except ValidationError as error:
            job = cls._with_other_empties(data, error)
        if unset_fields is not None:
            unset.put_back(job, unset_fields)
        return job

    @classmethod
    def from_request(cls, data: dict[str, Any]) -> Self:
        """Make the job from what another program gives for its fields.

        Raises pydantic's `ValidationError`, also for unknown keys; without values if the class has
        secrets or is encrypted.
        """
        if cls._incomplete:
            cls._complete()
            cls._check_complete(InvalidArguments)
        try:
            return cls._validated(data)._requested()  # noqa: SLF001 (its own)
        except ValidationError as error:
            raise (without_values(error) if cls._hides() else error) from None

    def _requested(self) -> Self:
        """Return what another program's request for this job dispatches."""
        return self

    @classmethod
    def schema_of_fields(cls, ref_template: str) -> dict[str, Any]:
        """Return the JSON schema of the fields, with references to `$defs` by `ref_template`.

        Raises pydantic's `PydanticInvalidForJsonSchema` for a field that has none.
        """
        return cls._adapter.json_schema(
            by_alias=False, ref_template=ref_template, schema_generator=_QuietSchema
        )

    @classmethod
    def _with_other_empties(cls, data: dict[str, Any], error: ValidationError) -> Self:
        other = with_other_empties(data, error)
        if other is not None:
            with contextlib.suppress(ValidationError):
                return cls._validated(other)
        misfit = InvalidArguments(f"{cls.__name__}: {cls._first_fault(error)}")
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        misfit.fields = tuple(dict.fromkeys(str(each["loc"][0]) for each in faults if each["loc"]))
        misfit.is_lack = all(e["type"] == "missing" and len(e["loc"]) == 1 for e in faults)
        raise misfit from None

    @classmethod
    def _validated(cls, data: dict[str, Any]) -> Self:
        validator = cls._adapter.validator
        job: Self
        if cls._is_strict:  # which accepts a time or tuple only from JSON text
            job = validator.validate_json(json.dumps(data), by_name=True)
        else:
            job = validator.validate_python(data, by_name=True)
        return job

    @classmethod
    def _aliases(cls) -> set[str]:
        """Return the other names that its fields may have."""
        fields: dict[str, FieldInfo] = cls.__pydantic_fields__  # type: ignore[attr-defined] # made in __init_subclass__
        found = set[str]()
        for field in fields.values():
            alias = field.validation_alias or field.alias
            choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
            found |= {each for each in choices if isinstance(each, str)}
        return found

    @classmethod
    def _check_complete(cls, error: type[QframeError]) -> None:
        """Raise an error for a field type that is still undefined."""
        if not cls._incomplete:
            return
        try:
            cls._adapter.rebuild(force=True, raise_errors=True)
        except PydanticUndefinedAnnotation as missing:
            fields = [
                key for key, of in annotations_of(cls).items() if str(missing.name) in str(of)
            ]
            raise error(
                f"{cls.__name__}.{', '.join(fields)}: the type {missing.name!r} is not there when "
                "the program runs; import it outside of TYPE_CHECKING"
            ) from None


JobDefinition._base = JobDefinition  # noqa: SLF001 (its own)


# -- declarations -------------------------------------------------------------------------------


P = ParamSpec("P")
J = TypeVar("J")


class _QuietSchema(GenerateJsonSchema):
    """Leaves out defaults that are no JSON, without a warning."""

    ignored_warning_kinds = {"non-serializable-default", "skipped-choice"}  # noqa: RUF012 (pydantic's own, of the instance)


def made(job_class: Callable[P, J], /, *args: P.args, **fields: P.kwargs) -> J:
    """Make a job to dispatch. Raises `InvalidJob`, in one line, if a field does not fit."""
    try:
        return job_class(*args, **fields)
    except ValidationError as error:
        name = getattr(job_class, "__name__", "the job")
        fault = "its fields are given by name, not by position" if args else first_fault(error)
        fault = fault_of_given(getattr(job_class, "handle", None), fields) or fault
        raise InvalidJob(f"{name}: {fault}") from None


def _refuse_taken_name(cls: type[JobDefinition]) -> None:
    """Refuse the `job_name` of another class, even an inherited one: jobs would be mixed up.

    The same class defined again, by a reload or by a script and its import, is no other.
    """
    taken = index.get(cls.own_name())
    if taken is None or not cls.job_name or "__main__" in {taken.__module__, cls.__module__}:
        return
    if (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
        raise JobDefinitionError(
            f"{cls.__name__}.job_name: {cls.job_name!r} is already the name of "
            f"{taken.__module__}.{taken.__qualname__}; give each class its own"
        )


def _copy_mutable_defaults(cls: type[JobDefinition]) -> None:
    """Allow `[]` or a model as a field's default; each job gets a copy, as in a pydantic model."""
    for name, annotation in annotations_of(cls).items():
        default = None if "ClassVar" in str(annotation) else vars(cls).get(name)
        if type(default).__hash__ is None and not isinstance(default, FieldInfo):
            setattr(cls, name, Field(default_factory=partial(copy.deepcopy, default)))


def _mark_models(cls: type[JobDefinition]) -> None:
    """Make the rows of models in fields travel as keys."""
    if marked := mark_models(cls.__name__, annotations_of(cls), _space_of(cls)):
        cls.__annotations__ = {**annotations_of(cls), **marked}
    if cls.missing == "retry" and cls.tries == 1 and cls.retry_until is None:
        raise JobDefinitionError(
            f"{cls.__name__}.missing: 'retry' needs tries, of which it has one: set more, or "
            "retry_until"
        )


def _space_of(cls: type[JobDefinition]) -> dict[str, Any]:
    """Return the names that its annotations may use."""
    space: dict[str, Any] = getattr(sys.modules.get(cls.__module__), "__dict__", {})
    return space


def _of_unknown_type(cls: type[JobDefinition], error: Exception) -> JobDefinitionError:
    """Return an error that names the field with the type unknown to pydantic."""
    space = _space_of(cls)
    for name, annotation in annotations_of(cls).items():
        try:
            type_ = eval(annotation, space) if isinstance(annotation, str) else annotation  # noqa: S307 (what the class says itself)
            TypeAdapter(type_)
        except (NameError, AttributeError):
            continue  # it is defined later
        except (PydanticUserError, SyntaxError) as fault:
            shown = one_line(annotation if isinstance(annotation, str) else repr(annotation), 100)
            advice = "give the field what can be JSON, such as an id or a path"
            if getattr(fault, "code", None) not in {None, "schema-for-unknown-type"}:
                advice = one_line(str(fault).partition("\n")[0], 200)
            return JobDefinitionError(
                f"{cls.__name__}.{name}: pydantic cannot check or send the type {shown}: {advice}"
            )
    return JobDefinitionError(f"{cls.__name__}: {one_line(str(error), 200)}")


_BY_NAME = ConfigDict(serialize_by_alias=False, validate_by_name=True)
"""A job's own fields travel by name, whatever their aliases."""
_CONFIG = ConfigDict(extra="forbid", ser_json_inf_nan="constants", validate_default=True)


def _look_into(cls: type[JobDefinition]) -> None:
    """Note what the field types require of each dispatch.

    If any field holds a secret, pydantic's errors never show the input.
    """
    schema = cls._adapter.core_schema
    cls._incomplete = not isinstance(schema, dict)  # a type is defined later
    cls.is_reachable = not (cls._incomplete or cls._is_inside())
    cls.secret_fields = () if cls._incomplete else secret.fields_of(schema)
    cls._holds_models = not cls._incomplete and unset.holds_models(schema)
    cls.model_fields = {} if cls._incomplete else models_in(schema)
    cls._compared = [name for name in cls._fields if name not in cls.model_fields]
    cls._is_strict = not cls._incomplete and is_strict(schema)
    if cls._incomplete and "__new__" not in vars(cls):
        cls.__new__ = _checked_new  # type: ignore[assignment] # only of those that may be refused
    is_declared = any("encrypted" in vars(each) for each in cls.__mro__ if each is not Options)
    cls.in_clear = bool(cls.secret_fields) and not is_declared
    config: ConfigDict = cls.__pydantic_config__  # type: ignore[attr-defined] # pydantic's own name
    if (cls._hides() or cls._incomplete) and "hide_input_in_errors" not in config:
        config["hide_input_in_errors"] = True
        if not cls._incomplete:
            pydantic.dataclasses.rebuild_dataclass(cast("Any", cls), force=True)
            cls._adapter = TypeAdapter(cls)


def _checked_new(cls: type[JobDefinition], *_: object, **fields: object) -> JobDefinition:
    """Make a job after checking that all of the class's types are defined."""
    if cls._incomplete:
        cls._complete()
        cls._check_complete(InvalidJob)
    return new_instance(cls, **fields)


def _plain_instance(cls: type[JobDefinition], **_: object) -> JobDefinition:
    return object.__new__(cls)


new_instance: Callable[..., JobDefinition] = _plain_instance
"""Makes a job before its fields are set; `references` replaces it once there are flows."""


def _hiding_keys(given: object, validate: Callable[[object], object]) -> object:
    """Make a job; errors in a payload's data are checked for values before they are shown."""
    try:
        return validate(given)
    except ValidationError as error:
        if isinstance(given, dict):
            raise
        raise without_values(error) from None


def _hiding_repr(job: JobDefinition) -> str:
    """Show an encrypted job without its fields."""
    return f"{type(job).__qualname__}({', '.join(f'{name}=...' for name in job.field_names())})"


def _unsendable(job: JobDefinition) -> str:
    """Return the name of the field that cannot be encoded."""
    write = type(job)._adapter.serializer.to_python  # noqa: SLF001 (its own)
    for key in type(job).field_names():
        try:
            write(job, mode="json", include={key}, warnings=False, context=secret.TRAVELS)
        except Exception:  # noqa: BLE001 (any error means this field)
            return f"{type(job).__name__}.{key}"
    return type(job).__name__


_warned: set[tuple[type, str]] = set()


def _warn_once(cls: type, key: str) -> None:
    if (cls, key) not in _warned:
        _warned.add((cls, key))
        log.warning(
            "%s has no field %r: it is left out; restart the worker if its code is older",
            cls.__name__,
            one_line(key, 60),
        )


def _wanted(method: Callable[..., object], *offered: object) -> tuple[object, ...]:
    """Return as many of the offered arguments as the method takes."""
    parameters = inspect.signature(method).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return offered
    taken = sum(p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD} for p in parameters)
    return offered[:taken]
