"""How many files of capture one message enters, from the source to its ack: what somebody opens to follow it."""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from patient import NEVER, PATIENCE

import capture
from capture.config.load import load
from capture.decoders import decoder
from capture.formats import writer
from capture.ingest.block import Limits, OpenBlocks
from capture.ingest.commit import Committer
from capture.ingest.layout import layout
from capture.ingest.pipeline import capture as capture_all
from capture.ingest.source import Source
from capture.partitioners import partitioner
from capture.stores import open_store
from natty import Natty

ROOT = Path(capture.__file__).parents[1]


class Trace:
    """The product's files in which a function was called, by any thread that it was set for, while it is on."""

    def __init__(self):
        self.files, self.on = set(), False

    def __call__(self, frame, event, _):
        if self.on and event == "call":
            self.files.add(frame.f_code.co_filename)

    def of(self, package):
        folder = ROOT / package
        return sorted(str(path.relative_to(folder)) for path in map(Path, self.files) if path.is_relative_to(folder))


@pytest.fixture
def trace():
    """A trace of this thread, and of those that it starts."""
    trace, before = Trace(), sys.getprofile()
    threading.setprofile(trace)
    sys.setprofile(trace)
    yield trace
    sys.setprofile(before)
    threading.setprofile(None)


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
    [({}, 12), ({"decoder": "json", "partition": "subject:1"}, 13)],
    ids=["by default", "with a decoder"],
)
async def test_one_message_enters_few_files_from_the_source_to_its_ack(
    natty, natty_name, tmp_path, trace, publish, choices, most
):
    """A block is warm-up: it loads what is loaded once, makes folders, and starts threads."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))  # its threads are traced
    stream = natty_name("orders")
    await natty.ensure_stream(stream, subjects=[f"{stream}.*"])
    await natty.ensure_consumer(stream, "capture", ack_wait=NEVER)
    config = load(None, {"stream": stream, "store": str(tmp_path), **choices}, environment={})
    decode, blocks = decoder(config.decoder), OpenBlocks(Limits(max_messages=1))
    async with Source(natty, stream, config.durable, ack_wait=NEVER) as source:
        made = writer(config.format, decode=decode)
        committer = Committer(open_store(config.store), made, source, layout=layout(config.layout))
        run = asyncio.create_task(
            capture_all(source, decode.decode, partitioner(config.partition), blocks, committer.commit)
        )
        await publish(stream)
        trace.on = True
        await publish(stream)
        trace.on = False
        source.stop()
        await run
    files = trace.of("capture")
    print(f"{len(files)} files of capture: {files}\nand of natty: {trace.of('natty')}")
    assert {"ingest/source.py", "ingest/block.py", "ingest/commit.py", "stores/file.py", "formats/parquet.py"} < set(
        files
    )
    assert len(files) <= most, files
