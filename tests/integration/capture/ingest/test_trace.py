"""How many files of capture one message enters, from the source to its ack: what somebody opens to follow it."""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from entering import entered
from patient import NEVER, PATIENCE

import capture as package
from capture.config.load import load
from capture.decoders import decoder
from capture.formats import writer
from capture.ingest.block import Limits, OpenBlocks
from capture.ingest.commit import Committer
from capture.ingest.layout import layout
from capture.ingest.pipeline import capture
from capture.ingest.source import Source
from capture.partitioners import partitioner
from capture.stores import open_store
from natty import Natty


@pytest.fixture
def publish(nats_server):
    """Publish one message and return when it is acknowledged, in a thread and over a connection that are not traced."""

    async def publish_one(stream):
        async with Natty(**nats_server.connect_options()) as natty, asyncio.timeout(PATIENCE):
            sequence = (await natty.publish(f"{stream}.eu", b'{"n": 1}')).seq
            while (await info(natty, stream))["ack_floor"]["stream_seq"] < sequence:
                await asyncio.sleep(0.05)

    def run(stream):
        sys.setprofile(None)
        asyncio.run(publish_one(stream))

    async def publish(stream):
        with ThreadPoolExecutor(1) as executor:
            await asyncio.get_running_loop().run_in_executor(executor, run, stream)

    return publish


async def info(natty, stream):
    return await natty.jetstream.request(f"CONSUMER.INFO.{stream}.capture")


@pytest.mark.parametrize(
    ("choices", "most"),
    [({}, 11), ({"decoder": "json", "partition": "subject:1"}, 12)],
    ids=["by default", "with a decoder"],
)
async def test_one_message_enters_few_files_from_the_source_to_its_ack(
    natty, natty_name, tmp_path, publish, choices, most
):
    """A block is warm-up: it loads what is loaded once, and makes folders."""
    stream = natty_name("orders")
    await natty.ensure_stream(stream, subjects=[f"{stream}.*"])
    await natty.ensure_consumer(stream, "capture", ack_wait=NEVER)
    config = load(None, {"stream": stream, "store": str(tmp_path), **choices}, environment={})
    decode, blocks = decoder(config.decoder), OpenBlocks(Limits(max_messages=1))
    async with Source(natty, stream, config.durable, ack_wait=NEVER) as source:
        made = writer(config.format, decode=decode)
        committer = Committer(open_store(config.store), made, source, layout=layout(config.layout))
        run = asyncio.create_task(
            capture(source, decode.decode, partitioner(config.partition), blocks, committer.commit)
        )
        await publish(stream)
        with entered(package) as files:
            await publish(stream)
        source.stop()
        await run
    known = ("ingest/source", "ingest/block", "ingest/commit", "stores/file", "formats/parquet")
    assert {f"capture/{one}.py" for one in known} < files
    assert len(files) <= most, sorted(files)
