from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qframe import ConfigurationError, UnknownJob
from qframe.jobs import project
from qframe.jobs.definition import index
from qframe.jobs.registry import Registry

JOB = """\
import canary
from qframe import Queueable, queueable
class {name}(Queueable):
    def handle(self): ...
@queueable
def call(a: int): ...
def plain(): ...
class NoJob: ...
class Abstract(Queueable): ...
Alias = {name}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(fresh: Path) -> Write:
    """Give a function that writes modules; each that is imported leaves its name in `canary`."""
    project.set_root(fresh)
    (fresh / "canary.py").write_text("import sys\n")

    def write(name: str, text: str = "", **names: str) -> Path:
        file = fresh / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text or JOB.format(**{"name": "Job", **names}))
        return file

    return write


def registry(*modules: str) -> Registry:
    made = Registry(modules)
    made.load()
    return made


def refused(name: str, *modules: str) -> str:
    """Give the one line that refuses a name; nothing may have been imported for it."""
    with pytest.raises(UnknownJob) as raised:
        registry(*modules).find(name)
    message = str(raised.value)
    assert message.isprintable()
    return message


def imported() -> bool:
    return "canary" in sys.modules


# -- without a list -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("myjobs.py", "myjobs.Job"),
        ("myapp/myjobs.py", "myapp.myjobs.Job"),
        ("myapp/__init__.py", "myapp.Job"),
        ("myapp/deep/er.py", "myapp.deep.er.Job"),
    ],
)
def test_a_job_of_the_project_is_imported_when_it_is_asked_for(
    write: Write, file: str, name: str
) -> None:
    write(file)
    found = registry()
    assert found.known(name) is None
    assert not imported()
    job_class = found.find(name)
    assert job_class.own_name() == name
    assert found.known(name) is job_class
    assert found.find(name) is job_class


def test_a_function_is_found_as_its_job_class(write: Write) -> None:
    write("myjobs.py")
    assert registry().find("myjobs.call").own_name() == "myjobs.call"


@pytest.mark.parametrize(
    "name",
    [
        *("os.system", "subprocess.Popen", "builtins.eval", "eval", "sys.exit", "os.path.join"),
        *("posix.system", "importlib.import_module", "qframe.manager.QueueManager", "pickle.loads"),
        *("myjobs.Missing", "myjobs.plain", "myjobs.Alias", "myjobs.canary", "myjobs.__name__"),
        *("myjobs.Job.handle", "myjobs.Job.__class__", "myjobs.call.job_class", "myjobs", "Job"),
        *("", ".", "..", ".Job", "myjobs.", "myjobs..Job", "/etc/passwd", "../myjobs.Job"),
        *("myjobs.J\u043eb", "\uff4dyjobs.Job", "myjobs.Job\n", "myjobs.Job\0", "App\\Jobs\\Job"),
        *("__main__.Job", "x" * 300, "x" * 300 + ".Job", "myjobs." + "a." * 5_000 + "Job"),
    ],
)
def test_nothing_is_imported_that_does_not_define_the_job(write: Write, name: str) -> None:
    write("myjobs.py")
    message = refused(name)
    assert not imported()
    assert len(message) < 600


def test_a_class_that_is_no_job_is_refused_and_not_imported(write: Write) -> None:
    write("myjobs.py")
    assert "is not a job of this project" in refused("myjobs.NoJob")
    assert not imported()


def test_a_base_without_handle_is_refused(write: Write) -> None:
    write("myjobs.py")
    assert "has no handle method" in refused("myjobs.Abstract")


@pytest.mark.parametrize(
    "file", [".hidden/myjobs.py", "venv/lib/site-packages/myjobs.py", "../myjobs.py"]
)
def test_files_outside_hidden_or_of_libraries_are_not_the_projects(
    write: Write, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(write(file).parent))
    assert "is not a job of this project" in refused("myjobs.Job")
    assert not imported()


def test_a_link_out_of_the_root_is_not_followed(write: Write, fresh: Path) -> None:
    (fresh / "myjobs.py").symlink_to(write("../elsewhere.py"))
    refused("myjobs.Job")
    assert not imported()


def test_jobs_of_a_library_that_is_imported_already_are_not_run(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(write("venv/lib/site-packages/library.py").parent))
    project.put_on_path()
    import library  # type: ignore[import-not-found]

    assert index["library.Job"] is library.Job
    assert registry().known("library.Job") is None
    refused("library.Job")


def test_a_src_folder_on_the_path_belongs_to_the_project(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(write("src/srcapp/myjobs.py").parent.parent))
    assert registry().find("srcapp.myjobs.Job").own_name() == "srcapp.myjobs.Job"


@pytest.mark.parametrize("text", ["", "class system: ...\n", "class Popen: ...\n"])
def test_a_file_named_like_the_standard_library_opens_no_way_into_it(
    write: Write, text: str
) -> None:
    write("os.py", text)
    write("subprocess.py", text)
    for name in ("os.system", "subprocess.Popen"):
        refused(name)


def test_a_file_named_like_an_imported_module_is_told_apart(write: Write) -> None:
    write("os.py", JOB.format(name="system"))
    assert "os.system is not a Queueable" in refused("os.system")
    assert not imported()


def test_a_module_of_the_same_name_elsewhere_is_not_run(
    write: Write, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("myjobs.py")
    elsewhere = write("../elsewhere/myjobs.py")
    monkeypatch.setattr(sys, "path", [str(elsewhere.parent), str(fresh), *sys.path])
    assert "was imported from another file" in refused("myjobs.Job")


@pytest.mark.parametrize("text", ["1 / 0", "raise SystemExit(0)", "import no_such_module"])
def test_a_module_that_cannot_be_imported_is_an_unknown_job(write: Write, text: str) -> None:
    write("myjobs.py", f"from qframe import Queueable\nclass Job(Queueable): ...\n{text}\n")
    assert "myjobs.Job: its module cannot be imported: " in refused("myjobs.Job")


def test_the_nearest_known_job_is_named(write: Write) -> None:
    write("myjobs.py")
    found = registry()
    found.find("myjobs.Job")
    with pytest.raises(UnknownJob, match=r"did you mean 'myjobs\.Job'"):
        found.find("myjobs.Jab")


def test_a_name_that_a_class_chose_needs_the_list(write: Write) -> None:
    write("myjobs.py", "from qframe import Queueable\nclass Job(Queueable):\n"
                       "    job_name = 'App\\\\Job'\n    def handle(self): ...\n")  # fmt: skip
    refused("App\\Job")
    assert registry("myjobs").find("App\\Job").__name__ == "Job"


# -- with a list --------------------------------------------------------------------------------


def test_the_modules_of_the_list_and_below_are_imported_at_start(write: Write) -> None:
    for file in ("__init__", "one", "deep/__init__", "deep/two"):
        write(f"listed/{file}.py")
    found = registry("listed")
    assert imported()
    for name in ("listed.Job", "listed.one.Job", "listed.deep.two.Job", "listed.one.call"):
        assert found.known(name) is not None


def test_a_program_below_a_listed_package_is_not_run(write: Write) -> None:
    write("listed/__init__.py")
    write("listed/__main__.py", "raise SystemExit('it was run')")
    assert registry("listed").known("listed.Job")


@pytest.mark.parametrize(
    "name", ["other.Job", "listedtoo.Job", "os.system", "Job", "tests.test_events.Traced"]
)
def test_nothing_outside_of_the_list_is_run(write: Write, name: str) -> None:
    write("listed/__init__.py", "\n")
    write("other.py")
    write("listedtoo.py")
    message = refused(name, "listed")
    assert "is not in the modules listed under `jobs`" in message
    assert not imported()


def test_jobs_imported_by_a_listed_module_from_elsewhere_are_not_run(write: Write) -> None:
    write("other.py")
    write("listed.py", "from other import Job\n")
    found = registry("listed")
    assert found.known("other.Job") is None
    with pytest.raises(UnknownJob):
        found.find("listed.Job")


def test_a_library_may_be_listed(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(write("venv/lib/site-packages/library.py").parent))
    assert registry("library").known("library.Job")


@pytest.mark.parametrize("text", ["1 / 0", "raise SystemExit(0)", "import no_such_module"])
def test_a_listed_module_that_cannot_be_imported_is_a_mistake_of_configuration(
    write: Write, text: str
) -> None:
    write("listed/__init__.py", "\n")
    write("listed/broken.py", text)
    with pytest.raises(ConfigurationError, match="jobs: 'listed' cannot be imported: ") as raised:
        registry("listed")
    assert str(raised.value).isprintable()


def test_a_listed_module_that_is_missing_is_named(write: Write) -> None:
    with pytest.raises(ConfigurationError, match="jobs: 'nowhere' cannot be imported"):
        registry("nowhere")


def test_threads_find_jobs_of_many_modules_at_once(write: Write) -> None:
    """Others run whenever garbage is collected, as where a callback or a finalizer waits.

    In CPython 3.11 `ast.parse` fails in a thread that another one enters it beside.
    """
    many, more = 8, "\n".join(f"def f{n}(a, *b): return [a for a in (b, {n})]" for n in range(60))
    for number in range(many):
        write(f"late_{number}.py", JOB.format(name="Job") + more)
    made, begin = registry(), threading.Barrier(many)
    found: list[object] = []

    def find(number: int) -> None:
        begin.wait()
        try:
            found.append(made.find(f"late_{number}.Job").__module__)
        except BaseException as error:  # noqa: BLE001 (whatever it is)
            found.append(error)

    def let_others_run(_phase: str, _info: object) -> None:
        time.sleep(0.0001)

    threads = [threading.Thread(target=find, args=(number,)) for number in range(many)]
    before = gc.get_threshold()
    gc.callbacks.append(let_others_run)
    gc.set_threshold(50)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(let_others_run)
    assert sorted(map(str, found)) == [f"late_{number}" for number in range(many)]
