"""A backlog stays in the stream, however slow the handler is. A million: tests/bench/bench_consume.py."""

import asyncio
import subprocess
import sys

import pytest
from patient import PATIENCE, PATIENT

BACKLOG = 200_000
LIMIT = 64 * 1024 * 1024  # bytes that consuming may add to the process
SCRIPT = f"""
import asyncio, sys
from pathlib import Path
from natty import Natty

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

async def main(stream, server, ca, cert, key):
    seen = 0

    async def slow(message):
        nonlocal seen
        seen += 1
        await asyncio.sleep(0.01)
        if seen >= 2000:
            consumption.stop()

    async with Natty(server, tls_ca=ca, tls_cert=cert, tls_key=key, **{PATIENT}) as natty:
        consumption = natty.consume(
            stream, "d", slow, concurrency=20, dead_letters=False, consumer={{"max_ack_pending": 1_000_000}}
        )
        before = most = resident()
        task = asyncio.create_task(consumption.run())
        while not task.done():
            await asyncio.sleep(0.01)
            most = max(most, resident())
        await task
    print(seen, before, most)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.long
async def test_a_large_backlog_and_a_slow_handler_take_little_memory(natty, natty_name, nats_server):
    stream = natty_name("BACKLOG")
    await natty.create_stream(stream, subjects=[f"{stream}.>"], allow_batched=True)
    async with natty.publisher(stream, ack_timeout=PATIENCE) as publisher:
        for _ in range(BACKLOG):
            await publisher.publish(f"{stream}.eu", b"0123456789abcdef")
    connect = nats_server.connect_options()
    command = [sys.executable, "-c", SCRIPT, stream, *connect["servers"]]
    command += [connect["tls_ca"], connect["tls_cert"], connect["tls_key"]]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert ran.returncode == 0, ran.stderr
    seen, before, most = map(int, ran.stdout.split())
    state = await natty.jetstream.request(f"CONSUMER.INFO.{stream}.d")
    await natty.delete_stream(stream)
    print(f"{seen} of {BACKLOG} handled, memory {before / 2**20:.1f} MiB before and {most / 2**20:.1f} MiB at most")
    assert state["num_pending"] + state["num_ack_pending"] > 0.9 * BACKLOG
    assert most - before < LIMIT
