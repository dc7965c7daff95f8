"""Queries and payloads that nobody meant well: the table is that of a computation over all messages, or a sentence."""

import pytest
from derivations import Table, check_increments, messages

from capture.errors import PipelineError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("size_of_run"), pytest.mark.asyncio(loop_scope="session")]

SCHEMA = "k STRING, v INT, x DOUBLE, t TIMESTAMP, address STRUCT<city: STRING, k: STRING>"
HOSTILE = [
    b"",
    b"not JSON",
    b"[1, 2]",
    b"null",
    b"\xff\xfe\x00",
    b'{"k": "a", "v": "text", "x": {}}',
    b'{"k": "a", "v": 99999999999999999999}',
    b'{"k": "a", "k": "b", "v": 1, "v": 2}',
    b'{"k": {"deep": ' + b"[" * 5000 + b"]" * 5000 + b"}}",
    b'{"k": "' + b"x" * 1_000_000 + b'", "v": 1}',
    b'{"k": "a", "v": 1, "__sequence": 1000000, "__dead": true, "__unit": 7, "sequence": 5, "reason": "r", "key": 1}',
]


def increments(store):
    """Blocks of hostile payloads among others; the later block has the lower sequences."""
    keys = ["a", "A", "a ", "", None, "c"]
    sound = {n: {"k": keys[n % 6], "v": n % 4, "x": [0.0, -0.0, "NaN", None, 1.5][n % 5]} for n in range(1, 61)}
    for number, body in sound.items():
        body["t"] = f"2026-0{1 + number % 3}-01T00:00:{number % 60:02}Z"
        body["address"] = {"city": "b", "k": keys[number % 6]}
    high = {100 + n: body for n, body in sound.items()} | {200 + n: body for n, body in enumerate(HOSTILE)}
    return [[messages(store, "high", high)], [messages(store, "low", sound | {70: HOSTILE[5]})]]


@pytest.mark.parametrize(
    ("query", "upkeep"),
    [
        ("SELECT s.k, count(DISTINCT v) AS n, sum(v) AS t FROM S AS s WHERE s.k IS NOT NULL GROUP BY s.k", "groups"),
        (
            "SELECT k, max_by(sequence, v) AS m, min_by(sequence, v) AS n, last(v) AS l, max(length(k)) AS x FROM S"
            " WHERE k IS NOT NULL GROUP BY k",
            "merge",
        ),
        pytest.param(
            "SELECT sequence, count(DISTINCT v) AS n FROM S GROUP BY sequence", "groups", marks=pytest.mark.long
        ),
        pytest.param("SELECT x, count(*) AS n, avg(v) AS v FROM S GROUP BY 1", "merge", marks=pytest.mark.long),
        pytest.param("SELECT x, count(DISTINCT v) AS n FROM S GROUP BY x", "groups", marks=pytest.mark.long),
        pytest.param(
            "SELECT to_char(t, 'yyyy-MM') AS month, count(*) AS n FROM S GROUP BY 1", "whole", marks=pytest.mark.long
        ),
        pytest.param(
            "SELECT `k` AS `a``b c.d`, count(DISTINCT v) AS `n.m` FROM S GROUP BY 1", "groups", marks=pytest.mark.long
        ),
    ],
)
async def test_hostile_messages_and_names_change_no_result(driver, store, query, upkeep):
    key = {"key": ["k"]} if "IS NOT NULL" in query else {}
    table = await check_increments(driver, store, query, increments(store), schema=SCHEMA, **key)
    assert table.upkeep == upkeep
    assert len(table.read()) > 3


async def test_the_fields_of_a_struct_are_rows_with_an_order(driver, store):
    table = Table(driver, store, "SELECT address.* FROM S WHERE address.k IS NOT NULL", schema=SCHEMA, key=["k"])
    for new in increments(store):
        await table.run(new)
    assert {one["k"]: one["__sequence"] for one in table.read(hidden=True)} == {
        "a": 160, "A": 155, "a ": 156, "": 157, "c": 159
    }  # fmt: skip


@pytest.mark.long
async def test_a_key_that_is_zero_or_not_a_number_is_one_key(driver, store):
    table = Table(driver, store, "SELECT x, v FROM S WHERE x IS NOT NULL", schema=SCHEMA, key=["x"])
    for new in increments(store):
        await table.run(new)
    assert [str(abs(one["x"])) for one in table.read()] == ["0.0", "1.5", "nan"]


async def test_a_payload_can_not_have_the_order_of_its_message(driver, store):
    table = Table(driver, store, "SELECT k, v FROM S", schema="k STRING, v INT, __sequence BIGINT", key=["k"])
    with pytest.raises(PipelineError, match=r"^pipeline p: its schema has the field __sequence"):
        await table.run(increments(store)[1])
