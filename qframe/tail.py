"""The links of a chain that wait for their turn: records in the store, and the step to the next.

`chain:ID` says where the chain is: `at` is the uuid of the link that waits or runs, `next` that of
the one behind it, `last` that of the last; `delays` are the seconds that all links together wait.
`chain:ID:UUID` is a link that waits for its turn, with its payload and the uuid of the one behind
it; `chain:ID:catch` what is pushed when a link fails.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from qframe import unique
from qframe.contracts import Store
from qframe.unique import Lock

log = logging.getLogger("qframe")

KEY = "chain"
"""The payload's key: the chain a job is a link of."""
KEPT = 30 * 86400
"""Seconds a chain is kept after its last step, besides its delays."""
_LONGEST = 64
_TRIES = 20


class Link(NamedTuple):
    """A job that waits for its turn."""

    uuid: str
    raw: bytes
    """Its payload, signed where a key was configured when it was made. Nobody signs it later: what
    was kept may have been changed."""
    queue: str
    delay: float
    within: Mapping[str, float] | None = None
    """The seconds from its push to its deadlines, by their keys in the payload."""

    def fields(self) -> dict[str, Any]:
        """Give what JSON can carry."""
        fields = {**self._asdict(), "raw": self.raw.decode()}
        if not self.within:
            del fields["within"]
        return fields

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Link:
        """Read what `fields` gave."""
        uuid, raw, queue, delay = (fields[key] for key in ("uuid", "raw", "queue", "delay"))
        return cls(uuid, raw.encode(), queue, delay, fields.get("within"))


class Change(NamedTuple):
    """A key that is to hold `wanted` where it holds `expected`; None is a key that is not there."""

    key: str
    expected: str | None
    wanted: str | None
    seconds: float
    """How long what is written lives."""


class Step(NamedTuple):
    """What the step that removes a link does besides: all of it, or nothing at all."""

    changes: tuple[Change, ...]
    push: Link | None
    """The link whose turn it is."""
    skipped: tuple[Lock, ...] = ()
    """The locks that others have of unique links; their turn is over."""


class Gone(NamedTuple):
    """There is no step to be made: the link is not, or no longer, the one the chain is at."""

    repeat: Link | None
    """The link to be pushed once more: nobody knows whether it was."""
    elsewhere: bool = False
    """Whether the chain goes on; else it is at its end, or nothing of it is kept."""


def chain_of(message: Mapping[str, Any]) -> str | None:
    """Give the id of the chain a payload names."""
    said = message.get(KEY)
    identity = said.get("id") if isinstance(said, dict) else None
    return identity if isinstance(identity, str) and 0 < len(identity) <= _LONGEST else None


def waits_for_batch(message: Mapping[str, Any]) -> bool:
    """Whether the chain goes on not with the end of this job but with that of a batch it begins."""
    said = message.get(KEY)
    return isinstance(said, dict) and said.get("batch") is True


def begin(store: Store, chain: str, links: Sequence[Link], catch: Sequence[Link]) -> None:
    """Keep a chain whose first link is about to be pushed."""
    delays = sum(link.delay for link in links)
    kept = KEPT + delays
    first, *rest = links
    for link, behind in _with_next(rest):
        store.set(_link_key(chain, link.uuid), _record(link, behind), kept)
    if catch:
        store.set(f"{_key(chain)}:catch", _text([link.fields() for link in catch]), kept)
    follows = rest[0].uuid if rest else None
    store.set(_key(chain), _head(first.uuid, follows, links[-1].uuid, delays), kept)


def forget(store: Store, chain: str, links: Iterable[Link] = ()) -> None:
    """Remove what is kept of a chain."""
    for key in (_key(chain), f"{_key(chain)}:catch", *(_link_key(chain, x.uuid) for x in links)):
        store.delete(key)


def catch_of(store: Store, chain: str) -> list[Link]:
    """Give what is to be pushed when a link fails."""
    (text,) = store.get(f"{_key(chain)}:catch")
    return [] if text is None else [Link.of(fields) for fields in json.loads(text)]


def is_over(store: Store, chain: str, uuid: str) -> bool:
    """Whether the chain has gone on from this link."""
    return place(store, chain) not in {None, uuid}


def place(store: Store, chain: str) -> str | None:
    """Give the uuid of the link a chain is at; None where nothing of it is kept."""
    (text,) = store.get(_key(chain))
    return None if text is None else str(json.loads(text)["at"])


def next_step(store: Store, chain: str, uuid: str, *, joint: bool) -> Step | Gone:
    """Say what comes after a link.

    `joint`: the push is part of the step; else the next link's record stays, for whoever finds that
    it was perhaps not pushed.
    """
    text, own = store.get(_key(chain), _link_key(chain, uuid))
    head = None if text is None else json.loads(text)
    if head is None:
        return Gone(None)
    if head["at"] != uuid:
        repeat = None
        if head.get("from") == uuid:
            (record,) = store.get(_link_key(chain, head["at"]))
            repeat = None if record is None else Link.of(json.loads(record))
        return Gone(repeat, elsewhere=True)
    # Its own record was kept for the case that its push had to be repeated.
    changes = [] if own is None else [Change(_link_key(chain, uuid), own, None, KEPT)]
    skipped: list[Lock] = []
    follows = head["next"]
    while follows is not None:
        (record,) = store.get(_link_key(chain, follows))
        if record is None:
            log.warning("the chain %s ends early: what is left of it is not kept any more", chain)
            break
        fields = json.loads(record)
        link = Link.of(fields)
        lock = unique.of_raw(link.raw)
        taking = None if lock is None else _taking(store, lock, link.delay, uuid)
        if lock is not None and taking is None:
            skipped.append(lock)
            changes.append(Change(_link_key(chain, follows), record, None, KEPT))
            follows = fields["next"]
            continue
        changes += [] if taking is None else [taking]
        changes.append(
            Change(_link_key(chain, follows), record, None if joint else record, KEPT + link.delay)
        )
        wanted = _head(
            link.uuid, fields["next"], head["last"], head["delays"], None if joint else uuid
        )
        changes.append(Change(_key(chain), text, wanted, KEPT + link.delay))
        return Step(tuple(changes), link, tuple(skipped))
    changes.append(Change(_key(chain), text, None, KEPT))
    return Step(tuple(changes), None, tuple(skipped))


def _taking(store: Store, lock: Lock, delay: float, before: str) -> Change | None:
    """Give the change that takes a lock, be it from the link before; None where another has it."""
    (holder,) = store.get(lock.key)
    if lock.is_token or holder in {None, lock.uuid, before}:
        return Change(lock.key, holder, lock.uuid, lock.seconds + delay)
    return None


def add(store: Store, chain: str, uuid: str, link: Link, *, first: bool) -> bool:
    """Put a link at the end of a chain, or right behind the one that runs, which is `uuid`.

    Says whether it did: not where the chain is gone or has gone on.
    """
    for _ in range(_TRIES):
        (text,) = store.get(_key(chain))
        head = None if text is None else json.loads(text)
        if head is None or head["at"] != uuid:
            return False
        changes: dict[str, tuple[str | None, str | None]] = {}
        delays, before = head["delays"] + link.delay, head.get("from")
        alone = head["next"] is None
        behind = head["next"] if first else None
        if first or alone:
            last = link.uuid if alone else head["last"]
            wanted = _head(uuid, link.uuid, last, delays, before)
        else:
            key = _link_key(chain, head["last"])
            (record,) = store.get(key)
            if record is None:
                continue
            changes[key] = (record, _text({**json.loads(record), "next": link.uuid}))
            wanted = _head(uuid, head["next"], link.uuid, delays, before)
        changes[_key(chain)] = (text, wanted)
        changes[_link_key(chain, link.uuid)] = (None, _record(link, behind))
        if store.swap(changes, KEPT + delays):
            return True
    return False


def _with_next(links: Sequence[Link]) -> Iterable[tuple[Link, str | None]]:
    return itertools.zip_longest(links, [link.uuid for link in links[1:]])


def _key(chain: str) -> str:
    return f"chain:{chain}"


def _link_key(chain: str, uuid: str) -> str:
    return f"chain:{chain}:{uuid}"


def _head(at: str, follows: str | None, last: str, delays: float, before: str | None = None) -> str:
    fields = {"at": at, "next": follows, "last": last, "delays": delays}
    return _text(fields if before is None else {**fields, "from": before})


def _record(link: Link, behind: str | None) -> str:
    return _text({**link.fields(), "next": behind})


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
