"""The data source over Spark Connect: the client has no JVM, and the server reaches NATS over mutual TLS."""

import asyncio

import pytest
import pytest_asyncio
from patient import FILLING
from spark_connect import connect_server  # noqa: F401
from spark_jetstream import source_options

from natty import Natty

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

MESSAGES = 1000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def said(nats_server, connect_server, tmp_path_factory):  # noqa: F811
    """What each job of a client came to, and what the streams that it wrote to hold then."""
    connection = nats_server.connect_options()
    options = source_options(connection, "CONNECTED")
    async with Natty(**connection) as natty:
        for name in ("CONNECTED", "CONNECTED_OUT", "CONNECTED_FLOW"):
            await natty.create_stream(name, subjects=[f"{name}.>"], allow_direct=True, duplicate_window=3600.0)
        async with natty.publisher("CONNECTED", **FILLING) as publisher:
            for number in range(1, MESSAGES + 1):
                await publisher.publish(f"CONNECTED.{number % 2}", b"message %d" % number, headers={"N": str(number)})
        jobs = ("batch", "refused", "stream", "write", "write_stream")
        folder = tmp_path_factory.mktemp("connected")
        status, answers, errors = await asyncio.to_thread(connect_server.client, folder, options, *jobs)
        assert status == 0, errors[-3000:] + connect_server.log.read_text()[-3000:]
        held = {
            name: (await natty.jetstream.request(f"STREAM.INFO.{name}"))["state"]["messages"]
            for name in ("CONNECTED_OUT", "CONNECTED_FLOW")
        }
    return {answer["job"]: answer for answer in answers} | held


async def test_a_stream_is_a_table_to_a_client_without_a_jvm(said):
    batch = said["batch"]
    assert batch["client"].startswith("pyspark.sql.connect")
    assert (batch["count"], batch["distinct"]) == (MESSAGES, MESSAGES)
    assert batch["first"] == ["CONNECTED.1", "message 1", {"N": ["1"]}]


async def test_a_misspelt_option_is_named_to_the_client(said):
    assert "there is no option startsequense; did you mean startSequence?" in said["refused"]["said"]


async def test_micro_batches_bring_each_message_once(said):
    stream = said["stream"]
    assert (stream["rows"], stream["distinct"]) == (MESSAGES, MESSAGES)
    assert stream["ends"] == [401, 801, 1001], "where its micro-batches ended"


async def test_a_client_writes_each_row_once(said):
    assert (said["CONNECTED_OUT"], said["CONNECTED_FLOW"]) == (MESSAGES, MESSAGES)


async def test_a_client_with_another_token_is_refused(connect_server, tmp_path):  # noqa: F811
    client = asyncio.to_thread(connect_server.client, tmp_path, {"stream": "CONNECTED"}, "batch", token="another")
    status, answers, errors = await client
    assert (status != 0, answers) == (True, [])
    assert "UNAUTHENTICATED" in errors or "Invalid authentication token" in errors
