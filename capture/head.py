"""Where an archive's authority lies: one fenced entry in NATS that names the committed manifest."""

from __future__ import annotations

import msgspec

from capture.errors import Fenced, ManifestError
from capture.manifest import Head
from natty import LeadershipLost, Natty, Term
from natty.errors import BucketNotFoundError

COMMIT = "manifest"


def election_name(archive: str) -> str:
    """Return the name of the election whose leader may commit to this archive."""
    return f"capture.{archive}"


class TermHead:
    """The head pointer as its leader sees it: every commit carries the term's fencing token."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.token = term.token
        self._number = 0

    def __repr__(self) -> str:
        return f"TermHead({self._term!r})"

    async def read(self) -> Head | None:
        """Return the head, and take it over: no earlier leader can commit any more. Fenced."""
        try:
            head = _decode(await self._term.read(COMMIT))
        except LeadershipLost as error:
            raise Fenced(str(error)) from error

        self._number = head.number if head else 0
        return head

    async def commit(self, head: Head) -> None:
        """Make this the head. Fenced if the term is over, by the clock or by the server's word."""
        if head.number <= self._number:
            raise Fenced(f"manifest {self._number} is committed; {head.number} came too late")
        try:
            await self._term.commit(COMMIT, msgspec.json.encode(head))
        except LeadershipLost as error:
            raise Fenced(str(error)) from error
        self._number = head.number


async def read_head(natty: Natty, archive: str) -> Head | None:
    """Return the head as last committed, for readers; None before the first commit."""
    try:
        last = await natty.election(election_name(archive)).last_commit(COMMIT)
    except BucketNotFoundError:
        return None
    return _decode(last.data) if last is not None else None


def _decode(data: bytes | None) -> Head | None:
    if not data:
        return None
    try:
        return msgspec.json.decode(data, type=Head)
    except msgspec.DecodeError as error:
        raise ManifestError(f"the archive's head pointer is damaged: {error}") from error
