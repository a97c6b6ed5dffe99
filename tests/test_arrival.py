"""What a job is given is what it gets, or is refused, naming class and field."""

# ruff: noqa: RUF012 (each job gets a default of its own)

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections import Counter, OrderedDict, deque
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PrivateAttr,
    RootModel,
    SecretBytes,
    SecretStr,
    computed_field,
    field_serializer,
    model_serializer,
)
from pydantic import Secret as OtherSecret
from pydantic.alias_generators import to_camel

from qframe import (
    InvalidArguments,
    InvalidJob,
    JobDefinitionError,
    Queueable,
    Secret,
    dispatch,
    dispatch_sync,
    queueable,
)
from qframe.payload import envelope
from qframe.payload.secret import redacted

pytestmark = pytest.mark.usefixtures("fresh")


def arrived(job: Queueable) -> Any:
    """Give the job as a worker makes it from the bytes."""
    message = envelope.parse(envelope.encode(envelope.create(job)))
    return type(job).from_data(message["data"])


# -- what is left out -----------------------------------------------------------------------------


class Mail(Queueable):
    to: str = ""
    bcc: str = Field(default="", exclude=True)
    note: str | None = Field(default=None, exclude_if=lambda note: note in {None, "no"})

    def handle(self) -> None: ...


def test_a_field_that_is_excluded_is_refused_where_its_value_would_be_lost() -> None:
    assert arrived(Mail(to="a")) == Mail(to="a")
    assert arrived(Mail(note="yes")).note == "yes"
    with pytest.raises(InvalidJob, match=r"^Mail\.bcc would not arrive.*leave out 'boss'"):
        dispatch(Mail(bcc="boss"))
    with pytest.raises(InvalidJob, match=r"^Mail\.note would not arrive.*leave out 'no'"):
        dispatch(Mail(note="no"))


class Needs(Queueable):
    token: str = Field(exclude=True)

    def handle(self) -> None: ...


def test_a_field_that_is_excluded_and_needed_is_refused_by_name() -> None:
    with pytest.raises(InvalidJob, match=r"^Needs: token: Field required"):
        dispatch(Needs(token="t"))


class Inside(BaseModel):
    shown: int = 1
    hidden: int = Field(1, exclude=True)


class Holds(Queueable):
    inside: Inside

    def handle(self) -> None: ...


def test_a_field_of_a_model_that_is_excluded_is_refused_where_its_value_would_be_lost() -> None:
    assert arrived(Holds(inside=Inside(shown=2))).inside == Inside(shown=2)
    with pytest.raises(InvalidJob, match=r"^Holds\.inside would not arrive"):
        dispatch(Holds(inside=Inside(hidden=2)))


class EqualById(BaseModel):
    id: int
    note: str = Field("", exclude=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualById) and self.id == other.id

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass(eq=False)
class Bare:
    value: Any


@dataclasses.dataclass
class Cached:
    value: Any = dataclasses.field(compare=False)


class Compared(Queueable):
    by_id: EqualById | None = None
    bare: Bare | None = None
    cached: Cached | None = None

    def handle(self) -> None: ...


@pytest.mark.parametrize(
    "fields",
    [{"by_id": EqualById(id=1, note="n")}, {"bare": Bare((1,))}, {"cached": Cached((1,))}],
)
def test_what_its_own_comparison_ignores_is_refused_where_it_would_be_lost(
    fields: dict[str, Any],
) -> None:
    (name,) = fields
    with pytest.raises(InvalidJob, match=rf"^Compared\.{name} would not arrive"):
        dispatch(Compared(**fields))
    assert arrived(Compared(by_id=EqualById(id=1))).by_id == EqualById(id=1)
    assert arrived(Compared(bare=Bare(1))).bare.value == 1


@pytest.mark.parametrize("annotation", ["InitVar[int]", dataclasses.InitVar[int]])
def test_a_value_that_is_only_for_the_making_of_a_job_is_refused(annotation: Any) -> None:
    with pytest.raises(JobDefinitionError, match=r"^Made\.seed: an InitVar is no field"):
        _made("Made", seed=annotation)


class Computes(Queueable):
    width: int

    @computed_field  # type: ignore[prop-decorator] # as pydantic has it
    @property
    def area(self) -> int:
        return self.width**2

    def handle(self) -> None: ...


def test_a_computed_field_is_computed_where_the_job_arrives() -> None:
    job = arrived(Computes(width=3))
    assert (job.width, job.area) == (3, 9)
    assert Computes(width=3).to_data() == {"width": 3}


class Square(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int
    more: Json[dict[str, int]] = {}

    @computed_field  # type: ignore[prop-decorator] # as pydantic has it
    @property
    def area(self) -> int:
        return self.width**2


class HoldsSquares(Queueable):
    one: Square
    many: list[Square] = []

    def handle(self) -> None: ...


def test_a_model_that_takes_back_no_computed_field_or_only_json_arrives() -> None:
    square = Square(width=3, more='{"a": 1}')  # type: ignore[arg-type] # as pydantic has it
    job = HoldsSquares(one=square, many=[square, Square(width=1)])
    back = arrived(job)
    assert back == job
    assert (back.one.area, back.one.more) == (9, {"a": 1})


# -- what was set ---------------------------------------------------------------------------------


class Place(BaseModel):
    street: str | None = None
    town: str = "Vienna"


class Person(BaseModel):
    name: str | None = None
    place: Place = Place()
    number: int = Field(default_factory=lambda: 7)


class Pets(RootModel[list[Place]]):
    pass


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    street: str | None = None
    town: str = "Vienna"


class Drops(BaseModel):
    """Leaves out what is None, as many do, and so would arrive as if that had not been set."""

    street: str | None = None
    zip: str | None = Field(default=None, exclude_if=lambda code: code is None)

    @model_serializer(mode="wrap")
    def written(self, write: Any) -> dict[str, Any]:
        return {key: value for key, value in write(self).items() if value is not None}


@dataclasses.dataclass
class Pair:
    first: Place
    second: Place = dataclasses.field(default_factory=Place)


class Update(Queueable):
    person: Person | None = None
    people: list[Person] = []
    by_name: dict[str, Place] = {}
    by_day: dict[datetime, tuple[Place, ...]] = {}
    queue_of: deque[Place] = deque()
    pets: Pets = Pets([])
    pair: Pair | None = None
    secret: Secret[Place] | None = None
    other_secret: OtherSecret[list[Place]] | None = None
    some: frozenset[Frozen] = frozenset()
    drops: list[Drops] = []
    encrypted = False

    def handle(self) -> None: ...


def _dumped(job: Update) -> dict[str, Any]:
    """Give everything that was set in it."""
    pair = job.pair and [
        each.model_dump(exclude_unset=True) for each in (job.pair.first, job.pair.second)
    ]
    return {
        "person": job.person and job.person.model_dump(exclude_unset=True),
        "people": [each.model_dump(exclude_unset=True) for each in job.people],
        "by_name": {key: each.model_dump(exclude_unset=True) for key, each in job.by_name.items()},
        "by_day": [
            [p.model_dump(exclude_unset=True) for p in each] for each in job.by_day.values()
        ],
        "queue_of": [each.model_dump(exclude_unset=True) for each in job.queue_of],
        "pets": job.pets.model_dump(exclude_unset=True),
        "pair": pair,
        "secret": job.secret and job.secret.reveal().model_dump(exclude_unset=True),
        "other_secret": job.other_secret
        and [each.model_dump(exclude_unset=True) for each in job.other_secret.get_secret_value()],
        "some": {each: each.model_fields_set for each in job.some},
        "drops": [each.model_fields_set for each in job.drops],
    }


UPDATES = [
    Update(person=Person()),
    Update(person=Person(name=None)),
    Update(person=Person(name="A", place=Place(street=None))),
    Update(people=[Person(name="A"), Person(), Person(place=Place(town="Graz"))]),
    Update(by_name={"b.c": Place(street="S"), "a": Place(), "": Place(town="T", street=None)}),
    Update(by_day={datetime(2026, 1, 1, tzinfo=UTC): (Place(), Place(town="T"))}),
    Update(queue_of=deque([Place(), Place(town="T")])),
    Update(pets=Pets([Place(), Place(town="T")])),
    Update(pair=Pair(Place(street="S"), Place(town="T"))),
    Update(secret=Secret(Place(town="T"))),
    Update(other_secret=OtherSecret([Place(), Place(town="T", street=None)])),
    Update(some=frozenset({Frozen(), Frozen(town="A"), Frozen(street="S"), Frozen(town="B")})),
    Update(drops=[Drops(), Drops(street=None), Drops(zip=None), Drops(street="S", zip=None)]),
]


@pytest.mark.parametrize("job", UPDATES)
def test_what_was_not_set_in_a_model_is_not_set_where_it_arrives(job: Update) -> None:
    back = arrived(job)
    assert back == job
    assert _dumped(back) == _dumped(job)


def test_models_of_which_all_is_set_and_plain_fields_add_nothing_to_the_payload() -> None:
    whole = Person(name="A", place=Place(street="S", town="T"), number=1)
    assert Update(person=whole).to_data().keys() == Update().to_data().keys()


@pytest.mark.parametrize(
    "said",
    [None, 7, "x", [7], [[]], [[["person"], 7]], [[["person", 3], ["name"]]], [[[[]], [[]]]],
     [[["nobody"], ["name"]]], [[["person"], ["model_fields", {}]]], [[[], ["person"]]]],
)  # fmt: skip
def test_what_a_payload_says_of_it_that_makes_no_sense_is_left_out(said: object) -> None:
    data = {"person": {"name": "A"}, "~unset": said}
    back = Update.from_data(data)
    assert back.person is not None
    assert back.person.model_fields_set == {"name"}


# -- times, and other values ----------------------------------------------------------------------


class At(Queueable):
    moment: datetime
    others: dict[datetime, list[datetime]] = {}
    some: set[datetime] = set()

    def handle(self) -> None: ...


VIENNA = ZoneInfo("Europe/Vienna")


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 10, 25, 2, 30, tzinfo=VIENNA),
        datetime(2026, 10, 25, 2, 30, tzinfo=VIENNA, fold=1),
        datetime(2026, 3, 29, 2, 30, tzinfo=VIENNA),
        datetime(2026, 3, 29, 2, 30, tzinfo=VIENNA, fold=1),
        datetime(2026, 7, 1, 12, tzinfo=VIENNA),
        datetime(2026, 4, 5, 1, 45, tzinfo=ZoneInfo("Australia/Lord_Howe"), fold=1),
    ],
)
def test_an_instant_in_the_hour_of_a_clock_change_arrives(moment: datetime) -> None:
    back = arrived(At(moment=moment, others={moment: [moment]}, some={moment}))
    for each in (back.moment, *back.others, *back.others.popitem()[1], *back.some):
        assert each.astimezone(UTC) == moment.astimezone(UTC)


class Slot(BaseModel):
    begin: datetime | time


@dataclasses.dataclass
class Shift:
    begin: datetime | time


class Naive(Queueable):
    one: datetime | time | None = None
    many: list[datetime] = []
    some: set[datetime] = set()
    keys: dict[datetime, int] = {}
    model: Slot | None = None
    shift: Shift | None = None
    deep: dict[str, list[Slot]] = {}

    def handle(self) -> None: ...


def of_each_kind(naive: datetime) -> dict[str, Any]:
    return {
        "one": naive,
        "many": [naive],
        "some": {naive},
        "keys": {naive: 1},
        "model": Slot(begin=naive),
        "shift": Shift(begin=naive.time()),
        "deep": {"a": [Slot(begin=naive.time())]},
    }


NAIVE = datetime(2026, 10, 25, 2, 30)  # noqa: DTZ001 (it is about those)


@pytest.mark.parametrize("field", of_each_kind(NAIVE))
def test_a_naive_time_whose_fold_would_be_lost_is_refused(field: str) -> None:
    """The second 2:30 would arrive as the first, an hour early, and be equal to it."""
    first = of_each_kind(NAIVE)[field]
    assert getattr(arrived(Naive(**{field: first})), field) == first
    with pytest.raises(InvalidJob, match=rf"Naive\.{field} would not arrive as it is.*fold=1"):
        arrived(Naive(**{field: of_each_kind(NAIVE.replace(fold=1))[field]}))


def test_a_time_of_day_whose_zone_would_be_lost_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"Naive\.one would not arrive as it is"):
        arrived(Naive(one=time(2, 30, tzinfo=VIENNA)))
    fixed = time(2, 30, tzinfo=UTC)
    assert arrived(Naive(one=fixed)).one == fixed


class Colour(enum.Enum):
    RED = "red"
    ALSO_RED = "RED"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    A = "a"


class Markup(str):
    __slots__ = ()


class Loose(BaseModel):
    value: Any = None
    number: float | Decimal = 0
    level: int | Level = 0
    levels: frozenset[int | Level] = frozenset()
    some: frozenset[int] | set[int] = frozenset()


@dataclasses.dataclass
class LooseToo:
    value: Any = None


class Animal(BaseModel):
    name: str


class Dog(Animal):
    barks: bool = True


class Rounds(BaseModel):
    price: Decimal = Decimal(0)
    _seen: int = PrivateAttr(0)

    @field_serializer("price")
    def rounded(self, price: Decimal) -> str:
        return f"{price:.2f}"


class Values(Queueable):
    number: float = 0.0
    decimal: Decimal = Decimal(0)
    raw: bytes = b""
    colour: Colour = Colour.RED
    either: int | str | float | bool | None = None
    animal: Animal | None = None
    animals: list[Animal] = []
    rounds: Rounds = Rounds()
    after: timedelta = timedelta()
    last: deque[int] = deque()
    loose: Loose = Loose()
    loose_too: LooseToo | None = None
    anything: Any = None

    def handle(self) -> None: ...


@pytest.mark.parametrize(
    "fields",
    [
        {"number": -0.0}, {"number": 5e-324}, {"decimal": Decimal("1.10")},
        {"decimal": Decimal("1E+400")}, {"raw": b"caf\xc3\xa9\x00"}, {"colour": Colour.ALSO_RED},
        {"either": True}, {"either": "1"}, {"either": 1.5}, {"either": 2**70},
        {"animal": Animal(name="a")}, {"rounds": Rounds(price=Decimal("1.25"))},
        {"after": timedelta(microseconds=1)}, {"either": 10**4299}, {"either": "1" * 5000},
    ],
)  # fmt: skip
def test_odd_values_arrive(fields: dict[str, Any]) -> None:
    (name,) = fields
    sent, back = fields[name], getattr(arrived(Values(**fields)), name)
    assert (type(back), repr(back)) == (type(sent), repr(sent))


EQUAL = [Level.LOW, Word.A, Markup("<b>"), Counter("a"), OrderedDict(a=1), {"a": Word.A}]
"""What is equal to what JSON makes of it."""


@pytest.mark.parametrize(
    "fields",
    [
        {"decimal": Decimal("NaN")}, {"number": float("inf")}, {"raw": b"\xff"},
        {"animal": Dog(name="rex")}, {"animals": [Animal(name="a"), Dog(name="rex")]},
        {"rounds": Rounds(price=Decimal("1.255"))}, {"last": deque([1], maxlen=3)},
        *({"loose": Loose(value=value)} for value in EQUAL),
        *({"loose_too": LooseToo([value])} for value in EQUAL),
        {"loose": Loose(number=Decimal("1.5"))}, {"loose": Loose(level=Level.LOW)},
        {"loose": Loose(levels=frozenset({Level.LOW}))}, {"loose": Loose(some={1})},
        {"anything": {Word.A: 1}},
    ],
)  # fmt: skip
def test_what_would_not_arrive_is_refused_naming_the_field(fields: dict[str, Any]) -> None:
    (name,) = fields
    job = Values()
    setattr(job, name, fields[name])
    with pytest.raises(InvalidJob, match=rf"^Values.*{name}"):
        dispatch(job)


def test_a_number_that_no_worker_could_read_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"Values\.either cannot be JSON: Exceeds the limit"):
        dispatch(Values(either=10**4300))


def test_a_private_attribute_that_would_be_lost_is_refused() -> None:
    job = Values()
    job.rounds._seen = 3
    with pytest.raises(InvalidJob, match=r"^Values\.rounds would not arrive"):
        dispatch(job)


# -- names, types and secrets ---------------------------------------------------------------------


class Aliased(BaseModel):
    a: int = Field(alias="aa")


class ByValidation(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = Field(validation_alias=AliasChoices("x", AliasPath("y", 0)))  # type: ignore[pydantic-alias] # as users have it


class BySerialization(BaseModel):
    a: int = Field(serialization_alias="aa")


class Populated(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    a: int = Field(alias="aa")


class Divergent(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)
    a: int = Field(validation_alias="x", serialization_alias="z")


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, serialize_by_alias=True)
    first_name: str  # type: ignore[pydantic-alias] # as users have it


class Names(Queueable):
    inside: Aliased | ByValidation | BySerialization | Populated | Divergent | Camel
    several: list[Camel] = []
    own: int = Field(default=0, alias="ownNumber")

    def handle(self) -> None: ...


@pytest.mark.parametrize(
    "model",
    [
        Aliased(aa=1), ByValidation(x=1), ByValidation(y=[1]), BySerialization(a=1),
        Populated(a=1), Divergent(x=1), Camel(firstName="A"),
    ],
)  # fmt: skip
def test_a_model_with_aliases_arrives(model: BaseModel) -> None:
    job = _made("One", inside=type(model))(inside=model)
    assert arrived(job) == job


def _made(name: str, **fields: Any) -> Any:
    body = {"__annotations__": fields, "handle": lambda _: None, "job_name": name}
    return type(name, (Queueable,), body)


def test_a_job_s_own_alias_is_taken_from_both_sides_and_its_name_travels() -> None:
    job = Names(inside=Camel(firstName="A"), ownNumber=3)
    assert job.to_data()["own"] == 3
    assert arrived(job).own == 3
    assert Names.from_data({"inside": {"firstName": "A"}, "ownNumber": 4}).own == 4


class Strict(Queueable):
    __pydantic_config__ = ConfigDict(strict=True)
    at: datetime
    size: tuple[int, ...] = ()

    def handle(self) -> None: ...


class StrictModel(BaseModel):
    model_config = ConfigDict(strict=True)
    at: datetime


class HoldsStrict(Queueable):
    inside: StrictModel

    def handle(self) -> None: ...


def test_what_is_strict_takes_a_time_from_json_and_no_text_for_a_number() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert arrived(Strict(at=moment, size=(1, 2))) == Strict(at=moment, size=(1, 2))
    job = HoldsStrict(inside=StrictModel(at=moment))
    assert arrived(job) == job
    with pytest.raises(InvalidArguments, match=r"^Strict: size\.0: Input should be a valid int"):
        Strict.from_data({"at": moment.isoformat(), "size": ["1"]})


class StrictSecret(Queueable):
    __pydantic_config__ = ConfigDict(strict=True)
    at: datetime
    token: SecretStr
    encrypted = False

    def handle(self) -> None: ...


def test_what_is_strict_may_hold_a_secret() -> None:
    job = StrictSecret(at=datetime(2026, 1, 1, tzinfo=UTC), token=SecretStr("hunter2"))
    assert arrived(job) == job
    with pytest.raises(InvalidArguments, match=r"^StrictSecret: at: .* valid datetime") as told:
        StrictSecret.from_data({"at": "hunter2", "token": "a"})
    assert "hunter2" not in str(told.value)


class Files(Queueable):
    folder: Path = Path("tmp")
    name: str = Field(default="", strict=True)

    def handle(self) -> None: ...


def test_a_path_that_a_payload_leaves_out_has_its_default() -> None:
    assert Files.from_data({}) == Files()
    assert Files.from_data({"folder": "a"}).folder == Path("a")


class StrictText(Queueable):
    __pydantic_config__ = ConfigDict(strict=True)
    text: str

    def handle(self) -> None: ...


@pytest.mark.parametrize("job", [StrictText(text="\udcff"), Files(folder=Path("\udcff"))])
def test_a_name_that_is_no_utf_8_is_refused_by_field(job: Queueable) -> None:
    (field,) = job.field_names() - {"name"}
    with pytest.raises(InvalidJob, match=rf"{type(job).__name__}\.{field} holds a lone surrogate"):
        dispatch(job)


class Login(BaseModel):
    password: SecretStr
    more: dict[str, SecretBytes] = {}


class Secrets(Queueable):
    text: SecretStr | None = None
    raw: SecretBytes | None = None
    logins: list[Login] = []
    number: OtherSecret[int] | None = None
    login: OtherSecret[Login] | None = None
    at: OtherSecret[datetime] | None = None
    encrypted = False

    def handle(self) -> None: ...


@pytest.mark.parametrize(
    "fields",
    [
        {"text": SecretStr("hunter2")}, {"raw": SecretBytes("ü".encode())},
        {"logins": [Login(password=SecretStr("a"), more={"b": SecretBytes(b"c")})]},
        {"number": OtherSecret(7)},
        {"login": OtherSecret(Login(password=SecretStr("a"), more={"b": SecretBytes(b"c")}))},
        {"at": OtherSecret(datetime(2026, 11, 3, 4, 5, tzinfo=UTC))},
    ],
)  # fmt: skip
def test_pydantic_s_own_secrets_travel_as_ours_do(fields: dict[str, Any]) -> None:
    job = Secrets(**fields)
    assert arrived(job) == job
    message = envelope.create(job)
    assert set(fields) < set(message["secrets"])
    assert "hunter2" not in str(redacted(message))
    assert "hunter2" not in repr(job)


def test_a_secret_that_is_no_text_is_refused_without_being_shown() -> None:
    with pytest.raises(InvalidJob, match=r"^Secrets.*: UnicodeDecodeError$"):
        dispatch(Secrets(raw=SecretBytes(b"\xff")))


class Odd(datetime):
    """As pandas' NaT."""

    def __repr__(self) -> str:
        return "NaT"

    def utcoffset(self) -> Any:
        return math.nan

    def __eq__(self, other: object) -> bool:
        raise TypeError("no")

    __hash__ = None  # type: ignore[assignment]


class Raises(BaseModel):
    number: int = 1

    @field_serializer("number")
    def written(self, number: int) -> int:
        raise TypeError("cannot write it")


class Whatever(Queueable):
    at: datetime | None = None
    value: Any = None
    inside: Raises | None = None

    def handle(self) -> None: ...


@pytest.mark.parametrize(
    "fields", [{"at": Odd(2026, 1, 1)}, {"value": Odd(2026, 1, 1)}, {"inside": Raises()}]
)
def test_what_raises_anything_is_refused_in_one_line(fields: dict[str, Any]) -> None:
    (name,) = fields
    job = Whatever()
    setattr(job, name, fields[name])
    with pytest.raises(InvalidJob, match=rf"^Whatever.*{name}"):
        dispatch(job)


def test_a_type_that_is_not_there_at_run_time_is_named() -> None:
    job_class = _made("Late", amount="Money | None", other="int")
    told = r"^Late\.amount: the type 'Money' is not there.*outside of TYPE_CHECKING"
    with pytest.raises(InvalidJob, match=told):
        job_class(amount=1)
    with pytest.raises(InvalidJob, match=told):
        job_class.dispatch(amount=1)
    with pytest.raises(InvalidArguments, match=told):
        job_class.from_data({"amount": 1})


def test_what_pydantic_wants_of_a_type_is_said() -> None:
    part = Annotated[Login | Update, Field(discriminator="kind")]
    with pytest.raises(JobDefinitionError, match=r"^Late\.part: .*needs a discriminator field"):
        _made("Late", part=part)


def test_a_partial_needs_a_name() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    with pytest.raises(JobDefinitionError, match=r"partial.* has no name by which a worker"):
        queueable(functools.partial(add, 1))
    named = queueable(job_name="sums.add_one")(functools.partial(add, 1))
    assert dispatch_sync(named.job(2)) == 3
    assert "add_one" in repr(named)
    with pytest.raises(InvalidJob, match=r"^sums\.add_one: "):
        named.job(1, 2, 3)
