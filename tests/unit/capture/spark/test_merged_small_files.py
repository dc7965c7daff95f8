"""Spark's driver merges small files of a table: within its time and memory, and no file stops others."""

import hashlib
from itertools import count

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.maintenance.merge.schema_evolution import write_columns
from capture.pipelines.derivation import OutputFile, Packing, Unit
from capture.pipelines.document import record_of
from capture.pipelines.packing import TARGET_BYTES
from capture.spark import derive_pack
from capture.spark.derive_pack import pack

COLUMNS = pa.schema([("n", pa.int64()), ("text", pa.string()), ("part", pa.string())])
MIB = 1 << 20


class Files:
    """The small files of a table."""

    def __init__(self, folder):
        self.folder = folder
        self.runs = count(1)

    def write(self, rows, *, part="a"):
        """Write a file of the next run; return its record."""
        run = next(self.runs)
        path = self.folder / f"table/t/{run}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.append_column("part", pa.array([part] * len(rows), pa.string())), path, compression="zstd")
        data = path.read_bytes()
        made = OutputFile(
            path=f"table/t/{run}.parquet",
            unit=Unit(partition=[part]),
            rows=len(rows),
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        return record_of(made, "t", run)

    def few(self, number=3, **options):
        return [self.write(pa.table({"n": [run], "text": [f"row {run}"]}), **options) for run in range(number)]

    def wide(self, size, rows=100):
        """Write a file that is small, and has so many bytes when it is decoded."""
        texts = [f"{row} " + "x" * (size // rows) for row in range(rows)]
        record = self.write(pa.table({"n": range(rows), "text": texts}))
        assert record.bytes < MIB
        return record

    def pack(self, *packs, **options):
        asked = Packing(
            table="t",
            store=self.folder.as_uri(),
            folder="table/t/merged/",
            columns=write_columns(COLUMNS),
            partition=["part"],
            packs=[*packs],
            **options,
        )
        return pack(asked).units

    def read(self, unit):
        return [row for one in unit.came for row in pq.read_table(self.folder / one.path).to_pylist()]


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def paths(records):
    return [one.path for one in records]


def test_rows_keep_the_numbers_of_their_runs(files):
    small = files.few()
    [unit] = files.pack(small)
    assert unit.gone == paths(small)
    assert [(row["n"], row["text"], row["__sequence"]) for row in files.read(unit)] == [
        (run, f"row {run}", run + 1) for run in range(3)
    ]


def test_a_damaged_file_stays_and_the_others_of_its_unit_are_merged(files):
    damaged, *sound = small = files.few(4)
    path = files.folder / damaged.path
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    [unit] = files.pack(small)
    assert unit.gone == paths(sound)
    assert [row["n"] for row in files.read(unit)] == [1, 2, 3]
    assert unit.refused == {damaged.path: f"{damaged.path} was changed: its SHA-256 is not the recorded one"}


def test_a_file_that_is_not_there_stops_only_its_unit(files):
    lost, other = files.few(), files.few(part="b")
    (files.folder / lost[1].path).unlink()
    first, second = files.pack(lost, other)
    assert (first.came, first.gone) == ([], [])
    assert lost[1].path in first.failed
    assert second.gone == paths(other)
    assert [row["part"] for row in files.read(second)] == ["b"] * 3


def test_a_record_with_other_rows_than_its_file_stops_its_unit(files):
    small = files.few()
    half = files.write(pa.table({"n": [7, 8], "text": ["x", "y"]}))
    [unit] = files.pack(
        [
            *small,
            record_of(
                OutputFile(path=half.path, unit=Unit(partition=["a"]), rows=1, bytes=half.bytes, sha256=half.sha256),
                "t",
                half.first,
            ),
        ]
    )
    assert unit.came == []
    assert unit.failed == "its files have 4 rows by their records, and 5 were found"


@pytest.mark.parametrize(
    ("strange", "why"),
    [
        (pa.table({"n": [5], "lost": ["value"]}), "has the column lost, which its table does not have"),
        (pa.table({"n": ["12"]}), "has the column n of type string, and its table of int64"),
        (pa.table({"n": [1.0]}), "has the column n of type double, and its table of int64"),
        (pa.table({"n": [1], "text": [3]}), "has the column text of type int64, and its table of string"),
    ],
)
def test_a_file_with_other_columns_than_its_table_stays(files, strange, why):
    small = [*files.few(), files.write(strange)]
    [unit] = files.pack(small)
    assert unit.gone == paths(small[:-1])
    assert unit.refused[small[-1].path].endswith(why)


def test_a_narrower_type_and_a_missing_column_fit(files):
    small = [*files.few(), files.write(pa.table({"n": pa.array([9], pa.int32())}))]
    [unit] = files.pack(small)
    assert unit.gone == paths(small)
    assert files.read(unit)[-1] == {"n": 9, "text": None, "part": "a", "__sequence": 4}


@pytest.mark.long
def test_files_that_are_large_when_they_are_decoded_stay_and_others_are_merged_up_to_a_size(files):
    large = files.wide(40 * MIB)
    small = [files.wide(20 * MIB) for _ in range(5)]
    [unit] = files.pack([large, *small])
    assert unit.large == [large.path]
    assert unit.gone == paths(small[:3])
    assert sum(one.rows for one in unit.came) == 300
    [unit] = files.pack([large, small[0], files.wide(40 * MIB)])
    assert (unit.came, unit.gone, unit.failed, len(unit.large)) == ([], [], "", 2)


def test_a_merge_holds_few_of_the_rows_that_it_reads(files, monkeypatch):
    monkeypatch.setattr(derive_pack, "GROUP_BYTES", 4 * MIB)
    small = [files.wide(TARGET_BYTES // 2 - MIB, rows=5000) for _ in range(2)]
    before, held = pa.total_allocated_bytes(), []
    under = derive_pack.bring_under

    def look(*args):
        held.append(pa.total_allocated_bytes() - before)
        return under(*args)

    monkeypatch.setattr(derive_pack, "bring_under", look)
    [unit] = files.pack(small)
    assert unit.gone == paths(small)
    assert max(held) < 32 * MIB


def test_when_the_time_is_over_what_was_read_is_merged_and_no_further_file_is_begun(files, monkeypatch):
    packs = [files.few(part=part) for part in "abc"]
    seconds, read = 0.0, derive_pack.bring_under

    def read_slowly(*args):
        nonlocal seconds
        seconds += 2.0
        return read(*args)

    monkeypatch.setattr(derive_pack, "now", lambda: seconds)
    monkeypatch.setattr(derive_pack, "bring_under", read_slowly)
    first, second = files.pack(*packs, seconds=10)
    assert first.gone == paths(packs[0])
    assert second.gone == paths(packs[1][:2])
    assert [row["part"] for row in files.read(first) + files.read(second)] == ["a"] * 3 + ["b"] * 2
    [first] = files.pack(*packs, seconds=8)
    assert first.gone == paths(packs[0])
    [first] = files.pack(*packs, seconds=1)
    assert (first.came, first.gone, first.failed) == ([], [], "it took longer than 1 s")
    [first] = files.pack([*packs[0], files.wide(30 * MIB, rows=500)], seconds=7)
    assert (first.came, first.gone, first.failed) == ([], [], "it took longer than 7 s")
