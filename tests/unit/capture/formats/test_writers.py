from __future__ import annotations

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.decoders import decoder
from capture.errors import ConfigError
from capture.formats import Format, check_writer, writer
from capture.formats.contract import sample_blocks
from capture.formats.csv import CsvWriter
from capture.formats.envelope import SCHEMA, header_columns, to_table
from capture.formats.ndjson import NdjsonWriter
from capture.formats.parquet import PAGE_BYTES, ParquetWriter, _page_rows
from capture.formats.raw import RawWriter
from capture.ingest.block import SealedBlock
from capture.ingest.record import Records
from natty.wire.message import encode_headers, parse_headers

FORMATS: dict[str, Format] = {
    one.format: one for one in (ParquetWriter(), NdjsonWriter(), RawWriter(), CsvWriter(decoder("raw")))
}
HEADERS = b"NATS/1.0\r\nNats-Msg-Id: id-1\r\nColour: red\r\nColour: blue\r\nEmpty:\r\n\r\n"


def block(*messages: tuple[bytes, bytes, bytes]) -> SealedBlock:
    count = len(messages)
    return SealedBlock(
        "FLIGHTS",
        "EWR",
        0,
        Records(
            "FLIGHTS",
            [100 + index for index in range(count)],
            [10**18 + 1] * count,
            [subject for subject, _, _ in messages],
            [headers for _, headers, _ in messages],
            [payload for _, _, payload in messages],
            [1] * count,
            [b""] * count,
            [None] * count,
        ),
        "age",
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_conforms(name: str) -> None:
    check_writer(FORMATS[name])


def test_the_conformance_check_notices_a_format_that_loses_a_column() -> None:
    class Forgetful(ParquetWriter):
        def read(self, data: bytes) -> pa.Table:
            table = super().read(data)
            return table.set_column(8, table.schema.field("payload"), pa.array([b"other"] * len(table), pa.binary()))

    with pytest.raises(AssertionError, match="payload of"):
        check_writer(Forgetful())


@pytest.mark.parametrize(("name", "kept"), [(name, kept) for name, kept in sample_blocks()])
def test_every_sample_becomes_a_valid_table(name: str, kept: SealedBlock) -> None:
    table = to_table(kept.records)
    table.validate(full=True)
    assert table.schema == SCHEMA
    assert table.num_rows == kept.count


def test_repeated_and_empty_headers_are_kept() -> None:
    (row,) = to_table(block((b"a", HEADERS, b"")).records).to_pylist()
    assert row["headers"] == [("Nats-Msg-Id", ["id-1"]), ("Colour", ["red", "blue"]), ("Empty", [""])]
    assert row["message_id"] == "id-1"
    assert row["header_block"] == HEADERS


names = st.sampled_from(["Nats-Msg-Id", "Colour", "colour", "Tail", "Ä", "With Space"])
values = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=6)
raw_blocks = st.one_of(
    st.just(b""),
    st.just(b"NATS/1.0\r\n\r\n"),
    st.just(b"NATS/1.0\r\nno colon\r\nA: \xff\r\n\r\n"),
    st.just(b"NATS/1.0 503\r\nA: 1\r\n\r\n"),
    st.dictionaries(names, st.lists(values, min_size=1, max_size=2), max_size=3).map(encode_headers),
    st.dictionaries(names, values, min_size=1, max_size=3).map(encode_headers),
)


@given(
    st.one_of(
        st.lists(raw_blocks, max_size=6), st.lists(st.dictionaries(names, values, min_size=1).map(encode_headers))
    )
)
def test_header_columns_say_what_parsing_each_message_says(blocks: list[bytes]) -> None:
    columns = header_columns(blocks)
    for column in columns:
        column.validate(full=True)
    headers, header_blocks, message_ids, *_ = columns
    assert header_blocks.to_pylist() == [raw or None for raw in blocks]
    for raw, found, message_id in zip(blocks, headers.to_pylist(), message_ids.to_pylist(), strict=True):
        wanted = {
            name: [value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for value in several]
            for name, several in parse_headers(raw).items()
        }
        assert found == (list(wanted.items()) if raw else None)
        assert message_id == wanted.get("Nats-Msg-Id", [None])[0]


def test_no_headers_and_an_empty_header_block_are_told_apart() -> None:
    table = to_table(block((b"a", b"", b""), (b"a", b"NATS/1.0\r\n\r\n", b"")).records)
    assert table["headers"].to_pylist() == [None, []]
    assert table["header_block"].to_pylist() == [None, b"NATS/1.0\r\n\r\n"]
    assert table["message_id"].to_pylist() == [None, None]


def test_a_parquet_block_says_what_it_holds_in_its_metadata() -> None:
    data = writer("parquet").write(block((b"a", b"", b"1"), (b"b", b"", b"2")))
    metadata = pq.read_metadata(pa.BufferReader(data)).metadata
    assert {name.decode(): value.decode() for name, value in metadata.items() if name.startswith(b"capture.")} == {
        "capture.version": "1",
        "capture.stream": "FLIGHTS",
        "capture.first": "100",
        "capture.last": "101",
        "capture.count": "2",
    }


def test_a_parquet_block_lets_a_reader_skip_by_sequence() -> None:
    data = writer("parquet").write(block(*[(b"a", b"", b"x")] * 10))
    column = pq.read_metadata(pa.BufferReader(data)).row_group(0).column(SCHEMA.get_field_index("sequence"))
    assert (column.statistics.min, column.statistics.max) == (100, 109)
    assert column.compression == "ZSTD"
    assert column.has_offset_index
    assert column.has_column_index


def test_a_parquet_block_says_that_it_is_sorted_by_sequence() -> None:
    data = writer("parquet").write(block(*[(b"a", b"", b"x")] * 10))
    sorting = pq.read_metadata(pa.BufferReader(data)).row_group(0).sorting_columns
    assert sorting == (pq.SortingColumn(SCHEMA.get_field_index("sequence")),)


def test_a_damaged_parquet_page_is_noticed() -> None:
    payload = random.Random(1).randbytes(1000)
    data = bytearray(writer("parquet").write(block((b"a", b"", payload))))
    data[data.index(payload[100:200])] ^= 0xFF
    with pytest.raises(OSError, match="CRC checksum"):
        ParquetWriter().read(bytes(data))


def test_a_line_of_ndjson_can_be_read_by_anything() -> None:
    data = writer("ndjson").write(block((b"a.b", HEADERS, b'{"x":"\n"}'), (b"a.c", b"", b"\xff")))
    first, second = (json.loads(line) for line in data.decode().rstrip("\n").split("\n"))
    assert first["payload"] == '{"x":"\n"}'
    assert first["headers"]["Colour"] == ["red", "blue"]
    assert (second["payload"], second["payload_base64"], second["headers"]) == (None, "/w==", None)


def test_an_unknown_writer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no writer 'xml'; the known ones are parquet, ndjson, csv, raw"):
        writer("xml")


def test_a_page_of_a_block_ends_at_a_mebibyte_whatever_its_messages_are():
    small, large = Records(payloads=[b"x"] * 3, header_blocks=[b""] * 3), 256 << 10
    assert _page_rows(small) == 1024
    assert _page_rows(Records(payloads=[b"x", bytes(large)], header_blocks=[b""] * 2)) * large == PAGE_BYTES
    assert _page_rows(Records(payloads=[b"x"] * 2, header_blocks=[b"", bytes(large)])) * large == PAGE_BYTES
    assert _page_rows(Records(payloads=[bytes(3 * PAGE_BYTES)], header_blocks=[b""])) == 1
    assert _page_rows(Records()) == 1024
