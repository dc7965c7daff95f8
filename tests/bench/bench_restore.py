"""A restore beside publishing again: `python tests/bench/bench_restore.py [messages] [rounds]`.

Messages of 128 bytes in blocks as a node leaves them; a server on the same machine, mutual TLS.
"restore" is the whole of `capture restore` in a process of its own, from its plan to the answer that the stream is
there, with its resident memory at its highest (VmHWM). "publish_async" is nats-py's, of the same messages, with its
acks awaited; republishing keeps neither sequences nor times.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import nats
from bench_table import PAYLOAD, print_machine, print_table

from capture import chain
from capture.block import SealedBlock
from capture.chain import Head
from capture.commit import Committer
from capture.identity import claim
from capture.record import Records
from capture.recording import Configuration, Recording, StreamRecord
from capture.stores import open_store
from capture.sweep import sweep
from capture.testing import MemoryHead
from capture.writers import writer
from natty import Natty
from natty.testing import NatsServer, find_server, server_version

MESSAGES = 1_000_000
ROUNDS = 3
STREAM, CREATED, NOW = "BENCH", "2026-11-21T03:00:00Z", 1_795_230_000
BLOCK = 50_000
IN_FLIGHT = 4000  # messages of publish_async without an ack: its default
CONFIG = {
    "name": STREAM, "subjects": ["bench.>"], "retention": "limits", "storage": "file", "num_replicas": 1,
    "max_age": 0, "max_msgs": -1, "max_bytes": -1, "max_msg_size": -1, "discard": "old",
}  # fmt: skip
PROGRAM = """
import asyncio, sys, time
class Hidden:  # as where the extra `capture` alone is installed: pyarrow loads pandas if it is there
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hidden())
import capture
from natty import Natty
async def main(options, store):
    async with Natty(**options) as natty:
        began = time.perf_counter()
        done = await capture.restore(natty, store)
        print(done.kept, time.perf_counter() - began, time.process_time())
asyncio.run(main(eval(sys.argv[1]), sys.argv[2]))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


class Nobody:
    """Where acks go that nobody waits for."""

    def ack(self, replies: list[bytes]) -> None:
        pass

    def nak(self, replies: list[bytes], delay: float = 0.0) -> None:
        pass


async def archived(folder: Path, messages: int) -> str:
    """Make an archive of one stream, in blocks; return its store."""
    store = open_store(str(folder))
    await claim(store, STREAM, STREAM, CREATED)
    committer = Committer(store, writer("parquet"), Nobody())
    for start in range(1, messages + 1, BLOCK):
        sequences = list(range(start, min(start + BLOCK, messages + 1)))
        count = len(sequences)
        records: Records[Any] = Records(
            STREAM,
            sequences,
            [NOW * 10**9 + 1000 * one for one in sequences],
            [b"bench.s%d" % (one % 10) for one in sequences],
            [b""] * count,
            [b"%d" % one + PAYLOAD[len(str(one)) :] for one in sequences],
            [1] * count,
            [b""] * count,
            [None] * count,
        )
        await committer.commit(SealedBlock(STREAM, "k", NOW, records, "messages"))
    await sweep(store, MemoryHead(1), _no_head, now=float(NOW), grace=900.0)
    state = {"messages": messages, "bytes": 170 * messages, "first_seq": 1, "last_seq": messages}
    seen = Configuration(since=float(NOW), first_seq=1, last_seq=messages, config=CONFIG)
    record = StreamRecord(created=CREATED, state=state, configurations=[seen])
    recording = Recording(archive=STREAM, streams={STREAM: record}, created=float(NOW))
    await chain.commit(store, MemoryHead(1), None, recording)
    return str(folder)


async def _no_head() -> Head | None:
    return None


def restored(server: NatsServer, store: str) -> tuple[float, float, int]:
    """Restore in a process of its own; return its seconds, those of its CPU, and its highest memory in bytes."""
    command = [sys.executable, "-c", PROGRAM, repr(server.connect_options()), store]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return float(told[1]), float(told[2]), int(told[3]) * 1024


async def published(server: NatsServer, messages: int) -> float:
    """Publish the same messages by nats-py's publish_async; return the seconds."""
    options = server.connect_options()
    context = ssl.create_default_context(cafile=options["tls_ca"])
    context.load_cert_chain(options["tls_cert"], options["tls_key"])
    client = await nats.connect(options["servers"][0], tls=context)
    jetstream = client.jetstream(publish_async_max_pending=IN_FLIGHT)
    await jetstream.add_stream(name=STREAM, subjects=["bench.>"])
    began = time.perf_counter()
    for one in range(1, messages + 1):
        await jetstream.publish_async(f"bench.s{one % 10}", b"%d" % one + PAYLOAD[len(str(one)) :], wait_stall=60.0)
    await jetstream.publish_async_completed()
    took = time.perf_counter() - began
    assert (await jetstream.stream_info(STREAM)).state.messages == messages
    await client.close()
    return took


async def cleared(server: NatsServer) -> None:
    async with Natty(**server.connect_options()) as natty:
        await natty.delete_stream(STREAM)


async def main(messages: int, rounds: int) -> None:
    print_machine()
    print(f"nats-server {server_version(find_server())}, {messages:,} messages of {len(PAYLOAD)} bytes, mutual TLS")
    restores, memory, publishes = [], [], []
    with tempfile.TemporaryDirectory() as folder, NatsServer() as server:
        store = await archived(Path(folder) / "archive", messages)
        for _ in range(rounds):
            seconds, cpu, most = await asyncio.to_thread(restored, server, store)
            restores.append(seconds)
            memory.append(most)
            await cleared(server)
            publishes.append(await published(server, messages))
            await cleared(server)
            figures = f"restore {seconds:.2f} s ({cpu:.2f} s of CPU), {most / 1e6:.0f} MB"
            print(f"{figures}; publish_async {publishes[-1]:.2f} s", flush=True)
    restore, publish = median(restores), median(publishes)
    rows = [
        ("restore", f"{messages / restore:,.0f}", f"{restore:.2f}", f"{max(memory) / 1e6:.0f}"),
        ("publish_async of nats-py", f"{messages / publish:,.0f}", f"{publish:.2f}", ""),
    ]
    print_table("", ("", "messages/s", "s", "peak MB"), rows)
    print(f"restore is {publish / restore:.1f} times as fast; goals: 6 times, 150,000 messages/s, under 200 MB")


if __name__ == "__main__":
    numbers = [int(one.replace("_", "")) for one in sys.argv[1:]]
    asyncio.run(main(*(numbers + [MESSAGES, ROUNDS][len(numbers) :])))
