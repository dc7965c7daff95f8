"""The format `ndjson-decoded`: lines of NDJSON with the whole envelope, and the decoded value in addition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, ClassVar

from capture.archive.envelope_columns import COLUMNS, NAMES
from capture.decoders.contract import Decoding, reason, values_of
from capture.decoders.json import only_parses
from capture.formats.json_text import encode_json, encode_parsed, encode_plain, to_plain
from capture.formats.ndjson import NdjsonWriter, lines
from capture.formats.text_columns import fields_of, parts_of, rename
from capture.ingest.block import SealedBlock
from capture.ingest.record import Records

VALUE = "value"
"""The field of a value; beside columns it is used for values that are not objects."""

_TAKEN = frozenset(name.lower() for name in (*NAMES, *(name for one in COLUMNS for name in fields_of(one))))


class DecodedWriter(NdjsonWriter):
    """NDJSON with the envelope and the value: readers of NDJSON ignore the value and find each message whole.

    `is_nested` puts the value into one field; otherwise its fields follow the envelope's.
    """

    format: ClassVar[str] = "ndjson-decoded"

    def __init__(self, decoding: Decoding[Any], *, is_nested: bool) -> None:
        self.unfit = Counter({VALUE: 0})  # type: ignore[misc] # counts values that are not JSON
        self._counting = Lock()
        self._decoding = decoding
        encode = _encode_nested if is_nested else _encode_fields
        self._encode = partial(encode, is_parsed=only_parses(decoding))

    def write(self, block: SealedBlock) -> bytes:
        """Return the block as lines of JSON."""
        return b"".join(line for part in parts_of(block.records) for line in self._lines(part))

    def _lines(self, records: Records[Any]) -> Iterator[bytes]:
        errors = dict(records.errors)
        values = values_of(records, self._decoding)
        encoded = [self._encode_value(value, index, errors) for index, value in enumerate(values)]
        for line, value in zip(lines(replace(records, errors=errors)).splitlines(), encoded, strict=True):
            yield line[:-1] + value + b"}\n"

    def _encode_value(self, value: Any, index: int, errors: dict[int, str]) -> bytes:
        try:
            return self._encode(value)
        except Exception as failure:  # a value may be of any type
            with self._counting:  # several threads write blocks
                self.unfit[VALUE] += 1
            errors.setdefault(index, f"no JSON: {reason(failure)}")
            return self._encode(None)


def _encode_nested(value: Any, *, is_parsed: bool) -> bytes:
    return b',"value":' + (encode_parsed(value) if is_parsed else encode_json(value))


def _encode_fields(value: Any, *, is_parsed: bool) -> bytes:
    if value is None:
        return b""
    plain = value if is_parsed else to_plain(value)
    fields = rename(plain if isinstance(plain, dict) else {VALUE: plain}, _TAKEN)
    encode = encode_parsed if is_parsed else encode_plain
    return b"," + encode(fields)[1:-1] if fields else b""
