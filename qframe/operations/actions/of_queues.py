"""Actions on queues, holds and the bin."""

from __future__ import annotations

from qframe.connection import Connection
from qframe.exceptions import ConfigurationError
from qframe.operations import holds, queues
from qframe.operations import undo as undoing
from qframe.operations.actions.wanted import Done, Wanted, into_bin
from qframe.operations.bin import BinAction
from qframe.operations.board import Board
from qframe.payload.text import count_of, one_line, queue_name
from qframe.payload.timing import iso


def queue_of(board: Board, wanted: Wanted) -> tuple[Connection, str]:
    connection = board.connection(wanted.connection)
    return connection, queue_name(wanted.queue or connection.default_queue)


def pause(board: Board, wanted: Wanted, who: str) -> Done:
    connection, name = queue_of(board, wanted)
    queues.pause(connection, name, wanted.seconds, who=who, where=wanted.where)
    return Done(changed=1, text=f"paused {name} of {connection.name}")


def resume(board: Board, wanted: Wanted, _who: str) -> Done:
    connection, name = queue_of(board, wanted)
    queues.resume(connection, name)
    return Done(changed=1, text=f"resumed {name} of {connection.name}")


def clear(board: Board, wanted: Wanted, who: str) -> Done:
    connection, name = queue_of(board, wanted)
    act = BinAction(board.manager, "clear", f"{connection.name}:{name}", who)
    try:
        count = act.at(connection).clear(name)
    finally:
        act.close()
    return into_bin(
        act, count, f"deleted {count_of(count, 'job', 'jobs')} of {connection.name}:{name}"
    )


def undo(board: Board, wanted: Wanted, _who: str) -> Done:
    name, done = one_line(wanted.id, 40), undoing.Undone()
    known = [each for each in undoing.listed(board.connections()) if each.id == wanted.id]
    if not known:
        raise ConfigurationError(f"nothing of the act {name!r} is in the bin (any more)")
    for each in known[0].connections:
        undoing.undo(board.connection(each), wanted.id, done)
    for index in board.failed.indexes() if known[0].action in {"forget", "flush"} else ():
        board.failed.ask(index, index.refresh)
    text = done.said
    if done.left:
        text = "; ".join([f"{text}, {done.left:,} stay in the bin", *done.troubles[:2]])
    return Done(changed=done.back, text=text)


def hold(board: Board, wanted: Wanted, who: str) -> Done:
    if wanted.seconds is None:
        raise ConfigurationError("hold needs a number of seconds")
    connection = board.connection(wanted.connection)
    names = [wanted.queue] if wanted.queue else []
    chosen, seconds = wanted.filter or "", wanted.seconds
    made = holds.begin(connection, chosen, seconds, who, wanted.reason, names)
    text = f"holds {one_line(made.filter, 80)} of {connection.name} until {iso(made.until)} UTC"
    undo = {"action": "unhold", "connection": connection.name, "id": made.id}
    return Done(changed=1, text=text, undo=undo)


def unhold(board: Board, wanted: Wanted, _who: str) -> Done:
    connection = board.connection(wanted.connection)
    count = holds.end(connection, wanted.id)
    if count is None:
        raise ConfigurationError(
            f"{connection.name} has no hold {one_line(wanted.id, 40)!r} (any more)"
        )
    text = f"ended the hold {wanted.id}: {holds.said(connection, count)}"
    return Done(changed=count, text=text)


def kick(board: Board, wanted: Wanted, _who: str) -> Done:
    connection, name = queue_of(board, wanted)
    count = connection.kick(name)
    return Done(changed=count, text=f"made {count:,} buried jobs of {connection.name}:{name} ready")
