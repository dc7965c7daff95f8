"""Tables of pipelines as other engines read them: partitions, hidden columns, and columns that come, change and go."""

import datetime
import json
from decimal import Decimal

import msgspec
import polars
import pyarrow as pa
import pytest
from derived_tables import Derived
from pyiceberg.manifest import ManifestEntryStatus

from capture.archive.iceberg_state import Expiry
from capture.errors import CompactionError
from capture.iceberg.manifest_plan import FAN

DAY = datetime.date(2026, 11, 21)
COLUMNS = pa.schema([("country", pa.string()), ("day", pa.date32()), ("total", pa.int32())])
BY_COUNTRY = {"columns": COLUMNS, "partition": ["country"]}


@pytest.fixture
def table(tmp_path):
    return Derived(tmp_path)


def rows(columns=COLUMNS, **values):
    return pa.table(values, schema=columns)


def sales(country, *totals):
    return rows(country=[country] * len(totals), day=[DAY] * len(totals), total=list(totals))


async def totals(table, **how):
    return sorted((one["country"] or "", one["total"]) for one in await table.rows(**how))


async def planned(table, where):
    """Return how many files pyiceberg opens for a condition."""
    return len(list((await table.reader()).scan(row_filter=where).plan_files()))


async def manifests(table):
    """Return each manifest of the current snapshot, with its entries."""
    reader = await table.reader()
    found = reader.current_snapshot().manifests(reader.io)
    return [(one, one.fetch_manifest_entry(reader.io, discard_deleted=False)) for one in found]


async def test_files_are_in_the_partitions_of_their_records_also_of_null_and_hidden_columns_are_in_no_answer(table):
    german = await table.file(sales("de", 1, 2), partition=["de"])
    unknown = await table.file(sales(None, 3), partition=[None])
    await table.run([german, unknown], **BY_COUNTRY)
    reader = await table.reader()
    assert reader.schema().column_names == ["country", "day", "total"]
    assert [(one.name, one.source_id) for one in reader.spec().fields] == [("country", 1)]
    assert not reader.sort_order().fields
    assert await totals(table) == [("", 3), ("de", 1), ("de", 2)]
    assert [await totals(table, where=one) for one in ("country = 'de'", "country is null")] == [
        [("de", 1), ("de", 2)],
        [("", 3)],
    ]
    assert [await planned(table, one) for one in ("country = 'de'", "country is null", "country = 'fr'")] == [1, 1, 0]
    for reads in ("native", "pyiceberg"):
        found = polars.scan_iceberg(reader, reader_override=reads).collect()
        assert sorted(found["total"]) == [1, 2, 3]
        assert found.columns == ["country", "day", "total"]


async def test_files_that_a_run_replaces_go_in_the_same_snapshot(table):
    german, french = await german_and_french(table)
    await table.run([german, french], **BY_COUNTRY)
    before = table.shown.snapshots[-1].id
    await table.run([await table.file(sales("de", 5), partition=["de"])], [german], **BY_COUNTRY)
    assert await totals(table) == [("de", 5), ("fr", 1)]
    assert await totals(table, snapshot_id=before) == [("de", 1), ("fr", 1)]
    assert (await table.reader()).current_snapshot().summary["deleted-data-files"] == "1"
    assert german.path in table.shown.list_held()
    assert german.path not in {one.path for one in table.document.retired}


async def german_and_french(table):
    return [await table.file(sales(one, 1), partition=[one]) for one in ("de", "fr")]


async def test_a_table_without_partitions_and_one_that_loses_all_its_rows(table):
    await table.run([await table.file(sales("de", 1)), await table.file(sales("fr", 2), bucket=7)], columns=COLUMNS)
    assert (await table.reader()).spec().is_unpartitioned()
    assert await totals(table) == [("de", 1), ("fr", 2)]
    await table.rerun([], columns=COLUMNS)
    assert await totals(table) == []
    await table.run([await table.file(sales("it", 3))], columns=COLUMNS)
    assert await totals(table) == [("it", 3)]


async def test_files_of_deleted_keys_are_in_no_snapshot(table):
    deleted = await table.file(sales("de", 9), partition=["de"], tombstones=True)
    await table.run([deleted], **BY_COUNTRY)
    assert table.document.iceberg == {}
    german = await table.file(sales("de", 1), partition=["de"])
    await table.run([german], **BY_COUNTRY)
    before = table.shown
    await table.run([], [deleted], **BY_COUNTRY)
    assert table.shown == before
    assert await totals(table) == [("de", 1)]


async def test_columns_come_widen_and_go_and_those_that_stay_keep_their_ids_and_their_past(table):
    german, _ = await german_and_french(table)
    await table.run([german], **BY_COUNTRY)
    first = table.shown.snapshots[-1].id
    wider = pa.schema([("new", pa.list_(pa.int64())), ("country", pa.string()), ("total", pa.int64())])
    german = rows(wider, new=[[4]], country=["de"], total=[2**40])
    await table.rerun([await table.file(german, partition=["de"])], columns=wider, partition=["country"])
    reader = await table.reader()
    ids = {one.name: (one.field_id, str(one.field_type)) for one in reader.schema().fields}
    assert (ids["country"], ids["total"]) == ((1, "string"), (3, "long"))
    assert [*ids] == ["new", "country", "total"]
    used = {one.field_id for schema in reader.metadata.schemas for one in schema.fields}
    assert ids["new"][0] > 3
    assert len(used) == 4
    assert await table.rows() == [{"new": [4], "country": "de", "total": 2**40}]
    assert await table.rows(snapshot_id=first) == [{"country": "de", "day": DAY, "total": 1}]


async def test_a_column_of_another_type_is_another_column_and_ends_what_older_snapshots_show(table):
    german, french = await german_and_french(table)
    await table.run([german], **BY_COUNTRY)
    await table.run([french], **BY_COUNTRY)
    uuid = (await table.reader()).metadata.table_uuid
    narrow = COLUMNS.set(2, pa.field("total", pa.string()))
    again = rows(narrow, country=["de"], day=[DAY], total=["many"])
    await table.rerun([await table.file(again, partition=["de"])], columns=narrow, partition=["country"])
    reader = await table.reader()
    ids = {one.name: one.field_id for one in reader.schema().fields}
    assert (ids["country"], ids["day"]) == (1, 2)
    assert ids["total"] > 3
    assert reader.metadata.table_uuid == uuid
    assert await totals(table) == [("de", "many")]
    assert len(reader.snapshots()) == len(table.shown.snapshots) == 1
    assert {german.path, french.path} <= {one.path for one in table.document.retired}


async def test_a_column_that_was_dropped_and_comes_back_does_not_show_what_it_was(table):
    await table.run([await table.file(sales("de", 1), partition=["de"])], **BY_COUNTRY)
    fewer = COLUMNS.remove(2)
    german = rows(fewer, country=["de"], day=[DAY])
    await table.rerun([await table.file(german, partition=["de"])], columns=fewer, partition=["country"])
    assert len(table.shown.snapshots) == 2
    await table.rerun([await table.file(sales("de", 5), partition=["de"])], **BY_COUNTRY)
    assert (await table.reader()).schema().find_field("total").field_id > 3
    assert await totals(table) == [("de", 5)]
    assert len(table.shown.snapshots) == 1


async def test_the_fields_of_a_struct_come_widen_go_and_change_as_columns_do(table):
    def typed(**fields):
        return pa.schema([("at", pa.list_(pa.struct(list(fields.items()))))])

    first = typed(x=pa.int32(), y=pa.int32(), gone=pa.string(), other=pa.int32())
    value = {"x": 1, "y": 2, "gone": "a", "other": 3}
    await table.run([await table.file(rows(first, at=[[value]]))], columns=first)
    names = {one.name: one.field_id for one in (await table.reader()).schema().find_type("at").element_type.fields}
    then = typed(y=pa.int64(), x=pa.int32(), other=pa.string(), new=pa.bool_())
    value = {"y": 2**40, "x": 1, "other": "b", "new": True}
    await table.rerun([await table.file(rows(then, at=[[value]]))], columns=then)
    reader = await table.reader()
    after = {one.name: one.field_id for one in reader.schema().find_type("at").element_type.fields}
    assert [*after] == ["y", "x", "other", "new"]
    assert (after["x"], after["y"]) == (names["x"], names["y"])
    assert not {after["other"], after["new"]} & set(names.values())
    assert await table.rows() == [{"at": [value]}]


async def test_another_partition_is_another_spec_and_older_snapshots_keep_theirs(table):
    german, french = await german_and_french(table)
    await table.run([german, french], **BY_COUNTRY)
    first = table.shown.snapshots[-1].id
    both = {"columns": COLUMNS, "partition": ["day", "country"]}
    again = await table.file(sales("de", 5), partition=[DAY.isoformat(), "de"])
    await table.rerun([again], **both)
    reader = await table.reader()
    fields = [[(one.field_id, one.name) for one in spec.fields] for spec in reader.metadata.partition_specs]
    assert fields == [[(1000, "country")], [(1001, "day"), (1000, "country")]]
    found = {(one.partition_spec_id, entry.status) for one, entries in await manifests(table) for entry in entries}
    assert found == {(0, ManifestEntryStatus.DELETED), (1, ManifestEntryStatus.ADDED)}
    assert await totals(table) == await totals(table, where="day = '2026-11-21'") == [("de", 5)]
    assert await totals(table, snapshot_id=first) == [("de", 1), ("fr", 1)]
    await table.rerun([await table.file(sales("it", 6))], columns=COLUMNS)
    await table.rerun([await table.file(sales("it", 7), partition=["it"])], **BY_COUNTRY)
    assert await totals(table) == [("it", 7)]
    reader = await table.reader()
    assert (reader.metadata.default_spec_id, len(reader.metadata.partition_specs)) == (0, 3)


async def test_a_partition_column_that_is_dropped_takes_its_spec_and_the_past_with_it(table):
    german, french = await german_and_french(table)
    await table.run([german, french], **BY_COUNTRY)
    left = COLUMNS.remove(0)
    await table.rerun([await table.file(rows(left, day=[DAY], total=[8]))], columns=left)
    reader = await table.reader()
    assert [len(one.fields) for one in reader.metadata.partition_specs] == [0]
    assert [one.partition_spec_id for one, _ in await manifests(table)] == [reader.metadata.default_spec_id]
    assert await table.rows() == [{"day": DAY, "total": 8}]
    assert len(table.shown.snapshots) == 1
    summary = reader.current_snapshot().summary
    assert (summary["total-data-files"], summary["deleted-data-files"]) == ("1", "2")


async def test_partitions_of_every_type_and_a_file_of_each_is_found_again(table):
    kinds = {
        "name": (pa.string(), "ä/ %", "ä/ %"),
        "small": (pa.int32(), -5, -5),
        "large": (pa.int64(), 2**60, 2**60),
        "flag": (pa.bool_(), False, False),
        "day": (pa.date32(), DAY, "2026-11-21"),
        "at": (
            pa.timestamp("us", "UTC"),
            datetime.datetime(2026, 11, 21, 3, 0, 0, 5, tzinfo=datetime.UTC),
            "2026-11-21T03:00:00.000005+00:00",
        ),
        "local": (pa.timestamp("us"), datetime.datetime(1969, 1, 1), "1969-01-01T00:00:00"),
        "price": (pa.decimal128(20, 3), Decimal("1.500"), "1.5"),
    }
    columns = pa.schema([(name, kind) for name, (kind, _, _) in kinds.items()])
    how = {"columns": columns, "partition": list(kinds)}
    full = rows(columns, **{name: [value] for name, (_, value, _) in kinds.items()})
    empty = rows(columns, **{name: [None] for name in kinds})
    one = await table.file(full, partition=[cell for _, _, cell in kinds.values()])
    other = await table.file(empty, partition=[None] * len(kinds))
    await table.run([one, other], **how)
    for name, (_, value, _) in kinds.items():
        text = str(value).lower() if isinstance(value, bool | int | Decimal) else f"'{kinds[name][2]}'"
        assert await planned(table, f"{name} = {text}") == await planned(table, f"{name} is null") == 1, name
    await table.run([], [one], **how)
    assert await table.rows() == empty.to_pylist()
    await table.run([], [other], **how)
    assert await table.rows() == []


async def test_the_files_of_a_partition_column_that_was_widened_are_found_and_copied(table):
    narrow, wide = (pa.schema([("number", kind), ("n", pa.int32())]) for kind in (pa.int32(), pa.int64()))
    files = [
        await table.file(rows(narrow, number=[one], n=[one]), partition=[one], bucket=one or 0)
        for one in (1, 2, 3, None)
    ]
    await table.run(files, columns=narrow, partition=["number"])
    large = await table.file(rows(wide, number=[2**40], n=[9]), partition=[2**40])
    await table.run([large], [files[1]], columns=wide, partition=["number"])
    assert sorted(one["n"] or 0 for one in await table.rows()) == [0, 1, 3, 9]
    assert await planned(table, f"number = {2**40}") == await planned(table, "number = 3") == 1
    await table.run([], [files[0], large], columns=wide, partition=["number"])
    assert sorted(one["n"] or 0 for one in await table.rows()) == [0, 3]


async def test_small_manifests_are_merged_within_a_spec(table):
    for number in range(FAN + 2):
        partition = [None if number % 2 else "de"]
        await table.run([await table.file(sales(partition[0], number), partition=partition)], **BY_COUNTRY)
    assert len(await manifests(table)) < FAN
    assert [total for _, total in await totals(table, where="country is null")] == list(range(1, FAN + 2, 2))
    assert await planned(table, "country = 'de'") == (FAN + 2) // 2
    gone = [one for one in table.document.files if one.key == "[null,0]"]
    await table.run([], gone, **BY_COUNTRY)
    assert {country for country, _ in await totals(table)} == {"de"}


async def test_a_snapshot_expires_and_its_files_are_let_go(table):
    table.exposer = Derived(table.store.url, rule=Expiry(keep_for=100)).exposer
    german, french = await german_and_french(table)
    await table.run([german], **BY_COUNTRY)
    await table.run([french], [german], **BY_COUNTRY)
    assert german.path in table.shown.list_held()
    await table.run([await table.file(sales("it", 1), partition=["it"])], **BY_COUNTRY)
    await table.run([await table.file(sales("it", 2), partition=["it"])], **BY_COUNTRY)
    assert german.path in {one.path for one in table.document.retired}
    assert len((await table.reader()).snapshots()) == len(table.shown.snapshots) == 3
    assert table.exposer.is_due(table.document, table.now + 1000)


async def test_a_damaged_table_is_made_again_with_the_names_that_its_files_have(table, caplog):
    german, french = await german_and_french(table)
    await table.run([german, french], **BY_COUNTRY)
    await table.store.put(table.shown.metadata, b"{}", if_absent=False)
    table.exposer = Derived(table.store.url).exposer
    await table.run([await table.file(sales("it", 2), partition=["it"])], **BY_COUNTRY)
    assert "is created again" in caplog.text
    assert await totals(table) == [("de", 1), ("fr", 1), ("it", 2)]


async def test_no_column_gets_an_id_that_a_hidden_one_has(table):
    await table.run([await table.file(sales("de", 1))], columns=COLUMNS)
    named = (await table.reader()).metadata.properties["schema.name-mapping.default"]
    hidden = {one["names"][0]: one["field-id"] for one in json.loads(named) if one["names"][0].startswith("__")}
    assert set(hidden) == {"__sequence", "__1"}
    wider = COLUMNS.append(pa.field("new", pa.int64()))
    await table.run([await table.file(rows(wider, country=["de"], day=[DAY], total=[1], new=[7]))], columns=wider)
    reader = await table.reader()
    assert reader.schema().find_field("new").field_id > max(hidden.values())
    assert sorted(one["new"] or 0 for one in await table.rows()) == [0, 7]


async def test_hidden_columns_that_come_later_are_named_too(table):
    await table.run([await table.file(sales("de", 1), hidden=False)], columns=COLUMNS)
    await table.run([await table.file(sales("fr", 2))], columns=COLUMNS)
    assert await totals(table) == [("de", 1), ("fr", 2)]


async def test_a_commit_that_did_not_happen_leaves_no_trace_in_the_next_one(table):
    german, _ = await german_and_french(table)
    await table.run([german], **BY_COUNTRY)
    by_day = {"columns": COLUMNS, "partition": ["day"]}
    again = await table.file(sales("de", 5), partition=[DAY.isoformat()])
    lost = await table.expose(table.prepare([again], [german], **by_day), [again], [german])
    assert lost.iceberg != table.document.iceberg
    table.number -= 1
    await table.rerun([again], **by_day)
    assert [one.name for one in (await table.reader()).spec().fields] == ["day"]
    assert await totals(table) == [("de", 5)]


async def test_a_record_that_is_in_no_partition_of_the_table_is_named(table):
    for partition in ([], ["de", 5], [5], [True], [["de"]]):
        wrong = msgspec.structs.replace(await table.file(sales("de", 1)), key=json.dumps([*partition, 0]))
        with pytest.raises(CompactionError, match=r"which is not of the table's types: struct<1000: country"):
            await table.run([wrong], **BY_COUNTRY)
    assert table.document.iceberg == {}


@pytest.mark.parametrize(
    ("columns", "partition", "said"),
    [
        (pa.schema([("x", pa.null())]), [], "an Iceberg table can't have these columns: Null type"),
        (pa.schema([("x", pa.duration("us"))]), [], "can't have these columns: Column 'x' has an unsupported type"),
        (
            pa.schema([("a.b", pa.int32()), ("a", pa.struct([("b", pa.int32())]))]),
            [],
            "can't have these columns: Invalid schema, multiple fields for name a.b",
        ),
        (COLUMNS, ["city"], "city is to separate files, and the table has no such column: country, day, total"),
    ],
)
async def test_columns_that_no_table_can_have_are_named_and_the_table_stays(table, columns, partition, said):
    await table.run([await table.file(sales("de", 1), partition=["de"])], **BY_COUNTRY)
    before = table.document
    with pytest.raises(CompactionError, match=said):
        await table.rerun([await table.file(sales("fr", 1))], columns=columns, partition=partition)
    fresh = Derived(f"{table.store.url}/fresh")
    with pytest.raises(CompactionError, match=said):
        await fresh.run([await fresh.file(sales("fr", 1))], columns=columns, partition=partition)
    assert table.document == before
    assert await totals(table) == [("de", 1)]


async def test_a_partition_column_of_another_type_is_another_column_in_another_spec(table):
    german, french = await german_and_french(table)
    await table.run([german, french], **BY_COUNTRY)
    numbered = COLUMNS.set(0, pa.field("country", pa.int64()))
    file = await table.file(rows(numbered, country=[49], day=[DAY], total=[5]), partition=[49])
    await table.rerun([file], columns=numbered, partition=["country"])
    reader = await table.reader()
    [spec] = reader.metadata.partition_specs
    assert spec.spec_id == reader.metadata.default_spec_id == 1
    [field] = spec.fields
    assert field.source_id == reader.schema().find_field("country").field_id > 3
    assert field.field_id == 1001
    assert await planned(table, "country = 49") == 1
    assert await planned(table, "country = 1") == 0
    assert await totals(table) == [(49, 5)]


async def test_a_file_that_no_manifest_holds_makes_the_table_again(table, caplog):
    german, french = await german_and_french(table)
    await table.run([german], **BY_COUNTRY)
    await table.run([], [german, french], **BY_COUNTRY)
    assert "no manifest holds" in caplog.text
    assert await totals(table) == []
