"""Reads an archive: every message of a stream, from its first one in the archive to the newest in the stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from datetime import datetime
from typing import Unpack

import msgspec
import pyarrow as pa

from capture.archive.identity import Identity, archive_name, list_claimed, require_archive
from capture.archive.sequences import MAXIMUM
from capture.archive.trust import Trust
from capture.config.settings import CaptureConfig
from capture.errors import ConfigError
from capture.formats.envelope import EACH, SCHEMA, messages_of
from capture.ingest.record import Record
from capture.reading.merge import make_look, read_stored
from capture.reading.options import ReadOptions, ReadSettings, Where
from capture.reading.seam import Crossing
from capture.reading.search import CapturedStream
from capture.reading.shares import Selection
from capture.stores import Store, open_store
from natty import Natty
from natty.config.options import make_options
from natty.config.units import nanoseconds_of, parse_time


async def read(archive: Where, **options: Unpack[ReadSettings]) -> AsyncGenerator[Record[None], None]:
    """Yield every message of a stream exactly once, in the order of their sequences.

    Blocks and table files are read alike, also while a sweep or a compaction replaces them. Without `live` or `natty`
    it ends with the last stored message. With one of them it ends with the last message that the stream held when the
    reading began: every message that was acknowledged before is there.

    FormatError and CipherError name an object that can't be read or must not be trusted, ManifestError and
    SignatureError a document. DataLossError: see `gaps`. CaptureError if the stream is not the one that was captured,
    or is created again while it is read. ConfigError: no such stream, or options that contradict each other.
    """
    async with aclosing(read_batches(archive, columns=EACH, **options)) as batches:
        async for batch in batches:
            for message in messages_of(batch):
                yield message


async def read_batches(
    archive: Where, *, columns: Sequence[str] = (), **options: Unpack[ReadSettings]
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield Arrow record batches with columns of the envelope (default: all). Many times as fast as `read`."""
    wanted = make_options(ReadOptions, "capture.read", options)
    async with AsyncExitStack() as stack:
        if wanted.live and wanted.natty is None:
            settings = archive.nats if isinstance(archive, CaptureConfig) else {}
            await require_archive(store_of(archive), wanted.stream)
            wanted = replace(wanted, natty=await stack.enter_async_context(Natty(**settings)))
        batches = await stack.enter_async_context(aclosing(await _batches(archive, wanted, columns)))
        async for batch in batches:
            yield batch


async def _batches(archive: Where, wanted: ReadOptions, columns: Sequence[str]) -> AsyncGenerator[pa.RecordBatch, None]:
    """Return a generator of the wanted batches. ConfigError if the archive has no such stream."""
    config = archive if isinstance(archive, CaptureConfig) else CaptureConfig(durable=wanted.durable)
    store = store_of(archive)
    identity = await identity_of(store, wanted.stream or config.stream)
    keys = wanted.keys or config.keys()
    name = await archive_name(store)
    trust = _trust(config, wanted, name)
    chosen = list(columns or SCHEMA.names)
    selection = Selection(
        start_sequence=wanted.start_sequence,
        end_sequence=MAXIMUM if wanted.end_sequence is None else wanted.end_sequence,
        since_ns=time_ns_of(wanted.since),
        until_ns=time_ns_of(wanted.until),
        subjects=(wanted.subjects,) if isinstance(wanted.subjects, str) else tuple(wanted.subjects),
    )
    if wanted.natty is None:
        look = make_look(store, identity.stream, trust=trust)
        return read_stored(store, look, selection=selection, keys=keys, columns=chosen)
    captured = CapturedStream(
        store=store,
        look=make_look(store, identity.stream, natty=wanted.natty, archive=name, trust=trust),
        natty=wanted.natty,
        config=msgspec.structs.replace(config, stream=identity.stream),
        created=identity.created,
        keys=keys,
    )
    crossing = Crossing(captured, selection, follow=wanted.follow, gaps=wanted.gaps, on_gap=wanted.on_gap)
    return crossing.batches(chosen)


def _trust(config: CaptureConfig, wanted: ReadOptions, archive: str) -> Trust:
    configured = config.trust(archive)
    return replace(
        configured,
        public_keys=wanted.public_keys or configured.public_keys,
        encrypted_only=wanted.encrypted_only or configured.encrypted_only,
    )


def store_of(archive: Where) -> Store:
    """Return the store of an archive."""
    return open_store(archive.store if isinstance(archive, CaptureConfig) else archive)


async def identity_of(store: Store, stream: str) -> Identity:
    """Return the identity of the stream, or of the archive's only stream if no name is given. ConfigError."""
    await require_archive(store, stream)
    known = {one.stream: one for one in await list_claimed(store)}
    if stream in known or (not stream and len(known) == 1):
        return known[stream or next(iter(known))]
    named = ", ".join(sorted(known)) or "none"
    raise ConfigError(f"the archive in {store.url} holds {len(known)} streams, {named}: name one")


def time_ns_of(time: datetime | float | str | None) -> int | None:
    """Return a time in Unix nanoseconds; the argument is Unix seconds, a datetime or a text. None for None.

    ConfigError if it is not a time, or has no zone.
    """
    try:
        match time:
            case str():
                return parse_time(time)
            case datetime():
                return nanoseconds_of(time)
            case None:
                return None
        return round(time * 1e9)
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"{error}: give a time and its zone, as in datetime(2026, 11, 21, tzinfo=UTC) or 2026-11-21T06:00:00Z"
        ) from None
