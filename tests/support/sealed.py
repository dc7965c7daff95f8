"""Handmade sealed blocks, and the entries that describe them."""

from __future__ import annotations

import csv
import io
from hashlib import sha256
from typing import Any

from capture.archive.manifest import Stored
from capture.ingest.block import SealedBlock
from capture.ingest.record import Records

HEADERS = b"NATS/1.0\r\nNats-Msg-Id: id-1\r\nNats-TTL: 1h\r\nColour: red\r\nColour: blue\r\nNot-Utf8: \xff\r\n\r\n"


def block(*messages: tuple[bytes, bytes, bytes], errors: dict[int, str] | None = None) -> SealedBlock:
    records: Records[Any] = Records(
        "FLIGHTS",
        list(range(100, 100 + len(messages))),
        [1_792_540_800_123_456_789 + index for index in range(len(messages))],
        *(list(column) for column in zip(*messages, strict=True)),
        deliveries=[1] * len(messages),
        replies=[b"$JS.ACK.FLIGHTS.c.1.%d.%d.5000.0" % (100 + n, n) for n in range(len(messages))],
        values=[None] * len(messages),
        errors=errors or {},
    )
    return SealedBlock("FLIGHTS", "EWR", 1_792_540_800, records, "age")


def stored_as(data: bytes, kept: SealedBlock, format: str) -> Stored:
    return Stored(
        path=f"blocks/FLIGHTS.{format}",
        stream=kept.stream,
        key=kept.key,
        interval=kept.interval,
        first=kept.first,
        last=kept.last,
        count=kept.count,
        bytes=len(data),
        sha256=sha256(data).hexdigest(),
        format=format,
        sequences=b"",
    )


def csv_rows(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))
