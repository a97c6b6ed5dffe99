"""Every number of the command line and of the configuration has a largest value."""

from __future__ import annotations

import importlib
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import annotated_types
import pytest
from pydantic import BaseModel, Field
from typer.main import get_command
from typer.models import ArgumentInfo, OptionInfo

import qframe
from qframe import QueueManager
from qframe.config import SupervisorSettings
from qframe.console.app import app
from qframe.console.numbers import FOR_THIS_MACHINE, Number
from qframe.console.supervise import described
from qframe.exceptions import ConfigurationError
from qframe.worker import WorkerOptions, machine
from tests.console.conftest import Shop

PACKAGE = Path(qframe.__file__).parent
_MODEL = re.compile(r"^class \w+\(.*(?:BaseModel|Section|Settings)", re.MULTILINE)


class Parameter(NamedTuple):
    """An option or argument: its command, how it is given, its types, and what reads it."""

    words: tuple[str, ...]
    option: str
    kinds: list[Any]
    parser: Any


def _parameters(group: Any, words: tuple[str, ...] = ()) -> Iterator[Parameter]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _parameters(command, (*words, name))
            continue
        for each in inspect.signature(command.callback, eval_str=True).parameters.values():
            kind, *more = get_args(each.annotation)
            (info,) = [m for m in more if isinstance(m, OptionInfo | ArgumentInfo)]
            is_option = isinstance(info, OptionInfo)
            declared = [info.default, *(info.param_decls or ())]
            plain = f"--{each.name.replace('_', '-')}" if is_option else ""
            option = next((str(d) for d in declared if str(d).startswith("--")), plain)
            kinds = [leaf for leaf, _ in _leaves(kind)]
            yield Parameter((*words, name), option, kinds, info.parser)


def _leaves(annotation: Any, bounds: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Give the types that an annotation is made of, with what bounds each."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        yield from _leaves(inner, (*bounds, *more))
    elif origin in {Union, types.UnionType}:
        for each in get_args(annotation):
            yield from _leaves(each, bounds)
    elif origin in {list, dict, tuple}:
        for each in get_args(annotation):
            yield from _leaves(each)
    else:
        yield annotation, bounds


PARAMETERS = list(_parameters(get_command(app)))
NUMBERS = [
    pytest.param(each, id=" ".join((*each.words, each.option)))
    for each in PARAMETERS
    if isinstance(each.parser, Number)
]


def test_every_number_of_the_command_line_is_bounded() -> None:
    numeric = [each for each in PARAMETERS if {int, float} & {*each.kinds}]
    assert [each[:2] for each in numeric if not isinstance(each.parser, Number)] == []
    assert len(numeric) > 25
    assert all(each.parser.most < 10**11 for each in numeric)


@pytest.mark.parametrize("parameter", NUMBERS)
@pytest.mark.parametrize("value", [
    "nan", "inf", "1e300", pytest.param("9" * 400, id="9999"), "-" + "9" * 30,
])  # fmt: skip
def test_a_number_without_sense_is_one_line(shop: Shop, parameter: Parameter, value: str) -> None:
    words, option = parameter.words, parameter.option
    before = ["x"] * (words == ("scale",))  # its name
    given = [option, value] if option else ["--", value]
    said = shop.run(*words, *before, *given)
    assert said.code == 2
    (line,) = said.err.splitlines()
    assert line.startswith("qframe: Invalid value for ")


def _has_most(bounds: tuple[Any, ...]) -> bool:
    """Whether one of them is an upper bound, or a `Field` that has one."""
    every = [more for each in bounds for more in (each, *getattr(each, "metadata", ()))]
    return any(isinstance(each, annotated_types.Le | annotated_types.Lt) for each in every)


def _unbounded(model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[str]:
    if model in seen:
        return
    seen.add(model)
    for name, hint in get_type_hints(model, include_extras=True).items():
        if name not in model.model_fields:
            continue
        for leaf, bounds in _leaves(hint, tuple(model.model_fields[name].metadata)):
            if leaf in {int, float} and not _has_most(bounds):
                yield f"{model.__name__}.{name}"
            elif isinstance(leaf, type) and issubclass(leaf, BaseModel):
                yield from _unbounded(leaf, seen)


def _given() -> Iterator[type[BaseModel]]:
    """Give each model of qframe that people fill in: one that refuses unknown keys."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(("qframe", *path.relative_to(PACKAGE).with_suffix("").parts))
        if not _MODEL.search(path.read_text("utf-8")):
            continue
        for each in vars(importlib.import_module(module)).values():
            if not isinstance(each, type) or not issubclass(each, BaseModel):
                continue
            if each.__module__ == module and each.model_config.get("extra") == "forbid":
                yield each


def test_every_number_of_the_configuration_and_of_a_request_is_bounded() -> None:
    seen: set[type[BaseModel]] = set()
    assert [each for model in _given() for each in _unbounded(model, seen)] == []
    assert {
        "AlertSettings", "FailoverSettings", "JobRequest", "RabbitmqSettings", "ScheduleRow",
        "Settings", "SqsSettings", "SupervisorSettings", "Wanted", "WebhookSettings",
    } <= {each.__name__ for each in seen}  # fmt: skip


class _Careless(BaseModel):
    many: int
    listed: list[float] = []
    late: float | None = Field(None, ge=1)
    also_fine: float = Field(1, le=2)
    fine: Annotated[int | None, Field(le=5)] = None


def test_a_number_without_a_bound_would_be_found() -> None:
    assert list(_unbounded(_Careless, set())) == [
        "_Careless.many", "_Careless.listed", "_Careless.late",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "option", [
        "timeout", "grace", "sleep", "rest", "memory", "max_time", "tries", "max_jobs",
        "concurrency",
    ],
)  # fmt: skip
def test_a_worker_of_a_program_is_bounded_as_well(option: str) -> None:
    values: dict[str, Any] = {option: 10**12}
    with pytest.raises(ConfigurationError, match=option):
        WorkerOptions(**values)


def test_more_workers_than_the_machine_bears_are_refused(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "most_processes", lambda *, forked=False: 9 if forked else 6)
    for words in (["--workers", "7"], ["--workers", "2", "--max", "7"]):
        said = shop.run("work", *words)
        assert said.code == 2
    said = shop.run("work", "--workers", "5", "--isolate", "--concurrency", "2")
    assert (said.code, said.err) == (
        2,
        f"qframe: 10 isolated jobs at once are more than 9: {FOR_THIS_MACHINE}\n",
    )
    queues = QueueManager(
        {"supervisors": {"mail": SupervisorSettings(max_processes=7), "few": {"max_processes": 6}}}
    )
    described("few", queues)
    with pytest.raises(ConfigurationError, match=r"supervisors.mail: max_processes: 7 processes"):
        described("mail", queues)


def test_what_a_machine_bears_follows_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = machine.most_processes.__wrapped__
    assert 4 <= asked() <= asked(forked=True) <= 100 * machine.cores()
    monkeypatch.setattr(machine, "_of_limits", lambda: [12])
    assert asked() == 12
    monkeypatch.setattr(machine, "_of_limits", lambda: [0])
    assert asked() == 4
