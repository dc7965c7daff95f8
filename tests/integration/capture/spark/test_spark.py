import hashlib
import os
import re
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spark_blocks import HOUR, STARTED, group, parquet_block, row, rows_of, stored, write_parquet

from capture.archive.sequences import Sequences
from capture.errors import SparkError
from capture.formats.envelope import SCHEMA
from capture.formats.ndjson import NdjsonWriter
from capture.ingest.block import SealedBlock
from capture.ingest.record import Records
from capture.maintenance.merge.schema_evolution import OWN
from capture.spark import View
from capture.spark.protocol import SMALL_BYTES

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture(params=["together", "alone"])
def merge(request, driver, store):
    """Merge groups in one job, or each in a job of its own."""
    small_bytes = SMALL_BYTES if request.param == "together" else 0
    return lambda *groups: driver.merge(store.as_uri(), groups, small_bytes=small_bytes)


async def test_duplicates_within_and_across_blocks_are_written_once_and_sorted(merge, store):
    shapes = {
        1: {"headers": [("Colour", ["red", "blue"]), ("Empty", [""])]},
        2: {"payload": bytes(range(256))},
        3: {"payload": b"", "headers": []},
        4: {"error": "cut off", "payload": "ä".encode()},
        5: {"payload": b"\xff" * 300_000},
    }
    rows = {number: row(number, **shapes.get(number, {})) for number in [*range(1, 1001), 2**53 + 1]}
    one = parquet_block(store, "one", [rows[n] for n in [2**53 + 1, 700, *range(500, 0, -1), 7, 7]])
    two = parquet_block(store, "two", [rows[n] for n in [*range(400, 1001), 3]])

    [merged] = await merge(group(one, two))

    assert rows_of(store, merged.outputs[0].path) == [rows[number] for number in sorted(rows)]
    assert (merged.rows_in, merged.duplicates) == (504 + 602, 504 + 602 - 1001)
    data = (store / merged.outputs[0].path).read_bytes()
    assert (merged.outputs[0].bytes, merged.outputs[0].sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert (merged.outputs[0].first, merged.outputs[0].last, merged.outputs[0].count) == (1, 2**53 + 1, 1001)
    assert Sequences.from_bytes(merged.outputs[0].sequences) == Sequences.from_iterable(rows)
    assert merged.outputs[0].stored_ns > STARTED


async def test_the_table_file_says_what_it_is(merge, store):
    block = parquet_block(store, "one", [row(number) for number in (3, 1, 2)])
    [merged] = await merge(group(block))
    file = pq.ParquetFile(store / merged.outputs[0].path)
    assert file.schema_arrow.remove_metadata().equals(pa.schema([*SCHEMA, *OWN]))
    own = {"key": "a/b", "interval": datetime.fromtimestamp(HOUR, UTC)}
    assert file.read(columns=OWN.names).to_pylist() == [own] * 3
    assert file.metadata.row_group(0).sorting_columns == (pq.SortingColumn(SCHEMA.names.index("sequence")),)
    facts = {name.decode(): value.decode() for name, value in file.metadata.metadata.items()}
    assert {name: facts[f"capture.{name}"] for name in ("version", "stream", "first", "last", "count")} == {
        "version": "1", "stream": "FLIGHTS", "first": "1", "last": "3", "count": "3",
    }  # fmt: skip


async def test_the_first_delivery_of_a_message_is_the_one_that_is_kept(merge, store):
    again = parquet_block(store, "again", [row(1, deliveries=3), row(2, deliveries=1)])
    before = parquet_block(store, "before", [row(1, deliveries=2), row(2, deliveries=2)])
    [merged] = await merge(group(again, before))
    assert [one["deliveries"] for one in rows_of(store, merged.outputs[0].path)] == [2, 1]


async def test_excluded_sequences_are_left_out(merge, store):
    block = parquet_block(store, "one", [row(number) for number in (1, 2, 3, 3, 4, 5)])
    [merged] = await merge(group(block, exclude=(1, 3, 99)))
    assert [one["sequence"] for one in rows_of(store, merged.outputs[0].path)] == [2, 4, 5]
    assert (merged.rows_in, merged.duplicates, merged.outputs[0].count) == (6, 3, 3)


async def test_nothing_is_written_when_nothing_is_left(merge, store):
    block = parquet_block(store, "one", [row(1), row(2), row(2)])
    wanted = group(block, exclude=(1, 2))
    [merged] = await merge(wanted)
    assert (merged.outputs, merged.rows_in, merged.duplicates) == ([], 3, 3)
    assert not (store / wanted.output).exists()


async def test_ndjson_and_parquet_blocks_mix_under_any_name(merge, store):
    stream = "A[1]{x,y} ä"
    headers = b"NATS/1.0\r\nNats-Msg-Id: id-1\r\nB: 1\r\nB: 2\r\n\r\n"
    records = Records(
        stream=stream,
        sequences=[1, 3],
        times_ns=[STARTED + 1, STARTED + 3],
        subjects=[b"flights.1", b"flights.3"],
        header_blocks=[headers, b""],
        payloads=["text\n\u2028ä\0".encode(), b"\xff\xfe\0"],
        deliveries=[1, 2],
        replies=[b"", b""],
        values=[None, None],
        errors={1: "not JSON"},
    )
    data = NdjsonWriter().write(SealedBlock(stream, "a/b", HOUR, records, "stop"))
    lines = [row(1, stream=stream), row(3, stream=stream)]
    text = stored(store, f"blocks/stream={stream}/1.ndjson", lines, lambda file: file.write_bytes(data))
    binary = parquet_block(store, "2", [row(2, stream=stream)])

    [merged] = await merge(group(text, binary))

    assert rows_of(store, merged.outputs[0].path) == [
        row(
            1,
            stream=stream,
            payload="text\n\u2028ä\0".encode(),
            headers=[("Nats-Msg-Id", ["id-1"]), ("B", ["1", "2"])],
            header_block=headers,
        ),
        row(2, stream=stream),
        row(3, stream=stream, payload=b"\xff\xfe\0", deliveries=2, error="not JSON"),
    ]


async def test_groups_are_answered_in_their_order(driver, store):
    blocks = [parquet_block(store, str(n), [row(10 * n + m) for m in range(n + 1)]) for n in range(4)]
    wanted = [group(block, output=f"table/{number}.parquet") for number, block in enumerate(blocks)]
    merged = await driver.merge(str(store), wanted, small_bytes=0)
    found = [(one.outputs[0].path, one.outputs[0].count) for one in merged]
    assert found == [(f"table/{n}.parquet", n + 1) for n in range(4)]


async def test_an_object_that_exists_is_not_touched(merge, store):
    block = parquet_block(store, "one", [row(1)])
    wanted = group(block)
    [first] = await merge(wanted)
    before = (store / wanted.output).stat().st_mtime_ns
    [again] = await merge(wanted)  # as where an executor was lost between its put and its answer
    assert (again.failed, again.outputs[0].sha256) == ("", first.outputs[0].sha256)
    [other] = await merge(group(parquet_block(store, "two", [row(2)])))
    assert re.search(r"c-1\.parquet exists .* and was not touched", other.failed)
    assert (store / wanted.output).stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "miscounted", "not JSON"])
async def test_a_bad_input_is_an_error_of_one_sentence_and_writes_nothing(merge, store, damage):
    block = parquet_block(store, "one", [row(number, payload=os.urandom(100)) for number in range(100)])
    file = store / block.path
    data = file.read_bytes()
    match damage:
        case "cut":
            file.write_bytes(data[: len(data) // 2])
        case "flipped":
            middle = len(data) // 2
            file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        case "missing":
            file.unlink()
        case "miscounted":
            write_parquet([row(1)], file)
        case "not JSON":
            block = stored(store, "blocks/one.ndjson", [row(1)], lambda file: file.write_text("{oh\n"))
    wanted = group(block)
    [merged] = await merge(wanted)
    said = merged.failed
    assert (merged.outputs, merged.rows_in) == ([], 0)
    assert said
    assert len(said.splitlines()) == 1
    assert "Traceback" not in said
    assert "An error occurred while calling" not in said
    assert not (store / wanted.output).exists()


async def test_a_failed_group_does_not_stop_the_driver(driver, store):
    good = parquet_block(store, "good", [row(1)])
    bad = parquet_block(store, "bad", [row(2)])
    (store / bad.path).write_bytes(b"no Parquet at all")
    wanted = [group(good, output="table/good.parquet"), group(bad, output="table/bad.parquet")]
    [sound, failed] = await driver.merge(store.as_uri(), wanted)
    assert (sound.failed, sound.outputs[0].count) == ("", 1)
    assert "bad.parquet can't be read as Parquet" in failed.failed
    assert (await driver.ping()).spark.startswith("4.")


async def test_a_query_sees_the_payload_as_columns(driver, store):
    flights = [
        row(1, payload=b'{"carrier": "UA", "delay": 2.5, "error": "mine"}'),
        row(2, payload=b'{"carrier": "UA", "delay": 3.5}'),
        row(3, payload=b"not JSON"),
    ]
    block = parquet_block(store, "one", flights)
    views = {"flights": View(objects=[block], payload_schema="carrier STRING, delay DOUBLE, error STRING")}
    answer = await driver.query(
        store.as_uri(),
        views,
        "SELECT carrier, sum(delay), min(sequence), max(error) FROM flights GROUP BY 1 ORDER BY 1",
    )
    assert answer.columns == ["carrier", "sum(delay)", "min(sequence)", "max(error)"]
    assert answer.rows == [[None, None, 3, None], ["UA", 6.0, 1, "mine"]]
    assert not answer.truncated


async def test_a_query_that_must_check_reads_no_object_that_was_exchanged_nor_any_by_a_link(driver, store):
    block = parquet_block(store, "one", [row(1), row(2)])
    parquet_block(store, "other", [row(1), row(3)])
    sql = "SELECT max(sequence) FROM flights"
    checked = {"flights": View(objects=[block], checked=True)}
    assert (await driver.query(store.as_uri(), checked, sql)).rows == [[2]]
    [one, other] = [next(store.rglob(f"*{name}*.parquet")) for name in ("one", "other")]
    one.write_bytes(other.read_bytes())
    with pytest.raises(SparkError, match="was changed: its SHA-256 is not the recorded one"):
        await driver.query(store.as_uri(), checked, sql)
    one.unlink()
    one.symlink_to(other)
    for views in (checked, {"flights": View(objects=[block])}):
        with pytest.raises(SparkError, match="is a symbolic link, which is not followed"):
            await driver.query(store.as_uri(), views, sql)


async def test_an_answer_is_plain_json_and_bounded(driver, store):
    block = parquet_block(store, "one", [row(n, payload=b"\xff", headers=[("A", ["1"])]) for n in (1, 2, 3)])
    sql = (
        "SELECT payload, headers, timestamp '2013-01-01 05:00:00' AS t, cast(1.50 AS DECIMAL(5,2)) AS d, "
        "struct(1 AS x) AS s, double('NaN') AS n FROM flights ORDER BY sequence"
    )
    answer = await driver.query(store.as_uri(), {"flights": View(objects=[block])}, sql, limit=2)
    assert answer.truncated
    assert answer.rows == [["/w==", {"A": ["1"]}, "2013-01-01T05:00:00", "1.50", {"x": 1}, None]] * 2


async def test_a_view_of_nothing_is_empty(driver, store):
    answer = await driver.query(store.as_uri(), {"flights": View(objects=[])}, "SELECT count(*) FROM flights")
    assert answer.rows == [[0]]


async def test_a_wrong_query_is_answered_by_one_sentence(driver, store):
    with pytest.raises(SparkError, match=r"^The table or view `nowhere` cannot be found\.[^\n]*$"):
        await driver.query(store.as_uri(), {}, "SELECT * FROM nowhere")


async def test_views_of_one_query_are_unknown_to_the_next(driver, store):
    block = parquet_block(store, "one", [row(1)])
    await driver.query(store.as_uri(), {"flights": View(objects=[block])}, "SELECT count(*) FROM flights")
    with pytest.raises(SparkError, match="`flights` cannot be found"):
        await driver.query(store.as_uri(), {}, "SELECT * FROM flights")
