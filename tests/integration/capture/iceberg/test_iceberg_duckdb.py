"""DuckDB's own Iceberg extension reads the table: from a folder, from an S3 server, and by the REST catalog."""

import contextlib
import datetime
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest
from exposing import HOUR, expose_files, table_file
from iceberg_engines import EXPECTED, TOKEN, archive, prepare
from iceberg_on_duckdb import ENVIRONMENT, PACKAGES, Refused, answers, attach, running
from masked_blocks import Masked

from capture.archive import chain
from capture.archive.iceberg_state import archive_location, folder
from capture.archive.table import Table
from capture.iceberg import Exposer
from capture.maintenance.merge.schema_evolution import write_columns
from capture.node.status.iceberg_rest import Archive, RestCatalog
from capture.stores import open_store
from capture.testing import HeadState, MemoryHead
from natty.metrics.access import Certificate
from natty.metrics.http import serve
from natty.testing import DevCA

pytestmark = pytest.mark.long

SEQUENCES = "SELECT sequence FROM lake.orders.S ORDER BY 1"


@pytest.fixture(scope="module")
def python():
    return prepare(ENVIRONMENT, PACKAGES)


@pytest.fixture
async def duck(python):
    async with running(python) as duck:
        yield duck


@contextlib.asynccontextmanager
async def catalog(store, state, tls=None):
    """Serve the archive's tables, over TLS if there are certificates; yield the URL."""
    context = Certificate(tls.server_cert, tls.server_key) if tls else None
    served = RestCatalog({"orders": Archive(store, state.read)}, [TOKEN])
    async with serve(served.application(), "127.0.0.1", 0, context) as url:
        yield url


async def commit(store, state, *files, columns=""):
    """Commit a table with these files besides those it has."""
    head = state.head
    table = await chain.read(store, head, Table)
    wanted = msgspec.structs.replace(table, files=[*table.files, *files], columns=columns or table.columns)
    table = await expose_files(Exposer(store), table.files, wanted, token=3, now=HOUR + 120)
    await chain.commit(store, MemoryHead(3, state), head, table)
    await Exposer(store).announce(table)


def place(store):
    return f"{archive_location(store)}/{folder('S')}"


def trust(ca):
    """Return what makes DuckDB trust this authority, and no server without a certificate of it."""
    return f"SET ca_cert_file = '{ca}'", "SET enable_server_cert_verification = true"


async def test_duckdb_reads_the_table_by_its_folder_and_by_the_catalog(duck, tmp_path):
    store, state = await archive(f"{tmp_path}/an archive")
    async with catalog(store, state) as url:
        await duck.ask(attach(url))
        assert await answers(duck, place(store)) == EXPECTED


async def test_a_table_and_its_past_are_found_by_every_name_they_have(duck, tmp_path):
    store, state = await archive(f"{tmp_path}/an archive")
    location = place(store)
    for named in (
        f"'{location}'",
        f"'{location.removeprefix('file://')}'",
        f"'{location}/metadata/v2.metadata.json'",
        f"'{location}', version = '2'",
    ):
        assert await duck.ask_column(f"SELECT sequence FROM iceberg_scan({named}) ORDER BY 1") == [1, 2, 3, 4, 5]
    found = await duck.ask(
        f"SELECT snapshot_id, timestamp_ms FROM iceberg_snapshots('{location}') ORDER BY sequence_number"
    )
    table = (await chain.read(store, state.head, Table)).iceberg["S"]
    assert [number for number, _ in found] == [one.id for one in table.snapshots]
    (first, since), _ = found
    async with catalog(store, state) as url:
        await duck.ask(attach(url))
        for past in (
            f"iceberg_scan('{location}', snapshot_from_timestamp = TIMESTAMP '{since}')",
            f"lake.orders.S AT (VERSION => {first})",
            f"lake.orders.S AT (TIMESTAMP => TIMESTAMP '{since}')",
        ):
            assert await duck.ask_column(f"SELECT sequence FROM {past} ORDER BY 1") == [1, 2, 3, 4]


async def test_files_that_a_filter_leaves_out_are_not_opened(duck, tmp_path):
    store, state = open_store(f"{tmp_path}/an archive"), HeadState()
    wanted = await table_file(store, [1, 2, 3], name="a", key="a/b %")
    other = await table_file(store, [4], name="b", interval=HOUR + 3600)
    table = await expose_files(Exposer(store), [], Table(files=[wanted, other]), now=HOUR)
    await chain.commit(store, MemoryHead(1, state), None, table)
    await Exposer(store).announce(table)
    await store.delete(other.path)
    rows = f"SELECT sequence FROM iceberg_scan('{place(store)}')"
    await duck.ask("SET TimeZone = 'America/New_York'")
    for condition in (
        "key = 'a/b %'",
        "interval < TIMESTAMPTZ '2026-11-21 04:00:00 UTC'",
        "sequence <= 3",
        f"time_ns < {(HOUR + 3600) * 10**9}",
        "subject <= 's.3'",
    ):
        assert await duck.ask_column(f"{rows} WHERE {condition} ORDER BY 1") == [1, 2, 3], condition
    with pytest.raises(Refused, match="No such file"):
        await duck.ask(rows)


AT = datetime.datetime(2026, 11, 21, 3, 4, 5, 678901)
INNER = pa.struct([("a b", pa.string())])
TYPED = {
    "flag": (pa.bool_(), True),
    "whole": (pa.int32(), -7),
    "narrow": (pa.float32(), 0.5),
    "money": (pa.decimal128(5, 2), Decimal("123.45")),
    "text": (pa.string(), "ü / %"),
    "raw": (pa.binary(), b"\x00\xff"),
    "day": (pa.date32(), AT.date()),
    "clock": (pa.time64("us"), AT.time()),
    "local": (pa.timestamp("us"), AT),
    "moment": (pa.timestamp("us", "UTC"), AT),
    "many": (pa.list_(pa.int64()), [1, None, 2**40]),
    "place": (pa.struct([("x", pa.float64()), ("deep", INNER)]), {"x": 1.5, "deep": {"a b": "c"}}),
    "counts": (pa.map_(pa.string(), pa.int64()), [("one", 1)]),
    "lines": (pa.list_(pa.struct([("n", pa.int32())])), [{"n": 1}, {"n": 2}]),
}
EVOLVED = TYPED | {
    "whole": (pa.int64(), 2**40),
    "narrow": (pa.float64(), 0.1),
    "money": (pa.decimal128(9, 2), Decimal("1234567.89")),
    "place": (
        pa.struct([("x", pa.float64()), ("deep", INNER), ("y", pa.int64())]),
        {"x": 1.5, "deep": {"a b": "c"}, "y": 2},
    ),
    "lines": (pa.list_(pa.struct([("n", pa.int64()), ("m", pa.string())])), [{"n": 2**40, "m": "z"}]),
    "added": (pa.string(), "new"),
}


async def test_columns_of_every_type_keep_their_values_when_others_come_and_they_are_widened(duck, tmp_path):
    store, state = open_store(f"{tmp_path}/an archive"), HeadState()
    await chain.commit(store, MemoryHead(1, state), None, Table())
    for sequence, columns in enumerate((TYPED, EVOLVED), start=1):
        typed = {pa.field(name, kind): pa.array([value], kind) for name, (kind, value) in columns.items()}
        one = await table_file(store, [sequence], name=str(sequence), typed=typed)
        await commit(store, state, one, columns=write_columns(pa.schema(list(typed))))
    table = f"iceberg_scan('{place(store)}')"
    shown = {
        "whole": ["-7", str(2**40)],
        "narrow": ["0.5", "0.1"],
        "money": ["123.45", "1234567.89"],
        "place": ["{'x': 1.5, 'deep': {'a b': c}, 'y': NULL}", "{'x': 1.5, 'deep': {'a b': c}, 'y': 2}"],
        "lines": ["[{'n': 1, 'm': NULL}, {'n': 2, 'm': NULL}]", f"[{{'n': {2**40}, 'm': z}}]"],
        "added": [None, "new"],
        "_conflicts": [None, None],
        "flag": ["true"] * 2,
        "text": ["ü / %"] * 2,
        "hex(raw)": ["00FF"] * 2,
        "day": ["2026-11-21"] * 2,
        "clock": ["03:04:05.678901"] * 2,
        "local": ["2026-11-21 03:04:05.678901"] * 2,
        "epoch_us(moment)": [str((HOUR + 245) * 10**6 + 678_901)] * 2,
        "many": [f"[1, NULL, {2**40}]"] * 2,
        "counts": ["{one=1}"] * 2,
    }
    for column, values in shown.items():
        found = await duck.ask_column(f"SELECT ({column})::VARCHAR FROM {table} ORDER BY sequence")
        assert found == values, column
    for condition, sequences in (
        ("whole = -7", [1]),
        (f"whole = {2**40}", [2]),
        ("narrow >= 0.5", [1]),
        ("money > 1000", [2]),
        ("place.y IS NULL", [1]),
        ("added IS NULL", [1]),
        ("day = DATE '2026-11-21' AND clock > TIME '03:04:05' AND local < TIMESTAMP '2026-11-21 03:05:00'", [1, 2]),
        ("moment = TIMESTAMPTZ '2026-11-21 03:04:05.678901 UTC'", [1, 2]),
    ):
        assert await duck.ask_column(f"SELECT sequence FROM {table} WHERE {condition} ORDER BY 1") == sequences


async def test_rows_that_delete_files_mask_are_not_there(duck, tmp_path):
    table = Masked(tmp_path)
    [first, _] = await table.commit((1, 10), (8, 20))
    await table.commit((15, 30))
    await table.commit((1, 10), gone=[first])
    reader = await table.check()
    rows = f"FROM iceberg_scan('{reader.metadata_location}')"
    assert await duck.ask_column(f"SELECT sequence {rows} ORDER BY 1") == table.held
    assert await duck.ask_column(f"SELECT sequence {rows} WHERE sequence BETWEEN 9 AND 16 ORDER BY 1") == [
        *range(9, 17)
    ]


async def test_the_catalog_is_asked_over_tls_with_the_token_only(duck, tmp_path, natty_tls):
    store, state = await archive(f"{tmp_path}/an archive")
    foreign = DevCA.create().write(tmp_path / "foreign")
    async with catalog(store, state, natty_tls) as url:
        assert url.startswith("https://")
        for settings in ((), trust(foreign.ca)):
            with pytest.raises(Refused, match="SSL"):
                await duck.ask(*settings, attach(url))
        await duck.ask(*trust(natty_tls.ca))
        with pytest.raises(Refused, match="Unauthorized"):
            await duck.ask(attach(url, token=f"{TOKEN}, perhaps"))
        await duck.ask(attach(url))
        assert await duck.ask_column(SEQUENCES) == [1, 2, 3, 4, 5]


async def test_what_is_committed_later_is_there_and_nothing_can_be_written(duck, tmp_path):
    store, state = await archive(f"{tmp_path}/an archive")
    async with catalog(store, state) as url:
        await duck.ask(attach(url), SEQUENCES)
        await commit(store, state, await table_file(store, [6], name="d"))
        assert await duck.ask_column(SEQUENCES) == [1, 2, 3, 4, 5, 6]
        committed = state.head
        for statement in (
            "DELETE FROM lake.orders.S",
            "DROP TABLE lake.orders.S",
            "ALTER TABLE lake.orders.S ADD COLUMN more INTEGER",
            "CREATE TABLE lake.orders.T AS SELECT 1 AS one",
            "CREATE SCHEMA lake.payments",
        ):
            with pytest.raises(Refused, match="Forbidden"):
                await duck.ask(statement)
        assert state.head == committed
        assert await duck.ask_column(SEQUENCES) == [1, 2, 3, 4, 5, 6]


async def test_a_table_in_an_s3_server_is_read_over_tls_by_its_url_and_by_the_catalog(duck, s3, natty_tls):
    store, state = await archive(s3.url("a lake of ducks"))
    location = place(store)
    assert location == "s3://lake/a lake of ducks/iceberg/S"
    table = f"FROM iceberg_scan('{location}/metadata/v2.metadata.json')"
    with pytest.raises(Refused, match="SSL"):
        await duck.ask(secret(s3), table)
    with pytest.raises(Refused, match="403"):
        await duck.ask(*trust(natty_tls.ca), secret(s3, "another"), table)
    async with catalog(store, state, natty_tls) as url:
        await duck.ask(secret(s3), attach(url, options=", ACCESS_DELEGATION_MODE 'none'"))
        assert await answers(duck, location) == EXPECTED


def secret(server, password=""):
    """Return the statement that tells DuckDB how to reach an S3 server."""
    return f"""
        CREATE OR REPLACE SECRET (
            TYPE s3, KEY_ID '{server.environment["AWS_ACCESS_KEY_ID"]}', REGION '{server.environment["AWS_REGION"]}',
            SECRET '{password or server.environment["AWS_SECRET_ACCESS_KEY"]}',
            ENDPOINT '{server.endpoint.removeprefix("https://")}', URL_STYLE 'path'
        )
    """
