"""What a run reads of messages: the inferred type of payloads, and from when on."""

import msgspec
import pytest
from derivations import Table, messages
from spark_blocks import STARTED

from capture.errors import PipelineError

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

QUERY = "SELECT sequence, country, total, tags[0] AS tag FROM S"


async def test_the_type_of_payloads_is_that_of_the_first_messages(driver, store):
    first = {
        2: {"country": "de", "total": 1.5, "tags": ["a"]},
        1: {"country": "dk", "total": 1},
        3: b"",
        4: b"not JSON",
    }
    table = Table(driver, store, QUERY, schema="infer")
    done = await table.run([messages(store, "b1", first)])
    kinds = {"country": "string", "total": "double", "tag": "string"}
    assert {name: kind for name, kind in table.types().items() if name in kinds} == kinds
    found = {row["sequence"]: (row["country"], row["total"], row["tag"]) for row in table.read()}
    assert found == {1: ("dk", 1.0, None), 2: ("de", 1.5, "a"), 3: (None, None, None), 4: (None, None, None)}
    table.schema = done.payload_schemas["S"]  # from now on it is fixed
    await table.run([messages(store, "b2", {5: {"country": "se", "total": 7, "colour": "red"}})])
    assert [row for row in table.read() if row["sequence"] == 5] == [
        {"sequence": 5, "country": "se", "total": 7.0, "tag": None}
    ]


async def test_of_payloads_that_are_no_objects_no_type_is_inferred(driver, store):
    table = Table(driver, store, "SELECT sequence FROM S", schema="infer")
    with pytest.raises(PipelineError, match="none of the first 2 payloads is a JSON object"):
        await table.run([messages(store, "b1", {1: b"x", 2: b"\xff"})])


async def test_only_messages_since_a_time_are_rows(driver, store):
    block = messages(store, "b1", {number: {"country": "de", "total": 1} for number in range(1, 6)})
    table = Table(driver, store, "SELECT sequence, time_ns FROM S", schema="country STRING")
    asked = table.asked([block])
    await driver.derive(asked)  # all
    times = {row["sequence"]: row["time_ns"] for row in await _read(driver, table, asked, 0)}
    since = times[3]
    assert since > STARTED
    assert {row["sequence"] for row in await _read(driver, table, asked, since)} == {3, 4, 5}


async def _read(driver, table, asked, since):
    inputs = {name: msgspec.structs.replace(one, since_ns=since) for name, one in asked.inputs.items()}
    done = await driver.derive(msgspec.structs.replace(asked, inputs=inputs, folder=f"table/since-{since}/"))
    return table.read(files=done.came)
