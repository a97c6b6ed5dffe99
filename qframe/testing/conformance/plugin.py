"""The option `--backend` and the fixtures of the suite; loaded when the suite is named."""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias, cast

import pytest

from qframe.contracts.backend import Backend
from qframe.testing.conformance.bench import Bench

MakeBench: TypeAlias = Callable[[], Bench]

_USAGE = (
    "pass --backend my_package.module:MyBench, "
    "a class derived from qframe.testing.conformance.Bench"
)

_SLOWLY = 0.3
"""Real seconds of a test's second where it is repeated."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("qframe").addoption(
        "--backend", metavar="MODULE:CLASS", help="the Bench of the backend under test"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a name that is none, before any test is collected."""
    if not config.option.help:
        _kind(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tested, and why."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"not tested: {count} tests, since {reason}")


def _kind(config: pytest.Config) -> type[Bench]:
    """Return the class that the option names."""
    text: str | None = config.getoption("--backend")
    module, colon, name = (text or "").partition(":")
    if not (module and colon and name):
        raise pytest.UsageError(_USAGE)
    if (here := str(config.invocation_params.dir)) not in sys.path:
        sys.path.insert(0, here)  # as `python -m pytest` has it
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"--backend {text}: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Bench)):
        raise pytest.UsageError(f"--backend {text}: {_USAGE}")
    return kind


def benches(kind: type[Bench], request: pytest.FixtureRequest, folder: Path) -> MakeBench:
    """Return what makes benches, each with a folder of its own."""
    numbers = itertools.count()

    def make() -> Bench:
        own = folder / f"bench{next(numbers)}"
        own.mkdir()
        return kind(request, own)

    return make


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Repeat a test that failed after waiting with longer times: the machine may be slow."""
    found, given = pyfuncitem.funcargs, inspect.signature(pyfuncitem.obj).parameters
    bench = found.get("bench")
    if not isinstance(bench, Bench) or bench.skews:
        return None
    make = cast("MakeBench", found["make_bench"])
    try:
        pyfuncitem.obj(**{name: found[name] for name in given})
    except AssertionError:
        if not bench.waited:
            raise
    else:
        return True
    for each in bench.opened:  # or a server takes it that somebody works on
        each.close()
    again = make()
    again.second = _SLOWLY
    fresh = {"bench": again, "backend": again.open(), "other": again.open()}
    try:
        pyfuncitem.obj(**{name: fresh.get(name, found[name]) for name in given})
    finally:
        again.close()
    return True


@pytest.fixture
def make_bench(request: pytest.FixtureRequest, tmp_path: Path) -> MakeBench:
    """Return what makes an empty place for messages."""
    return benches(_kind(request.config), request, tmp_path)


@pytest.fixture
def bench(make_bench: MakeBench) -> Iterator[Bench]:
    """Give a place for messages, empty."""
    made = make_bench()
    yield made
    made.close()


@pytest.fixture
def backend(bench: Bench) -> Backend:
    """Give a backend on it."""
    return bench.open()


@pytest.fixture
def other(bench: Bench) -> Backend:
    """Give another on the same, as another worker has it."""
    return bench.open()
