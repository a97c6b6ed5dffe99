"""A program's mapped class and its jobs: `test_places` copies it into a project."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool

import qframe.models
from qframe import Queueable, queueable

HERE = Path(__file__).parent
engine = create_engine(f"sqlite:///{HERE}/shop.db", poolclass=NullPool)
Session = qframe.models.sessions(sessionmaker(engine, expire_on_commit=False))


class Base(DeclarativeBase):
    pass


class Buyer(Base):
    __tablename__ = "buyers"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


Base.metadata.create_all(engine)


def note(*words: object) -> None:
    with (HERE / "greeted").open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


class Greet(Queueable):
    buyer: Buyer
    others: list[Buyer] = []  # noqa: RUF012 (each job has its own)
    friend: Buyer | None = None

    job_name = "shop.Greet"

    def handle(self) -> Buyer:
        note(self.buyer.name, *(each.name for each in self.others))
        return self.buyer


class GreetOnLoop(Queueable):
    buyer: Buyer

    job_name = "shop.GreetOnLoop"

    async def handle(self) -> None:
        note(self.buyer.name)


class GreetOnce(Greet):
    unique = True
    job_name = "shop.GreetOnce"

    def unique_id(self) -> int:
        return self.buyer.id


class GreetInLine(Greet):
    group = "buyer:{buyer}"
    job_name = "shop.GreetInLine"


class Skips(Greet):
    missing = "skip"
    job_name = "shop.Skips"


class Retries(Greet):
    missing = "retry"
    tries = 2
    job_name = "shop.Retries"


@queueable(job_name="shop.buyers")
def buyers() -> list[Buyer]:
    with Session() as session:
        return session.query(Buyer).order_by(Buyer.id).all()
