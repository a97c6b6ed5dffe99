"""Steps that are told to the server, not waited for: the worker's handler runs meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from qframe.contracts.step import Result
from qframe.drivers.redis.connection import Connection, Reply, Told
from qframe.drivers.redis.exchange import Exchange


class ToldSteps(Told):
    """Steps about jobs, which hold what was told until it is answered."""

    __slots__ = ("_asked_at", "_exchange", "_heard", "connection")

    def __init__(
        self,
        exchange: Exchange,
        connection: Connection,
        skew: float,
        asked_at: float,
        heard: Callable[[list[Result]], None],
    ) -> None:
        super().__init__(exchange.command_for(connection, skew))
        self.connection = connection
        self._exchange = exchange
        self._asked_at = asked_at
        self._heard = heard
        for job in exchange.jobs:
            job.told = self

    def begin(self) -> None:
        """Take it that all is applied: what is not is taken back when it is heard."""
        self._exchange.begin(self._asked_at)

    def refused(self) -> None:
        """Note that it was not told."""
        self._let_go()
        for job in self._exchange.jobs:
            job.in_doubt = job.in_doubt or self.connection.repeated

    def hear(self, reply: Reply) -> None:
        self._let_go()
        self._heard(self._exchange.results(reply, self._asked_at, twice=self.twice))

    def _let_go(self) -> None:
        for job in self._exchange.jobs:
            if job.told is self:
                job.told = None
