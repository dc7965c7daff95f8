"""The formats `ndjson-value`, `csv-value` and `raw-value`: decoded values, without the envelope.

A message is replaced by its encoded value before it gets into a block. So a value that can't be encoded makes its
message undecodable, like an error of the decoder, and a block of undecodable messages is written with the envelope.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import msgspec

from capture.decoders.contract import Flatten, reason
from capture.errors import FormatError
from capture.formats.contract import Unreadable
from capture.formats.csv import MORE, Row, cells_of, flat, to_csv
from capture.formats.json_text import encode_json
from capture.ingest.block import SealedBlock
from capture.ingest.record import Records
from capture.stores.plugin import FAULTS

_TAKEN = frozenset({MORE})
_encode = msgspec.json.Encoder().encode
_decode_rows = msgspec.json.Decoder(list[dict[str, str | None]]).decode


class Values(Unreadable):
    """A format that stores values only. Nothing in its objects says which messages they are of."""

    format: ClassVar[str]
    unfit: ClassVar[Counter[str]] = Counter()  # what does not fit is undecodable

    def __init__(self, to_json: Callable[[Any], bytes] = encode_json) -> None:
        self._to_json = to_json

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Return a value as it is kept in blocks. Any error means that the message is undecodable."""

    def write(self, block: SealedBlock) -> bytes:
        """Return the object of a block whose payloads are encoded values."""
        return b"".join(block.records.payloads)

    def refuse(self) -> NoReturn:
        """Raise FormatError."""
        raise FormatError(f"{self.format} holds decoded values without the envelope: read the object itself")


class NdjsonValues(Values):
    """A line of JSON for each value."""

    format: ClassVar[str] = "ndjson-value"

    def encode(self, value: Any) -> bytes:
        """Return the value as a line of JSON."""
        return self._to_json(value) + b"\n"


class RawValues(Values):
    """The bytes of the values, one after the other, with nothing in between."""

    format: ClassVar[str] = "raw-value"

    def encode(self, value: Any) -> bytes:
        """Return bytes as they are, a text in UTF-8, and any other value as JSON."""
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        return value.encode() if isinstance(value, str) else self._to_json(value)


class CsvValues(Values):
    """CSV with the columns of the values only. A block holds the rows of each message as JSON."""

    format: ClassVar[str] = "csv-value"

    def __init__(self, flatten: Flatten[Any] | None = None) -> None:
        super().__init__()
        self._flatten = flatten or flat

    def encode(self, value: Any) -> bytes:
        """Return the rows of the value. ValueError if it has no row with a cell."""
        rows = [cells for row in self._flatten(value) if (cells := cells_of(row, _TAKEN))]
        if not rows:
            raise ValueError("the value makes no row")
        return _encode([{name: None if cell is None else str(cell) for name, cell in row.items()} for row in rows])

    def write(self, block: SealedBlock) -> bytes:
        """Return the rows of the block as CSV with a header."""
        rows: list[Row] = [row for payload in block.records.payloads for row in _decode_rows(payload)]
        return to_csv(rows)


def needs_value(encode: Callable[[Any], bytes] | None = None) -> Callable[[Records[Any]], None]:
    """Return a function that makes each record without a value undecodable, with the reason as its error.

    With `encode` it replaces the payloads of the others by their encoded values.
    """

    def retain(records: Records[Any]) -> None:
        payloads = []
        for index, (payload, value) in enumerate(zip(records.payloads, records.values, strict=True)):
            if index not in records.errors:
                try:
                    if value is None:
                        raise ValueError("the decoder returned None")
                    payload = encode(value) if encode else payload
                except FAULTS as error:  # a user's function, or a value of any type
                    records.errors[index] = f"no value to store: {reason(error)}"
            payloads.append(payload)
        records.payloads = payloads

    return retain
