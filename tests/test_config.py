from __future__ import annotations

import json
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from qframe import ConfigurationError, QueueManager, config, events
from qframe.config import Settings, load
from qframe.drivers.beanstalkd.settings import BeanstalkdSettings
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.drivers.redis.settings import RedisSettings
from qframe.drivers.sqs.settings import SqsSettings
from qframe.jobs import project

OF_DRIVERS = (BeanstalkdSettings, DatabaseSettings, RabbitmqSettings, RedisSettings, SqsSettings)
MODELS = [
    each
    for each in (*vars(config).values(), *OF_DRIVERS)
    if isinstance(each, type) and issubclass(each, BaseModel)
]
HOME = 'default = "database"\n[connections.database]\n'


def write(folder: Path, text: str, name: str = "qframe.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def _is_number(annotation: object) -> bool:
    if get_origin(annotation) in {Annotated, UnionType, Union}:
        return any(map(_is_number, get_args(annotation)))
    return annotation is int or annotation is float


def refused(text: str, **over: Any) -> str:
    """Give the one line that says what is wrong, at load or when the connection is used."""
    write(Path(), text)
    with pytest.raises(ConfigurationError) as raised:
        QueueManager(load(**over)).connection()
    message = str(raised.value)
    assert message.isprintable()
    assert len(message) < 400
    assert "Value error" not in message
    return message


# -- where it is found --------------------------------------------------------------------------


def test_without_a_file_there_are_defaults_in_the_working_directory(fresh: Path) -> None:
    settings = load()
    assert (settings.default, settings.root, settings.jobs) == ("database", fresh, [])
    assert {"database", "sync", "null"} <= {*settings.connection_names()}
    assert settings.connection_names()[0] == "database"
    for name in ("database", "sync", "null"):
        assert QueueManager(settings).connection(name).name == name
    assert settings.connection("database") == {"driver": "database"}


def test_the_embedded_database_is_a_file_under_the_root(fresh: Path) -> None:
    QueueManager().connection().size()
    assert (fresh / "qframe.sqlite3").is_file()


def test_a_file_is_found_upward_from_the_working_directory(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(fresh, 'default = "null"')
    below = fresh / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    settings = load()
    assert settings.default == "null"
    assert settings.root == fresh
    QueueManager(settings)
    assert project.root() == fresh


def test_the_nearest_file_wins(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(fresh, 'default = "null"')
    write(fresh / "a", 'default = "sync"')
    write(fresh / "a" / "b", "[tool.other]", "pyproject.toml")
    monkeypatch.chdir(fresh / "a" / "b")
    assert load().default == "sync"


def test_pyproject_toml_may_hold_it_and_qframe_toml_is_before_it(fresh: Path) -> None:
    write(fresh, '[project]\nname = "x"\n[tool.qframe]\ndefault = "null"', "pyproject.toml")
    assert load().default == "null"
    write(fresh, 'default = "sync"')
    assert load().default == "sync"


def test_a_pyproject_toml_without_it_is_passed_by(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(fresh, '[tool.qframe]\ndefault = "null"', "pyproject.toml")
    write(fresh / "a", '[project]\nname = "x"', "pyproject.toml")
    monkeypatch.chdir(fresh / "a")
    assert load().default == "null"


def test_a_file_can_be_named_by_argument_or_variable(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(fresh, 'default = "sync"')
    other = write(fresh / "etc", 'default = "null"', "other.toml")
    assert load(other).default == "null"
    assert load(other).root == fresh / "etc"
    assert load(str(other)).default == "null"
    monkeypatch.setenv("QFRAME_CONFIG", str(other))
    assert load().default == "null"
    assert QueueManager().settings.root == fresh / "etc"


def test_a_named_file_that_is_missing_is_an_error(fresh: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"gone\.toml: No such file"):
        load(fresh / "gone.toml")


def test_the_root_may_be_set_and_counts_from_the_files_folder(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(fresh, 'root = "app"')
    (fresh / "deep").mkdir()
    monkeypatch.chdir(fresh / "deep")
    assert load().root == fresh / "app"
    write(fresh, 'root = "/srv/app"')
    assert load().root == Path("/srv/app")
    assert load(root="/elsewhere").root == Path("/elsewhere")


# -- what is over what --------------------------------------------------------------------------


def test_the_environment_is_over_the_file_and_code_over_both(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(fresh, 'default = "null"\njobs = ["a"]\n[connections.database]\nretry_after = 10\n'
                 'queue = "file"\nbusy_timeout = 1\n')  # fmt: skip
    monkeypatch.setenv("QFRAME_DEFAULT", "sync")
    monkeypatch.setenv("QFRAME_CONNECTIONS__DATABASE__RETRY_AFTER", "20")
    monkeypatch.setenv("QFRAME_CONNECTIONS__DATABASE__QUEUE", "environment")
    monkeypatch.setenv("QFRAME_JOBS", '["b", "c"]')
    settings = load()
    assert settings.default == "sync"
    assert settings.jobs == ["b", "c"]
    assert settings.connections["database"] == {
        "retry_after": "20",
        "queue": "environment",
        "busy_timeout": 1,
    }
    queues = QueueManager({"default": "database", "connections": {"database": {"queue": "code"}}})
    queue: Any = queues.connection()
    assert (queue.default_queue, queue.retry_after) == ("code", 20)
    assert queue.settings.busy_timeout == 1


def test_a_whole_connection_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, fresh: Path
) -> None:
    monkeypatch.setenv("QFRAME_DEFAULT", "mine")
    monkeypatch.setenv("QFRAME_CONNECTIONS__MINE__DRIVER", "database")
    monkeypatch.setenv("QFRAME_CONNECTIONS__MINE__URL", "sqlite:///mine.sqlite3")
    QueueManager().connection().size()
    assert (fresh / "mine.sqlite3").is_file()


def test_settings_may_be_made_in_code_without_a_file(fresh: Path) -> None:
    settings = Settings(default="null", root=fresh / "x")
    assert QueueManager(settings).connection().name == "null"
    assert QueueManager(settings).settings is settings


def test_a_dotenv_file_is_not_read(fresh: Path) -> None:
    write(fresh, "QFRAME_DEFAULT=null\nQFRAME_NONSENSE=1", ".env")
    assert load().default == "database"


# -- what is wrong ------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('defualt = "null"', ["qframe.toml", "unknown key 'defualt'", "did you mean 'default'?"]),
        ('[store]\ndrivr = "auto"', ["'store.drivr'", "did you mean 'driver'?"]),
        ('[connection.database]\nurl = "x"', ["'connection'", "did you mean 'connections'?"]),
        (f"{HOME}retryafter = 5", ["connections.database", "'retryafter'", "'retry_after'?"]),
        (f"{HOME}block_for = 5", ["connections.database", "unknown key 'block_for'"]),
        ("default = 5", ["default", "string"]),
        ('jobs = "app.jobs"', ["jobs", "list"]),
        ("jobs = [1]", ["jobs.0", "string"]),
        ('connections = "redis"', ["connections", "dictionary"]),
        ('[connections]\ndatabase = "x"', ["connections.database", "dictionary"]),
        (f"{HOME}retry_after = 0.5", ["connections.database", "retry_after", "1"]),
        (f'{HOME}retry_after = "x"', ["connections.database", "retry_after", "number"]),
        (f"{HOME}max_payload = 0", ["max_payload", "greater than 0"]),
        (f"{HOME}push_retries = -1", ["push_retries"]),
        (f'{HOME}queue = "a b"', ["connections.database", "queue", "'a b' is not a queue name"]),
        (f'{HOME}queue = "{"q" * 300}"', ["queue", "1 to 128"]),
        (f'{HOME}synchronous = "off"', ["synchronous", "'normal'"]),
        (f'{HOME}table = "jobs; DROP"', ["table"]),
        (f'{HOME}url = "not a url"', ["url"]),
        (f'{HOME}url = "sqlite://"', ["url", "in memory", "name a file"]),
        (f'{HOME}driver = "databse"', ["unknown driver 'databse'", "did you mean 'database'?"]),
        (f"{HOME}driver = 5", ["driver"]),
        ('default = "nul"', ["unknown connection 'nul'", "'null'?", "configured are"]),
        ('default = "mine"\n[connections.mine]', ["connections.mine", "unknown driver 'mine'"]),
        ('default = "a\\nb"', ["unknown connection"]),
        ("[store]\ndriver = 5", ["store.driver"]),
        ('[failed]\ndriver = "nowhere"', ["unknown connection 'nowhere'"]),
        ('[failed]\ndriver = "sync"', ["failed: the connection 'sync' cannot hold failed jobs"]),
        ("root = 5", ["root", "path"]),
        ("unknown_job_delays = [-1]", ["unknown_job_delays.0"]),
        (
            "[supervisors.mail]\nmax_processes = true",
            ["qframe.toml: supervisors.mail.max_processes: must be a number, not true"],
        ),
        ("[supervisors.mail]\nbackoff = [1, false]", ["mail.backoff.1: must be a number, not f"]),
        ("unknown_job_delays = [true]", ["unknown_job_delays.0: must be a number, not true"]),
        (f"{HOME}retry_after = true", ["database: retry_after: must be a number, not true"]),
        ("default = ", ["qframe.toml", "Invalid value"]),
        ("a = 1\na = 2", ["qframe.toml", "overwrite"]),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_one_line_that_names_the_key(text: str, said: list[str]) -> None:
    message = refused(text)
    for words in said:
        assert words in message


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_true_and_false_are_no_numbers(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        if _is_number(field.annotation):
            with pytest.raises(ValidationError, match="must be a number, not true"):
                model.model_validate({field.alias or name: True})


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("text", ["tool = 1", "[tool]\nqframe = 1", '[tool]\nqframe = "x"'])
def test_a_pyproject_toml_that_is_no_table_is_one_line(text: str) -> None:
    write(Path(), text, "pyproject.toml")
    with pytest.raises(ConfigurationError, match=r"pyproject\.toml: '\w+' must be a table"):
        load()


def test_a_file_that_is_not_utf8_is_one_line(fresh: Path) -> None:
    (fresh / "qframe.toml").write_bytes(b'default = "\xff"')
    with pytest.raises(ConfigurationError, match=r"qframe\.toml.*utf-8"):
        load()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("QFRAME_DEFUALT", "null", "QFRAME_DEFUALT (did you mean 'DEFAULT'?)"),
        ("QFRAME_CONNECTION__REDIS__URL", "x", "did you mean 'CONNECTIONS'?"),
        ("qframe_job", "x", "unknown variable qframe_job"),
        ("QFRAME_JOBS", "[app.jobs", "jobs"),
        ("QFRAME_JOBS", "[5]", "jobs"),
        ("QFRAME_STORE__DRVER", "x", "'store.drver' (did you mean 'driver'?)"),
        ("QFRAME_CONNECTIONS__DATABASE__RETRY_AFTER", "soon", "retry_after"),
        ("QFRAME_CONNECTIONS__DATABASE__RETRYAFTER", "5", "'retryafter' (did you mean"),
    ],
)
def test_a_mistake_in_the_environment_is_one_line(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError) as raised:
        QueueManager().connection()
    message = str(raised.value)
    assert said in message
    assert message.isprintable()


@pytest.mark.usefixtures("fresh")
def test_a_mistake_in_code_is_the_same_error() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown key 'defualt'.*'default'"):
        QueueManager({"defualt": "null"})
    with pytest.raises(ConfigurationError, match=r"jobs: .*list"):
        QueueManager({"jobs": "app"})


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:hunter2@db.example:1/x",
        "mysql+nodriver://user:hunter2@db.example/x",
        "post gres://user:hunter2@db.example/x",
        "nosuch://user:hunter2@db.example/x",
    ],
)
def test_no_message_shows_a_password(fresh: Path, url: str, capsys: Any) -> None:
    write(fresh, f"{HOME}url = {json.dumps(url)}\nretry_after = 2")
    try:
        queue = QueueManager().connection()
        said = queue.described()
    except ConfigurationError as error:
        said = str(error)
    assert "hunter2" not in said
    write(fresh, f"{HOME}url = {json.dumps(url)}\nretryafter = 2")
    assert "hunter2" not in refused((fresh / "qframe.toml").read_text())
    write(fresh, f"{HOME}url = [{json.dumps(url)}]")
    assert "hunter2" not in refused((fresh / "qframe.toml").read_text())


# -- listeners ----------------------------------------------------------------------------------


def test_configured_listeners_hear_events(fresh: Path) -> None:
    write(fresh, '[listeners]\nJobQueued = ["hearing:one", "hearing:two"]\n')
    write(fresh, "heard = []\ndef one(e): heard.append(1)\ndef two(e): heard.append(2)\n",
          "hearing.py")  # fmt: skip
    queues = QueueManager()
    queues.connection("null")
    queues.connection("sync")
    events.fire(events.JobQueued, "null", "q", "id", None, {}, 0.0)
    import hearing  # type: ignore[import-not-found]

    assert hearing.heard == [1, 2]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('JobQueed = ["a:b"]', "unknown event 'JobQueed' (did you mean 'JobQueued'?)"),
        ('JobQueued = ["nowhere:f"]', "'nowhere:f' cannot be loaded (module:function)"),
        ('JobQueued = ["json:nothing"]', "'json:nothing' cannot be loaded"),
        ('JobQueued = ["json"]', "'json' cannot be loaded"),
        ('JobQueued = ["json:__doc__"]', "'json:__doc__' is not a function"),
        ('JobQueued = "json:loads"', "listeners.JobQueued"),
        ('JobQueued = [""]', "cannot be loaded"),
    ],
)
def test_a_wrong_listener_is_refused_each_time_and_none_is_added(text: str, said: str) -> None:
    write(Path(), f'[listeners]\nJobPopping = ["json:loads"]\n{text}')
    with pytest.raises(ConfigurationError) as raised:
        QueueManager().connection("null")
    assert said in str(raised.value)
    if "listeners." not in said:
        queues = QueueManager()
        for name in ("null", "sync"):
            with pytest.raises(ConfigurationError):
                queues.connection(name)
    assert events.JobPopping.listeners == ()


def test_find_gives_none_where_there_is_nothing(tmp_path: Path) -> None:
    assert config.find(tmp_path) in {None, config.find(tmp_path.parent)}
