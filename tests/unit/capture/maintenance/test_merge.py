"""What a merge makes of blocks of every kind: the contract that pyarrow's engine and Spark share."""

import hashlib
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from merging import HOUR, KEYS, block, every_format, evolving, group, table_of

from capture.archive.manifest import Manifest
from capture.archive.picture import Picture
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.errors import AlreadyStoredError, CompactionError
from capture.formats import read_object
from capture.formats.envelope import SCHEMA
from capture.maintenance.compaction import apply
from capture.maintenance.merge.merge_group import merge_group
from capture.maintenance.merge.schema_evolution import OWN, adapt, evolve, read_columns, write_columns
from capture.maintenance.merge.table_file import TableFile
from capture.maintenance.read_back import read_back
from capture.stores import open_store
from capture.testing import ArrowEngine


@pytest.fixture
def store():
    return open_store(f"memory://{uuid4().hex}")


async def merged_one(store, wanted, engine=None):
    [merged] = await (engine or ArrowEngine(KEYS)).merge(store.url, [wanted])
    assert not merged.failed, merged.failed
    return merged


def applied(inputs, wanted, merged):
    """Return the table that these results make; CompactionError if they don't add up."""
    return apply(Picture(Manifest(number=1, blocks=list(inputs)), Table()), [wanted], [merged], now=1.0)


async def test_blocks_of_every_format_compressed_and_encrypted_become_one_file(store):
    inputs = await every_format(store)
    wanted = group(inputs, ending=".enc")
    merged = await merged_one(store, wanted)
    [output] = merged.outputs
    assert (merged.rows_in, merged.duplicates) == (14 * len(inputs), 4 * (len(inputs) - 1))
    assert (output.format, output.first, output.last) == ("parquet.enc", 1, 10 * len(inputs) + 4)
    rows = read_object(await store.get(output.path), output, KEYS)
    assert rows["sequence"].to_pylist() == list(range(1, 10 * len(inputs) + 5))
    for row in rows.select(SCHEMA.names).to_pylist():
        number = row["sequence"]
        assert row["payload"] == (bytes([number % 256, 0xFF]) if number % 2 else "ä\n".encode())
        assert row["message_id"] == (f"id-{number}" if number % 3 else None)
        assert (row["header_block"] is None) == (row["headers"] is None) == (number % 3 == 0)
        latest = min((number - 1) // 10, len(inputs) - 1)  # block that holds it, as a first delivery
        assert row["deliveries"] == len(inputs) - latest
    await read_back(store, merged.outputs, KEYS)
    applied(inputs, wanted, merged)


async def test_what_was_encrypted_is_not_written_in_plain_and_needs_its_keys(store):
    inputs = [await block(store, [1, 2], keys=KEYS, payload=lambda number: b"a secret thing")]
    merged = await merged_one(store, group(inputs, ending=".enc"))
    assert b"a secret thing" not in await store.get(merged.outputs[0].path)
    with pytest.raises(CompactionError, match="no keys to read it with"):
        await read_back(store, merged.outputs)
    [failed] = await ArrowEngine().merge(store.url, [group(inputs, ending=".enc")])
    assert "it is encrypted, and there are no keys" in failed.failed
    assert failed.outputs == []


async def test_an_earlier_output_is_an_input_again(store):
    first = await merged_one(store, group([await block(store, [1, 2], columns={"n": pa.int64()})]))
    late = await block(store, [2, 3], columns={"n": pa.int64()})
    wanted = group([*first.outputs, late], columns=first.columns)
    again = await merged_one(store, wanted)
    rows = await table_of(store, again.outputs[0])
    assert rows["n"].to_pylist() == rows["sequence"].to_pylist() == [1, 2, 3]
    assert rows.schema.remove_metadata() == pa.schema(
        [*SCHEMA, *OWN, ("n", pa.int64()), ("_conflicts", pa.list_(pa.string()))]
    )


async def test_typed_columns_are_added_and_widened_and_what_conflicts_stays_in_the_payload(store):
    inputs = await evolving(store)
    earlier = write_columns(pa.schema([("id", pa.int32()), ("gone", pa.bool_())]))
    merged = await merged_one(store, group(inputs, columns=earlier))
    rows = await table_of(store, merged.outputs[0])
    typed = ["id", "total", "value_key", "more", "_conflicts"]
    assert rows.select(typed).to_pylist() == [
        {"id": 1, "total": 0.5, "value_key": "k1", "more": None, "_conflicts": None},
        {"id": 2, "total": 0.5, "value_key": "k2", "more": None, "_conflicts": None},
        {"id": 2**40 + 3, "total": 0.1, "value_key": None, "more": [{"a": 3}], "_conflicts": None},
        {"id": 2**40 + 4, "total": 0.1, "value_key": None, "more": [{"a": 4}], "_conflicts": None},
        {"id": None, "total": 1.5, "value_key": None, "more": None, "_conflicts": ["id"]},
        *2 * [dict.fromkeys(typed)],
    ]
    assert rows["payload"][4].as_py() == b'{"id": "x", "total": 1.5}'
    assert merged.conflicts == {"id": 1}
    assert rows["key"].unique().to_pylist() == ["eu"]
    assert [one.timestamp() for one in rows["interval"].unique().to_pylist()] == [HOUR]
    run = read_columns(merged.columns)
    assert (run.field("id").type, run.field("total").type) == (pa.int64(), pa.float64())
    assert "gone" in run.names
    assert "gone" not in rows.column_names


async def test_a_column_whose_name_changes_in_case_alone_stays_the_one_that_the_table_has(store):
    """Spark and others could not tell the two apart, and read neither."""
    one, two, three = [
        await block(
            store,
            [n],
            columns={name: kind},
            payload=lambda _, name=name, value=value: b'{"%b": %b}' % (name.encode(), value),
        )
        for n, (name, kind, value) in enumerate(
            [("Total", pa.int32(), b"7"), ("total", pa.int64(), b"8"), ("TOTAL", pa.string(), b'"nine"')], 1
        )
    ]
    first = await merged_one(store, group([one, two]))
    again = await merged_one(store, group([*first.outputs, three], columns=first.columns))
    rows = await table_of(store, again.outputs[0])
    assert rows.column_names == [*SCHEMA.names, *OWN.names, "Total", "_conflicts"]
    assert rows["Total"].to_pylist() == [7, 8, None]
    assert rows["_conflicts"].to_pylist() == [None, None, ["Total"]]
    assert read_columns(again.columns).names == ["Total", "_conflicts"]


async def test_a_column_has_one_type_in_all_files_of_a_run(store):
    whole = await block(store, [1], columns={"n": pa.int64()}, payload=lambda number: b'{"n": 1}')
    text = await block(store, [2], columns={"n": pa.string()}, payload=lambda number: b'{"n": "one"}')
    results = await ArrowEngine().merge(store.url, [group([whole]), group([text])])
    kinds = {(await table_of(store, one.outputs[0])).schema.field("n").type for one in results}
    assert kinds == {pa.string()}
    older = msgspec.structs.replace(text, stored_ns=0)  # whatever the names of the two
    assert read_columns((await merged_one(store, group([whole, older]))).columns).field("n").type == pa.int64()
    later = await block(store, [3], columns={"n": pa.float64()}, payload=lambda number: b'{"n": 1.5}')
    again = await merged_one(store, group([later], columns=results[0].columns))
    assert (await table_of(store, again.outputs[0])).schema.field("n").type == pa.string()


def test_a_column_of_the_table_changes_only_as_iceberg_permits():
    kinds = {
        (pa.int32(), pa.int64()): pa.int64(),
        (pa.int64(), pa.int32()): pa.int64(),
        (pa.int64(), pa.float64()): pa.int64(),
        (pa.float32(), pa.float64()): pa.float64(),
        (pa.decimal128(5, 2), pa.decimal128(9, 2)): pa.decimal128(9, 2),
        (pa.decimal128(5, 2), pa.decimal128(9, 3)): pa.decimal128(5, 2),
        (pa.string(), pa.int64()): pa.string(),
        (pa.list_(pa.int32()), pa.list_(pa.int64())): pa.list_(pa.int64()),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.bool_()), ("a", pa.int64())])): pa.struct(
            [("a", pa.int64()), ("b", pa.bool_())]
        ),
    }
    for (before, found), wanted in kinds.items():
        assert evolve(pa.schema([("n", before)]), [pa.schema([("n", found)])]).field("n").type == wanted
    for odd in (pa.uint64(), pa.int8(), pa.large_string(), pa.timestamp("ns"), pa.time32("s"), pa.float16()):
        assert adapt(adapt(odd)) == adapt(odd) != odd


async def test_numbers_that_fit_a_whole_column_are_kept_and_others_are_named(store):
    payloads = {1: b'{"n": 1.0}', 2: b'{"n": 2.5}', 4: b'{"n": 9007199254740992.0}'}  # that may be its neighbour, too
    halves = await block(store, [1, 2, 4], columns={"n": pa.float64()}, payload=payloads.get)
    text = await block(store, [3], columns={"n": pa.string()}, payload=lambda number: b'{"n": "12"}')
    merged = await merged_one(store, group([halves, text], columns=write_columns(pa.schema([("n", pa.int64())]))))
    rows = await table_of(store, merged.outputs[0])
    assert rows["n"].to_pylist() == [1, None, None, None]
    assert rows["_conflicts"].to_pylist() == [None, ["n"], ["n"], ["n"]]


async def test_a_large_group_becomes_several_sorted_files_with_ranges_of_their_own(store):
    inputs = [await block(store, range(first, 100, 3)) for first in (1, 2, 3)]
    wanted = group(inputs, bounds=[34, 67], exclude=Sequences.from_iterable([1, 99]).to_text())
    merged = await merged_one(store, wanted)
    assert [(one.first, one.last, one.count) for one in merged.outputs] == [(2, 33, 32), (34, 66, 33), (67, 98, 32)]
    assert [one.path for one in merged.outputs] == [part.output for part in wanted.parts]
    assert applied(inputs, wanted, merged).files == merged.outputs
    with pytest.raises(CompactionError, match="nothing was written for sequences 34–66"):
        applied(inputs, wanted, msgspec.structs.replace(merged, outputs=[merged.outputs[0], merged.outputs[2]]))


async def test_by_message_id_the_first_message_stays_and_the_others_are_not_missing(store):
    inputs = [
        await block(store, [3, 4, 5], ids=lambda number: b"b" if number > 3 else b"a"),
        await block(store, [1, 2, 6], ids=lambda number: {1: b"", 2: b"a", 6: b""}[number]),
    ]
    wanted = group(inputs, distinct="message_id")
    merged = await merged_one(store, wanted)
    assert (await table_of(store, merged.outputs[0]))["sequence"].to_pylist() == [1, 2, 4, 6]
    assert (merged.rows_in, merged.duplicates) == (6, 2)
    table = applied(inputs, wanted, merged)
    assert list(Picture(Manifest(), table).removed["ORDERS"]) == [3, 5]
    assert [(one.objects, one.bytes) for one in table.removed] == [(0, 0)]
    with pytest.raises(CompactionError, match="3, 5 were left out for their message ids"):
        applied(inputs, group(inputs), merged)


async def test_a_group_with_a_bad_input_fails_and_the_others_do_not(store):
    names = "parquet", "ndjson", "parquet"
    inputs = [await block(store, [number], format=name) for number, name in enumerate(names, 1)]
    await store.put(inputs[0].path, b"x" * inputs[0].bytes, if_absent=False)
    await store.put(inputs[1].path, b"{}", if_absent=False)
    results = await ArrowEngine().merge(store.url, [group([one]) for one in inputs])
    assert "can't be read as Parquet" in results[0].failed
    assert "its SHA-256 is not the recorded one" in results[1].failed
    assert [one.count for one in results[2].outputs] == [1]


@pytest.mark.parametrize("format", ["parquet", "ndjson", "raw"])
async def test_an_input_that_has_other_rows_than_its_record_says_fails_its_group(store, format):
    one = await block(store, [1, 2, 2], format=format)
    wanted = [group([msgspec.structs.replace(one, count=2)])]
    wanted += [group([msgspec.structs.replace(one, sequences=Sequences.from_iterable([1, 3]).to_bytes())])]
    counted, described = await ArrowEngine().merge(store.url, wanted)
    assert "has 3 rows, its record says 2" in counted.failed
    assert "sequences 2–3 differ between the inputs' entries and what was read" in described.failed
    assert [await store.list(one.output) for one in wanted] == [[], []]


@pytest.mark.parametrize("format", ["parquet", "raw"])
async def test_an_input_in_the_place_of_another_one_is_noticed(store, format):
    inputs = [await block(store, [1], format=format, payload=lambda number, text=text: text) for text in (b"a", b"b")]
    await store.put(inputs[0].path, await store.get(inputs[1].path), if_absent=False)
    [merged] = await ArrowEngine().merge(store.url, [group(inputs[:1])])
    assert "was changed: its SHA-256 is not the recorded one" in merged.failed


@pytest.mark.parametrize(
    ("batches", "rows", "payload", "row_groups"),
    [(3, 65_536, b"", [131_072, 65_536]), (6, 16, bytes(2**20), [64, 32])],
    ids=["by rows", "by bytes"],
)
def test_a_row_group_is_bounded_in_rows_and_in_bytes(tmp_path, batches, rows, payload, row_groups):
    wanted = group([])
    with TableFile(tmp_path / "table", wanted, wanted.parts[0], pa.schema([])) as file:
        for number in range(batches):
            sequences = range(1 + number * rows, 1 + number * rows + rows)
            values = {"stream": ["ORDERS"] * rows, "sequence": sequences, "payload": [payload] * rows}
            file.add(pa.table([pa.array(values.get(one.name, [None] * rows), one.type) for one in SCHEMA], SCHEMA))
        file.finish(1, None)
    found = pq.ParquetFile(tmp_path / "table").metadata
    assert [found.row_group(number).num_rows for number in range(found.num_row_groups)] == row_groups


def test_a_table_file_has_what_engines_skip_by_and_pages_that_all_of_them_read(tmp_path):
    wanted, columns = group([]), pa.schema([("total", pa.int64())])
    values = {"stream": ["ORDERS"] * 3, "sequence": [1, 2, 3], "total": [7, 8, 9]}
    schema = pa.schema([*SCHEMA, *columns])
    with TableFile(tmp_path / "table", wanted, wanted.parts[0], columns) as file:
        file.add(pa.table([pa.array(values.get(one.name, [None] * 3), one.type) for one in schema], schema))
        file.finish(1, None)
    group_of_rows, data = pq.ParquetFile(tmp_path / "table").metadata.row_group(0), (tmp_path / "table").read_bytes()
    found = [group_of_rows.column(number) for number in range(group_of_rows.num_columns)]
    searched = {one.path_in_schema for one in found if one.is_stats_set}
    assert {"sequence", "time_ns", "subject", "message_id", "key", "interval", "total"} <= searched
    assert all(one.has_offset_index for one in found)
    assert all(one.has_column_index for one in found if one.path_in_schema in searched)
    headers = {data[one.data_page_offset :][:2] for one in found}
    assert headers == {b"\x15\x00"}  # thrift's DATA_PAGE: Iceberg's vectorised reader can't read DATA_PAGE_V2


# --- read back -------------------------------------------------------------------------------------------------------


async def written(store, sequences, **changes):
    merged = await merged_one(store, group([await block(store, sequences)]))
    return msgspec.structs.replace(merged.outputs[0], **changes)


async def described_as(store, wrong, **facts):
    """Put a table file in the place of another one whose record it is told to be of."""
    other = await written(store, wrong)
    data = await store.get(other.path)
    output = await written(store, [1, 2, 3])
    await store.put(output.path, data, if_absent=False)
    return msgspec.structs.replace(output, **{"bytes": len(data), "sha256": other.sha256} | facts)


@pytest.mark.parametrize(
    ("wrong", "facts", "text"),
    [
        ([1, 2, 4], {}, "it holds the sequences 1–2, 4"),
        ([1, 2], {}, "rows: 2, not 3"),
        ([2, 3, 4], {}, "first: 2, not 1"),
        ([1, 2, 3], {"min_ns": 5}, "min_ns: "),
        ([1, 2, 3], {"sha256": "0" * 64}, "its SHA-256 is not the reported one"),
        ([1, 2, 3], {"bytes": 7}, r"it has \d+ bytes in memory://.*, not 7"),
    ],
)
async def test_an_output_that_is_not_what_was_reported_is_refused(store, wrong, facts, text):
    with pytest.raises(CompactionError, match=f"nothing was committed: .*{text}"):
        await read_back(store, [await described_as(store, wrong, **facts)])


@pytest.mark.parametrize("whole", [True, False], ids=["as a whole", "piece by piece"])
async def test_an_output_is_read_back_and_a_flipped_bit_or_wrong_order_is_seen(store, whole, monkeypatch):
    if not whole:
        monkeypatch.setattr("capture.maintenance.read_back.WHOLE_BYTES", 0)
    output = await written(store, range(1, 500))
    await read_back(store, [output])
    data = bytearray(await store.get(output.path))
    page = pq.ParquetFile(pa.BufferReader(bytes(data))).metadata.row_group(0).column(1)
    data[page.data_page_offset + page.total_compressed_size - 1] ^= 1
    await store.put(output.path, bytes(data), if_absent=False)
    with pytest.raises(CompactionError, match="nothing was committed"):
        await read_back(store, [output])


async def test_a_damaged_page_that_can_still_be_read_is_found_by_its_checksum(store, monkeypatch):
    monkeypatch.setattr("capture.maintenance.read_back.WHOLE_BYTES", 0)
    output = await written(store, range(1, 500))
    await store.put(output.path, with_a_wrong_time(await store.get(output.path)), if_absent=False)
    with pytest.raises(CompactionError, match=r"nothing was committed: .*(?i:crc)"):
        await read_back(store, [output])


def with_a_wrong_time(data):
    """Return a table file one bit of which is wrong, such that only a time between the first and last is another."""
    times = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(SCHEMA.names.index("time_ns"))
    sound = pq.read_table(pa.BufferReader(data), columns=["sequence", "time_ns"])
    for at in range(times.data_page_offset, times.data_page_offset + times.total_compressed_size):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            found = pq.read_table(pa.BufferReader(damaged), columns=["sequence", "time_ns"])
        except (OSError, pa.ArrowException):
            continue
        facts = [(table["sequence"], pc.min_max(table["time_ns"])) for table in (found, sound)]
        if facts[0] == facts[1] and found["time_ns"] != sound["time_ns"]:
            return damaged
    raise AssertionError("no bit of the page is like that")


async def test_a_file_out_of_order_is_refused(store):
    rows = await table_of(store, await written(store, [1, 2, 3]))
    sink = pa.BufferOutputStream()
    pq.write_table(rows.take([0, 2, 1]), sink)
    data = sink.getvalue().to_pybytes()
    output = await written(store, [1, 2, 3], bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    await store.put(output.path, data, if_absent=False)
    with pytest.raises(CompactionError, match="not in ascending order"):
        await read_back(store, [output])


async def test_a_merge_whose_executor_was_lost_after_its_put_finds_what_it_makes_and_nothing_else(store):
    wanted = group([await block(store, range(1, 20))])

    async def merged(stored_ns):
        return await merge_group(store, wanted, pa.schema([]), None, stored_ns=stored_ns)

    first = await merged(1)
    assert await merged(1) == first
    await store.put(wanted.output, b"else" * 1000, if_absent=False)
    with pytest.raises(AlreadyStoredError):
        await merged(1)
    assert await store.get(wanted.output) == b"else" * 1000


async def test_an_encrypted_output_is_found_again_by_what_was_encrypted(store):
    wanted = group([await block(store, range(1, 20), keys=KEYS)], ending=".enc")
    other = group([await block(store, range(1, 20), keys=KEYS, payload=lambda number: b"other")], ending=".enc")
    fewer = group([await block(store, range(1, 19), keys=KEYS)], ending=".enc")

    async def merged(one=wanted):
        return await merge_group(store, one, pa.schema([]), KEYS, stored_ns=1)

    first = await merged()
    data = await store.get(wanted.output)
    assert await merged() == first  # whose SHA-256 is that of the object, not of what the second would have put there
    assert await store.get(wanted.output) == data
    assert read_object(data, first.outputs[0], KEYS).num_rows == 19
    unlike = [await store.get((await merged(one)).outputs[0].path) for one in (other, fewer)]
    for otherwise in (*unlike, data[:-1] + bytes([data[-1] ^ 1]), data[:40], b"else"):
        await store.put(wanted.output, otherwise, if_absent=False)
        with pytest.raises(AlreadyStoredError):
            await merged()
