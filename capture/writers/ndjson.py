from __future__ import annotations

import base64
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from capture.block import SealedBlock
from capture.writers.envelope import SCHEMA
from capture.writers.headers import MESSAGE_ID
from natty.message import parse_headers


class Row(msgspec.Struct, kw_only=True):
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


class NdjsonWriter:
    """JSON, a message a line: to be read by anything, at several times Parquet's size and cost."""

    suffix = ".ndjson"
    format = "ndjson"

    def write(self, block: SealedBlock) -> bytes:
        """Return the block as lines of JSON."""
        return msgspec.json.Encoder().encode_lines(_rows(block))


def read_back(data: bytes) -> pa.Table:
    """Return the lines of an NDJSON block as a table of SCHEMA."""
    rows = msgspec.json.Decoder(Row).decode_lines(data)
    return pa.Table.from_pylist([_columns(row) for row in rows], schema=SCHEMA)


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
        headers = _headers(header_block) if header_block else None
        text = _text(payload)
        error = records.errors.get(index)
        yield Row(
            stream=block.stream,
            sequence=sequence,
            time_ns=time_ns,
            subject=subject.decode("utf-8", "replace"),
            headers=headers,
            header_block_base64=_base64(header_block) if header_block else None,
            message_id=headers[MESSAGE_ID][0] if headers and MESSAGE_ID in headers else None,
            deliveries=deliveries,
            payload=text,
            payload_base64=_base64(payload) if text is None else None,
            error=None if error is None else error.encode("utf-8", "replace").decode(),
        )


def _headers(block: bytes) -> dict[str, list[str]]:
    """Return the headers as text; what is not UTF-8 is replaced, the raw block keeps what it was."""
    headers = parse_headers(block)
    if _text(block) is None:
        return {_safe(name): [_safe(value) for value in values] for name, values in headers.items()}
    return headers


def _safe(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _columns(row: Row) -> dict[str, object]:
    cells = msgspec.structs.asdict(row)
    header_block, payload = cells.pop("header_block_base64"), cells.pop("payload_base64")
    cells["header_block"] = None if header_block is None else base64.b64decode(header_block)
    cells["payload"] = row.payload.encode() if row.payload is not None else base64.b64decode(payload)
    cells["headers"] = None if row.headers is None else list(row.headers.items())
    return cells


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
