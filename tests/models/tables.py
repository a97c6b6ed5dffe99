"""Mapped classes, and jobs that have their rows as arguments."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, object_session

from qframe import Chunk, Queueable, queueable

seen: list[Any] = []


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class Seat(Base):
    __tablename__ = "seats"

    row: Mapped[int] = mapped_column(primary_key=True)
    place: Mapped[str] = mapped_column(primary_key=True)


class Parcel(Base):
    __tablename__ = "parcels"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)


class Greet(Queueable):
    user: User
    seat: Seat | None = None
    parcel: Parcel | None = None
    friends: list[User] = []  # noqa: RUF012 (each job has its own)
    by_name: dict[str, User] = {}  # noqa: RUF012 (as above)

    def handle(self) -> Any:
        session = object_session(self.user)
        assert session is not None
        self.user.name += "!"
        return [self.user.name, *(each.name for each in self.friends), *self.by_name]

    def succeeded(self) -> None:
        seen.append(("succeeded", self.user.name))

    def failed(self, error: BaseException) -> None:
        seen.append(("failed", self.user, str(error)))


class GreetOnLoop(Queueable):
    user: User

    async def handle(self) -> Any:
        return self.user.name, object_session(self.user) is not None


class Later(Queueable):
    """The class of its field is defined below it."""

    thing: Thing

    def handle(self) -> Any:
        return self.thing.id


class Thing(Base):
    __tablename__ = "things"

    id: Mapped[int] = mapped_column(primary_key=True)


class Many(Queueable):
    user: User
    chunk = Chunk(10, within=0)

    @classmethod
    def handle_many(cls, jobs: list[Many]) -> None:
        seen.append([each.user.name for each in jobs])


class Secretly(Queueable):
    user: User
    encrypted = True

    def handle(self) -> str:
        return self.user.name


@queueable
def shout(user: User, times: int = 1) -> str:
    return user.name.upper() * times
