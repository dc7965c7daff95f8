"""Executors of a cluster read a stream: a driver in its own process session, which is killed whole at the end."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import spark_jetstream
from patient import FILLING

from natty import Natty
from natty.elections.guard import kill

MESSAGES = 2000


async def filled(server, name):
    """Create a stream of MESSAGES; return the data source's options for it."""
    connection = server.connect_options()
    async with Natty(**connection) as natty:
        await natty.create_stream(name, subjects=[f"{name}.>"], allow_direct=True, allow_batched=True)
        async with natty.publisher(name, **FILLING) as publisher:
            for number in range(1, MESSAGES + 1):
                await publisher.publish(f"{name}.1", b"message %d" % number, headers={"N": str(number)})
    return spark_jetstream.source_options(connection, name)


@asynccontextmanager
async def read_by_executors(options, stream, folder):
    """Start a driver that reads the stream in four tasks, keeps it on executors' disks, and waits.

    Yield its process, and its report of where that was.
    """
    spark = {"properties_file": options.properties_file, "properties": dict(options.properties)}
    with (folder / "log").open("wb") as log:
        driver = subprocess.Popen(
            [
                sys.executable,
                spark_jetstream.__file__,
                str(folder),
                json.dumps(stream | {"spark": spark}),
                *("batch", "cluster", "wait"),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )
    try:
        said = [await asyncio.to_thread(driver.stdout.readline) for _ in range(2)]
        assert all(said), (folder / "log").read_text()[-3000:]
        batch, where = map(json.loads, said)
        assert (batch["rows"], batch["distinct"], batch["tasks"]) == (MESSAGES, MESSAGES, 4)
        assert where["kept"] == MESSAGES
        yield driver, where
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()
        kill(driver.pid)
