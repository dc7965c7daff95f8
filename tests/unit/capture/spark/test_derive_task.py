"""How rows become the files of a pipeline's table, in a task of Spark: here without Spark."""

import math

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.spark import derive_task
from capture.spark.derive_store import Uploads
from capture.spark.derive_task import DEAD, NEW, UNIT, VIOLATED, Fact, Writing, write_units
from capture.stores import FileStore

COLUMNS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("__sequence", pa.int64())])


def batch(*rows, unit=0, key_type=None):
    """Rows of key, value, order; new ones that live."""
    keys, values, orders = zip(*rows, strict=True)
    count = len(rows)
    return pa.RecordBatch.from_pydict({
        "k": pa.array(keys, key_type or pa.string()), "v": pa.array(values, pa.int64()),
        "__sequence": pa.array(orders, pa.int64()), NEW: pa.array([True] * count), DEAD: pa.array([False] * count),
        UNIT: pa.array([unit] * count, pa.int32()),
    })  # fmt: skip


@pytest.fixture
def write(tmp_path):
    def run(*batches, **settings):
        settings = {"columns": COLUMNS, "key": ["k"], "unique": "last", **settings}
        writing = Writing(store=str(tmp_path), folder="table/p/1/", **settings)
        [said] = write_units(writing, iter(batches))
        return [msgspec.json.decode(one, type=Fact) for one in said["facts"].to_pylist()]

    return run


def rows_of(tmp_path, facts):
    files = [one.file for one in facts if one.file]
    return [tuple(row.values()) for one in files for row in pq.read_table(tmp_path / one.path).to_pylist()]


def test_the_first_row_of_a_key_is_written_also_if_a_batch_ends_in_between(write, tmp_path):
    facts = write(batch(("a", 3, 3), ("b", 9, 9)), batch(("b", 8, 8), ("c", 7, 7)), batch(("c", 6, 6)))
    assert rows_of(tmp_path, facts) == [("a", 3, 3), ("b", 9, 9), ("c", 7, 7)]
    assert [(one.file.rows, one.file.unit.bucket) for one in facts] == [(3, 0)]


@pytest.mark.parametrize("parts", [[2], [1, 1]], ids=["in a batch", "over two"])
def test_two_new_rows_of_one_message_are_a_fault(write, parts):
    rows = [("a", 1, 5), ("a", 2, 5)]
    batches = [batch(*rows)] if parts == [2] else [batch(one) for one in rows]
    [fact] = write(*batches)
    assert fact.error == "its key is not unique: k = a is in several rows of one message (__sequence 5)"


def test_keys_that_are_null_or_not_a_number_are_equal_to_themselves(write, tmp_path):
    floats = pa.schema([("k", pa.float64()), *list(COLUMNS)[1:]])
    rows = [(None, 2, 2), (None, 1, 1), (1.0, 3, 3), (math.nan, 5, 5), (math.nan, 4, 4)]
    facts = write(batch(*rows, key_type=pa.float64()), columns=floats)
    assert [one[1] for one in rows_of(tmp_path, facts)] == [2, 3, 5]


def test_each_unit_has_its_files_and_a_large_one_several(write, tmp_path, monkeypatch):
    monkeypatch.setattr(derive_task, "FILE_BYTES", 1)
    facts = write(*(batch((f"k{at}", at, at), unit=at // 2) for at in range(6)))
    assert [one.file.unit.bucket for one in facts] == [0, 0, 1, 1, 2, 2]
    assert len({one.file.path for one in facts}) == 6
    assert [one[1] for one in rows_of(tmp_path, facts)] == list(range(6))


def test_a_row_that_is_null_in_its_key_is_a_fault(write):
    [fact] = write(batch((None, 1, 1)), required=["k"])
    assert fact.error == "k, of its key, is null in a row of its result: leave such rows out by WHERE"


def test_a_row_that_violates_a_condition_does_not_hide_one_that_does_not(write, tmp_path):
    rows = batch(("a", 2, 2), ("a", 1, 1), ("b", 3, 3))
    violated = pa.array([[0], None, [0, 1]], pa.list_(pa.int32()))
    settings = {"conditions": ["v < 2", "v < 3"], "on_violation": "quarantine"}
    facts = write(rows.append_column(VIOLATED, violated), **settings)
    kept, quarantined = ([one for one in facts if one.file and one.quarantined is which] for which in (False, True))
    assert rows_of(tmp_path, kept) == [("a", 1, 1)]
    assert rows_of(tmp_path, quarantined) == [("a", 2, "v < 2"), ("b", 3, "v < 2")]
    assert [one.violations for one in facts if one.violations] == [{0: 2, 1: 1}]


def test_files_that_are_stored_at_once_are_all_durable_at_the_end(tmp_path):
    uploads = Uploads(FileStore(tmp_path))
    for at in range(40):
        uploads.put(f"x/{at}", b"y" * 10)
    uploads.finish()
    uploads.close()
    assert len(list((tmp_path / "x").iterdir())) == 40
    assert repr(uploads) == "Uploads(0 waiting)"
