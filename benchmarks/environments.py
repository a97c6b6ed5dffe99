"""The peers' own environments: made from pinned packages when first asked for, then kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.places import REPOSITORY, NotHereError

_KEPT = REPOSITORY / "build" / "peers"
_PINNED = Path(__file__).parent / "peers"
_LONGEST = 600


def pinned(name: str) -> dict[str, str]:
    """Give the versions a peer is compared in, by package."""
    lines = (_PINNED / f"{name}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines)


def programs(name: str) -> Path:
    """Give the folder of a peer's programs; raises `NotHereError` where it cannot be had."""
    folder, requirements = _KEPT / name, _PINNED / f"{name}.txt"
    wanted = f"{sys.version}\n{requirements.read_text()}"
    stamp = folder / "made-from.txt"
    if stamp.is_file() and stamp.read_text() == wanted:
        return folder / "bin"
    print(f"installing {name}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    _run("sh", str(REPOSITORY / "scripts" / "venv.sh"), sys.executable, str(folder))
    pip = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check")
    _run(*pip, "install", "--quiet", "--requirement", str(requirements))
    stamp.write_text(wanted)
    return folder / "bin"


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LONGEST
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotHereError(str(error)) from error
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR: ")] or said or ["it failed"]
        raise NotHereError(errors[-1].removeprefix("ERROR: "))
