"""Commits of a pipeline's table open every manifest that may hold a file which they remove, whatever its partition."""

import datetime
import json
from decimal import Decimal
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

from capture.archive.manifest import Stored
from capture.iceberg import manifest_plan
from capture.iceberg.manifest_plan import count_live, list_holding, list_to_merge
from capture.iceberg.memory_catalog import MemoryFiles
from capture.iceberg.shapes import DerivedShape, partition_types
from capture.iceberg.snapshot import NewFile, NewSnapshot, Opened
from capture.maintenance.compaction_plan import new_name
from capture.maintenance.merge.schema_evolution import write_columns

KINDS = {
    "text": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=3)),
    "small": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "large": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "flag": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), st.dates().map(datetime.date.isoformat)),
    "at": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC)).map(datetime.datetime.isoformat)),
    "local": (pa.timestamp("us"), st.datetimes().map(datetime.datetime.isoformat)),
    "price": (pa.decimal128(38, 4), st.decimals(-(10**33), 10**33, places=2, allow_nan=False).map(str)),
}
COLUMNS = write_columns(pa.schema([(name, kind) for name, (kind, _) in KINDS.items()]))


class Manifests:
    """A table of files without content: what its manifests say, and which files it should have."""

    def __init__(self, partition):
        self.shape = DerivedShape(COLUMNS, tuple(partition))
        self.metadata = self.shape.new_metadata("memory://table")
        self.files, self.listed, self.number = MemoryFiles(), [], 0
        self.live, self.places = {}, {}

    def record(self, cells):
        self.number += 1
        path = f"table/{self.number}.parquet"
        return Stored(
            path=path, stream="s", key=json.dumps([*cells, 0]), interval=0, first=self.number // 3, last=0, count=1,
            bytes=1, sha256="", format="parquet", sequences=b"",
        )  # fmt: skip

    def entry(self, one):
        types = partition_types(self.metadata)[self.metadata.default_spec_id]
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=one.path,
            file_format=FileFormat.PARQUET,
            partition=self.shape.place(one, types),
            record_count=1,
            file_size_in_bytes=1,
        )

    def commit(self, came, gone, partition=None):
        """Add and remove files; `list_holding` decides which manifests are opened."""
        before = partition_types(self.metadata)
        manifests = [one.manifest for one in self.listed]
        holding = list_holding(manifests, gone, self.shape, before)
        merge = list_to_merge(one for one in manifests if one not in holding)
        content = {one.manifest_path: self.files.content[one.manifest_path] for one in (*holding, *merge)}
        if partition is not None:
            self.shape = DerivedShape(COLUMNS, tuple(partition))
            self.metadata = self.shape.evolve(self.metadata, self.files)
        types = {**before, **partition_types(self.metadata)}
        came = [self.record(cells) for cells in came]
        new = NewSnapshot(self.metadata, self.files, new_name)
        opened = Opened(self.listed, content, frozenset(one.manifest_path for one in merge), types)
        new.change(opened, [NewFile(self.entry(one), one.first) for one in came], frozenset(one.path for one in gone))
        added = new.finish(0.0, {})
        self.metadata, self.listed = added.metadata, added.manifests
        number = self.metadata.default_spec_id
        lost = {one.path for one in gone}
        self.live = {path: one for path, one in self.live.items() if path not in lost} | {one.path: one for one in came}
        self.places |= {one.path: (number, self.shape.place(one, types[number])) for one in came}

    def read(self):
        """Return the partition of each live file, as pyiceberg reads it."""
        found = {}
        for listed in self.listed:
            for entry in listed.manifest.fetch_manifest_entry(self.files) if count_live(listed.manifest) else ():
                found[entry.data_file.file_path] = (listed.manifest.partition_spec_id, entry.data_file.partition)
        return found

    def expected(self):
        return {path: self.places[path] for path in self.live}


def check_never_missed(table):
    """Each file alone: the manifest that holds it is among those that are opened to remove it."""
    manifests = [one.manifest for one in table.listed if count_live(one.manifest)]
    inside = {entry.data_file.file_path: one for one in manifests for entry in one.fetch_manifest_entry(table.files)}
    for path, one in table.live.items():
        assert inside[path] in list_holding(manifests, [one], table.shape, partition_types(table.metadata))


def some(data, table):
    """Return some of the table's files."""
    known = sorted(table.live)
    return [table.live[path] for path in data.draw(st.lists(st.sampled_from(known), unique=True))] if known else []


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_the_partitions_no_file_that_is_removed_is_missed(data):
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), unique=True, max_size=3))
    cells = st.tuples(*(st.none() | KINDS[name][1] for name in names))
    table = Manifests(names)
    for _ in range(data.draw(st.integers(1, 14))):
        table.commit(data.draw(st.lists(cells, max_size=4)), some(data, table))
        assert table.read() == table.expected()
        check_never_missed(table)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_files_of_several_specs_are_in_manifests_of_their_own(data):
    table = Manifests([])
    with patch.object(manifest_plan, "FAN", 2):
        for _ in range(data.draw(st.integers(2, 8))):
            names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), unique=True, max_size=2))
            cells = st.tuples(*(st.none() | KINDS[name][1] for name in names))
            table.commit(data.draw(st.lists(cells, max_size=3)), some(data, table), names)
            assert table.read() == table.expected()
            check_never_missed(table)


def test_small_manifests_of_two_specs_are_not_merged():
    table = Manifests([])
    with patch.object(manifest_plan, "FAN", 2):
        table.commit([()], [])
        table.commit([("a",)], [], ["text"])
        assert len(table.listed) == 2
        assert list_to_merge(one.manifest for one in table.listed) == []
        table.commit([("a",)], [])
        merged = list_to_merge(one.manifest for one in table.listed)
        assert [one.partition_spec_id for one in merged] == [1, 1]


def test_bounds_leave_out_manifests_that_can_not_hold_a_file():
    table = Manifests(["text", "day"])
    for text in ("a", "b", None):
        table.commit([(text, "2026-11-21"), (text, None)], [])
    types = partition_types(table.metadata)

    def opened(*cells):
        one = table.record(cells)
        unbounded = Stored(**{name: getattr(one, name) for name in one.__struct_fields__} | {"first": 0})
        manifests = [listed.manifest for listed in table.listed]
        return len(list_holding(manifests, [unbounded], table.shape, types))

    table.listed = [
        type(one)(_with_path(one.manifest, "memory://table/any-m.avro"), one.encoded) for one in table.listed
    ]
    assert opened("a", "2026-11-21") == opened("a", None) == opened(None, None) == 1
    assert opened("c", None) == opened("a", "2026-11-22") == opened("", None) == 0
    assert opened("a") == opened(1, 2) == 3


def _with_path(manifest, path):
    """Return a manifest whose name does not say which files it has."""
    values = list(manifest._data)
    values[0] = path
    return type(manifest)(*values)


def test_a_decimal_has_the_digits_of_its_column():
    table = Manifests(["price"])
    one = table.record(["1.5"])
    types = partition_types(table.metadata)[0]
    assert str(table.shape.place(one, types)[0]) == "1.5000"
    assert table.shape.place(table.record([3]), types)[0] == Decimal(3)
    assert table.shape.place(table.record(["1.50001"]), types) is None
    assert table.shape.place(table.record(["many"]), types) is None
