"""The pages of the reference that are made from the code: what it has is what they say."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
import typer.main
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from qframe.config.settings import Settings
from qframe.console.app import app
from qframe.web import prometheus

_API = {
    "qframe": "Jobs and dispatches",
    "qframe.middleware": "Middleware",
    "qframe.testing": "Tests",
}
_ABOUT_SETTINGS = """\
Each key of `qframe.toml`, or of `[tool.qframe]` in `pyproject.toml`. Its environment variable is
`QFRAME_`, then the path in capitals with `__` between its parts: `web.password` is
`QFRAME_WEB__PASSWORD`. Durations are seconds. [Configuration](configuration.md) says where they
are read from."""
_ABOUT_METRICS = """\
# Names of metrics

What `/metrics` has. [Metrics](../operate/metrics.md#read-them-with-prometheus) says how to read it.

| name | kind | labels | meaning |
|---|---|---|---|
"""
_DRIVERS = ("database", "redis", "beanstalkd", "rabbitmq", "sqs")


def _api() -> str:
    parts = ["# Python API", "", "Durations are seconds. What is not listed here is private."]
    for name, title in _API.items():
        module = import_module(name)
        parts += [
            "",
            f"## {title}: `{name}`",
            "",
            "```{eval-rst}",
            f".. currentmodule:: {name}",
            "",
        ]
        for member in sorted(_public(module)):
            value = getattr(module, member)
            if inspect.ismodule(value):
                continue
            if inspect.isclass(value):
                parts += [f".. autoclass:: {member}", "   :members:", ""]
            elif inspect.isroutine(value):
                parts += [f".. autofunction:: {member}", ""]
            else:
                parts += [f".. autodata:: {member}", "   :no-value:", ""]
        parts.append("```")
    return "\n".join(parts) + "\n"


def _public(module: ModuleType) -> list[str]:
    return list(module.__all__)


def _events() -> str:
    module = import_module("qframe.events")
    lines = [
        "# Events",
        "",
        "```{eval-rst}",
        ".. automodule:: qframe.events",
        "   :no-members:",
        "",
    ]
    for name, kind in vars(module).items():
        if inspect.isclass(kind) and issubclass(kind, module.Event) and name[0] != "_":
            lines += [f".. autoclass:: qframe.events.{name}", "   :members:", "   :no-index:", ""]
    return "\n".join([*lines, "```"]) + "\n"


def _settings() -> str:
    lines = ["# Settings", "", _ABOUT_SETTINGS, "", "## At the top", ""]
    lines += [*_text(Settings), "", *_table(Settings)]
    for name, field in Settings.model_fields.items():
        for model in _models(field.annotation):
            path = f"{name}.NAME" if "dict" in str(field.annotation) else name
            lines += ["", f"## `[{path}]`", "", *_text(model), "", *_table(model)]
    for driver in _DRIVERS:
        module = import_module(f"qframe.drivers.{driver}.settings")
        for model in vars(module).values():
            is_here = getattr(model, "__module__", "") == module.__name__
            if is_here and "driver" in getattr(model, "model_fields", ()):
                head = f'## `[connections.NAME]` with `driver = "{driver}"`'
                lines += ["", head, "", *_text(model), "", *_table(model)]
    return "\n".join(lines) + "\n"


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models(each)


def _text(model: type[BaseModel]) -> list[str]:
    text = inspect.cleandoc(model.__doc__ or "")
    kept = text.partition("\n\nAttributes:")
    lines = kept[0].splitlines()
    for line in kept[2].splitlines():
        if line.startswith("    ") and not line.startswith("     "):
            name, _, said = line.strip().partition(": ")
            lines += ["", f"- `{name}`: {said}"]
        elif line.strip():
            lines.append(f"  {line.strip()}" if line.startswith("     ") else f"\n{line.strip()}")
    return lines


def _table(model: type[BaseModel]) -> list[str]:
    lines = ["| key | type | default |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        default: Any = field.get_default(call_default_factory=False)
        if isinstance(default, BaseModel):
            shown = "its own defaults"
        elif field.default_factory is not None:
            shown = "found when it starts"
        elif default is PydanticUndefined:
            shown = "required"
        else:
            shown = f"`{default.value if isinstance(default, Enum) else default!r}`"
        kind = _cell(_named(field.annotation))
        lines.append(f"| `{field.alias or name}` | `{kind}` | {_cell(shown)} |")
    return lines


def _named(annotation: object) -> str:
    """Write a type as its reader would, without what pydantic is told besides."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _named(inner[0])
    if origin is Literal:
        return " | ".join(repr(each) for each in inner)
    if origin in (Union, UnionType):
        return " | ".join(_named(each) for each in inner)
    if origin is not None:
        return f"{_named(origin)}[{', '.join(map(_named, inner))}]"
    if annotation is NoneType:
        return "None"
    return getattr(annotation, "__name__", str(annotation))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _commands() -> str:
    lines = ["# Commands", "", "[The command line](command-line.md) says what they share."]
    root = typer.main.get_command(app)
    lines += _command(root, "qframe", 2)
    return "\n".join(lines) + "\n"


def _command(command: Any, path: str, level: int) -> Iterator[str]:  # noqa: ANN401 (private)
    context = typer.Context(command, info_name=path)
    subs: dict[str, Any] = getattr(command, "commands", {})
    if not subs:
        usage = (
            " ".join([path, *command.collect_usage_pieces(context)])
            .replace("[[", "[")
            .replace("]]", "]")
        )
        lines = inspect.cleandoc(command.help or "").replace("\b\n", "").replace("\f", "")
        yield from ["", f"{'#' * level} `{path}`", "", "```console", f"$ {usage}", "```", ""]
        yield from ["```text", lines, "```"]
        yield from _parameters(command)
    for name, each in subs.items():
        if not each.hidden:
            yield from _command(each, f"{path} {name}", level)


def _parameters(command: Any) -> Iterator[str]:  # noqa: ANN401 (typer's type is private)
    rows = []
    for each in command.params:
        if getattr(each, "hidden", False) or each.name == "help":
            continue
        names = ", ".join(f"`{n}`" for n in [*each.opts, *each.secondary_opts])
        default = each.default
        shown = "" if default in (None, (), [], False) or callable(default) else f"`{default}`"
        rows.append(f"| {names} | {_cell(getattr(each, 'help', '') or '')} | {_cell(shown)} |")
    if rows:
        yield from ["", "| option or argument | meaning | default |", "|---|---|---|", *rows]


def _metrics() -> str:
    rows = []
    tree = ast.parse(Path(prometheus.__file__).read_text(encoding="utf-8"))
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        names: dict[str, Any] = dict(vars(prometheus))
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Name, ast.Tuple)):
                _learn(names, node)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                kind = node.func.id.removesuffix("MetricFamily").lower()
                if kind != node.func.id.lower() and node.args:
                    rows.append(_metric(kind, node, names))
    text = "\n".join(dict.fromkeys(rows))
    return f"{_ABOUT_METRICS}{text}\n"


def _learn(names: dict[str, Any], node: ast.Assign) -> None:
    """Add the lists of words that a function makes."""
    targets, values = [node.targets[0]], [node.value]
    if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
        targets, values = list(node.targets[0].elts), list(node.value.elts)
    for target, value in zip(targets, values, strict=False):
        if isinstance(target, ast.Name) and isinstance(value, ast.List):
            try:
                names[target.id] = ast.literal_eval(value)
            except ValueError:
                continue


def _metric(kind: str, node: ast.Call, names: dict[str, Any]) -> str:
    name, said = (ast.literal_eval(each) for each in node.args[:2])
    labels: list[str] = []
    for each in node.keywords:
        if each.arg == "labels":
            labels = _labels(each.value, names)
    full = f"{name}_total" if kind == "counter" else name
    return f"| `{full}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {_cell(said)} |"


def _labels(node: ast.expr, names: dict[str, Any]) -> list[str]:
    if isinstance(node, ast.Name):
        return [*names[node.id]]
    if isinstance(node, ast.Starred):
        return _labels(node.value, names)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [label for each in node.elts for label in _labels(each, names)]
    return [str(ast.literal_eval(node))]


PAGES: dict[str, Callable[[], str]] = {
    "api.md": _api,
    "settings.md": _settings,
    "commands.md": _commands,
    "events.md": _events,
    "metric-names.md": _metrics,
}
"""What makes each page of the section, by the page's name."""
