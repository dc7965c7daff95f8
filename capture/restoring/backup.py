"""Imports and exports backups of the `nats` tool: a folder with `backup.json` and a NATSARC1 archive.

`nats stream backup` writes the reply of servers from 2.15 on to STREAM.SNAPSHOT. `nats stream restore` sends the same
file back. The file's name depends on the version of the tool.
"""

from __future__ import annotations

import time
from asyncio import to_thread
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from capture.archive.chain import Head, current, latest_offline
from capture.archive.identity import Identity, claim, read_record, stream_path
from capture.archive.picture import GRACE
from capture.archive.readme import VERSION
from capture.archive.recording import Configuration, Recording, StreamRecord, follow_up, read_digests
from capture.archive.sequences import Sequences
from capture.archive.signing import Signer
from capture.config.settings import CaptureConfig
from capture.decoders import decoder
from capture.errors import ConfigError, FormatError, NotStoredError, RestoreError
from capture.formats import writer
from capture.ingest.block import OpenBlocks
from capture.ingest.commit import CommitOptions, Committer
from capture.ingest.layout import layout
from capture.ingest.pipeline import capture
from capture.ingest.record import Delivered, Records
from capture.partitioners import partitioner
from capture.restoring.archive import ArchiveReader, ArchiveWriter
from capture.restoring.contents import check_settings, check_state, consumers_of
from capture.restoring.past import Window, read_past
from capture.restoring.pick import rows_of
from capture.restoring.plan import EXACT, Options, Target
from capture.restoring.prepare import draw_plan
from capture.restoring.s2 import unpack
from capture.stores import Store
from natty import Batch
from natty.errors import UNREADABLE
from natty.wire.ack import ack_subject

META = "backup.json"
DATA = ("stream.arc.s2", "stream.tar.s2")
"""Names of the data file. Versions up to jsm.go 0.4 know only the second name; later ones write the first one, restore
from either, and refuse a folder that has both."""
WRITTEN = DATA[1]


@dataclass(frozen=True, kw_only=True)
class Moved:
    """The result of an import or export. `not_kept` has a sentence for each thing that a restore of it will change."""

    stream: str
    messages: int
    first: int
    last: int
    consumers: int
    seconds: float
    not_kept: tuple[str, ...] = ()


class _Meta(msgspec.Struct):
    config: dict[str, Any]
    state: dict[str, Any] = {}


# --- into an archive -------------------------------------------------------------------------------------------------


async def import_backup(folder: Path, config: CaptureConfig, store: Store) -> Moved:
    """Store the messages of a backup as blocks of an archive, as a node does, and record configuration and consumers.

    The archive is new, or left by an earlier import. ConfigError if it captures a living stream of this name, or if
    there is no backup. FormatError if the backup is damaged, cut off, or of a server before 2.15. The backup's stream
    and consumers are checked before anything is written.
    """
    began = time.monotonic()
    meta, data = await to_thread(_find_backup, folder)
    stream = meta.config["name"]
    await _check_free(store, stream)
    with data.open("rb") as file:
        try:
            reader = await to_thread(ArchiveReader, unpack(file))
            backup = _Backup(stream, reader)
            await claim(store, config.archive or stream, stream, "", config.signer())
            await _store_blocks(backup, config, store)
        except FormatError as error:
            raise FormatError(f"{data}: {error}") from error
    await _record(store, config, meta.config, backup)
    return Moved(
        stream=stream,
        messages=backup.count,
        first=backup.state["first_seq"],
        last=backup.state["last_seq"],
        consumers=len(backup.consumers),
        seconds=time.monotonic() - began,
    )


def _find_backup(folder: Path) -> tuple[_Meta, Path]:
    try:
        meta = msgspec.json.decode((folder / META).read_bytes(), type=_Meta)
        check_settings(meta.config)
    except OSError as error:
        raise ConfigError(
            f"{folder} is not a backup of the nats tool: {META} can't be read: {error.strerror}"
        ) from error
    except (*UNREADABLE, FormatError) as error:
        raise FormatError(f"{folder / META} is damaged: {error}") from error
    for name in DATA:
        if (folder / name).is_file():
            return meta, folder / name
    raise ConfigError(f"{folder} is not a backup of the nats tool: there is no {' or '.join(DATA)} in it")


async def _check_free(store: Store, stream: str) -> None:
    with suppress(NotStoredError):
        known = await read_record(store, stream_path(stream), Identity)
        if known.created:
            raise ConfigError(
                f"the archive in {store.url} captures stream {stream} already: import into another store, since "
                "capture can't determine whether the backup is of the same stream"
            )


class _Backup:
    """The messages of a backup as a node would get them from the server."""

    def __init__(self, stream: str, reader: ArchiveReader) -> None:
        """FormatError if the backup's state of the stream and consumers is not valid."""
        self.stream = stream
        self.state, self.consumers = check_state(reader.state), consumers_of(reader.consumers)
        self.count = 0
        self.held = Sequences()
        self._pieces = reader.messages(stream)

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield them. FormatError."""
        while (records := await to_thread(next, self._pieces, None)) is not None:
            self.count += len(records)
            self.held |= Sequences.from_iterable(records.sequences)
            yield _batch(self.stream, records)


def _batch(stream: str, records: Records[Any]) -> Batch:
    places = zip(records.sequences, records.times_ns, strict=True)
    acks = [ack_subject(stream, "import", *place) for place in places]
    return Batch(list(zip(records.subjects, acks, records.header_blocks, records.payloads, strict=True)))


class _NoAcks:
    """Ignores acks: no server waits for the acknowledgement of a backup's message."""

    def ack(self, messages: Delivered) -> None:
        pass

    def nak(self, messages: Delivered, delay: float = 0.0) -> None:
        pass


async def _store_blocks(backup: _Backup, config: CaptureConfig, store: Store) -> None:
    decode = decoder(config.decoder)
    keys = config.block_keys()
    made_by = writer(
        config.format,
        decode=decode,
        compression=config.compression,
        flatten=config.flatten,
        envelope=config.envelope,
        keys=keys,
    )
    options = CommitOptions(node="import", interval=config.limits.interval, attempts=config.store_attempts)
    committer = Committer(store, made_by, _NoAcks(), options, layout=layout(config.layout))
    partition = partitioner(config.partition)
    async with aclosing(backup.batches()) as batches:
        blocks = OpenBlocks(config.limits.limits())
        await capture(batches, decode, partition, blocks, committer.commit, retain=made_by.retain)


@dataclass
class _LeaderlessChain:
    """The head of a chain that no election leads yet: the latest one in the store. The first leader takes it over."""

    store: Store
    signer: Signer | None
    token: int = 0
    head: Head | None = field(default=None)

    def check(self) -> None:
        pass

    async def read(self) -> Head | None:
        return self.head or await latest_offline(self.store, Recording)

    async def commit(self, head: Head) -> None:
        self.head = head


async def _record(store: Store, config: CaptureConfig, settings: dict[str, Any], backup: _Backup) -> None:
    """Record the facts that a restore needs, as a leader of the sweep does."""
    now, pointer = time.time(), _LeaderlessChain(store, config.signer())
    head, before = await current(store, pointer, Recording, now)
    state = backup.state
    holes = Sequences.from_range(state["first_seq"], state["last_seq"]) - backup.held
    record = StreamRecord(
        created="",
        state=state,
        configurations=[
            Configuration(since=now, first_seq=state["first_seq"], last_seq=state["last_seq"], config=settings)
        ],
        deleted=holes.to_text(),
        deleted_seen=now,
        consumers=backup.consumers,
    )
    after = msgspec.structs.replace(
        before,
        archive=config.archive or backup.stream,
        readme=VERSION,
        fixed=await read_digests(store, before.fixed),
        streams={**before.streams, backup.stream: record},
        created=now,
        leader="import",
    )
    await follow_up(store, pointer, head, before, after, grace=GRACE)


# --- out of an archive -----------------------------------------------------------------------------------------------


async def export_backup(config: CaptureConfig, store: Store, folder: Path) -> Moved:
    """Write a backup of `config.stream` for `nats stream restore`: the stream, as far as it is archived.

    ConfigError if the folder is not empty. RestoreError if the backup can't be written; the folder is then empty again.
    Like `capture restore`, it raises RestoreRefusedError if nothing was recorded of the stream.
    """
    began = time.monotonic()
    past = await read_past(None, config, store, Window())
    target = Target(version=EXACT, streams={})
    plan = await draw_plan(past, Options(), target, store)
    state = plan.state() | {"consumer_count": len(plan.consumers)}
    await to_thread(_make_empty, folder)
    try:
        with (folder / WRITTEN).open("xb") as file:
            archive = ArchiveWriter(now_ns=time.time_ns())
            await to_thread(file.write, archive.begin(state, plan.consumers))
            async with aclosing(rows_of(store, plan.supply, plan.wanted, keys=config.keys())) as tables:
                async for rows in tables:
                    file.write(await to_thread(archive.add, rows))
            file.write(archive.end())
        (folder / META).write_bytes(msgspec.json.encode({"config": plan.config, "state": state}))
    except OSError as error:
        _remove(folder, [WRITTEN, META])
        raise RestoreError(f"the backup can't be written to {folder}: {error.strerror or error}") from error
    except BaseException:
        _remove(folder, [WRITTEN, META])
        raise
    return Moved(
        stream=plan.stream,
        messages=plan.messages,
        first=plan.first,
        last=plan.last,
        consumers=len(plan.consumers),
        seconds=time.monotonic() - began,
        not_kept=plan.not_kept,
    )


def _make_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: name a new folder")
    except OSError as error:
        raise ConfigError(f"{folder} can't be made: {error.strerror}") from error


def _remove(folder: Path, names: Sequence[str]) -> None:
    with suppress(OSError):
        for name in names:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
