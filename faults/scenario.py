"""What a scenario is, and the table of all there are."""

from __future__ import annotations

import importlib
import pkgutil
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faults import scenarios
from faults.backends import BACKENDS, Backend
from faults.site import Site
from faults.verdict import Verdict, judge

Act = Callable[[Site], None]


@dataclass(frozen=True)
class Scenario:
    """A named fault: `act` brings it about on a site and lets the workers drain the queues.

    `needs` are the features a backend must have.
    """

    name: str
    title: str
    act: Act
    needs: frozenset[str]
    through_proxy: bool
    lease: float

    def backend(self, driver: str) -> type[Backend] | None:
        """Give the driver's first kind of backend that has what the scenario needs."""
        return next((kind for kind in BACKENDS[driver] if self.needs <= kind.features), None)


_table: dict[str, Scenario] = {}


def scenario(
    name: str, title: str, *needs: str, through_proxy: bool = False, lease: float = 1.0
) -> Callable[[Act], Act]:
    """Add a function to the table."""

    def add(act: Act) -> Act:
        features = frozenset(needs) | ({"network"} if through_proxy else frozenset())
        _table[name] = Scenario(name, title, act, features, through_proxy, lease)
        return act

    return add


def table() -> dict[str, Scenario]:
    """Give all scenarios by name, in the order of their numbers."""
    for module in pkgutil.iter_modules(scenarios.__path__):
        importlib.import_module(f"{scenarios.__name__}.{module.name}")
    return dict(sorted(_table.items(), key=lambda item: _place(item[0])))


def _place(name: str) -> tuple[bool, str, int, str]:
    digits = "".join(character for character in name if character.isdigit())
    return bool(digits), name[0], int(digits or 0), name


def run(which: Scenario, driver: str, seed: int, *, quick: bool = False) -> tuple[Verdict, Path]:
    """Run a scenario and judge it; gives its folder too, which is kept where anything was wrong."""
    folder = Path(tempfile.mkdtemp(prefix=f"qframe-{which.name}-"))
    verdict = Verdict(which.name, which.title, seed)
    began = time.monotonic()
    kind = which.backend(driver)
    assert kind is not None, f"{which.name} cannot be run on {driver}"  # noqa: S101 (as asked for)
    backend = kind(folder)
    try:
        with Site(
            folder / "project",
            backend,
            seed,
            through_proxy=which.through_proxy,
            quick=quick,
            lease=max(which.lease, kind.shortest_lease),
        ) as site:
            which.act(site)
            judge(site, verdict)
    except Exception:  # noqa: BLE001 (the next scenario is run all the same)
        verdict.violations.append(traceback.format_exc())
    finally:
        backend.close()
    verdict.seconds = time.monotonic() - began
    if verdict.ok:
        shutil.rmtree(folder)
    return verdict, folder
