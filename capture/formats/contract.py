"""Defines what a format of blocks does, and the check that every format passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import IO, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from capture.archive.stored_formats import OWN, STORED
from capture.formats.envelope import SCHEMA, to_table
from capture.ingest.block import SealedBlock, Writer
from capture.ingest.record import Records
from natty.wire.ack import ack_subject

Positions: TypeAlias = Iterator[tuple[list[int], list[int]]]
"""Sequences, and the times (Unix nanoseconds) of the same messages, some thousands at a time."""

LARGE = 1 << 20  # bytes of the largest payload that the conformance check writes


@runtime_checkable
class Format(Writer, Protocol):
    """Writes blocks and reads them back, without compression and encryption around them.

    It is pure: equal blocks give equal bytes. `capture.archive.stored_formats` describes the abilities of each format;
    `format` is its name there.
    """

    @property
    def unfit(self) -> Counter[str]:
        """Number of values that did not fit their column so far, by column."""
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


def check_writer(wanted: Writer) -> None:
    """Check that a writer writes any block. AssertionError names the kind of block, and what is wrong with it.

    Threads write blocks at the same time, and equal blocks must give equal bytes. A `Format` must also read them back,
    with all that it claims to keep; a writer without `read` is one of a user, which capture does not read.
    """
    for name, block in sample_blocks():
        with ThreadPoolExecutor(2) as threads:
            data, again = threads.map(wanted.write, [block, block])
        assert isinstance(data, bytes), f"{name}: write returned {type(data).__name__}, not bytes"
        assert data == again, f"{name}: the same block gave other bytes the second time"
        if isinstance(wanted, Format) and not wanted.format.startswith(OWN):
            _check_reading(wanted, name, block, data)


def _check_reading(wanted: Format, name: str, block: SealedBlock, data: bytes) -> None:
    described = STORED.get(wanted.format)
    assert described is not None, f"{wanted.format!r} is not described in capture.archive.stored_formats"
    places = [place for some in wanted.positions(BytesIO(data)) for place in zip(*some, strict=True)]
    assert places == list(zip(block.records.sequences, block.records.times_ns, strict=True)), (
        f"{name}: other sequences or times came back"
    )
    found = wanted.read(data).select(SCHEMA.names)
    assert found.schema == SCHEMA, f"{name}: the columns are not the envelope's"
    parts = [part.select(SCHEMA.names) for part in wanted.parts(BytesIO(data), 100)]
    assert pa.concat_tables(parts).equals(found), f"{name}: read in parts it has other rows"
    if described.restorable:
        _check_rows(name, to_table(block.records).to_pylist(), found.to_pylist())


def _check_rows(name: str, wanted: list[dict[str, object]], found: list[dict[str, object]]) -> None:
    for kept, row in zip(wanted, found, strict=True):
        for column, value in kept.items():
            assert row[column] == value, f"{name}: {column} of {kept['sequence']} is not what was written"


def sample_blocks() -> Iterator[tuple[str, SealedBlock]]:
    """Yield a block of each kind that a writer must be able to write, with its name."""
    yield "one plain message", _block((b"a.b", b"", b"text"))
    yield "empty payloads", _block((b"a", b"", b""), (b"b", b"", b""))
    yield "binary payloads", _block((b"a", b"", bytes(range(256))), (b"b", b"", b"\xff\xfe"), (b"c", b"", b"\0"))
    yield "line breaks in payloads", _block((b"a", b"", b'{"a":1}\n{"b":2}\r\n'), (b"b", b"", "\u2028".encode()))
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
