"""Putting jobs: one with its answer, many in one go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from qframe.drivers.beanstalkd.link import Link
from qframe.drivers.beanstalkd.trouble import Cut, refusal
from qframe.drivers.beanstalkd.wire import priority_of
from qframe.exceptions import BackendUnavailable

_CHUNK = 500
_CHUNK_BYTES = 1_000_000
"""What is sent before answers are read: few enough that these fit in what the kernel keeps."""


class Put(NamedTuple):
    """Where to put jobs, after how many seconds, and how long each may be reserved."""

    tube: bytes
    delay: int
    ttr: int

    def one(self, link: Link, raw: bytes, priority: int) -> int:
        """Put one job and give its number.

        It is said again only when the server surely has not heard it.
        """
        said = self._said(raw, priority)
        use, count = link.use(self.tube)
        try:
            *_, (word, words, _) = link.exchange(use + said, count + 1)
        except Cut as cut:
            if cut.sent:
                raise BackendUnavailable(f"{cut}; the job may have been queued or not") from cut
            use, count = link.use(self.tube)
            *_, (word, words, _) = link.exchange(use + said, count + 1)
        if word != b"INSERTED":
            raise self._refused(link, word, len(raw))
        return int(words[1])

    def many(self, link: Link, bodies: Sequence[bytes], priority: int) -> None:
        """Put jobs in one go; raises, saying how many were queued, when one is refused."""
        use, count = link.use(self.tube)
        if count:
            link.exchange(use, count)
        queued = 0
        for chunk in _chunks(bodies):
            said = b"".join([self._said(raw, priority) for raw in chunk])
            try:
                replies = link.exchange(said, len(chunk))
            except Cut as cut:
                raise BackendUnavailable(
                    f"{cut}; {queued + cut.heard} of {len(bodies)} jobs were queued, others may "
                    "have been"
                ) from cut
            refused = None
            for raw, (word, *_) in zip(chunk, replies, strict=True):
                if word == b"INSERTED":
                    queued += 1
                else:
                    refused = self._refused(link, word, len(raw))
            if refused is not None:
                cause = refused.__cause__
                text = f"{refused}; {queued} of {len(bodies)} jobs were queued"
                raise type(refused)(text) from cause

    def _said(self, raw: bytes, priority: int) -> bytes:
        priority = priority_of(raw, priority)
        return b"put %d %d %d %d\r\n%b\r\n" % (priority, self.delay, self.ttr, len(raw), raw)

    def _refused(self, link: Link, word: bytes, size: int) -> Exception:
        error = refusal(word, link.where, size, link.facts.max_job)
        # What is BURIED stays: where the log broke, beanstalkd 1.12 has it among the ready, too,
        # and would crash some time after a deletion.
        if word == b"EXPECTED_CRLF":
            link.drop()
        return error


def _chunks(bodies: Sequence[bytes]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for raw in bodies:
        if chunk and (len(chunk) == _CHUNK or size + len(raw) > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(raw)
        size += len(raw)
    if chunk:
        yield chunk
