"""Defines what a format of blocks does, and the check that every format passes."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from typing import IO, Any, NoReturn, Protocol, TypeAlias, cast, runtime_checkable

import pyarrow as pa

from capture.archive.stored_formats import OWN, STORED
from capture.errors import CaptureError, ConfigError
from capture.formats.envelope import SCHEMA, to_table
from capture.ingest.block import SealedBlock, Writer
from capture.ingest.commit import ObjectWriter, Unlayered
from capture.ingest.record import Records
from capture.stores.plugin import FAULTS, check_has
from natty.config.units import write_count
from natty.wire.ack import ack_subject

Positions: TypeAlias = Iterator[tuple[list[int], list[int]]]
"""Sequences, and the times (Unix nanoseconds) of the same messages, some thousands at a time."""

LARGE = 1 << 20  # bytes of the largest payload that the conformance check writes
NEEDS = ("format", "write")
"""What a user's writer must have."""

_is_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}").fullmatch


@runtime_checkable
class Format(ObjectWriter, Protocol):
    """Writes blocks and reads them back, without compression and encryption around them.

    It is pure: equal blocks give equal bytes. `capture.archive.stored_formats` describes the abilities of each format;
    `format` is its name there.
    """

    @property
    def unfit(self) -> Counter[str]:
        """Number of values that did not fit their column so far, by column: 0 for each known column from the start."""
        ...

    def read(self, data: bytes) -> pa.Table:
        """Return the rows: the columns of `envelope.SCHEMA`, then the typed ones. Raises if the data is unreadable."""
        ...

    def parts(self, file: IO[bytes], part_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows of `read` in parts of about `part_bytes`, if the format allows it.

        It reads the file from its position to its end, without seeking; a larger message is a part of its own. Raises
        the errors of `read`, maybe after some parts.
        """
        ...

    def positions(self, file: IO[bytes]) -> Positions:
        """Yield the sequence and the time of each message; cheaper than `read`. Raises if the data is unreadable."""
        ...


class Unreadable(Unlayered, ABC):
    """A format whose objects capture writes and does not read."""

    @abstractmethod
    def refuse(self) -> NoReturn:
        """Raise FormatError, which says why its objects are not read."""

    def read(self, data: bytes) -> pa.Table:
        """Raise FormatError."""
        self.refuse()

    def parts(self, file: IO[bytes], part_bytes: int) -> Iterator[pa.Table]:
        """Raise FormatError."""
        self.refuse()

    def positions(self, file: IO[bytes]) -> Positions:
        """Raise FormatError."""
        self.refuse()


def check_usable(writer: Writer) -> None:
    """Raise ConfigError if a user's writer can't store any block: a cheap part of `check_writer`, for each start."""
    check_has(writer, NEEDS, "writer is a")
    kind, name = f"the writer {type(writer).__name__}", writer.format
    if not isinstance(name, str) or not _is_name(name):
        raise ConfigError(
            f"{kind} has the format {name!r}, which can't be the end of a file's name: write 1 to 32 letters, digits,"
            f" '-' and '_', without a dot; capture adds those of compression"
        )
    if inspect.iscoroutinefunction(writer.write):
        raise ConfigError(f"write of {kind} is `async def`, but capture calls it in threads: write a plain function")
    _, block = next(sample_blocks())
    try:
        inspect.signature(writer.write).bind(block)
    except TypeError as error:
        raise ConfigError(f"write of {kind} can't be called with a block: {error}") from error
    except ValueError:  # a function in C, of which Python knows no signature
        pass
    try:
        data: object = writer.write(block)
    except FAULTS:  # it may need values, and only the user knows what his decoder decodes
        return
    if not isinstance(data, bytes):
        if inspect.iscoroutine(data):
            data.close()
        raise ConfigError(f"write of {kind} returned {type(data).__name__}, not bytes")


def check_writer(wanted: Writer) -> None:
    """Check that a writer writes any block. AssertionError names the kind of block, and what is wrong with it.

    Threads write blocks at the same time, and equal blocks must give equal bytes. No message is left out: other bytes
    must come out if a block has one message less, or if one of its payloads is another that no decoder knows. A
    `Format` must also read blocks back, with all that it claims to keep; a writer without `read` is one of a user,
    which capture does not read.
    """
    is_format = isinstance(wanted, Format) and not wanted.format.startswith(OWN)
    try:
        if not is_format:
            check_usable(wanted)
    except ConfigError as error:
        raise AssertionError(str(error)) from error
    for name, block in sample_blocks():
        try:
            data = _write_twice(wanted, block)
            _check_complete(wanted, block, data)
            if is_format:
                _check_reading(cast("Format", wanted), block, data)
        except FAULTS as error:
            is_sentence = isinstance(error, AssertionError | CaptureError) and str(error)
            raise AssertionError(f"{name}: {error if is_sentence else f'{type(error).__name__}: {error}'}") from error


def _write_twice(wanted: Writer, block: SealedBlock) -> bytes:
    with ThreadPoolExecutor(2) as threads:
        data, again = threads.map(wanted.write, [block, block])
    assert isinstance(data, bytes), f"write returned {type(data).__name__}, not bytes"
    assert data, f"write returned no bytes for {write_count(block.count, 'message')}"
    assert data == again, "the same block gave other bytes the second time"
    return data


def _check_complete(wanted: Writer, block: SealedBlock, data: bytes) -> None:
    """Check that each message makes a difference: with its payload, since it may have no value."""
    records = block.records
    for index, sequence in enumerate(records.sequences):
        others = [one for one in range(len(records)) if one != index]
        assert not others or _write(wanted, block, records.select(others)) != data, (
            f"without message {sequence} the bytes are the same: write leaves messages out"
        )
        payloads = [payload + b"!" * (at == index) for at, payload in enumerate(records.payloads)]
        assert _write(wanted, block, replace(records, payloads=payloads)) != data, (
            f"with another payload of message {sequence} the bytes are the same: write leaves out payloads of messages"
            f" that have no value"
        )


def _write(wanted: Writer, block: SealedBlock, records: Records[Any]) -> bytes:
    return wanted.write(SealedBlock(block.stream, block.key, block.interval, records, block.reason))


def _check_reading(wanted: Format, block: SealedBlock, data: bytes) -> None:
    described = STORED.get(wanted.format)
    assert described is not None, f"{wanted.format!r} is not described in capture.archive.stored_formats"
    places = [place for some in wanted.positions(BytesIO(data)) for place in zip(*some, strict=True)]
    assert places == list(zip(block.records.sequences, block.records.times_ns, strict=True)), (
        "other sequences or times came back"
    )
    found = wanted.read(data).select(SCHEMA.names)
    assert found.schema == SCHEMA, "the columns are not the envelope's"
    parts = [part.select(SCHEMA.names) for part in wanted.parts(BytesIO(data), 100)]
    assert pa.concat_tables(parts).equals(found), "read in parts it has other rows"
    if described.restorable:
        _check_rows(to_table(block.records).to_pylist(), found.to_pylist())


def _check_rows(wanted: list[dict[str, object]], found: list[dict[str, object]]) -> None:
    for kept, row in zip(wanted, found, strict=True):
        for column, value in kept.items():
            assert row[column] == value, f"{column} of {kept['sequence']} is not what was written"


def sample_blocks() -> Iterator[tuple[str, SealedBlock]]:
    """Yield a block of each kind that a writer must be able to write, with its name."""
    yield "one plain message", _block((b"a.b", b"", b"text"))
    yield "an empty payload", _block((b"a", b"", b""))
    yield "empty payloads", _block((b"a", b"", b""), (b"b", b"", b""))
    yield "binary payloads", _block((b"a", b"", bytes(range(256))), (b"b", b"", b"\xff\xfe"), (b"c", b"", b"\0"))
    yield "line breaks in payloads", _block((b"a", b"", b'{"a":1}\n{"b":2}\r\n'), (b"b", b"", "\u2028".encode()))
    yield "JSON, one of it null", _block((b"a", b"", b'{"a":1}'), (b"b", b"", b"null"), (b"c", b"", b'{"a":1}'))
    yield "a subject that is not UTF-8", _block((b"a.\xff.b", b"", b"x"), ("ä.ö".encode(), b"", b"y"))
    yield "headers on some", _block((b"a", b"", b"1"), (b"b", HEADERS, b"2"), (b"c", b"NATS/1.0\r\n\r\n", b"3"))
    yield "a large payload", _block((b"a", b"", bytes(range(256)) * (LARGE // 256)))
    yield "undecodable ones", _block((b"a", b"", b"{"), (b"b", b"", b"{}"), errors={0: "cut off: \ud800"})


HEADERS = (
    b"NATS/1.0\r\nNats-Msg-Id: id-1\r\nColour: red\r\nColour: blue\r\nColour: \r\nEmpty:\r\n"
    b"Not-Utf8: \xff\r\nColon: a:b\r\n\r\n"
)


def _block(*messages: tuple[bytes, bytes, bytes], errors: dict[int, str] | None = None) -> SealedBlock:
    count = len(messages)
    subjects, header_blocks, payloads = (list(column) for column in zip(*messages, strict=True))
    records: Records[None] = Records(
        stream="SAMPLE",
        sequences=[2**53 + 1 + index for index in range(count)],  # more than a double represents exactly
        times_ns=[1_792_540_800_123_456_789 + index for index in range(count)],
        subjects=subjects,
        header_blocks=header_blocks,
        payloads=payloads,
        deliveries=[1 + index for index in range(count)],
        replies=[ack_subject("SAMPLE", "c", index) for index in range(count)],
        values=[None] * count,
        errors=errors or {},
    )
    return SealedBlock("SAMPLE", "key", 1_792_540_800, records, "stop")
