"""The state that an archive's nodes publish in NATS, for `capture status`, the status page, and other monitoring."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec

from capture.archive.iceberg_state import CatalogState, CompactionState, FreshState, TableState
from capture.ingest.board_trouble import NEVER_SWEPT, SENTENCES, Trouble, disagreement, few, late_sweep, no_leader
from capture.ingest.keys import quote_name
from natty import Bucket, BucketNotFoundError, KeyNotFoundError, Natty, NattyError
from natty.config.units import parse_time, write_count
from natty.errors import BadRecordError
from natty.kv import BadKeyError
from natty.kv.json_records import Seconds, Text, UnixTime, Whole, decode
from natty.wire.background import cancel_all, keep_up, map_concurrently
from natty.wire.repeated import ONCE, Repeated

BUCKET = "capture_state"
DESCRIPTION = "what capture's nodes say of themselves"
FORMAT = 1
NODE_TTL = 3600.0  # seconds that the last state of a dead node is kept
GOODBYE = 2.0  # seconds that a stopping node has to delete its entry
MOST_NODES = 1000  # entries of nodes that are read
MOST_BYTES = 1024 * 1024  # of an entry
AHEAD = 86_400_000  # largest lead of a later leader's term over ours, or over the Unix time in milliseconds
LATE = 3.0  # intervals after which a state is late
ALLOWANCE = 5.0  # seconds that are added to them

log = logging.getLogger("capture.state")

T = TypeVar("T")
Sequence = Annotated[int, msgspec.Meta(ge=0)]  # of a stream, which may begin at any sequence

_unreadable = Repeated(log, every=ONCE)


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a stream is captured.

    `first` and `last` are the stream's sequences; all messages up to `acked` are acknowledged. `pending` messages are
    not delivered yet, `unacked` ones are; the first of both has sequence `waiting_from` and was stored in the stream
    `lag` seconds ago (None: there is none, or it is not known). `held` messages are in the archive, `overlaps` of them
    in several objects; retention has removed `removed` messages.

    `gaps` are sequences up to `acked` that are not in the archive (see docs/sweep.md). Of these the stream has the
    `awaited` and the `missing` ones (None: unknown this time). Nodes may still store the awaited ones (`awaited_set` is
    `Sequences.to_text`, "" if that is too long). After `ack_wait` seconds the sweep stores those that no node has
    stored: `healed` messages since its leader began. `remedy` says why some are still missing. `gone` messages left the
    stream before a node could store them, as far as that leader has seen; `gone_because` says what removes messages
    there.
    """

    stream: str
    first: Sequence
    last: Sequence
    acked: Sequence
    pending: Sequence
    unacked: Sequence
    lag: Seconds | None = None
    waiting_from: Sequence | None = None
    held: Sequence = 0
    overlaps: Sequence = 0
    removed: Sequence = 0
    gaps: Sequence = 0
    gaps_are: str = ""
    missing: Sequence | None = None
    missing_are: str = ""
    remedy: str = ""
    awaited: int = 0
    awaited_are: str = ""
    awaited_set: str = ""
    ack_wait: float = 0.0
    healed: int = 0
    gone: int = 0
    gone_are: str = ""
    gone_because: str = ""

    def describe_missing(self) -> str:
        """Return a sentence that says which messages are missing, and what happens to them; "" if none is."""
        if not self.missing:
            return ""
        found, verb = write_count(self.missing, "acknowledged message"), "is" if self.missing == 1 else "are"
        said = f"{found} of {self.stream} {verb} MISSING ({self.missing_are})"
        return f"{said}; the stream has them, and the next sweep tries again to store them: {self.remedy}"

    def describe_awaited(self) -> str:
        """Return a sentence that says which messages are acknowledged and not stored yet; "" if none is."""
        if not self.awaited:
            return ""
        verbs = "counts as acknowledged and is" if self.awaited == 1 else "count as acknowledged and are"
        return (
            f"{write_count(self.awaited, 'message')} of {self.stream} {verbs} not stored yet"
            f" ({self.awaited_are}): the sweep stores those that no node has stored within {self.ack_wait:g} s"
        )

    def describe_gone(self) -> str:
        """Return a sentence that says which messages left the stream before a node could store them; "" if none did."""
        if not self.gone:
            return ""
        which = f"{write_count(self.gone, 'message')} of {self.stream} left it before a node stored them"
        return f"{which} ({self.gone_are}): {self.gone_because}"

    def describe_gaps(self) -> str:
        """Return how many sequences the archive does not hold, why, and how many messages it repeats; or ""."""
        gone = self.gaps - (self.missing or 0) - self.awaited
        told = "left the stream (expired, deleted, or acknowledged by another client)"
        if self.missing is None:
            told += ", or have subjects that are not captured"
        which = f" ({self.gaps_are})" if gone == self.gaps else ""
        found = [f"{write_count(gone, 'sequence')} that the archive does not hold {told}{which}"] if gone else []
        if self.overlaps:
            twice = write_count(self.overlaps, "message", "is", "are")
            found.append(f"{twice} stored more than once until the compaction")
        return f"{self.stream}: {', '.join(found)}" if found else ""


class ArchiveState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that the sweep's leader publishes of an archive after each sweep. Times are Unix seconds, sizes bytes.

    `leader` leads since `since` under `token`; `term` is the term's number, which decides which state is newer. The
    leader swept at `swept`, in `seconds`, and sweeps every `every` seconds. `blocks` wait for the compaction. The last
    sweep has `adopted` new ones, could not adopt `unadopted`, removed `let_go` from the manifest and `expired` by
    retention, and deleted `deleted` objects. `dangling` entries have no block, `unreadable` ones can't be read.
    At `compacted` files were merged last; `compactor` is the node that committed the table last; `tables` are its
    Iceberg tables. `removed_objects` and `removed_bytes` count what retention has removed so far. `store` is the URL of
    the store that was swept ("" from versions that did not publish it).
    """

    archive: Text
    leader: Text
    token: Whole
    term: Whole
    since: UnixTime
    swept: UnixTime
    seconds: Seconds
    every: Seconds
    manifest: Whole
    blocks: Whole
    messages: Whole
    bytes: Whole
    adopted: Whole = 0
    unadopted: Whole = 0
    let_go: Whole = 0
    expired: Whole = 0
    deleted: Whole = 0
    dangling: list[str] = []
    unreadable: list[str] = []
    table: Whole = 0
    files: Whole = 0
    rows: Whole = 0
    table_bytes: Whole = 0
    compacted: UnixTime | None = None
    compactor: Text = ""
    removed_objects: Whole = 0
    removed_bytes: Whole = 0
    streams: list[StreamState] = []
    tables: list[TableState] = []
    store: Text = ""
    format: Whole = FORMAT


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a node publishes every `every` seconds: since when it runs (Unix seconds), and what it has stored.

    `stored` counts messages, blocks, bytes. `pending` messages are in open blocks, the oldest of which is open for
    `oldest` seconds (None: there is none). `location` is the archive's URL as the node would write it into the table's
    metadata; "" if it can't lead the compaction. `troubles` are sentences about failures in the node at the moment;
    `store_trouble` is the one that says why blocks are not stored. `lowest` is the first sequence in its blocks.
    """

    node: Text
    version: Text
    since: UnixTime
    every: Seconds
    stored: dict[str, Whole] = {}
    pending: Whole = 0
    oldest: Seconds | None = None
    location: Text = ""
    lowest: Sequence | None = None
    troubles: list[Text] = []
    store_trouble: Text = ""
    catalogs: list[CatalogState] = []  # entries that this node, as the compaction's leader, sets
    fresh: FreshState | None = None  # if this node, as the compaction's leader, keeps the table fresh
    compaction: CompactionState | None = None  # while this node leads the compaction
    format: Whole = FORMAT

    def list_troubles(self) -> list[Trouble]:
        """Return the node's problems, each with its name."""
        known = {self.store_trouble: "capturestorefailing"}
        return [Trouble(f"{self.node}: {text}", known.get(text, SENTENCES)) for text in self.troubles]


@dataclass(frozen=True)
class Heard:
    """A node's last state, and how many seconds ago it was published, by the server's clock."""

    node: NodeState
    ago: float

    @property
    def is_late(self) -> bool:
        """Whether the node should have published again by now: it died, hangs, or has no connection."""
        return self.ago > LATE * self.node.every + ALLOWANCE


@dataclass(frozen=True)
class BoardState:
    """The published state of an archive (None: it was never swept), its age, and the archive's nodes.

    `unreadable` has a sentence for each key that can't be read and is left out.
    """

    state: ArchiveState | None
    ago: float
    nodes: list[Heard]
    unreadable: list[str] = field(default_factory=list)

    @property
    def is_late(self) -> bool:
        """Whether the last sweep is longer ago than a few intervals: its results may be outdated."""
        return self.state is None or self.ago > LATE * self.state.every + ALLOWANCE

    @property
    def is_attended(self) -> bool:
        """Whether a node has reported in time."""
        return not all(one.is_late for one in self.nodes)

    @property
    def locations(self) -> Mapping[str, str]:
        """The archive's URL according to each running node that can lead the compaction."""
        return {one.node.node: one.node.location for one in self.nodes if one.node.location and not one.is_late}

    @property
    def held_for(self) -> float:
        """For how many seconds a running node may have held a message that it has not stored."""
        return max(((one.node.oldest or 0.0) + one.ago for one in self.nodes if not one.is_late), default=0.0)

    def troubles(self, *, leader: str) -> list[Trouble]:
        """Return each problem. `leader` is the sweep's leader by the election, "" if there is none."""
        found = [] if leader else [no_leader(self.is_attended)]
        found += few(self.unreadable)
        state = self.state
        if state is None:
            return [*found, NEVER_SWEPT]
        if self.is_late:
            found.append(late_sweep(self.ago, state.every))
        missing = filter(None, (one.describe_missing() for one in state.streams))
        found += [Trouble(one, "capturemessagesmissing") for one in missing]
        found += few(f"{path} is named by an entry and missing" for path in state.dangling)
        found += few(f"an entry can't be read: {text}" for text in state.unreadable)
        found += few(filter(None, [disagreement(self.locations)]))
        found += [trouble for one in self.nodes if not one.is_late for trouble in one.node.list_troubles()]
        silent = (
            f"{one.node.node} has not reported for {one.ago:.0f} s (expected every {one.node.every:g} s)"
            for one in self.nodes
            if one.is_late
        )
        return found + few(silent, "capturenodesilent")


class Board:
    """Publishes and reads an archive's state: keys of a bucket that all archives of an account share.

    Raises NattyError if the server does not answer, or does not allow this user to create or write the bucket.
    """

    def __init__(self, natty: Natty, archive: str) -> None:
        self._natty = natty
        self._archive = archive

    def __repr__(self) -> str:
        return f"Board({BUCKET!r}, {self._archive!r})"

    async def publish(self, state: ArchiveState) -> bool:
        """Publish the archive's state; return False, and change nothing, if a later term has published its state.

        It overwrites a state that can't be read, or whose term is higher than any leader's can be by now.
        """
        data, latest = msgspec.json.encode(state), max(state.term, time.time() * 1000) + AHEAD

        def change(value: bytes | None) -> bytes | None:
            return value if state.term < _term_of(value) <= latest else data

        entry = await self._write(lambda: self._bucket.modify(f"archive.{self._archive}", change))
        return entry is not None and entry.value == data

    async def announce(self, node: NodeState) -> None:
        """Publish a node's state, kept for an hour."""
        await self._write(lambda: self._bucket.put(self._key(node.node), msgspec.json.encode(node), ttl=NODE_TTL))

    async def withdraw(self, node: str) -> None:
        """Delete the entry of a node that stops."""
        await self._bucket.delete(self._key(node))

    async def read(self) -> BoardState:
        """Return the published state. It is empty if nothing was ever published.

        A key that can't be read is left out, named in the result, and logged once. Only the first thousand nodes are
        read; the result says so.
        """
        unreadable: list[str] = []
        try:
            info = await self._natty.jetstream.request(f"STREAM.INFO.KV_{BUCKET}")
            names = await self._bucket.keys(f"node.{self._archive}.*")
            found = await map_concurrently(names[:MOST_NODES], lambda name: self._read(name, NodeState, unreadable))
            state = await self._read(f"archive.{self._archive}", ArchiveState, unreadable)
        except BucketNotFoundError:
            return BoardState(None, 0.0, [])
        if len(names) > MOST_NODES:
            unreadable.append(f"bucket {BUCKET} has {len(names)} nodes of {self._archive}: {MOST_NODES} were read")
        now = server_time(info)
        nodes = [Heard(node, max(0.0, now - at)) for node, at in filter(None, found)]
        return BoardState(state[0] if state else None, max(0.0, now - state[1]) if state else 0.0, nodes, unreadable)

    @property
    def _bucket(self) -> Bucket:
        return self._natty.bucket(BUCKET)

    def _key(self, node: str) -> str:
        return f"node.{self._archive}.{quote_name(node)}"

    async def _read(self, key: str, kind: type[T], unreadable: list[str]) -> tuple[T, float] | None:
        """Return the value of a key, and when it was published (Unix seconds, server's clock); None if it was not."""
        try:
            entry = await self._bucket.get(key)
            read: T = decode(entry.value, kind, most_bytes=MOST_BYTES)
        except KeyNotFoundError:
            return None
        except (BadRecordError, BadKeyError) as error:
            text = f"key {key} of bucket {BUCKET} can't be read and is left out: {error}"
            _unreadable.warning(key, text, extra={"action": "bad_record"})
            unreadable.append(f"key {key} of bucket {BUCKET} can't be read: {error}")
            return None
        _unreadable.forget(key)
        return read, entry.time_ns / 1e9

    async def _write(self, write: Callable[[], Awaitable[T]]) -> T:
        try:
            return await write()
        except BucketNotFoundError:
            await self._natty.create_bucket(BUCKET, description=DESCRIPTION)
            return await write()


def _term_of(value: bytes | None) -> int:
    """Return the term of the leader that published this; 0 if it can't be read."""
    try:
        state: ArchiveState = decode(value or b"", ArchiveState, most_bytes=MOST_BYTES)
    except BadRecordError:
        return 0
    return state.term


def server_time(info: dict[str, Any]) -> float:
    """Return when the server gave this answer about a stream or a consumer, by its clock (Unix seconds)."""
    return parse_time(info["ts"]) / 1e9


async def keep_announcing(board: Board, state: Callable[[], NodeState]) -> None:
    """Publish a node's state again and again, until cancelled.

    If the server can't be reached or does not allow it, that is logged once. Errors of `state` are raised.
    """
    failed = False
    while True:
        now = state()
        try:
            await board.announce(now)
            failed = False
        except NattyError as error:
            if not failed:
                log.warning("the state of %s is not published: %s", now.node, error, extra={"action": "state"})
            failed = True
        await asyncio.sleep(now.every)


@contextlib.asynccontextmanager
async def announce(board: Board, node: str, state: Callable[[], NodeState]) -> AsyncIterator[None]:
    """While the body runs, publish a node's state; at the end withdraw it, even if publishing has just failed."""
    task = asyncio.create_task(keep_up(f"the announcement of {node}", lambda: keep_announcing(board, state)))
    try:
        yield
    finally:
        await cancel_all([task])
        with contextlib.suppress(NattyError, TimeoutError):
            async with asyncio.timeout(GOODBYE):
                await board.withdraw(node)
