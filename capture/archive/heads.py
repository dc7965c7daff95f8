"""The authority over an archive: elections in NATS, and the heads that only their leaders commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from capture.archive.chain import Document, Head, HeadReader, latest_offline
from capture.archive.manifest import Manifest
from capture.archive.recording import Recording
from capture.archive.signing import Signer
from capture.archive.table import Table
from capture.errors import ConfigError, FencedError, ManifestError
from capture.stores.contract import Store
from natty import LeadershipLostError, Natty, Term
from natty.elections import ElectionOptions
from natty.errors import BadRecordError, BucketNotFoundError
from natty.kv.json_records import decode


@dataclass(frozen=True)
class Office:
    """One of an archive's elections: its name is derived from the archive's, and its leader commits one head."""

    suffix: str
    commit: str

    def election(self, archive: str) -> str:
        """Return the election's name. ConfigError if the archive's name does not allow one."""
        name = f"capture.{archive}{self.suffix}"
        try:
            return ElectionOptions(name=name).name
        except ValueError as error:
            raise ConfigError(f"archive {archive!r} can't name an election: {error}") from error

    def reader(self, natty: Natty, archive: str) -> HeadReader:
        """Return a function that reads the last committed head, for every program except its leader."""

        async def read() -> Head | None:
            try:
                last = await natty.election(self.election(archive)).last_commit(self.commit)
            except BucketNotFoundError:
                return None
            return _decode(last.data) if last is not None else None

        return read


SWEEP = Office("", "manifest")
RECORDING = Office("", "recording")  # the sweep's leader commits this one, too
COMPACTION = Office(".compaction", "table")
PIPELINES = Office(".pipelines", "pipelines")


def head_readers(natty: Natty, archive: str) -> dict[type[Document], HeadReader]:
    """Return a reader for the head of each of an archive's chains: for `verification.audit`."""
    return {
        Manifest: SWEEP.reader(natty, archive),
        Table: COMPACTION.reader(natty, archive),
        Recording: RECORDING.reader(natty, archive),
    }


def newest_readers(natty: Natty | None, archive: str, store: Store) -> dict[type[Document], HeadReader]:
    """Return a reader for the head of each chain: the committed one, or the newest document if NATS knows none.

    So a reader finds what the next leader continues from, also after NATS has lost its disk. Without `natty`, all are
    the newest documents in the store.
    """
    committed = head_readers(natty, archive) if natty else {}
    return {kind: newest_reader(committed.get(kind), store, kind) for kind in (Manifest, Table, Recording)}


def newest_reader(committed: HeadReader | None, store: Store, kind: type[Document]) -> HeadReader:
    """Return a reader for the committed head, or for the newest document in the store if NATS knows none."""

    async def read() -> Head | None:
        head = await committed() if committed else None
        return head or await latest_offline(store, kind)

    return read


class TermHead:
    """The head of an office, for its leader: every commit carries the term's fencing token."""

    def __init__(self, term: Term, office: Office, signer: Signer | None = None) -> None:
        self._term = term
        self._office = office
        self.token = term.token
        self.signer = signer

    def __repr__(self) -> str:
        return f"TermHead({self._term!r}, {self._office.commit})"

    def check(self) -> None:
        """Raise FencedError if the term is over by its own deadline, or if its work has to stop."""
        with _fence():
            self._term.check()

    async def read(self) -> Head | None:
        """Return the head, and claim it: no earlier leader can commit any more. FencedError."""
        with _fence():
            return _decode(await self._term.read(self._office.commit))

    async def commit(self, head: Head) -> None:
        """Make this the head. FencedError if the term is over, by the clock or by the server."""
        with _fence():
            await self._term.commit(self._office.commit, msgspec.json.encode(head))


@contextmanager
def _fence() -> Iterator[None]:
    try:
        yield
    except LeadershipLostError as error:
        raise FencedError(str(error)) from error


def _decode(data: bytes | None) -> Head | None:
    if not data:
        return None
    try:
        return decode(data, Head)
    except BadRecordError as error:
        raise ManifestError(f"the archive's head pointer is damaged: {error}") from error
