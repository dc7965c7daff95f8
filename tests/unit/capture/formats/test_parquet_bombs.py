"""What a Parquet file of somebody else's can hold in few bytes: long values in a dictionary, large pages, many rows."""

from hashlib import sha256
from io import BytesIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archived import STREAM, store_block

from capture.archive.manifest import Manifest, Stored
from capture.archive.picture import Picture
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.errors import FormatError
from capture.formats import batches as of_pieces
from capture.formats import pages, read_object
from capture.formats.batches import pieces
from capture.formats.envelope import SCHEMA
from capture.formats.pages import check_pages
from capture.maintenance.merge.inputs import BATCH_BYTES, input_rows, read_columns
from capture.stores import MemoryStore
from capture.verification.objects import read_archive

MIB = 1 << 20
LONG = b"x" * MIB
ONE_PAGE = {"max_rows_per_page": 500_000, "write_batch_size": 500_000}


def hostile(payloads, **how):
    """Return a file with so many messages of these payloads, and its record."""
    count = len(payloads)
    fixed = {"stream": STREAM, "subject": "orders.1", "time_ns": 1_795_230_000_123_456_001, "deliveries": 1}
    columns = {name: pa.array([fixed.get(name)] * count, SCHEMA.field(name).type) for name in SCHEMA.names}
    columns |= {"sequence": pa.array(range(1, count + 1), pa.int64()), "payload": payloads}
    sink = BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd", **how)
    data = sink.getvalue()
    record = Stored(
        path="blocks/hostile.parquet", stream=STREAM, key="eu", interval=1_795_230_000, first=1, last=count,
        count=count, bytes=len(data), sha256=sha256(data).hexdigest(), format="parquet",
        sequences=Sequences.from_range(1, count).to_bytes(),
    )  # fmt: skip
    return data, record


def repeated(count):
    """Return a file in which so many messages have one payload of a MiB."""
    indices = pa.array([0] * count, pa.int32())
    payloads = pa.DictionaryArray.from_arrays(indices, pa.array([LONG], pa.binary()))
    return hostile(payloads, use_dictionary=["payload", "subject"], dictionary_pagesize_limit=64 * MIB)


@pytest.mark.long
def test_a_payload_that_a_dictionary_holds_once_is_not_in_memory_for_each_message_that_has_it():
    data, one = repeated(200)
    assert len(data) < 100_000
    before, most, count = pa.total_allocated_bytes(), 0, 0
    for rows in pieces(data, one, piece_bytes=4 * MIB):
        most = max(most, pa.total_allocated_bytes() - before)
        assert rows.schema == SCHEMA
        assert all(payload == LONG for payload in rows.column("payload").to_pylist())
        count += len(rows)
    assert count == 200
    assert most < 40 * MIB
    most, count = 0, 0
    for rows in input_rows(data, one, read_columns(""), None):
        most = max(most, pa.total_allocated_bytes() - before)
        assert rows.nbytes < BATCH_BYTES + 2 * MIB
        count += len(rows)
    assert count == 200
    assert most < 40 * MIB
    assert read_object(data, one).column("payload").type == pa.binary()


async def every_reader(data, one):
    """Return what each reader says of an object."""
    store, said = MemoryStore(), []
    await store.put(one.path, data)
    for read in (
        lambda: list(pieces(data, one)),
        lambda: list(input_rows(data, one, read_columns(""), None)),
        lambda: read_object(data, one),
    ):
        with pytest.raises(FormatError) as caught:
            read()
        said.append(str(caught.value))
    held = await read_archive(store, Picture(Manifest(blocks=[one]), Table()))
    return said, [problem for one in held.values() for problem in one.problems]


async def test_a_page_that_is_too_large_is_refused_before_it_is_decompressed(monkeypatch):
    monkeypatch.setattr(pages, "MOST_BYTES", 3 * MIB)
    data, one = hostile(pa.array([b"", bytes(4 * MIB)], pa.binary()), use_dictionary=False)
    assert len(data) < 20_000
    said, problems = await every_reader(data, one)
    assert all("a page of column payload has 4,194," in one for one in said)
    assert problems == []  # verify looks at sequences and times
    data, one = hostile(
        pa.array([b""] * 500_000, pa.binary()), use_dictionary=False, data_page_size=64 * MIB, **ONE_PAGE
    )
    said, [problem] = await every_reader(data, one)
    assert all("a page of column" in one for one in [*said, problem])


async def test_a_page_of_too_many_values_is_refused(monkeypatch):
    monkeypatch.setattr(pages, "MOST_VALUES", 1000)
    said, [problem] = await every_reader(*hostile(pa.array([None] * 5000, pa.binary())))
    assert all("values inside of" in one for one in [*said, problem])


def test_a_message_that_no_server_takes_is_refused(monkeypatch):
    monkeypatch.setattr(of_pieces, "LARGEST", MIB)
    data, one = hostile(pa.array([b"1", bytes(MIB)], pa.binary()))
    with pytest.raises(FormatError, match=r"a message in it has 1,048,\d+ bytes: no server takes one as large"):
        list(pieces(data, one))


def test_a_file_with_more_rows_than_its_record_says_is_not_read_to_its_end():
    data, one = hostile(pa.array([b"1"] * 50_000, pa.binary()))
    few = msgspec.structs.replace(one, count=4)
    with pytest.raises(FormatError, match=r"it has at least (\d|,){1,5} rows, its record says 4"):
        list(pieces(data, few))


async def test_headers_of_pages_that_are_damaged_are_an_error_and_never_without_end():
    store = MemoryStore()
    one = await store_block(store, range(1, 50))
    data = await store.get(one.path)
    metadata = pq.read_metadata(BytesIO(data))
    assert check_pages(BytesIO(data), metadata, SCHEMA.names) == {"stream", "subject", "error"}
    column = metadata.row_group(0).column(SCHEMA.names.index("payload"))
    for fill in (b"\x00", b"\xff", b"\x1c", b"\x18\xff\xff\xff\xff\x0f", b"\x15"):
        at = column.data_page_offset
        damaged = data[:at] + (fill * 200)[:60] + data[at + 60 :]
        with pytest.raises(FormatError, match="page"):
            check_pages(BytesIO(damaged), metadata, SCHEMA.names)
