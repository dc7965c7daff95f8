import asyncio
import contextlib
import random
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from patient import NEVER, PATIENCE, until

from capture.formats.parquet import ParquetWriter

MiB = 1 << 20
READ_AHEAD = 32 * MiB  # natty.pull.PullOptions.max_bytes
RESERVES = 64 * MiB  # what allocators keep for later

HANGS = """
import asyncio, logging, sys
from pathlib import Path
from capture.config.load import load
from capture.node.node import Node

config, gate = Path(sys.argv[1]), Path(sys.argv[2])
node = Node(load(config))
put = node.store.put

async def put_later(path, data, **options):
    if path.startswith(("blocks/", "_entries/")):  # nothing is kept: what counts is the memory
        print("a put has begun", flush=True)
        while not gate.exists():
            await asyncio.sleep(0.01)
    else:
        await put(path, data, **options)

node.store.put = put_later
logging.basicConfig(level=logging.INFO)
asyncio.run(node.run())
"""

MEASURES = """
import sys
from capture.decoders import decoder
from capture.formats.choose import writer
from capture.ingest.block import SealedBlock
from capture.ingest.pipeline import WRITING, WRITING_MESSAGE
from capture.ingest.record import Records
from natty.wire.message import Batch
from random import Random

def memory(which):
    return int(open("/proc/self/status").read().split(which)[1].split()[0]) * 1024

def block(count):
    ack = b"$JS.ACK.S.c.1.%d.%d.1795000000123456789.0"
    noise = Random(1).randbytes(size).hex().encode()[:size - 20]
    payloads = [b'{"id":%08d,"v":"%b"}' % (one, noise) for one in range(count)]
    subjects = [b"s.%d" % (one % 40) for one in range(count)]
    acks = [ack % (one, one) for one in range(count)]
    records = Records.of(Batch(list(zip(subjects, acks, [b""] * count, payloads))))
    return SealedBlock("S", "k", 0, records, "messages", sum(map(len, payloads)) + sum(map(len, subjects)))

format, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
writing = writer(format)
writing.write_sized(block(50))
before, whole = memory("VmRSS:"), block(count)
with open("/proc/self/clear_refs", "w") as resets:
    resets.write("5")
written = writing.write_sized(whole)
needed = memory("VmHWM:") - before
print(needed / (whole.memory + WRITING * whole.content_bytes + WRITING_MESSAGE * whole.count))
"""

SMALL_DISK = """
import resource, signal, sys
import capture.ingest.source, natty.wire.connection, natty.pulling.pull
capture.ingest.source.END_TIMEOUT = natty.wire.connection.CLOSE_TIMEOUT = 60.0  # to hand back
natty.pulling.pull.DRAIN_TIMEOUT = 60.0
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
sys.argv = ["capture", "run", "--config", sys.argv[1], "--node-name", "full"]
from capture.cli import main
main()
"""


def memory(pid, which="VmRSS"):
    """Return the resident memory of a process in bytes; VmHWM is the most that it ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:"))


def bytes_on_disk(pid, folder):
    """Return the bytes of all files of a process that are in a folder, with a name or without."""
    size = 0
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed by now
            size += file.stat().st_size if file.readlink().is_relative_to(folder) else 0
    return size


def stored(fleet):
    """Return the payload of every sequence in the archive's blocks."""
    files = [ParquetWriter().read(path.read_bytes()) for path in (fleet.store / "blocks").rglob("*.parquet")]
    rows = pa.concat_tables([file.select(["sequence", "payload"]) for file in files])
    return dict(zip(rows["sequence"].to_pylist(), rows["payload"].to_pylist(), strict=True))


async def until_reading_stops(fleet):
    """Return the consumer's state once nothing was delivered for two seconds."""
    before, since = None, 0
    while since < 20:
        await asyncio.sleep(0.1)
        state = await fleet.consumer()
        since = since + 1 if state["delivered"] == before else 0
        before = state["delivered"]
    return state


@pytest.mark.long
async def test_a_store_that_stands_still_stops_the_reading_and_memory_stays_within_its_bound(fleet, tmp_path):
    """1 000 keys, messages up to 1 MiB; the bytes that wait are several times the bound."""
    limit = 32 * MiB
    bound = limit + READ_AHEAD + RESERVES
    chance, noise = random.Random(1), random.Random(2).randbytes(MiB - 1000)
    payloads = [noise[: chance.choice([1000, 1000, 100_000, len(noise)])] for _ in range(1100)]
    assert sum(map(len, payloads)) > 2 * bound
    config = fleet.configure(
        decoder="raw",
        format="ndjson",
        ack_wait=NEVER,
        limits__max_bytes=limit // 16,
        limits__max_open_bytes=limit,
        spark__java="none",  # no candidate for the compaction, whose leader loads pyiceberg besides
    )
    node = fleet.start("slow", config, script=HANGS, arguments=[tmp_path / "gate"])
    await fleet.said("slow", " captures ")
    before = memory(node.pid)
    await fleet.publish(payloads, token=lambda number: f"key{number % 1000}")
    await fleet.said("slow", "a put has begun")
    state = await until_reading_stops(fleet)
    assert state["num_pending"] > 0
    assert state["ack_floor"]["stream_seq"] == 0
    held = memory(node.pid) - before
    (tmp_path / "gate").touch()
    await fleet.until_all_acked(len(payloads))
    most = memory(node.pid, "VmHWM") - before
    print(f"{held / MiB:.0f} MiB while it stood still, {most / MiB:.0f} MiB at most, bound {bound / MiB:.0f} MiB")
    assert most < bound
    assert await fleet.stop(node) == 0


@pytest.mark.long
async def test_a_killed_node_leaves_no_buffer_behind_and_the_next_one_gets_everything_again(fleet, tmp_path):
    folder = tmp_path / "buffers"
    settings = {"decoder": "raw", "buffers__kind": "disk", "buffers__folder": str(folder)}
    payloads = [b"%d" % number * 100 for number in range(3000)]
    await fleet.publish(payloads)
    first = fleet.configure("first.toml", ack_wait=2.0, limits__max_age=1.9, limits__max_messages=700, **settings)
    killed = fleet.start("node-1", first)
    await until(lambda: bytes_on_disk(killed.pid, folder) > 0)
    assert list(folder.iterdir()) == []  # they have no names
    killed.kill()
    await fleet.ended(killed)
    node = fleet.start("node-2", fleet.configure(ack_wait=2.0, limits__max_age=0.5, **settings))
    await fleet.until_all_acked(len(payloads))
    assert list(folder.iterdir()) == []
    assert await fleet.stop(node) == 0
    assert stored(fleet) == dict(enumerate(payloads, start=1))


@pytest.mark.long
async def test_a_node_whose_buffers_are_full_says_so_once_hands_back_and_another_gets_everything(fleet, tmp_path):
    folder = tmp_path / "buffers"
    payloads = [random.Random(number).randbytes(5000) for number in range(600)]
    config = fleet.configure(
        decoder="raw", ack_wait=NEVER, limits__max_age=NEVER / 2, buffers__kind="disk", buffers__folder=str(folder)
    )
    await fleet.publish(payloads)
    full = fleet.start("full", config, script=SMALL_DISK)
    assert await fleet.ended(full) == 1
    said = [line for line in fleet.log("full").read_text().splitlines() if line[:2] != "20"]
    assert len(said) == 1
    assert said[0].startswith(f"capture: the folder of the buffers, {folder}, is full (File too large): ")
    node = fleet.start("node-2", fleet.configure("next.toml", decoder="raw", ack_wait=NEVER, limits__max_age=0.5))
    await fleet.until_all_acked(len(payloads), within=2 * PATIENCE)  # far below ack_wait: they were handed back
    assert await fleet.stop(node) == 0
    assert stored(fleet) == dict(enumerate(payloads, start=1))


@pytest.mark.parametrize("format", ["ndjson", "parquet", "raw"])
@pytest.mark.parametrize(("size", "count"), [(128, 50_000), (1024, 16_000)])
async def test_a_block_and_its_writer_need_no_more_memory_than_is_counted(format, size, count):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MEASURES, format, str(size), str(count), stdout=asyncio.subprocess.PIPE
    )
    measured, _ = await process.communicate()
    assert float(measured) <= 1.0
