"""The columns of a pipeline's table: which types it may have, and how they change from run to run."""

import pyarrow as pa
import pytest
from derivations import Table, messages, part

from capture.errors import PipelineError
from capture.maintenance.merge.schema_evolution import write_columns
from capture.pipelines.derivation import Input
from capture.pipelines.upkeep import Upkeep

LONG_FOR_EACH_SIZE = [pytest.mark.spark, pytest.mark.long, pytest.mark.usefixtures("size_of_run")]
pytestmark = [*LONG_FOR_EACH_SIZE, pytest.mark.asyncio(loop_scope="session")]

BODY = {"k": "a", "v": 1, "s": {"x": 1}}
SCHEMA = "k STRING, v INT, s STRUCT<x: INT>"


@pytest.fixture
def block(store):
    return messages(store, "a", {1: BODY})


async def test_values_have_the_types_that_spark_and_iceberg_share(driver, store, block):
    query = """
    SELECT cast(v AS TINYINT) AS i, cast(v AS FLOAT) AS f, cast(v AS DECIMAL(5,2)) AS d, time AS t, date(time) AS day,
    timestamp_ntz '2026-01-01 00:00:00' AS local, array(s) AS a, map('x', v) AS m, payload AS b, true AS yes,
    named_struct('i', cast(v AS SMALLINT)) AS n, cast('x' AS CHAR(3)) AS c FROM S
    """
    table = Table(driver, store, query, schema=SCHEMA)
    await table.run([block])
    assert table.types() == {
        "i": "int32", "f": "float", "d": "decimal128(5, 2)", "t": "timestamp[us, tz=UTC]", "day": "date32[day]",
        "local": "timestamp[us]", "a": "list<item: struct<x: int32>>", "m": "map<string, int32>", "b": "binary",
        "yes": "bool", "n": "struct<i: int32>", "c": "string",
    }  # fmt: skip
    [found] = table.read()
    assert (found["i"], found["n"], found["a"], dict(found["m"])) == (1, {"i": 1}, [{"x": 1}], {"x": 1})


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT k, null AS nothing FROM S", "the column nothing is of type void"),
        ("SELECT k, array(null) AS none FROM S", "the column none is of type array<void>"),
        ("SELECT k, interval 1 month AS long FROM S", "the column long is of type interval month"),
        ("SELECT k, time - timestamp_micros(0) AS long FROM S", "the column long is of type interval day to second"),
        ("SELECT *, v AS K FROM S", r"its result has the column \w twice \(case is ignored\)"),
        ("SELECT k, wrong FROM S", r".*`wrong` cannot be resolved"),
        ("SELECT k, nofunction(v) AS n FROM S", r".*`nofunction`"),
        ("SELECT k, 1 / (v - v) AS n FROM S", "Division by zero"),
    ],
)
async def test_a_result_that_can_t_be_stored_is_one_sentence(driver, store, block, query, said):
    with pytest.raises(PipelineError, match=rf"^pipeline p: {said}[^\n]*$"):
        await Table(driver, store, query, schema=SCHEMA).run([block])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"key": ["w"]}, "its result has no column w, which is its key: k, s"),
        ({"key": ["s"]}, "its key s is struct<x:int>: use a number"),
        ({"key": ["k", "s"], "partition": ["s"]}, "its key s is struct"),
        ({"partition": ["s"]}, "its partition s is struct"),
    ],
)
async def test_a_column_that_can_t_be_a_key_or_a_partition_is_named(driver, store, block, settings, said):
    with pytest.raises(PipelineError, match=rf"^pipeline p: {said}"):
        await Table(driver, store, "SELECT k, s FROM S", schema=SCHEMA, **settings).run([block])


async def test_columns_are_added_and_widened_and_kept_when_they_are_missing(driver, store, block):
    table = Table(driver, store, "SELECT * FROM S", schema=SCHEMA, key=["k"], buckets=1)
    await table.run([block], sql="SELECT k, v, s, cast(1.5 AS DECIMAL(5,2)) AS d FROM S")
    table.schema = "k STRING, v BIGINT, s STRUCT<y: STRING, x: INT>, w DATE"
    await table.run(
        [messages(store, "b", {2: {"k": "b", "v": 2**40, "s": {"x": 2, "y": "z"}, "w": "2026-01-01"}})],
        sql="SELECT w, K, v, s, cast(2.5 AS DECIMAL(9,2)) AS d FROM S",
    )
    assert table.types() == {
        "k": "string", "v": "int64", "s": "struct<x: int32, y: string>", "d": "decimal128(9, 2)", "w": "date32[day]"
    }  # fmt: skip
    table.schema = SCHEMA
    await table.run([messages(store, "c", {3: {"k": "c", "v": 3, "s": None}})], sql="SELECT k, v, s FROM S")
    rows = [(one["k"], one["v"], one["s"], str(one["d"]), str(one["w"])) for one in table.read()]
    assert rows == [
        ("a", 1, {"x": 1, "y": None}, "1.50", "None"),
        ("b", 2**40, {"x": 2, "y": "z"}, "2.50", "2026-01-01"),
        ("c", 3, None, "None", "None"),
    ]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT k, cast(v AS STRING) AS v FROM S", "the column v is now string and was int: CAST it"),
        ("SELECT v AS k, v FROM S", "k, of its key or partition, is now int and was string"),
    ],
)
async def test_a_type_that_does_not_fit_the_table_says_what_to_do(driver, store, block, query, said):
    table = Table(driver, store, "SELECT k, v FROM S", schema=SCHEMA, key=["k"])
    await table.run([block])
    with pytest.raises(PipelineError, match=rf"^pipeline p: {said}.*capture pipeline rerun"):
        await table.run([messages(store, "b", {2: BODY})], sql=query)


async def test_a_run_without_new_messages_changes_nothing(driver, store, block):
    table = Table(driver, store, "SELECT k, v FROM S", schema=SCHEMA, key=["k"])
    await table.run([block])
    done = await table.run([])
    assert (done.came, done.gone, done.columns, done.rows_in) == ([], [], table.columns, 0)
    whole = Table(driver, store, "SELECT k, v FROM S", schema=SCHEMA, upkeep=Upkeep.WHOLE)
    await whole.run([], [block])
    assert whole.read() == [{"k": "a", "v": 1}]
    await whole.run([], [])
    assert whole.files == []


async def test_a_typed_column_that_no_new_object_has_is_null(driver, store, block):
    typed = write_columns(pa.schema([("v", pa.int64())]))
    table = Table(driver, store, "SELECT sequence, v FROM S")
    await table.run([], inputs={"S": Input(store=store.as_uri(), new=[part(block)], typed=typed)})
    assert table.read() == [{"sequence": 1, "v": None}]
