"""The `qframe` command's entry: it answers `qframe health` by itself, and hands on all else.

A probe runs every few seconds, so `health` imports nothing, neither qframe nor its libraries: it
reads what a worker last wrote of itself (`qframe/worker/health.py`).
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time

VARIABLE = "QFRAME_HEALTH_FILE"
WITHIN = 20.0
"""Seconds within which a live worker writes again."""
_MARK = "qframe-health-1"
_SIZE = 256
"""Bytes of a file: each is written at once, and as long as the one before."""
_AGAIN = 0.01
_FOLDER = "qframe"
_OTHERS_MAY_WRITE = 0o022


class HealthRecord:
    """What a worker has written: `beat` and `until` are moments of the machine's monotonic clock.

    It writes again within `within` seconds. Its main thread is accounted for until `until`. `born`
    tells its process from a later one with its pid. `doing` says in words what it does.
    """

    def __init__(
        self,
        pid: int,
        born: str,
        beat: float,
        within: float,
        until: float,
        ready: bool,
        doing: str,
    ) -> None:
        self.pid = pid
        self.born = born
        self.beat = beat
        self.within = within
        self.until = until
        self.ready = ready
        self.doing = doing

    def as_bytes(self) -> bytes:
        """Returns the record as the file has it."""
        numbers = f"{self.beat:.3f} {self.within:.3f} {self.until:.3f} {int(self.ready)}"
        text = f"{_MARK} {self.pid} {self.born or '-'} {numbers} {self.doing}"
        raw = text.encode("utf-8", "replace")[: _SIZE - 1]
        return raw.ljust(_SIZE - 1) + b"\n"

    @classmethod
    def read(cls, raw: bytes) -> HealthRecord:
        """Returns the record of a file. Raises `ValueError` if it has none."""
        if len(raw) != _SIZE or not raw.endswith(b"\n"):
            raise ValueError("it is no health file")
        mark, pid, born, beat, within, until, ready, doing = raw.decode("utf-8", "replace").split(
            " ", 7
        )
        if mark != _MARK:
            raise ValueError("it is no health file of this version")
        numbers = float(beat), float(within), float(until)
        return cls(int(pid), born.strip("-"), *numbers, ready == "1", doing.rstrip())

    def trouble(self, now: float, *, ready: bool) -> str:
        """Returns why the worker is not alive, or not `ready`; "" if it is."""
        silent = now - self.beat
        if silent > self.within:
            return f"no sign of life for {silent:.0f} s"
        if silent < -1:
            return "its last sign of life is from before the machine was started"
        if now > self.until:
            return f"its main thread hangs: {self.doing}"
        return f"not ready: {self.doing}" if ready and not self.ready else ""


# -- files ----------------------------------------------------------------------------------------


def folders() -> list[str]:
    """Returns the folders for the files of this user's workers, the first choice first."""
    if not hasattr(os, "geteuid"):
        return []
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 (a folder in it that only we write)
    found = [os.path.join(runtime, _FOLDER)] if os.path.isabs(runtime) else []
    return [*found, os.path.join(temporary, f"{_FOLDER}-{os.geteuid()}")]


def is_ours(folder: str) -> bool:
    """Whether a folder is one that only this user may write to, and no link."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return mine and not found.st_mode & _OTHERS_MAY_WRITE


def born(pid: int) -> str:
    """Returns when a process was started, in ticks since boot; "" if it has ended, or no system."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in b"ZX" else fields[19].decode()


def is_taken(pid: int) -> bool:
    """Whether there is a process with this pid."""
    try:
        os.kill(pid, 0)
    except OverflowError:
        return False
    except OSError as error:
        return error.errno == errno.EPERM
    return True


def _read(path: str) -> HealthRecord:
    """Reads a file. Raises `OSError`, or `ValueError` if it is no health file."""
    for again in (True, False):
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise ValueError("it is no file")
            return HealthRecord.read(os.read(number, _SIZE))
        except ValueError:
            if not again:  # it was not being written
                raise
            time.sleep(_AGAIN)
        finally:
            os.close(number)
    raise AssertionError


def _of_this_host() -> list[HealthRecord]:
    """Returns the records of this user's workers that still run."""
    found = []
    for folder in filter(is_ours, folders()):
        for name in os.listdir(folder):
            if name.isdecimal():
                try:
                    record = _read(os.path.join(folder, name))
                except (OSError, ValueError):
                    continue
                if record.pid == int(name) and _lives(record):
                    found.append(record)
    return sorted(found, key=lambda record: record.pid)


def _lives(record: HealthRecord) -> bool:
    return is_taken(record.pid) and born(record.pid) == record.born


# -- the command ----------------------------------------------------------------------------------


def told(file: str = "", *, ready: bool = False) -> tuple[int, str]:
    """Returns the exit code, and a line that says why: of one file, or of all workers here."""
    file = file or os.environ.get(VARIABLE, "")
    if file:
        try:
            records = [_read(file)]
        except FileNotFoundError:
            return 1, f"no worker has written {file}"
        except OSError as error:
            return 1, f"{file} cannot be read: {error.strerror}"
        except ValueError as error:
            return 1, f"{file}: {error}"
    else:
        records = _of_this_host()
        if not records:
            return 1, f"no worker of this user runs here (looked in {', '.join(folders())})"
    now = time.monotonic()
    for record in records:
        if trouble := record.trouble(now, ready=ready):
            return 1, f"worker {record.pid}: {trouble}"
    state = "ready" if ready else "alive"
    return 0, "; ".join(f"worker {each.pid}: {state}, {each.doing}" for each in records)


def _answered(words: list[str]) -> int | None:
    """Answers `qframe health`; None if the words are for the whole command, as wrong ones are."""
    file, ready, given = "", False, iter(words)
    for word in given:
        if word in {"--live", "--ready"}:
            ready = word == "--ready"
        elif word.startswith("--health-file=") and word[14:]:
            file = word[14:]
        elif word != "--health-file" or not (file := next(given, "")):
            return None
    if len({"--live", "--ready"} & {*words}) > 1:
        return None
    code, line = told(file, ready=ready)
    try:
        print("".join(c if c.isprintable() else "?" for c in line), flush=True)  # noqa: T201 (all that it does)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at its end
        return 141  # of a shell after SIGPIPE
    return code


def main() -> None:
    """Runs the command line."""
    if sys.argv[1:2] == ["health"]:
        code = _answered(sys.argv[2:])
        if code is not None:
            sys.exit(code)
    import gc  # noqa: PLC0415 (not for `health`)

    # What is imported is hardly ever garbage: the collector looks through none of it, not even at
    # the end of the process.
    gc.disable()
    from qframe.console.app import main as command  # noqa: PLC0415 (not for `health`)

    gc.freeze()
    gc.enable()
    command()
