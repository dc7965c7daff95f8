"""A restore beside publishing again: `python tests/bench/bench_restore.py [messages] [rounds]`.

Messages of 128 bytes in blocks as a node writes them; a server on the same machine, mutual TLS.
"restore" is the whole of `capture restore` in a separate process, from its plan to the answer that the stream exists,
with its highest resident memory (VmHWM), and the difference to the memory that the process had before, after it
had restored a small stream. "publish_async" is that of nats-py, with the same messages and awaited acks; republishing
keeps neither sequences nor times.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import nats
from bench_table import PAYLOAD, print_machine, print_table

sys.path.append(str(Path(__file__).parents[1] / "support"))

from piled import NOW, STREAM, chunks, measured, pile

from natty import Batch, Natty
from natty.pulling.ordered import Ordered, OrderedOptions
from natty.testing import NatsServer, find_server, server_version

MESSAGES = 1_000_000
ROUNDS = 3
BLOCK = 50_000
IN_FLIGHT = 4000  # messages of publish_async without an ack: its default
MIB = (1 << 20) - 300  # bytes: a message that servers take by default
PILES: Mapping[str, tuple[int, int, int, int]] = {  # messages, bytes, messages of a block, keys
    "300 blocks overlap": (100_000, 1000, 350, 300),
    "messages of 1 MiB": (100, MIB, 16, 1),
    "1 MiB, 25 overlap": (100, MIB, 4, 25),
}


async def published(server: NatsServer, messages: int) -> float:
    """Publish the same messages by nats-py's publish_async; return the seconds."""
    options = server.connect_options()
    context = ssl.create_default_context(cafile=options["tls_ca"])
    context.load_cert_chain(options["tls_cert"], options["tls_key"])
    client = await nats.connect(options["servers"][0], tls=context)
    jetstream = client.jetstream(publish_async_max_pending=IN_FLIGHT)
    await jetstream.add_stream(name=STREAM, subjects=["piled.>"])
    began = time.perf_counter()
    for one in range(1, messages + 1):
        await jetstream.publish_async(f"piled.s{one % 10}", payload(one), wait_stall=60.0)
    await jetstream.publish_async_completed()
    took = time.perf_counter() - began
    assert (await jetstream.stream_info(STREAM)).state.messages == messages
    await client.close()
    return took


async def compared(server: NatsServer) -> int:
    """Read the restored stream, and return its messages when each is what was archived."""
    sequence = 0
    async with Natty(**server.connect_options()) as natty:
        last = (await natty.jetstream.request(f"STREAM.INFO.{STREAM}"))["state"]["last_seq"]
        async for step in Ordered(natty.jetstream, STREAM, OrderedOptions(max_messages=8192)):
            if not isinstance(step, Batch):
                continue
            for subject, _, headers, data in step.raw:
                sequence += 1
                assert (subject, headers, data) == (b"piled.s%d" % (sequence % 10), b"", payload(sequence)), sequence
            assert step.sequences == list(range(sequence + 1 - len(step), sequence + 1))
            assert step.times_ns == [NOW * 10**9 + 1000 * one for one in step.sequences]
            if sequence == last:
                break
    return sequence


async def cleared(server: NatsServer) -> None:
    async with Natty(**server.connect_options()) as natty:
        await natty.delete_stream(STREAM)


def payload(number: int) -> bytes:
    """Return what the messages of the comparison hold."""
    return b"%d" % number + PAYLOAD[len(str(number)) :]


async def main(messages: int, rounds: int) -> None:
    print_machine()
    print(f"nats-server {server_version(find_server())}, {messages:,} messages of {len(PAYLOAD)} bytes, mutual TLS")
    restores, memory, publishes = [], [], []
    with tempfile.TemporaryDirectory() as folder, NatsServer() as server:
        warm, _ = await pile(Path(folder) / "warm", chunks(100, 100), payload)
        store, _ = await pile(Path(folder) / "archive", chunks(messages, BLOCK), payload)
        for _ in range(rounds):
            kept, seconds, cpu, most, growth = await asyncio.to_thread(measured, server, warm, store)
            assert kept == messages
            if not restores:
                print(f"{await compared(server):,} messages are what was archived, each looked at", flush=True)
            restores.append(seconds)
            memory.append((most, growth))
            await cleared(server)
            publishes.append(await published(server, messages))
            await cleared(server)
            figures = f"restore {seconds:.2f} s ({cpu:.2f} s of CPU), {most / 1e6:.0f} MB"
            print(f"{figures}; publish_async {publishes[-1]:.2f} s", flush=True)
        restore, publish = median(restores), median(publishes)
        rows = [
            ("restore", f"{messages / restore:,.0f}", f"{restore:.2f}", *(f"{one / 1e6:.0f}" for one in max(memory))),
            ("publish_async of nats-py", f"{messages / publish:,.0f}", f"{publish:.2f}", "", ""),
        ]
        print_table("", ("", "messages/s", "s", "peak MB", "of which the restore's"), rows)
        print(f"restore is {publish / restore:.1f} times as fast; goals: 6 times, 150,000 messages/s, under 200 MB")
        print_table("", ("", "MB", "peak MB", "of which the restore's"), await piles(Path(folder), server, warm))
        print("goal: the restore's part is under 64 MiB, whatever the size")


async def piles(folder: Path, server: NatsServer, warm: str) -> list[tuple[str, ...]]:
    """Restore streams of several shapes, and ten times as large; return what each took."""
    noise, rows = os.urandom(1 << 21), []
    for name, (messages, size, block, keys) in PILES.items():
        for times in (1, 10):
            count, place = messages * times // 10, folder / f"{name} {times}"
            blocks = chunks(count, max(1, block * times // 10), keys)
            store, _ = await pile(place, blocks, lambda one, size=size: noise[one % 1000 : one % 1000 + size])
            *_, most, growth = await asyncio.to_thread(measured, server, warm, store)
            rows.append((name, f"{count * size / 1e6:.0f}", f"{most / 1e6:.0f}", f"{growth / 1e6:.0f}"))
            await cleared(server)
    return rows


if __name__ == "__main__":
    numbers = [int(one.replace("_", "")) for one in sys.argv[1:]]
    asyncio.run(main(*(numbers + [MESSAGES, ROUNDS][len(numbers) :])))
