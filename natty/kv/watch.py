"""Watches: the keys of a bucket, then each change, without gaps over lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypedDict

from natty.config.options import Count, ServerSeconds, check_options
from natty.errors import NattyError
from natty.jetstream import JetStream
from natty.kv.entry import Entry, Gone, PictureComplete, read_entry, stored_entry
from natty.kv.key_names import is_key, read_key
from natty.pulling.ordered import Began, CaughtUp, Ordered, OrderedOptions, Vanished
from natty.streams.info import subject_counts
from natty.wire.background import map_concurrently
from natty.wire.message import Batch

Event = Entry | Gone | PictureComplete

RETRY_DELAY = 0.25  # seconds before the list of keys is requested from the leader again


class WatchSettings(TypedDict, total=False):
    """The options of a watch as keywords: the fields of `WatchOptions`."""

    history: bool
    """Begin with all values that the bucket holds, including markers, instead of the last ones. Default False."""
    updates_only: bool
    """Show only later writes. Default False."""
    ignore_deletes: bool
    """Show no `Gone`. Default False."""
    values: bool
    """False: keys, revisions and headers only. Default True."""
    max_messages: int
    """Messages that may wait to be read. Default 1024."""
    max_bytes: int
    """Bytes that may wait to be read. Default 8 MiB."""
    heartbeat: float
    """Seconds between signs of life; a server that is silent for two of them counts as lost. Default 5.0."""


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """The options of a watch: its events, and how many may wait to be read; `WatchSettings` describes each field."""

    history: bool = False
    updates_only: bool = False
    ignore_deletes: bool = False
    values: bool = True
    max_messages: Count = 1024
    max_bytes: Count = 8 * 1024 * 1024
    heartbeat: ServerSeconds = 5.0

    def __post_init__(self) -> None:
        check_options(self)
        if self.history and self.updates_only:
            raise ValueError("history=True and updates_only=True contradict each other: choose one")


class Watch:
    """Keys of a bucket as they change: `async for event in watch`. Ends with `stop`, or with the connection.

    First shows the entries of all existing keys, then one `PictureComplete`, then every write in the bucket's order as
    an `Entry` or a `Gone`. `PictureComplete` means that each key that the stream's leader held when the watch began
    has been shown, at least as new as then, or is gone.

    It survives lost connections, servers and consumers without a gap, and never shows a revision twice. When the
    bucket is deleted, it shows a `Gone` for every key, and when the bucket is created again, a new picture with its own
    `PictureComplete`. After an interruption it also shows a `Gone` for each key that was removed without a trace.

    A slow reader does not block others: `max_messages` wait here, the rest stays in the bucket, where a newer value of
    a key replaces the older one unless the bucket keeps history. So a slow watch can skip values, but not the last one.

    It skips messages whose name is not a key (ADR-8), because no client can read them, and calls `skipped` with the
    bytes of the name.
    """

    def __init__(
        self,
        jetstream: JetStream,
        stream: str,
        root: str,
        filters: tuple[str, ...],
        options: WatchOptions,
        *,
        skipped: Callable[[bytes], None],
    ) -> None:
        self.options = options
        self._skipped = skipped
        self._jetstream = jetstream
        self._stream, self._root = stream, root
        self._filters = tuple(root + one for one in filters)
        self._reader = Ordered(
            jetstream,
            stream,
            OrderedOptions(
                filters=self._filters,
                start="first" if options.history else "new" if options.updates_only else "last_per_subject",
                headers_only=not options.values,
                max_messages=options.max_messages,
                max_bytes=options.max_bytes,
                heartbeat=options.heartbeat,
                expires=max(30.0, 2 * options.heartbeat),
            ),
        )
        self._known: dict[str, int] = {}  # keys that were shown and exist → revision
        self._marked: set[str] = set()  # keys whose marker was read while the picture was incomplete
        self._in_picture = False
        self._updates_only = options.updates_only

    def __repr__(self) -> str:
        return f"Watch({', '.join(self._filters)}, {len(self._known)} keys, {self._reader!r})"

    def stop(self) -> None:
        """End the iteration. Safe to call from any thread. Idempotent."""
        self._reader.stop()

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        """Yield the events. BucketNotFoundError if the bucket does not exist at the start."""
        async with aclosing(self._reader.__aiter__()) as steps:
            async for step in steps:
                match step:
                    case Batch():
                        events = self._read(step)
                    case Began():
                        events = self._begin()
                    case Vanished():
                        events = self._forget("bucket deleted")
                    case CaughtUp():
                        events = iter(await self._compare())
                for event in events:
                    if not (self.options.ignore_deletes and isinstance(event, Gone)):
                        yield event

    def _begin(self) -> Iterator[Event]:
        yield from self._forget("bucket deleted")
        self._in_picture = True

    def _forget(self, reason: str) -> Iterator[Event]:
        gone, self._known = self._known, {}
        self._marked.clear()
        yield from (Gone(key, 0, reason) for key in gone)

    def _read(self, batch: Batch) -> Iterator[Event]:
        start, known = len(self._root), self._known
        for (subject, _, headers, data), sequence, time_ns in zip(
            batch.raw, batch.sequences, batch.times_ns, strict=True
        ):
            key = read_key(subject[start:])
            if key is None:
                self._skipped(subject[start:])
                continue
            if sequence <= known.get(key, 0):
                continue  # read from the leader already
            event = read_entry(key, sequence, headers, data, time_ns)
            if isinstance(event, Entry):
                known[key] = sequence
            else:
                shown = known.pop(key, None) is not None
                if self._in_picture:
                    self._marked.add(key)
                    if not (shown or self.options.history or self._updates_only):
                        continue  # the picture shows no absent keys
            yield event

    async def _compare(self) -> list[Event]:
        """Compare the shown keys with the keys of the leader; return the events for the differences.

        If a key was written again while the picture was incomplete, the consumer skips it and delivers the newer value
        later: read it from the leader now. A key that the leader does not have was removed without a trace.
        """
        while not self._reader.interrupted:
            try:
                existing, last = await self._list_existing()
                unseen = existing - self._known.keys() - self._marked
                entries = await self._read_keys(unseen if self._in_picture and not self._updates_only else set())
            except NattyError:
                last = -1
            if last < max(self._known.values(), default=0):  # no leader, or one that is behind us: retry
                await asyncio.sleep(RETRY_DELAY)
                continue
            vanished = self._known.keys() - existing
            for key in vanished:
                del self._known[key]
            self._known |= {entry.key: entry.revision for entry in entries}
            return [*(Gone(key, 0, "vanished") for key in vanished), *entries, *self._complete()]
        return []

    def _complete(self) -> Iterator[Event]:
        if self._in_picture:
            self._in_picture = self._updates_only = False
            self._marked.clear()
            yield PictureComplete(len(self._known))

    async def _list_existing(self) -> tuple[set[str], int]:
        """Return the keys that the stream's leader has, including deleted ones with markers, and its last sequence."""
        keys: set[str] = set()
        lasts = []
        for one in self._filters:
            subjects, last = await subject_counts(self._jetstream, self._stream, one)
            keys.update(filter(is_key, (subject[len(self._root) :] for subject in subjects)))
            lasts.append(last)
        return keys, min(lasts)

    async def _read_keys(self, keys: set[str]) -> list[Entry]:
        """Return the entries of these keys, as far as they exist, from the stream's leader."""

        async def read(key: str) -> Entry | None:
            return stored_entry(key, await self._jetstream.read(self._stream, subject=self._root + key))

        return [entry for entry in await map_concurrently(sorted(keys), read) if entry is not None]
