"""Rows with a key: the last one stays, whenever it arrives; a key is there once, and never null."""

import random

import pytest
from derivations import Table, messages, part
from spark_blocks import parquet_block, row

from capture.errors import PipelineError
from capture.pipelines.upkeep import Upkeep

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("size_of_run"), pytest.mark.asyncio(loop_scope="session")]

ROWS = {"schema": "k STRING, v INT, items ARRAY<STRING>", "key": ["k"]}


def body(key, value, **more):
    return {"k": key, "v": value, **more}


@pytest.mark.long
async def test_the_row_of_the_highest_sequence_stays_whenever_it_arrives(driver, store):
    chance = random.Random(3)
    numbers = [list(range(101, 160)), list(range(1, 60)), list(range(60, 101)), list(range(160, 200))]
    chance.shuffle(numbers)
    table, last = Table(driver, store, "SELECT k, v, sequence AS at FROM S WHERE v >= 0", **ROWS), {}
    for at, some in enumerate(numbers):
        bodies = {number: body(f"k{chance.randrange(30)}", chance.randrange(1000)) for number in some}
        done = await table.run([messages(store, f"b{at}", bodies)])
        assert (done.rows_in, {one.unit.bucket for one in done.came}) == (len(some), {0, 1, 2})
        for number, one in bodies.items():
            last[one["k"]] = max(last.get(one["k"], (0,)), (number, one["v"]))
        assert table.read() == [{"k": k, "v": v, "at": at} for k, (at, v) in sorted(last.items())]
    assert table.types() == {"k": "string", "v": "int32", "at": "int64"}


@pytest.mark.long
async def test_an_upsert_reads_and_writes_only_the_units_of_its_keys(driver, store):
    table = Table(driver, store, "SELECT k, v, day FROM S", key=["k", "day"], partition=["day"],
                  schema="k STRING, v INT, day DATE")  # fmt: skip
    days = ["2026-01-01", "2026-01-02"]
    await table.run([messages(store, "a", {n: {"k": f"k{n}", "v": n, "day": days[n % 2]} for n in range(1, 41)})])
    assert {one.unit.partition[0] for one in table.files} == {"2026-01-01", "2026-01-02"}
    before = {one.path for one in table.files}
    done = await table.run([messages(store, "b", {50: {"k": "k2", "v": 50, "day": "2026-01-01"}})])
    assert len(done.came) == len(done.gone) == 1
    assert done.came[0].unit.partition == ["2026-01-01"]
    assert set(done.gone) < before
    assert [one["v"] for one in table.read() if one["k"] == "k2"] == [50]
    assert len(table.read()) == 40


@pytest.mark.long
async def test_partitions_of_any_kind_have_names_that_stay_the_same(driver, store):
    query = """
    SELECT k, v, timestamp '2026-01-01 05:00:00' + make_interval(0, 0, 0, 0, v) AS at, cast(v AS DECIMAL(5,1)) AS d,
    v > 1 AS big FROM S
    """
    key = ["k", "at", "d", "big"]
    table = Table(driver, store, query, schema=ROWS["schema"], key=key, partition=key[1:])
    for number in (1, 2):
        await table.run([messages(store, f"b{number}", {number: body("a", 1), number + 10: body("a", 2)})])
    assert sorted(one.unit.partition for one in table.files) == [
        ["2026-01-01T06:00:00+00:00", "1.0", False],
        ["2026-01-01T07:00:00+00:00", "2.0", True],
    ]


@pytest.mark.long
async def test_sequences_that_an_object_has_twice_or_that_are_not_given_count_once_or_not(driver, store):
    rows = [row(n, stream="S", payload=b'{"k": "a", "v": 1}') for n in (1, 2, 2, 3, 1, 4)]
    table = Table(driver, store, "SELECT k, sum(v) AS n FROM S GROUP BY k", **ROWS)
    done = await table.run([part(parquet_block(store, "twice", rows), [1, 2, 4])])
    assert (done.rows_in, table.read()) == (3, [{"k": "a", "n": 3}])


@pytest.mark.long
@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT k, v FROM S", r"^pipeline p: k, of its key, is null in a row \(for example where __sequence = 2\)"),
        ("SELECT k, sum(v) AS v FROM S GROUP BY k", "^pipeline p: k, of its key, is null"),
        ("SELECT k, count(DISTINCT v) AS v FROM S GROUP BY k", "^pipeline p: k, of its key, is null"),
    ],
)
async def test_a_key_that_is_null_fails_the_run(driver, store, query, said):
    block = messages(store, "a", {1: body("a", 1), 2: body(None, 2)})
    table = Table(driver, store, query, **ROWS)
    with pytest.raises(PipelineError, match=said):
        await table.run([block], [block])


@pytest.mark.long
@pytest.mark.parametrize("aggregate", ["sum(v)", "count(DISTINCT v)"])
async def test_a_key_that_is_null_only_in_messages_that_where_leaves_out_is_none(driver, store, aggregate):
    query = f"SELECT k, {aggregate} AS n FROM S WHERE v IS NOT NULL GROUP BY k"
    table = Table(driver, store, query, **ROWS)
    first = messages(store, "a", {1: body("a", 1), 2: b""})
    await table.run([first], [first])
    second = messages(store, "b", {3: b"", 4: body("b", 1), 5: body("a", 1)})
    await table.run([second], [first, second])
    third = messages(store, "c", {6: b""})
    await table.run([third], [first, second, third])
    assert table.read() == [{"k": "a", "n": 2 if aggregate == "sum(v)" else 1}, {"k": "b", "n": 1}]


@pytest.mark.long
async def test_a_key_that_is_null_fails_a_computation_of_everything(driver, store):
    block = messages(store, "a", {1: body("a", 1), 2: body(None, 2)})
    table = Table(driver, store, "SELECT k, v FROM S ORDER BY v", **ROWS)
    assert table.upkeep is Upkeep.WHOLE
    with pytest.raises(PipelineError, match=r"^pipeline p: k, of its key, is null in a row of its result"):
        await table.run([block], [block])


@pytest.mark.long
@pytest.mark.parametrize(
    ("query", "settings", "said"),
    [
        ("SELECT explode(items) AS i, k FROM S", {}, "one message"),
        ("SELECT k, v FROM S", {"upkeep": Upkeep.WHOLE}, "its result"),
        ("SELECT k, upper(k) AS u, count(DISTINCT v) AS v FROM S GROUP BY 1, 2", {"key": ["u"]}, "its result"),
    ],
)
async def test_a_key_that_is_not_unique_fails_the_run(driver, store, query, settings, said):
    bodies = {1: body("A", 1, items=["x", "y"]), 2: body("A", 2, items=[]), 3: body("a", 3)}
    block = messages(store, "a", bodies)
    match = rf"^pipeline p: its key is not unique: \w = A is in several rows of {said}"
    with pytest.raises(PipelineError, match=match) as caught:
        await Table(driver, store, query, **{**ROWS, **settings}).run([block], [block])
    assert "== Physical Plan ==" in caught.value.plan


# --- the last message of each key ------------------------------------------------------------------------------------

LATEST = {"upkeep": Upkeep.ROWS, "latest": "split_part(subject, '.', 2)", "key": ["name"]}


def bucket(store, name, *entries, stream="S"):
    """Messages of a bucket: sequence, key, payload, headers."""
    rows = [
        row(number, stream=stream, subject=f"$KV.{key}", payload=payload, headers=headers or None)
        for number, key, payload, headers in entries
    ]
    return parquet_block(store, name, rows)


def state(table):
    return {one["name"]: bytes(one["payload"]).decode() for one in table.read()}


@pytest.mark.long
async def test_a_message_that_deletes_its_key_leaves_a_tombstone_that_late_messages_do_not_pass(driver, store):
    table = Table(driver, store, **LATEST)
    named = [("KV-Operation", "DEL"), ("KV-Operation", "PURGE"), ("Nats-Marker-Reason", "MaxAge")]
    delete, purge, marker = ([(name, [value])] for name, value in named)
    keys = ("a", "b", "c", "d", "e")
    await table.run([bucket(store, "1", *((10 + at, key, b"1", []) for at, key in enumerate(keys)))])
    assert state(table) == dict.fromkeys(keys, "1")
    assert list(table.types())[:3] == ["name", "stream", "sequence"]
    gone = [(20, "a", b"x", delete), (21, "b", b"x", purge), (22, "c", b"x", marker), (23, "d", b"", [])]
    await table.run([bucket(store, "2", *gone[:3], stream="KV_S"), bucket(store, "empty", gone[3])])
    assert state(table) == {"e": "1"}
    assert {one["name"]: one["__sequence"] for one in table.read(hidden=True, tombstones=True)} == {
        "a": 20, "b": 21, "c": 22, "d": 23
    }  # fmt: skip
    await table.run([bucket(store, "3", (15, "a", b"late", []), (5, "e", b"late", []), (19, "f", b"new", []))])
    assert state(table) == {"e": "1", "f": "new"}
    await table.run([bucket(store, "4", (30, "a", b"again", []), (24, "d", b"again", []), (18, "f", b"", []))])
    assert state(table) == {"a": "again", "d": "again", "e": "1", "f": "new"}
    assert {one["name"] for one in table.read(tombstones=True)} == {"b", "c"}


@pytest.mark.long
async def test_an_empty_value_of_a_bucket_is_a_value(driver, store):
    table = Table(driver, store, **LATEST)
    delete = [("KV-Operation", ["DEL"])]
    entries = [(1, "a", b"1", []), (2, "b", b"1", []), (3, "a", b"", []), (4, "b", b"", delete)]
    await table.run([bucket(store, "1", *entries, stream="KV_S")])
    assert state(table) == {"a": ""}


@pytest.mark.long
async def test_headers_of_a_bucket_mean_nothing_in_another_stream(driver, store):
    table = Table(driver, store, **LATEST)
    delete, marker = [("KV-Operation", ["DEL"])], [("Nats-Marker-Reason", ["MaxAge"])]
    await table.run([bucket(store, "1", (1, "a", b"1", delete), (2, "b", b"2", marker), (3, "c", b"", []))])
    assert state(table) == {"a": "1", "b": "2"}


@pytest.mark.long
async def test_the_key_may_be_a_field_of_the_payload_and_a_deletion_without_one_is_left_out(driver, store):
    table = Table(driver, store, schema="name STRING, v INT", **{**LATEST, "latest": "name"})
    await table.run([messages(store, "1", {1: {"name": "a", "v": 1}, 2: b"", 3: {"name": "a", "v": 2}})])
    assert [(one["name"], one["v"], one["sequence"]) for one in table.read()] == [("a", 2, 3)]
    assert next(iter(table.types())) == "name"
    await table.run([messages(store, "2", {5: {"v": 3}, 6: b"not JSON", 7: {"name": "b", "v": 4}})])
    assert [(one["name"], one["sequence"]) for one in table.read()] == [("a", 3), ("b", 7)]
