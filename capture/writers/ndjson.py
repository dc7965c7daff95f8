from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

import msgspec
import pyarrow as pa

from capture.block import SealedBlock
from capture.record import Records, header_texts, text_or_none
from capture.writers.envelope import to_table
from capture.writers.headers import MESSAGE_ID


class Row(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line: the envelope's names; what is no text is in the field that ends in `_base64`, its twin is null."""

    stream: str
    sequence: int
    time_ns: int
    subject: str
    headers: dict[str, list[str]] | None
    header_block_base64: str | None
    message_id: str | None
    deliveries: int
    payload: str | None
    payload_base64: str | None
    error: str | None
    subject_raw_base64: str | None = None


class NdjsonWriter:
    """JSON, a message a line: to be read by anything, at several times Parquet's size and cost."""

    suffix: ClassVar[str] = ".ndjson"
    format: ClassVar[str] = "ndjson"
    restorable: ClassVar[bool] = True
    unfit: ClassVar[Counter[str]] = Counter()  # it has no columns

    def write(self, block: SealedBlock) -> bytes:
        """Return the block as lines of JSON."""
        return msgspec.json.Encoder().encode_lines(_rows(block))

    def read(self, data: bytes) -> pa.Table:
        """Return the rows; msgspec's DecodeError if a line is none."""
        rows = msgspec.json.Decoder(Row).decode_lines(data)
        return to_table(
            Records(
                stream=rows[0].stream if rows else "",
                sequences=[row.sequence for row in rows],
                times_ns=[row.time_ns for row in rows],
                subjects=[_bytes(row.subject, row.subject_raw_base64) for row in rows],
                header_blocks=[b64decode(row.header_block_base64 or "") for row in rows],
                payloads=[_bytes(row.payload, row.payload_base64) for row in rows],
                deliveries=[row.deliveries for row in rows],
                errors={index: row.error for index, row in enumerate(rows) if row.error is not None},
            )
        )

    def sequences(self, data: bytes) -> list[int]:
        """Return the sequence of each row."""
        return [row.sequence for row in msgspec.json.Decoder(_Sequence).decode_lines(data)]


class _Sequence(msgspec.Struct):
    sequence: int


def _rows(block: SealedBlock) -> Iterator[Row]:
    """Yield the lines straight from the columns: a Python object a cell by way of Arrow costs four times as much."""
    records = block.records
    columns = (
        records.sequences,
        records.times_ns,
        records.subjects,
        records.header_blocks,
        records.payloads,
        records.deliveries,
    )
    for index, cells in enumerate(zip(*columns, strict=True)):
        sequence, time_ns, subject, header_block, payload, deliveries = cells
        headers = header_texts(header_block) if header_block else None
        text, name = text_or_none(payload), text_or_none(subject)
        error = records.errors.get(index)
        yield Row(
            stream=block.stream,
            sequence=sequence,
            time_ns=time_ns,
            subject=subject.decode("utf-8", "replace") if name is None else name,
            subject_raw_base64=_base64(subject) if name is None else None,
            headers=headers,
            header_block_base64=_base64(header_block) if header_block else None,
            message_id=headers[MESSAGE_ID][0] if headers and MESSAGE_ID in headers else None,
            deliveries=deliveries,
            payload=text,
            payload_base64=_base64(payload) if text is None else None,
            error=None if error is None else error.encode("utf-8", "replace").decode(),
        )


def _bytes(text: str | None, encoded: str | None) -> bytes:
    return b64decode(encoded) if encoded is not None else (text or "").encode()


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
